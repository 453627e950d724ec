"""Names in the settings of the data: sources, splits, and quirks of the published data."""

from minionerec.core.plugins import registered_names

AMAZON = ("amazon2018", "amazon2023")
WITH_COLUMNS = ("tables", "recbole")
"""Sources whose columns settings name."""
COLUMNS = {
    "item": "item_id",
    "title": "title",
    "description": "description",
    "user": "user_id",
    "time": "timestamp",
    "event": "event",
}
"""What a column holds → its usual name; that of descriptions may be absent where it has that name, and that of events
is read only where events are predicted."""
EVENTS = 1000
"""Kinds of events at most."""
PURCHASES = ("purchase", "purchased", "buy", "order", "ordered", "transaction", "sale")
"""Names of events, in small letters, that `minionerec init` takes for the purchases of a log with other events."""
OF_ITEMS = ("item", "title", "description")
"""Those of `COLUMNS` that a table of items has."""
OF_INTERACTIONS = ("user", "item", "time")
"""Those that a table of interactions has."""
REGISTERED = registered_names("minionerec.readers")
"""Sources of installed packages."""
OPTIONAL_ITEMS = ("user_items", "recbole", *REGISTERED)
FROM_FILES = ("tables", *AMAZON, "movielens", *OPTIONAL_ITEMS)
"""Sources that are read from the paths `interactions` and `items`; those of `OPTIONAL_ITEMS` do without the latter."""
SOURCES = ("demo", "published", *FROM_FILES)

TIME_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Units of times that are numbers → ticks in a second."""

ITEM_COLUMNS = ("item_id", "title", "description")
"""Columns that the items of every corpus have; further ones are those of its source."""
CATEGORY, TAGS, NUMBER, TIME, TEXT, IGNORE = "category", "tags", "number", "time", "text", "ignore"
ROLES = (CATEGORY, TAGS, NUMBER, TIME, TEXT, IGNORE)
"""Roles of columns (`minionerec.data.roles`)."""
CODED = (CATEGORY, TAGS, NUMBER, TIME)
"""Roles of columns that models read."""
TEXT_COLUMNS = ("title", "description")
"""Columns that make an item's text where a corpus does not name others (`text_columns` of its counts)."""
SPLITS = ("train", "valid", "test")
"""The splits of every corpus; on disk the index in this order stands for the name."""

SPLIT_NAMES = {"global_time": "global time 8:1:1", "leave_last_out": "leave last out"}
"""Known ways to split → the name that result tables show."""

ENGINES = ("duckdb", *registered_names("minionerec.engines"))
"""Engines that build a corpus (`minionerec.data.engines`)."""

TIES = {"keep": "", "shuffle": ", ties shuffled", "together": ", ties together"}
"""Treatment of items with one timestamp → its part of the split's name."""

QUIRKS = {
    "published_order": "interactions of one second in the order of their users' first appearance instead of the "
    "file's; items numbered by users in that order, each from old to new",
    "published_titles": "in titles only &quot; and &amp; are resolved and no HTML is removed",
}
"""Peculiarities of the published MiniOneRec data, reproduced only on request."""

PUBLISHED_HISTORY = 10
"""Most items that a history of the published data holds."""

UNKNOWN = 0
"""The code of an unknown value of a request feature (`minionerec.data.contexts`)."""
