import json
import os
import subprocess
import sys

import numpy as np
import pytest
from support.small_corpus import save_corpus, shop_titles

from minionerec.core.artefacts import read_manifest
from minionerec.core.config import ROOT
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.embed.texts import item_texts
from minionerec.embed.tfidf import tfidf_svd
from minionerec.embed.vectors import EmbedConfig, load_vector_artefact, load_vectors, run_embed


def test_load_vectors_gives_float32(tmp_path):
    table = np.arange(6, dtype=np.float64).reshape(3, 2)
    np.save(tmp_path / "v.npy", table)
    found = load_vectors(tmp_path / "v.npy", 3)
    assert found.dtype == np.float32 and found.tolist() == table.tolist()


def with_value(value):
    table = np.zeros((4, 3), dtype=np.float64)
    table[2, 1] = value
    return table


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.zeros((5, 3)), r"5 rows for 4 items\. Row i must be the vector of item i"),
        (with_value(np.nan), r"row 2, column 1 is nan \(1 such rows of 4\)"),
        (with_value(-np.inf), r"row 2, column 1 is -inf"),
        (with_value(1e300), r"row 2, column 1 is inf"),
        (np.zeros(4), r"holds float64 of shape \(4,\); expected numbers of shape \(4, width\)"),
        (np.array([["a"]] * 4), r"holds <U1 of shape \(4, 1\); expected numbers"),
        (np.array([[{}]] * 4, dtype=object), r"not a readable \.npy file of numbers"),
    ],
)
def test_bad_vectors(tmp_path, table, message):
    np.save(tmp_path / "v.npy", table, allow_pickle=True)
    with pytest.raises(DataError, match=r"v\.npy: " + message):
        load_vectors(tmp_path / "v.npy", 4)


def test_files_that_are_no_vectors(tmp_path):
    with pytest.raises(DataError, match=r"v\.npy: no such file"):
        load_vectors(tmp_path / "v.npy", 4)
    (tmp_path / "v.npy").write_text("1 2 3")
    with pytest.raises(DataError, match=r"v\.npy: not a readable"):
        load_vectors(tmp_path / "v.npy", 4)
    np.savez(tmp_path / "many.npz", a=np.zeros((4, 2)))
    with pytest.raises(DataError, match="holds several arrays"):
        load_vectors(tmp_path / "many.npz", 4)


def test_stage_writes_aligned_vectors_and_is_byte_equal(tmp_path):
    from minionerec.data.corpus import Corpus

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
    assert run_embed(EmbedConfig(corpus=str(corpus), output=str(tmp_path / "one"), dimensions=8)).up_to_date
    assert not run_embed(EmbedConfig(corpus=str(corpus), output=str(tmp_path / "one"), dimensions=4)).up_to_date


def test_ready_vectors_become_an_artefact_that_knows_its_items(tmp_path):
    corpus = save_corpus(tmp_path / "corpus", ["red", "blue"])
    np.save(tmp_path / "v.npy", np.eye(2))
    run_embed(EmbedConfig(corpus=str(corpus), encoder=str(tmp_path / "v.npy"), output=str(tmp_path / "out")))
    assert load_vector_artefact(tmp_path / "out", ["i0", "i1"]).tolist() == [[1, 0], [0, 1]]
    with pytest.raises(
        DataError, match="its 2 vectors are not those of the corpus's 2 items; they first differ at item 1"
    ):
        load_vector_artefact(tmp_path / "out", ["i0", "x"])
    with pytest.raises(DataError, match="corpus's 3 items; they first differ at item 2"):
        load_vector_artefact(tmp_path / "out", ["i0", "i1", "i2"])
    with pytest.raises(ArtefactError, match="holds a 'corpus', expected a 'vectors'"):
        load_vector_artefact(corpus, ["i0", "i1"])


def test_items_without_text_get_zeros_from_a_model(tmp_path):
    from support.tokenizers import save_tokenizer
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=20, **sizes)).save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model")
    corpus = save_corpus(tmp_path / "corpus", ["red lamp", "", "oak"])
    config = EmbedConfig(
        corpus=str(corpus), encoder=str(tmp_path / "model"), output=str(tmp_path / "out"), device="cpu", pooling="cls"
    )
    result = run_embed(config)
    vectors = np.load(tmp_path / "out" / "vectors.npy")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [1, 0, 1], rtol=1e-5)
    assert result.counts["empty_texts"] == 1 and result.counts["tokens"] == 7
    assert run_embed(config).up_to_date
    (tmp_path / "model" / "tokenizer_config.json").write_text("{}")  # another model at the same place
    assert not run_embed(config).up_to_date


def test_failure_leaves_nothing(tmp_path):
    corpus = save_corpus(tmp_path / "corpus", ["", ""])
    with pytest.raises(DataError, match="none of the 2 items has a title"):
        run_embed(EmbedConfig(corpus=str(corpus), output=str(tmp_path / "out")))
    with pytest.raises(ArtefactError, match="no such directory"):
        run_embed(EmbedConfig(corpus=str(tmp_path / "nothing"), output=str(tmp_path / "out")))
    with pytest.raises(DataError, match=r"v\.npy: no such file"):
        run_embed(EmbedConfig(corpus=str(corpus), encoder=str(tmp_path / "v.npy"), output=str(tmp_path / "out")))
    with pytest.raises(ArtefactError, match="is also an input"):
        run_embed(EmbedConfig(corpus=str(corpus), output=str(corpus)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling": "max"}, "unknown pooling 'max'; known: mean, last, cls"),
        ({"dtype": "float8"}, "unknown dtype 'float8'"),
        ({"dimensions": 0}, "dimensions is 0; it must be at least 1"),
        ({"encoder": ""}, "encoder is empty"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        EmbedConfig(**settings)


def test_script(tmp_path):
    corpus = save_corpus(tmp_path / "corpus", shop_titles(20))
    words = [sys.executable, "scripts/embed_items.py", "--corpus", str(corpus), "--output", str(tmp_path / "out")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    assert "vectors of 20 items, 20 wide" in done.stdout
