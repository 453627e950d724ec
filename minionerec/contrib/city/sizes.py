"""Numbers of the city that settings are checked against; light to import."""

SHELF = 20
"""Items of a shelf, one of each style."""
AISLE, DEPARTMENT = 8, 64
"""Shelves of an aisle, and of a department."""
FORMS = PARQUET, SHOP = "parquet", "shop"
"""How the tables are written."""
DAY = 86_400
"""Seconds."""
FEWEST, MOST_TIMES = 2, 8
"""Smallest number of purchases of a user; largest, as a multiple of the mean."""
RETURNS = 0.2
"""Default share of a user's purchases that begin a session."""
BANDS, BRANDS = 3, 8
"""Price bands, and brands, of a city with columns."""
LEISURE = (1, 3, 7)
"""Aisles of each department whose shelves are visited more at weekends, in a city with columns."""


def seconds_a_choice(returns: float) -> int:
    """Seconds per purchase, pauses between sessions among them: more than the mean, so that days suffice.

    Args:
        returns: Share of the purchases that begin a session.
    """
    return 480 + round(3600 * returns)
