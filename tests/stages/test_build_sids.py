"""The stage that gives every item a semantic ID, and its command."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.commands import command
from support.paths import ROOT
from support.small_corpus import bought_together, save_corpus, shop_titles

from minionerec.core.artefacts import read_json, read_manifest, verify_files
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.data.published import default_root
from minionerec.pipeline.build_sids import run_build_sids
from minionerec.pipeline.config.encoder import EmbedConfig
from minionerec.pipeline.config.sids import SidConfig
from minionerec.pipeline.embed_items import run_embed
from minionerec.sid.embed.texts import tfidf_svd
from minionerec.sid.quantiser import Quantiser
from minionerec.sid.table import SidTable


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return save_corpus(tmp_path_factory.mktemp("shop") / "corpus", [*shop_titles(100), *shop_titles(20)])


def config_for(corpus, output, **settings):
    return SidConfig(
        corpus=str(corpus), output=str(output), **{"dimensions": 16, "codebook_sizes": [8, 8, 8], **settings}
    )


def test_own_sids(shop, tmp_path):
    result = run_build_sids(config_for(shop, tmp_path / "sids"))
    assert not result.up_to_date
    assert result.table.n_unique == len(result.table) == 120
    assert result.metrics["collisions"]["before"]["unique"] < 120  # relocation had work to do
    verify_files(tmp_path / "sids")
    manifest = read_manifest(tmp_path / "sids", "sids")
    assert (manifest["seed"], manifest["counts"]["unique"], manifest["counts"]["levels"]) == (42, 120, 3)
    assert SidTable.load_index(tmp_path / "sids").fingerprint == result.table.fingerprint
    books = load_file(tmp_path / "sids" / "codebooks.safetensors")
    assert {name: book.shape for name, book in books.items()} == {f"level_{i}": (8, 16) for i in range(3)}
    assert read_json(tmp_path / "sids" / "report.json") == json.loads(json.dumps(result.metrics))


@pytest.mark.parametrize("collisions", ["keep", "extra_token"])
def test_other_ways_with_collisions(tmp_path, collisions):
    corpus = save_corpus(tmp_path / "corpus", ["red lamp", "red lamp", "blue table", "green chair", "red lamp"])
    table = run_build_sids(config_for(corpus, tmp_path / "sids", collisions=collisions)).table
    assert table.n_unique == (3 if collisions == "keep" else 5)
    assert table.sids[0].count("<") == (3 if collisions == "keep" else 4)
    assert table.sids[2].count("<") == 3


def test_items_without_text_still_get_sids_of_their_own(tmp_path):
    corpus = save_corpus(tmp_path / "corpus", ["red lamp", "", "blue table", ""])
    result = run_build_sids(config_for(corpus, tmp_path / "sids"))
    assert result.table.n_unique == 4 and result.metrics["counts"]["empty_texts"] == 2


def test_small_catalogue_gets_fewer_codes(tmp_path):
    corpus = save_corpus(tmp_path / "corpus", shop_titles(30))
    sizes = {"codebook_sizes": [256, 256, 256]}
    result = run_build_sids(config_for(corpus, tmp_path / "sids", **sizes))
    assert [use["size"] for use in result.metrics["levels"]] == [7, 7, 7] and result.table.n_unique == 30


def test_ready_vectors_decide_the_sids(tmp_path):
    corpus = save_corpus(tmp_path / "corpus", ["same"] * 6)
    vectors = np.array([[0, 0], [0, 1], [9, 0], [9, 1], [0, 0.1], [9, 1.1]], np.float32)
    np.save(tmp_path / "v.npy", vectors)
    settings = {"codebook_sizes": [2, 2, 2], "encoder": str(tmp_path / "v.npy")}
    config = config_for(corpus, tmp_path / "sids", **settings)
    codes = run_build_sids(config).table.codes
    assert codes[:, 0].tolist() == [codes[0, 0], codes[0, 0], codes[2, 0], codes[2, 0], codes[0, 0], codes[2, 0]]
    assert codes[0, 0] != codes[2, 0]
    assert run_build_sids(config).up_to_date
    np.save(tmp_path / "v.npy", vectors[::-1])
    assert not run_build_sids(config).up_to_date


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """A corpus whose items are bought in three groups, and a larger one with two new items and other interactions."""
    paths = []
    for name, options in (("old", {}), ("new", {"unsold": 2, "more": 30, "seed": 1})):
        paths.append(tmp_path_factory.mktemp("together") / name)
        bought_together(**options).save(paths[-1], config={}, inputs={})
    return paths


BESIDE = {"with_interactions": True, "dimensions": 6, "codebook_sizes": [4, 4, 4]}


def test_sids_of_interactions_follow_what_is_bought_together(together, tmp_path):
    alone = {"encoder": "interactions", "dimensions": 6, "codebook_sizes": [3, 4, 4]}
    result = run_build_sids(config_for(together[0], tmp_path / "alone", **alone))
    groups = [tuple(result.table.codes[group::3, 0]) for group in range(3)]
    assert all(len(set(codes)) == 1 for codes in groups) and len(set(groups)) == 3
    assert run_build_sids(config_for(together[0], tmp_path / "alone", **alone)).up_to_date
    run_embed(EmbedConfig(corpus=str(together[0]), output=str(tmp_path / "v"), with_interactions=True, dimensions=6))
    through = config_for(together[0], tmp_path / "a", encoder=str(tmp_path / "v"), codebook_sizes=[4, 4, 4])
    direct = run_build_sids(config_for(together[0], tmp_path / "b", **BESIDE))
    assert run_build_sids(through).table.fingerprint == direct.table.fingerprint
    assert direct.metrics["counts"]["dimensions"] == 12


def test_new_items_are_appended_by_their_text_alone(together, tmp_path):
    before = run_build_sids(config_for(together[0], tmp_path / "base", **BESIDE)).table
    appended = {**BESIDE, "method": "append", "append_to": str(tmp_path / "base")}
    more = config_for(together[1], tmp_path / "more", **appended)
    after = run_build_sids(more)
    assert after.table.sids[:18] == before.sids and after.table.n_unique == 20
    # A new item has the text of a known one, and nothing else is known of it: its codes before relocation are those of
    # the text part of the codebooks.
    books = [book[:, :6] for book in Quantiser.load(tmp_path / "base").codebooks]
    texts = tfidf_svd(shop_titles(18), 6, 42)[:2] * np.float32(0.5**0.5)
    assert (after.table.codes[18:, 0] == Quantiser(books).encode(texts)[:, 0]).all()
    assert run_build_sids(replace(more, codebook_sizes=[256] * 3)).up_to_date
    again = replace(more, append_to=str(tmp_path / "more"), output=str(tmp_path / "again"), dimensions=64)
    assert run_build_sids(again).table.fingerprint == after.table.fingerprint


def test_what_interactions_cannot_be_appended_to(together, tmp_path):
    bases = {
        "plain": {"dimensions": 6, "codebook_sizes": [4, 4, 4]},
        "alone": {"encoder": "interactions", "dimensions": 6, "codebook_sizes": [3, 4, 4]},
        "vae": {**BESIDE, **SMALL_VAE, "method": "rq_vae"},
    }
    for name, message in (
        ("plain", r"with_interactions is true, but .*plain was made with false\. Give --with_interactions false"),
        ("alone", r"SIDs of interactions alone were asked for, but new items have none"),
        ("vae", r"an autoencoder reads texts and interactions together, and new items have no interactions"),
    ):
        run_build_sids(config_for(together[0], tmp_path / name, **bases[name]))
        given = {**BESIDE, "method": "append", "append_to": str(tmp_path / name)}
        with pytest.raises(ConfigError, match=message):
            run_build_sids(config_for(together[1], tmp_path / "x", **given))


def test_wordllama_is_an_encoder_of_every_stage_that_makes_vectors(shop, tmp_path):
    pytest.importorskip("wordllama", reason="WordLlama is not installed (the extra 'wordllama')")
    through = EmbedConfig(corpus=str(shop), output=str(tmp_path / "vectors"), encoder="wordllama")
    run_embed(through)
    base = config_for(shop, tmp_path / "a", encoder="wordllama")
    given = run_build_sids(config_for(shop, tmp_path / "b", encoder=str(tmp_path / "vectors")))
    assert run_build_sids(base).table.fingerprint == given.table.fingerprint
    assert run_build_sids(base).up_to_date and run_embed(through).up_to_date
    assert {"encoder/l2_supercat_256.safetensors", "encoder/l2_supercat_tokenizer_config.json"} < set(base.inputs())
    larger = save_corpus(tmp_path / "corpus", [*shop_titles(100), *shop_titles(20), "oak stool"])
    more = config_for(larger, tmp_path / "c", encoder="wordllama", method="append", append_to=str(tmp_path / "a"))
    assert run_build_sids(more).table.sids[:120] == run_build_sids(base).table.sids


def test_vectors_of_the_embed_stage_give_the_same_sids_as_the_encoder_itself(shop, tmp_path):
    run_embed(EmbedConfig(corpus=str(shop), output=str(tmp_path / "vectors"), dimensions=16))
    through = run_build_sids(config_for(shop, tmp_path / "a", encoder=str(tmp_path / "vectors")))
    direct = run_build_sids(config_for(shop, tmp_path / "b"))
    assert through.table.fingerprint == direct.table.fingerprint
    other = save_corpus(tmp_path / "corpus", shop_titles(120), item_ids=[f"x{i}" for i in range(120)])
    with pytest.raises(DataError, match="not those of the corpus's 120 items; they first differ at item 0"):
        run_build_sids(config_for(other, tmp_path / "c", encoder=str(tmp_path / "vectors")))


def test_a_collapsed_level_is_a_warning(tmp_path, caplog):
    corpus = save_corpus(tmp_path / "corpus", ["x"] * 60)
    vectors = np.zeros((60, 2), np.float32)
    vectors[:20] = np.random.default_rng(0).normal(size=(20, 2)) + 5
    np.save(tmp_path / "v.npy", vectors)
    settings = {"encoder": str(tmp_path / "v.npy"), "collisions": "keep", "codebook_sizes": [4, 4]}
    with caplog.at_level("WARNING", logger="minionerec"):
        run_build_sids(config_for(corpus, tmp_path / "sids", **settings))
    assert "Level a has collapsed: 40 of 60 items share one code. Raise codebook_sizes" in caplog.text
    corpus = save_corpus(tmp_path / "untitled", [*shop_titles(20), *[""] * 40])
    settings |= {"encoder": "tfidf", "dimensions": 4}
    with caplog.at_level("WARNING", logger="minionerec"):
        run_build_sids(config_for(corpus, tmp_path / "few", **settings))
    assert "of 60 items share one code. Most have no text, or that of another." in caplog.messages[-1]


SMALL_VAE = {"epochs": 20}


@pytest.mark.parametrize("method", ["residual_kmeans", "balanced_kmeans", "opq", "rq_vae", "rq_vae_plus"])
def test_same_seed_same_bytes(shop, tmp_path, method):
    one, two, other = (
        run_build_sids(config_for(shop, tmp_path / name, method=method, seed=seed, digits=8, **SMALL_VAE))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    for name in ("index.json", "codebooks.safetensors", "report.json"):
        assert (one.output / name).read_bytes() == (two.output / name).read_bytes()
    assert (one.output / "index.json").read_bytes() != (other.output / "index.json").read_bytes()
    assert one.table.n_unique == 120
    width = 32 if method == "rq_vae" else 16
    assert load_file(tmp_path / "a" / "codebooks.safetensors")["level_2"].shape == (8, width)
    assert one.table.levels == (8 if method == "opq" else 3)
    if method.startswith("rq_vae"):
        assert one.metrics["counts"]["checks"] == 3 and 0 < one.metrics["counts"]["decoded_error"] < 1


def test_digits_of_opq_are_many_and_count_for_that_method_alone(shop, tmp_path):
    wide = config_for(shop, tmp_path / "sids", method="opq", digits=30, dimensions=32, codebook_sizes=[4])
    result = run_build_sids(replace(wide, collisions="keep"))
    assert result.table.levels == 30 and result.table.sids[0].count("<") == 30
    assert SidTable.load_index(tmp_path / "sids").fingerprint == result.table.fingerprint
    # Items with equal texts have equal digits, which are kept and counted.
    assert result.metrics["collisions"]["after"]["unique"] <= 100 < len(result.table)
    assert [use["level"] for use in result.metrics["levels"]][25:28] == ["z", "aa", "ab"]
    errors = [use["error"] for use in result.metrics["levels"]]
    assert sorted(errors, reverse=True) == errors and errors[-1] < 0.2
    run_build_sids(config_for(shop, tmp_path / "plain"))
    assert config_for(shop, tmp_path / "plain", digits=5).up_to_date()
    assert not replace(wide, collisions="keep", digits=29).up_to_date()


def test_balanced_codes_before_relocation(shop, tmp_path):
    report = run_build_sids(config_for(shop, tmp_path / "s", method="balanced_kmeans", collisions="keep")).metrics
    assert all(set(use["use"]) == {15} for use in report["levels"])


def grown(tmp_path, n_old=90, n_new=40, method="residual_kmeans", **settings):
    """SIDs of some items, and a corpus that has more of them, in another order and without the first."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(12, 6))[rng.integers(0, 12, n_old + n_new)] + 0.2 * rng.normal(size=(n_old + n_new, 6))
    ids = [f"i{position}" for position in range(n_old + n_new)]
    order = np.concatenate([np.arange(n_old, n_old + n_new), np.arange(1, n_old)[::-1]])
    paths = []
    for name, rows in (("old", np.arange(n_old)), ("new", order)):
        np.save(tmp_path / f"{name}.npy", vectors[rows].astype(np.float32))
        paths.append(save_corpus(tmp_path / name, ["x"] * len(rows), item_ids=[ids[row] for row in rows]))
    settings = {"codebook_sizes": [6, 6, 6], **SMALL_VAE, **settings}
    base = config_for(paths[0], tmp_path / "base", method=method, encoder=str(tmp_path / "old.npy"), **settings)
    more = {"method": "append", "append_to": str(tmp_path / "base"), "encoder": str(tmp_path / "new.npy")}
    return base, config_for(paths[1], tmp_path / "more", **{**settings, **more})


