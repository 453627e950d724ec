"""The city's stages: the same bytes however made, going on after a kill, and the ceiling on a corpus's rows."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from minionerec.contrib.city import make
from minionerec.contrib.city.ceiling import check_corpus, contexts_of, run_city_ceiling
from minionerec.contrib.city.config import CeilingConfig, MakeCityConfig
from minionerec.contrib.city.law import probabilities
from minionerec.contrib.city.make import city_people, run_make_city
from minionerec.contrib.city.people import interactions_of
from minionerec.contrib.city.sizes import PARQUET
from minionerec.core.artefacts import read_manifest, verify_files
from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare

BLOCKS = {"items": 60, "users": 17_000, "mean_interactions": 3, "days": 30, "seed": 1}  # three blocks
SMALL = {"items": 200, "users": 300, "mean_interactions": 8, "days": 200, "seed": 2}


def bytes_of(path):
    """Both tables; the manifest beside them says where they lie."""
    return {file.name: file.read_bytes() for file in path.glob("*.parquet")}


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    output = tmp_path_factory.mktemp("city") / "city"
    run_make_city(MakeCityConfig(output=str(output), **BLOCKS))
    return output


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small city and the corpus of all of it."""
    folder = tmp_path_factory.mktemp("small")
    run_make_city(MakeCityConfig(output=str(folder / "city"), **SMALL))
    run_prepare(prepare(folder))
    return folder


def prepare(folder, output="corpus", **settings):
    tables = {name: str(folder / "city" / f"{name}.parquet") for name in ("items", "interactions")}
    return PrepareConfig(source="tables", **tables, output=str(folder / output), **settings)


def ceiling(folder, corpus="corpus", output="ceiling", **settings):
    corpus, output = str(folder / corpus), str(folder / output)
    return CeilingConfig(city=str(folder / "city"), corpus=corpus, output=output, **settings)


def test_the_tables_are_what_the_manifest_counts(blocks):
    verify_files(blocks)
    counts = read_manifest(blocks, "city")["counts"]
    held = pq.ParquetFile(blocks / "interactions.parquet")
    assert held.num_row_groups == counts["blocks"] == 3
    assert counts["interactions"] == held.metadata.num_rows
    table = held.read().to_pandas()
    assert table.columns.tolist() == ["user_id", "item_id", "timestamp"]
    assert table["user_id"].nunique() == 17_000 and table["item_id"].nunique() == 60
    groups = table.groupby("user_id", sort=False)["timestamp"]
    assert groups.is_monotonic_increasing.all() and groups.size().min() >= 2
    items = pd.read_parquet(blocks / "items.parquet")
    assert items.columns.tolist() == ["item_id", "title", "description"]
    assert items["item_id"].tolist() == [f"p{row}" for row in range(60)]
    assert counts["items"] == 60 and counts["shelves"] == 3 and counts["users"] == 17_000


def test_again_does_nothing_and_two_processes_give_the_same_bytes(blocks, tmp_path):
    timestamp = (blocks / "manifest.json").stat().st_mtime_ns
    result = run_make_city(MakeCityConfig(output=str(blocks), processes=2, **BLOCKS))
    assert (blocks / "manifest.json").stat().st_mtime_ns == timestamp
    assert result.lines[0].startswith("60 items, 17,000 users, ")
    run_make_city(MakeCityConfig(output=str(tmp_path / "two"), processes=2, **BLOCKS))
    assert bytes_of(tmp_path / "two") == bytes_of(blocks)
    run_make_city(MakeCityConfig(output=str(tmp_path / "other"), **{**BLOCKS, "seed": 2}))
    assert bytes_of(tmp_path / "other")["interactions.parquet"] != bytes_of(blocks)["interactions.parquet"]


def test_a_run_that_was_interrupted_resumes_with_the_blocks_that_are_missing(blocks, tmp_path, monkeypatch):
    output, written = tmp_path / "city", []
    write = make.write_block

    def write_until(last):
        def until(settings, block, path):
            if block == last:
                raise KeyboardInterrupt
            written.append(block)
            write(settings, block, path)

        return until

    monkeypatch.setattr(make, "write_block", write_until(2))
    with pytest.raises(KeyboardInterrupt):
        run_make_city(MakeCityConfig(output=str(output), **BLOCKS))
    assert written == [0, 1] and not output.exists()
    monkeypatch.setattr(make, "write_block", write_until(None))
    with pytest.raises(ConfigError, match=r"unfinished run that differs in users \(then 17000, now 18000\)"):
        run_make_city(MakeCityConfig(output=str(output), **{**BLOCKS, "users": 18_000}))
    run_make_city(MakeCityConfig(output=str(output), **BLOCKS))
    assert written == [0, 1, 2]
    assert bytes_of(output) == bytes_of(blocks)
    assert not output.with_name("city.partial").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"items": 1001}, "items is 1001, but a shelf holds 20. Give a multiple of 20: 1000 or 1020."),
        ({"days": 2}, "days is 2, but with mean_interactions 20 a user may make 160 purchases, which take 3 days"),
    ],
)
def test_wrong_sizes_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        MakeCityConfig(**settings)


