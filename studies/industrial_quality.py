"""What each part of the catalogue model of Industrial is worth, and a reward: three seeds, three hours of one core.

python studies/industrial_quality.py

Each case is `full`, which has no experts, with one thing changed; the rewards start from `full` of the same seed.
"""

from functools import partial
from pathlib import Path
from typing import Any

from cases import compare_cases

import minionerec

CASES: dict[str, dict[str, Any]] = {
    "full": {},
    "no_counts": {"reach": 0},
    "no_pointer": {"without": ["pointer"]},
    "no_codes": {"without": ["code_vectors"]},
    "no_text": {"vectors": ""},
    "no_learned": {"without": ["learned_vectors"]},
    "no_recency": {"recency": 0},
    "one_tower": {"towers": 1},
    "own_sids": {},
    "expected": {},
    "grpo": {"objective": "grpo", "learning_rate": 3e-5},
}
"""Name to the settings that differ from the recipe's."""


def main(home: Path = Path("runs/studies/industrial_quality"), seeds: tuple[int, ...] = (42, 43, 44)) -> None:
    """Train and compare the cases."""
    corpus = minionerec.run_stage("prepare-data", "industrial/catalogue#data", output=home / "corpus")
    sids = minionerec.run_stage("build-sids", "industrial/catalogue#sids", corpus=corpus, output=home / "sids")
    own = {"method": "rq_vae", "epochs": 150, "seed": 42}
    own_sids = minionerec.build_sids(corpus, output=home / "rq_vae", **own)

    def train(name: str, seed: int) -> Any:
        settings = {"corpus": corpus, "sids": own_sids if name == "own_sids" else sids, "seed": seed, **CASES[name]}
        step = "industrial/catalogue#catalogue"
        if name in ("expected", "grpo"):
            step, settings["checkpoint"] = "industrial/catalogue#reward", home / "full" / f"model-{seed}"
        else:
            settings["experts"] = False
        return minionerec.run_stage("train-catalogue", step, output=home / name / f"model-{seed}", **settings)

    cases = {name: partial(train, name) for name in CASES}
    compare_cases(home, corpus, sids, cases, seeds, search={"beams": 50}, reference="industrial")


if __name__ == "__main__":
    main()
