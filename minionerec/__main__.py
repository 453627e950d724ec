"""`python -m minionerec` is the `minionerec` command."""

from minionerec.pipeline.cli.main import main

if __name__ == "__main__":
    main()
