import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tokenizers import save_byte_tokenizer, save_tokenizer

from minionerec.core import device
from minionerec.core.errors import ConfigError, DataError
from minionerec.sid.embed.encoder import encoder_inputs
from minionerec.sid.embed.hf import POOLINGS, HFEncoder

TEXTS = ["red lamp", "oak", "blue steel bolt long long table", "lamp lamp red oak", "steel table"]
TEXTS += ["bolt red lamp oak oak"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2}
SPREAD = {"initializer_range": 0.5}


def save_model(kind, path, side="right", **settings):
    """Write a model of random weights, and its tokenizer: of bytes for Qwen and OPT, and of words for others."""
    from transformers import CONFIG_MAPPING, AutoModel

    of_bytes = kind in ("qwen2", "opt")
    more = {"num_key_value_heads": 1} if kind == "qwen2" else {}
    sizes = {"vocab_size": 300 if of_bytes else 20, **(T5 if kind == "t5" else SIZES), **more}
    torch.manual_seed(0)
    model = AutoModel.from_config(CONFIG_MAPPING[kind](**{**sizes, **settings}))
    model.save_pretrained(path)
    save_byte_tokenizer(path, side) if of_bytes else save_tokenizer(path)
    return model


@pytest.fixture(scope="module", params=["bert", "qwen2", "qwen2-left", "t5"])
def model_path(request, tmp_path_factory):
    kind, _, side = request.param.partition("-")
    more = {"t5": {"num_layers": 2}, "bert": {"max_position_embeddings": 40}}.get(kind, {})
    more = more if kind == "t5" else {**more, **SPREAD, "num_hidden_layers": 2}
    path = tmp_path_factory.mktemp(request.param)
    save_model(kind, path, side or "right", **more)
    return str(path)


@cache
def oracle(path):
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(path).eval()
    return AutoTokenizer.from_pretrained(path), model.get_encoder() if model.config.is_encoder_decoder else model


def pooled(states):
    """States of one text by pooling."""
    weights = torch.arange(1.0, len(states) + 1)
    kinds = {"mean": states.mean(0), "last": states[-1], "cls": states[0], "max": states.max(0).values}
    return kinds | {"weighted": weights @ states / weights.sum()}


def one_by_one(texts, path, pooling):
    """The dumb oracle: no batch, no padding, no mask."""
    tokenizer, model = oracle(path)
    with torch.no_grad():
        ids = [torch.tensor([tokenizer(text)["input_ids"]]) for text in texts]
        return np.stack([pooled(model(input_ids=each).last_hidden_state[0])[pooling].numpy() for each in ids])


@pytest.mark.parametrize("pooling", ["mean", "last", "cls", "max", "weighted"])
def test_batches_equal_one_text_at_a_time(model_path, pooling):
    found, tokens, truncated = HFEncoder(model_path, pooling, device="cpu", max_length=64).encode(TEXTS)
    assert found.dtype == np.float32
    expected = one_by_one(TEXTS, model_path, pooling)
    assert np.ptp(expected, axis=0).max() > 0.1 or pooling == "cls"  # the rows do differ
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not truncated.any() and tokens.all()


@pytest.fixture(scope="module")
def encoder(model_path):
    return HFEncoder(model_path, device="cpu")


