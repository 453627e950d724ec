"""The demo shop: a small generated shop whose next purchase has a known probability, so results have a known ceiling.

Twelve departments hold five product lines each, and each line comes in the department's five collections (a brand
with its material and colour): 300 items. What a customer buys next depends on nothing but the last ten purchases, and
is drawn from a mixture of three:

1. *follow* (0.50): from the last item on to the same collection's next line (0.62 of it; after the last line to the
   neighbouring department), to the next collection of the same line (0.26), or two lines on (0.12);
2. *taste* (0.35): a department from those in the history, newer ones weighing more (each step back 0.85 times), and
   within it an item by its appeal, three times as much for collections that the history holds;
3. *fashion* (0.15): any item by its appeal in the whole shop.

No hidden state is left, so `demo_probabilities` is the exact distribution behind every row, and no recommender can
beat, but by luck, the ranking by these probabilities. Its expected metrics are the ceiling in `ceiling.json`.
"""

import json
import math
import os
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.core.artefacts import write_text_atomic
from minionerec.core.config import ROOT
from minionerec.data.corpus import Corpus

SEED = 12  # an unremarkable draw: on its test rows the true ranking scores within one sigma of what it may expect
N_USERS = 2_000
SHORTEST, LONGEST = 3, 14
MEMORY = 10
FOLLOW, TASTE, FASHION = 0.50, 0.35, 0.15
NEXT_LINE, NEXT_COLLECTION, LINE_AFTER_NEXT = 0.62, 0.26, 0.12
FADE = 0.85
LOYALTY = 3.0
APPEAL = (1.0, 0.8, 0.65, 0.5, 0.4)
START, SPAN = 1_704_067_200, 365 * 86_400
MEAN_GAP = 9 * 86_400
KS = (1, 3, 5, 10, 20, 50)
MARGIN = 0.5
FILES = ("items.csv", "interactions.csv", "ceiling.json")