@pytest.mark.parametrize(
    ("method", "collisions"),
    [
        *(("residual_kmeans", collisions) for collisions in ("keep", "relocate", "extra_token")),
        *((method, "relocate") for method in ("balanced_kmeans", "rq_vae", "rq_vae_plus")),
    ],
)
def test_append_moves_nothing(tmp_path, method, collisions):
    base, more = grown(tmp_path, method=method, collisions=collisions)
    before, after = run_build_sids(base), run_build_sids(more)
    sids = dict(zip(before.table.item_ids, before.table.sids, strict=True))
    appended = {i: sid for i, sid in zip(after.table.item_ids, after.table.sids, strict=True) if i not in sids}
    assert len(appended) == 40 and len(after.table) == 129
    assert all(sids[i] == sid for i, sid in zip(after.table.item_ids, after.table.sids, strict=True) if i in sids)
    counts = after.metrics["counts"]
    assert (counts["items_kept"], counts["items_appended"], counts["items_gone"]) == (89, 40, 1)
    if collisions != "keep":
        assert len({*appended.values(), *sids.values()}) == 130  # the item that is gone keeps its position
    codebooks = [load_file(result.output / "codebooks.safetensors") for result in (before, after)]
    assert all((codebooks[0][name] == codebooks[1][name]).all() for name in codebooks[0])


