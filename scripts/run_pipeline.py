"""Run all stages of a pipeline: `python scripts/run_pipeline.py [configs/demo] [--from STAGE] [--until STAGE]`."""

from minionerec.cli.main import run
from minionerec.core.config import run_command

if __name__ == "__main__":
    run_command(run)