# Department, whom it is for, lines (noun, what it does) in the order in which they are bought, collections (brand,
# material, colour).
_DEPARTMENTS: tuple[tuple[str, str, tuple[tuple[str, str], ...], tuple[tuple[str, str, str], ...]], ...] = (
    (
        "Coffee",
        "slow coffee at home",
        (
            ("Burr Grinder", "Grinds beans evenly from espresso to French press"),
            ("Pour-Over Dripper", "Brews one clear cup through a paper filter"),
            ("Gooseneck Kettle", "Pours hot water in a thin steady stream"),
            ("Brewing Scale", "Weighs grounds and water to the tenth of a gram"),
            ("Double Wall Mug", "Keeps a fresh brew warm without burning fingers"),
        ),
        (
            ("Harlow", "Brushed Steel", "Smoke Grey"),
            ("Mokkari", "Glazed Ceramic", "Cream White"),
            ("Brindle", "Walnut", "Dark Roast Brown"),
            ("Kupferhaus", "Hammered Copper", "Amber"),
            ("Tazzeo", "Borosilicate Glass", "Clear"),
        ),
    ),
    (
        "Baking",
        "bread and cakes from the home oven",
        (
            ("Mixing Bowl", "Holds a full batch of dough while it is kneaded"),
            ("Dough Whisk", "Stirs heavy batter and sourdough without clumps"),
            ("Proofing Basket", "Shapes a loaf while the yeast does its work"),
            ("Loaf Pan", "Bakes a tall sandwich loaf with a crisp crust"),
            ("Cooling Rack", "Lets air under bread and biscuits after the oven"),
        ),
        (
            ("Pandora", "Enamel", "Butter Yellow"),
            ("Crumbly", "Silicone", "Mint"),
            ("Ovenbird", "Cast Iron", "Soot Black"),
            ("Millstone", "Beech", "Natural Flour"),
            ("Patiss", "Anodised Aluminium", "Silver Rose"),
        ),
    ),
    (
        "Table",
        "a table set for guests",
        (
            ("Dinner Plate Set", "Serves a main course for four"),
            ("Soup Bowl Set", "Deep enough for broth and noodles"),
            ("Cutlery Set", "Knives, forks and spoons for four guests"),
            ("Tablecloth", "Covers a dining table for six"),
            ("Candle Holder", "Lights an evening meal with two candles"),
        ),
        (
            ("Fennel", "Stoneware", "Sage"),
            ("Luneville", "Porcelain", "Ivory"),
            ("Hygga", "Linen", "Oat"),
            ("Bistrot", "Zinc", "Pewter"),
            ("Azulejo", "Majolica", "Cobalt Tile"),
        ),
    ),
    (
        "Garden",
        "beds, borders and balconies",
        (
            ("Seed Tray", "Starts forty seedlings on a window sill"),
            ("Hand Trowel", "Digs planting holes in firm soil"),
            ("Pruning Shears", "Cuts green stems and roses cleanly"),
            ("Watering Can", "Waters young plants with a gentle rose"),
            ("Planter Box", "Grows herbs and tomatoes on a balcony"),
        ),
        (
            ("Thornbury", "Forged Carbon Steel", "Moss Green"),
            ("Petalo", "Recycled Plastic", "Tulip Red"),
            ("Oldacre", "Ash Wood", "Weathered Brown"),
            ("Verdi", "Galvanised Zinc", "Frost"),
            ("Terrabel", "Terracotta", "Clay Orange"),
        ),
    ),
    (
        "Camping",
        "nights under canvas",
        (
            ("Two Person Tent", "Pitches in five minutes and sheds rain"),
            ("Sleeping Bag", "Keeps a sleeper warm down to freezing"),
            ("Inflatable Mat", "Insulates from cold ground and rolls up small"),
            ("Gas Stove", "Boils half a litre in three minutes"),
            ("Headlamp", "Lights a trail for thirty hours"),
        ),
        (
            ("Fjellvik", "Ripstop Nylon", "Glacier Blue"),
            ("Sierrado", "Cotton Canvas", "Desert Sand"),
            ("Nightjar", "Ultralight Dyneema", "Raven"),
            ("Tamarack", "Waxed Polyester", "Pine"),
            ("Outbacka", "Titanium", "Ochre"),
        ),
    ),
    (
        "Running",
        "road and trail runs in any weather",
        (
            ("Running Shoes", "Cushions every stride on road and gravel"),
            ("Compression Socks", "Supports calves over long distances"),
            ("Running Shorts", "Dries fast and holds a key"),
            ("Hydration Vest", "Carries a litre of water without bouncing"),
            ("Sports Watch", "Records pace, distance and pulse"),
        ),
        (
            ("Velocita", "Engineered Mesh", "Neon Lime"),
            ("Pacer", "Merino", "Charcoal"),
            ("Striden", "Elastane", "Coral"),
            ("Marathos", "Featherweight Knit", "Aegean"),
            ("Tempora", "Reflective Fabric", "Signal Orange"),
        ),
    ),
    (
        "Cycling",
        "commutes and weekend rides",
        (
            ("Cycling Helmet", "Protects the head with eighteen vents"),
            ("Bike Light", "Makes a rider visible from three hundred metres"),
            ("Frame Bag", "Stows tools and snacks inside the triangle"),
            ("Floor Pump", "Fills a tyre to eleven bar with a gauge"),
            ("Chain Lock", "Stops thieves with a hardened shackle"),
        ),
        (
            ("Peloton Nord", "Carbon Fibre", "Matte Black"),
            ("Girolamo", "Polished Alloy", "Celeste"),
            ("Spokesman", "Reclaimed Rubber", "Brick"),
            ("Derailla", "Cordura", "Olive"),
            ("Cadenza", "Polycarbonate", "Pearl"),
        ),
    ),
    (
        "Workshop",
        "woodworking and repairs",
        (
            ("Claw Hammer", "Drives and pulls nails with little effort"),
            ("Block Plane", "Takes thin shavings off edges and end grain"),
            ("Bench Vise", "Grips boards and pipes on the workbench"),
            ("Chisel Set", "Pares joints and hinges in hardwood"),
            ("Tool Chest", "Sorts hand tools into six drawers"),
        ),
        (
            ("Ironmonger", "Drop Forged Steel", "Anvil Grey"),
            ("Dovetail", "Hickory", "Honey"),
            ("Kerf", "Fibreglass", "Safety Yellow"),
            ("Brassworks", "Solid Brass", "Old Gold"),
            ("Mortis", "Chrome Vanadium", "Gunmetal"),
        ),
    ),
    (
        "Painting",
        "painters in oil and watercolour",
        (
            ("Sketchbook", "Takes pencil and light washes on one hundred pages"),
            ("Watercolour Set", "Mixes bright washes from twenty-four pans"),
            ("Brush Roll", "Guards twelve brushes on the way to a motif"),
            ("Tabletop Easel", "Holds a canvas at any angle"),
            ("Stretched Canvas", "Primed three times and ready for oil"),
        ),
        (
            ("Atelier Nine", "Cold Pressed Cotton", "Titanium White"),
            ("Umbra", "Sable", "Burnt Sienna"),
            ("Palettino", "Beechwood", "Cadmium"),
            ("Gouachet", "Synthetic Taklon", "Ultramarine"),
            ("Vermeil", "Belgian Flax", "Vermilion"),
        ),
    ),
    (
        "Knitting",
        "jumpers, hats and blankets made by hand",
        (
            ("Yarn Skein", "Knits a scarf from two hundred metres"),
            ("Knitting Needles", "Glides through stitches without snagging"),
            ("Stitch Markers", "Counts rows and marks decreases"),
            ("Project Bag", "Keeps wool and needles together on a train"),
            ("Blocking Mats", "Pins a finished jumper to its measure"),
        ),
        (
            ("Woolhaven", "Shetland Wool", "Heather"),
            ("Alpaquita", "Baby Alpaca", "Fawn"),
            ("Purlwise", "Bamboo", "Celadon"),
            ("Skeinery", "Mohair Silk", "Lilac"),
            ("Cottonmere", "Organic Cotton", "Sky"),
        ),
    ),
    (
        "Desk",
        "a home office that stays tidy",
        (
            ("Desk Lamp", "Lights paper and keyboard without glare"),
            ("Monitor Stand", "Lifts a screen to eye level"),
            ("Mechanical Keyboard", "Types quietly with tactile switches"),
            ("Desk Organiser", "Sorts pens, clips and notes"),
            ("Footrest", "Eases the back through a long meeting"),
        ),
        (
            ("Studio Orbit", "Powder Coated Metal", "Graphite"),
            ("Papyra", "Cork", "Toffee"),
            ("Lumeno", "Frosted Acrylic", "Arctic"),
            ("Officina", "Oak Veneer", "Blond"),
            ("Cubicle Club", "Wool Felt", "Mustard"),
        ),
    ),
    (
        "Bath",
        "a calm hour in the bathroom",
        (
            ("Bath Towel", "Dries quickly and softens with each wash"),
            ("Soap Dish", "Drains so that a bar lasts longer"),
            ("Shower Caddy", "Hangs shampoo and sponge within reach"),
            ("Bath Mat", "Grips wet tiles and warms bare feet"),
            ("Laundry Hamper", "Hides two loads behind a lid"),
        ),
        (
            ("Lagoona", "Turkish Terry", "Aqua"),
            ("Pumice", "Travertine", "Limestone"),
            ("Onsen", "Hinoki Cedar", "Steam"),
            ("Sudsworth", "Waffle Weave", "Lavender"),
            ("Marisma", "Seagrass", "Driftwood"),
        ),
    ),
)
N_DEPARTMENTS, N_LINES, N_COLLECTIONS = len(_DEPARTMENTS), 5, 5
N_ITEMS = N_DEPARTMENTS * N_LINES * N_COLLECTIONS


