"""Write report.md and report.html from finished predictions: `python scripts/report.py [--config FILE.yaml]`."""

from minionerec.cli.stages import main

if __name__ == "__main__":
    main("report")
