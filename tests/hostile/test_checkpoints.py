"""Checkpoints, models and quantisers from a hostile hand: nothing of theirs runs, nothing is filled up at random."""

import json
import pickle
import re
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import save as save_arrays
from safetensors.torch import load_file, save_file
from scipy.sparse import csr_array
from support.small_shop import copied, sign, spoil_manifest, stage

from minionerec.core.artefacts import write_artefact
from minionerec.core.errors import ArtefactError, ConfigError, MinioneRecError
from minionerec.models.backbone.build import load_pretrained
from minionerec.models.backbone.bundle import load_bundle, write_model_files
from minionerec.models.sequential import MODEL_KIND
from minionerec.models.sequential.registry import build_model, load_sequential, save_sequential
from minionerec.recommend.recommender import Recommender
from minionerec.recommend.sid_trie import check
from minionerec.sid.quantiser import CODEBOOKS_FILE, Quantiser

EVIL = """
import pathlib
pathlib.Path({mark!r}).write_text("run")
from transformers import PretrainedConfig, PreTrainedModel
class EvilConfig(PretrainedConfig):
    model_type = "evil"
class Evil(PreTrainedModel):
    config_class = EvilConfig
"""
AUTO_MAP = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}


class Evil:
    """An object whose unpickling writes a file."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return open, (self.mark, "w")


def change_json(file, **changes):
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def refused(action, *patterns):
    """The one line that an action is refused with."""
    with pytest.raises(MinioneRecError) as wrong:
        action()
    text = str(wrong.value)
    assert "\n" not in text and "Traceback" not in text, text
    for pattern in patterns:
        assert pattern in text, text
    return text


@pytest.fixture
def asked(monkeypatch):
    """Fails a test that asks something on the terminal."""

    def ask(*words):
        raise AssertionError(f"asked {words}")

    monkeypatch.setattr("builtins.input", ask)
    monkeypatch.setattr(sys, "stdin", None)


def code_of(page):
    """The Python of a page that users copy."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("weights", ["code", "pickle"])
def test_what_an_export_tells_its_users_to_do_runs_no_code(shop, tmp_path, monkeypatch, weights):
    folder = copied(shop / "export", tmp_path / "export")
    monkeypatch.setattr("builtins.input", lambda *words: "y")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    exec(code_of(folder / "README.md"), {})
    if weights == "code":
        (folder / "evil.py").write_text(EVIL.format(mark=str(tmp_path / "mark")))
        change_json(folder / "config.json", auto_map=AUTO_MAP, model_type="evil")
    else:
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    words = "contains custom code" if weights == "code" else "safetensors"
    for load in (lambda: check(folder), lambda: exec(code_of(folder / "README.md"), {})):
        with pytest.raises((ValueError, OSError, SystemExit), match=words):
            load()
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("model", ["sft", "catalogue"])
@pytest.mark.parametrize("changes", [{"model_type": "evil"}, {"model_type": None}, {"architectures": ["Evil"]}, {}])
def test_code_of_a_checkpoint_never_runs(shop, tmp_path, asked, model, changes):
    folder = copied(shop / model, tmp_path / model)
    (folder / "evil.py").write_text(EVIL.format(mark=str(tmp_path / "mark")))
    for name in ("config.json", "tokenizer_config.json"):
        change_json(folder / name, auto_map=AUTO_MAP, **(changes if name == "config.json" else {}))
    refused(lambda: load_bundle(folder), "Run the stage that makes")
    sign(folder)
    known = not changes or "architectures" in changes
    if known:
        load_bundle(folder)
        if model == "sft":
            load_pretrained(str(folder), torch.float32)
        else:
            refused(lambda: load_pretrained(str(folder), torch.float32), "not supported")
    else:
        refused(lambda: load_bundle(folder), "config.json", "model_type is", "auto_map")
        refused(lambda: load_pretrained(str(folder), torch.float32), "model_type is", "auto_map")
    assert not (tmp_path / "mark").exists()


