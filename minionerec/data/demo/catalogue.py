"""What the demo shop sells: departments, product lines and collections."""

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
