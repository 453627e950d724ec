"""Reinforcement learning: `accelerate launch scripts/grpo.py --config configs/demo/grpo.yaml`."""

from minionerec.core.config import parse_config, run_command
from minionerec.training.config import GrpoConfig

DEMO = "configs/demo/grpo.yaml"


def main() -> None:
    config = parse_config(GrpoConfig, "Sharpen a checkpoint by GRPO under ranking rewards.", demo=DEMO)
    from minionerec.training.grpo import run_grpo

    result = run_grpo(config)
    print(f"checkpoint: {result.output}")


if __name__ == "__main__":
    run_command(main)