def item_number(department: int, line: int, collection: int) -> int:
    """Item index of one collection of one line; lines and departments go round.

    Example:
        >>> item_number(0, 0, 0), item_number(0, 1, 0), item_number(1, 0, 0), item_number(12, 0, 6)
        (0, 5, 25, 1)
    """
    return ((department % N_DEPARTMENTS) * N_LINES + line % N_LINES) * N_COLLECTIONS + collection % N_COLLECTIONS


@cache
def _process() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Follow matrix (N, N), appeal within the department (N,), appeal in the whole shop (N,): each a distribution."""
    follow = np.zeros((N_ITEMS, N_ITEMS))
    appeal = np.zeros(N_ITEMS)
    for department in range(N_DEPARTMENTS):
        for line in range(N_LINES):
            for collection in range(N_COLLECTIONS):
                item = item_number(department, line, collection)
                following = item_number(department + (line == N_LINES - 1), line + 1, collection)
                follow[item, following] += NEXT_LINE
                follow[item, item_number(department, line, collection + 1)] += NEXT_COLLECTION
                follow[item, item_number(department, line + 2, collection)] += LINE_AFTER_NEXT
                # Which line and which collection appeal most differs from department to department.
                appeal[item] = (
                    APPEAL[(line + 2 * department) % N_LINES] * APPEAL[(collection + 3 * department) % N_COLLECTIONS]
                )
    within = appeal / appeal[: N_LINES * N_COLLECTIONS].sum()  # each department has the same sum
    shares = np.array([1 / (5 + rank) for rank in range(N_DEPARTMENTS)])
    overall = within * np.repeat(shares / shares.sum(), N_LINES * N_COLLECTIONS)
    for table in (follow, within, overall):
        table.flags.writeable = False
    return follow, within, overall


def demo_probabilities(history: Sequence[int] | np.ndarray) -> np.ndarray:
    """The true distribution of the next purchase.

    Args:
        history: Item indices, oldest first; only the last ten matter. Empty for a customer's first purchase.

    Returns:
        float64 (N,), summing to one.

    Example:
        >>> chances = demo_probabilities([0])
        >>> len(chances), int(chances.argmax()) == item_number(0, 1, 0), round(float(chances.sum()), 9)
        (300, True, 1.0)
    """
    follow, within, overall = _process()
    recent = np.asarray(history, dtype=np.int64)[-MEMORY:]
    if len(recent) == 0:
        return overall.copy()
    departments = recent // (N_LINES * N_COLLECTIONS)
    weights = np.zeros(N_DEPARTMENTS)
    np.add.at(weights, departments, FADE ** np.arange(len(recent) - 1, -1, -1.0))
    loyal = np.ones((N_DEPARTMENTS, 1, N_COLLECTIONS))
    loyal[departments, 0, recent % N_COLLECTIONS] = LOYALTY
    taste = within.reshape(N_DEPARTMENTS, N_LINES, N_COLLECTIONS) * loyal  # (departments, lines, collections)
    taste *= (weights / weights.sum() / taste.sum(axis=(1, 2)))[:, None, None]
    return FOLLOW * follow[recent[-1]] + TASTE * taste.reshape(-1) + FASHION * overall


def shop_items() -> list[dict[str, str]]:
    """The catalogue, in item order: item_id, title, description, department."""
    items: list[dict[str, str]] = []
    for department, occasion, lines, collections in _DEPARTMENTS:
        for noun, purpose in lines:
            for brand, material, colour in collections:
                items.append(
                    {
                        "item_id": f"P{len(items) + 1:03d}",
                        "title": f"{brand} {noun}, {material}, {colour}",
                        "description": f"{purpose}. {department}: {material.lower()} in {colour.lower()}, "
                        f"from {brand}'s collection for {occasion}.",
                        "department": department,
                    }
                )
    return items


def generate_shop(seed: int = SEED, n_users: int = N_USERS) -> list[tuple[int, int, int]]:
    """Draw all purchases.

    How many purchases a customer makes (3 to 14, each as likely) and when says nothing of what is bought. Only
    `random.Random.random` is drawn from, whose numbers Python promises never to change.

    Args:
        seed: Seed of the whole shop.
        n_users: Number of customers.

    Returns:
        (user number from 0, item index, seconds since 1970 UTC), sorted by time, then user.
    """
    rng = random.Random(seed)
    purchases = []
    for user in range(n_users):
        time = START + rng.random() * SPAN
        history: list[int] = []
        for _ in range(SHORTEST + int(rng.random() * (LONGEST - SHORTEST + 1))):
            sums = np.cumsum(demo_probabilities(history))
            item = min(int(np.searchsorted(sums, rng.random() * sums[-1], side="right")), N_ITEMS - 1)
            purchases.append((user, item, int(time)))
            history.append(item)
            time += 60 - MEAN_GAP * math.log(1.0 - rng.random())
    return sorted(purchases, key=lambda purchase: (purchase[2], purchase[0]))


def _at_each_k(ranks: np.ndarray) -> dict[str, float]:
    """HR@K and NDCG@K of target ranks counted from 0, (R,)."""
    values = {}
    for k in KS:
        hit = ranks < k
        values[f"hr@{k}"] = float(hit.mean())
        values[f"ndcg@{k}"] = float(np.where(hit, 1 / np.log2(ranks + 2.0), 0.0).mean())
    return values


def shop_ceiling(corpus: Corpus) -> dict[str, Any]:
    """What the best possible ranking may expect on the demo's test rows, and what popularity gets.

    Given the histories, the ranking by true probability has the largest expected value of every metric here. Its
    expected HR@K is the mean over rows of the sum of the K largest probabilities; NDCG@K discounts each by
    1 / log2(rank + 1).

    Args:
        corpus: The demo's corpus; its test rows are used, and its training targets for popularity.

    Returns:
        Metric such as "ndcg@10" → value, for: `ceiling`, the expectation; `sigma`, one standard deviation of what the
        same ranking gets when the targets are drawn anew; `drawn`, what it gets on the targets as they were drawn;
        `popularity`, what the most frequent training targets get on them; `must_reach`, popularity plus `margin` of
        the gap to the ceiling. All to six digits.
    """
    rows = corpus.rows("test")
    targets = rows["target"].to_numpy(np.int64)
    probabilities = np.stack([demo_probabilities(history) for history in rows["history"]])  # (R, N)
    order = np.argsort(-probabilities, axis=1, kind="stable")  # (R, N)
    ranked = np.take_along_axis(probabilities, order, axis=1)
    ceiling, sigma = {}, {}
    for k in KS:
        for name, gains in (("hr", np.ones(k)), ("ndcg", 1 / np.log2(np.arange(2, k + 2)))):
            mean = ranked[:, :k] @ gains  # (R,)
            variance = ranked[:, :k] @ gains**2 - mean**2
            ceiling[f"{name}@{k}"] = float(mean.mean())
            sigma[f"{name}@{k}"] = float(np.sqrt(variance.sum()) / len(rows))
    drawn = _at_each_k((order == targets[:, None]).argmax(axis=1))
    popularity = _at_each_k(np.argsort(np.argsort(-corpus.popularity(), kind="stable"))[targets])
    must_reach = {key: popularity[key] + MARGIN * (ceiling[key] - popularity[key]) for key in ceiling}
    tables = {"ceiling": ceiling, "sigma": sigma, "drawn": drawn, "popularity": popularity, "must_reach": must_reach}
    rounded = {name: {key: round(value, 6) for key, value in table.items()} for name, table in tables.items()}
    return {"rows": len(rows), "margin": MARGIN, **rounded}


def demo_directory() -> Path:
    """Where the committed demo lies: `data/demo` here, else in the project's own directory."""
    here = Path("data/demo")
    return here if (here / FILES[0]).is_file() else ROOT / here


