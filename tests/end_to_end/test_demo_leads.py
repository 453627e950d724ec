"""The demo's language model against the baselines of interactions: the recipe's own steps, each training shorter."""

from dataclasses import replace
from pathlib import Path

import pytest

from minionerec.cli.plan import plan_of
from minionerec.core.artefacts import read_json
from minionerec.recommend.rankers.baselines import TEXT

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]

SHORTER = {
    "catalogue": {"eval_examples": 200},
    "sft": {
        "layers": 1,
        "variants": 39,
        "learning_rate": 0.006,
        "evals_per_epoch": 1,
        "eval_examples": 200,
    },
    "eval_sft": {"beams": 20, "ks": [10], "resamples": 100, "batch_size": 256},
}
STEPS = ["corpus", "sids", "catalogue", "sft", "eval_sft"]


def test_the_language_model_leads_the_baselines_of_interactions(tmp_path, monkeypatch):
    """Of the recipe as it is and three seeds the lead over transition counts, the best of them on validation, is .018.

    Neighbours by text have as much as the model, .0822; so that the model is ahead of these is not claimed.
    """
    monkeypatch.chdir(tmp_path)
    steps = {Path(step.settings.output).name: step for step in plan_of("demo").values() if step.output}
    for name in STEPS:
        steps[name].spec.function()(replace(steps[name].settings, **SHORTER.get(name, {})))
    folder = tmp_path / "runs" / "demo" / "eval_sft"
    measured = read_json(folder / "metrics.json")["recommenders"]
    ndcg = {name: found["item"]["NDCG@10"][0] for name, found in measured.items()}
    valid = read_json(folder / "baselines.json")["valid"]
    language = ndcg.pop("beam search")
    assert max(valid, key=valid.get) == TEXT and ndcg.pop(TEXT) < language + 0.01
    strongest = max(ndcg, key=valid.get)
    assert ndcg[strongest] + 0.005 < language  # .0192 above; .0159 and .0131 with other seeds
    assert max(ndcg.values()) + 0.004 < language  # .0181 above EASE, ahead of the strongest here
