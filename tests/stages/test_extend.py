"""The stage that lets a checkpoint speak new items: what is known stays, new items are ranked, what is refused."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array
from support.checkpoints import save_checkpoint
from support.training import catalogue_config, extend_config, make_inputs, sft_config

from minionerec.core.artefacts import read_manifest, verify_files, write_artefact
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.data.corpus import Corpus
from minionerec.data.roles import encode_columns
from minionerec.data.rows import SplitExamples
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.decoding.exact import exact_search
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import ExampleBuilder, special_texts
from minionerec.pipeline.build_sids import run_build_sids
from minionerec.pipeline.config.sids import SidConfig
from minionerec.pipeline.extend import run_extend
from minionerec.pipeline.sft import run_sft
from minionerec.pipeline.train_catalogue import run_catalogue
from minionerec.recommend.rankers.language import Search
from minionerec.recommend.rankers.load import load_ranker
from minionerec.recommend.rankers.protocol import Queries
from minionerec.sid.embed.interactions import beside, interaction_vectors
from minionerec.sid.embed.texts import item_texts, nearest_texts
from minionerec.sid.table import SidTable
from minionerec.training.neighbours import sid_likeness

HELD_OUT = np.array([4, 11, 17])


def without(corpus, gone):
    """A corpus without some items: they are struck from histories, and rows with them as target too."""
    kept = np.setdiff1d(np.arange(corpus.n_items), gone)
    number = np.full(corpus.n_items, -1, dtype=np.int32)
    number[kept] = np.arange(len(kept))
    tables = {}
    for name, rows in corpus.splits().items():
        rows = rows.take(~np.isin(rows.targets, gone))
        histories = [number[history][number[history] >= 0] for history in rows.histories]
        tables[name] = SplitExamples.of(rows.users, histories, number[rows.targets])
    return replace(corpus, items=corpus.items.iloc[kept].reset_index(drop=True), **tables)


def with_rows(corpus, before):
    """All items of a corpus, and the training rows of the smaller one."""
    position = {item: row for row, item in enumerate(corpus.items["item_id"])}
    number = np.array([position[item] for item in before.items["item_id"]], dtype=np.int32)
    rows = before.train
    return replace(corpus, train=replace(rows, items=number[rows.items], targets=number[rows.targets]))


def sid_config(folder, name, corpus, **changes):
    settings = {"dimensions": 8, "codebook_sizes": [4, 3, 3], "corpus": str(folder / corpus)}
    return SidConfig(**{**settings, "output": str(folder / name), **changes})


def extension(folder, kind, **changes):
    """Settings that extend a model to the items that came later."""
    settings = {"checkpoint": folder / kind, "output": folder / f"{kind}_after", "corpus": str(folder / "after")}
    return extend_config(folder, **{**settings, "sids": str(folder / "sids_after"), **changes})


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Both models of a shop, and both of them extended to the items that came later."""
    folder = tmp_path_factory.mktemp("extend")
    make_inputs(folder)
    whole = Corpus.load(folder / "corpus")
    before = without(whole, HELD_OUT)
    before.save(folder / "before", config={}, inputs={})
    with_rows(whole, before).save(folder / "after", config={}, inputs={})
    run_build_sids(sid_config(folder, "sids", "before"))
    run_build_sids(sid_config(folder, "sids_after", "after", method="append", append_to=str(folder / "sids")))
    run_sft(sft_config(folder, corpus=str(folder / "before")))
    run_catalogue(catalogue_config(folder, corpus=str(folder / "before")))
    for kind in ("sft", "catalogue"):
        run_extend(extension(folder, kind, lift=1.5 if kind == "sft" else 0.0))
    return folder


