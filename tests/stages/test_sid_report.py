"""The page about tables of semantic IDs: content, determinism and refusals."""

import json

import numpy as np
import pandas as pd
import pytest
from support.commands import command
from support.pages import page_text
from support.paths import ROOT
from support.small_corpus import shop_titles

from minionerec.core.artefacts import read_json, verify_files
from minionerec.core.errors import ArtefactError
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples
from minionerec.pipeline.build_sids import run_build_sids
from minionerec.pipeline.config.encoder import EmbedConfig
from minionerec.pipeline.config.reports import SidReportConfig
from minionerec.pipeline.config.sids import SidConfig
from minionerec.pipeline.embed_items import run_embed
from minionerec.pipeline.sid_report import SEED, run_sid_report
from minionerec.reports import plots
from minionerec.sid.embed.encoder import VectorSource
from minionerec.sid.embed.vectors import make_vectors
from minionerec.sid.report import diagnose, gather_evidence


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A corpus with training rows, and three tables: two of ours, one with a level more and no codebooks."""
    folder = tmp_path_factory.mktemp("shop")
    titles = [f"{title} <b>" for title in shop_titles(60)]
    items = pd.DataFrame({"item_id": [f"i{i}" for i in range(60)], "title": titles, "description": [""] * 60})
    rng = np.random.default_rng(0)
    starts = rng.integers(0, 56, 200)
    histories = [np.arange(start, start + 3) for start in starts]
    rows = SplitExamples.of([f"u{i % 40}" for i in range(200)], histories, starts + 4)
    one = rows.take(slice(1))
    corpus = Corpus(items=items, train=rows, valid=one, test=one, split="none", max_history=10)
    corpus.save(folder / "corpus", config={}, inputs={})
    shared = {"corpus": str(folder / "corpus"), "dimensions": 8, "codebook_sizes": [4, 4]}
    run_build_sids(SidConfig(**shared, output=str(folder / "plain"), collisions="keep"))
    run_build_sids(
        SidConfig(**shared, output=str(folder / "balanced"), method="balanced_kmeans", collisions="extra_token")
    )
    index = {f"i{i}": [f"<a_{i // 6}>", f"<b_{i % 6 // 2}>", f"<c_{i % 2}>"] for i in range(60)}
    (folder / "index.json").write_text(json.dumps(index))
    given = {"method": "published", "collisions": "keep", "index": str(folder / "index.json")}
    run_build_sids(SidConfig(corpus=str(folder / "corpus"), output=str(folder / "given"), **given))
    return folder


def config_for(shop, output, names=("plain", "balanced", "given"), **settings):
    tables = {name: str(shop / name) for name in names}
    return SidReportConfig(corpus=str(shop / "corpus"), tables=tables, output=str(output), **settings)


def test_page(shop, tmp_path, drawn):
    config = config_for(shop, tmp_path / "page")
    result = run_sid_report(config)
    verify_files(tmp_path / "page")
    html = (result.output / "sid_report.html").read_text()
    for text in (
        "plain",
        "balanced",
        "given",
        "Sharing rate",
        "Surplus rate",
        "Buyer purity",
        "Example buckets",
    ):
        assert text in html
    assert "<script" not in html and "http" not in html and "<b>" not in html and "&lt;b&gt;" in html
    assert html.count("<svg") == (1 if plots.available() else 0)
    corpus = Corpus.load(shop / "corpus")
    rows = corpus.train
    evidence = gather_evidence(
        make_vectors(corpus, VectorSource(seed=SEED), {}),
        corpus.items["title"].tolist(),
        rows.users.tolist(),
        rows.histories.tolist(),
        rows.targets,
    )
    for name in ("plain", "balanced", "given"):
        codes = run_build_sids(parse_saved(shop / name)).table.codes
        expected = diagnose(codes, evidence)
        got = result.metrics[name]
        assert got["bits_per_item"] == expected.bits_per_item
        assert [p["word_purity"] for p in got["prefixes"]] == [p.word_purity for p in expected.prefixes]
        assert f"{expected.bits_per_item:.3f}" in html
        errors = [level["error"] for level in read_json(shop / name / "report.json")["levels"]]
        assert [level["error"] for level in got["levels"]] == errors
    assert result.metrics["plain"]["levels"][0]["size"] == 4 and result.metrics["given"]["levels"][0]["size"] is None


def parse_saved(folder):
    return SidConfig(**read_json(folder / "manifest.json")["config"])


def test_equal_inputs_make_equal_bytes(shop, tmp_path):
    one, two = (run_sid_report(config_for(shop, tmp_path / name)).output for name in "ab")
    assert (one / "sid_report.html").read_bytes() == (two / "sid_report.html").read_bytes()


def test_buckets_show_titles(shop, tmp_path):
    config = config_for(shop, tmp_path / "page", names=["plain"])
    text = page_text(run_sid_report(config).output / "sid_report.html")
    assert text.count(" items\n<a_") == 4


def test_without_matplotlib(shop, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "available", lambda: False)
    assert "<svg" not in (run_sid_report(config_for(shop, tmp_path / "page")).output / "sid_report.html").read_text()


def test_bad_input(shop, tmp_path):
    with pytest.raises(ArtefactError, match="nowhere: no such directory"):
        run_sid_report(config_for(shop, tmp_path / "page", names=["nowhere"]))
    assert not (tmp_path / "page").exists()


def test_command(shop, tmp_path):
    words = ["--corpus", str(shop / "corpus"), "--tables", f"own={shop / 'plain'}", "--output", str(tmp_path / "page")]
    words += ["--config", "demo/pages#sid_report"]
    done = command(ROOT, "sid-report", *words)
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("own: ") and lines[0].endswith(" bits per item")
    page = tmp_path / "page" / "sid_report.html"
    assert lines[1].startswith("own: Advice: ") and lines[1] in page_text(page)
    assert lines[2:] == [f"Report: {page}"] and page.is_file()


def test_a_table_of_interactions_is_named_as_fitted_to_what_it_is_measured_on(shop, tmp_path):
    shared = {"corpus": str(shop / "corpus"), "codebook_sizes": [4, 4, 4], "dimensions": 8}
    run_embed(
        EmbedConfig(corpus=str(shop / "corpus"), output=str(tmp_path / "v"), encoder="interactions", dimensions=8)
    )
    run_build_sids(SidConfig(**shared, output=str(tmp_path / "direct"), with_interactions=True))
    run_build_sids(SidConfig(**shared, output=str(tmp_path / "through"), encoder=str(tmp_path / "v")))
    tables = {name: str(tmp_path / name) for name in ("direct", "through")} | {"plain": str(shop / "plain")}
    config = SidReportConfig(corpus=str(shop / "corpus"), tables=tables, output=str(tmp_path / "page"))
    result = run_sid_report(config)
    note = "made of the training interactions that bits and buyers are measured on"
    for lines in (result.lines, page_text(result.output / "sid_report.html").splitlines()):
        assert {line.split(":")[0] for line in lines if note in line} == {"direct", "through"}