def test_sinkhorn_shares_out_last_codes(tmp_path):
    base, more = grown(tmp_path, method="residual_kmeans", collisions="sinkhorn")
    kept = run_build_sids(replace(base, collisions="keep", output=str(tmp_path / "kept")))
    before, after = run_build_sids(base), run_build_sids(more)
    assert (before.table.codes[:, :-1] == kept.table.codes[:, :-1]).all()
    found = before.metrics["collisions"]
    assert found["method"] == "sinkhorn" and found["before"]["unique"] < found["after"]["unique"]
    sids = dict(zip(before.table.item_ids, before.table.sids, strict=True))
    assert all(sids.get(i, sid) == sid for i, sid in zip(after.table.item_ids, after.table.sids, strict=True))
    assert after.metrics["counts"]["items_appended"] == 40


def test_append_to_digits_of_opq(tmp_path):
    base, more = grown(tmp_path, method="opq", digits=3, collisions="keep")
    before = run_build_sids(base).table
    after = run_build_sids(replace(more, method="append", collisions="keep")).table
    assert [after.sids[after.item_ids.index(item)] for item in before.item_ids[1:]] == before.sids[1:]
    vectors = np.load(tmp_path / "new.npy")
    assert (after.codes == Quantiser.load(tmp_path / "base").encode(vectors)).all()


