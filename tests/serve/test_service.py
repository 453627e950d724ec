"""Every path by itself: answers, mistakes, keys, limits, numbers, log lines, and the description."""

import json
import logging
import re
from dataclasses import replace

import pytest
from starlette.testclient import TestClient
from support.gaps import GAP
from support.serving import IDS, N, expected, fake_service

from minionerec import __version__
from minionerec.serve import service as service_module
from minionerec.serve.guard import REQUESTS
from minionerec.serve.server import create_app

KEY = "a-key-of-some-length"


@pytest.fixture
def make(tmp_path):
    """Makes a client of a server with a loaded model, the fake one unless told, with these settings."""
    opened = []

    def build(loaded=True, recommender=None, **settings):
        service = fake_service(tmp_path, **settings)
        if recommender is not None:
            service.shelf._load = lambda sources: recommender
        if loaded:
            service.shelf.bring(service.reloader.sources)
        client = TestClient(create_app(service), raise_server_exceptions=False)
        client.__enter__()
        client.service = service
        opened.append(client)
        return client

    yield build
    for client in opened:
        client.__exit__(None, None, None)


def ask(client, **body):
    return client.post("/v1/recommend", json=body)


def error(response):
    assert response.headers["content-type"] == "application/json"
    reported = response.json()["error"]
    assert set(reported) == {"field", "message"} and "\n" not in reported["message"]
    return response.status_code, reported["field"], reported["message"]


def ids(answer):
    return [item["item_id"] for item in answer["items"]]


def test_a_request_and_several_are_answered(make):
    client = make()
    answer = ask(client, history=["i1", "i5"], k=3).json()
    assert ids(answer) == expected(["i1", "i5"], 3)
    assert answer["items"][0] == {
        "item_id": "i6",
        "title": "<b>Thing</b> 6",
        "sid": None,
        "score": 0.0,
        "probability": None,
        "columns": {},
    }
    assert answer["unknown"] == [] and answer["model"] == {"name": "fake", "version": "version-0"}
    several = ask(client, requests=[{"history": ["i2"], "k": 2}, {"history": [], "k": 1}]).json()
    assert [ids(result) for result in several["results"]] == [["i2", "i3"], ["i0"]]
    assert set(several) == {"results", "model"} and set(several["results"][0]) == {
        "items",
        "unknown",
        "context",
    }


def test_filters_and_unknown_ids_reach_the_model(make):
    client = make()
    body = {"history": ["i0", "nobody"], "k": 4, "exclude_seen": True, "without": ["i2"]}
    answer = ask(client, **body, where={"department": "Tea", "price": {"at_most": 7}}).json()
    assert (ids(answer), answer["unknown"]) == (["i4", "i6"], ["nobody"])
    assert ids(ask(client, history=[], only=["i9", "i3"]).json()) == ["i3", "i9"]
    refused = error(ask(client, history=["i0", "nobody"], unknown="refuse"))
    assert refused == (422, "history[1]", "'nobody' is not an item of the catalogue.")
    wrong = {"requests": [{}, {"where": {"colour": "red"}}]}
    assert error(client.post("/v1/recommend", json=wrong))[:2] == (422, "requests[1].where.colour")


def test_times_of_a_request_are_a_gap_or_a_wrong_field(make, telling, monkeypatch):
    monkeypatch.setattr(telling, "features", (replace(GAP, unit=86_400),))
    client = make(recommender=telling)
    assert client.get("/v1/model").json()["context"][0]["from_times"]
    wanted = {
        context: ask(client, history=["i3", "i9"], k=24, context={"gap": context}).json() for context in GAP.names
    }
    times = ["2018-11-01T08:00:00Z", "2018-11-05T08:00:00Z"]
    given = {
        "same": {"times": times, "now": "2018-11-05T20:00:00Z"},
        "later": {"times": times, "now": "2018-11-06"},
        "unknown": {"times": [times[0], None], "now": "2018-11-06"},
    }
    for context, body in given.items():
        found = ask(client, history=["i3", "i9"], k=24, **body).json()
        assert found == wanted[context] and found["context"] == {"gap": context}
    wrong = {"history": ["i3", "i9"], "times": times, "now": "2018-11-04"}
    message = "is '2018-11-04', earlier than times[1], '2018-11-05T08:00:00Z'. Give the time of the request."
    assert error(client.post("/v1/recommend", json={"requests": [{}, wrong]})) == (422, "requests[1].now", message)
    assert error(client.post("/v1/explain", json=wrong)) == (422, "now", message)


