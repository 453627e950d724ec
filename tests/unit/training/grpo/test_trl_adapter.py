"""What TRL's trainer must be like, that nothing else of it is private to us, and how steps get their rows."""

import ast
import inspect

import pytest
import torch
from support.paths import ROOT
from torch.utils.data import BatchSampler
from trl import GRPOTrainer

from minionerec.training.grpo.trainer import SidGrpoTrainer
from minionerec.training.grpo.trl_adapter import OVERRIDDEN, READ, StepTrainer, sample_steps

FOLDER = ROOT / "minionerec" / "training" / "grpo"


def what_moved(trainer: type) -> list[str]:
    """What a trainer no longer has as the adapter's table knows it, one sentence each."""
    wrong = []
    for name, wanted in OVERRIDDEN.items():
        method = getattr(trainer, name, None)
        if method is None:
            wrong.append(f"TRL's {trainer.__name__} has no method {name} any more, which trl_adapter.py overrides.")
        elif (found := tuple(inspect.signature(method).parameters)) != wanted:
            wrong.append(f"TRL's {trainer.__name__}.{name} takes {found}; trl_adapter.py overrides it with {wanted}.")
    text = inspect.getsource(trainer)
    wrong += [
        f"TRL's {trainer.__name__} sets no attribute {name} any more, which trl_adapter.py reads."
        for name in READ
        if f"self.{name} = " not in text
    ]
    return wrong


def test_trl_is_as_the_table_says():
    assert what_moved(GRPOTrainer) == []


def test_the_table_is_the_whole_private_surface():
    """No class of ours has another underscored name of TRL's, and no line of GRPO reads one."""
    ours = {name for cls in (StepTrainer, SidGrpoTrainer) for name in vars(cls) if not name.startswith("__")}
    shared = {name for name in ours if hasattr(GRPOTrainer, name)} - {"measures_loss"}
    private = {name for name in OVERRIDDEN if name.startswith("_")}
    assert {name for name in shared if name.startswith("_")} == private == {"_prepare_inputs"}
    assert shared <= OVERRIDDEN.keys()
    for path in FOLDER.glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        own = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        own |= {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
        foreign = {node.attr for node in attributes} - own
        assert {name for name in foreign if name.startswith("_") and not name.startswith("__")} == set(), path.name


def test_trl_is_imported_in_one_module_and_its_settings_in_the_stage():
    users = {path.name for path in FOLDER.glob("*.py") if "GRPOTrainer" in path.read_text(encoding="utf-8")}
    assert users == {"trl_adapter.py"}


def deal(count, processes, slices, size, epoch=0, seed=3):
    """Rows of each slice, by process, as accelerate deals out the batches of a sampler."""
    sampler = sample_steps(count, processes, slices, size, seed)
    sampler.set_epoch(epoch)
    batches = list(BatchSampler(sampler, size, drop_last=False))
    return [batches[process::processes] for process in range(processes)]


def test_rows_come_in_an_order_of_seed_and_epoch_alone():
    first = deal(24, 1, 2, 4)
    assert sorted(row for rows in first[0] for row in rows) == list(range(24))
    assert deal(24, 1, 2, 4) == first != deal(24, 1, 2, 4, epoch=1)
    assert deal(24, 1, 2, 4, seed=4) == deal(24, 1, 2, 4, epoch=1)


@pytest.mark.parametrize(("processes", "slices", "size"), [(1, 1, 8), (1, 4, 2), (2, 2, 2), (4, 1, 2), (2, 4, 1)])
def test_every_launch_takes_the_same_steps(processes, slices, size):
    (whole,) = deal(24, 1, 1, 8)
    parts = deal(24, processes, slices, size)
    for step, rows in enumerate(whole):
        mine = [row for part in parts for rows in part[step * slices : (step + 1) * slices] for row in rows]
        assert mine == rows  # each process has a block of the step, in order
    assert len(sample_steps(25, processes, slices, size, 0)) == 24


def test_a_step_is_made_when_its_first_slice_is_asked_for_and_once(monkeypatch):
    made, trainer = [], object.__new__(StepTrainer)
    monkeypatch.setattr(StepTrainer, "make_step", lambda self, rows: made.append(rows) or list(range(len(rows))))
    monkeypatch.setattr(GRPOTrainer, "get_batch_samples", lambda self, *of: ([["a"], ["b"]], None))
    slices, _ = trainer.get_batch_samples(iter([]), 2, torch.device("cpu"))
    assert made == []
    assert [trainer._prepare_inputs(part)["groups"] for part in reversed(slices)] == [1, 0]
    assert made == [[["a"], ["b"]]]
