"""Per-level accuracy of predicted semantic IDs: independent, cumulative and drop-off, at every K."""

import json
import sys

from minionerec.core.config import parse_config, run_command


def main() -> None:
    """Parse, analyse, print tables or one JSON object."""
    from minionerec.metrics.levels import LevelsConfig, run_levels

    given = any(word.split("=")[0] in ("--path", "--predictions") for word in sys.argv[1:])
    config = parse_config(LevelsConfig, __doc__ or "", demo=None if given else "configs/demo/levels.yaml")
    analysis = run_levels(config)
    if config.json:
        print(json.dumps(analysis.to_json()))
        return
    from minionerec.evaluation.metrics_table import format_level_tables

    print(format_level_tables(analysis))


if __name__ == "__main__":
    run_command(main)