def ranked(path, folder, histories):
    """Item ids and log-probabilities of all items, best first, for histories of item ids."""
    bundle = load_bundle(path)
    corpus = Corpus.load(folder / ("after" if len(bundle.table) == 24 else "before"))
    builder = ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer))
    directory = {item: row for row, item in enumerate(bundle.table.item_ids)}
    prompts = [builder.prompt("next_sid", history=np.array([directory[item] for item in row])) for row in histories]
    ids = bundle.tokenizer(prompts, add_special_tokens=False)["input_ids"]
    bundle.model.eval()
    found = exact_search(bundle.model, ids, Trie.build(bundle.table.codes, bundle.code_ids), len(bundle.table))
    item = dict(zip(bundle.table.sid_numbers.tolist(), bundle.table.item_ids, strict=True))
    return [
        dict(zip([item[sid] for sid in sids.tolist()], scores.tolist(), strict=True))
        for sids, scores in zip(found.sids, found.scores, strict=True)
    ]


HISTORIES = [["i0", "i1"], ["i20"], ["i8", "i9", "i10"]]


def test_the_manifest(shop):
    manifest = read_manifest(shop / "catalogue_after", "checkpoint")
    counts = manifest["counts"]
    assert (counts["items"], counts["items_new"], counts["sids_new"], counts["lift"]) == (24, 3, 3, 0.0)
    table = SidTable.load_index(shop / "sids_after")
    assert counts["sid_table"] == table.fingerprint == load_bundle(shop / "catalogue_after").table.fingerprint
    assert read_manifest(shop / "sft_after", "checkpoint")["counts"]["lift"] == 1.5
    assert set(manifest["inputs"]) == {"checkpoint", "corpus", "sids"}
    verify_files(shop / "sft_after")
    again = run_extend(extension(shop, "sft", lift=1.5))
    assert again.lines == [f"3 of 24 items are new: {shop / 'sft_after'}"]


def test_the_catalogue_model_keeps_its_ratios_and_lists(shop):
    before, after = (ranked(shop / name, shop, HISTORIES) for name in ("catalogue", "catalogue_after"))
    for old, new in zip(before, after, strict=True):
        assert list(old) == [item for item in new if item in old] and set(new) - set(old) == {"i4", "i11", "i17"}
        falls = [new[item] - old[item] for item in old]
        assert max(falls) < 0 and max(falls) - min(falls) < 2e-5
        assert sum(np.exp(list(new.values()))) == pytest.approx(1, abs=1e-5)


def test_the_language_model_keeps_its_ratios_within_a_prefix_and_its_weights(shop):
    before, after = (load_bundle(shop / name) for name in ("sft", "sft_after"))
    old, new = before.model.state_dict(), after.model.state_dict()
    assert all(torch.equal(new[name][: len(old[name])], old[name]) for name in old)
    same = set(after.table.tokens) == set(before.table.tokens)
    first, second = (ranked(shop / name, shop, HISTORIES) for name in ("sft", "sft_after"))
    codes = dict(zip(before.table.item_ids, before.table.token_tuples, strict=True))
    for one, two in zip(first, second, strict=True):
        assert set(two) - set(one) == {"i4", "i11", "i17"} and all(np.isfinite(list(two.values())))
        falls = {item: one[item] - two[item] for item in one}
        assert min(falls.values()) > -1e-5
        by_prefix = {}
        for item, fall in falls.items():
            by_prefix.setdefault(codes[item][:2], []).append(fall)
        assert max(max(group) - min(group) for group in by_prefix.values()) < 2e-5
        if same:
            assert max(falls.values()) < 1e-5


def test_the_lift_of_new_items_is_in_every_list(shop):
    """The extended checkpoint as it recommends: new items stand 1.5 higher than the model itself puts them."""
    corpus = Corpus.load(shop / "after")
    ranker = load_ranker(shop / "sft_after", corpus, search=Search("exact"))
    untrained = np.flatnonzero(corpus.popularity() == 0)
    assert set(HELD_OUT) <= set(untrained)
    plain = ranked(shop / "sft_after", shop, HISTORIES)
    found = ranker.rank(Queries([np.array([int(item[1:]) for item in row]) for row in HISTORIES]), 24)
    for scores, items, values in zip(plain, found.items, found.scores, strict=True):
        lifted = {item: scores[f"i{item}"] + 1.5 * (item in untrained) for item in range(24)}
        assert items == sorted(lifted, key=lambda item: -lifted[item])
        assert values == pytest.approx([lifted[item] for item in items], rel=1e-4, abs=1e-5)