def test_a_model_ignores_features_that_it_does_not_read_and_refuses_unknown_ones(make):
    client = make()
    assert client.get("/v1/model").json()["context"] == []
    answer = ask(client, history=["i1"], k=3, context={"gap": "same", "hour": 77}).json()
    assert ids(answer) == expected(["i1"], 3) and answer["context"] == {}
    reported = "is unknown; expected gap, hour, weekday."
    wrong = {"history": ["i1"], "context": {"moon": "full"}}
    assert error(ask(client, **wrong)) == (422, "context.moon", reported)
    assert error(client.post("/v1/explain", json=wrong)) == (422, "context.moon", reported)
    several = {"requests": [{"history": ["i1"]}, wrong]}
    assert error(client.post("/v1/recommend", json=several)) == (422, "requests[1].context.moon", reported)


def test_a_score_that_is_no_number_is_null(make, monkeypatch):
    client = make()
    ranker = client.service.shelf.current.recommender.ranker
    rank = ranker.rank

    def broken(*given):
        found = rank(*given)
        return type(found)(found.items, [[float("nan"), float("inf"), 1.0] for _ in found.items])

    monkeypatch.setattr(ranker, "rank", broken)
    response = ask(client, history=[], k=3)
    assert [item["score"] for item in response.json()["items"]] == [None, None, 1.0]
    assert "NaN" not in response.text and "Infinity" not in response.text


def test_bodies_are_json_and_not_too_large(make):
    client = make(max_body_bytes=2000)
    assert error(client.post("/v1/recommend", content=b"{}"))[0] == 415
    form = client.post("/v1/recommend", data={"history": "i1"})
    assert error(form)[0] == 415 and form.headers["connection"] == "close"
    typed = {"content-type": "application/json; charset=utf-8"}
    assert client.post("/v1/recommend", content=b"{}", headers=typed).status_code == 200
    assert error(client.post("/v1/recommend", content=b"{", headers=typed))[0] == 400
    large = b'{"history": ["' + b"x" * 2000 + b'"]}'
    assert error(client.post("/v1/recommend", content=large, headers=typed)) == (
        413,
        None,
        "the body is larger than 2,000 bytes.",
    )
    pieces = (large[start : start + 100] for start in range(0, len(large), 100))
    assert error(client.post("/v1/recommend", content=pieces, headers=typed))[0] == 413
    endless = (b"x" * 1000 for _ in range(1000))
    assert error(client.post("/v1/recommend", content=endless, headers=typed))[0] == 413
    reported = client.get("/metrics").text
    assert 'minionerec_refused_total{reason="body"} 5.0' in reported
    assert 'minionerec_refused_total{reason="request"} 1.0' in reported


def test_limits_are_those_of_the_settings_and_reported(make):
    client = make(max_k=5, max_history=2, max_requests=2, max_list=3, timeout_s=7)
    assert error(ask(client, k=6))[:2] == (422, "k")
    assert error(ask(client, history=["i1"] * 3))[:2] == (422, "history")
    assert error(ask(client, requests=[{}] * 3))[:2] == (422, "requests")
    assert error(ask(client, without=["i1"] * 4))[:2] == (422, "without")
    limits = client.get("/v1/model").json()["limits"]
    assert limits == {
        "max_k": 5,
        "max_history": 2,
        "max_list": 3,
        "max_requests": 2,
        "max_body_bytes": 1 << 20,
        "timeout_s": 7,
    }


def test_the_model_and_its_filters_are_reported(make):
    reported = make().get("/v1/model").json()
    assert (reported["name"], reported["version"], reported["items"]) == ("fake", "version-0", N)
    assert reported["filters"] == [
        {"column": "department", "kind": "choice", "values": ["Ink", "Tea"], "more": 0},
        {"column": "price", "kind": "number", "least": 0.0, "most": 39.0},
        {"column": "in_stock", "kind": "switch"},
    ]


