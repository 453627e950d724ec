"""Item vectors of training interactions: against a plain loop, no leak, and beside vectors of texts."""

from dataclasses import replace

import numpy as np
import pytest
from support.small_corpus import bought_together, make_corpus

from minionerec.core.errors import ConfigError, DataError
from minionerec.data.rows import SplitExamples
from minionerec.pipeline.config.encoder import EmbedConfig
from minionerec.pipeline.config.training import ExtendConfig
from minionerec.sid.embed.encoder import VectorSource
from minionerec.sid.embed.interactions import interaction_vectors
from minionerec.sid.embed.texts import item_texts, l2_normalise, tfidf_svd
from minionerec.sid.embed.vectors import make_vectors


def test_against_a_plain_loop_and_a_dense_svd():
    corpus = bought_together()
    size = corpus.n_items
    counts = np.zeros((size, size))
    for history, target in zip(corpus.train.histories, corpus.train.targets, strict=True):
        for step, item in enumerate(history[::-1]):
            counts[item, target] += 0.8**step
            counts[target, item] += 0.8**step
    np.fill_diagonal(counts, 0)
    totals = counts.sum(axis=1)
    shares = totals**0.75 / (totals**0.75).sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        information = np.nan_to_num(np.maximum(np.log(counts / (totals[:, None] * shares)), 0), nan=0.0)
    left, sizes, _ = np.linalg.svd(information)
    expected = l2_normalise(left[:, :5] * sizes[:5])
    found = interaction_vectors(corpus, 5, seed=1)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-4)  # free of rotation and sign
    assert found.dtype == np.float32 and found.tobytes() == interaction_vectors(corpus, 5, seed=1).tobytes()


def test_items_of_one_group_are_near_and_items_without_training_examples_have_zeros(caplog):
    corpus = bought_together(unsold=2)
    with caplog.at_level("INFO", logger="minionerec"):
        vectors = interaction_vectors(corpus, 64, seed=0)
    assert "18 items with pairs fill 18 dimensions; 64 were requested" in caplog.text
    assert not vectors[-2:].any() and np.allclose(np.linalg.norm(vectors[:-2], axis=1), 1)
    groups = np.arange(18) % 3
    alike = (vectors @ vectors.T)[:18, :18]
    same = groups[:, None] == groups
    assert alike[same & ~np.eye(18, dtype=bool)].mean() > alike[~same].mean() + 0.2


def test_validation_and_test_examples_are_not_read():
    corpus, settings = bought_together(), VectorSource(encoder="interactions", dimensions=5)

    def changed(rows, histories):
        return SplitExamples.of(rows.users, histories, (rows.targets + 7).astype(np.int32) % corpus.n_items)

    held_out = {"valid": corpus.valid, "test": corpus.test}
    turned = {name: changed(rows, [past[::-1] for past in rows.histories]) for name, rows in held_out.items()}
    before = make_vectors(corpus, settings, {})
    assert make_vectors(replace(corpus, **turned), settings, {}).tobytes() == before.tobytes()
    train = changed(corpus.train, list(corpus.train.histories))
    assert make_vectors(replace(corpus, train=train), settings, {}).tobytes() != before.tobytes()


def test_items_without_text_have_vectors_of_interactions_where_these_are_beside(caplog):
    corpus = bought_together()
    corpus.items.loc[3, ["title", "description"]] = ""
    for beside, ending in ((False, "each gets the zero vector."), (True, "their vectors are of interactions alone.")):
        caplog.clear()
        vectors = make_vectors(corpus, VectorSource(with_interactions=beside, dimensions=6), {})
        assert f"items have no text; {ending}" in caplog.text and vectors[3].any() == beside


def test_beside_texts_both_parts_weigh_the_same_and_an_item_without_interactions_has_its_text():
    corpus, counts = bought_together(unsold=2), {}
    vectors = make_vectors(corpus, VectorSource(with_interactions=True, dimensions=6), counts)
    assert vectors.shape == (20, 12) and counts["items_without_interactions"] == 2
    assert (counts["items"], counts["dimensions"]) == (20, 12)
    texts, bought = vectors[:, :6], vectors[:, 6:]
    np.testing.assert_allclose(texts, tfidf_svd(item_texts(corpus), 6, 42) * 0.5**0.5, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(texts, axis=1), 0.5**0.5, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(bought[:-2], axis=1), 0.5**0.5, atol=1e-6)
    assert not bought[-2:].any()


def test_bad_input():
    with pytest.raises(DataError, match="hold 0 items that users have together with another, so no vector can be made"):
        interaction_vectors(make_corpus(["red", "blue"]), 4, 0)
    message = r"encoder is 'interactions' and with_interactions true.*leave with_interactions out"
    with pytest.raises(ConfigError, match=message):
        EmbedConfig(corpus="c", output="o", encoder="interactions", with_interactions=True)
    with pytest.raises(ConfigError, match="vectors is 'interactions', but new items have no interactions"):
        ExtendConfig(checkpoint="m", corpus="c", sids="s", output="o", vectors="interactions")
