"""Set tables of semantic IDs side by side on one page: `python scripts/sid_report.py [--config FILE.yaml]`."""

from minionerec.cli.stages import main

if __name__ == "__main__":
    main("sid-report")
