"""Mutated bodies of `POST /v1/recommend`: a list of distinct items that may be in it, or one error of status 4xx."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pandas as pd
import pytest
from hostile import mutate
from hostile.mutate import attacked, randoms
from hypothesis import given
from starlette.testclient import TestClient
from support.gaps import GAP
from support.serving import fake_service

from minionerec.recommend.items import CatalogueItems, Column
from minionerec.recommend.recommender import Recommender
from minionerec.serve.reading import read_call
from minionerec.serve.server import create_app

N_ITEMS = 24
IDS = [f"i{n}" for n in range(N_ITEMS)]
TIMES = (
    *("2018-11-05", "2018-11-05T23:59:59.9999", "2018-11-06T01:00+02:00", "2018-11", "2018-W45-1", "20181105", ""),
    *("2018-11-31", "9999-12-31", "0001-01-01", "NaT", "now", "1541376000", " 2018-11-05", "2018-11-05T24:00", "1e9"),
    *(1_541_376_000, 1_541_376_000.5, 1_541_376_000_000, 17_840, 20_181_105, -1, 0, 2**62, 1e300, True, None, [], {}),
)
ODD = ("view", "i3", "Tea", "", 3, 25, -1, 0, 1, 1.5, 1e308, 10**17, float("nan"), True, None, [], {}, ["i1"], {"a": 1})
"""Values that some fields take and most refuse."""
FULL: dict[str, Any] = {
    **{"history": ["i1", "i2", "nobody"], "k": 3, "exclude_seen": True, "unknown": "skip", "context": {"gap": "later"}},
    **{"times": ["2018-11-05", None, "2018-11-05T09:30:00"], "now": "2018-11-06", "events": ["view", None, "buy"]},
    **{"only": [*IDS[:15], "nobody"], "without": ["i3"], "where": {"price": {"at_least": 1, "at_most": 9.5}}},
    **{"columns": ["department"], "boost": {"department": {"Tea": 1.2}}, "at_most": {"department": 2}},
    "diversity": 0.3,
}


@pytest.fixture(scope="module")
def client(telling, tmp_path_factory):
    """A server of a trained model with request features, over items with columns of every kind."""
    columns = {
        "department": Column.of(pd.Series(["Tea", "Ink", None] * 8)),
        "price": Column.of(pd.Series([float(item) for item in range(N_ITEMS)])),
        "in_stock": Column.of(pd.Series([item % 3 != 0 for item in range(N_ITEMS)])),
    }
    items = CatalogueItems(IDS, [f"Thing {item}" for item in range(N_ITEMS)], columns)
    features = (replace(GAP, unit=86_400),)
    recommender = Recommender(telling.ranker, items, "told", "1", telling.max_history, features)
    service = fake_service(tmp_path_factory.mktemp("served"))
    service.shelf._load = lambda sources: recommender
    service.shelf.bring(service.reloader.sources)
    with TestClient(create_app(service), raise_server_exceptions=False) as opened:
        opened.service = service
        yield opened


def containers(value: Any) -> list[Any]:
    """The objects and lists within a JSON value, itself included."""
    if not isinstance(value, dict | list):
        return []
    parts = value.values() if isinstance(value, dict) else value
    return [value, *(inner for part in parts for inner in containers(part))]


def random_body(rng: Random) -> bytes:
    """Some fields of one or two requests with other values, or the JSON text changed."""
    requests = [json.loads(json.dumps(FULL)) for _ in range(rng.randint(1, 2))]
    for request in requests:
        for name in rng.sample(sorted(FULL), rng.randint(0, len(FULL))):
            request.pop(name)
    body: Any = requests[0] if len(requests) == 1 and rng.random() < 0.7 else {"requests": requests}
    if rng.random() < 0.3:
        return mutate.spoil_json(rng, json.dumps(body).encode())
    for _ in range(rng.randint(0, 2)):
        holder = rng.choice(containers(body))
        if holder:
            key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
            holder[key] = rng.choice(TIMES if key == "now" or (key != "k" and rng.random() < 0.3) else ODD)
    return json.dumps(body).encode()


@attacked
@given(randoms)
def test_a_mutated_body_gets_a_valid_list_or_one_error(client, rng):
    body = random_body(rng)
    response = client.post("/v1/recommend", content=body, headers={"content-type": "application/json"})
    assert response.headers["content-type"] == "application/json"
    content = response.json()
    if response.status_code != 200:
        assert 400 <= response.status_code < 500, body
        assert set(content) == {"error"} and set(content["error"]) == {"field", "message"}
        message = content["error"]["message"]
        assert message.strip() and "\n" not in message and len(message) <= mutate.LONGEST
        return
    service = client.service
    requests, is_single = read_call(json.loads(body), service.limits)
    answers = [content] if is_single else content["results"]
    for request, answer in zip(requests, answers, strict=True):
        allowed = {item for item in IDS if request.only is None or item in request.only} - set(request.without)
        allowed -= set(request.history) if request.exclude_seen else set()
        met = service.shelf.current.recommender.items.mask(request.where or {})
        allowed -= {item for item, meets in zip(IDS, met, strict=True) if not meets}
        listed = [item["item_id"] for item in answer["items"]]
        assert len(set(listed)) == len(listed) == min(request.k, len(allowed)) and allowed.issuperset(listed)
        assert all(set(item["columns"]) == set(request.columns) for item in answer["items"])
        named = {*request.history, *(request.only or ()), *request.without}
        assert set(answer["unknown"]) == named.difference(IDS)
