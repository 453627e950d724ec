"""Preference models on synthetic raters at the published report's sizes: leaks, activations, four controls; five seeds.

python studies/preference.py

Each run makes its own 4,602 pairs, 16,252 comparisons and 48,756 answers from its seed.
"""

from pathlib import Path
from typing import Any

import minionerec

# Scale and spread are for mlp_siamese; better on validation than standardised features and small user vectors.
PAIR: dict[str, Any] = {
    **{"models": ["bt_hier", "bt_lowrank", "mlp_siamese", "mlp_concat"], "compat": "blink-2025-09"},
    **{"scale": "none", "embedding_std": 1.0},
}
SMALL = {**PAIR, "models": ["mlp_concat"], "items": 1150}  # the published network, at a quarter of the size
CONTROL = {**PAIR, "models": ["bt_hier", "mlp_concat"], "items": 800}
CASES: dict[str, dict[str, Any]] = {
    "pair": PAIR,
    "row": {**PAIR, "split": "row"},
    "leaky_relu": SMALL,
    **{name: {**SMALL, "activation": name} for name in ("relu", "gelu", "silu")},
    "no_halo": {**CONTROL, "population": "no_halo"},
    "no_halo_row": {**CONTROL, "population": "no_halo", "split": "row"},
    "one_taste": {**CONTROL, "population": "one_taste"},
    "permuted": {**CONTROL, "population": "permuted"},
}


def main(home: Path = Path("runs/studies/preference"), seeds: tuple[int, ...] = (1, 2, 3, 4, 5)) -> None:
    """Train every case with every seed, and write the pages."""
    for seed in seeds:
        for name, settings in CASES.items():
            output = home / name / f"seed-{seed}"
            minionerec.run_stage("train-preference", seed=seed, output=output, **settings)
    runs = {name: home / name for name in CASES}
    print(minionerec.run_stage("preference-report", runs=runs, output=home / "report").text)


if __name__ == "__main__":
    main()
