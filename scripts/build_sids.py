"""Give every item of a corpus a semantic ID: `python scripts/build_sids.py [--config FILE.yaml]`."""

from minionerec.core.config import parse_config, run_command


def main() -> None:
    """Parse, build, and say where things went."""
    from minionerec.sid.build import SidConfig, run_build_sids

    config = parse_config(SidConfig, "Give every item of a corpus a semantic ID.", demo="configs/demo/sids.yaml")
    result = run_build_sids(config)
    print(f"{result.table.n_unique} distinct SIDs of {len(result.table)} items: {result.output}")


if __name__ == "__main__":
    run_command(main)
