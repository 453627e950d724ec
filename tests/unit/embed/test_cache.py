"""No text is encoded twice, a killed run goes on, several processes make the same vectors."""

import numpy as np
import pandas as pd
import pytest
from support.small_corpus import save_corpus, shop_titles
from support.tokenizers import save_tokenizer

from minionerec.core.errors import ArtefactError, DataError
from minionerec.embed import cache as cache_module
from minionerec.embed.cache import VectorCache, encode_cached
from minionerec.embed.hf import Encoded, HFEncoder
from minionerec.embed.vectors import EmbedConfig, load_vector_table, run_embed

WORDS = ["red", "blue", "lamp", "table", "oak", "steel", "bolt", "long"]
TEXTS = [" ".join(WORDS[(i * k) % 8] for k in range(1, 2 + i % 9)) for i in range(20)]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    from transformers import BertConfig, BertModel

    path = tmp_path_factory.mktemp("bert")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=20, max_position_embeddings=32, initializer_range=0.5, **sizes)).save_pretrained(
        path
    )
    save_tokenizer(path)
    return str(path)


@pytest.fixture
def encoded_texts(monkeypatch):
    """Every text that a model is asked for, in order; parts of two batches."""
    asked: list[str] = []
    plain = HFEncoder.encode

    def encode(self, texts):
        asked.extend(texts)
        return plain(self, texts)

    monkeypatch.setattr(HFEncoder, "encode", encode)
    monkeypatch.setattr(cache_module, "PART_BATCHES", 2)
    return asked


def encode(path, cache, texts=TEXTS, **options):
    return encode_cached(texts, VectorCache(cache), model_name_or_path=path, batch_size=3, device="cpu", **options)


def test_each_text_is_encoded_once(tmp_path, model_path, encoded_texts):
    found = encode(model_path, tmp_path / "c")
    assert sorted(encoded_texts) == sorted(set(TEXTS))
    direct = HFEncoder(model_path, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(found.vectors, direct.vectors, atol=1e-6)
    assert found.tokens.tolist() == direct.tokens.tolist()
    encoded_texts.clear()
    again = encode(model_path, tmp_path / "c", [*TEXTS[::-1], "oak oak"])
    assert encoded_texts == ["oak oak"]
    assert again.vectors[:20].tobytes() == found.vectors[::-1].tobytes()


def test_truncation_is_remembered(tmp_path, model_path):
    first = encode(model_path, tmp_path / "c", max_length=5)
    again = encode(model_path, tmp_path / "c", max_length=5)
    expected = [len(text.split()) > 3 for text in TEXTS]  # two of five tokens are special
    assert first.truncated.tolist() == again.truncated.tolist() == expected
    assert again.counts()["truncated"] == sum(expected)


def test_a_killed_run_goes_on(tmp_path, model_path, encoded_texts, monkeypatch):
    written = []
    plain = VectorCache.write

    def write(self, texts, encoded):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.extend([len(texts)])
        plain(self, texts, encoded)

    monkeypatch.setattr(VectorCache, "write", write)
    with pytest.raises(KeyboardInterrupt):
        encode(model_path, tmp_path / "c")
    monkeypatch.setattr(VectorCache, "write", plain)
    (tmp_path / "c" / ".half.1").write_bytes(b"x")  # what a kill during a write leaves
    encoded_texts.clear()
    found = encode(model_path, tmp_path / "c")
    assert len(encoded_texts) == len(set(TEXTS)) - sum(written) and written == [6, 6]
    np.testing.assert_allclose(found.vectors, HFEncoder(model_path, device="cpu").encode(TEXTS).vectors, atol=1e-6)


def test_two_processes_make_the_same_vectors(tmp_path, model_path, monkeypatch):
    monkeypatch.setattr(cache_module, "PART_BATCHES", 2)
    one, two = encode(model_path, tmp_path / "one"), encode(model_path, tmp_path / "two", processes=2)
    assert one.vectors.tobytes() == two.vectors.tobytes()
    names = [sorted(path.name for path in (tmp_path / place).iterdir()) for place in ("one", "two")]
    assert names[0] == names[1] and len(names[0]) > 1


def test_a_cache_that_cannot_be_written_or_lacks_something(tmp_path):
    one = Encoded(np.ones((1, 2), np.float32), np.ones(1, np.int32), np.zeros(1, bool))
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtefactError, match="cannot be written"):
        VectorCache(tmp_path / "file").write(["a"], one)
    cache = VectorCache(tmp_path / "c")
    cache.write(["a"], one)
    assert cache.missing(["b", "a", "b"]) == ["b"]
    with pytest.raises(ArtefactError, match="lacks 1 vectors"):
        cache.read(["a", "b"])


