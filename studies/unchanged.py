"""Whether a change of structure changed results: the demo's fingerprints and the figures of one Industrial run.

    minionerec run demo && minionerec run industrial/catalogue
    python studies/unchanged.py --write studies/unchanged.json      # before the change
    python studies/unchanged.py --compare studies/unchanged.json    # after it, from runs made anew

Parquet files are compared by their content, for the bytes of a file also depend on its writer; JSON files by what they
say. Figures of Industrial are those of the validation rows, from the log of the run with the best checkpoint.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

import pandas as pd

DEMO = Path("runs/demo")
CATALOGUE = Path("runs/industrial/best/catalogue")
EVALUATIONS = ("eval_catalogue", "eval_sft", "eval_grpo")


def digest(text: str) -> str:
    """SHA-256 of a text, as 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def table_digest(path: Path) -> str:
    """SHA-256 of a table's content: its columns, and every value as written with all its digits."""
    frame = pd.read_parquet(path)
    return digest(frame.to_csv(index=False, float_format="%.9g"))


def json_digest(path: Path) -> str:
    """SHA-256 of what a JSON file says, whatever its line breaks and the order of its keys."""
    return digest(json.dumps(json.loads(path.read_text(encoding="utf-8")), sort_keys=True))


def collect(catalogue: Path) -> dict[str, object]:
    """Everything that must stay: name to fingerprint or figures."""
    found: dict[str, object] = {
        "demo SIDs": json_digest(DEMO / "sids" / "index.json"),
        "demo SFT weights": hashlib.sha256((DEMO / "sft" / "model.safetensors").read_bytes()).hexdigest(),
        "demo GRPO weights": hashlib.sha256((DEMO / "grpo" / "model.safetensors").read_bytes()).hexdigest(),
    }
    for name in EVALUATIONS:
        found[f"demo {name} predictions"] = table_digest(DEMO / name / "predictions.parquet")
        found[f"demo {name} metrics"] = json_digest(DEMO / name / "metrics.json")
    if catalogue.is_dir():
        counts = json.loads((catalogue / "manifest.json").read_text(encoding="utf-8"))["counts"]
        found["Industrial, catalogue model, seed 42, validation"] = {
            **counts["best"],
            "best_step": counts["best_step"],
        }
    return found


def main() -> int:
    """Write what there is, or compare it with what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="file to write")
    parser.add_argument("--compare", type=Path, help="file to compare with")
    parser.add_argument("--catalogue", type=Path, default=CATALOGUE, help="checkpoint of the Industrial run")
    given = parser.parse_args()
    found = collect(given.catalogue)
    if given.write:
        given.write.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{len(found)} entries: {given.write}")
    if not given.compare:
        return 0
    before = json.loads(given.compare.read_text(encoding="utf-8"))
    differing = [name for name in before if before[name] != found.get(name)]
    for name in before:
        print(f"{'DIFFERS' if name in differing else 'equal':<8}{name}")
        if name in differing:
            print(f"  before {before[name]}\n  now    {found.get(name)}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
