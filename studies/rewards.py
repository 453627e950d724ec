"""GRPO of the small language model of Industrial with each reward: equal budget, one SFT checkpoint, three seeds.

python studies/rewards.py --only ranking sampling

A run is 80 steps of 64 training examples: the share of the task next_sid is 80 x 64 / 36,259.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from cases import compare_cases

import minionerec

COMMON: dict[str, Any] = {
    **{"tasks": {"next_sid": 0.141206}, "max_steps": 80, "prompts_per_step": 64, "learning_rate": 3e-5},
    **{"schedule": "cosine", "warmup": 0.03, "max_grad_norm": 0.3, "evals_per_epoch": 4, "eval_examples": 1500},
}
RANKING = {"rewards": {"ranking": 1}}
CASES: dict[str, dict[str, Any]] = {
    "rule": {"rewards": {"rule": 1}},
    "ranking": RANKING,
    "position": {"rewards": {"position": 1}},
    "sampling": {**RANKING, "rollouts": "sampling"},
    "fast": {**RANKING, "learning_rate": 1e-4},
    "slow": {**RANKING, "learning_rate": 1e-5},
    "strong_kl": {**RANKING, "beta": 0.1},
    "no_kl": {**RANKING, "beta": 0},
    "thirty_two": {**RANKING, "generations": 32},
}


def main(home: Path = Path("runs/studies/rewards"), seeds: tuple[int, ...] = (0, 1, 2)) -> None:
    """Train and compare the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=CASES, help="cases to train")
    only = parser.parse_args().only
    corpus = minionerec.run_stage("prepare-data", "industrial/labels#data", output=home / "corpus")
    sids = minionerec.run_stage("build-sids", "industrial/labels#sids", corpus=corpus, output=home / "sids")
    shared = {"corpus": corpus, "sids": sids}
    start = minionerec.run_stage("sft", "industrial/labels#sft", output=home / "sft", **shared)

    def train(name: str, seed: int) -> Any:
        settings = {**COMMON, **CASES[name], "checkpoint": start, "seed": seed}
        return minionerec.run_stage("grpo", corpus=corpus, output=home / name / f"model-{seed}", **settings)

    cases = {"SFT": lambda seed: start, **{name: partial(train, name) for name in only}}
    compare_cases(home, corpus, sids, cases, seeds, search={"beams": 50}, reference="industrial")


if __name__ == "__main__":
    main()
