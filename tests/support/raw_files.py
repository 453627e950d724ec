"""Raw review files made from known interactions, in the forms of the Amazon collections."""

import gzip
import json
from pathlib import Path


def amazon_2018(user, item, time):
    text = {"overall": 5.0, "verified": True, "style": {"Size:": " M"}, "reviewText": f'He said "{item}"\nand {{left}}'}
    return {**text, "reviewerID": user, "asin": item, "unixReviewTime": time}


def amazon_2018_item(item, title, description):
    text = {"title": title, "description": [description] if description else [], "brand": "Acme"}
    return {"category": ["Shop", "Things"], "tech1": "", **text, "also_buy": ["x"], "asin": item}


def amazon_2023(user, item, time):
    text = {"rating": 4.0, "title": "Good", "text": "…", "images": [], "verified_purchase": True}
    return {**text, "asin": f"{item}-blue", "parent_asin": item, "user_id": user, "timestamp": time * 1000}


def amazon_2023_item(item, title, description):
    text = {"title": title, "description": [description] if description else [], "store": "Acme"}
    more = {"main_category": "Shop", "average_rating": 4.1, "features": ["strong"], "details": {"Colour": "blue"}}
    return {**more, **text, "categories": ["Shop", "Things"], "parent_asin": item}


MAKERS = {"amazon2018": (amazon_2018, amazon_2018_item), "amazon2023": (amazon_2023, amazon_2023_item)}


def write_amazon(folder: Path, edition: str, interactions, items, suffix=".json.gz") -> dict[str, str]:
    """Write (user, item, seconds) and (item, title, description) as an edition's two files; their settings."""
    review, record = MAKERS[edition]
    paths = {"interactions": folder / f"reviews{suffix}", "items": folder / f"meta{suffix}"}
    for name, make, rows in (("interactions", review, interactions), ("items", record, items)):
        write_text(paths[name], "".join(json.dumps(make(*row)) + "\n" for row in rows))
    return {name: str(path) for name, path in paths.items()}


def write_text(path: Path, text: str) -> None:
    content = text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def read_text(path: Path) -> str:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
