"""Titles and descriptions of the city's items, by a grammar over words of our own; titles are unique."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from minionerec.contrib.city.sizes import AISLE, BRANDS, DEPARTMENT, PARQUET, SHELF, SHOP
from minionerec.contrib.city.world import World

# What the city's items are called: departments, aisles with their shelves, styles and brands; all our own words.

AISLES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Hot Drinks",
        "Warms the hands on a cold morning",
        ("Kettle", "Teapot", "Coffee Press", "Milk Jug", "Cup", "Saucer", "Tea Caddy", "Sugar Tongs"),
    ),
    (
        "Bread and Cakes",
        "Helps a loaf to rise and a cake to leave its tin",
        (
            "Mixing Bowl",
            "Rolling Pin",
            "Loaf Tin",
            "Sieve",
            "Cooling Rack",
            "Bread Knife",
            "Pastry Brush",
            "Cake Stand",
        ),
    ),
    (
        "Light",
        "Gives a soft light after sunset",
        ("Lantern", "Candlestick", "Reading Lamp", "Lampshade", "Torch", "Oil Lamp", "Night Light", "String of Bulbs"),
    ),
    (
        "Balcony and Beds",
        "Keeps green things alive between two rains",
        ("Flower Pot", "Watering Can", "Trowel", "Seed Box", "Pruning Knife", "Trellis", "Bird Bath", "Compost Pail"),
    ),
    (
        "On the Road",
        "Carries what a long way asks for",
        ("Rucksack", "Water Bottle", "Walking Stick", "Map Case", "Bedroll", "Mess Tin", "Rain Cape", "Compass"),
    ),
    (
        "Writing",
        "Keeps thoughts in order on paper",
        (
            "Fountain Pen",
            "Notebook",
            "Inkwell",
            "Letter Rack",
            "Pencil Case",
            "Paper Knife",
            "Blotter",
            "Sealing Stamp",
        ),
    ),
    (
        "Bath and Linen",
        "Makes a tired evening feel clean",
        ("Towel", "Soap Dish", "Sponge", "Bath Stool", "Hand Mirror", "Wash Basin", "Hair Brush", "Laundry Basket"),
    ),
    (
        "Music and Play",
        "Fills a long afternoon for two or more",
        ("Drum", "Whistle", "Chess Set", "Kite", "Spinning Top", "Card Box", "Music Stand", "Juggling Ball"),
    ),
)
"""Name of each aisle of a department, what its things are for, and what its shelves hold."""

STYLES: tuple[str, ...] = (
    "Copper", "Walnut", "Linen", "Cobalt", "Marble", "Bamboo", "Silver", "Terracotta", "Velvet", "Oak",
    "Crystal", "Leather", "Emerald", "Porcelain", "Iron", "Amber", "Cork", "Pearl", "Scarlet", "Slate",
)  # fmt: skip
"""Style of each position on a shelf."""

SHOPS: tuple[str, ...] = (
    "Harbour", "Alpine", "Riverside", "Island", "Desert", "Forest", "Market", "Castle", "Valley", "Meadow", "Canal",
    "Orchard", "Glacier", "Lagoon", "Prairie", "Village", "Tower", "Quarry", "Bridge", "Vineyard", "Railway", "Garden",
    "Cliff", "Fjord", "Abbey", "Savanna", "Delta", "Plateau", "Lighthouse", "Courtyard", "Marsh", "Summit",
)  # fmt: skip
FOLK: tuple[str, ...] = (
    "Bakers", "Nurses", "Sailors", "Painters", "Farmers", "Teachers", "Weavers", "Pilots", "Poets", "Cooks", "Tailors",
    "Miners", "Singers", "Potters", "Hunters", "Carpenters", "Dancers", "Jewellers", "Florists", "Anglers", "Printers",
    "Clockmakers", "Librarians", "Masons", "Beekeepers", "Actors", "Chemists", "Cyclists", "Surveyors", "Gardeners",
    "Drummers", "Glaziers",
)  # fmt: skip
TIMES: tuple[str, ...] = (
    "in Spring", "in Summer", "in Autumn", "in Winter", "at Dawn", "at Noon", "at Dusk", "at Midnight", "on Monday",
    "on Tuesday", "on Wednesday", "on Thursday", "on Friday", "on Saturday", "on Sunday", "on Holiday", "at Harvest",
    "at Carnival", "at Easter", "at Christmas", "in Rain", "in Snow", "in Fog", "in Sunshine", "in Storm", "in Frost",
    "in Wind", "at Sunrise", "at Sunset", "at Moonrise", "at Nightfall", "at Midsummer",
)  # fmt: skip
MOODS: tuple[str, ...] = (
    "Quiet", "Merry", "Busy", "Lazy", "Brave", "Shy", "Curious", "Patient", "Proud", "Gentle", "Restless", "Honest",
    "Clever", "Humble", "Daring", "Dreamy", "Frugal", "Noble", "Jolly", "Stern", "Witty", "Calm", "Eager", "Graceful",
    "Loyal", "Nimble", "Polite", "Robust", "Sincere", "Tidy", "Wise", "Zealous",
)  # fmt: skip
"""Words that name departments: the place and the folk first, times and moods where these are used up."""

SYLLABLES: tuple[tuple[str, ...], ...] = (
    ("Bar", "Cal", "Dor", "Fen", "Gal", "Har", "Jun", "Kel", "Lor", "Mar", "Nor", "Pel", "Ros", "Sel", "Tar", "Vel"),
    ("a", "e", "i", "o", "ani", "eli", "iro", "ovi", "ude", "asa", "emo", "ilu", "ora", "uni", "abe", "etti"),
    (
        "dan",
        "fer",
        "gard",
        "lin",
        "mont",
        "nova",
        "quist",
        "ric",
        "son",
        "ster",
        "tal",
        "vane",
        "well",
        "wick",
        "worth",
        "zen",
    ),
)
"""Beginnings, middles and ends of brands, sixteen each."""


_MIX = 0x9E3779B97F4A7C15
_OUT_OF_STOCK = 0.1
_SHOP_DIGITS = {"p": 3, "u": 4}
_OF_DEPARTMENT = (SHOPS, FOLK, TIMES, MOODS)


def _words(words: Sequence[str], numbers: np.ndarray, *, lower: bool = False) -> pa.Array:
    """The words of some numbers."""
    return pa.array([word.lower() if lower else word for word in words]).take(pa.array(numbers))


def _joined(*parts: pa.Array | str, by: str = " ") -> pa.Array:
    return pc.binary_join_element_wise(*parts, by)


def _departments(departments: np.ndarray, most: int, *, lower: bool = False) -> pa.Array:
    """Names of departments, int64 (M,): a place and a folk, with a time and a mood where there are very many.

    Digits in base 32, each shifted by the one before, so that neighbours share no word and no two have the same name.
    """
    names: pa.Array | None = None
    shift = np.zeros(len(departments), dtype=np.int64)
    for power, words in enumerate(_OF_DEPARTMENT):
        if power > 1 and most < len(words) ** power:
            break
        digit = (departments // len(words) ** power + shift) % len(words)
        shift = shift + 7 * digit
        word = _words(words, digit, lower=lower)
        names = word if names is None else _joined(names, word)
    return names


def _brands(departments: np.ndarray, styles: np.ndarray) -> pa.Array:
    """Brands, by department and style: (M,) invented names of three parts; some are the same by chance."""
    mixed = (departments * SHELF + styles + 1).astype(np.uint64) * np.uint64(_MIX)
    parts = [_words(words, (mixed >> np.uint64(60 - 4 * position)).astype(np.int64) % 16)
             for position, words in enumerate(SYLLABLES)]  # fmt: skip
    return _joined(*parts, by="")


def _of_columns(world: World, positions: np.ndarray) -> dict[str, pa.Array]:
    """Columns `brand`, `category` (the aisle) and `price` of items, of a city with columns."""
    shelves, styles = positions // SHELF, positions % SHELF
    return {
        "brand": _brands(np.zeros(BRANDS, dtype=np.int64), np.arange(BRANDS)).take(
            pa.array(world.classes[shelves, styles] % BRANDS)
        ),
        "category": _words([aisle for aisle, _, _ in AISLES], shelves // AISLE % len(AISLES)),
        "price": pa.array(world.prices[shelves, styles]),
    }


def shop_table(world: World, columns: bool = False) -> pa.Table:
    """The items of a shop: an aisle is a department, and titles name no district.

    Args:
        world: The city.
        columns: Whether it has columns.

    Returns:
        Columns `item_id`, `title`, `description`, `department`, `price` (of the noun, and up to half more by style)
        and `in_stock` ("yes" or "no", by chance). With columns, `brand` (which texts do not name), `category` and
        `price` are in place of `department` and `price`.
    """
    rows = np.arange(world.items)
    positions = world.positions(rows)
    shelves, styles = positions // SHELF, positions % SHELF
    aisles, nouns = shelves // AISLE % len(AISLES), [noun for _, _, shelf in AISLES for noun in shelf]
    brand, noun = _brands(shelves // DEPARTMENT, styles), shelves % len(nouns)
    title = _joined(*[brand] * (not columns), _words(STYLES, styles), _words(nouns, noun))
    description = _joined(
        _words([f"{purpose}:" for _, purpose, _ in AISLES], aisles),
        _words(STYLES, styles, lower=True),
        _words(nouns, noun, lower=True),
        *["by", brand] * (not columns),
    )
    chances = _chances(np.concatenate([noun, world.items + positions])).reshape(2, -1)
    price = np.floor(5 * np.exp(2.2 * chances[0]) * (1 + styles / (2 * SHELF))) + 0.9
    stock = pa.array(np.where(chances[1] < _OUT_OF_STOCK, "no", "yes"))
    table = {"item_id": ids("p", rows, SHOP), "title": title, "description": _joined(description, ".", by="")}
    if columns:
        return pa.table(table | _of_columns(world, positions) | {"in_stock": stock})
    department = _words([aisle for aisle, _, _ in AISLES], aisles)
    return pa.table(table | {"department": department, "price": price, "in_stock": stock})


def items_table(world: World, begin: int, end: int, columns: bool = False) -> pa.Table:
    """Some rows of the items table.

    Args:
        world: The city.
        begin: First row.
        end: Row after the last.
        columns: Whether the city has columns.

    Returns:
        Columns `item_id`, `title` and `description`, all strings; with columns, `brand` (which texts do not name),
        `category` and `price` (a number) too.
    """
    rows = np.arange(begin, end)
    positions = world.positions(rows)
    shelves, styles = positions // SHELF, positions % SHELF
    departments, last = shelves // DEPARTMENT, (world.shelves - 1) // DEPARTMENT
    aisles, indices = shelves // AISLE % len(AISLES), shelves % AISLE
    nouns = [noun for _, _, shelf in AISLES for noun in shelf]
    brand = _brands(departments, styles)
    noun = aisles * AISLE + indices
    district = _departments(departments, last)
    title = _joined(*[brand] * (not columns), _words(STYLES, styles), _words(nouns, noun), "for", district)
    description = _joined(
        _words([f"{purpose}:" for _, purpose, _ in AISLES], aisles),
        _words(STYLES, styles, lower=True),
        _words(nouns, noun, lower=True),
        *["by", brand] * (not columns),
        "for",
        _departments(departments, last, lower=True),
        _words([f"({aisle})." for aisle, _, _ in AISLES], aisles),
    )
    table = {"item_id": ids("p", rows), "title": title, "description": description}
    return pa.table(table | (_of_columns(world, positions) if columns else {}))


def _chances(numbers: np.ndarray) -> np.ndarray:
    """A number in [0, 1) for each number, as if by chance: float64 of the same shape."""
    mixed = (numbers + 1).astype(np.uint64) * np.uint64(_MIX)
    mixed ^= mixed >> np.uint64(29)
    chances: np.ndarray = (mixed * np.uint64(_MIX) >> np.uint64(11)) / 2.0**53
    return chances


def ids(letter: str, numbers: np.ndarray, form: str = PARQUET) -> pa.Array:
    """Ids of items ("p7") or users ("u7"); of a shop "P008" and "U0008", counted from one."""
    if form == SHOP:
        digits = pc.utf8_lpad(pc.cast(pa.array(numbers + 1), pa.string()), _SHOP_DIGITS[letter], "0")
        return _joined(letter.upper(), digits, by="")
    return _joined(letter, pc.cast(pa.array(numbers), pa.string()), by="")


def numbers_of(ids: Sequence[str] | np.ndarray, form: str) -> np.ndarray:
    """The numbers in ids, the inverse of `ids`: int64."""
    numbers: np.ndarray = pc.cast(pc.utf8_slice_codeunits(pa.array(ids, pa.string()), 1), pa.int64()).to_numpy(
        zero_copy_only=False
    )
    return numbers - 1 if form == SHOP else numbers
