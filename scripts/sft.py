"""Supervised fine-tuning: `accelerate launch scripts/sft.py --config configs/demo/sft.yaml`."""

from minionerec.core.config import parse_config, run_command
from minionerec.training.config import SftConfig

DEMO = "configs/demo/sft.yaml"


def main() -> None:
    config = parse_config(SftConfig, "Teach a language model to speak semantic IDs.", demo=DEMO)
    from minionerec.training.sft import run_sft

    result = run_sft(config)
    print(f"checkpoint: {result.output}")


if __name__ == "__main__":
    run_command(main)
