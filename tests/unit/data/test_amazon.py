"""Raw Amazon files: written from a known corpus they come back row for row; every kind of damage has its message."""

import gzip
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builder import build, check
from support.interactions import DAY, ITEMS, corpus_rows, random_interactions
from support.raw_files import MAKERS, read_text, write_amazon, write_text

from minionerec.core.errors import ConfigError, DataError
from minionerec.data.corpus import Corpus
from minionerec.data.source import BadRows
from minionerec.data.sources.amazon import _cleaned, clean_text, clean_title, published_title, read_amazon, read_blocks
from minionerec.pipeline.cli.plan import config_values
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare
from minionerec.pipeline.settings import parse_settings

REVIEW, AT = '{"reviewerID": "R1", "asin": "B1", "unixReviewTime": %s}', {"reviews": 4, "meta": 1}


def interactions_of(source):
    """(user, item, seconds) of the interactions of a source, in the order of its file."""
    users = source.user_ids.take(pa.array(source.users)).to_pylist()
    items = source.items["item_id"].to_numpy()[source.item_index].tolist()
    return list(zip(users, items, (source.times // source.ticks).tolist(), strict=True))


@pytest.mark.parametrize("edition", list(MAKERS))
@pytest.mark.parametrize("suffix", [".json.gz", ".jsonl"])
def test_raw_files_of_a_known_corpus_come_back(tmp_path, edition, suffix):
    interactions = random_interactions()
    paths = write_amazon(tmp_path, edition, interactions, ITEMS[::-1], suffix)
    config = PrepareConfig(source=edition, **paths, core=5, output=str(tmp_path / "out"), max_history=4)
    counts = run_prepare(config).counts
    corpus, source = Corpus.load(tmp_path / "out"), read_amazon(edition, **paths)
    assert interactions_of(source) == interactions
    rows = corpus_rows(check(source, core=5, max_history=4).corpus())
    assert corpus_rows(corpus) == rows
    known = {item: (title, description) for item, title, description in ITEMS}
    for item, title, description, brand, categories in corpus.items.itertuples(index=False):
        assert (title, description) == known[item] and (brand, categories) == ("Acme", "Shop, Things")
    kept_items = {item for _, history, target in rows for item in [*history, target]}
    assert corpus.items["item_id"].tolist() == [item for item, _, _ in ITEMS[::-1] if item in kept_items]
    assert counts["reviews"] == 160 and counts["bad_rows"] == 0
    assert counts["interactions"] + counts["interactions_outside_core"] + counts["reviews_without_item"] == 160
    assert counts["users"] == len({user for user, _, _ in rows})
    assert run_prepare(config).up_to_date


def read(tmp_path, interactions=None, items=ITEMS, edition="amazon2018", bad=None, edit=None, **options):
    paths = write_amazon(tmp_path, edition, random_interactions() if interactions is None else interactions, items)
    for name, change in (edit or {}).items():
        path = tmp_path / f"{name}.json.gz"
        lines = read_text(path).splitlines()
        lines[change[0]] = change[1]
        write_text(path, "\n".join(lines) + "\n")
    return read_amazon(edition, **paths, bad=bad, **options)


def test_seconds_of_2023_are_ties_only_when_asked(tmp_path):
    interactions = random_interactions()
    paths = write_amazon(tmp_path, "amazon2023", interactions, ITEMS)
    records = [json.loads(line) for line in read_text(tmp_path / "reviews.json.gz").splitlines()]
    for position, record in enumerate(records):
        record["timestamp"] += 999 - 6 * position  # within the second, against the order of the file
    write_text(tmp_path / "reviews.json.gz", "".join(json.dumps(record) + "\n" for record in records))
    source = read_amazon("amazon2023", **paths)
    assert source.times.tolist() == [record["timestamp"] for record in records] and source.ticks == 1000
    fine, published = check(source), check(source, quirks=["published_order"])
    assert corpus_rows(fine.corpus()) != corpus_rows(published.corpus())
    assert interactions_of(source) == interactions


def test_the_window(tmp_path):
    days = [1_475_280_000 + day * DAY for day in range(400)]  # from 2016-10-01
    interactions = [(f"R{position % 3}", f"B{position % 8}", time) for position, time in enumerate(days)]
    source = read(tmp_path, interactions)
    counts = build(source, start="2016-12-01", end="2017-01-01", core=2).counts
    assert counts["interactions"] == 32 and counts["interactions_outside_window"] == 368
    with pytest.raises(DataError, match=r"no interaction is left of 400 \(interactions_outside_window 400\)\. Widen"):
        build(source, start="2020-01-01")


def test_a_core_that_leaves_nothing(tmp_path):
    with pytest.raises(DataError, match=r"reviews\.json\.gz: no interaction is left of .*outside_core .*lower core"):
        build(read(tmp_path), core=100)


@pytest.mark.parametrize(
    ("raw", "clean", "published"),
    [
        ('  5&quot; Bolt &amp; nut" ', '5" Bolt & nut', '5" Bolt & nut'),
        ('"Caf&eacute; <b>cup</b>"', "Café cup", "Caf&eacute; <b>cup</b>"),
        ("<span id='x'>oops</span>", "", ""),
        ("a", "", ""),
        ("", "", ""),
        ("one two three four five", "", ""),
    ],
)
def test_titles(raw, clean, published):
    assert clean_title(raw, max_words=4) == clean
    assert published_title(raw, max_words=4) == published


@given(st.lists(st.none() | st.text(st.sampled_from('ab;"é&<>/ \t\n\x1f\x7f\u00a0')) | st.just("x &lt;b> &amp; <p>")))
def test_texts_cleaned_together_are_those_cleaned_one_by_one(texts):
    assert _cleaned(pa.array(texts, pa.string())) == [clean_text(text or "") for text in texts]


def test_items_without_a_title_take_their_reviews_along(tmp_path):
    items = [*ITEMS[:2], ("B2", "<span id", ""), ("B3", "too many words here", ""), *ITEMS[4:7], ("B99", "Unseen", "")]
    source = read(tmp_path, items=items, max_title_words=3)
    assert source.items["item_id"].tolist() == ["B0", "B1", "B4", "B5", "B6"]
    kept = [visit for visit in random_interactions() if visit[1] in set(source.items["item_id"])]
    assert interactions_of(source) == kept
    items = {"items_without_metadata": 1, "items_left_out_without_title": 2, "items_repeated": 0}
    assert source.counts == {"reviews": 160, "reviews_without_item": 160 - len(kept), **items}


def test_texts_of_any_form(tmp_path):
    """A description that is text and not a list makes arrow refuse the block; it is read line by line then."""
    line = json.dumps({"asin": "B0", "title": "Pot", "description": "<p>Big &amp;\n red</p>", "brand": ["A", "B"]})
    source = read(tmp_path, edit={"meta": (0, line)})
    first = source.items.iloc[0]
    assert first.tolist() == ["B0", "Pot", "Big & red", "A B", ""]
    assert len(source.items) == 8 and source.items["description"].iloc[1] == "What 1 does"
    line = json.dumps({"asin": "B1", "title": "Pot", "description": ["Big", None, "red"], "category": None})
    items = read(tmp_path, edit={"meta": (1, line)}).items
    assert items.iloc[1].tolist() == ["B1", "Pot", "Big red", "", ""] and items.iloc[2]["categories"] == "Shop, Things"


BROKEN = [
    ("reviews", '{"reviewerID": "R1", "asin"', "malformed", r"reviews\.json\.gz, line 5: .*in '{\"reviewerID\""),
    ("reviews", "[1, 2]", "malformed", "line 5: a JSON list, expected an object"),
    ("reviews", REVIEW.replace('"R1"', "7") % 1, "malformed", "line 5: 'reviewerID' is 7"),
    ("reviews", '{"asin": "B1", "unixReviewTime": 1}', "missing_id", "line 5: 'reviewerID' is missing or empty"),
    ("reviews", REVIEW.replace("B1", "") % 1, "missing_id", "line 5: 'asin' is missing"),
    ("reviews", '{"reviewerID": "R1", "asin": "B1"}', "bad_time", "line 5: 'unixReviewTime' is missing or empty"),
    ("reviews", REVIEW % '"soon"', "malformed", "line 5: invalid literal for int"),
    (
        "reviews",
        REVIEW.replace("R1", r"R\n1") % 1_500_000_000,
        "malformed_id",
        r"line 5: 'reviewerID' is 'R\\n1', expected a text of one line",
    ),
    ("meta", '{"asin": "B1", "title": "Pot"', "malformed", r"meta\.json\.gz, line 2"),
    ("meta", '{"title": "Pot"}', "missing_id", r"meta\.json\.gz, line 2: 'asin' is missing"),
    ("meta", '{"asin": "B1", "title": {"x": 1}}', "malformed", "line 2: 'title' is"),
    (
        "meta",
        '{"asin": "B0", "title": "Other"}',
        "duplicate_item",
        "line 2: item 'B0' occurs again with different text",
    ),
]


@pytest.mark.parametrize(("name", "line", "kind", "message"), BROKEN)
def test_a_bad_line_is_named_and_may_be_dropped(tmp_path, name, line, kind, message):
    edit, bad = {name: (AT[name], line)}, BadRows(1)
    with pytest.raises(DataError, match=message):
        read(tmp_path, edit=edit)
    source = read(tmp_path, edit=edit, bad=bad)
    assert bad.counts() == {"bad_rows": 1, f"bad_rows_{kind}": 1}
    interactions = random_interactions()
    if name == "reviews":
        del interactions[AT[name]]
    else:
        interactions = [visit for visit in interactions if visit[1] != "B1"]
    assert interactions_of(source) == interactions


def test_two_bad_lines_are_too_many_for_one(tmp_path):
    edit = {"reviews": (2, "nonsense"), "meta": (1, "nonsense")}
    with pytest.raises(DataError, match=r"meta\.json\.gz, line 2: .*That makes 2 bad rows, and max_bad_rows is 1"):
        read(tmp_path, edit=edit, bad=BadRows(1))


def test_bytes_that_are_no_text(tmp_path):
    paths = write_amazon(tmp_path, "amazon2018", random_interactions(), ITEMS, ".json")
    path = tmp_path / "reviews.json"
    path.write_bytes(path.read_bytes().replace(b'"reviewerID": "R', b'"reviewerID": "\xff', 1))
    with pytest.raises(DataError, match="line 1: 'utf-8' codec can't decode"):
        read_amazon("amazon2018", **paths)


def test_an_item_that_comes_again_unchanged_is_counted(tmp_path):
    assert read(tmp_path, items=[*ITEMS, ITEMS[3]]).counts["items_repeated"] == 1


def test_a_file_that_is_truncated(tmp_path):
    paths = write_amazon(tmp_path, "amazon2018", random_interactions(), ITEMS)
    path = tmp_path / "reviews.json.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(DataError, match=r"reviews\.json\.gz: the gzip data end too soon, so the file is truncated"):
        read_amazon("amazon2018", **paths, bad=BadRows(100))
    path.write_bytes(whole[:200] + b"\0\0\0\0" + whole[204:])
    with pytest.raises(DataError, match=r"reviews\.json\.gz: damaged gzip data"):
        read_amazon("amazon2018", **paths)
    path.unlink()
    with pytest.raises(DataError, match=r"reviews\.json\.gz: no such file"):
        read_amazon("amazon2018", **paths)


def test_files_of_two_categories(tmp_path):
    with pytest.raises(DataError, match="none of the 160 reviews is about an item with a title"):
        read(tmp_path, items=[("X1", "Thing", "")])


@pytest.mark.parametrize("size", [1, 40, 10_000])
def test_blocks_are_the_file_in_whole_lines(tmp_path, size, monkeypatch):
    monkeypatch.setattr("minionerec.data.sources.amazon.READ_SIZE", 37)
    text = "".join(f"line {n} {'x' * (n % 90)}\n" for n in range(200)) + "no end"
    parts = [gzip.compress(text[:900].encode()), gzip.compress(text[900:].encode())]
    (tmp_path / "two.gz").write_bytes(b"".join(parts))  # as `cat a.gz b.gz` makes it
    (tmp_path / "plain").write_text(text)
    for name in ("two.gz", "plain"):
        blocks = list(read_blocks(tmp_path / name, size))
        assert all(block.endswith(b"\n") for block in blocks)
        assert b"".join(blocks) == text.encode() + b"\n"
    (tmp_path / "empty").write_bytes(b"")
    assert list(read_blocks(tmp_path / "empty")) == []


def test_line_numbers_go_on_over_blocks(tmp_path):
    edit = {"reviews": (150, "")}
    whole = read(tmp_path, edit=edit)  # an empty line is no review
    assert read(tmp_path, edit=edit, block_size=300).times.tolist() == whole.times.tolist()
    with pytest.raises(DataError, match=r"reviews\.json\.gz, line 151: "):
        read(tmp_path, edit={"reviews": (150, '{"asin": 1}')}, block_size=300)


@pytest.mark.parametrize("edition", list(MAKERS))
def test_committed_configurations(edition, tmp_path):
    words = ["--config", f"amazon/{edition.removeprefix('amazon')}#data", "--output", str(tmp_path / "out")]
    config = parse_settings(PrepareConfig, words, read=config_values)
    assert (config.source, config.core, config.max_history) == (edition, 5, 10)
    years = {"amazon2018": 1, "amazon2023": 4}[edition]  # into the configuration's window
    interactions = [(user, item, time + years * 365 * DAY) for user, item, time in random_interactions()]
    paths = write_amazon(tmp_path, edition, interactions, ITEMS)
    words += ["--interactions", paths["interactions"], "--items", paths["items"]]
    counts = run_prepare(parse_settings(PrepareConfig, words, read=config_values)).counts
    assert (counts["bad_rows"], counts["interactions_outside_window"]) == (0, 0)


def test_a_window_begins_at_a_time(tmp_path):
    with pytest.raises(ConfigError, match="'yesterday' is no time"):
        build(read(tmp_path), start="yesterday")


def test_lines_of_2014_are_dictionaries_of_python(tmp_path):
    """Nothing in them is run, and the paths of categories are one list."""
    reviews = [{"reviewerID": f"u{n % 4}", "asin": f"b{n % 3}", "unixReviewTime": 1_300_000_000 + n} for n in range(12)]
    items = [
        {"asin": f"b{n}", "title": f"It's \\ tea {n}", "description": None, "price": 9.99, "brand": "Ü",
         "categories": [["Food", "Tea"], ["Food", "Green"]], "salesRank": {"Food": n}}
        for n in range(3)
    ]  # fmt: skip
    paths = {"interactions": tmp_path / "reviews.json", "items": tmp_path / "meta.json"}
    paths["interactions"].write_text("".join(f"{row}\n" for row in reviews))
    paths["items"].write_text("".join(f"{row}\n" for row in items))
    source = read_amazon("amazon2018", **paths)
    assert source.items["title"].tolist() == [f"It's \\ tea {n}" for n in range(3)]
    assert source.items["categories"].tolist() == ["Food, Tea, Green"] * 3 and len(source.times) == 12
    for line in (
        "{'asin': __import__('os').getcwd()}",
        "{'asin': " + "[" * 5_000,
        "{'asin': 'b0'",
        "{'asin': {[]: 1}}",
    ):
        paths["items"].write_text(f"{items[0]}\n{line}\n")
        with pytest.raises(DataError, match=r"meta\.json, line 2: "):
            read_amazon("amazon2018", **paths)
