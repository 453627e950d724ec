"""The stage that turns item texts into vectors, and its command."""

import json

import numpy as np
import pandas as pd
import pytest
from support.commands import command
from support.encoders import save_encoder, watch_encoder
from support.paths import ROOT
from support.small_corpus import save_corpus, shop_titles

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ArtefactError, DataError
from minionerec.data.corpus import Corpus
from minionerec.pipeline.config.encoder import EmbedConfig
from minionerec.pipeline.embed_items import run_embed
from minionerec.sid.embed.encoder import encoder_inputs
from minionerec.sid.embed.stored import load_vectors, vector_file
from minionerec.sid.embed.texts import item_texts, tfidf_svd


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def encoded_texts(monkeypatch):
    return watch_encoder(monkeypatch)


def test_stage_writes_aligned_vectors_and_is_byte_equal(tmp_path):
    corpus = save_corpus(tmp_path / "corpus", [*shop_titles(30), "", shop_titles(1)[0]])
    result = run_embed(EmbedConfig(corpus=str(corpus), output=str(tmp_path / "one"), dimensions=8))
    expected = tfidf_svd(item_texts(Corpus.load(corpus)), 8, 42)
    assert np.load(tmp_path / "one" / "vectors.npy").tobytes() == expected.tobytes()
    assert not result.up_to_date
    wanted = {"items": 32, "dimensions": 8, "empty_texts": 1, "duplicate_texts": 1}
    assert dict(result.counts) == wanted == read_manifest(tmp_path / "one", "vectors")["counts"]
    assert json.loads((tmp_path / "one" / "items.json").read_text()) == [f"i{i}" for i in range(32)]

    run_embed(EmbedConfig(corpus=str(corpus), output=str(tmp_path / "two"), dimensions=8))
    for name in ("vectors.npy", "items.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_ready_vectors_become_an_artefact_that_knows_its_items(tmp_path):
    corpus = save_corpus(tmp_path / "corpus", ["red", "blue"])
    np.save(tmp_path / "v.npy", np.eye(2))
    run_embed(EmbedConfig(corpus=str(corpus), encoder=str(tmp_path / "v.npy"), output=str(tmp_path / "out")))
    assert load_vectors(vector_file(tmp_path / "out", ["i0", "i1"]), 2).tolist() == [[1, 0], [0, 1]]
    with pytest.raises(
        DataError, match="its 2 vectors are not those of the corpus's 2 items; they first differ at item 1"
    ):
        vector_file(tmp_path / "out", ["i0", "x"])
    with pytest.raises(DataError, match="corpus's 3 items; they first differ at item 2"):
        vector_file(tmp_path / "out", ["i0", "i1", "i2"])
    with pytest.raises(ArtefactError, match="holds a 'corpus', expected a 'vectors'"):
        vector_file(corpus, ["i0", "i1"])


def test_items_without_text_get_zeros_from_a_model(tmp_path):
    save_encoder(tmp_path / "model")
    corpus = save_corpus(tmp_path / "corpus", ["red lamp", "", "oak"])
    config = EmbedConfig(
        corpus=str(corpus), encoder=str(tmp_path / "model"), output=str(tmp_path / "out"), pooling="cls"
    )
    result = run_embed(config)
    vectors = np.load(tmp_path / "out" / "vectors.npy")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [1, 0, 1], rtol=1e-5)
    assert result.counts["empty_texts"] == 1 and result.counts["tokens"] == 7
    assert run_embed(config).up_to_date
    (tmp_path / "model" / "tokenizer_config.json").write_text("{}")  # another model at the same path
    assert not run_embed(config).up_to_date


def test_failure_leaves_nothing(tmp_path):
    corpus = save_corpus(tmp_path / "corpus", ["", ""])
    with pytest.raises(DataError, match="none of the 2 items has a title"):
        run_embed(EmbedConfig(corpus=str(corpus), output=str(tmp_path / "out")))
    with pytest.raises(ArtefactError, match="no such directory"):
        run_embed(EmbedConfig(corpus=str(tmp_path / "nothing"), output=str(tmp_path / "out")))
    with pytest.raises(DataError, match=r"v\.npy: no such file"):
        run_embed(EmbedConfig(corpus=str(corpus), encoder=str(tmp_path / "v.npy"), output=str(tmp_path / "out")))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.lock", "corpus"]