def test_append_again(tmp_path):
    base, more = grown(tmp_path, n_old=20, n_new=30, codebook_sizes=[5, 5, 5])
    run_build_sids(base)
    first = run_build_sids(more)
    assert first.metrics["collisions"]["after"]["largest_bucket"] == 1
    again = run_build_sids(SidConfig(**{**vars(more), "append_to": more.output, "output": str(tmp_path / "again")}))
    assert again.table.fingerprint == first.table.fingerprint and again.metrics["counts"]["items_appended"] == 0


def test_append_in_another_space_or_to_a_published_table(tmp_path):
    base, more = grown(tmp_path)
    run_build_sids(base)
    turned = np.load(tmp_path / "new.npy")[:, ::-1]
    np.save(tmp_path / "turned.npy", turned)
    np.save(tmp_path / "narrow.npy", turned[:, :4])
    for name, message in (
        ("turned", r"base: with these vectors the SIDs of its 89 known items leave \d+% of the"),
        ("narrow", "vectors have 4 dimensions, but the codebooks were made from vectors of 6"),
    ):
        with pytest.raises(DataError, match=message):
            run_build_sids(SidConfig(**{**vars(more), "encoder": str(tmp_path / f"{name}.npy")}))
    (tmp_path / "base" / "codebooks.safetensors").write_bytes(b"no")
    with pytest.raises(ArtefactError, match=r"codebooks\.safetensors: differs from manifest\.json"):
        Quantiser.load(tmp_path / "base")
    settings = published(tmp_path, {f"i{position}": [f"<a_{position}>"] for position in range(90)})
    run_build_sids(config_for(base.corpus, tmp_path / "given", **settings))
    with pytest.raises(ArtefactError, match=r"given/.*so it is not known how these SIDs were made"):
        run_build_sids(replace(more, append_to=str(tmp_path / "given")))
    assert not (tmp_path / "more").exists()


