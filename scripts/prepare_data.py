"""Turn a source of items and interactions into a corpus: `python scripts/prepare_data.py [--config FILE.yaml]`."""

from minionerec.cli.stages import main

if __name__ == "__main__":
    main("prepare-data")
