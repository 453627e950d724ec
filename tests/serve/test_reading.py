"""Bodies read strictly: every mistake has one line and a field; any value is a request or a refusal."""

import json
import re
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minionerec.recommend.requests import Request
from minionerec.serve.config import Limits
from minionerec.serve.openapi import schemas
from minionerec.serve.reading import Refusal, read_call, read_json, read_request

FIELDS = Request.names()
LIMITS = Limits(max_k=50, max_history=5, max_list=6, max_requests=3)


def refusal(body):
    with pytest.raises(Refusal) as raised:
        read_call(read_json(body if isinstance(body, bytes) else json.dumps(body).encode()), LIMITS)
    reported = json.loads(raised.value.body())["error"]
    assert "\n" not in reported["message"] and reported["message"].endswith(".")
    return raised.value.status, reported["field"], reported["message"]


def test_a_full_request_is_read():
    body = {
        "history": ["a", "ä"],
        "k": 3,
        "exclude_seen": True,
        "only": ["b"],
        "without": ["c"],
        "where": {"price": {"at_least": 1, "at_most": 2.5}, "department": ["Tea", "Ink"], "in_stock": True},
        "unknown": "refuse",
        "context": {"gap": "later", "hour": 3},
        "times": ["2018-11-05", None],
        "now": 1.5,
        "events": ["view", None],
        "columns": ["price"],
        "boost": {"department": {"Tea": 1.5}},
        "at_most": {"department": 2},
        "diversity": 0.5,
    }
    requests, single = read_call(read_json(json.dumps(body).encode()), LIMITS)
    assert ([asdict(request) for request in requests], single) == ([body], True)
    assert set(body) == set(FIELDS)
    requests, single = read_call({"requests": [body, {}]}, LIMITS)
    assert ([asdict(request) for request in requests], single) == ([body, asdict(Request())], False)


def test_an_empty_request_is_that_of_a_new_user():
    assert asdict(read_request({}, LIMITS)) == asdict(Request())
    assert asdict(read_request({"only": None, "where": None}, LIMITS)) == asdict(Request())
    assert read_request({"only": []}, LIMITS).only == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is empty"),
        (b" \n", "the body is empty"),
        (b"{", "is not valid JSON: .* line 1, column 2"),
        (b'{"k": 1} {}', "is not valid JSON: Extra data"),
        (b'{"k": NaN}', "NaN is not a number"),
        (b'{"k": -Infinity}', "-Infinity is not a number"),
        (b'{"k": 1e999}', "a number that is too large"),
        (b'{"k": ' + b"9" * 5000 + b"}", "more than 18 digits"),
        (b'{"history": ["\xff"]}', "not valid UTF-8: byte 14 is 0xff"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"where":' * 50_000 + b"1" + b"}" * 50_000, "nested too deeply"),
        (b"\xef\xbb\xbf{}", "is not valid JSON"),
    ],
)
def test_what_is_no_json_is_400(body, message):
    status, field, reported = refusal(body)
    assert (status, field) == (400, None)
    assert re.search(message, reported)