def test_items_are_found_by_words_and_by_ids(make):
    client = make()
    found = client.get("/v1/items", params={"query": "thing 7"}).json()["items"]
    assert found == [
        {
            "item_id": "i7",
            "title": "<b>Thing</b> 7",
            "columns": {"department": "Ink", "price": 7.0, "in_stock": True},
        }
    ]
    assert len(client.get("/v1/items?query=thing&limit=3").json()["items"]) == 3
    by_id = client.get("/v1/items", params={"ids": ["i3", "nobody", "i1"]}).json()
    assert (ids(by_id), by_id["unknown"]) == (["i3", "i1"], ["nobody"])
    assert client.get("/v1/items").json() == {"items": [], "unknown": []}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("query=a&limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=1e1", "limit"),
        ("limit=%F0%9D%9F%99", "limit"),
        ("limit=" + "9" * 5000, "limit"),
        ("query=" + "a" * 201, "query"),
        ("q=a", "q"),
        ("ids=i1&query=a", "ids"),
        ("&".join(["ids=i1"] * 101), "ids"),
        ("%00%0a=1", None),
    ],
)
def test_a_wrong_search_is_422(make, query, field):
    status, named, reported = error(make().get(f"/v1/items?{query}"))
    assert status == 422 and (named == field or field is None) and len(reported) < 200


def test_an_explanation_is_that_of_the_python_side(make, monkeypatch):
    client = make()
    seen = []

    tree = [{"code": "<a_1>", "probability": float("nan"), "children": [], "items": ["i1"]}]
    explained = tree, {"i1": [{"kind": "counts", "times": 3}]}
    monkeypatch.setattr(service_module, "explain", lambda recommender, request: seen.append(request) or explained)
    answer = client.post("/v1/explain", json={"history": ["i1"], "k": 2}).json()
    assert answer["tree"][0]["probability"] is None and answer["reasons"] == explained[1]
    assert answer["model"]["version"] == "version-0" and seen[0].history == ["i1"]
    assert error(client.post("/v1/explain", json={"requests": [{}]}))[:2] == (422, "requests")


def test_health_and_readiness(make):
    client = make(loaded=False)
    assert client.get("/healthz").status_code == 200
    early = client.get("/readyz")
    assert error(early) == (503, None, "the model is not ready.") and early.headers["retry-after"] == "1"
    asked = ask(client, history=[])
    assert error(asked)[0] == 503 and asked.headers["retry-after"] == "1"
    assert client.get("/openapi.json").status_code == client.get("/metrics").status_code == 200
    client.service.shelf.bring(client.service.reloader.sources)
    assert client.get("/readyz").json() == {"status": "ready", "model": {"name": "fake", "version": "version-0"}}


def test_a_defect_is_500_without_its_inside(make, caplog):
    client = make()
    client.service.shelf.current.recommender.ranker.fail = 7
    assert error(ask(client, history=["i7"])) == (500, None, "internal server error.")
    assert ask(client, history=["i8"]).status_code == 200
    assert "minionerec_errors_total 1.0" in client.get("/metrics").text
    assert "a secret of the inside" in caplog.text  # for whoever runs the server


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("PUT", "/v1/recommend", {"POST"}), ("POST", "/healthz", {"GET", "HEAD"}), ("DELETE", "/", {"GET", "HEAD"})],
)
def test_the_answer_to_a_wrong_method_names_the_right_ones(make, method, path, allowed):
    response = make().request(method, path)
    assert error(response)[0] == 405
    assert set(response.headers["allow"].split(", ")) == allowed


def test_unknown_paths_and_methods(make):
    client = make()
    assert error(client.get("/v1/nothing"))[0] == 404
    assert error(client.get("/v1/recommend"))[0] == 405
    assert error(client.post("/v1/reload", json={}))[0] == 404  # not allowed here
    nowhere = ("/page/nothing.js", "/page/..%2fapp.py", "/page/../app.py", "/page/", "/page")
    for path in (*nowhere, "/v1/model/", "/healthz/"):  # no path redirects
        assert error(client.get(path, follow_redirects=False))[0] == 404
    assert 'path="other",status="404"' in client.get("/metrics").text


