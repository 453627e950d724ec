"""Evaluation by constrained beam search: `python scripts/eval_beam.py --beams 50`."""

from minionerec.core.config import parse_config, run_command
from minionerec.evaluation.config import EvalConfig

DEMO = "configs/demo/eval_grpo.yaml"


def main() -> None:
    config = parse_config(EvalConfig, "Recommend by constrained beam search and measure.", demo=DEMO)
    from minionerec.evaluation.predict import run_eval

    result = run_eval(config)
    print(result.table)
    print(f"predictions: {result.output}")


if __name__ == "__main__":
    run_command(main)
