"""Sequential recommenders from rows on disk: the same rows, and a run that dies goes on to the same weights."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from support.kill import Point, stage_in_child

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ConfigError
from minionerec.data.config import PrepareConfig
from minionerec.data.corpus import Corpus
from minionerec.data.prepare import run_prepare
from minionerec.data.protocols import PROTOCOLS
from minionerec.data.stored import StoredCorpus
from minionerec.data.stored_split import stored_split
from minionerec.data.transitions import count_transitions, count_transitions_in_parts
from minionerec.metrics.predictions import Predictions
from minionerec.training.sequential.config import SequentialConfig
from minionerec.training.sequential.stage import run_sequential

TINY = {"hidden_size": 16, "inner_size": 16, "num_layers": 1}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo shop, its sequences in several row groups."""
    place = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minionerec.data.shards.GROUP", 100)
        run_prepare(PrepareConfig(source="demo", output=str(place / "corpus")))
    return place / "corpus"


def config_of(demo, output, **changes):
    settings = {
        "model": "sasrec", "corpus": str(demo), "protocol": "rows", "output": str(output), "hyper": TINY, "max_len": 8,
        "epochs": 2, "resamples": 50, "stream": True, "shuffle_rows": 4096, "eval_rows": 300, "stop_after": 5,
    }  # fmt: skip
    return SequentialConfig(**{**settings, **changes})


@pytest.mark.parametrize(("max_len", "padding"), [(10, "right"), (4, "left")])
def test_rows_on_disk_are_those_in_memory(demo, tmp_path, max_len, padding):
    protocol = PROTOCOLS["rows"].with_changes(max_len=max_len, padding=padding)
    memory = protocol.split(Corpus.load(demo))
    disk = stored_split(StoredCorpus.open(demo), protocol, -1, 0, tmp_path)

    def plain(rows):
        return sorted(zip(map(tuple, rows.histories.tolist()), rows.targets.tolist(), strict=True))

    assert plain(disk.train) == plain(memory.train)
    part = disk.train.take(np.array([7, 3]))
    assert part.histories.tolist() == disk.train.histories[[7, 3]].tolist()
    windows = [
        sorted(map(tuple, np.concatenate([w.histories, w.targets], axis=1).tolist()))
        for w in (disk.windows, memory.windows)
    ]
    assert windows[0] == windows[1]
    for split in ("valid", "test"):
        ours, theirs = disk.rows(split), memory.rows(split)
        assert (ours.histories == theirs.histories).all() and (ours.targets == theirs.targets).all()
        assert [got.tolist() for got in disk.histories(split)] == [want.tolist() for want in memory.histories(split)]
        known = [user for user in memory.users(split) if user]
        assert [u for u, k in zip(disk.users(split), memory.users(split), strict=True) if k] == known
    again = stored_split(StoredCorpus.open(demo), protocol, 9, 0, tmp_path)  # what was written is taken
    assert len(again.valid) == len(again.test) == 9
    assert np.shares_memory(again.train.flat, again.train.take(slice(0, 5)).flat)


def test_counts_of_parts_are_those_of_the_whole():
    rng = np.random.default_rng(0)
    histories, targets = rng.integers(0, 40, (2, 500, 7))
    whole = count_transitions(histories, targets, 39, 4, 0.6, 0.3)
    parts = [(histories[start : start + 30], targets[start : start + 30]) for start in range(0, 500, 30)]
    found = count_transitions_in_parts(parts, 39, 4, 0.6, 0.3)
    assert (found.offsets == whole.offsets).all() and (found.followers == whole.followers).all()
    assert np.allclose(found.counts, whole.counts, rtol=1e-6)


@pytest.mark.parametrize("all_positions", [False, True])
def test_it_learns_as_from_memory(demo, tmp_path, all_positions):
    told = {"all_positions": all_positions, "epochs": 10, "learning_rate": 0.005}
    disk = run_sequential(config_of(demo, tmp_path / "disk", eval_rows=-1, **told))
    memory = run_sequential(
        config_of(demo, tmp_path / "memory", stream=False, shuffle_rows=65_536, eval_rows=-1, **told)
    )
    ours, theirs = (done.metrics["test"]["item"]["NDCG@10"][0] for done in (disk, memory))
    assert ours == pytest.approx(theirs, rel=0.2) and ours > 0.02
    assert not (tmp_path / "disk" / "model.partial").exists()
    epochs = [read_manifest(done.output / "model")["counts"]["epochs"] for done in (disk, memory)]
    assert epochs == [10, 10]


def test_killed_it_goes_on_to_the_same_weights(demo, tmp_path):
    config = partial(config_of, demo)
    totals = stage_in_child(run_sequential, tmp_path / "whole", config(tmp_path / "whole" / "out"))
    for number, point in enumerate((Point("step", totals["step"] - 2), Point("write", 9))):
        mine = tmp_path / str(number)
        run = partial(stage_in_child, run_sequential, mine, config(mine / "out"))
        run(point)
        run()
        one, two = (
            load_file(Path(place) / "out" / "model" / "model.safetensors") for place in (mine, tmp_path / "whole")
        )
        assert all((one[name] == two[name]).all() for name in two)
    assert len(Predictions.load(tmp_path / "whole" / "out" / "predictions")) == 300
    counts = read_manifest(tmp_path / "whole" / "out" / "model")["counts"]
    assert counts["train"] == StoredCorpus.open(demo).sizes["train"] and counts["valid"] == 300


def test_what_cannot_be_streamed_is_refused(demo, tmp_path):
    with pytest.raises(ConfigError, match="stream is true, but protocol is 'a'"):
        config_of(demo, tmp_path, protocol="a")
    with pytest.raises(ConfigError, match="eval_rows is 0"):
        config_of(demo, tmp_path, eval_rows=0)
    with pytest.raises(ConfigError, match="model caser has a vector for each user"):
        run_sequential(config_of(demo, tmp_path / "out", model="caser", hyper={}))
    plain = config_of(demo, tmp_path, stream=False, shuffle_rows=65_536, eval_rows=-1)
    assert not {"stream", "shuffle_rows", "eval_rows"} & plain.deciding().keys()
