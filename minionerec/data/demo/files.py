"""The committed files of the demo shop."""

import json
import os
from pathlib import Path

from minionerec.core.artefacts import write_text_atomic
from minionerec.data.build import build_corpus
from minionerec.data.demo.catalogue import shop_items
from minionerec.data.demo.ceiling import shop_ceiling
from minionerec.data.demo.process import SEED, generate_shop
from minionerec.data.sources.tables import read_tables

FILES = ("items.csv", "interactions.csv", "ceiling.json")


def write_shop(directory: str | os.PathLike[str], seed: int = SEED) -> None:
    """Generate the shop and write `items.csv`, `interactions.csv` and `ceiling.json`.

    Args:
        directory: Where to; `data/demo` for the committed files.
        seed: Seed of the shop.

    Raises:
        ArtefactError: If the place cannot be written.
    """
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
