"""Stages that read URLs give what they give of local paths, and `minionerec put` brings their outputs there."""

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.small_shop import OUTPUTS, command, copied, make_shop, stage
from support.store import shared

from minionerec.core.artefacts import MANIFEST, fingerprint, read_manifest
from minionerec.core.paths import find_path
from minionerec.core.remote import look_again
from minionerec.data.corpus import Corpus
from minionerec.recommend.recommender import Recommender
from minionerec.sid.table import SidTable

POPULAR = """
import numpy as np
from minionerec.recommend.rankers.protocol import Ranking

class Popular:
    def __init__(self, corpus):
        self.order = np.argsort(-corpus.popularity(), kind="stable").tolist()

    def rank(self, queries, k, allowed=None):
        masks = [None if allowed is None else allowed.row(row) for row in range(len(queries))]
        lists = [[item for item in self.order if mask is None or mask[item]][:k] for mask in masks]
        return Ranking(lists, [[-float(rank) for rank, _ in enumerate(row)] for row in lists])
"""
BASELINE = "{ranker: remote_popular.Popular, corpus: corpus, beams: 5, ks: [1, 5], resamples: 20}"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    others = tuple({*OUTPUTS} - {"corpus", "sids", "catalogue"})
    folder = copied(shared(tmp_path_factory, make_shop), tmp_path_factory.mktemp("remote") / "shop", others)
    (folder / "remote_popular.py").write_text(POPULAR)
    (folder / "eval-beam.yaml").write_text(BASELINE)
    return folder


@pytest.fixture(autouse=True)
def bucket(tmp_path, monkeypatch, shop):
    """The shop's corpus, SIDs and model at memory://shop, and an empty cache."""
    monkeypatch.setenv("MINIONEREC_CACHE", str(tmp_path / "cache"))
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    look_again()
    done = command(shop, "put", "corpus", "sids", "catalogue", "memory://shop")
    assert done.status == 0 and done.out.count("files sent: memory://shop/") == 3, done
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


def test_baselines_over_a_corpus_elsewhere_are_those_over_the_same_corpus_here(shop):
    near = stage(shop, "eval-beam", "--output", "near_baseline")
    far = stage(shop, "eval-beam", "--corpus", "memory://shop/corpus", "--output", "far_baseline")
    assert near.status == far.status == 0, (near, far)
    assert fingerprint(shop / "near_baseline") == fingerprint(shop / "far_baseline")


def test_a_checkpoint_elsewhere_recommends_as_it_does_here(shop):
    words = ("--config", "recommend.yaml", "--checkpoint")
    near = command(shop, "recommend", *words, "catalogue", "--output", "near_lists")
    urls = ("memory://shop/catalogue", "--corpus", "memory://shop/corpus")
    far = command(shop, "recommend", *words, *urls, "--output", "far_lists")
    assert near.status == far.status == 0, (near, far)
    assert fingerprint(shop / "near_lists") == fingerprint(shop / "far_lists")


def test_raw_tables_elsewhere(shop):
    memory = fsspec.filesystem("memory")
    for name in ("items", "interactions"):
        memory.pipe_file(f"/raw/{name}.csv", (shop / f"{name}.csv").read_bytes())
    words = ("--items", "memory://raw/items.csv", "--interactions", "memory://raw/interactions.csv")
    done = stage(shop, "prepare-data", *words, "--output", "far_corpus")
    assert done.status == 0, done
    assert fingerprint(shop / "far_corpus") == fingerprint(shop / "corpus")


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


def test_put_says_what_it_did_and_refuses_in_one_line(shop):
    again = command(shop, "put", "corpus", "memory://shop/corpus")
    assert (again.status, again.out) == (0, "memory://shop/corpus is up to date.\n")
    assert "holds another artefact" in command(shop, "put", "sids", "memory://shop/corpus").reported
    done = command(shop, "put", "sids", "memory://shop/corpus", "--replace", "true")
    assert done.status == 0 and read_manifest(shop / "sids")["kind"] == "sids"
    assert (
        "holds a 'sids', expected a 'corpus'" in stage(shop, "build-sids", "--corpus", "memory://shop/corpus").reported
    )
    assert "one name" in command(shop, "put", "sids", "sids/", "memory://x").reported
    assert "no such directory" in command(shop, "put", "nowhere", "memory://x/y").reported
    assert f"has no {MANIFEST}" in command(shop, "put", ".", "memory://x/y").reported
    assert "--replace" in command(shop, "put", "sids", "memory://x/y", "--replace", "maybe").reported


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--corpus", "nope://shop/corpus"), "nope://shop/corpus: unknown protocol 'nope'"),
        (("--corpus", "memory://shop/nothing"), "memory://shop/nothing: no such artefact or file"),
        (("--corpus", "memory://shop"), "memory://shop: has no manifest.json"),
        (("--output", "memory://shop/sids"), "output is 'memory://shop/sids', but outputs are written on this"),
        (("--encoder", "memory://shop/sids"), "memory://shop/sids (copied to "),
    ],
)
def test_wrong_urls_end_a_stage_in_one_line(shop, words, message):
    assert message in stage(shop, "build-sids", "--restart", "true", *words).reported