def grown_shop(tmp_path, missing=(), n_old=90, n_new=30):
    """SIDs of TF-IDF for the first items of a shop, and a corpus that has more of them, in another order."""
    titles = dict(zip([f"i{position}" for position in range(n_old + n_new)], shop_titles(n_old + n_new), strict=True))
    now = [item for item in list(titles)[::-1] if item not in missing]
    for name, ids in (("old", list(titles)[:n_old]), ("new", now)):
        save_corpus(tmp_path / name, [titles[item] for item in ids], item_ids=ids)
    run_build_sids(config_for(tmp_path / "old", tmp_path / "base"))
    return config_for(tmp_path / "new", tmp_path / "more", method="append", append_to=str(tmp_path / "base"))


def test_append_with_tfidf_fits_it_on_the_first_items(tmp_path):
    more = grown_shop(tmp_path)
    before, after = SidTable.load_index(tmp_path / "base"), run_build_sids(more)
    sids = dict(zip(after.table.item_ids, after.table.sids, strict=True))
    assert [sids[item] for item in before.item_ids] == before.sids and after.table.n_unique == 120
    vectors = tfidf_svd(shop_titles(120), 16, 42, fitted_on=shop_titles(90))  # in the order of the first table
    assert vectors[:90].tobytes() == tfidf_svd(shop_titles(90), 16, 42).tobytes()
    codes = Quantiser.load(tmp_path / "base").encode(vectors[90:])
    free = [code for code in map(tuple, codes.tolist()) if code not in set(map(tuple, before.codes.tolist()))]
    given = {
        tuple(after.table.codes[after.table.item_ids.index(f"i{position}")].tolist()) for position in range(90, 120)
    }
    assert len(set(free)) > 5 and set(free) <= given
    again = run_build_sids(replace(more, append_to=str(tmp_path / "more"), output=str(tmp_path / "again")))
    assert again.table.fingerprint == after.table.fingerprint
    default = SidConfig(corpus="x", output="x")
    as_typed = {"dimensions": default.dimensions, "codebook_sizes": default.codebook_sizes}  # by the guide
    plain = run_build_sids(replace(more, **as_typed, output=str(tmp_path / "plain")))
    assert default.dimensions != 16 and plain.table.fingerprint == after.table.fingerprint
    manifest = read_manifest(tmp_path / "plain")
    assert [manifest["config"][name] for name in as_typed] == [16, [8, 8, 8]]  # those of the first table
    assert "codebook_sizes" not in manifest["settings"]
    assert run_build_sids(replace(more, dimensions=default.dimensions, output=str(tmp_path / "plain"))).up_to_date
    reported = [read_json(tmp_path / name / "fitted_items.json") for name in ("more", "again")]
    assert reported[0] == reported[1] == {"items": list(before.item_ids), "gone": {}}
    for name, value, then in (("dimensions", 8, 16), ("seed", 1, 42)):
        with pytest.raises(
            ConfigError, match=rf"{name} is {value}, but .*base was made with {then}.*Give --{name} {then}"
        ):
            run_build_sids(replace(more, **{name: value}, output=str(tmp_path / "other")))


