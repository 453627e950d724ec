"""The demo shop: made again byte for byte, its ceiling right, its text telling and its purchases like a shop's."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.feature_extraction.text import TfidfVectorizer
from support.paths import ROOT

from minionerec.contrib.city.ceiling import run_city_ceiling
from minionerec.contrib.city.config import CeilingConfig, MakeCityConfig
from minionerec.contrib.city.make import run_make_city
from minionerec.data.corpus import Corpus
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare

DEMO = ROOT / "data" / "demo"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The city, the corpus and the ceiling of the shop's settings, as make demo-shop makes them."""
    folder = tmp_path_factory.mktemp("made")
    settings = yaml.safe_load((DEMO / "shop.yaml").read_text()) | {"output": str(folder / "city")}
    run_make_city(MakeCityConfig(**settings))
    run_prepare(PrepareConfig(source="demo", output=str(folder / "corpus")))
    paths = {name: str(folder / name) for name in ("city", "corpus")}
    run_city_ceiling(CeilingConfig(**paths, output=str(folder / "ceiling")))
    return folder


@pytest.fixture(scope="module")
def corpus(made):
    return Corpus.load(made / "corpus")


def test_made_again_byte_for_byte(made):
    for name, folder in {"items.csv": "city", "interactions.csv": "city", "ceiling.json": "ceiling"}.items():
        assert (made / folder / name).read_bytes() == (DEMO / name).read_bytes(), name


def test_the_true_ranking_reaches_the_ceiling(corpus):
    known = json.loads((DEMO / "ceiling.json").read_text())
    assert known["rows"] == len(corpus.test)
    for key, value in known["ceiling"].items():
        assert abs(known["drawn"][key] - value) < 3 * known["sigma"][key]


def test_its_targets_are_as_its_page_says(corpus):
    """Rare and late targets, visits of one day, nothing twice: the table beside Industrial and Steam."""
    test, popularity = corpus.test, corpus.popularity()
    day = 86_400
    found = [
        f"{(popularity[test.targets] <= 5).mean():.3f}",
        f"{(test.times.time // day == test.times.previous // day)[test.lengths > 0].mean():.3f}",
    ]
    page = (DEMO / "README.md").read_text()
    for name, value in zip(("at most five training examples", "on the day of the newest"), found, strict=True):
        line = next(line for line in page.splitlines() if line.startswith("| test targets") and name in line)
        assert line.split("|")[2].strip() == value.lstrip("0")
    assert not any(target in history for history, target in zip(test.histories, test.targets, strict=True))


def test_texts_tell_noun_and_series():
    """The nearest other text by TF-IDF has the same noun or the same brand and style, and the same department."""
    items = pd.read_csv(DEMO / "items.csv")
    assert items["title"].is_unique and items["item_id"].tolist() == [f"P{n:03d}" for n in range(1, len(items) + 1)]
    words = items["title"].str.split(n=2, expand=True)  # brand, style, noun
    vectors = TfidfVectorizer().fit_transform(items["title"] + " " + items["description"])
    likeness = (vectors @ vectors.T).toarray()
    np.fill_diagonal(likeness, -1)
    nearest = likeness.argmax(axis=1)
    same = {name: (words[name].to_numpy() == words[name].to_numpy()[nearest]) for name in words}
    assert (same[2] | (same[0] & same[1])).mean() > 0.99
    assert (items["price"] > 0).all() and 0.85 < (items["in_stock"] == "yes").mean() < 0.95


def test_the_demo_is_small():
    assert sum(path.stat().st_size for path in DEMO.iterdir()) < 1_500_000
