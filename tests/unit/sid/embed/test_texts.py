import re
from dataclasses import replace

import numpy as np
import pytest
from support.small_corpus import make_corpus

from minionerec.core.errors import ConfigError, DataError
from minionerec.sid.embed import encoder
from minionerec.sid.embed.encoder import encoder_inputs
from minionerec.sid.embed.texts import item_texts, tfidf_svd, word_pattern, wordllama_vectors


def test_text_is_title_and_description_with_clean_white_space():
    corpus = make_corpus([" Oak \n table", "Lamp", ""], ["solid\t\toak ", "", "only  words"])
    assert item_texts(corpus) == ["Oak table solid oak", "Lamp", "only words"]


def test_text_is_that_of_the_columns_that_the_corpus_names():
    corpus = make_corpus(["Oak", "Lamp"], ["wood", ""])
    corpus.items["brand"] = ["Acme  Ltd", None]
    named = replace(corpus, counts={**corpus.counts, "text_columns": ["brand", "title"]})
    assert item_texts(named) == ["Acme Ltd Oak", "Lamp"]


def test_missing_description_is_no_text():
    corpus = make_corpus(["Lamp", "Oak"])
    corpus.items["description"] = [None, float("nan")]
    assert item_texts(corpus) == ["Lamp", "Oak"]


def test_no_text_at_all_is_an_error():
    with pytest.raises(DataError, match=r"none of the 2 items has a title or a description.*\.npy"):
        item_texts(make_corpus(["", " "], ["\n", ""]))


def test_tfidf_puts_like_texts_together():
    bolts = ["steel hex bolt", "steel bolt hex long", "hex bolt"]
    texts = [*bolts, "cotton lab coat", "white cotton lab coat", "lab coat"]
    vectors = tfidf_svd(texts, 3, seed=0)
    assert vectors.dtype == np.float32 and vectors.shape == (6, 3)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    likeness = vectors @ vectors.T
    bolts, coats = [0, 1, 2], [3, 4, 5]
    assert likeness[np.ix_(bolts, bolts)].min() > likeness[np.ix_(bolts, coats)].max() + 0.3


def test_tfidf_equals_dense_svd_of_the_same_weights():
    from sklearn.feature_extraction.text import TfidfVectorizer

    topics = np.repeat([0, 1, 2, 3], [16, 11, 7, 4])  # of unlike sizes, so that four directions stand out
    texts = [" ".join(f"topic{topic}word{(i + k) % 5}" for k in range(4)) for i, topic in enumerate(topics)]
    weights = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)).fit_transform(texts).toarray()
    _, _, directions = np.linalg.svd(weights, full_matrices=False)
    expected = weights @ directions[:4].T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = tfidf_svd(texts, 4, seed=1)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-4)  # free of rotation and sign


def test_tfidf_is_byte_equal_for_one_seed():
    texts = [f"part {i} of {i % 7}" for i in range(60)]
    assert tfidf_svd(texts, 8, 3).tobytes() == tfidf_svd(texts, 8, 3).tobytes()


def test_tfidf_keeps_single_characters_and_gives_zeros_to_empty_texts():
    vectors = tfidf_svd(["m 8", "m 6", ""], 2, 0)
    assert np.abs(vectors[:2]).sum() > 0 and not vectors[2].any()


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["红色连衣裙"], ["红", "色", "连", "衣", "裙"]),
        (["M3 螺栓フライ"], ["M3", "螺", "栓", "フ", "ラ", "イ"]),
        (["น้ำปลา"], ["น้", "ำ", "ป", "ล", "า"]),
        (["हिन्दी किताब"], ["हिन्दी", "किताब"]),
        (["snow_white 7½, café"], ["snow_white", "7½", "café"]),
        ([*["red lamp"] * 99, "ストライダー飛竜"], ["ストライダー飛竜"]),
        ([*["red lamp"] * 98, "ストライダー飛竜"], list("ストライダー飛竜")),
    ],
    ids=["Chinese", "two scripts", "Thai", "Hindi", "with spaces", "one in a hundred", "more"],
)
def test_words_of_languages_with_and_without_spaces(texts, words):
    assert re.findall(word_pattern(texts), texts[-1]) == words


def test_tfidf_puts_like_texts_together_where_there_are_no_spaces():
    kinds = ("连衣裙夏季", "不锈钢炒锅", "儿童篮球鞋")
    vectors = tfidf_svd([colour + kind for kind in kinds for colour in ("红色", "蓝色", "白色", "黑色")], 3, seed=0)
    alike, kind = vectors @ vectors.T, np.arange(12) // 4
    same = kind[:, None] == kind
    assert alike[same].min() > alike[~same].max() + 0.3


def test_tfidf_lowers_dimensions_for_small_catalogues_and_says_so(caplog):
    with caplog.at_level("INFO", logger="minionerec"):
        assert tfidf_svd(["red lamp", "blue lamp"], 64, 0).shape == (2, 2)
    assert "fill 2 dimensions; 64 were requested" in caplog.text


def test_tfidf_without_words_is_an_error():
    with pytest.raises(DataError, match="none of the 2 texts holds a word"):
        tfidf_svd(["--", "!"], 2, 0)


def test_wordllama_gives_its_own_vectors_without_the_network(monkeypatch):
    wordllama = pytest.importorskip("wordllama", reason="WordLlama is not installed (the extra 'wordllama')")
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    def refuse(*arguments, **options):
        raise AssertionError("the network was used")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(f"socket.socket.{name}", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    texts = ["Final DOOM", "", "FINAL FANTASY VII", "a oak table, solid; Größe 3 — 木"]
    texts += [f"part {i}" for i in range(600)]
    found = wordllama_vectors(texts)
    weights, tokenizer = encoder_inputs("wordllama").values()
    model = wordllama.WordLlamaInference(load_file(weights)["embedding.weight"], Tokenizer.from_file(str(tokenizer)))
    own = model.embed([text for text in texts if text], norm=True)
    assert found.dtype == np.float32 and found.shape == (604, 256) and not found[1].any()
    np.testing.assert_allclose(np.delete(found, 1, axis=0), own, atol=1e-6)
    assert found[2].tobytes() == wordllama_vectors(texts[2:3])[0].tobytes()  # whatever stands beside it
    assert wordllama_vectors([]).shape == (0, 256)


def test_wordllama_that_is_missing_or_lacks_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(encoder, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"its package is not installed\. .*pip install 'minionerec\[wordllama\]'"):
        wordllama_vectors(["a"])
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr(encoder, "find_spec", lambda name: spec)
    message = r"weights/l2_supercat_256\.safetensors: no such file\. .*nothing is downloaded"
    with pytest.raises(ConfigError, match=message):
        encoder_inputs("wordllama")