def write_shop(directory: str | os.PathLike[str], seed: int = SEED) -> None:
    """Generate the shop and write `items.csv`, `interactions.csv` and `ceiling.json`.

    Args:
        directory: Where to; `data/demo` for the committed files.
        seed: Seed of the shop.

    Raises:
        ArtefactError: If the place cannot be written.
    """
    from minionerec.data.build import build_corpus
    from minionerec.data.sources.tables import read_tables

    items = shop_items()
    lines = ["item_id,title,description,department"]
    lines += [
        ",".join([item["item_id"], *(f'"{item[key]}"' for key in ("title", "description")), item["department"]])
        for item in items
    ]
    items_path, interactions_path, ceiling_path = (Path(directory) / name for name in FILES)
    write_text_atomic(items_path, "\n".join(lines) + "\n")
    lines = ["user_id,item_id,timestamp"]
    lines += [f"U{user + 1:04d},{items[item]['item_id']},{time}" for user, item, time in generate_shop(seed)]
    write_text_atomic(interactions_path, "\n".join(lines) + "\n")
    corpus = build_corpus(read_tables(interactions_path, items_path)).corpus()
    content = {"seed": seed, "split": corpus.split, **shop_ceiling(corpus)}
    write_text_atomic(ceiling_path, json.dumps(content, indent=1) + "\n")
