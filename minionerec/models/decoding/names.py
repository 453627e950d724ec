"""Names that settings give to searches and to scores; light to import, so that `--help` answers at once."""

from minionerec.core.errors import ConfigError

SEARCHES = ("beam", "exact")
SCORES = ("full", "renormalised")
COMBINATIONS = ("steps", "rerank")


def check_length_penalty(search: str, length_penalty: float) -> None:
    """Check that a search knows a length penalty.

    Raises:
        ConfigError: If it does not.
    """
    if length_penalty and search != "beam":
        raise ConfigError(
            f"length_penalty is {length_penalty:g}, which search {search} does not know. Take search beam."
        )