def test_counts_come_from_the_new_rows_as_soon_as_there_are_some(shop, tmp_path):
    model = load_bundle(shop / "catalogue_after").model
    assert isinstance(model, CatalogueModel)
    table = SidTable.load_index(shop / "sids_after")
    number = dict(zip(table.item_ids, table.sid_numbers.tolist(), strict=True))
    assert all(model.pairs.totals[number[item]] == 0 for item in ("i4", "i11", "i17"))
    corpus = Corpus.load(shop / "corpus")  # whose training rows hold all items
    corpus.save(tmp_path / "after", config={}, inputs={})
    config = extension(shop, "catalogue", corpus=str(tmp_path / "after"), output=str(tmp_path / "counted"))
    run_extend(config)
    counted = load_bundle(tmp_path / "counted").model
    assert all(counted.pairs.totals[number[item]] > 0 for item in ("i4", "i11", "i17"))
    row = slice(*counted.pairs.offsets[number["i4"] : number["i4"] + 2].tolist())
    assert number["i5"] in counted.pairs.followers[row].tolist()
    scores = [ranked(path, shop, [["i3"]])[0] for path in (shop / "catalogue_after", tmp_path / "counted")]
    assert scores[1]["i4"] > scores[0]["i4"] + 0.1


def test_extending_again_has_the_same_text(shop, tmp_path):
    """TF-IDF stays fitted on the items that it was first fitted on."""
    corpus = Corpus.load(shop / "after")
    items = corpus.items.copy()
    more = items.iloc[[3]].assign(item_id="extra", title="a lamp like no other")
    grown = replace(corpus, items=pd.concat([items, more], ignore_index=True))
    grown.save(tmp_path / "more", config={}, inputs={})
    append = {"method": "append", "append_to": str(shop / "sids_after")}
    run_build_sids(sid_config(shop, tmp_path / "s", tmp_path / "more", **append))
    fitted = json.loads((tmp_path / "s" / "fitted_items.json").read_text())
    assert fitted == {"items": list(SidTable.load_index(shop / "sids").item_ids), "gone": {}}
    changes = {"corpus": str(tmp_path / "more"), "sids": str(tmp_path / "s"), "output": str(tmp_path / "twice")}
    run_extend(extension(shop, "catalogue", **changes, checkpoint=str(shop / "catalogue_after")))
    twice, once, first = (
        load_bundle(path) for path in (tmp_path / "twice", shop / "catalogue_after", shop / "catalogue")
    )
    for early, late in ((first, twice), (once, twice), (first, once)):
        folder = dict(zip(late.table.item_ids, late.table.sid_numbers.tolist(), strict=True))
        numbers = [folder[item] for item in early.table.item_ids]
        assert torch.equal(late.model.text[numbers], early.model.text[early.table.sid_numbers])
    assert "fitted_items.json" in {path.name for path in (tmp_path / "twice").iterdir()}


def test_other_text(shop, tmp_path):
    """Ready vectors take the place of TF-IDF where the model was trained with them; others are refused."""
    with pytest.raises(DataError, match=r"differ from what it was trained with by \d+% of their squared length"):
        vectors = np.random.default_rng(0).normal(size=(24, 8)).astype(np.float32)
        np.save(tmp_path / "other.npy", vectors)
        run_extend(extension(shop, "catalogue", vectors=str(tmp_path / "other.npy"), output=str(tmp_path / "no")))
    np.save(tmp_path / "narrow.npy", vectors[:, :4])
    with pytest.raises(DataError, match=r"narrow\.npy are 4 wide, but .*catalogue was trained with vectors 8 wide"):
        run_extend(extension(shop, "catalogue", vectors=str(tmp_path / "narrow.npy"), output=str(tmp_path / "no")))
    bundle = load_bundle(shop / "catalogue_after")
    folder = dict(zip(bundle.table.item_ids, bundle.table.sid_numbers.tolist(), strict=True))
    ready = bundle.model.text.numpy()[[folder[item] for item in bundle.table.item_ids]] / np.sqrt(8, dtype=np.float32)
    np.save(tmp_path / "ready.npy", ready)
    run_extend(extension(shop, "catalogue", vectors=str(tmp_path / "ready.npy"), output=str(tmp_path / "ready")))
    torch.testing.assert_close(load_bundle(tmp_path / "ready").model.text, bundle.model.text)


