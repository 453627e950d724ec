import json

import numpy as np
import pytest
from scipy.stats import entropy

from minionerec.core.errors import ArtefactError
from minionerec.sid.collisions import resolve_collisions
from minionerec.sid.kmeans import reconstruct, residual_kmeans
from minionerec.sid.report import (
    REPORT_FILE,
    advice,
    diagnose,
    gather_evidence,
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
        assert use.dead == (counts == 0).sum()
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
    assert first.dead is None
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


def measured(codes, buyers):
    """A report and measures of codes, whose items have these users (item i: users of `buyers[i]`)."""
    pairs = [(user, item) for item, users in enumerate(buyers) for user in users]
    users, targets = [f"u{user}" for user, _ in pairs], np.array([item for _, item in pairs])
    titles = [f"item {item}" for item in range(len(codes))]
    evidence = gather_evidence(np.eye(len(codes), dtype=np.float32), titles, users, list(targets[:, None]), targets)
    return sid_report("published", *resolve_collisions(codes, "keep")), diagnose(codes, evidence)


def test_advice_names_what_is_wrong_and_what_to_try():
    good = np.array([[group, number] for group in range(4) for number in range(5)])
    of_group = [[group, group + 10] for group in range(4) for _ in range(5)]
    report, measures = measured(good, of_group)
    assert advice(report) == "Advice: none. Nearly every item has an SID of its own."  # the codebooks are not known
    assert "of its own, and two items of one first code are" in advice(report, measures)
    sized = report | {"levels": [use | {"size": 5} for use in report["levels"]]}
    assert advice(sized) == "Advice: none. Nearly every item has an SID of its own, the levels are used."
    sized = report | {"levels": [use | {"size": 256} for use in report["levels"]]}  # more codes than items
    assert "hardly distinguish" not in advice(sized)
    no_text = "Advice: 3 items have no text and so have no vector, and their codes say nothing of them: give"
    for counts, message in (
        ({"items_without_interactions": 271}, "Advice: 271 items share no user with another item"),
        ({"empty_texts": 3}, no_text),
        ({"empty_texts": 3, "items_without_interactions": 271}, "Advice: none"),
        ({"empty_texts": 0}, "Advice: none"),
    ):
        assert advice(report | {"counts": counts}).startswith(message)

    across = np.array([[item % 5, item // 5] for item in range(20)])  # first codes have one item of each group
    report, measures = measured(across, of_group)
    assert advice(report).startswith("Advice: none")
    assert "items of one first code hardly more often" in advice(report, measures)
    assert advice(report, measures).endswith("try with_interactions true, or another encoder.")
    beside = report | {"counts": {"empty_texts": 0, "items_without_interactions": 0}}
    assert advice(beside, measures).endswith("two items: try another encoder.")
    report, measures = measured(across, [[0, 1]] * 20)  # all items have the same users, so no code can tell more
    assert advice(report, measures).startswith("Advice: none")

    report, _ = measured(np.where(np.arange(20)[:, None] < 2, good[0], good), of_group)
    assert advice(report).startswith("Advice: 2 items (10.0%) share an SID")
    assert advice(report).endswith("try collisions extra_token.")  # of SIDs that are read none can be moved
    levels = [use | {"size": 5} for use in report["levels"]]
    assert advice(report | {"levels": levels}).endswith("try collisions relocate or extra_token.")
    roomy = report | {"levels": levels, "collisions": report["collisions"] | {"method": "relocate"}}
    assert advice(roomy).endswith("try collisions extra_token.")

    vectors = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    books = [np.zeros((100, 2), np.float32), vectors[:100]]
    codes = np.stack([np.where(np.arange(300) < 3, np.arange(300), 0), np.arange(300) % 100], axis=1)
    hardly = sid_report("published", *resolve_collisions(codes, "keep"), vectors=vectors, codebooks=books)
    assert "the codes of level a hardly distinguish items: try method balanced_kmeans" in advice(hardly)
    assert "hardly distinguish items: try smaller codebook_sizes" in advice(hardly | {"method": "balanced_kmeans"})
    assert "level a, b" not in advice(hardly)
