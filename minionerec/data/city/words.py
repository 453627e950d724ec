"""What the city's items are called: departments, aisles with their shelves, styles and brands; all our own words."""

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
"""Style of each place on a shelf."""

PLACES: tuple[str, ...] = (
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
