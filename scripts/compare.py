"""Recommenders side by side: `python scripts/compare.py --runs SASRec=DIR WEARec=DIR --reference lastfm`."""

from minionerec.cli.stages import main

if __name__ == "__main__":
    main("compare")
