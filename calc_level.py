"""Per-level accuracy of predicted semantic IDs: `python calc_level.py [--predictions FILE.json] [--json]`."""

from minionerec.pipeline.cli.command import main

if __name__ == "__main__":
    main("calc-level")
