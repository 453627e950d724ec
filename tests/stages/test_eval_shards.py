"""Evaluation in shards: any number of processes, kills, other settings, and the batch size that fits."""

import sys

import numpy as np
import pytest
import torch
from support.evaluation import config, copy_artefact, interrupted, launch

from minionerec.core.log import progress
from minionerec.core.records import read_run_record
from minionerec.metrics.predictions import Predictions
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.decoding import shards
from minionerec.models.decoding.decoder import fitting_batch_size
from minionerec.models.decoding.shards import decode_in_shards
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.wording import load_wording
from minionerec.pipeline.evaluate import run_eval

CPU = torch.device("cpu")


class Counter:
    """A decoder whose lists say which prompt they are for; it can be told to stop."""

    def __init__(self, stop_after=None):
        self.seen, self.stop_after = [], stop_after

    def __call__(self, positions):
        prompts = [PROMPTS[position] for position in positions]
        if self.stop_after is not None and len(self.seen) >= self.stop_after:
            raise KeyboardInterrupt
        self.seen += [prompt[0] for prompt in prompts]
        sids = np.array([[prompt[0], len(prompt)] for prompt in prompts])
        return sids, sids.astype(np.float32) / 7


PROMPTS = [[index] * (1 + index * 7 % 13) for index in range(50)]
WANTED = np.array([[index, len(prompt), -1] for index, prompt in enumerate(PROMPTS)])


def decode(folder, decoder, size=4):
    folder.mkdir(exist_ok=True)
    return decode_in_shards(folder, PROMPTS, 3, lambda: size, decoder, CPU)


def test_batches_whose_memory_ends_are_decoded_in_parts(tmp_path):
    counter = Counter()

    def short_of_memory(positions):
        if len(positions) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return counter(positions)

    sids, scores = decode(tmp_path / "p", short_of_memory, size=7)
    assert np.array_equal(sids, WANTED)
    assert np.array_equal(scores, decode(tmp_path / "whole", Counter(), size=7)[1])


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
    (tmp_path / "p").mkdir()
    shards._open_folder(tmp_path / "p", CPU, lambda: 4)
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
    assert sorted(folder for part in parts for folder in part.seen) == sorted(alone.seen)
    assert max(len(part.seen) for part in parts) <= 50 / world + 8


def test_a_killed_run_resumes_and_redoes_only_what_was_unfinished(tmp_path):
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


def test_shards_of_other_versions_are_thrown_away(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    folder = tmp_path / "p"
    decode(folder, Counter())
    with monkeypatch.context() as patch:
        patch.setattr(shards, "package_versions", lambda: {"torch": "0.1"})
        other = Counter()
        decode(folder, other)
    assert len(other.seen) == 50
    assert "has shards of another device or other library versions; starting again" in caplog.text
    (folder / "batches.json").write_text("{broken")
    again = Counter()
    decode(folder, again)
    assert len(again.seen) == 50
    assert len(list(folder.glob("shard-*"))) == 13


def test_an_evaluation_that_was_interrupted_resumes(made, tmp_path, monkeypatch, caplog):
    whole = run_eval(config(made, batch_size=3, output=str(tmp_path / "whole"))).output
    asked = config(made, batch_size=3, output=str(tmp_path / "eval"))
    written = interrupted(monkeypatch, lambda: run_eval(asked), tmp_path / "eval", after=4)
    assert len(written) == 4
    caplog.set_level("INFO")
    with monkeypatch.context() as patch:
        fresh = []
        write = shards._write_shard
        patch.setattr(shards, "_write_shard", lambda file, *rest: (fresh.append(file), write(file, *rest)))
        found = run_eval(asked).output
    assert f"Resuming from 4 finished shard(s) in {tmp_path / 'eval.partial'}" in caplog.text
    assert fresh and not set(fresh) & set(written)
    assert not (tmp_path / "eval.partial").exists()
    for name in ("predictions.parquet", "predictions.json", "metrics.json", "metrics.txt"):
        assert (found / name).read_bytes() == (whole / name).read_bytes()
    records = [read_run_record(folder) for folder in (whole, found)]
    assert [(record.parts, record.resumed_from) for record in records] == [(1, None), (2, 4)]
    for record in records:
        assert set(record.seconds) == {"all", "load", "search", "measure", "write"}


def test_many_batches_make_few_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MOST_SHARDS", 6)
    sids, _ = decode(tmp_path / "p", Counter(), size=1)
    assert np.array_equal(sids, WANTED)
    assert len(list((tmp_path / "p").glob("shard-*"))) == 6


def test_batch_size_follows_memory(made, tmp_path):
    bundle = load_bundle(made / "checkpoint")
    trie = Trie.build(bundle.table.codes, bundle.code_ids)

    def fitting(longest, memory):
        return fitting_batch_size(bundle.model, trie, [[1]] * 32 + [[1] * longest], 5, memory)

    sizes = [fitting(60, memory) for memory in (1, 2**20, 2**22, 2**24, 2**40)]
    assert sizes == sorted(sizes) and sizes[0] == 1 and sizes[-1] == 64
    assert all(size & (size - 1) == 0 for size in sizes) and len(set(sizes)) > 3
    assert fitting(600, 2**22) < fitting(60, 2**22)
    assert fitting_batch_size(bundle.model, trie, [[1]] * 32, 5, 1) == 32  # for which memory is not asked
    found = run_eval(config(made, output=str(tmp_path / "a")))
    given = run_eval(config(made, batch_size=64, output=str(tmp_path / "b")))
    assert run_eval(config(made, batch_size=3, output=str(tmp_path / "b"))).up_to_date
    assert (found.output / "predictions.parquet").read_bytes() == (given.output / "predictions.parquet").read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def test_scoring_the_end_changes_scores_only_downwards(made, tmp_path):
    texts = {"wording.yaml": load_wording("prose").to_yaml()}
    prose = str(copy_artefact(made / "checkpoint", tmp_path / "prose", **texts))
    plain = Predictions.load(run_eval(config(made, checkpoint=prose, output=str(tmp_path / "a"))).output)
    ended = run_eval(config(made, checkpoint=prose, score_end=True, output=str(tmp_path / "b")))
    ended = Predictions.load(ended.output)
    for row in range(len(plain)):
        before = dict(zip(plain.items[row], plain.scores[row], strict=True))
        after = dict(zip(ended.items[row], ended.scores[row], strict=True))
        assert set(before) == set(after) and all(after[i] < before[i] for i in before), (before, after)


def test_progress_counts_rows(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert list(progress([[1, 2, 3], [4]], "reading", unit="rows", size=len, delay=0)) == [[1, 2, 3], [4]]
    assert "4/4" in capsys.readouterr().err


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
        assert out.count("Lists and all metrics:") == 1
        contents.append((tmp_path / f"out{processes}" / "predictions.parquet").read_bytes())
    assert len(set(contents)) == 1
    assert torch.distributed.is_available()
