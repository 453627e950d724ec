"""Supervised fine-tuning: `accelerate launch scripts/sft.py [--config FILE.yaml]`."""

from minionerec.pipeline.cli.command import main

if __name__ == "__main__":
    main("sft")
