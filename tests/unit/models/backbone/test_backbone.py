"""Vocabulary extension, scratch models and checkpoints."""

import json

import numpy as np
import pytest
import torch
from support.checkpoints import save_checkpoint
from support.decoding import tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.models.backbone.build import (
    load_pretrained,
    reading_dtype,
    resolve_dtype,
    scratch_model,
    train_tokenizer,
)
from minionerec.models.backbone.bundle import Bundle, load_bundle
from minionerec.models.backbone.vocabulary import (
    add_code_tokens,
    code_token_ids,
    initialise_code_rows,
    lift_code_rows,
    verify_code_tokens,
)
from minionerec.models.nn.layers import Linear
from minionerec.models.prompts.wording import load_wording
from minionerec.sid.table import SidTable

TITLES = ["red cup", "blue cup", "green lamp", "lamp"]
TABLE = SidTable(np.array([[0, 1, -1], [0, 2, -1], [7, 1, 0], [7, 1, 3]]), ["p", "q", "r", "s"])
QWEN = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24}
SHAPE = {"hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "inner_size": 24}


def scratch(seed=0, table=TABLE):
    tokenizer = train_tokenizer(TITLES, 300)
    add_code_tokens(tokenizer, table)
    return Bundle(scratch_model(tokenizer, seed, **SHAPE), tokenizer, table, load_wording("compact"), 64)


def save(path, **kwargs):
    bundle = scratch(**kwargs)
    save_checkpoint(bundle, path, steps=3)
    return bundle


def test_each_code_is_one_token_in_string_order():
    bundle = scratch()
    tokens = TABLE.tokens
    assert tokens == ["<a_0>", "<a_7>", "<b_1>", "<b_2>", "<c_0>", "<c_3>"]
    ids = bundle.tokenizer.convert_tokens_to_ids(tokens)
    assert ids == list(range(len(bundle.tokenizer) - 6, len(bundle.tokenizer)))
    codes = code_token_ids(bundle.tokenizer, TABLE)
    assert codes.shape == (3, 8)
    assert codes[0, 7] == ids[1]
    assert codes[2, 3] == ids[5]
    assert codes[1, 5] == -1
    assert bundle.tokenizer("cup<a_7><b_1> cup")["input_ids"].count(ids[1]) == 1


def test_text_survives_the_trained_tokenizer():
    tokenizer = train_tokenizer(TITLES, 300)
    for text in ("Grüße, 20 % off 🎉", " two  spaces ", "line\nbreak"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_tokenizer_that_splits_a_code_is_refused():
    tokenizer = train_tokenizer(TITLES, 300)
    with pytest.raises(DataError, match=r"SID token '<a_0>' into [2-9] tokens; expected 1"):
        verify_code_tokens(tokenizer, TABLE)


@pytest.mark.parametrize("tied", [True, False])
def test_new_rows_start_from_the_words_of_their_items(tied):
    tokenizer = train_tokenizer(TITLES, 300)
    rows = len(tokenizer) + 3  # spare rows, as pretrained matrices have them
    model = tiny_model(tied=tied, vocab_size=rows, **QWEN, num_hidden_layers=1, initializer_range=0.02).train()
    before = model.get_input_embeddings().weight.detach().clone()
    add_code_tokens(tokenizer, TABLE)
    initialise_code_rows(model, tokenizer, TABLE, TITLES, seed=1)
    weight = model.get_input_embeddings().weight.detach()
    assert len(weight) == len(tokenizer) > rows
    ids = code_token_ids(tokenizer, TABLE)
    words = [before[tokenizer(title)["input_ids"]].mean(0) for title in TITLES]
    spread = before[: rows - 3].std()
    positions = ((0, 0, [0, 1]), (0, 7, [2, 3]), (1, 1, [0, 2, 3]), (2, 3, [3]))
    moved = [
        weight[ids[level, code]] - torch.stack([words[i] for i in items]).mean(0) for level, code, items in positions
    ]
    common = torch.stack(moved).mean(0)  # one vector for all codes, where the rows make logits too
    apart = weight[ids[ids >= 0]] - weight[ids[ids >= 0]].mean(0)
    assert common.norm() < apart.norm(dim=1).mean() * 1.2
    assert (common.norm() > spread) == tied
    for each in moved:
        assert 0 < (each - common).norm() < spread * 16**0.5 * 0.3
    assert torch.equal(weight[: rows - 3], before[: rows - 3])
    head = model.get_output_embeddings().weight
    assert (head is model.get_input_embeddings().weight) == tied
    assert model.config.vocab_size == len(tokenizer)


def _wordy_model(tokenizer, tied):
    """A small model that gives words all probability, as pretrained ones do, and new tokens none."""
    model = tiny_model(tied=tied, vocab_size=len(tokenizer), **QWEN, initializer_range=0.2).train()
    with torch.no_grad():
        model.model.norm.weight.mul_(10)
        model.get_input_embeddings().weight += 0.5  # a direction in common, which hidden states then have too
    return model


def _share_of_codes(model, tokenizer, table=TABLE):
    ids = tokenizer("<|bos|>" + "".join(table.sids) * 2, return_tensors="pt")["input_ids"]
    codes = code_token_ids(tokenizer, table)
    with torch.no_grad():
        return model.eval()(ids).logits[0, 1:].softmax(-1)[:, codes[codes >= 0]].sum(-1)


@pytest.mark.parametrize("tied", [True, False])
def test_codes_are_likely_before_the_first_step(tied):
    tokenizer = train_tokenizer(TITLES, 300)
    model = _wordy_model(tokenizer, tied).train()
    before = model.get_output_embeddings().weight.detach().clone()
    add_code_tokens(tokenizer, TABLE)
    initialise_code_rows(model, tokenizer, TABLE, TITLES, seed=1)
    assert model.training
    share = _share_of_codes(model, tokenizer)
    assert share.mean() > 0.8, share
    assert torch.equal(model.get_output_embeddings().weight[: len(before)], before)


def test_likely_codes_are_not_lifted_again():
    tokenizer = train_tokenizer(TITLES, 300)
    model = _wordy_model(tokenizer, tied=False)
    add_code_tokens(tokenizer, TABLE)
    initialise_code_rows(model, tokenizer, TABLE, TITLES, seed=1)
    before = model.get_output_embeddings().weight.detach().clone()
    lift_code_rows(model, tokenizer, TABLE, seed=1)
    assert torch.allclose(model.get_output_embeddings().weight, before, atol=1e-5)


def test_equal_seeds_make_equal_rows():
    made = []
    for seed in (1, 1, 2):
        tokenizer = train_tokenizer(TITLES, 300)
        model = _wordy_model(tokenizer, tied=True)
        add_code_tokens(tokenizer, TABLE)
        initialise_code_rows(model, tokenizer, TABLE, TITLES, seed)
        made.append(model.get_input_embeddings().weight.detach())
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


def test_bundle_is_an_ordinary_checkpoint_and_comes_back(tmp_path):
    bundle = save(tmp_path / "c")
    loaded = load_bundle(tmp_path / "c")
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(bundle.model.eval()(ids).logits, loaded.model.eval()(ids).logits)
    assert all(type(m) is Linear for m in loaded.model.modules() if isinstance(m, torch.nn.Linear))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "c").eval()
    assert torch.equal(plain(ids).logits, loaded.model(ids).logits)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "c")
    verify_code_tokens(tokenizer, TABLE)
    assert loaded.table.fingerprint == TABLE.fingerprint
    assert loaded.wording == bundle.wording
    assert loaded.max_prompt_length == 64
    assert np.array_equal(loaded.code_ids, bundle.code_ids)
    assert not list((tmp_path / "c").glob("*.bin")) and (tmp_path / "c" / "model.safetensors").is_file()


