"""Reinforcement learning: `accelerate launch scripts/grpo.py [--config FILE.yaml]`."""

from minionerec.pipeline.cli.command import main

if __name__ == "__main__":
    main("grpo")
