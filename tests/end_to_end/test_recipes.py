"""Recipes run whole, on little data and for few steps: those of published baselines, and of Office_Products."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from support.paths import ROOT

from minionerec.core.artefacts import read_json, read_manifest
from minionerec.data.corpus import Corpus
from minionerec.data.names import SPLITS
from minionerec.data.published import write_layout
from minionerec.pipeline.cli.plan import Job, plan_of
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare

pytestmark = pytest.mark.end_to_end

RECIPES = sorted(file.stem for file in (ROOT / "configs" / "demo").glob("[!_]*.yaml"))
BASELINES = [name for name in RECIPES if name not in ("language", "pages")]
CATEGORY = "Office_Products"
FEW_ROWS = {"end": "2024-05", "max_eval_examples": 60}
FEW_STEPS = {"epochs": 0.1, "evals_per_epoch": 10, "eval_examples": 40}
# Lengths and sizes alone, so that a recipe takes seconds; all else is taken as its files say.
SHORT = {
    "train-catalogue": {**FEW_STEPS, "hidden_size": 32, "towers": 1},
    "sft": {**FEW_STEPS, "hidden_size": 32, "layers": 1, "inner_size": 48},
    "grpo": {
        "max_steps": 2,
        "eval_examples": 40,
        "prompts_per_step": 16,
        "prompts_per_device": 16,
        "evals_per_epoch": 1,
    },
    "dpo": {**FEW_STEPS, "prompts_per_step": 16, "prompts_per_device": 16},
    "train-tiger": {**FEW_STEPS, "batch_size": 32, "device_batch_size": 32},
    "train-sequential": {"epochs": 1, "resamples": 20},
    "eval-beam": {"resamples": 20},
    "report": {"resamples": 20},
}


def run_short(steps: Iterable[Job], **changes: dict) -> None:
    for step in steps:
        step.spec.function()(replace(step.settings, **{**SHORT, **changes}.get(step.spec.name, {})))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the recipes of baselines share one corpus and one table of SIDs."""
    return tmp_path_factory.mktemp("baselines")


@pytest.mark.parametrize("name", BASELINES)
def test_a_recipe_of_the_demo_ends_in_measured_predictions(
    name: str, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each recipe leaves predictions of its own, with metrics beside them."""
    monkeypatch.chdir(shop)
    run_short(plan_of(f"demo/{name}").values(), **{"prepare-data": FEW_ROWS})
    found = [
        file.parent
        for file in (shop / "runs" / "demo" / name).rglob("manifest.json")
        if read_manifest(file.parent)["kind"] == "predictions"
    ]
    assert found
    assert all((folder / "predictions.parquet").is_file() for folder in found)
    assert any(read_json(folder / "metrics.json") for folder in found if (folder / "metrics.json").is_file())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for `MINIONEREC_DATA`: the demo shop under the names of Office's files."""
    folder = tmp_path_factory.mktemp("office")
    tables = {name: str(ROOT / "data" / "demo" / f"{name}.csv") for name in ("items", "interactions")}
    run_prepare(PrepareConfig(source="tables", **tables, **FEW_ROWS, output=str(folder / "shop")))
    shop, root = Corpus.load(folder / "shop"), folder / "data" / "Amazon"
    codes = [(f"<a_{item // 32}>", f"<b_{item // 4 % 8}>", f"<c_{item % 4 // 2 * 2}>") for item in range(shop.n_items)]
    users = {user: number for number, user in enumerate(dict.fromkeys(u for s in SPLITS for u in shop.rows(s).users))}
    records = shop.items[["title", "description"]].to_dict("records")
    name = f"{CATEGORY}_5_2016-10-2018-11"
    write_layout(root, name, shop, users, records, ["".join(sid) for sid in codes])
    (root / "index" / f"{name}.item.json").rename(root / "index" / f"{CATEGORY}.item.json")
    index = {str(item): sid for item, sid in enumerate(codes)}
    (root / "index" / f"{CATEGORY}.index.json").write_text(json.dumps(index))
    return folder / "data"


@pytest.mark.parametrize("name", ["office/catalogue", "office"])
def test_a_recipe_of_office_runs_as_soon_as_its_files_are_there(
    name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the files of the category to lists and a report beside Office's published figures."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIONEREC_DATA", str(data))
    steps = list(plan_of(name).values())
    run_short(steps)
    corpus = read_manifest(tmp_path / "runs/office/corpus")
    assert corpus["config"]["category"] == CATEGORY
    lists = [step.output for step in steps if step.spec.name == "eval-beam"]
    rows = corpus["counts"]["test_rows"]
    assert rows and lists and all(read_manifest(tmp_path / folder)["counts"]["rows"] == rows for folder in lists)
    report = next(step for step in steps if step.title == "report")
    assert "MiniOneRec on Office_Products" in (tmp_path / report.output / "report.html").read_text()


@pytest.mark.parametrize("recipe", ["catalogue", "language"])
def test_office_says_what_industrial_says_but_for_the_category(recipe: str) -> None:
    """A setting of Industrial that is changed is changed for Office too."""
    office, industrial = (plan_of(f"{data}/{recipe}") for data in ("office", "industrial"))
    assert office.keys() == industrial.keys()
    for key, job in industrial.items():
        reported = json.dumps(dict(job.values))
        for old, new in (("Industrial_and_Scientific", CATEGORY), ("industrial", "office"), ("Industrial", "Office")):
            reported = reported.replace(old, new)
        assert office[key].values == json.loads(reported), key