def test_text_is_split_after_loading_as_before_saving(tmp_path):
    bundle = save(tmp_path / "c")
    texts = [*TITLES, "Drill  10mm (2-Pack)\n", "it's 3,000 items; naïve", "<|endoftext|>"]
    wanted = bundle.tokenizer(texts, add_special_tokens=False)["input_ids"]
    _, pretrained = load_pretrained(str(tmp_path / "c"), torch.float32)
    for tokenizer in (load_bundle(tmp_path / "c").tokenizer, pretrained):
        assert tokenizer(texts, add_special_tokens=False)["input_ids"] == wanted
        assert len(tokenizer) == len(bundle.tokenizer) and tokenizer.padding_side == "left"


def test_equal_runs_write_equal_files(tmp_path):
    save(tmp_path / "one")
    save(tmp_path / "two")
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("one", "two")]
    assert manifests[0] == manifests[1]


def test_the_saved_generation_config_is_harmless(tmp_path):
    bundle = scratch()
    bundle.model.generation_config.update(do_sample=True, top_k=1, repetition_penalty=5.0, temperature=0.1)
    save_checkpoint(bundle, tmp_path / "c")
    saved = json.loads((tmp_path / "c" / "generation_config.json").read_text())
    assert saved.get("do_sample", False) is False
    assert saved.get("repetition_penalty", 1.0) == 1.0
    assert not {"top_k", "top_p", "temperature"} & {key for key, value in saved.items() if value is not None}


