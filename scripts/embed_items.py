"""Turn item texts into vectors: `python scripts/embed_items.py [--config FILE.yaml] [--encoder NAME]`."""

from minionerec.core.config import parse_config, run_command


def main() -> None:
    """Parse, encode, and say where things went."""
    from minionerec.embed.vectors import EmbedConfig, run_embed

    config = parse_config(EmbedConfig, "Turn the text of each item into a vector.")
    result = run_embed(config)
    print(f"vectors of {result.counts['items']} items, {result.counts['dimensions']} wide: {result.output}")


if __name__ == "__main__":
    run_command(main)
