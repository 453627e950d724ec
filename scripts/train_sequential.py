"""Sequential recommenders: `python scripts/train_sequential.py --model NAME --data FILE_OR_CORPUS --protocol a`."""

from minionerec.cli.stages import main

if __name__ == "__main__":
    main("train-sequential")
