"""Names that settings give to searches and to scores; light to import, so that `--help` answers at once."""

from minionerec.core.errors import ConfigError

SEARCHES = ("beam", "exact", "stock")
SCORES = ("full", "renormalised")
COMBINATIONS = ("steps", "rerank")


def check_scores_of_search(search: str, scores: str) -> None:
    """Check that a search gives the scores that are asked for.

    Raises:
        ConfigError: If it does not.
    """
    if search == "stock" and scores != "full":
        raise ConfigError(f"scores is {scores!r}, but search stock knows the full ones alone. Give --scores full.")


def check_length_penalty(search: str, length_penalty: float) -> None:
    """Check that a search knows a length penalty.

    Raises:
        ConfigError: If it does not.
    """
    if length_penalty and search != "beam":
        raise ConfigError(
            f"length_penalty is {length_penalty:g}, which search {search} does not know. Take search beam."
        )
