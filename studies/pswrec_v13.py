"""The sweep that chose PSWRec V13's published settings on LastFM (protocol A), with the published names; one seed.

python studies/pswrec_v13.py

Learning rate, dropout with heads, inner width with the weight of the phases' roughness, then both once more. The first
case is three of the published runs: s1_lr0p001, s2_d0p5_h4, s3_in256_paw0p05.
"""

from pathlib import Path
from typing import Any

import minionerec

DATA = "$MINIONEREC_DATA/sequential/LastFM.txt"


def _dropout(share: float, **hyper: Any) -> dict[str, Any]:
    return {"hyper": {"hidden_dropout": share, "attention_dropout": share, **hyper}}


CASES: dict[str, dict[str, Any]] = {
    "PSWRecV13": {},
    "v13lastfm_s1_lr0p0002": {"learning_rate": 0.0002},
    "v13lastfm_s1_lr0p0003": {"learning_rate": 0.0003},
    "v13lastfm_s1_lr0p0005": {"learning_rate": 0.0005},
    "v13lastfm_s2_d0p4_h2": _dropout(0.4, num_heads=2),
    "v13lastfm_s2_d0p4_h4": _dropout(0.4),
    "v13lastfm_s2_d0p5_h2": {"hyper": {"num_heads": 2}},
    "v13lastfm_s3_in256_paw0p0": {"hyper": {"phase_aux_weight": 0.0}},
    "v13lastfm_s3_in512_paw0p0": {"hyper": {"inner_size": 512, "phase_aux_weight": 0.0}},
    "v13lastfm_s3_in512_paw0p05": {"hyper": {"inner_size": 512}},
    "v13lastfm_micro_d0p1_paw0p1": _dropout(0.1, phase_aux_weight=0.1),
    "v13lastfm_micro_d0p1_paw0p2": _dropout(0.1, phase_aux_weight=0.2),
    "v13lastfm_micro_d0p2_paw0p1": _dropout(0.2, phase_aux_weight=0.1),
    "v13lastfm_micro_d0p2_paw0p2": _dropout(0.2, phase_aux_weight=0.2),
}


def main(home: Path = Path("runs/studies/pswrec_v13")) -> None:
    """Train every setting, and compare them on the test examples."""
    predictions = {}
    for name, changes in CASES.items():
        output = home / name / "seed-42"
        minionerec.run_stage("train-sequential", "lastfm/sequential#pswrec_v13", seed=42, output=output, **changes)
        predictions[name] = output
    about = {"corpus": DATA, "protocol": "a", "reference": "lastfm", "title": "PSWRec V13 on LastFM"}
    print(minionerec.run_stage("report", predictions=predictions, **about, output=home / "report").text)


if __name__ == "__main__":
    main()