def test_the_stage_keeps_vectors_beside_its_output(tmp_path, model_path, encoded_texts, caplog):
    titles = [*shop_titles(10), "", shop_titles(1)[0]]
    corpus = save_corpus(tmp_path / "corpus", titles)
    settings = {"encoder": model_path, "device": "cpu", "output": str(tmp_path / "out")}
    with caplog.at_level("INFO", logger="minionerec"):
        counts = run_embed(EmbedConfig(corpus=str(corpus), **settings)).counts
    assert "1 of 12 items have the text of an earlier item" in caplog.text
    assert (counts["empty_texts"], counts["duplicate_texts"], len(encoded_texts)) == (1, 1, 10)
    before = np.load(tmp_path / "out" / "vectors.npy")
    assert before[0].tolist() == before[11].tolist() and not before[10].any()

    encoded_texts.clear()
    save_corpus(tmp_path / "more", ["blue bolt", *titles])
    run_embed(EmbedConfig(corpus=str(tmp_path / "more"), normalise=False, **settings))
    assert encoded_texts == ["blue bolt"]
    plain = np.load(tmp_path / "out" / "vectors.npy")[1:]
    np.testing.assert_allclose(
        plain / np.maximum(np.linalg.norm(plain, axis=1, keepdims=True), 1e-9), before, atol=1e-6
    )

    encoded_texts.clear()
    run_embed(EmbedConfig(corpus=str(corpus), pooling="last", **settings))  # other vectors, so another folder
    assert len(encoded_texts) == 10
    assert len(list((tmp_path / "out.cache").iterdir())) == 2
    encoded_texts.clear()
    run_embed(EmbedConfig(corpus=str(corpus), cache=str(tmp_path / "own"), pooling="last", **settings))
    assert len(encoded_texts) == 10 and (tmp_path / "own").is_dir()


def test_texts_without_any_token(tmp_path, model_path):
    from tokenizers import Tokenizer, models
    from transformers import BertModel, PreTrainedTokenizerFast

    BertModel.from_pretrained(model_path).save_pretrained(tmp_path / "model")
    letters = Tokenizer(models.BPE(vocab={"z": 0}, merges=[]))  # knows one letter and passes over all others
    PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="z").save_pretrained(tmp_path / "model")
    corpus = save_corpus(tmp_path / "corpus", ["oak", "red"])
    config = EmbedConfig(
        corpus=str(corpus), encoder=str(tmp_path / "model"), device="cpu", output=str(tmp_path / "out")
    )
    with pytest.raises(DataError, match="makes no token of any of the 2 texts"):
        run_embed(config)


def test_vectors_in_a_parquet_file_are_joined_by_id(tmp_path):
    corpus = save_corpus(tmp_path / "corpus", ["red", "blue", "oak"])
    path = tmp_path / "v.parquet"
    vectors = {"i2": [5.0, 6.0], "x": [0.0, 0.0], "i0": [1.0, 2.0], "i1": [3.0, 4.0]}
    pd.DataFrame({"item_id": list(vectors), "vector": list(vectors.values())}).to_parquet(path)
    config = EmbedConfig(corpus=str(corpus), encoder=str(path), output=str(tmp_path / "out"))
    run_embed(config)
    assert np.load(tmp_path / "out" / "vectors.npy").tolist() == [[1, 2], [3, 4], [5, 6]]
    assert run_embed(config).up_to_date


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"item_id": ["a", "a"], "vector": [[1.0], [2.0]]}, "item 'a' has two rows"),
        ({"item_id": ["a", "c"], "vector": [[1.0], [2.0]]}, r"has no row for item 'b' \(1 such of 2\)"),
        ({"item_id": ["a", "b"], "vector": [[1.0], [2.0, 3.0]]}, "must hold lists of numbers, all of one length"),
        ({"item_id": ["a", "b"], "vector": ["x", "y"]}, "must hold lists of numbers"),
        ({"item_id": ["a", "b"], "vector": [[1.0], [np.nan]]}, r"row 1, column 0 is nan"),
        ({"item_id": ["a", "b"], "other": [[1.0], [2.0]]}, "cannot be read .*Write it with columns item_id and vector"),
    ],
)
def test_bad_parquet_files(tmp_path, columns, message):
    pd.DataFrame(columns).to_parquet(tmp_path / "v.parquet")
    with pytest.raises(DataError, match=rf"v\.parquet: .*{message}"):
        load_vector_table(tmp_path / "v.parquet", ["a", "b"])


def test_a_parquet_file_that_is_not_there(tmp_path):
    corpus = save_corpus(tmp_path / "corpus", ["red"])
    config = EmbedConfig(corpus=str(corpus), encoder=str(tmp_path / "no.parquet"), output=str(tmp_path / "out"))
    with pytest.raises(DataError, match=r"no\.parquet: no such file\. Give a table with columns item_id and vector"):
        run_embed(config)