def test_the_ceiling_is_that_of_all_probabilities(small):
    """Lists of all items, sorted, instead of candidates; and probabilities of the targets one by one."""
    result = run_city_ceiling(ceiling(small))
    content = json.loads((result.output / "ceiling.json").read_text())
    corpus = Corpus.load(small / "corpus")
    contexts, targets = contexts_of(corpus.test), corpus.test.targets
    dense = probabilities(city_people(read_manifest(small / "city")["settings"]), contexts)
    assert (content["rows"], content["split"]) == (len(targets), "global time 8:1:1")
    ranked = -np.sort(-dense, axis=1)
    position = 1 + (dense > dense[np.arange(len(targets)), targets][:, None]).sum(axis=1)
    for k in (1, 3, 5, 10, 20, 50):
        gains = 1 / np.log2(np.arange(2, k + 2))
        assert content["ceiling"][f"hr@{k}"] == pytest.approx(ranked[:, :k].sum(axis=1).mean(), abs=1e-6)
        assert content["ceiling"][f"ndcg@{k}"] == pytest.approx((ranked[:, :k] @ gains).mean(), abs=1e-6)
        assert content["drawn"][f"hr@{k}"] == pytest.approx((position <= k).mean(), abs=1e-6)
        drawn = np.where(position <= k, 1 / np.log2(position + 1), 0).mean()
        assert content["drawn"][f"ndcg@{k}"] == pytest.approx(drawn, abs=1e-6)
        for name in (f"hr@{k}", f"ndcg@{k}"):
            low, high = content["low"][name], content["high"][name]
            assert low < content["ceiling"][name] < high
            assert abs(content["drawn"][name] - content["ceiling"][name]) < 4 * content["sigma"][name]
    rows = pd.read_parquet(result.output / "rows.parquet")
    assert np.allclose(rows["probability"], dense[np.arange(len(targets)), targets])
    assert np.array_equal(rows["rank"], np.where(position <= 50, position, 0))
    assert content["nats"] == pytest.approx(-np.log(rows["probability"]).mean(), abs=1e-6)
    assert "no recommender can expect more than NDCG@10 " in result.lines[0]


def test_rows_depend_on_the_purchases_they_came_from(small):
    """The contexts that a corpus gives are those of the process, for each target."""
    people = city_people(read_manifest(small / "city")["settings"])
    table = pd.read_parquet(small / "city" / "interactions.parquet")
    _, _, pauses = interactions_of(people, 0)
    corpus = Corpus.load(small / "corpus")
    found = {}
    for rows in corpus.splits().values():
        contexts, targets = contexts_of(rows), rows.targets
        for user, newest, time, pause, target in zip(
            contexts.users, contexts.newest, contexts.times, contexts.pauses, targets, strict=True
        ):
            found[user, time] = (newest, pause, target)
    numbers = table["user_id"].str[1:].astype(int).to_numpy()
    rows = table["item_id"].str[1:].astype(int).to_numpy()
    for position in np.flatnonzero(pauses >= 0):
        expected = (rows[position - 1], pauses[position], rows[position])
        assert found.pop((numbers[position], table["timestamp"][position])) == expected
    assert not found


def test_the_ceiling_of_fewer_rows_is_that_of_these_rows(small):
    run_prepare(prepare(small, "thinned", max_eval_examples=50))
    result = run_city_ceiling(ceiling(small, "thinned", "of_thinned", ks=[10]))
    whole = pd.read_parquet(run_city_ceiling(ceiling(small)).output / "rows.parquet")
    kept = whole[np.arange(len(whole)) * 50 % len(whole) < 50]
    rows = pd.read_parquet(result.output / "rows.parquet")
    assert len(rows) == 50 and np.array_equal(rows["probability"], kept["probability"])


def test_the_ceiling_is_of_a_split_and_up_to_date(small, tmp_path):
    first = run_city_ceiling(ceiling(small, output="valid", split="valid", ks=[2]))
    timestamp = (first.output / "manifest.json").stat().st_mtime_ns
    again = run_city_ceiling(ceiling(small, output="valid", split="valid", ks=[2]))
    assert again == first and (first.output / "manifest.json").stat().st_mtime_ns == timestamp
    assert "NDCG@2" in first.lines[0]
    assert set(json.loads((first.output / "ceiling.json").read_text())["ceiling"]) == {"hr@2", "ndcg@2"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"core": 5}, r"has \d+ items, but .*/city has 200. Prepare the corpus from all of this city"),
        ({"end": "2024-06-01"}, r"has \d+ interactions, but .*/city has \d+. Prepare the corpus from all"),
        ({"ties": "together"}, "was made with ties 'together'"),
    ],
)
def test_a_corpus_that_is_not_all_of_the_city_is_refused(small, settings, message):
    name = next(iter(settings))
    run_prepare(prepare(small, name, **settings))
    with pytest.raises(ConfigError, match=message):
        run_city_ceiling(ceiling(small, name, "refused"))


def test_items_may_lie_in_several_pieces(small):
    corpus = Corpus.load(small / "corpus")
    pieces = replace(corpus, items=pd.concat([corpus.items[:90], corpus.items[90:]], ignore_index=True))
    counts = read_manifest(small / "city")["counts"]
    check_corpus(pieces, counts, PARQUET, where="corpus", city="city")
    other = replace(corpus, items=pd.concat([corpus.items[90:], corpus.items[:90]], ignore_index=True))
    with pytest.raises(ConfigError, match=r"corpus: was not made from city: its items differ"):
        check_corpus(other, counts, PARQUET, where="corpus", city="city")


def test_too_long_lists_are_refused(small):
    with pytest.raises(ConfigError, match="ks is 1 500, but there are 200 items"):
        run_city_ceiling(ceiling(small, output="refused", ks=[1, 500]))