def with_memory(encoder, monkeypatch, most):
    """Let memory hold at most so many texts; a list of how many the encoder is asked for at a time."""
    tried, forward = [], encoder.model.forward

    def short_of_memory(**inputs):
        tried.append(len(inputs["input_ids"]))
        if tried[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return forward(**inputs)

    monkeypatch.setattr(encoder.model, "forward", short_of_memory)
    return tried


@pytest.mark.parametrize(("most", "sizes"), [(6, [6]), (4, [6, 3, 3]), (2, [6, 3, 2, 2, 2]), (1, [6, 3, 2, *[1] * 6])])
def test_where_memory_ends_fewer_texts_are_encoded_at_a_time(model_path, encoder, monkeypatch, caplog, most, sizes):
    tried = with_memory(encoder, monkeypatch, most)
    np.testing.assert_allclose(encoder.encode(TEXTS)[0], one_by_one(TEXTS, model_path, "mean"), atol=1e-5)
    assert tried == sizes
    assert (f"Out of memory: continuing with batches of {sizes[-1]} texts" in caplog.text) == (most < 6)


def test_memory_that_ends_with_one_text_is_an_error(encoder, monkeypatch):
    with_memory(encoder, monkeypatch, 0)
    with pytest.raises(torch.OutOfMemoryError):
        encoder.encode(TEXTS)


def test_as_many_texts_are_encoded_as_memory_holds(model_path, encoder, monkeypatch):
    tried = with_memory(encoder, monkeypatch, 100)
    config, longest = encoder.model.config, max(encoder.encode(TEXTS)[1])
    inner = getattr(config, "intermediate_size", 64)
    values = longest * (2 * 2 * 16 + 6 * 16 + 4 * inner) + 4 * 2 * longest**2
    needed = 2 * 4 * (values + longest * 16)  # half of the memory is used
    texts = [*TEXTS] * 9
    wanted = np.tile(one_by_one(TEXTS, model_path, "mean"), (9, 1))
    for free, most in ((0, 1), (2 * needed, 2), (4 * needed - 1, 2), (4 * needed, 4), (2**40, 32)):
        tried.clear()
        monkeypatch.setattr(device, "free_memory", lambda device, free=free: free)
        np.testing.assert_allclose(encoder.encode(texts)[0], wanted, atol=1e-5)
        assert tried == [most] * (54 // most) + [54 % most] * (54 % most > 0)


def test_prefix(model_path):
    found = HFEncoder(model_path, "mean", device="cpu", prefix="query: ").encode(TEXTS)[0]
    np.testing.assert_allclose(found, one_by_one(["query: " + text for text in TEXTS], model_path, "mean"), atol=1e-5)


def test_truncated_texts_are_counted(model_path):
    whole_words = "qwen2" not in Path(model_path).name
    texts = ["red lamp oak" if whole_words else "oak", "red lamp oak bolt bolt bolt"]
    found, tokens, truncated = HFEncoder(model_path, max_length=5, device="cpu").encode(texts)
    assert truncated.tolist() == [False, True] and tokens[1] == 5
    kept = "red lamp oak" if whole_words else "red l"
    np.testing.assert_allclose(found, one_by_one([texts[0], kept], model_path, "mean"), atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_poolings_against_a_loop_on_both_padding_sides(side):
    generator = torch.Generator().manual_seed(1)
    hidden, lengths = torch.randn(3, 5, 4, generator=generator), [5, 2, 1]
    mask = torch.tensor([[1] * n + [0] * (5 - n) if side == "right" else [0] * (5 - n) + [1] * n for n in lengths])
    hidden[mask == 0] = float("nan")  # nothing of the padding may leak
    for row, n in enumerate(lengths):
        real = hidden[row, :n] if side == "right" else hidden[row, 5 - n :]
        for pooling, pool in POOLINGS.items():
            torch.testing.assert_close(pool(hidden, mask)[row], pooled(real)[pooling])


TYPES = "sentence_transformers.models"


@pytest.fixture
def bert(tmp_path):
    """A folder with a BERT and its tokenizer."""
    save_model("bert", tmp_path, max_position_embeddings=40, **SPREAD)
    return tmp_path


def write_json(folder, name, content):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content))


def save_modules(folder, *kinds, **pooling):
    """The files of sentence-transformers beside a model."""
    modules = [("", "Transformer"), *((f"{position}_{kind}", kind) for position, kind in enumerate(kinds, start=1))]
    write_json(folder, "modules.json", [{"path": path, "type": f"{TYPES}.{kind}"} for path, kind in modules])
    write_json(folder, "1_Pooling/config.json", pooling)


@pytest.mark.parametrize(
    ("about", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_weightedmean_tokens": True}, "weighted"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
)
@pytest.mark.parametrize("listed", [True, False], ids=["modules.json", "1_Pooling alone"])
def test_the_pooling_of_a_model_is_followed(bert, caplog, about, pooling, listed):
    save_modules(bert, "Pooling", **about)
    if not listed:
        (bert / "modules.json").unlink()
    expected = one_by_one(TEXTS, str(bert), pooling)
    np.testing.assert_allclose(HFEncoder(str(bert), device="cpu").encode(TEXTS)[0], expected, atol=1e-5)
    assert "the model's pooling" not in caplog.text
    other = "cls" if pooling == "mean" else "mean"
    found = HFEncoder(str(bert), other, device="cpu").encode(TEXTS)[0]
    np.testing.assert_allclose(found, one_by_one(TEXTS, str(bert), other), atol=1e-5)
    assert f"the model's pooling is {pooling}, but pooling is {other}" in caplog.text


@pytest.mark.parametrize(("activation", "change"), [("linear.Identity", lambda x: x), ("activation.Tanh", np.tanh)])
def test_projections_and_lengths_of_a_model_are_followed(bert, activation, change):
    save_modules(bert, "Pooling", "Normalize", "Dense", pooling_mode_cls_token=True)
    write_json(bert, "3_Dense/config.json", {"activation_function": f"torch.nn.modules.{activation}"})
    weight, bias = torch.randn(5, 16), torch.randn(5)
    save_file({"linear.weight": weight, "linear.bias": bias}, bert / "3_Dense/model.safetensors")
    states = one_by_one(TEXTS, str(bert), "cls").astype(np.float64)
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    expected = change(states @ weight.numpy().T + bias.numpy())
    found = HFEncoder(str(bert), device="cpu").encode([*TEXTS])[0]
    assert found.shape == (len(TEXTS), 5)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert {"encoder/3_Dense/model.safetensors", "encoder/1_Pooling/config.json"} < set(encoder_inputs(str(bert)))


def test_length_case_and_prompt_of_a_model_are_followed(bert):
    save_modules(bert, "Pooling", pooling_mode_mean_tokens=True)
    write_json(bert, "sentence_bert_config.json", {"max_seq_length": 6, "do_lower_case": True})
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    write_json(bert, "config_sentence_transformers.json", prompts)
    found, tokens, truncated = HFEncoder(str(bert), device="cpu").encode(["Red OAK", "red lamp oak"])
    np.testing.assert_allclose(found, one_by_one(["query: red oak", "query: red lamp"], str(bert), "mean"), atol=1e-5)
    assert tokens.tolist() == [6, 6] and truncated.tolist() == [False, True]


@pytest.mark.parametrize(
    ("kinds", "pooling", "message"),
    [
        (["Pooling"], {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "its pooling, cls with mean"),
        (
            ["Pooling"],
            {"pooling_mode": ["cls", "max"]},
            "its pooling, cls with max, is not supported; known: cls, mean",
        ),
        (["Pooling"], {"pooling_mode_mean_sqrt_len_tokens": True}, "its pooling, mean_sqrt_len, is not supported"),
        (["Pooling", "LSTM"], {}, r"its module sentence_transformers\.models\.LSTM is not supported; known: Transf"),
        (["Pooling", "Dense"], {}, r"its projection 2_Dense has no model\.safetensors, which is not supported"),
    ],
)
def test_parts_of_a_model_that_are_not_supported(bert, kinds, pooling, message):
    save_modules(bert, *kinds, **pooling)
    with pytest.raises(ConfigError, match=message):
        HFEncoder(str(bert), device="cpu")


def test_models_that_give_no_states_of_tokens(tmp_path):
    save_model("dpr", tmp_path)
    with pytest.raises(ConfigError, match="a model of type 'dpr' gives no states of tokens of texts"):
        HFEncoder(str(tmp_path), device="cpu")


def test_a_projection_that_the_library_does_not_apply(bert):
    weights = load_file(bert / "model.safetensors") | {"linear.weight": torch.zeros(4, 16)}
    save_file(weights, bert / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"its projection linear\.weight is applied by code of its own"):
        HFEncoder(str(bert), device="cpu")


def test_states_of_another_width_than_the_configuration_says(tmp_path):
    save_model("opt", tmp_path, word_embed_proj_dim=6, ffn_dim=8, do_layer_norm_before=False)
    found = HFEncoder(str(tmp_path), device="cpu").encode(["red", ""])[0]
    assert found.shape == (2, 6)
    np.testing.assert_allclose(found[:1], one_by_one(["red"], str(tmp_path), "mean"), atol=1e-5)


def test_an_encoder_without_its_decoder(tmp_path):
    from transformers import T5Config, T5EncoderModel

    T5EncoderModel(T5Config(vocab_size=20, num_layers=1, **T5)).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    assert HFEncoder(str(tmp_path), device="cpu").encode(["red"])[0].any()


def test_positions_that_padding_takes_are_not_read(tmp_path):
    save_model("roberta", tmp_path, max_position_embeddings=12, pad_token_id=1)
    _, tokens, truncated = HFEncoder(str(tmp_path), device="cpu").encode(["oak " * 8, "oak " * 9])
    assert tokens.tolist() == [10, 10] and truncated.tolist() == [False, True]


def test_the_end_token_that_the_tokenizer_asks_for(tmp_path):
    save_model("qwen2", tmp_path)
    plain = HFEncoder(str(tmp_path), "last", device="cpu", max_length=4)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    write_json(tmp_path, "tokenizer_config.json", settings | {"add_eos_token": True})
    found, tokens, _ = HFEncoder(str(tmp_path), "last", device="cpu", max_length=4).encode(["re", "redder"])
    assert tokens.tolist() == [3, 4]
    np.testing.assert_allclose(found, plain.encode(["re<end>", "red<end>"])[0], atol=1e-5)


def test_text_without_a_token_gets_the_zero_vector(tmp_path):
    save_model("qwen2", tmp_path)
    found, tokens, _ = HFEncoder(str(tmp_path), device="cpu").encode(["", "oak"])
    assert not found[0].any() and found[1].any() and (tokens == 0).tolist() == [True, False]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "toaster"}, "device 'toaster' cannot be used"),
        ({"model_name_or_path": "./no/such/model"}, "'./no/such/model': no such directory"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        HFEncoder(**{"model_name_or_path": "./nowhere", "device": "cpu", **settings})


def test_directory_without_a_model(tmp_path):
    others = r"a \.npy or \.parquet file, a directory of vectors or a Hugging"
    with pytest.raises(ConfigError, match=f"is not 'tfidf', 'wordllama', 'interactions', {others}"):
        HFEncoder(str(tmp_path), device="cpu")


def test_overflow_is_an_error(tmp_path):
    model = save_model("bert", tmp_path)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[8] = float("nan")  # "oak"
    model.save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"the vector of 'oak' is not finite \(1 of 2\)"):
        HFEncoder(str(tmp_path), device="cpu").encode(["red", "oak"])
