"""Evaluation by constrained beam search: `python scripts/eval_beam.py --beams 50 [--config FILE.yaml]`."""

from minionerec.pipeline.cli.command import main

if __name__ == "__main__":
    main("eval-beam")