def test_another_table_is_refused_by_name(tmp_path):
    save(tmp_path / "c")
    other = SidTable(np.array([[0, 1], [0, 2], [7, 1], [7, 2]]), ["p", "q", "r", "s"])
    with pytest.raises(ArtefactError, match=rf"trained on the SID table {TABLE.fingerprint[:12]} \(4 SIDs\)"):
        load_bundle(tmp_path / "c", table=other)
    with pytest.raises(ArtefactError, match="no such directory; expected the output of an earlier stage"):
        load_bundle(tmp_path / "nothing")


def test_broken_weights_file_is_one_message(tmp_path):
    save(tmp_path / "c")
    (tmp_path / "c" / "model.safetensors").unlink()
    with pytest.raises(ArtefactError, match=r"model\.safetensors: listed in manifest\.json but missing"):
        load_bundle(tmp_path / "c")


def test_pretrained_from_a_directory_gets_codes(tmp_path):
    bundle = scratch()
    bundle.model.save_pretrained(tmp_path / "hub")
    train_tokenizer(TITLES, 300).save_pretrained(tmp_path / "hub")
    model, tokenizer = load_pretrained(str(tmp_path / "hub"), torch.float32)
    assert tokenizer.padding_side == "left"
    for each in (bundle.model, model):
        assert all(type(m) is Linear for m in each.modules() if isinstance(m, torch.nn.Linear))
    add_code_tokens(tokenizer, TABLE)
    initialise_code_rows(model, tokenizer, TABLE, TITLES, 0)
    verify_code_tokens(tokenizer, TABLE)
    with pytest.raises(ConfigError, match="no/such-model: cannot be loaded"):
        load_pretrained("no/such-model", torch.float32)
    config = tmp_path / "hub" / "config.json"
    config.write_text(config.read_text().replace('"intermediate_size": ', '"intermediate_size": 1'))
    with pytest.raises(ConfigError, match=r"weight is \(16, \d+\), and \(16, 1\d+\) by config\.json and this version"):
        load_pretrained(str(tmp_path / "hub"), torch.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "hidden_size 16 is not a multiple of heads 3"),
        ({"heads": 4, "kv_heads": 3}, "heads 4 is not a multiple of kv_heads 3"),
    ],
)
def test_impossible_shapes(change, message):
    with pytest.raises(ConfigError, match=message):
        scratch_model(train_tokenizer(TITLES, 300), 0, **{**SHAPE, **change})


def test_a_vocabulary_without_room_for_words():
    with pytest.raises(ConfigError, match="text_vocabulary 100 is below 300"):
        train_tokenizer(TITLES, 100)


def test_dtypes():
    assert resolve_dtype("float16") is reading_dtype("float16") is torch.float16
    with pytest.raises(ConfigError, match="unknown dtype 'int8'; known: auto, float32"):
        resolve_dtype("int8")


@pytest.mark.parametrize(("gpu", "read"), [(True, None), (False, torch.float32)])
def test_weights_are_trained_in_float32_and_read_on_a_gpu_as_they_are(monkeypatch, gpu, read):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert resolve_dtype("auto") is torch.float32
    assert reading_dtype("auto") is read