def test_a_name_given_twice_is_named():
    assert refusal(b'{"k": 1, "history": [], "k": 2}') == (400, "k", "is given twice; give it once.")


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ([], None, "the body is an empty list; expected an object with a history."),
        (7, None, "the body is 7; expected an object with a history."),
        ({"history": "a"}, "history", "is 'a'; expected a list of item ids."),
        ({"history": None}, "history", "is null; expected a list of item ids."),
        ({"history": ["a", 7]}, "history[1]", "is 7; expected an item id: a text of 1 to 512 characters, in quotes."),
        ({"history": [""]}, "history[0]", "is ''; expected an item id: a text of 1 to 512 characters, in quotes."),
        (
            {"history": ["\ud800"]},
            "history[0]",
            "is '\\ud800'; expected an item id: a text of 1 to 512 characters, in quotes.",
        ),
        ({"history": ["a"] * 6}, "history", "has 6 ids; at most 5 are allowed."),
        ({"only": ["a"] * 7}, "only", "has 7 ids; at most 6 are allowed."),
        ({"without": {}}, "without", "is an object; expected a list of item ids."),
        ({"k": 0}, "k", "is 0; expected a whole number from 1 to 50."),
        ({"k": 51}, "k", "is 51; expected a whole number from 1 to 50."),
        ({"k": 1.0}, "k", "is 1.0; expected a whole number from 1 to 50."),
        ({"k": True}, "k", "is true; expected a whole number from 1 to 50."),
        ({"k": "9"}, "k", "is '9'; expected a whole number from 1 to 50."),
        ({"exclude_seen": 1}, "exclude_seen", "is 1; expected true or false."),
        ({"unknown": "drop"}, "unknown", 'is \'drop\'; expected "skip" or "refuse".'),
        ({"unknown": []}, "unknown", 'is an empty list; expected "skip" or "refuse".'),
        ({"context": "now"}, "context", "is 'now'; expected an object of request features and values."),
        ({"context": {"gap": {}}}, "context.gap", "is an object; expected a name or a number."),
        ({"context": {"gap": True}}, "context.gap", "is true; expected a name or a number."),
        ({"times": 5, "now": 5}, "times", "is 5; expected a list of times."),
        ({"times": [5] * 6, "now": 5}, "times", "has 6 times; at most 5 are allowed."),
        ({"times": [{}], "now": 5}, "times[0]", "is an object; expected an ISO date such as 2018-11-05T12:30:00, or a"),
        ({"times": [True], "now": 5}, "times[0]", "is true; expected an ISO date such as"),
        ({"times": ["\ud800"], "now": 5}, "times[0]", "is '\\ud800'; expected an ISO date such as"),
        ({"times": [], "now": []}, "now", "is an empty list; expected an ISO date such as"),
        ({"history": ["a"], "times": [5]}, "now", "is missing, but times is given; give it too, or leave times out."),
        (
            {"history": ["a"], "times": [], "now": 5},
            "times",
            "has 0 times for 1 items of the history; give one for each",
        ),
        ({"where": []}, "where", "is an empty list; expected an object of columns and conditions."),
        ({"where": {"price": None}}, "where.price", "is null; expected true, false, a number or a text"),
        ({"where": {"price": {}}}, "where.price", "is empty; expected at least one."),
        ({"where": {"price": {"most": 1}}}, "where.price.most", "is unknown; expected at_least, at_most."),
        ({"where": {"price": {"at_most": "1"}}}, "where.price.at_most", "is '1'; expected a number."),
        ({"where": {"price": []}}, "where.price", "is empty; expected at least one."),
        ({"where": {"price": [1] * 7}}, "where.price", "has 7 values; at most 6 are allowed."),
        ({"where": {"price": {"at_least": True}}}, "where.price.at_least", "is true; expected a number."),
        ({"where": {"\ud800": 1}}, "where.'\\ud800'", "is unknown; expected the name of a column."),
        ({"__dataclass_self__": 1}, "__dataclass_self__", "is unknown; expected history, k, "),
        ({"where": {"price": [[1]]}}, "where.price[0]", "is a list; expected true, false, a number or a text"),
        ({"where": {f"c{i}": 1 for i in range(33)}}, "where", "has 33 conditions; at most 32 are allowed."),
        ({"histroy": []}, "histroy", f"is unknown; expected {', '.join(FIELDS)}."),
        ({"requests": []}, "requests", "is an empty list; expected a list of requests, not empty."),
        ({"requests": [{}] * 4}, "requests", "has 4 requests; at most 3 per call are allowed."),
        ({"requests": [{}, {"k": 0}]}, "requests[1].k", "is 0; expected a whole number from 1 to 50."),
        ({"requests": [{}, 5]}, "requests[1]", "is 5; expected an object with a history."),
        ({"at_most": {"a": 1.5}}, "at_most.a", "is 1.5; expected a whole number from 1."),
        ({"at_most": {f"c{i}": 1 for i in range(33)}}, "at_most", "has 33 conditions; at most 32 are allowed."),
        ({"boost": {"a": {"b": -1}}}, "boost.a.b", "is -1; expected a number above 0, at most 1000000."),
        ({"boost": {"a": {}}}, "boost.a", "is empty; expected at least one."),
        ({"diversity": -0.1}, "diversity", "is -0.1; expected a number from 0 to 1."),
        ({"history": ["a"], "events": [1]}, "events[0]", "is 1; expected the name of an event."),
        (
            {"history": ["a"], "events": []},
            "events",
            "has 0 events for 1 items of the history; give one for each, null where it is not known.",
        ),
        ({"columns": ["a"] * 33}, "columns", "has 33 names of columns; at most 32 are allowed."),
        ({"requests": [{}], "k": 5}, "k", "is unknown; expected requests."),
    ],
)
def test_a_wrong_field_is_422_and_named(body, field, message):
    status, named, reported = refusal(body)
    assert (status, named) == (422, field)
    assert reported.startswith(message)


def test_long_and_strange_names_are_shown_short_and_plain():
    _, field, _ = refusal({"ä" * 1000: 1})
    assert field.isascii() and len(field) <= 60
    _, field, reported = refusal({"history": ["x" * 100_000]})
    assert (field, len(reported) < 200) == ("history[0]", True)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5)
TREES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner), max_leaves=8
)
NEAR = st.dictionaries(st.sampled_from([*FIELDS, "requests", "at_least", "é"]), TREES, max_size=4)


@settings(max_examples=150)
@given(NEAR | TREES)
def test_any_value_is_a_request_or_a_refusal(value):
    try:
        requests, _ = read_call(value, LIMITS)
    except Refusal as refused:
        assert refused.status == 422
        json.loads(refused.body())
    else:
        assert all(type(request.k) is int and 1 <= request.k <= 50 for request in requests)
        assert all(type(entry) is str and entry for request in requests for entry in request.history)


@settings(max_examples=100)
@given(st.binary(max_size=40) | st.text(alphabet='{}[]":,\\u0123456789.eE-+ntfalsrue ', max_size=40).map(str.encode))
def test_any_bytes_are_json_or_a_refusal(body):
    try:
        read_json(body)
    except Refusal as refused:
        assert refused.status == 400


def test_the_description_has_the_fields_that_are_read_with_their_limits():
    described = schemas(LIMITS)["Request"]["properties"]
    assert tuple(described) == FIELDS
    assert described["k"]["maximum"] == LIMITS.max_k and described["history"]["maxItems"] == LIMITS.max_history
    assert schemas(LIMITS)["Requests"]["properties"]["requests"]["maxItems"] == LIMITS.max_requests
    empty = read_request({}, LIMITS)
    defaults = {name: field["default"] for name, field in described.items() if "default" in field}
    assert tuple(defaults) == FIELDS
    assert defaults == json.loads(json.dumps(asdict(empty)))
