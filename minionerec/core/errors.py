"""The one family of errors that a user can mend.

Every message says what was wrong (with its value and place), what was expected, and what to do. Command-line entry
points print the message alone and exit with status 2 (`minionerec.core.commands.run_command`); anything else that
escapes is a defect of this package and keeps its traceback.
"""


class MinioneRecError(Exception):
    """Base class of every error that a user's input or settings can cause."""


class ConfigError(MinioneRecError):
    """A setting is unknown, malformed, or contradicts another setting."""


class DataError(MinioneRecError):
    """A data file is missing, malformed or inconsistent; the message names file and row."""


class ArtefactError(MinioneRecError):
    """A stage's input or output directory is missing, of another kind, incomplete, or does not belong to the rest."""
