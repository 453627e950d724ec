"""What the columns of a table hold, inferred from their texts."""

import pandas as pd

from minionerec.data.names import CATEGORY, IGNORE, NUMBER, TAGS, TEXT, TIME

_SEPARATORS = r"\s*[|;,]\s*"
_OFTEN = 2  # rows that each value has on average, at least, in a column of categories
_SHARE = 0.98  # of the values of a column of numbers or times


def column_role(texts: pd.Series) -> str:
    """The role of a column.

    Args:
        texts: A text for each row; None or "" where there is none.

    Returns:
        "number" or "time" where nearly all texts are numbers or ISO dates; "category" where each text stands in two
        rows or more on average; "tags" where that is true of their parts between "|", ";" or ","; "text" otherwise;
        "ignore" where no row has a text, or all have the same.

    Example:
        >>> column_role(pd.Series(["Acme", "Bolt", "Acme", "Bolt", None]))
        'category'
    """
    filled = texts.dropna()
    filled = filled[filled != ""].astype(str)
    distinct = filled.nunique()
    if distinct == 0 or (distinct == 1 and len(filled) == len(texts)):
        return IGNORE
    if pd.to_numeric(filled, errors="coerce").notna().mean() >= _SHARE:
        return NUMBER
    dates = filled.where(filled.str.match(r"\d{4}-\d"))
    if pd.to_datetime(dates, errors="coerce", format="ISO8601", utc=True).notna().mean() >= _SHARE:
        return TIME
    if _OFTEN * distinct <= len(filled):
        return CATEGORY
    parts = filled.str.split(_SEPARATORS, regex=True).explode()
    if len(parts) >= _OFTEN * len(filled) and _OFTEN * parts.nunique() <= len(parts):
        return TAGS
    return TEXT


def column_roles(items: pd.DataFrame, known: tuple[str, ...]) -> dict[str, str]:
    """The role of each column of a table but some that are known; see `column_role`."""
    return {str(name): column_role(items[name]) for name in items.columns if name not in known}