def test_keys_are_asked_for_where_there_are_any(make):
    client = make(keys=[KEY, "another-key"])
    for path in ("/v1/model", "/metrics", "/openapi.json", "/v1/items", "/nowhere"):
        refused = client.get(path)
        assert error(refused)[0] == 401 and refused.headers["www-authenticate"] == "Bearer"
    for shown in (f"Bearer {KEY}x", "Bearer ", "Bearer", KEY, f"Basic {KEY}", f"Bearer {KEY.upper()}", "Bearer \xff"):
        assert client.get("/v1/model", headers={"authorization": shown.encode("latin-1")}).status_code == 401
    for shown in (f"Bearer {KEY}", "bearer another-key"):
        assert client.get("/v1/model", headers={"authorization": shown}).status_code == 200
    for path in ("/", "/page/app.js", "/healthz", "/readyz"):
        assert client.get(path).status_code == 200
    assert 'reason="key"} 12.0' in client.get("/metrics", headers={"authorization": f"Bearer {KEY}"}).text
    assert make(keys=[KEY], open_metrics=True).get("/metrics").status_code == 200


def test_every_answer_forbids_what_a_page_must_not_do(make):
    client = make()
    answers = [client.get(path) for path in ("/", "/page/app.js", "/openapi.json", "/v1/model", "/nowhere", "/healthz")]
    for answer in [*answers, ask(client, k=0)]:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; ")
        assert "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_page_is_served_with_its_files(make):
    client = make()
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    named = re.findall(r'(?:href|src)="(page/[^"]+)"', page.text)
    assert named and all(client.get(f"/{name}").status_code == 200 for name in named)
    assert client.get("/page/app.js").headers["content-type"].startswith("text/javascript")
    assert page.headers["cache-control"] == "no-cache"
    again = client.get("/", headers={"if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_numbers_for_prometheus(make):
    client = make()
    ask(client, requests=[{"history": ["nobody"]}, {"history": ["i1"]}])
    ask(client, k=0)
    reported = client.get("/metrics").text
    for line in (
        'minionerec_requests_total{path="/v1/recommend",status="200"} 1.0',
        'minionerec_requests_total{path="/v1/recommend",status="422"} 1.0',
        'minionerec_request_seconds_count{path="/v1/recommend"} 2.0',
        "minionerec_recommendations_total 2.0",
        "minionerec_unknown_items_total 1.0",
        "minionerec_batch_requests_sum 2.0",
        "minionerec_queue_requests 0.0",
        'minionerec_model_info{name="fake",version="version-0"} 1.0',
        f"minionerec_model_items {N}.0",
        f'minionerec_info{{version="{__version__}"}} 1.0',
    ):
        assert line in reported.splitlines(), line
    assert re.search(r"minionerec_model_loaded_timestamp_seconds 1\.\d+e\+09", reported)


@pytest.mark.parametrize("shown", [False, True])
def test_log_lines_say_what_was_asked_but_not_the_history(make, caplog, shown):
    client = make(log_histories=shown)
    with caplog.at_level(logging.INFO, logger=REQUESTS):
        ask(client, requests=[{"history": ["i1"], "k": 4}, {}])
        client.get("/v1/items?query=secret")
    first, second = [record.fields for record in caplog.records if record.name == REQUESTS]
    assert {name: first[name] for name in ("method", "path", "status", "rows", "k")} == {
        "method": "POST",
        "path": "/v1/recommend",
        "status": 200,
        "rows": 2,
        "k": 10,
    }
    assert first["ms"] > 0 and first.get("histories") == ([["i1"], []] if shown else None)
    assert second["path"] == "/v1/items" and "secret" not in json.dumps(second)


def test_the_description_holds_requests_and_answers_that_are_real(make):
    client = make(keys=[])
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.") and document["info"]["version"] == __version__
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {"content": {}})["content"]
            for example in content.get("application/json", {"examples": {}})["examples"].values():
                response = client.request(method, path, json=example["value"])
                assert response.status_code == (404 if path == "/v1/reload" else 200), path
            if method == "get":
                assert client.get(path).status_code == 200
    recommend = document["paths"]["/v1/recommend"]["post"]
    asked = recommend["requestBody"]["content"]["application/json"]["examples"]["one"]["value"]
    wanted = recommend["responses"]["200"]["content"]["application/json"]["examples"]["one"]["value"]
    assert asked["history"] == IDS[:3] and client.post("/v1/recommend", json=asked).json() == wanted
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert references <= set(document["components"]["schemas"])
    own = {"/", "/openapi.json", "/page"}  # the page, and the description itself
    assert set(document["paths"]) | own == {route.path for route in client.app.app.routes}
