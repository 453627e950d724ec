"""The setting `ties` of prepare-data, what the audit says there, and later stages on what it makes."""

from collections import Counter

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from support.baskets import source_of
from support.builder import build
from support.examples import sid_windows
from support.paths import ROOT

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.data.names import SPLITS
from minionerec.data.shards import shard_files
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import SEED, run_prepare
from minionerec.sid.table import SidTable

DAY = 86_400


@pytest.fixture(scope="module")
def by_months(tmp_path_factory):
    """The demo shop with times of whole months, sorted by item within each: settings, and its table."""
    folder = tmp_path_factory.mktemp("months")
    bought = pd.read_csv(ROOT / "data" / "demo" / "interactions.csv")
    bought["timestamp"] = bought["timestamp"] // (30 * DAY) * 30 * DAY
    bought = bought.sort_values(["timestamp", "item_id"], kind="stable")
    bought.to_csv(folder / "bought.csv", index=False)
    items = str(ROOT / "data" / "demo" / "items.csv")
    return {"source": "tables", "interactions": str(folder / "bought.csv"), "items": items}, bought


def prepared(folder, settings, **changes):
    result = run_prepare(
        PrepareConfig(**settings, **changes, output=str(folder / "-".join(map(str, changes.values()))))
    )
    return Corpus.load(result.output), result


def require_equal(rows, others):
    """Rows are the same: users, histories, targets, and both times."""
    assert rows.users.tolist() == others.users.tolist() and rows.targets.tolist() == others.targets.tolist()
    histories = [[history.tolist() for history in each.histories] for each in (rows, others)]
    assert histories[0] == histories[1]
    for name in ("time", "previous"):
        assert getattr(rows.times, name).tolist() == getattr(others.times, name).tolist()


def test_a_file_that_is_a_listing_is_warned_of(tmp_path, by_months, caplog):
    caplog.set_level("INFO")
    settings, _ = by_months
    corpus, result = prepared(tmp_path, settings, ties="keep")
    order = corpus.counts["order"]
    ties = order["text"]["ties"]
    assert (order["ties"], ties["pairs"]) == (10_871, 10_867)  # docs/how-to/columns.md shows them
    assert ties["rising"] == ties["pairs"] and order["file"]["ties"] == {
        "pairs": order["ties"],
        "rising": order["ties"],
    }
    others = order["text"]["others"]  # from the last of one list to the first of the next: they fall
    assert 0.1 < others["rising"] / others["pairs"] < 0.4
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1 and "Set ties to 'shuffle' or 'together'" in warnings[0]
    assert f"neighbouring pairs within one second: {order['ties']:,} of {order['pairs']:,}" in caplog.text
    assert read_manifest(result.output)["seed"] is None
    caplog.clear()
    shuffled, result = prepared(tmp_path, settings, ties="shuffle")
    assert shuffled.counts["order"] == order and read_manifest(result.output)["seed"] == SEED
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    rows = shuffled.train.take(shuffled.train.times.same)
    rising = list(zip(rows.newest, rows.targets, strict=True))
    ids = shuffled.items["item_id"]
    assert np.mean([ids[one] < ids[other] for one, other in rising if one != other]) == pytest.approx(0.5, abs=0.02)


def test_times_are_written_in_parts_as_they_are_whole(tmp_path, by_months, monkeypatch):
    settings, _ = by_months
    whole, _ = prepared(tmp_path, settings, ties="together")
    assert whole.split == "global time 8:1:1, ties together"
    assert all(whole.rows(split).times.later.all() for split in SPLITS)
    monkeypatch.setattr("minionerec.data.shards.GROUP", 300)
    monkeypatch.setattr("minionerec.data.shards.SHARD", 6000)
    parts, result = prepared(tmp_path / "parts", settings, ties="together")
    files = [pq.ParquetFile(file) for file in shard_files(result.output)]
    assert len(files) == 3 and all(file.num_row_groups > 1 for file in files)
    for split in SPLITS:
        require_equal(whole.splits()[split], parts.splits()[split])


def test_a_source_without_times_gets_a_note(tmp_path, caplog):
    caplog.set_level("INFO")
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"u{user} 1 2 3 {4 + user % 3}\n" for user in range(9)))
    settings = {"source": "user_items", "interactions": str(lines), "split": "leave_last_out"}
    corpus, _ = prepared(tmp_path, settings, max_history=5)
    assert not corpus.has_times and corpus.test.times is None
    assert corpus.counts["order"] == {
        "pairs": 27,
        "text": {"all": {"pairs": 27, "rising": 27}},
        "number": {"all": {"pairs": 27, "rising": 27}},
    }
    assert "neighbouring pairs: 27; their times are unknown" in caplog.text
    assert "item ids as numbers rise in 100.0% of 27" in caplog.text and "Within one second" not in caplog.text
    with pytest.raises(ConfigError, match=f"ties is 'together', but {lines} holds no times"):
        prepared(tmp_path, settings, ties="together")


def test_the_published_rows_have_no_ties_to_settle():
    with pytest.raises(ConfigError, match="ties is 'shuffle', but source 'published' is already split"):
        PrepareConfig(source="published", category="Pots", ties="shuffle", output="x")


def test_the_catalogue_model_trains_on_every_target_once():
    pairs = [(position % 4, position // 12) for position in range(240)]
    corpus = build(source_of(pairs), ties="together").corpus()
    table = SidTable(
        np.stack(np.unravel_index(np.arange(corpus.n_items), (7, 7, 7)), 1).astype(np.int32),
        corpus.items["item_id"].tolist(),
    )
    windows, valid = sid_windows(corpus, table, recency=2.0)
    labels = windows["labels"]
    numbers = Counter((table.sid_numbers[corpus.train.targets] + 1).tolist())
    assert Counter(labels[labels > 0].tolist()) == numbers
    item_of = np.empty(corpus.n_items + 1, dtype=int)
    item_of[table.sid_numbers + 1] = np.arange(corpus.n_items)
    for history, wanted in zip(windows["histories"], labels, strict=True):
        for position in np.flatnonzero(wanted > 0):
            target = item_of[wanted[position]]
            assert all(pairs[item_of[seen]][1] < pairs[target][1] for seen in history[: position + 1])
    assert (windows["weights"][labels > 0]).mean() == pytest.approx(1.0)
    assert (valid["labels"] > 0).sum() == len(corpus.valid)
