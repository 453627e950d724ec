"""Raw review files made from known interactions, in the forms of the Amazon collections."""

import gzip
import json
from pathlib import Path


def amazon_2018(user, item, time):
    return {
        "overall": 5.0,
        "verified": True,
        "reviewerID": user,
        "asin": item,
        "style": {"Size:": " M"},
        "reviewText": f'He said "{item}"\nand {{left}}',
        "unixReviewTime": time,
    }


def amazon_2018_item(item, title, description):
    return {
        "category": ["Shop", "Things"],
        "tech1": "",
        "description": [description] if description else [],
        "title": title,
        "also_buy": ["x"],
        "brand": "Acme",
        "asin": item,
    }


def amazon_2023(user, item, time):
    return {
        "rating": 4.0,
        "title": "Good",
        "text": "…",
        "images": [],
        "asin": f"{item}-blue",
        "parent_asin": item,
        "user_id": user,
        "timestamp": time * 1000,
        "verified_purchase": True,
    }


def amazon_2023_item(item, title, description):
    return {
        "main_category": "Shop",
        "title": title,
        "average_rating": 4.1,
        "features": ["strong"],
        "description": [description] if description else [],
        "store": "Acme",
        "categories": ["Shop", "Things"],
        "details": {"Colour": "blue"},
        "parent_asin": item,
    }


MAKERS = {"amazon2018": (amazon_2018, amazon_2018_item), "amazon2023": (amazon_2023, amazon_2023_item)}


def write_amazon(folder: Path, edition: str, interactions, items, suffix=".json.gz") -> dict[str, str]:
    """Write (user, item, seconds) and (item, title, description) as an edition's two files; their settings."""
    review, record = MAKERS[edition]
    paths = {"interactions": folder / f"reviews{suffix}", "items": folder / f"meta{suffix}"}
    lines = {
        "interactions": [json.dumps(review(*visit)) for visit in interactions],
        "items": [json.dumps(record(*item)) for item in items],
    }
    for name, path in paths.items():
        write_text(path, "".join(f"{line}\n" for line in lines[name]))
    return {name: str(path) for name, path in paths.items()}


def write_text(path: Path, text: str) -> None:
    content = text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def read_text(path: Path) -> str:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
