"""Train cases with several seeds, evaluate them, and compare them in one report for each split."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import minionerec


def compare_cases(
    home: Path,
    corpus: Any,
    sids: Any,
    cases: Mapping[str, Callable[[int], Any]],
    seeds: Sequence[int],
    *,
    splits: Sequence[str] = ("valid", "test"),
    search: Mapping[str, Any] | None = None,
    **report: Any,
) -> None:
    """Evaluate each case with each seed, and write HOME/report/SPLIT; finished stages are not run again.

    Args:
        home: Folder of all outputs.
        corpus: The corpus.
        sids: Its semantic IDs.
        cases: Name to a function of a seed that trains, and returns the model; one that trains nothing may ignore it.
        seeds: Seeds; all cases are trained with one before the next.
        splits: Splits to evaluate.
        search: Settings of `eval-beam`.
        report: Further settings of the report.
    """
    for seed in seeds:
        for name, train in cases.items():
            model = train(seed)
            for split in splits:
                folder = home / name.replace(" ", "_") / split / f"seed-{seed}" / "predictions"
                minionerec.evaluate(model, corpus, output=folder, split=split, **(search or {}))
    for split in splits:
        predictions = {name: home / name.replace(" ", "_") / split for name in cases}
        result = minionerec.run_stage(
            "report",
            title=f"{home.name}, {split} examples",
            corpus=corpus,
            sids=sids,
            split=split,
            predictions=predictions,
            output=home / "report" / split,
            **report,
        )
        print(result.text)