def test_code_of_a_strangers_model_never_runs(shop, tmp_path, asked):
    folder = copied(shop / "sft", tmp_path / "sft")
    (folder / "manifest.json").unlink()
    (folder / "evil.py").write_text(EVIL.format(mark=str(tmp_path / "mark")))
    change_json(folder / "tokenizer_config.json", auto_map=AUTO_MAP, tokenizer_class="Evil")
    change_json(folder / "config.json", auto_map=AUTO_MAP, model_type="evil")
    refused(lambda: load_pretrained(str(folder), torch.float32), str(folder))
    change_json(folder / "config.json", auto_map=AUTO_MAP, model_type="qwen2", attn_implementation="evil/kernel")
    refused(lambda: load_pretrained(str(folder), torch.float32), "code of")
    assert not (tmp_path / "mark").exists()


def test_pickled_weights_are_not_opened(shop, tmp_path):
    folder = copied(shop / "sft", tmp_path / "sft")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")  # a benign one
    sign(folder)
    refused(lambda: load_bundle(folder), "safetensors")
    refused(lambda: load_pretrained(str(folder), torch.float32), "safetensors")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(tmp_path / "mark")))
    sign(folder)
    refused(lambda: load_bundle(folder), str(folder))
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("name", ["adapter_config.json", "pytorch_model.bin", "added_tokens.json", "modeling.py"])
def test_a_file_that_no_stage_wrote_is_named(shop, tmp_path, name):
    folder = copied(shop / "sft", tmp_path / "sft")
    (folder / name).write_text("{}")
    refused(lambda: load_bundle(folder), f"{name}: is not listed in manifest.json", "Remove it")


def without_one(tensors):
    name = next(name for name in sorted(tensors) if name.endswith("weight"))
    return {key: value for key, value in tensors.items() if key != name}


WEIGHTS = {
    "missing": (without_one, "missing"),
    "unexpected": (lambda tensors: {**tensors, "extra.weight": torch.ones(2)}, "belong to no part"),
    "shape": (lambda tensors: {key: torch.cat([value, value]) for key, value in tensors.items()}, ""),
    "empty": (lambda tensors: {}, ""),
}


@pytest.mark.parametrize("model", ["sft", "catalogue"])
@pytest.mark.parametrize("change", WEIGHTS)
def test_weights_fill_the_model_exactly(shop, tmp_path, model, change):
    folder = copied(shop / model, tmp_path / model)
    make, reported = WEIGHTS[change]
    save_file(make(load_file(folder / "model.safetensors")), folder / "model.safetensors", metadata={"format": "pt"})
    refused(lambda: load_bundle(folder), "model.safetensors: differs from manifest.json")
    sign(folder)
    refused(lambda: load_bundle(folder), reported)
    (folder / "manifest.json").unlink()
    refused(lambda: load_pretrained(str(folder), torch.float32), reported if model == "sft" else "not supported")


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("sft", {"tie_word_embeddings": False}),
        ("sft", {"model_type": "llama"}),
        ("sft", {"model_type": "minionerec_catalogue"}),
        ("sft", {"model_type": "bert"}),
        ("sft", {"model_type": ["qwen2"]}),
        ("sft", {"num_hidden_layers": 2}),
        ("sft", {"num_hidden_layers": 10**9}),
        ("sft", {"num_hidden_layers": "1"}),
        ("sft", {"hidden_size": 32}),
        ("sft", {"hidden_size": -1}),
        ("sft", {"head_dim": 10**9}),
        ("sft", {"vocab_size": 10**12}),
        ("sft", {"vocab_size": 10}),
        ("sft", {"hidden_act": "evil"}),
        ("sft", {"rope_parameters": {"rope_type": "evil"}}),
        ("sft", {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}),
        ("sft", {"dtype": "int8"}),
        ("catalogue", {"num_sids": 10**10}),
        ("catalogue", {"num_sids": 11}),
        ("catalogue", {"towers": 2}),
        ("catalogue", {"towers": 10**9}),
        ("catalogue", {"vocab_size": 10**12}),
        ("catalogue", {"code_sizes": [10**12]}),
        ("catalogue", {"code_sizes": "aa"}),
        ("catalogue", {"num_attention_heads": 3}),
        ("catalogue", {"pointer": False}),
    ],
)
def test_a_configuration_of_another_model_is_refused(shop, tmp_path, model, changes):
    folder = copied(shop / model, tmp_path / model)
    change_json(folder / "config.json", **changes)
    refused(lambda: load_bundle(folder), "config.json: differs from manifest.json")
    sign(folder)
    refused(lambda: load_bundle(folder), str(folder))


