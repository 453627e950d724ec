"""The life of every stage: up to date, edited input or output, a second run, an interrupted run with other settings.

Outputs that are something else: `test_no_stage_replaces_an_artefact_of_another_kind_or_a_users_files`.
"""

import pytest
from filelock import FileLock
from support.small_shop import OUTPUTS, STAGES, bytes_of, copied, stage

from minionerec.core.artefacts import MANIFEST, read_manifest
from minionerec.pipeline.stage import Work

pytestmark = pytest.mark.usefixtures("drawn")  # as the figures of the shop are

OTHER = {
    "prepare-data": ("max_history", 3),
    "embed-items": ("dimensions", 4),
    "build-sids": ("dimensions", 4),
    "sft": ("learning_rate", 1e-4),
    "train-catalogue": ("reach", 3),
    "grpo": ("learning_rate", 1e-4),
    "dpo": ("beta", 0.2),
    "train-tiger": ("learning_rate", 1e-4),
    "extend": ("lift", 0.5),
    "eval-beam": ("scores", "renormalised"),
    "report": ("resamples", 30),
    "sid-report": ("title", "Others"),
    "export": ("dtype", "bfloat16"),
    "recommend": ("k", 2),
}
"""A setting of each stage that affects its result, and a value that is not the shop's."""


NAMES = list(OTHER)


def artefacts(folder):
    """The folders below a folder, or itself, that have a manifest."""
    return sorted(file.parent for file in folder.rglob(MANIFEST))


def first_file(artefact):
    return artefact / sorted(read_manifest(artefact)["files"])[0]


def inputs_of(shop, name):
    """The shop's artefacts that a stage reads."""
    given = [value for key, value in STAGES[name].items() if key != "output" and value in OUTPUTS]
    given += [*STAGES[name].get("predictions", {}).values(), *STAGES[name].get("tables", {}).values()]
    return [artefacts(shop / folder)[0] for folder in given]


def test_every_stage_has_another_setting():
    """But for train-sequential, whose output is a folder of artefacts: tests/stages/test_train_sequential.py."""
    assert {*OTHER, "train-sequential"} == set(STAGES)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_up_to_date_is_left_alone_and_an_edited_output_is_rebuilt(folder, name):
    output = folder / STAGES[name]["output"]
    before = bytes_of(output)
    stamps = [(file / MANIFEST).stat().st_ino for file in artefacts(output)]
    assert "is up to date" in "".join(stage(folder, name)[1:])
    assert [(file / MANIFEST).stat().st_ino for file in artefacts(output)] == stamps
    file = first_file(artefacts(output)[-1])
    file.write_bytes(file.read_bytes() + b" ")
    done = stage(folder, name)
    assert done.status == 0 and f"{file.relative_to(folder)} was changed since it was written" in done.err
    assert bytes_of(output) == before


@pytest.mark.parametrize("name", [name for name in NAMES if name != "prepare-data"])
def test_an_edited_input_is_named(folder, shop, name):
    for artefact in inputs_of(shop, name):
        file = folder / first_file(artefact).relative_to(shop)
        content = file.read_bytes()
        file.write_bytes(content + b" ")
        for words in ((), ("--output", "new")):
            reported = stage(folder, name, *words).reported
            assert f"{file.relative_to(folder)}: differs from manifest.json. Run the stage that" in reported
        file.write_bytes(content)
        assert not (folder / "new").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_second_run_is_refused(folder, name):
    with FileLock(folder / ".new.lock"):
        assert "new: another run is writing it" in stage(folder, name, "--output", "new").reported
    assert not (folder / "new").exists()


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupted_run_is_not_continued_with_other_settings(shop, tmp_path, monkeypatch, name):
    output = STAGES[name]["output"]
    folder = copied(shop, tmp_path / "shop", (output, f"{output}.finished"))
    with monkeypatch.context() as patch:
        patch.setattr(Work, "finish", interrupted)
        assert stage(folder, name).status not in (0, 2)
    assert not (folder / output).exists()
    if (folder / f"{output}.partial").exists():
        setting, value = OTHER[name]
        reported = stage(folder, name, f"--{setting}", str(value)).reported
        assert f"{output}.partial: holds an unfinished run that differs in {setting} (then " in reported
        assert "delete that folder to begin again" in reported
    assert stage(folder, name).status == 0
    assert bytes_of(folder / output) == bytes_of(shop / output)
    assert not (folder / f"{output}.partial").exists()


SIZES = {"sft": "batch_size", "train-catalogue": "batch_size", "train-tiger": "batch_size"}
SIZES |= {"grpo": "prompts_per_step", "dpo": "prompts_per_step"}


@pytest.mark.parametrize("name", SIZES)
def test_a_training_that_is_refused_leaves_nothing_to_be_resumed(shop, tmp_path, name):
    output = STAGES[name]["output"]
    folder = copied(shop, tmp_path / "shop", (output, f"{output}.finished"))
    assert " is no multiple of " in stage(folder, name, f"--{SIZES[name]}", "31").reported
    assert not (folder / f"{output}.partial").exists() and not (folder / output).exists()


def interrupted(*_, **__):
    raise KeyboardInterrupt
