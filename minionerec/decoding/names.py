"""Names that settings give to searches and to scores; light to import, so that `--help` answers at once."""

from minionerec.core.errors import ConfigError

SEARCHES = ("beam", "exact", "stock")
SCORES = ("full", "renormalised")


def check_scores_of_search(search: str, scores: str) -> None:
    """Check that a search gives the scores that are asked for.

    Raises:
        ConfigError: If it does not.
    """
    if search == "stock" and scores != "full":
        raise ConfigError(f"scores is {scores!r}, but search stock knows the full ones alone. Give --scores full.")
