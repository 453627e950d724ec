"""The demo shop's catalogue model without two of its parts, and after a reward: two seeds, minutes on two cores.

python studies/demo.py

The cases are compared on the test examples. The same command resumes after an interruption.
"""

from functools import partial
from pathlib import Path
from typing import Any

from cases import compare_cases

import minionerec

SHORT = {"epochs": 4, "evals_per_epoch": 0.25}
CASES: dict[str, dict[str, Any]] = {
    "full": SHORT,
    "without counts": {**SHORT, "reach": 0},
    "without text": {**SHORT, "vectors": ""},
    "with reward": {"objective": "expected", "beta": 0.3, "dropout": 0, "epochs": 1, "learning_rate": 5e-5},
}
"""Name to the settings that differ from the demo's; the reward starts from `full` of the same seed."""


def main(home: Path = Path("runs/studies/demo"), seeds: tuple[int, ...] = (42, 43)) -> None:
    """Train and compare the cases."""
    corpus = minionerec.run_stage("prepare-data", "demo#data", output=home / "corpus")
    sids = minionerec.run_stage("build-sids", "demo#sids", corpus=corpus, output=home / "sids")

    def train(name: str, seed: int) -> Any:
        settings = {"corpus": corpus, "sids": sids, "seed": seed, **CASES[name]}
        if name == "with reward":
            settings["checkpoint"] = home / "full" / f"model-{seed}"
        output = home / name.replace(" ", "_") / f"model-{seed}"
        return minionerec.run_stage("train-catalogue", "demo#catalogue", output=output, **settings)

    cases = {name: partial(train, name) for name in CASES}
    search = {"beams": 20, "ks": [1, 10, 20]}
    compare_cases(home, corpus, sids, cases, seeds, splits=("test",), search=search)


if __name__ == "__main__":
    main()