def table_at(path, codes, item_ids):
    with write_artefact(path, "sids", config={}, inputs={}) as folder:
        SidTable(codes, item_ids).save_index(folder / "index.json")
    return str(path)


def test_what_is_refused(shop, tmp_path):
    after = SidTable.load_index(shop / "sids_after")
    moved = after.codes.copy()
    moved[2] = [9, 9, 9]
    changes = {"output": str(tmp_path / "out")}
    with pytest.raises(DataError, match=r"item 'i2' has the SID <a_9><b_9><c_9>, but in .*sft <a_.*Append to the"):
        sids = table_at(tmp_path / "moved", moved, after.item_ids)
        run_extend(extension(shop, "sft", sids=sids, **changes))
    Corpus.load(shop / "before").save(tmp_path / "fewer", config={}, inputs={})
    with pytest.raises(DataError, match=r"3 of the 24 items of .*sft_after, such as 'i4', are missing"):
        here = {"corpus": str(tmp_path / "fewer"), "sids": str(shop / "sids"), "checkpoint": str(shop / "sft_after")}
        run_extend(extension(shop, "sft", **here, **changes))
    longer = np.concatenate([after.codes, np.full((24, 1), -1)], axis=1)
    longer[4] = [*after.codes[0], 0]
    sids = table_at(tmp_path / "longer", longer, after.item_ids)
    with pytest.raises(ConfigError, match="the catalogue model has SIDs of 3 codes, but one of the new table has 4"):
        run_extend(extension(shop, "catalogue", sids=sids, **changes))
    run_extend(extension(shop, "sft", sids=sids, output=str(tmp_path / "four")))
    assert "<d_0>" in load_bundle(tmp_path / "four").table.tokens
    with pytest.raises(ArtefactError, match="sids: holds a 'sids', expected a 'checkpoint'"):
        run_extend(extension(shop, "sft", checkpoint=str(shop / "sids"), **changes))
    corpus = Corpus.load(shop / "after")
    alone = SplitExamples.of(corpus.train.users[:3], [[]] * 3, corpus.train.targets[:3])
    replace(corpus, train=alone).save(tmp_path / "alone", config={}, inputs={})
    with pytest.raises(DataError, match="no training example with a history, so there is no pair to count"):
        run_extend(extension(shop, "catalogue", corpus=str(tmp_path / "alone"), **changes))
    assert not (tmp_path / "out").exists()


def test_a_model_without_text_or_counts(shop, tmp_path):
    bundle = load_bundle(shop / "catalogue")
    changes = {"vectors": "", "reach": 0, "corpus": str(shop / "before"), "output": str(tmp_path / "plain")}
    run_catalogue(catalogue_config(shop, epochs=0.1, experts=True, **changes))
    run_extend(extension(shop, "x", checkpoint=str(tmp_path / "plain"), output=str(tmp_path / "more")))
    model = load_bundle(tmp_path / "more").model
    assert model.pairs is None and not model.config.text_width and model.config.num_sids == 24
    assert not (tmp_path / "more" / "fitted_items.json").exists()
    few, many = (load_bundle(tmp_path / name).model.experts for name in ("plain", "more"))
    assert len(many.text_offsets) == 25 and 0 < len(few.neighbours) < len(many.neighbours) and many.flaw() is None
    with torch.no_grad():
        assert model.leaf_log_probs(torch.tensor([[1, 2]])).exp().sum() == pytest.approx(1, abs=1e-5)
    save_checkpoint(bundle, tmp_path / "saved")  # its corpus is not recorded, its items are all there
    run_extend(extension(shop, "x", checkpoint=str(tmp_path / "saved"), output=str(tmp_path / "from_saved")))


