"""Numbers of the city that settings are checked against; light to import."""

SHELF = 20
"""Items of a shelf, one of each style."""
DAY = 86_400
"""Seconds."""
FEWEST, MOST_TIMES = 2, 8
"""Fewest choices of a person; most, as a multiple of the mean."""
SECONDS_A_CHOICE = 1200
"""Seconds that choices take, pauses between sessions among them: more than the mean of 840, so that days suffice."""
