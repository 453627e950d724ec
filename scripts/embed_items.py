"""Turn item texts into vectors: `python scripts/embed_items.py [--config FILE.yaml] [--encoder NAME]`."""

from minionerec.cli.stages import main

if __name__ == "__main__":
    main("embed-items")
