"""What the pages of the preference stage say alike."""

JUDGEMENT = (
    "All answers are a rater's judgement of a picture. They say nothing about the person in it, neither who that is "
    "nor what that person is like or able to do."
)
NONE = "n/a"


def percent(value: float | None) -> str:
    """A share in percent."""
    return NONE if value is None else f"{100 * value:.1f}%"


def number(value: float | None) -> str:
    """A number with three digits."""
    return NONE if value is None else f"{value:.3f}"
