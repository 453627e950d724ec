"""The demo's models learn: the recipe's own steps, each training shorter.

Which of its models is ahead, and by how much, is not asked here: each processor rounds in its own order, and rounding
moves a training as much as another seed does. `data/demo/README.md` has that of three seeds, with intervals.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from support.training import logged

from minionerec.core.artefacts import read_json
from minionerec.pipeline.cli.plan import plan_of
from minionerec.recommend.rankers.baselines import POPULARITY

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(3000)]  # which no training needs, on any processor

SHORTER = {
    "catalogue": {"epochs": 2, "towers": 1, "evals_per_epoch": 1, "eval_examples": 100},
    "eval_catalogue": {"beams": 20, "ks": [10], "resamples": 100},
    "sft": {"layers": 1, "variants": 2, "learning_rate": 0.006, "evals_per_epoch": 4, "eval_examples": 100},
    "eval_sft": {"beams": 20, "ks": [10], "resamples": 100, "batch_size": 256},
}
STEPS = ["corpus", "sids", "catalogue", "eval_catalogue", "sft", "eval_sft"]


def test_both_models_learn(tmp_path, monkeypatch):
    """Each has three times popularity's NDCG@10, and its training loss falls."""
    monkeypatch.chdir(tmp_path)
    steps = {Path(step.settings.output).name: step for step in plan_of("demo").values() if step.output}
    for name in STEPS:
        steps[name].spec.function()(replace(steps[name].settings, **SHORTER.get(name, {})))
    runs, ndcg = tmp_path / "runs" / "demo", {}
    for name in ("sft", "catalogue"):  # the baselines are evaluated beside the first
        measured = read_json(runs / f"eval_{name}" / "metrics.json")["recommenders"]
        ndcg |= {system: measures["item"]["NDCG@10"][0] for system, measures in measured.items()}
        model = next(iter(measured))
        assert model.startswith("beam search") and ndcg[model] > 3 * ndcg[POPULARITY]
        losses = logged(runs / name, "loss")
        assert losses[-1] < 0.95 * losses[0]
