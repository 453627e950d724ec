"""Train a catalogue model: `python scripts/train_catalogue.py --config FILE.yaml`."""

from minionerec.cli.stages import main

if __name__ == "__main__":
    main("train-catalogue")
