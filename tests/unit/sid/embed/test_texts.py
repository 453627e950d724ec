import numpy as np
import pytest
from support.small_corpus import make_corpus

from minionerec.core.errors import DataError
from minionerec.sid.embed.texts import item_texts, tfidf_svd


def test_text_is_title_and_description_with_clean_white_space():
    corpus = make_corpus([" Oak \n table", "Lamp", ""], ["solid\t\toak ", "", "only  words"])
    assert item_texts(corpus) == ["Oak table solid oak", "Lamp", "only words"]


def test_missing_description_is_no_text():
    corpus = make_corpus(["Lamp", "Oak"])
    corpus.items["description"] = [None, float("nan")]
    assert item_texts(corpus) == ["Lamp", "Oak"]


def test_no_text_at_all_is_an_error():
    with pytest.raises(DataError, match=r"none of the 2 items has a title or a description.*\.npy"):
        item_texts(make_corpus(["", " "], ["\n", ""]))


def test_tfidf_puts_like_texts_together():
    texts = [
        "steel hex bolt",
        "steel bolt hex long",
        "cotton lab coat",
        "white cotton lab coat",
        "hex bolt",
        "lab coat",
    ]
    vectors = tfidf_svd(texts, 3, seed=0)
    assert vectors.dtype == np.float32 and vectors.shape == (6, 3)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    likeness = vectors @ vectors.T
    bolts, coats = [0, 1, 4], [2, 3, 5]
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


def test_tfidf_lowers_dimensions_for_small_catalogues_and_says_so(caplog):
    with caplog.at_level("INFO", logger="minionerec"):
        assert tfidf_svd(["red lamp", "blue lamp"], 64, 0).shape == (2, 2)
    assert "fill 2 dimensions; 64 were requested" in caplog.text


def test_tfidf_without_words_is_an_error():
    with pytest.raises(DataError, match="none of the 2 texts holds a word"):
        tfidf_svd(["--", "!"], 2, 0)
