"""Names of searches and scores in settings, in a module that is quick to import for `--help`."""

from minionerec.core.errors import ConfigError

SEARCHES = ("beam", "exact")
SCORES = ("full", "renormalised")
COMBINATIONS = ("steps", "rerank")


def check_length_penalty(search: str, length_penalty: float) -> None:
    """Check that a search supports a length penalty; a `ConfigError` if it does not."""
    if length_penalty and search != "beam":
        raise ConfigError(
            f"length_penalty is {length_penalty:g}, which search {search} does not support. Use search beam."
        )
