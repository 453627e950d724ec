"""What a recommender was given beyond the histories: written and read."""

from dataclasses import replace

import pytest
from support.runs import lists_of, write_run

from minionerec.core.artefacts import write_artefact
from minionerec.core.errors import ArtefactError
from minionerec.metrics.predictions import FILE, Predictions, read_given
from minionerec.metrics.ranked import Ranked

LISTS = lists_of([1, 2, 3], [4, 5, 6])
REPORTED = replace(LISTS, given=("gap",))


@pytest.mark.parametrize("lists", [LISTS, REPORTED])
def test_it_goes_with_the_lists_and_their_ranks(lists, tmp_path):
    lists.save(tmp_path / "p", config={}, inputs={})
    for path in (tmp_path / "p", tmp_path / "p" / FILE):
        assert Predictions.load(path).given == lists.given
    assert Ranked.load(tmp_path / "p", "test").given == lists.given
    assert Ranked.from_predictions(lists).given == lists.given


def test_full_ranks_have_it_from_the_manifest(tmp_path):
    write_run(tmp_path, [[1, 2, 3]], [4, 5, 6], given=["gap"])
    folder = tmp_path / "seed-9" / "predictions"
    assert [Ranked.load(folder, split).given for split in ("valid", "test")] == [("gap",)] * 2


def test_a_manifest_that_does_not_record_it_is_refused(tmp_path):
    with write_artefact(tmp_path / "old", "predictions", config={}) as folder:
        LISTS.to_frame().to_parquet(folder / FILE, index=False)
    assert read_given(tmp_path / "old") is None and Predictions.load(tmp_path / "old").given is None
    with pytest.raises(ArtefactError, match="old: does not record the inputs of its recommender beyond the hist"):
        Ranked.load(tmp_path / "old", "test")


def test_a_file_by_itself_does_not_say_it_and_is_not_made_to(tmp_path):
    REPORTED.to_frame().to_parquet(tmp_path / FILE, index=False)
    found = Predictions.load(tmp_path / FILE)
    assert found.given is None
    found.save(tmp_path / "saved", config={}, inputs={})
    assert read_given(tmp_path / "saved") is None
    with pytest.raises(ArtefactError, match="does not record the inputs of its recommender"):
        Ranked.from_predictions(found)


@pytest.mark.parametrize("wrong", ["gap", [1], [""]])
def test_what_is_no_list_of_names_is_refused(wrong, tmp_path):
    with write_artefact(tmp_path / "p", "predictions", config={}, counts={"given": wrong}) as folder:
        LISTS.to_frame().to_parquet(folder / FILE, index=False)
    with pytest.raises(ArtefactError, match=r"manifest\.json: given is .*, expected a list of names"):
        read_given(tmp_path / "p")
