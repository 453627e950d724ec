"""The demo recipes of the published baselines: every step of `minionerec run demo/NAME`, in one process."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import ROOT

from minionerec.cli.plan import plan_of
from minionerec.core.artefacts import read_json, read_manifest

pytestmark = pytest.mark.end_to_end

RECIPES = sorted(file.stem for file in (ROOT / "configs" / "demo").glob("[!_]*.yaml"))
BASELINES = [name for name in RECIPES if name not in ("language", "pages")]
# These take 13 to 25 seconds each; tests/stages has their stages one by one, and the others the way through a recipe.
LONG = ("bigrec", "d3_titles", "lcrec", "sdpo", "titles")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all recipes share one corpus and one table of SIDs."""
    return tmp_path_factory.mktemp("baselines")


@pytest.fixture(autouse=True)
def inside(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every recipe is run in that folder."""
    monkeypatch.chdir(shop)
    before = logging.getLogger("transformers").level
    yield
    logging.getLogger("transformers").setLevel(before)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in BASELINES])
def test_a_recipe_of_the_demo_ends_in_measured_predictions(name: str, shop: Path) -> None:
    """Each recipe leaves predictions of its own, with metrics beside them."""
    for step in plan_of(f"demo/{name}").values():
        step.spec.function()(step.settings)
    found = [
        file.parent
        for file in (shop / "runs" / "demo" / name).rglob("manifest.json")
        if read_manifest(file.parent)["kind"] == "predictions"
    ]
    assert found
    assert all((folder / "predictions.parquet").is_file() for folder in found)
    assert any(read_json(folder / "metrics.json") for folder in found if (folder / "metrics.json").is_file())
