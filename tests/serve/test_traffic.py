"""A server with real connections: overload, time, callers who hang up, garbage, and models exchanged under traffic."""

import asyncio
import json
import random
import socket
import statistics

from support.scripts import benchmark
from support.serving import IDS, counted, expected, fake_service, running, talk, until

http_load = benchmark("http_load")


def made(folder, **settings):
    service = fake_service(folder, **settings)
    service.shelf.bring(service.reloader.sources)
    return service, service.shelf.current.recommender.ranker


def items_of(body):
    return [item["item_id"] for item in json.loads(body)["items"]]


def test_every_caller_gets_the_own_list(tmp_path):
    service, ranker = made(tmp_path)
    ranker.seconds = 0.002
    rng = random.Random(1)
    histories = [rng.choices(IDS, k=rng.randrange(12)) for _ in range(300)]
    with running(service) as port:
        load = asyncio.run(http_load.drive(port, http_load.recommend_bytes(histories, 4), 16, keep=True))
    assert set(load.statuses) == {200}
    for position, body in zip(load.positions, load.bodies, strict=True):
        assert items_of(body) == expected(histories[position], 4)
    assert max(ranker.batches) > 4  # they were answered together
    assert len(ranker.batches) < 200


def test_overload_is_refused_at_once_and_what_is_taken_is_answered_in_time(tmp_path):
    service, ranker = made(tmp_path, queue=8, batch=4, max_requests=4, timeout_s=5)
    ranker.seconds = 0.05
    with running(service) as port:
        load = asyncio.run(
            http_load.drive(
                port,
                http_load.recommend_bytes([["i1"]], 3),
                40,
                seconds=1.5,
                pause=lambda status: 0.02 if status == 503 else 0.0,
            )
        )
        assert asyncio.run(http_load.drive(port, http_load.recommend_bytes([["i1"]], 3), 1)).statuses == [200]
    times = {
        status: sorted(t for s, t in zip(load.statuses, load.times, strict=True) if s == status)
        for status in (200, 503)
    }
    assert len(times[200]) >= 40 and len(times[503]) > 40
    assert set(load.statuses) == {200, 503}
    assert statistics.median(times[503]) < statistics.median(times[200])
    assert counted(service, "minionerec_refused_total", reason="queue") == len(times[503])


def test_a_call_that_takes_too_long_is_504_and_not_computed(tmp_path):
    service, ranker = made(tmp_path, timeout_s=0.3, batch=1)
    before = sum(ranker.batches)
    with running(service) as port:
        ranker.hold.clear()
        load = asyncio.run(http_load.drive(port, http_load.recommend_bytes([["i1"]] * 4, 3), 4, keep=True))
        ranker.hold.set()
        assert load.statuses == [504] * 4 and max(load.times) < 3
        assert json.loads(load.bodies[0])["error"]["message"] == "no answer within 0.3 seconds; try again later."
        assert asyncio.run(http_load.drive(port, http_load.recommend_bytes([["i1"]], 3), 1)).statuses == [200]
    assert sum(ranker.batches) - before == 2  # the one that was begun, and the last
    assert counted(service, "minionerec_refused_total", reason="time") == 4


def test_a_caller_who_hangs_up_is_forgotten(tmp_path):
    service, ranker = made(tmp_path)
    before = len(ranker.batches)
    with running(service) as port:
        ranker.hold.clear()
        lines = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        for position, line in enumerate(lines):
            line.sendall(http_load.recommend_bytes([[IDS[position]]], 3)[0])
            until(lambda: len(ranker.batches) == before + 1)
        until(lambda: service.batcher.waiting == 4)
        for line in lines[1:]:
            line.close()
        until(lambda: counted(service, "minionerec_requests_total", path="/v1/recommend", status="499") == 4)
        ranker.hold.set()
        assert lines[0].recv(10_000).startswith(b"HTTP/1.1 200")
        lines[0].close()
        until(lambda: service.batcher.waiting == 0)
        assert asyncio.run(http_load.drive(port, http_load.recommend_bytes([["i1"]], 3), 1)).statuses == [200]
    assert ranker.batches[before:] == [1, 1]
    assert counted(service, "minionerec_abandoned_total") == 4


