"""Give every item of a corpus a semantic ID: `python scripts/build_sids.py [--config FILE.yaml]`."""

from minionerec.cli.stages import main

if __name__ == "__main__":
    main("build-sids")