def test_append_with_tfidf_finds_the_texts_of_items_that_are_gone(tmp_path):
    more = grown_shop(tmp_path, missing=("i3", "i50"))
    after = run_build_sids(more)
    assert after.metrics["counts"]["items_gone"] == 2
    reported = read_json(tmp_path / "more" / "fitted_items.json")
    assert len(reported["items"]) == 90 and reported["gone"] == {"i3": shop_titles(90)[3], "i50": shop_titles(90)[50]}
    whole = run_build_sids(grown_shop(tmp_path / "whole")).table  # where nothing is gone
    sids = dict(zip(whole.item_ids, whole.sids, strict=True))
    assert [sids[item] for item in after.table.item_ids] == after.table.sids
    # The next time the texts come from what was kept; from the first SIDs the old corpus is asked for again.
    save_corpus(tmp_path / "old", ["something else"] * 90, item_ids=[f"i{position}" for position in range(90)])
    again = replace(more, append_to=str(tmp_path / "more"), output=str(tmp_path / "again"))
    assert run_build_sids(again).table.fingerprint == after.table.fingerprint
    with pytest.raises(DataError, match=r"fitted on 90 items, and 2 of them, such as 'i3', are neither in the new"):
        run_build_sids(replace(more, output=str(tmp_path / "lost")))


