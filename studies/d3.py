"""The share of a language model in one search with SASRec (D3), chosen on validation examples; and reordering alone.

python studies/d3.py

A share of 1 is the language model alone, 0 is SASRec alone. Give the best share to the step eval_d3 of industrial/d3.
"""

from pathlib import Path

import minionerec

CASES = {
    "language model alone": {},
    **{f"share {share}": {"share": share} for share in (0.9, 0.8, 0.7, 0.6, 0.5)},
    "SASRec alone": {"share": 0.0},
    **{f"reordered, share {share}": {"share": share, "combine": "rerank"} for share in (0.9, 0.7, 0.5)},
}


def main(home: Path = Path("runs/studies/d3")) -> None:
    """Search with every share, and compare the lists."""
    corpus = minionerec.run_stage("prepare-data", "industrial/d3#data", output=home / "corpus")
    sids = minionerec.run_stage("build-sids", "industrial/d3#sids", corpus=corpus, output=home / "sids")
    shared = {"corpus": corpus, "sids": sids}
    sasrec = minionerec.run_stage("train-sequential", "industrial/d3#sasrec", output=home / "sasrec", **shared)
    model = minionerec.run_stage("sft", "industrial/d3#sft", output=home / "sft", **shared)
    predictions = {}
    for number, (name, settings) in enumerate(CASES.items()):
        assistant = {"assistant": sasrec.output / "model", **settings} if settings else {}
        lists = minionerec.evaluate(
            model, corpus, output=home / f"valid-{number}", split="valid", beams=50, **assistant
        )  # fmt: skip
        predictions[name] = lists.output
    compared = {"predictions": predictions, "split": "valid", "title": "Shares of D3"}
    print(minionerec.run_stage("report", **shared, **compared, output=home / "report").text)


if __name__ == "__main__":
    main()
