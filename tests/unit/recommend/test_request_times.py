"""Request features derived from the times of a request: those of evaluation, of nothing but the past, or one error."""

from dataclasses import replace
from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builder import build, read_tables

from minionerec.data.contexts import RequestFeature, corpus_codes, corpus_features
from minionerec.data.names import SPLITS
from minionerec.data.sources.times import parse_times
from minionerec.recommend.rankers.protocol import Ranking
from minionerec.recommend.recommender import Recommender
from minionerec.recommend.requests import Request, RequestError

START = 1_541_376_000  # 2018-11-05, midnight in UTC
DAY = 86_400


BY_DAY = RequestFeature("gap", ("same", "later"), (0,), DAY)


class AnyRanker:
    """Ranks nothing, but reads the features that it is given."""

    def __init__(self, *features):
        self.features = features
        self.context = frozenset(feature.name for feature in features)

    def rank(self, queries, k, allowed=None):
        return Ranking([[0]] * len(queries), [[0.0]] * len(queries))


def iso(seconds):
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def as_day(seconds):
    return iso(seconds)[:10]


@settings(max_examples=80)
@given(
    st.lists(st.datetimes(datetime(1902, 1, 1), datetime(2099, 12, 30)), min_size=1, max_size=5),
    st.sampled_from(["T", " "]),
    st.sampled_from(["auto", "minutes", "milliseconds", "microseconds"]),
    st.sampled_from(["", "Z", "+14:00", "-05:30"]),
)
def test_dates_are_read_as_columns_of_tables_are(times, separator, precision, zone):
    texts = [time.isoformat(separator, precision) + zone for time in sorted(times)]
    wanted, right, ticks, _ = parse_times(pd.Series(texts))
    assert right.all() and ticks == 10**9
    assert Request(["a"] * len(texts), times=texts, now=texts[-1]).seconds()[0] == (wanted // ticks).tolist()


class OneItem:
    def index(self, item_id):
        return 0 if item_id == "i1" else None


FORMS = {  # of the table, and of requests
    "days": (as_day, iso),
    "moments": (iso, iso),
    "seconds": (int, int),
    "milliseconds": (lambda seconds: seconds * 1000 + 7, lambda seconds: seconds * 1000 + 7),
    "numbers as text": (str, str),
    "local midnights": (lambda seconds: (seconds - START) // DAY * DAY + START - 5 * 3600, lambda s: s - 5 * 3600),
}


def interactions(users=12, seed=0):
    """User, item and time: visits of some minutes, several on some days."""
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(users):
        time = START + int(rng.integers(90)) * DAY + 7 * 3600
        for _ in range(10):
            rows.append((f"u{user}", f"i{rng.integers(8)}", time))
            time += int(rng.choice([0, 1_800, 3 * DAY + 5, 40 * DAY + 11], p=[0.3, 0.3, 0.3, 0.1]))
    return pd.DataFrame(rows, columns=["user_id", "item_id", "timestamp"])


def corpus_of(folder, table, **choices):
    table.to_csv(folder / "interactions.csv", index=False)
    pd.DataFrame({"item_id": [f"i{item}" for item in range(8)], "title": "Tea"}).to_csv(
        folder / "items.csv", index=False
    )
    return build(read_tables(folder / "interactions.csv", folder / "items.csv"), **choices)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A recommender of a corpus in days."""
    table = interactions().assign(timestamp="2018-11-05")
    return Recommender.of(AnyRanker(BY_DAY), corpus_of(tmp_path_factory.mktemp("shop"), table).corpus())


def asked(recommender, history, times, now, **more):
    return recommender.recommend(history, 1, times=times, now=now, **more).context["gap"]


@pytest.mark.parametrize(
    ("form", "ties"),
    [*((form, "together") for form in FORMS), ("days", "keep"), ("moments", "keep"), ("days", "shuffle")],
)
def test_requests_with_the_times_of_test_examples_have_the_features_of_evaluation(tmp_path, form, ties):
    """Each example is asked as a shop would on that day: the purchases before it with their times, and the time."""
    write, request = FORMS[form]
    table = interactions()
    times = {user: sorted(own["timestamp"]) for user, own in table.groupby("user_id")}
    table["timestamp"] = [write(time) for time in table["timestamp"]]
    built = corpus_of(tmp_path, table, ties=ties)
    corpus, chains = built.corpus(), built.chains
    features = corpus_features(corpus)
    recommender = Recommender.of(AnyRanker(*features), corpus)
    ids = corpus.items["item_id"].tolist()
    checked = 0
    for split in SPLITS:
        wanted = corpus_codes(corpus, features, split)
        for position in np.flatnonzero(chains.splits == SPLITS.index(split)):
            owner = int(np.searchsorted(chains.offsets, position, side="right")) - 1
            begin, end = int(chains.offsets[owner]), int(position)
            while ties == "together" and end > begin and chains.times[end - 1] == chains.times[position]:
                end -= 1
            known = times[chains.users[owner]][: position - begin + 1]
            history = [ids[item] for item in chains.items[begin:end]]
            given = {"times": [request(time) for time in known[: end - begin]], "now": request(known[-1])}
            found = recommender.recommend(history, 1, **given).context
            codes = wanted[chains.rows[position]]
            assert found == {of.name: of.names[code] for of, code in zip(features, codes, strict=True)}, (split, known)
            checked += found["gap"] != "unknown"
    assert checked > 60


def test_a_given_context_wins_and_what_the_model_does_not_read_is_no_part(shop):
    day, next_day = "2018-11-05T09:00:00", "2018-11-06"
    assert asked(shop, ["i1"], [day], "2018-11-05T23:59:59") == "same"
    assert asked(shop, ["i1"], [day], next_day) == "later"
    assert asked(shop, ["i1"], [day], next_day, context={"gap": "same"}) == "same"
    assert asked(shop, ["i1", "?"], [day, next_day], next_day) == "later"  # the newest item that the model reads
    assert asked(shop, ["i1", "i2"], [day, None], next_day) == "unknown"
    assert asked(shop, ["i1", "i2"], [None, day], next_day) == "later"
    assert asked(shop, [], [], next_day) == asked(shop, ["?"], [day], next_day) == "unknown"
    assert asked(shop, ["i1"], None, next_day) == "unknown"


@pytest.mark.parametrize(
    "convert", [datetime.fromisoformat, pd.Timestamp, np.datetime64, lambda text: date.fromisoformat(text[:10])]
)
def test_times_of_python_numpy_and_pandas_are_taken(shop, convert):
    times = [convert(text) for text in ("2018-11-03T00:00:00", "2018-11-05T00:00:00")]
    assert asked(shop, ["i1", "i2"], times, times[1]) == "same"
    assert asked(shop, ["i1", "i2"], pd.Series(times), times[1] + (times[1] - times[0])) == "later"


@pytest.mark.parametrize(
    ("times", "now", "message"),
    [
        (["2018-11-05"], None, "now: is missing, but times is given; give it too, or leave times out."),
        ([START], START, "times: has 1 times for 2 items of the history; give one for each, null where it is not"),
        ("2018-11-05", START, "times: is '2018-11-05'; expected a list of times."),
        ([START, [START]], START, r"times\[1\]: is \[.*\]; expected an ISO date such as"),
        ([START, True], START, r"times\[1\]: is True; expected an ISO date such as"),
        ([START, START + 9], START + 8, r"now: is 1541376008, earlier than times\[1\], 1541376009. Give the time of"),
        ([START, None], START - 1, r"now: is 1541375999, earlier than times\[0\]"),
        ([START + 9, START], START + 9, r"times\[1\]: is 1541376000, earlier than times\[0\], .* Give times oldest"),
        (
            [START * 1000, START],
            START,
            r"times\[0\]: is 1541376000000, which looks like milliseconds since 1970; now looks",
        ),
        ([START, START], START * 10**9, r"times\[0\]: is 1541376000, which looks like seconds .* now looks like nano"),
        (
            [17_840, 17_841],
            17_842,
            r"times\[0\]: is 17840, which looks like no time from 1973 to 2100; expected an ISO",
        ),
        ([START, None], 20_181_105_093_000, "now: is 20181105093000, which looks like no time from 1973 to 2100"),
        ([START, "2018-11-05"], START, r"times\[1\]: is '2018-11-05'; expected a number, as the others."),
        (["2018-11-05", START], "2018-11-05", r"times\[1\]: is 1541376000; expected an ISO date, as the others."),
        (["5.11.2018", None], "6.11.2018", r"times\[0\]: is '5.11.2018'; expected an ISO date such as"),
        ([float("nan"), None], START, r"times\[0\]: is nan; expected a number, as the others."),
        ([START, START], float("inf"), "now: is inf; expected a number, as the others."),
        ([START, 10**40], START, r"times\[1\]: is 1000.*; expected a number, as the others."),
    ],
)
def test_times_that_cannot_be_taken_are_one_error(shop, times, now, message):
    with pytest.raises(RequestError, match=f"^{message}") as raised:
        shop.recommend(["i1", "i2"], 1, times=times, now=now)
    assert "\n" not in str(raised.value)


@settings(max_examples=80)
@given(st.data())
def test_any_times_are_a_context_or_one_error(data):
    time = st.none() | st.sampled_from(
        [0, -1, START, START + 0.5, START * 1000, 17_840, "2018-11-05", "2018-11", "9999-01-01", "2018-11-05T25", "",
         " ", "NaT", "nan", "1e9", "\x00", "2018-11-05T12:00:00+14:00", 2**63, -(2**70), 1e300, "é" * 600]
    )  # fmt: skip
    recommender = Recommender(AnyRanker(BY_DAY), OneItem(), "m", "v", 9, [BY_DAY])
    times = data.draw(st.lists(time, max_size=4))
    try:
        request = Request(["i1"] * len(times), times=times, now=data.draw(time))
        assert recommender.understand(request)[0].context["gap"][0] in (0, 1, 2)
    except RequestError as error:
        assert "\n" not in str(error) and len(str(error)) < 400


@pytest.mark.parametrize("times", ["days since 1970", "an order", "fractions"])
def test_where_a_corpus_has_no_real_times_nothing_is_derived(tmp_path, times):
    table = interactions()
    table["timestamp"] = {
        "days since 1970": table["timestamp"] // DAY,
        "an order": np.arange(len(table)),
        "fractions": np.arange(len(table)) / 7,
    }[times]
    corpus = corpus_of(tmp_path, table).corpus()
    features = corpus_features(corpus)
    assert all((feature.name, feature.unit) == ("gap", 0) for feature in features)
    recommender = Recommender.of(AnyRanker(*(features or [replace(BY_DAY, unit=0)])), corpus)
    assert asked(recommender, ["i1"], [START], START + 40 * DAY) == "unknown"
    assert asked(recommender, ["i1"], [START], START, context={"gap": "later"}) == "later"
    with pytest.raises(RequestError, match="earlier than"):
        asked(recommender, ["i1"], [START], START - DAY)


def test_a_model_without_features_takes_times_and_derives_nothing(tmp_path):
    recommender = Recommender.of(AnyRanker(), corpus_of(tmp_path, interactions()).corpus())
    assert recommender.recommend(["i1"], 1, times=[START], now=START + 9 * DAY).context == {}


def test_the_time_of_the_request_alone_gives_hour_and_weekday(tmp_path):
    corpus = corpus_of(tmp_path, interactions()).corpus()
    recommender = Recommender.of(AnyRanker(*corpus_features(corpus)), corpus)
    found = recommender.recommend(["i1"], 1, now="2018-11-06T13:30:00+02:00").context
    assert found == {"gap": "unknown", "hour": "11", "weekday": "Tuesday"}
    found = recommender.recommend([], 1, now=START, context={"hour": 3, "gap": 5}).context
    assert found == {"gap": "unknown", "hour": "3", "weekday": "Monday"}
