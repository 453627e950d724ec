"""Turn a source of items and interactions into a corpus: checked, indexed and split."""

from minionerec.core.config import parse_config, run_command


def main() -> None:
    """Parse, prepare, say where the corpus went."""
    from minionerec.data.prepare import PrepareConfig, run_prepare

    result = run_prepare(parse_config(PrepareConfig, __doc__ or "", demo="configs/demo/data.yaml"))
    print(f"corpus: {result.output}")


if __name__ == "__main__":
    run_command(main)
