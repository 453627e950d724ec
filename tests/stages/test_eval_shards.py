"""Evaluation in shards: any number of processes, kills, other settings, and the batch size that fits."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.evaluation import config

from minionerec.backbone.bundle import load_bundle
from minionerec.core.log import progress
from minionerec.decoding.trie import Trie
from minionerec.evaluation import predict, shards
from minionerec.evaluation.predict import run_eval
from minionerec.evaluation.shards import decode_in_shards, fitting_batch_size
from minionerec.metrics.predictions import Predictions
from minionerec.prompts.wording import load_wording

RECORD = {"settings": {"beams": 3}, "batch_size": None}


class Counter:
    """A decoder whose lists say which prompt they are for; it can be told to stop."""

    def __init__(self, stop_after=None):
        self.seen, self.stop_after = [], stop_after

    def __call__(self, prompts):
        if self.stop_after is not None and len(self.seen) >= self.stop_after:
            raise KeyboardInterrupt
        self.seen += [prompt[0] for prompt in prompts]
        sids = np.array([[prompt[0], len(prompt)] for prompt in prompts])
        return sids, sids.astype(np.float32) / 7


PROMPTS = [[place] * (1 + place * 7 % 13) for place in range(50)]
WANTED = np.array([[place, len(prompt), -1] for place, prompt in enumerate(PROMPTS)])


def decode(folder, decoder, record=RECORD, size=4):
    return decode_in_shards(folder, record, PROMPTS, 3, lambda: size, decoder)


def test_lists_come_back_in_prompt_order(tmp_path):
    sids, scores = decode(tmp_path / "p", Counter())
    assert np.array_equal(sids, WANTED)
    assert np.array_equal(scores[:, :2], (WANTED[:, :2] / 7).astype(np.float32)) and np.isinf(scores[:, 2]).all()


@pytest.mark.parametrize("world", [2, 3, 5])
def test_processes_share_the_batches_of_one_process(tmp_path, monkeypatch, world):
    alone = Counter()
    decode(tmp_path / "alone", alone)
    monkeypatch.setattr(shards, "wait_for_everyone", lambda: None)
    monkeypatch.setenv("WORLD_SIZE", str(world))
    shards._open_folder(tmp_path / "p", RECORD, lambda: 4)
    parts = []
    for rank in [*range(1, world), 0]:
        monkeypatch.setenv("RANK", str(rank))
        parts.append(Counter())
        if rank:
            with pytest.raises(FileNotFoundError):  # the shards of the processes still to come
                decode(tmp_path / "p", parts[-1])
        else:
            sids, _ = decode(tmp_path / "p", parts[-1])
    assert np.array_equal(sids, WANTED)
    assert sorted(place for part in parts for place in part.seen) == sorted(alone.seen)
    assert max(len(part.seen) for part in parts) <= 50 / world + 8


def test_a_killed_run_goes_on_and_redoes_only_what_was_unfinished(tmp_path):
    folder = tmp_path / "p"
    with pytest.raises(KeyboardInterrupt):
        decode(folder, Counter(stop_after=20))
    finished = len(list(folder.glob("shard-*")))
    assert finished == 5
    (folder / "shard-00001.safetensors").write_bytes(b"cut off")
    second = Counter()
    sids, _ = decode(folder, second, size=99)  # the first run's batch size stands
    assert np.array_equal(sids, WANTED)
    assert len(second.seen) == 50 - 20 + 4
    assert decode(folder, Counter(stop_after=0))[0].tolist() == WANTED.tolist()


def test_shards_of_other_settings_are_thrown_away(tmp_path):
    decode(tmp_path / "p", Counter())
    other = Counter()
    decode(tmp_path / "p", other, record={"settings": {"beams": 4}, "batch_size": None})
    assert len(other.seen) == 50
    (tmp_path / "p" / "record.json").write_text("{broken")
    again = Counter()
    decode(tmp_path / "p", again)
    assert len(again.seen) == 50


def test_many_batches_make_few_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MOST_SHARDS", 6)
    sids, _ = decode(tmp_path / "p", Counter(), size=1)
    assert np.array_equal(sids, WANTED)
    assert len(list((tmp_path / "p").glob("shard-*"))) == 6


def test_batch_size_follows_memory(made, tmp_path):
    bundle = load_bundle(made / "checkpoint")
    trie = Trie.build(bundle.table.codes, bundle.code_ids)
    sizes = [fitting_batch_size(bundle.model, trie, 60, 5, memory) for memory in (1, 2**20, 2**22, 2**24, 2**40)]
    assert sizes == sorted(sizes) and sizes[0] == 1 and sizes[-1] == 64
    assert all(size & (size - 1) == 0 for size in sizes) and len(set(sizes)) > 3
    assert fitting_batch_size(bundle.model, trie, 600, 5, 2**22) < fitting_batch_size(bundle.model, trie, 60, 5, 2**22)
    found = run_eval(config(made, batch_size=0, output=str(tmp_path / "a")))
    given = run_eval(config(made, batch_size=64, output=str(tmp_path / "b")))
    assert (found.output / "predictions.parquet").read_bytes() == (given.output / "predictions.parquet").read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def test_scoring_the_end_changes_scores_only_downwards(made, tmp_path, monkeypatch):
    prose = replace(load_bundle(made / "checkpoint"), wording=load_wording("prose"))
    monkeypatch.setattr(predict, "load_bundle", lambda *args, **kwargs: prose)
    plain = Predictions.load(run_eval(config(made, output=str(tmp_path / "a"))).output)
    ended = Predictions.load(run_eval(config(made, score_end=True, output=str(tmp_path / "b"))).output)
    for row in range(len(plain)):
        before = dict(zip(plain.items[row], plain.scores[row], strict=True))
        after = dict(zip(ended.items[row], ended.scores[row], strict=True))
        assert set(before) == set(after) and all(after[i] < before[i] for i in before), (before, after)


def test_progress_counts_rows(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert list(progress([[1, 2, 3], [4]], "reading", unit="rows", size=len)) == [[1, 2, 3], [4]]
    assert "4/4" in capsys.readouterr().err


SCRIPT = Path(__file__).parents[1] / "scripts" / "eval_beam.py"


def launch(processes, folder, output, **environment):
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes)] if processes else [
        sys.executable]  # fmt: skip
    return subprocess.Popen(
        [
            *words,
            str(SCRIPT),
            *("--config", str(folder / "eval.yaml"), "--output", str(output)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_any_number_of_launched_processes_writes_the_same_bytes(made, tmp_path):
    (made / "eval.yaml").write_text(
        f"corpus: {made / 'corpus'}\ncheckpoint: {made / 'checkpoint'}\nbeams: 5\nks: [1, 5]\n"
        "resamples: 50\nbatch_size: 3\noutput: unused\n"
    )
    contents = []
    for processes in (0, 1, 2, 3):
        process = launch(processes, made, tmp_path / f"out{processes}")
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert out.count("predictions:") == 1
        contents.append((tmp_path / f"out{processes}" / "predictions.parquet").read_bytes())
    assert len(set(contents)) == 1
    assert torch.distributed.is_available()
