"""The language model of Industrial: distilled, after GRPO or the same steps without it, from labels, and its teacher.

python studies/language_model.py
python studies/language_model.py --only catalogue distilled --seeds 42

Hours on two cores. The teacher of a seed is the catalogue model of that seed, and GRPO starts from `distilled` of it.
"""

import argparse
from pathlib import Path
from typing import Any

from cases import compare_cases

import minionerec


def main(home: Path = Path("runs/studies/language_model")) -> None:
    """Train and compare the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["catalogue", "distilled", "labels", "grpo", "control"]
    parser.add_argument("--only", nargs="+", default=names, choices=names, help="cases to train, with those they need")
    parser.add_argument("--seeds", nargs="+", type=int, default=[42, 43, 44])
    given = parser.parse_args()
    corpus = minionerec.run_stage("prepare-data", "industrial#data", output=home / "corpus")
    sids = minionerec.run_stage("build-sids", "industrial#sids_published", corpus=corpus, output=home / "sids")

    def folder(name: str, seed: int) -> Path:
        return home / name / f"model-{seed}"

    def train(stage: str, config: str, name: str, seed: int, **settings: Any) -> Any:
        output = folder(name, seed)
        return minionerec.run_stage(stage, config, corpus=corpus, seed=seed, output=output, **settings)

    def catalogue(seed: int) -> Any:
        return train("train-catalogue", "industrial#catalogue", "catalogue", seed, sids=sids)

    def distilled(seed: int) -> Any:
        return train("sft", "industrial#sft", "distilled", seed, sids=sids, teacher=folder("catalogue", seed))

    def labels(seed: int) -> Any:
        return train("sft", "industrial/labels#sft", "labels", seed, sids=sids)

    def grpo(seed: int) -> Any:
        return train("grpo", "industrial#grpo", "grpo", seed, checkpoint=folder("distilled", seed))

    def control(seed: int) -> Any:
        """The prompts and steps of `grpo` with the teacher's likelihood in place of a reward."""
        loss = {"teacher": folder("catalogue", seed), "loss_terms": {"likelihood": 1}, "learning_rate": 1e-4}
        start = {"checkpoint": folder("distilled", seed), "beta": 0}
        return train("grpo", "industrial#grpo", "control", seed, **loss, **start)

    known = {"catalogue": catalogue, "distilled": distilled, "labels": labels, "grpo": grpo, "control": control}
    cases = {name: train for name, train in known.items() if name in given.only}
    compare_cases(home, corpus, sids, cases, given.seeds, search={"beams": 50}, reference="industrial")


if __name__ == "__main__":
    main()
