"""No text is encoded twice, a killed run goes on."""

import numpy as np
import pytest
from support.encoders import save_encoder, watch_encoder
from support.rounding import assert_near

from minionerec.core.errors import ArtefactError
from minionerec.sid.embed import vectors as cache_module
from minionerec.sid.embed.encoder import VectorSource
from minionerec.sid.embed.hf import HFEncoder
from minionerec.sid.embed.vectors import VectorCache, encode_cached

WORDS = ["red", "blue", "lamp", "table", "oak", "steel", "bolt", "long"]
TEXTS = [" ".join(WORDS[(i * k) % 8] for k in range(1, 2 + i % 9)) for i in range(20)]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def encoded_texts(monkeypatch):
    return watch_encoder(monkeypatch)


def encode(path, cache, texts=TEXTS, **options):
    return encode_cached(texts, VectorCache(cache), model_name_or_path=path, device="cpu", **options)


def test_each_text_is_encoded_once(tmp_path, model_path, encoded_texts):
    vectors, tokens, _ = encode(model_path, tmp_path / "c")
    assert sorted(encoded_texts) == sorted(set(TEXTS))
    direct = HFEncoder(model_path, device="cpu").encode(TEXTS)
    assert_near(vectors, direct[0])
    assert tokens.tolist() == direct[1].tolist()
    encoded_texts.clear()
    again, _, _ = encode(model_path, tmp_path / "c", [*TEXTS[::-1], "oak oak"])
    assert encoded_texts == ["oak oak"]
    assert again[:20].tobytes() == vectors[::-1].tobytes()


def test_truncation_is_remembered(tmp_path, model_path):
    *_, first = encode(model_path, tmp_path / "c", max_length=5)
    *_, again = encode(model_path, tmp_path / "c", max_length=5)
    expected = [len(text.split()) > 3 for text in TEXTS]  # two of five tokens are special
    assert first.tolist() == again.tolist() == expected


def test_a_killed_run_resumes(tmp_path, model_path, encoded_texts, monkeypatch):
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
    assert_near(found[0], HFEncoder(model_path, device="cpu").encode(TEXTS)[0])


def test_tokens_are_counted(model_path, monkeypatch, caplog):
    found = np.ones((3, 2), np.float32), np.array([0, 4, 5], np.int32), np.array([False, False, True])
    monkeypatch.setattr(cache_module, "encode_cached", lambda *texts, **how: found)
    counts = {}
    for max_length, ways in ((5, "raise max_length to keep more"), (512, "the encoder reads no more")):
        cache_module._encode(["a", "", "b", "c"], VectorSource(encoder=model_path, max_length=max_length), counts)
        assert caplog.messages[-1] == f"1 of 3 texts were truncated to 5 tokens; {ways}."
    assert counts == {"truncated": 1, "tokenless": 1, "tokens": 9}


def test_a_cache_that_cannot_be_written_or_lacks_something(tmp_path):
    one = np.ones((1, 2), np.float32), np.ones(1, np.int32), np.zeros(1, bool)
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtefactError, match="cannot be written"):
        VectorCache(tmp_path / "file").write(["a"], one)
    cache = VectorCache(tmp_path / "c")
    cache.write(["a"], one)
    assert cache.missing(["b", "a", "b"]) == ["b"]
    with pytest.raises(ArtefactError, match="lacks 1 vectors"):
        cache.read(["a", "b"])