def put(position, value):
    """A change of tensors: one number of one of them is another."""

    def change(tensors, name):
        values = tensors[name].clone()
        values.view(-1)[position] = value
        return {**tensors, name: values}

    return change


INDICES = [
    ("pairs.followers", put(3, 2**31 - 1)),
    ("pairs.followers", put(0, -1)),
    ("pairs.offsets", put(0, 1)),
    ("pairs.offsets", put(-1, 10**6)),
    ("pairs.offsets", put(4, 10**6)),
    ("pairs.offsets", put(4, -(2**60))),
    ("code_rows", put(0, 4)),
    ("code_rows", put(-1, -1)),
    ("codes", put(0, 2**31 - 1)),
    ("codes", put(-1, -1)),
    ("code_tokens", put(0, 10**12)),
]


@pytest.mark.parametrize(("name", "change"), INDICES, ids=lambda part: part if isinstance(part, str) else "")
def test_numbers_that_name_rows_stay_within_them(shop, tmp_path, name, change):
    file = copied(shop / "catalogue", tmp_path / "catalogue") / "model.safetensors"
    save_file(change(load_file(file), name), file, metadata={"format": "pt"})
    sign(file.parent)
    refused(lambda: load_bundle(file.parent), "index.json", "Train it again")


@pytest.mark.parametrize(("name", "change"), [part for part in INDICES if part[0].startswith("pairs")])
def test_counts_of_a_sequential_model_stay_within_its_items(tmp_path, name, change):
    hyper = {"hidden_size": 8, "reach": 2, "num_transitions": 6, "num_heads": 2}
    model = build_model("causal", num_items=5, max_len=4, **hyper)
    table = np.ones(6, np.float32), np.arange(6, dtype=np.int32) % 5, np.array([0, 2, 3, 3, 5, 6])
    model.pairs.set(csr_array(table, shape=(5, 5)))
    with write_artefact(tmp_path / "model", MODEL_KIND, config={}) as folder:
        save_sequential(model, "causal", hyper, folder)
    assert load_sequential(tmp_path / "model").pairs.flaw() is None
    file = tmp_path / "model/model.safetensors"
    save_file(change(load_file(file), name), file)
    sign(tmp_path / "model")
    refused(lambda: load_sequential(tmp_path / "model"), "model.safetensors: ", "its counts", "Train it again")


def test_a_command_says_it_in_one_line(shop, tmp_path):
    folder = copied(shop, tmp_path / "shop", ("predictions",))
    save_file(without_one(load_file(folder / "sft/model.safetensors")), folder / "sft/model.safetensors")
    sign(folder / "sft")
    for name in ("eval-beam", "export", "recommend"):
        assert "tensors are missing" in stage(folder, name, "--output", "new").reported
        assert not (folder / "new").exists()


