"""The demo recipes of the published baselines, each as a user runs it: `minionerec run demo/NAME`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import ROOT

from minionerec.cli.main import main
from minionerec.core.artefacts import read_json, read_manifest

pytestmark = pytest.mark.end_to_end

RECIPES = sorted(file.parent.name for file in (ROOT / "configs" / "demo").glob("*/pipeline.yaml"))
BASELINES = [name for name in RECIPES if name != "language"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all recipes share one corpus and one table of SIDs."""
    return tmp_path_factory.mktemp("baselines")


@pytest.fixture(autouse=True)
def inside(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every recipe is run in that folder."""
    monkeypatch.chdir(shop)
    yield


@pytest.mark.parametrize("name", BASELINES)
def test_a_recipe_of_the_demo_ends_in_measured_predictions(name: str, shop: Path) -> None:
    """Each recipe leaves predictions of its own, with metrics beside the floors."""
    assert main(["run", f"demo/{name}"]) == 0
    found = [
        folder.parent
        for folder in (shop / "runs" / "demo" / name).rglob("manifest.json")
        if read_manifest(folder.parent)["kind"] == "predictions"
    ]
    assert found
    for place in found:
        assert (place / "predictions.parquet").is_file()
    assert any((place / "metrics.json").is_file() and read_json(place / "metrics.json") for place in found)
