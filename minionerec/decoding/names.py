"""Names that settings give to searches and to scores; light to import, so that `--help` answers at once."""

SEARCHES = ("beam", "exact", "stock")
SCORES = ("full", "renormalised")
