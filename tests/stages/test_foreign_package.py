"""A package of somebody else that adds a command, a stage, a reader, a ranker and a sequential model."""

import os
import subprocess
import sys

import pytest
from support.preloaded import python
from support.small_shop import make_shop

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "foreign"
version = "0.1"
[project.entry-points."minionerec.commands"]
greet = "foreign:GREET"
[project.entry-points."minionerec.stages"]
count-items = "foreign:COUNT_ITEMS"
[project.entry-points."minionerec.readers"]
foreign = "foreign:read"
[project.entry-points."minionerec.rankers"]
foreign = "foreign:NewestFirst"
[project.entry-points."minionerec.sequential_models"]
newest-item = "foreign.model:NewestItem"
"""
MODULE = """
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from minionerec.core.commands import Command, CommandParser
from minionerec.pipeline.settings import Settings, setting
from minionerec.pipeline.stages import StageResult, StageSpec
from minionerec.data.corpus import Corpus
from minionerec.data.sources.tables import read_tables
from minionerec.recommend.rankers.protocol import Ranking

@dataclass
class CountConfig(Settings):
    corpus: str = setting("", "corpus", input_kind="corpus", required=True)

def count(config):
    return StageResult(Path(), [f"{Corpus.load(config.corpus).n_items} items"])

COUNT_ITEMS = StageSpec("count-items", "Count the items of a corpus.", "foreign:CountConfig", "foreign:count")

GREET = Command("Print a greeting.", lambda program: CommandParser(prog=program), lambda program: print("hello"))

def read(config, inputs, bad):
    return read_tables(inputs["interactions"], inputs["items"], bad)

class NewestFirst:
    name = "newest first"
    def __init__(self, corpus):
        self.n_items = corpus.n_items
    def rank(self, queries, k, allowed=None):
        items = np.tile(np.arange(self.n_items - 1, self.n_items - 1 - k, -1), (len(queries), 1))
        return Ranking(items, -np.arange(k, dtype=np.float32)[None].repeat(len(queries), 0))
"""
MODEL = """
from torch import nn
from minionerec.models.nn.layers import readout_slots, take_slots
from minionerec.models.sequential.model import SequentialModel

class NewestItem(SequentialModel):
    causal = masks_padding = True
    def __init__(self, *, scale: float = 1.0, **sizes):
        super().__init__(**sizes)
        self.items, self.scale = nn.Embedding(self.num_items + 1, self.hidden_size, padding_idx=0), scale
    def position_vectors(self, histories):
        return self.scale * self.items(histories)
    def user_vectors(self, histories, users=None):
        return take_slots(self.position_vectors(histories), readout_slots(histories, self.padding))
    def item_matrix(self):
        return self.items.weight
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder into which the package is installed."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "foreign").mkdir()
    (source / "foreign" / "__init__.py").write_text(MODULE)
    (source / "foreign" / "model.py").write_text(MODEL)
    words = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *words, "--target", target, source], check=True)
    return target


def minionerec(installed, folder, *words):
    paths = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH")]))
    command = [python(), "-m", "minionerec", *words]
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_package_adds_a_command_a_stage_a_reader_and_a_ranker(installed, tmp_path):
    shop = make_shop(tmp_path / "shop", ("prepare-data",))
    usage = minionerec(installed, shop, "--help").stdout
    assert "Count the items of a corpus." in usage and "Print a greeting." in usage
    assert minionerec(installed, shop, "greet").stdout == "hello\n"
    tables = ["--interactions", "interactions.csv", "--items", "items.csv"]
    made = minionerec(installed, shop, "prepare-data", "--source", "foreign", *tables, "--output", "other")
    assert made.returncode == 0, made.stderr
    counted = minionerec(installed, shop, "count-items", "--corpus", "other")
    assert counted.stdout.split()[1] == "items" and int(counted.stdout.split()[0]) > 0
    words = ["--corpus", "other", "--ranker", "foreign", "--beams", "10", "--ks", "5", "--resamples", "20"]
    measured = minionerec(installed, shop, "eval-beam", *words, "--output", "test")
    assert measured.returncode == 0, measured.stderr


def test_a_package_adds_a_sequential_model(installed, tmp_path):
    shop = make_shop(tmp_path / "shop", ("prepare-data",))
    words = ["--corpus", "corpus", "--protocol", "rows", "--epochs", "1", "--hyper", "hidden_size=8", "scale=2"]
    words += ["--resamples", "20", "--output", "out"]
    trained = minionerec(installed, shop, "train-sequential", "--model", "newest-item", *words)
    assert trained.returncode == 0, trained.stderr
    words = ["--corpus", "corpus", "--checkpoint", "out/model", "--beams", "5", "--ks", "5", "--resamples", "20"]
    measured = minionerec(installed, shop, "eval-beam", *words, "--output", "test")
    assert measured.returncode == 0, measured.stderr


def test_a_package_that_cannot_be_imported_is_named(installed, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "foreign.py").write_text("raise RuntimeError('made for another version')")
    outcome = minionerec(os.pathsep.join([str(broken), str(installed)]), tmp_path, "count-items", "--help")
    assert outcome.returncode != 0
    assert "foreign 0.1" in outcome.stderr and "made for another version" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_name_is_registered_once(tmp_path):
    info = tmp_path / "foreign-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[minionerec.stages]\nsft = foreign:SFT\n")
    outcome = minionerec(tmp_path, tmp_path, "--help")
    assert outcome.returncode != 0 and "foreign 0.1 registers 'sft', which exists already" in outcome.stderr