def test_a_device_that_is_not_there(shop, tmp_path):
    for method in ("residual_kmeans", "rq_vae"):
        with pytest.raises(ConfigError, match="device 'nowhere' cannot be used"):
            run_build_sids(config_for(shop, tmp_path / "sids", method=method, device="nowhere"))
    result = run_build_sids(config_for(shop, tmp_path / "sids", device="cpu:0"))
    assert result.table.n_unique == 120


def published(tmp_path, content):
    (tmp_path / "index.json").write_text(json.dumps(content))
    return {"method": "published", "collisions": "keep", "index": str(tmp_path / "index.json")}


def test_published_table_is_read_and_written_as_one(tmp_path, caplog):
    corpus = save_corpus(tmp_path / "corpus", ["x", "y"])
    settings = published(tmp_path, {"i0": ["<a_7>", "<b_0>"], "i1": ["<a_7>", "<b_0>"]})
    result = run_build_sids(config_for(corpus, tmp_path / "sids", **settings))
    assert (tmp_path / "sids" / "index.json").read_bytes() == (tmp_path / "index.json").read_bytes()
    assert sorted(path.name for path in (tmp_path / "sids").iterdir()) == ["index.json", "manifest.json", "report.json"]
    assert result.metrics["unique"] == 1
    settings = published(tmp_path, {"i1": ["<a_1>"], "more": ["<a_3>"], "i0": ["<a_2>"]})
    with caplog.at_level("WARNING", logger="minionerec"):
        result = run_build_sids(config_for(corpus, tmp_path / "sids", **settings))
    assert result.table.sids == ["<a_2>", "<a_1>"] and result.metrics["counts"]["items_only_in_index"] == 1
    assert "1 of its items are not in the corpus" in caplog.text


def test_shuffled_sids_are_those_of_another_table_at_other_items(tmp_path):
    corpus = save_corpus(tmp_path / "corpus", shop_titles(60))
    run_build_sids(config_for(corpus, tmp_path / "sids"))
    settings = {"method": "shuffled", "collisions": "keep", "index": str(tmp_path / "sids")}
    before, tables = SidTable.load_index(tmp_path / "sids"), []
    for seed in (3, 4):
        run_build_sids(config_for(corpus, tmp_path / f"shuffled{seed}", seed=seed, **settings))
        tables.append(SidTable.load_index(tmp_path / f"shuffled{seed}"))
        assert sorted(map(tuple, tables[-1].codes)) == sorted(map(tuple, before.codes))
        assert (tables[-1].codes == before.codes).all(1).sum() < 10
    assert (tables[0].codes != tables[1].codes).any()


def test_published_item_without_sid(tmp_path):
    corpus = save_corpus(tmp_path / "corpus", ["x", "y"])
    settings = published(tmp_path, {"i0": ["<a_7>", "<b_0>"]})
    with pytest.raises(DataError, match=r"index\.json: item 'i1' has no SID"):
        run_build_sids(config_for(corpus, tmp_path / "sids", **settings))
    with pytest.raises(DataError, match=r"nowhere\.json: no such file"):
        run_build_sids(config_for(corpus, tmp_path / "sids", **{**settings, "index": str(tmp_path / "nowhere.json")}))
    assert not (tmp_path / "sids").exists()


