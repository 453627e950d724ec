"""Semantic IDs from vectors that stay in their file, with the bounds lowered so that a few items are many."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from support.small_corpus import save_corpus, shop_titles

from minionerec.core.artefacts import read_json, read_manifest
from minionerec.core.errors import ConfigError, DataError
from minionerec.pipeline.build_sids import run_build_sids
from minionerec.pipeline.config.encoder import EmbedConfig
from minionerec.pipeline.config.sids import SidConfig
from minionerec.pipeline.embed_items import run_embed
from minionerec.sid import table
from minionerec.sid.embed import stored
from minionerec.sid.quantiser import Quantiser
from minionerec.sid.table import SidTable

ITEMS = 600
SMALL_VAE = {"epochs": 80}


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(30, 8))[rng.integers(0, 30, ITEMS)] + 0.2 * rng.normal(size=(ITEMS, 8))
    np.save(folder / "v.npy", vectors.astype(np.float16))
    save_corpus(folder / "corpus", shop_titles(ITEMS))
    return folder


@pytest.fixture
def in_file(monkeypatch):
    """From here on every file is a large one."""
    monkeypatch.setattr(stored, "STREAMED_FROM", 0)


def config_for(shop, output, **settings):
    given = {"encoder": str(shop / "v.npy"), "codebook_sizes": [8, 8, 16], "seed": 3, **SMALL_VAE, **settings}
    return SidConfig(corpus=str(shop / "corpus"), output=str(output), **given)


METHODS = [
    {},
    {"fit_rows": 200},
    {"method": "balanced_kmeans"},
    {"method": "balanced_kmeans", "fit_rows": 300},
    {"method": "opq", "digits": 4},
    {"method": "opq", "digits": 4, "fit_rows": 200, "collisions": "extra_token"},
    {"method": "rq_vae", "fit_rows": 200},
    {"method": "rq_vae_plus", "fit_rows": 200, "collisions": "keep"},
    {"collisions": "extra_token"},
]


@pytest.mark.parametrize("settings", METHODS, ids=str)
def test_sids_of_a_file_are_those_of_the_array(shop, tmp_path, settings, monkeypatch):
    whole = run_build_sids(config_for(shop, tmp_path / "whole", **settings))
    monkeypatch.setattr(stored, "STREAMED_FROM", 0)
    ours = run_build_sids(config_for(shop, tmp_path / "ours", **settings))
    assert ours.table.fingerprint == whole.table.fingerprint
    books = [(result.output / "codebooks.safetensors").read_bytes() for result in (ours, whole)]
    assert books[0] == books[1]
    assert ours.metrics["collisions"]["after"] == whole.metrics["collisions"]["after"]
    fitted = settings.get("fit_rows", ITEMS)
    assert (ours.metrics["counts"]["fit_rows"], ours.metrics["error_rows"]) == (fitted, ITEMS)
    assert read_manifest(ours.output)["counts"]["fit_rows"] == fitted
    assert [use["use"] for use in ours.metrics["levels"]] == [use["use"] for use in whole.metrics["levels"]]
    assert "error_rows" not in whole.metrics and whole.metrics["counts"].get("fit_rows") == settings.get("fit_rows")


def test_vectors_are_never_read_whole(shop, tmp_path, in_file, monkeypatch):
    read, before = [], stored.VectorFile._read

    def watched(self, start, stop):
        read.append(stop - start)
        return before(self, start, stop)

    monkeypatch.setattr(stored.VectorFile, "_read", watched)
    monkeypatch.setattr("minionerec.sid.kmeans._BLOCK", 50)
    monkeypatch.setattr("minionerec.sid.report.ERROR_ROWS", 100)
    monkeypatch.setattr(stored, "_READ", 100 * 16)
    monkeypatch.setattr("minionerec.sid.embed.vectors.load_vectors", None)
    result = run_build_sids(config_for(shop, tmp_path / "sids", fit_rows=150))
    assert max(read) <= 100 and result.table.n_unique == ITEMS
    assert result.metrics["error_rows"] == 100
    seconds = read_json(tmp_path / "sids.record.json")["seconds"]
    assert {"load", "embed", "quantise", "fit", "assign", "resolve", "measure", "write"} <= set(seconds)


def test_the_sample_is_reported_and_decides(shop, tmp_path, in_file, caplog):
    with caplog.at_level(logging.INFO, logger="minionerec"):
        run_build_sids(config_for(shop, tmp_path / "sids", fit_rows=150))
    assert "600 vectors of 8 dimensions stay in their file" in caplog.text
    assert "Fitting on 150 of 600 items, drawn with seed 3" in caplog.text
    assert "variance left is that of a sample of 600 items" in caplog.text
    assert config_for(shop, tmp_path / "sids", fit_rows=150).up_to_date()
    assert not config_for(shop, tmp_path / "sids", fit_rows=151).up_to_date()
    assert not config_for(shop, tmp_path / "sids").up_to_date()


def test_more_rows_than_there_are_items(shop, tmp_path):
    all_items = run_build_sids(config_for(shop, tmp_path / "a", fit_rows=10**6))
    assert all_items.metrics["counts"]["fit_rows"] == ITEMS
    assert all_items.table.fingerprint == run_build_sids(config_for(shop, tmp_path / "b")).table.fingerprint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "append", "append_to": "x"}, "fit_rows is 50, but method append fits nothing"),
        ({"method": "published", "collisions": "keep"}, "fit_rows is 50, but method published fits nothing"),
        ({"codebook_sizes": [8, 51]}, "fit_rows is 50, but codebook_sizes needs 51 codes a level"),
    ],
)
def test_settings_that_make_no_sense(shop, tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        config_for(shop, tmp_path / "sids", **{"fit_rows": 50, **settings})


@pytest.mark.parametrize("settings", [{"collisions": "sinkhorn"}, {"method": "rq_vae"}], ids=str)
def test_what_needs_all_vectors_reads_them(shop, tmp_path, settings, in_file):
    report = run_build_sids(config_for(shop, tmp_path / "sids", **settings)).metrics
    assert "error_rows" not in report and "fit_rows" not in report["counts"]


def test_files_that_do_not_fit(shop, tmp_path, in_file):
    vectors = np.load(shop / "v.npy")
    np.save(tmp_path / "short.npy", vectors[:-1])
    vectors[400, 2] = np.nan
    np.save(tmp_path / "gap.npy", vectors)
    for name, message in (
        ("short", r"short\.npy: 599 rows for 600 items"),
        ("gap", r"gap\.npy: row 400, column 2 is nan\. Every value must be a finite float32"),
    ):
        with pytest.raises(DataError, match=message):
            run_build_sids(config_for(shop, tmp_path / "sids", encoder=str(tmp_path / f"{name}.npy"), fit_rows=60))
    assert not (tmp_path / "sids").exists()


def test_vectors_of_the_embed_stage_stay_in_their_file(shop, tmp_path, in_file, monkeypatch):
    monkeypatch.setattr(table, "_BLOCK", 50)
    embed = EmbedConfig(corpus=str(shop / "corpus"), output=str(tmp_path / "vectors"), encoder=str(shop / "v.npy"))
    run_embed(embed)
    held = np.load(tmp_path / "vectors" / "vectors.npy")
    assert held.dtype == np.float16 and (held == np.load(shop / "v.npy")).all()
    through = run_build_sids(config_for(shop, tmp_path / "a", encoder=str(tmp_path / "vectors"), fit_rows=100))
    direct = run_build_sids(config_for(shop, tmp_path / "b", fit_rows=100))
    assert through.table.fingerprint == direct.table.fingerprint and through.metrics["error_rows"] == ITEMS
    save_corpus(tmp_path / "corpus", shop_titles(ITEMS), item_ids=[f"i{i}" if i != 70 else "x" for i in range(ITEMS)])
    with pytest.raises(DataError, match="not those of the corpus's 600 items; they first differ at item 70"):
        run_build_sids(
            replace(
                config_for(shop, tmp_path / "c", encoder=str(tmp_path / "vectors")), corpus=str(tmp_path / "corpus")
            )
        )


def test_large_tables_are_parquet_and_read_like_small_ones(shop, tmp_path, in_file, monkeypatch):
    small = run_build_sids(config_for(shop, tmp_path / "small")).table
    monkeypatch.setattr(table, "LARGE", 100)
    config = config_for(shop, tmp_path / "large")
    result = run_build_sids(config)
    assert sorted(path.name for path in result.output.iterdir()) == [
        "codebooks.safetensors",
        "codes.parquet",
        "manifest.json",
        "report.json",
    ]
    assert result.table.fingerprint == small.fingerprint == SidTable.load_index(result.output).fingerprint
    assert run_build_sids(config).up_to_date
    assert (Quantiser.load(result.output).encode(np.load(shop / "v.npy")) == small.codes).all(axis=1).any()
    read = {"method": "shuffled", "collisions": "keep", "index": str(result.output)}
    shuffled = run_build_sids(config_for(shop, tmp_path / "shuffled", **read)).table
    assert sorted(shuffled.sids) == sorted(small.sids)
    more = {"method": "append", "append_to": str(result.output)}
    again = run_build_sids(config_for(shop, tmp_path / "again", **more))
    assert again.table.fingerprint == small.fingerprint and again.metrics["counts"]["items_appended"] == 0