FILES = {
    "config.json": [b"", b"[]", b"{", b"\xff\xfe", b'{"a": ' * 100_000, b'{"model_type": 9' + b"9" * 6000 + b"}"],
    "tokenizer.json": [b"", b"[]", b"{}", b"\xff"],
    "tokenizer_config.json": [b"[]", b"{"],
    "model.safetensors": [b"", b"\x08\0\0\0\0\0\0\0[]      ", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}", b"PK\x03\x04"],
    "index.json": [b"", b"[]", b'{"i0": ["<a_9999999>"]}'],
    "wording.yaml": [b"", b"[]", b"a: [", b"\xff"],
}


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, all_ in FILES.items() for number in range(len(all_))]
)
def test_broken_files_of_a_checkpoint_are_one_line(shop, tmp_path, name, number):
    folder = copied(shop / "sft", tmp_path / "sft")
    (folder / name).write_bytes(FILES[name][number])
    refused(lambda: load_bundle(folder), f"{name}: differs from manifest.json", "minionerec sft")
    sign(folder)
    refused(lambda: load_bundle(folder), str(folder))


@pytest.mark.parametrize(
    "counts", [{}, {"max_prompt_length": "many"}, {"max_prompt_length": 0}, {"max_prompt_length": 2.5}]
)
def test_counts_of_a_checkpoint_are_held_against_their_types(shop, tmp_path, counts):
    folder = copied(shop / "sft", tmp_path / "sft")
    spoil_manifest(folder, lambda content: content.update(counts=counts))
    refused(lambda: load_bundle(folder), "manifest.json: was edited by hand")
    sign(folder)
    refused(lambda: load_bundle(folder), "max_prompt_length")


def test_a_tokenizer_that_knows_an_sids_token_already_is_named(folder):
    """A stranger's model, in which `<a_1>` means something else."""
    (folder / "sft/manifest.json").unlink()
    reported = stage(folder, "sft", "--model", "sft", "--output", "new").reported
    assert "sft: its tokenizer has the token '<a_" in reported and not (folder / "new").exists()


def test_an_own_checkpoint_may_be_trained_on(folder):
    assert stage(folder, "sft", "--model", "sft", "--output", "new").status == 0


SEQUENTIAL = {name: change for name, (change, _) in WEIGHTS.items() if name != "empty"}
SEQUENTIAL["not finite"] = lambda tensors: {name: value * torch.nan for name, value in tensors.items()}


@pytest.mark.parametrize("change", SEQUENTIAL)
def test_weights_of_a_sequential_model_fill_it_exactly(shop, tmp_path, change):
    folder = copied(shop / "sequential/model", tmp_path / "model")
    save_file(SEQUENTIAL[change](load_file(folder / "model.safetensors")), folder / "model.safetensors")
    refused(lambda: load_sequential(folder), "model.safetensors: differs from manifest.json", "train-sequential")
    sign(folder)
    refused(lambda: load_sequential(folder), str(folder), "Train it again")


@pytest.mark.parametrize(
    ("name", "load"),
    [*((name, load_bundle) for name in ("sft", "catalogue", "tiger")), ("sequential/model", load_sequential)],
)
def test_loading_draws_no_random_numbers(shop, name, load):
    """Of torch's generators, from which a training in another thread draws."""
    before = torch.get_rng_state()
    load(shop / name)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "about",
    [
        *("[]", "{", '{"model": "sasrec"}', '{"model": "evil", "num_items": 12, "max_len": 5, "hyper": {}}'),
        '{"model": "sasrec", "num_items": "12", "max_len": 5, "hyper": {}}',
        '{"model": "sasrec", "num_items": 12, "max_len": 5, "hyper": []}',
        '{"model": "sasrec", "num_items": 12, "max_len": 5, "hyper": {"hidden_size": 1000000000}}',
        '{"model": "sasrec", "num_items": 1000000000000, "max_len": 5, "hyper": {}}',
        '{"model": "sasrec", "num_items": 12, "max_len": 5, "hyper": {"num_layers": 1000000000}}',
        '{"model": "sasrec", "num_items": 12, "max_len": 5, "hyper": {"hidden_size": null}}',
        '{"model": "sasrec", "num_items": 12, "max_len": 5, "hyper": {"padding": "above"}}',
        '{"model": ["sasrec"], "num_items": 12, "max_len": 5, "hyper": {}}',
    ],
)
def test_the_description_of_a_sequential_model_is_checked(shop, tmp_path, about):
    folder = copied(shop / "sequential/model", tmp_path / "model")
    (folder / "model.json").write_text(about)
    sign(folder)
    refused(lambda: load_sequential(folder), str(folder))


