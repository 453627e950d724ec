"""How examples become optimiser steps."""

import numpy as np
import pytest

from minionerec.core.errors import ConfigError
from minionerec.training.config import RunConfig
from minionerec.training.run import accumulation_steps, choose_examples, plan_steps


def test_weights_of_tasks():
    assert len(choose_examples(10, 0.3, 0)) == 3
    assert np.bincount(choose_examples(10, 2.5, 0)).min() == 2
    assert np.array_equal(choose_examples(50, 0.5, 1), choose_examples(50, 0.5, 1))


def test_micro_batches():
    assert accumulation_steps(64, 8, 4, "x") == 2
    with pytest.raises(ConfigError, match=r"x: 60 is no multiple of 8 x 4 device\(s\) = 32; change one of them"):
        accumulation_steps(60, 8, 4, "x")


def test_the_plan_is_for_all_processes_of_the_launch_and_is_reported(monkeypatch, caplog):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with caplog.at_level("INFO", "minionerec"):
        plan = plan_steps(RunConfig(corpus="c", output="x", evals_per_epoch=3, epochs=1.5), 1000, 64, 8, "x", "rows")
    assert (plan.accumulation, plan.steps_per_epoch, plan.eval_steps) == (2, 16, 6)
    assert "A step is 64 rows = 8 a device x 4 device(s) x 2; 16 steps an epoch, 1.5 epochs" in caplog.text
