"""Stages that read URLs give what they give of local paths."""

import os
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import fsspec
import pandas as pd
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.small_shop import OUTPUTS, copied, make_shop, stage
from support.store import shared

from minionerec.core.artefacts import MANIFEST, fingerprint, read_manifest
from minionerec.core.paths import find_path
from minionerec.core.remote import look_again
from minionerec.data.corpus import Corpus
from minionerec.recommend.recommender import Recommender
from minionerec.sid.table import SidTable


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    others = tuple({*OUTPUTS} - {"corpus", "sids", "catalogue"})
    return copied(shared(tmp_path_factory, make_shop), tmp_path_factory.mktemp("remote") / "shop", others)


@pytest.fixture(autouse=True)
def bucket(tmp_path, monkeypatch, shop):
    """The shop's corpus, SIDs and model at memory://shop, and an empty cache."""
    monkeypatch.setenv("MINIONEREC_CACHE", str(tmp_path / "cache"))
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    look_again()
    for name in ("corpus", "sids", "catalogue"):
        fsspec.filesystem("memory").put(str(shop / name), f"/shop/{name}", recursive=True)
    yield tmp_path / "cache"
    MemoryFileSystem.store.clear()
    look_again()


def test_sids_of_a_corpus_elsewhere_are_those_of_the_same_corpus_here(shop, bucket):
    words = ("--corpus", "memory://shop/corpus", "--output", "far_sids")
    done = stage(shop, "build-sids", *words)
    assert done.status == 0, done
    near, far = (read_manifest(shop / name, "sids") for name in ("sids", "far_sids"))
    for key in ("files", "settings", "counts", "seed"):
        assert near[key] == far[key]
    assert near["inputs"]["corpus"]["sha256"] == far["inputs"]["corpus"]["sha256"]
    assert far["config"]["corpus"] == "memory://shop/corpus"
    assert far["inputs"]["corpus"]["path"].startswith(str(bucket))
    assert "far_sids is up to date" in stage(shop, "build-sids", *words).err
    # The same content from another path is the same input.
    assert "far_sids is up to date" in stage(shop, "build-sids", "--output", "far_sids").err


def test_raw_tables_elsewhere(shop, tmp_path):
    for name in ("items", "interactions"):
        pd.read_csv(shop / f"{name}.csv", dtype=str).to_parquet(tmp_path / f"{name}.parquet")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    words = ("--items", f"{url}/items.parquet", "--interactions", f"{url}/interactions.parquet?signature=secret")
    done = stage(shop, "prepare-data", *words, "--output", "far_corpus")
    assert done.status == 0, done
    assert fingerprint(shop / "far_corpus") == fingerprint(shop / "corpus")
    assert read_manifest(shop / "far_corpus")["config"]["items"] == f"{url}/items.parquet"
    assert "secret" not in (shop / "far_corpus" / MANIFEST).read_text()
    assert "far_corpus is up to date" in stage(shop, "prepare-data", *words, "--output", "far_corpus").err
    frame = pd.read_parquet(tmp_path / "interactions.parquet")
    frame[:-1].to_parquet(tmp_path / "interactions.parquet")
    os.utime(tmp_path / "interactions.parquet", (1e9, 1e9))  # a server's times are whole seconds
    assert "up to date" not in stage(shop, "prepare-data", *words, "--output", "far_corpus").err
    server.shutdown()
    server.server_close()
    stopped = stage(shop, "prepare-data", *words, "--output", "far_corpus").reported
    assert f"{url}/interactions.parquet?sha256=" in stopped and ": cannot be read (Client" in stopped


def test_the_library_reads_urls_too(shop):
    here, there = Corpus.load(shop / "corpus"), Corpus.load(find_path("memory://shop/corpus"))
    assert here.items.equals(there.items) and here.train.targets.tolist() == there.train.targets.tolist()
    assert here.sizes == there.sizes
    assert SidTable.load_index(find_path("memory://shop/sids")).sids == SidTable.load_index(shop / "sids").sids
    lists = [
        Recommender.load(checkpoint, corpus=corpus).recommend(["i1", "i2"], k=3).items
        for checkpoint, corpus in (
            (shop / "catalogue", shop / "corpus"),
            ("memory://shop/catalogue", "memory://shop/corpus"),
        )
    ]
    assert lists[0] == lists[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--corpus", "nope://shop/corpus"), "nope://shop/corpus: unknown protocol 'nope'"),
        (("--corpus", "memory://shop/nothing"), "memory://shop/nothing: no such artefact or file"),
        (("--corpus", "memory://shop"), "memory://shop: has no manifest.json"),
        (("--output", "memory://shop/sids"), "output is 'memory://shop/sids', but outputs are written on this machine"),
        (("--encoder", "memory://shop/sids"), "memory://shop/sids (copied to "),
    ],
)
def test_wrong_urls_end_a_stage_in_one_line(shop, words, message):
    assert message in stage(shop, "build-sids", *words).reported