def test_experts_compare_words_beside_vectors_and_interactions(shop, tmp_path):
    """In training, and when items are added; by words and vectors alone where users have no two items in common."""
    drawn = np.random.default_rng(0).normal(size=(24, 8)).astype(np.float32)
    row = {item: number for number, item in enumerate(row_ids(Corpus.load(shop / "after")))}
    for name in ("before", "after"):
        np.save(tmp_path / f"{name}.npy", drawn[[row[item] for item in row_ids(Corpus.load(shop / name))]])
    ready = str(tmp_path / "before.npy")
    changes = {"corpus": str(shop / "before"), "output": str(tmp_path / "trained")}
    run_catalogue(catalogue_config(shop, epochs=0.1, experts=True, vectors=ready, **changes))
    ready, output = str(tmp_path / "after.npy"), str(tmp_path / "grown")
    run_extend(extension(shop, "x", checkpoint=str(tmp_path / "trained"), vectors=ready, output=output))
    for folder, name in (("trained", "before"), ("grown", "after")):
        bundle, corpus = load_bundle(tmp_path / folder), Corpus.load(shop / name)
        texts, vectors = [""] * bundle.table.n_unique, np.zeros((bundle.table.n_unique, 8), np.float32)
        for number, item, text in zip(bundle.table.sid_numbers, row_ids(corpus), item_texts(corpus), strict=True):
            texts[number], vectors[number] = text, drawn[row[item]]
        together = np.zeros((bundle.table.n_unique, interaction_vectors(corpus, 128, 42).shape[1]), np.float32)
        together[bundle.table.sid_numbers] = interaction_vectors(corpus, 128, 42)
        everything, words = nearest_texts(texts, vectors=beside(vectors, together)), nearest_texts(texts)
        experts = bundle.model.experts
        for kept, wanted in zip(experts.similarities.numpy(), (everything, words), strict=True):
            table = csr_array((kept, experts.neighbours.numpy(), experts.text_offsets.numpy()), wanted.shape)
            assert np.allclose(table.toarray(), wanted.toarray(), atol=1e-6)
        assert len(experts.neighbours) == ((everything.toarray() > 0) | (words.toarray() > 0)).sum()
        assert everything.indices.tolist() != nearest_texts(texts, vectors=vectors).indices.tolist()
        alone = replace(corpus, train=SplitExamples.none())
        found = sid_likeness(alone, bundle.table.sid_numbers, "ready", vectors).by_all
        assert np.array_equal(found.toarray(), nearest_texts(texts, vectors=vectors).toarray())


def test_new_items_have_the_codes_of_their_columns(shop, tmp_path):
    """By the values that the model was trained with; known items keep theirs, and text is compared without them."""
    for name in ("before", "after"):
        corpus = Corpus.load(shop / name)
        brands = [f"brand {item[-1]}" for item in row_ids(corpus)]
        items, roles = corpus.items.assign(brand=brands), {"brand": "category"}
        replace(corpus, items=items, counts={**corpus.counts, "roles": roles}).save(
            tmp_path / name, config={}, inputs={}
        )
    changes = {"corpus": str(tmp_path / "before"), "item_columns": ["brand"], "epochs": 0.1}
    run_catalogue(catalogue_config(shop, **changes, output=str(tmp_path / "trained")))
    grown = extension(
        shop, "x", checkpoint=str(tmp_path / "trained"), corpus=str(tmp_path / "after"), output=str(tmp_path / "grown")
    )
    run_extend(grown)
    trained, bundle = load_bundle(tmp_path / "trained").model, load_bundle(tmp_path / "grown")
    assert bundle.model.item_columns() == trained.item_columns() and bundle.model.texts_width == 8
    codes = encode_columns(Corpus.load(tmp_path / "after").items, trained.item_columns())
    assert torch.equal(bundle.model.text[bundle.table.sid_numbers][:, 8:], torch.from_numpy(codes))
    torch.testing.assert_close(bundle.model.text[:, :8], load_bundle(shop / "catalogue_after").model.text)


def row_ids(corpus):
    """Item ids in the order of rows."""
    return corpus.items["item_id"].tolist()
