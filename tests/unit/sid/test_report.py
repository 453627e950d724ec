import json

import numpy as np
import pytest
from scipy.stats import entropy

from minionerec.core.errors import ArtefactError
from minionerec.sid.collisions import resolve_collisions
from minionerec.sid.kmeans import reconstruct, residual_kmeans
from minionerec.sid.report import (
    REPORT_FILE,
    level_use,
    read_sid_report,
    report_lines,
    sid_report,
)


@pytest.fixture(scope="module")
def made():
    vectors = np.random.default_rng(0).normal(size=(120, 5)).astype(np.float32)
    return vectors, *residual_kmeans(vectors, (8, 6), 0, 10)


def test_use_against_scipy(made):
    vectors, codes, codebooks = made
    for level, use in enumerate(level_use(codes, vectors=vectors, codebooks=codebooks)):
        counts = np.bincount(codes[:, level], minlength=len(codebooks[level]))
        assert use.use == tuple(counts.tolist()) and use.items == 120
        assert (use.used, use.largest, use.size) == ((counts > 0).sum(), counts.max(), len(codebooks[level]))
        assert use.entropy_bits == pytest.approx(entropy(counts, base=2))
        assert use.perplexity == pytest.approx(np.exp(entropy(counts)))


def test_error_is_the_variance_left(made):
    vectors, codes, codebooks = made
    variance = ((vectors - vectors.mean(axis=0)) ** 2).sum()
    for level, use in enumerate(level_use(codes, vectors=vectors, codebooks=codebooks)):
        left = ((vectors - reconstruct(codes, codebooks[: level + 1])) ** 2).sum()
        assert use.error == pytest.approx(left / variance, rel=1e-4)


def test_levels_without_codebook_and_short_sids():
    first, second = level_use(np.array([[4, 0], [4, -1], [2, 1]]))
    assert (first.items, first.size, first.used, first.error, first.use) == (3, None, 2, None, (0, 0, 1, 0, 2))
    assert (second.items, second.used, second.entropy_bits) == (2, 2, 1.0)


def test_one_code_has_perplexity_one():
    (use,) = level_use(np.zeros((5, 1), int))
    assert (use.perplexity, str(use.entropy_bits)) == (1.0, "0.0")


def test_equal_vectors_leave_no_error():
    vectors = np.ones((3, 2), np.float32)
    (use,) = level_use(np.zeros((3, 1), int), vectors=vectors, codebooks=[vectors[:1]])
    assert use.error == 0


def test_report_is_json_and_its_lines_say_before_and_after():
    codes = np.array([[0, 0], [0, 0], [1, 1]])
    report = sid_report("published", *resolve_collisions(codes, "extra_token"), counts={"items": 3})
    assert json.loads(json.dumps(report))["collisions"]["before"]["unique"] == 2
    assert (report["items"], report["unique"], [use["level"] for use in report["levels"]]) == (3, 3, ["a", "b", "c"])
    text = "\n".join(report_lines(report))
    assert "level a: 2 codes used, perplexity 1.9 (0.92 bits), largest code 2 items" in text
    before = "2 items (66.67%) share theirs, largest bucket 2, (N - unique) / N = 33.33%"
    assert f"before: 2 unique SIDs of 3 items; {before}" in text
    assert "after: 3 unique SIDs" in text and "extra_token changed 2 SIDs" in text


def test_lines_with_codebooks(made):
    vectors, codes, codebooks = made
    resolution = resolve_collisions(codes, "keep", vectors=vectors, codebooks=codebooks)
    lines = report_lines(sid_report("residual_kmeans", *resolution, vectors=vectors, codebooks=codebooks))
    assert "of 8 codes used" in lines[0] and "variance left" in lines[0]
    assert len(lines) == 3 and lines[2].startswith("SIDs: ")


def test_a_report_of_another_form_is_refused(made, tmp_path):
    _, codes, codebooks = made
    report = json.loads(json.dumps(sid_report("balanced", *resolve_collisions(codes, "keep"), codebooks=codebooks)))
    (tmp_path / REPORT_FILE).write_text(json.dumps(report))
    assert read_sid_report(tmp_path) == report
    for content, message in (
        ({**report, "levels": 3}, "'levels': Input should be a valid array"),
        ({**report, "levels": [{**report["levels"][0], "error": "x"}]}, r"'levels\.0\.error': Input should be"),
        ([], "Input should be an object"),
    ):
        (tmp_path / REPORT_FILE).write_text(json.dumps(content))
        with pytest.raises(ArtefactError, match=rf"report\.json: {message}.* Run build-sids again"):
            read_sid_report(tmp_path)