def test_published_industrial_counts(tmp_path):
    root = default_root()
    if not (root / "index").is_dir():
        pytest.skip(f"needs the published files under {root} (set MINIONEREC_DATA)")
    source = root / "index" / "Industrial_and_Scientific.index.json"
    item_ids = list(read_json(source))
    corpus = save_corpus(tmp_path / "corpus", ["x"] * len(item_ids), item_ids=item_ids)
    config = config_for(corpus, tmp_path / "sids", method="published", index=str(source), collisions="keep")
    result = run_build_sids(config)
    assert (len(result.table), result.table.n_unique) == (3686, 3670)
    assert [use["used"] for use in result.metrics["levels"]] == [48, 256, 256]
    counts = result.metrics["collisions"]["after"]
    assert (counts["groups"], counts["sharing_items"], counts["largest_bucket"]) == (15, 31, 3)
    assert len(result.table.tokens) == 560
    assert read_json(tmp_path / "sids" / "index.json") == read_json(source)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"codebook_sizes": []}, "codebook_sizes is empty"),
        ({"codebook_sizes": [4, 0]}, "codebook_sizes is 4 0; give 1 to 701 numbers"),
        ({"method": "append"}, "method is 'append' and append_to None; give both"),
        ({"append_to": "runs"}, "method is 'residual_kmeans' and append_to 'runs'"),
        (
            {"method": "published"},
            "method published has no codebooks, so collisions relocate cannot work; set collisions",
        ),
        ({"index": "a.json"}, "method is 'residual_kmeans' and index 'a.json'; give both method published"),
        ({"method": "shuffled", "collisions": "keep"}, "method is 'shuffled' and index None; give both"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        SidConfig(**{"output": "sids", "corpus": "corpus"} | settings)


def test_bad_inputs_leave_nothing(shop, tmp_path):
    vectors = np.zeros((120, 4), np.float32)
    np.save(tmp_path / "short.npy", vectors[:119])
    vectors[7, 2] = np.nan
    np.save(tmp_path / "nan.npy", vectors)
    for settings, error, message in (
        ({"encoder": str(tmp_path / "short.npy")}, DataError, r"short\.npy: 119 rows for 120 items"),
        ({"encoder": str(tmp_path / "nan.npy")}, DataError, r"nan\.npy: row 7, column 2 is nan"),
        ({"encoder": str(tmp_path / "none.npy")}, DataError, r"none\.npy: no such file"),
        ({"encoder": "./nothing"}, ConfigError, "encoder './nothing'"),
        ({"codebook_sizes": [2, 2, 2]}, DataError, "120 items have no 120 distinct SIDs in codebooks of 2/2/2 codes"),
    ):
        with pytest.raises(error, match=message):
            run_build_sids(config_for(shop, tmp_path / "sids", **settings))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".sids.lock", "nan.npy", "short.npy"]


def test_what_a_method_reads(shop, tmp_path):
    np.save(tmp_path / "v.npy", np.zeros((120, 2)))
    encoder = {"encoder": str(tmp_path / "v.npy")}
    assert config_for(shop, "x", **encoder).inputs() == {"corpus": shop, "vectors": tmp_path / "v.npy"}
    given = {**encoder, **published(tmp_path, {"i0": ["<a_1>"]})}
    wanted = {"corpus": shop, "index": tmp_path / "index.json"}
    assert config_for(shop, "x", **given).inputs() == wanted  # no vectors where none are read
    assert config_for(shop, "x", **{**given, "index": str(tmp_path)}).inputs() == wanted
    append = config_for(shop, "x", method="append", append_to=str(tmp_path / "base"))
    assert append.inputs() == {"corpus": shop, "append_to": tmp_path / "base"}
    with pytest.raises(ArtefactError, match="corpus: holds a 'corpus', expected a 'sids'"):
        run_build_sids(config_for(shop, tmp_path / "sids", method="append", append_to=str(shop)))


def test_the_command(shop, tmp_path):
    file = "demo#sids"
    words = ["--config", file, "--corpus", str(shop), "--output", str(tmp_path / "sids")]
    done = command(ROOT, "build-sids", *words)
    assert done.status == 0, done.err
    first, verdict = done.out.splitlines()
    assert first == f"120 distinct SIDs of 120 items: {tmp_path / 'sids'}" and "level a: " in done.err
    assert verdict.startswith("Advice: none. Nearly every item has an SID of its own")
    again = command(ROOT, "build-sids", *words)
    assert "up to date" in again.err and again.out == done.out