def test_large_slow_and_broken_bodies(tmp_path):
    service, _ = made(tmp_path, max_body_bytes=2000, timeout_s=0.3)
    head = b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with running(service) as port:
        assert talk(port, head + b"Content-Length: 3000\r\n\r\n" + b" " * 3000).startswith(b"HTTP/1.1 413")
        assert talk(port, head + b"Content-Length: 99999999999\r\n\r\n").startswith(b"HTTP/1.1 413")
        chunk = b"3e8\r\n" + b" " * 1000 + b"\r\n"
        assert (
            talk(port, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 4 + b"0\r\n\r\n")[:12] == b"HTTP/1.1 413"
        )
        assert talk(port, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 30)[:12] == b"HTTP/1.1 413"
        whole = b"2\r\n{}\r\n0\r\n\r\n"
        assert talk(port, head + b"Transfer-Encoding: chunked\r\n\r\n" + whole)[:12] == b"HTTP/1.1 200"
        assert talk(port, head + b"Content-Length: 10\r\n\r\n{")[:12] == b"HTTP/1.1 408"
        assert talk(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")[:12] == b"HTTP/1.1 200"


def test_models_are_exchanged_under_traffic_without_failures_or_mixtures(tmp_path):
    service, _ = made(tmp_path)
    for shift in (1, 2):
        (tmp_path / f"shift-{shift}").mkdir()
    histories = [[item_id] for item_id in IDS[:20]]
    several = [{"requests": [{"history": history, "k": 3} for history in histories]}]
    requests = [*http_load.recommend_bytes(histories, 3), http_load.request_bytes(json.dumps(several[0]).encode())]

    async def exchange(port):
        traffic = asyncio.create_task(http_load.drive(port, requests, 8, seconds=1.2, keep=True))
        loop = service.batcher._loop
        await asyncio.sleep(0.1)
        for round_ in range(12):
            asked = None if round_ % 3 == 2 else {"checkpoint": tmp_path / f"shift-{round_ % 2 + 1}"}
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(service.reloader.run(asked), loop))
            await asyncio.sleep(0.05)
        return await traffic

    with running(service) as port:
        load = asyncio.run(exchange(port))
    assert set(load.statuses) == {200}
    seen = set()
    for position, body in zip(load.positions, load.bodies, strict=True):
        answer = json.loads(body)
        shift = int(answer["model"]["version"].removeprefix("version-"))
        seen.add(shift)
        lists = [answer["items"]] if "items" in answer else [result["items"] for result in answer["results"]]
        asked = histories if "results" in answer else [histories[position]]
        assert [[item["item_id"] for item in items] for items in lists] == [expected(each, 3, shift) for each in asked]
    assert seen >= {1, 2}


def test_reload_over_http(tmp_path):
    root = tmp_path / "John Smith" / "models"
    for name in ("shift-2", "other"):
        (root / name).mkdir(parents=True)
    allowed = fake_service(root, reload="request", reload_root=str(root))

    def post(port, body):
        sent = http_load.request_bytes(json.dumps(body).encode(), "/v1/reload")
        load = asyncio.run(http_load.drive(port, [sent], 1, keep=True))
        return load.statuses[0], json.loads(load.bodies[0])

    with running(allowed) as port:
        status, reported = post(port, {"back": True})
        assert (status, reported["error"]["field"]) == (409, "back")
        status, reported = post(port, {"checkpoint": "shift-2"})
        assert (status, reported["model"]["version"], reported["before"]["version"]) == (200, "version-2", "version-0")
        status, reported = post(port, {"checkpoint": "other"})
        assert status == 409 and not any(name in json.dumps(reported) for name in (str(tmp_path), "John", "Smith"))
        assert reported["error"]["message"].startswith("refused; the model in service is unchanged: manifest.json: ")
        status, reported = post(port, {"checkpoint": "../x"})
        assert (status, reported["error"]["field"]) == (422, "checkpoint")
        assert post(port, {})[1]["model"]["version"] == "version-2"
        assert post(port, {"back": True})[1]["model"]["version"] == "version-2"
        assert allowed.shelf.current.recommender.version == "version-2"
    assert counted(allowed, "minionerec_reloads_total", outcome="refused") == 1
