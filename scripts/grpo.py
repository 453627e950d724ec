"""Reinforcement learning: `accelerate launch scripts/grpo.py [--config FILE.yaml]`."""

from minionerec.cli.stages import main

if __name__ == "__main__":
    main("grpo")