def ones(*shape, kind=np.float32):
    return np.ones(shape, kind)


ENCODER = {"level_0": ones(4, 6), "mean": ones(3), "scale": ones(1), "residual": np.array([False])}
FORMS = {
    "nothing": {},
    "gap": {"level_0": ones(4, 6), "level_2": ones(4, 6)},
    "widths": {"level_0": ones(4, 6), "level_1": ones(4, 5)},
    "type": {"level_0": ones(4, 6, kind=np.int32), "level_1": ones(4, 6, kind=np.int32)},
    "shape": {"level_0": ones(4)},
    "not finite": {"level_0": ones(4, 6) * np.float32(np.nan)},
    "huge": {"level_0": ones(4, 6) * np.float32(1e30)},
    "half an encoder": {"level_0": ones(4, 6), "mean": ones(3)},
    "layers that do not fit": {**ENCODER, "encoder.0.weight": ones(5, 4), "encoder.0.bias": ones(5)},
}
BROKEN = [b"", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}", b"PK\x03\x04"]
CODEBOOKS = {**FORMS, **{f"bytes {number}": content for number, content in enumerate(BROKEN)}}


@pytest.mark.parametrize("name", CODEBOOKS)
def test_codebooks_that_fit_nothing_are_refused(shop, tmp_path, name):
    folder = copied(shop / "sids", tmp_path / "sids")
    content = CODEBOOKS[name]
    (folder / CODEBOOKS_FILE).write_bytes(content if isinstance(content, bytes) else save_arrays(content))
    refused(lambda: Quantiser.load(folder), f"{CODEBOOKS_FILE}: differs from manifest.json")
    sign(folder)
    refused(lambda: Quantiser.load(folder), CODEBOOKS_FILE, "Build the SIDs again" if name in FORMS else "")


def test_a_recommender_reads_nothing_that_was_changed(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert len(Recommender.load("sft").recommend(["i1"], 3).items) == 3
    for name in ("sequences/00000.parquet", "items.parquet"):
        file = folder / "corpus" / name
        before = file.read_bytes()
        file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        with pytest.raises(ArtefactError, match=f"{name}: differs from manifest.json"):
            Recommender.load("sft")
        file.write_bytes(before)


def test_a_model_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_pretrained(str(tmp_path / "none"), torch.float32)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "{outside}", "missing.safetensors", "a/b.safetensors", 7, []]
)
def test_weights_that_lie_elsewhere_are_not_read(folder, name):
    weights, outside = load_file(folder / "sft" / "model.safetensors"), folder / "outside.safetensors"
    (folder / "sft" / "model.safetensors").rename(outside)
    named = name.format(outside=outside) if isinstance(name, str) else name
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, named)}
    (folder / "sft" / "model.safetensors.index.json").write_text(json.dumps(index))
    sign(folder / "sft")
    reported = "model.safetensors.index.json: names the weights "
    refused(lambda: load_bundle(folder / "sft"), reported, "no file of its folder")
    refused(lambda: load_pretrained(str(folder / "sft"), torch.float32), "names the weights ")


def test_an_adapter_of_a_model_elsewhere_is_not_followed(shop, folder):
    other = {"peft_type": "LORA", "base_model_name_or_path": str(shop / "sft")}
    (folder / "sft" / "adapter_config.json").write_text(json.dumps(other))
    sign(folder / "sft")
    message = "adapter_config.json: names another model, whose weights are in another"
    refused(lambda: load_bundle(folder / "sft"), message)


def test_a_tokenizer_holds_nothing_of_the_environment_it_was_read_in(shop, tmp_path):
    write_model_files(load_bundle(shop / "sft"), tmp_path)
    assert "local_files_only" not in (tmp_path / "tokenizer_config.json").read_text()