def test_what_an_encoder_reads(tmp_path, model_path):
    assert encoder_inputs("tfidf") == encoder_inputs("some/model") == {}
    assert {"encoder/config.json", "encoder/model.safetensors"} < set(encoder_inputs(model_path))
    corpus = save_corpus(tmp_path / "corpus", ["red", "blue"])
    config = EmbedConfig(corpus=str(corpus), output=str(tmp_path / "out"), dimensions=2)
    assert config.inputs() == {"corpus": corpus}
    run_embed(config)
    assert encoder_inputs(str(tmp_path / "out")) == {"vectors": tmp_path / "out"}
    assert (
        EmbedConfig(corpus=str(corpus), output="x", encoder=str(tmp_path / "out")).inputs()["vectors"]
        == tmp_path / "out"
    )
    with pytest.raises(DataError, match=r"v\.npy: no such file\. Give a \.npy file with one row per item"):
        EmbedConfig(corpus=str(corpus), output="x", encoder=str(tmp_path / "v.npy")).inputs()


def test_the_stage_keeps_vectors_beside_its_output(tmp_path, model_path, encoded_texts, caplog):
    titles = [*shop_titles(10), "", shop_titles(1)[0]]
    corpus = save_corpus(tmp_path / "corpus", titles)
    settings = {"encoder": model_path, "output": str(tmp_path / "out")}
    with caplog.at_level("INFO", logger="minionerec"):
        counts = run_embed(EmbedConfig(corpus=str(corpus), **settings)).counts
    assert "1 of 12 items have the text of an earlier item" in caplog.text
    assert (counts["empty_texts"], counts["duplicate_texts"], len(encoded_texts)) == (1, 1, 10)
    before = np.load(tmp_path / "out" / "vectors.npy")
    assert before[0].tolist() == before[11].tolist() and not before[10].any()

    encoded_texts.clear()
    save_corpus(tmp_path / "more", ["blue bolt", *titles])
    run_embed(EmbedConfig(corpus=str(tmp_path / "more"), **settings))
    assert encoded_texts == ["blue bolt"]
    np.testing.assert_allclose(np.load(tmp_path / "out" / "vectors.npy")[1:], before, atol=1e-6)

    encoded_texts.clear()
    run_embed(EmbedConfig(corpus=str(corpus), pooling="last", **settings))  # other vectors, so another folder
    assert len(encoded_texts) == 10
    assert len(list((tmp_path / "out.cache").iterdir())) == 2


def test_texts_without_any_token(tmp_path, model_path):
    from tokenizers import Tokenizer, models
    from transformers import BertModel, PreTrainedTokenizerFast

    BertModel.from_pretrained(model_path).save_pretrained(tmp_path / "model")
    letters = Tokenizer(models.BPE(vocab={"z": 0}, merges=[]))  # knows one letter and passes over all others
    PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="z").save_pretrained(tmp_path / "model")
    corpus = save_corpus(tmp_path / "corpus", ["oak", "red"])
    config = EmbedConfig(corpus=str(corpus), encoder=str(tmp_path / "model"), output=str(tmp_path / "out"))
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


def test_a_parquet_file_that_is_not_there(tmp_path):
    corpus = save_corpus(tmp_path / "corpus", ["red"])
    config = EmbedConfig(corpus=str(corpus), encoder=str(tmp_path / "no.parquet"), output=str(tmp_path / "out"))
    with pytest.raises(DataError, match=r"no\.parquet: no such file\. Give a table with columns item_id and vector"):
        run_embed(config)


def test_the_command(tmp_path):
    corpus = save_corpus(tmp_path / "corpus", shop_titles(20))
    done = command(ROOT, "embed-items", "--corpus", str(corpus), "--output", str(tmp_path / "out"))
    assert done.status == 0, done.err
    assert done.out == f"vectors of 20 items, 20 dimensions: {tmp_path / 'out'}\n"
