"""The queue before the model: batches, the window, bounds, calls that nobody waits for, and one model a call."""

import asyncio
import json
import threading
import time

import pytest
from support.serving import IDS, expected, make_recommender

from minionerec.recommend.requests import Request, RequestError
from minionerec.serve.batching import Batcher, answer_each
from minionerec.serve.metrics import Metrics
from minionerec.serve.models import Served, Sources
from minionerec.serve.reading import Refusal
from minionerec.serve.writing import answered, to_json


def served(recommender):
    return Served(recommender, Sources(None), [], (Request(), None), 0.0)


class Bench:
    """A batcher with a fake model whose thread runs while the block does."""

    def __init__(self, recommender, **settings):
        self.current = served(recommender)
        self.metrics = Metrics()
        given = {"queue": 20, "batch": 4, "window_s": 0.0, "timeout_s": 20.0, **settings}
        self.batcher = Batcher(lambda: self.current, metrics=self.metrics, **given)

    async def __aenter__(self):
        self.batcher.start()
        return self

    async def __aexit__(self, *error):
        await asyncio.to_thread(self.batcher.stop)

    def ask(self, *histories, k=3):
        return self.batcher.submit([Request(history=list(history), k=k) for history in histories]).future

    def count(self, name):
        return self.metrics.registry.get_sample_value(name)


def lists(outcome):
    return [[item["item_id"] for item in json.loads(value)["items"]] for value in outcome[1]]


async def until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.002)


def test_what_comes_while_the_model_works_is_answered_together():
    recommender = make_recommender()
    ranker = recommender.ranker

    async def play():
        async with Bench(recommender) as bench:
            ranker.hold.clear()
            asked = [bench.ask(["i1"])]
            await until(lambda: ranker.batches)
            asked += [bench.ask([item_id]) for item_id in IDS[2:8]]
            assert bench.batcher.waiting == 6
            ranker.hold.set()
            outcomes = await asyncio.gather(*asked)
            assert bench.batcher.waiting == 0
            assert bench.count("minionerec_batch_requests_count") == 3
            return outcomes

    outcomes = asyncio.run(play())
    assert ranker.batches == [1, 4, 2]
    assert [lists(outcome) for outcome in outcomes] == [[expected([item_id], 3)] for item_id in IDS[1:8]]


def test_a_call_of_more_than_a_batch_has_one_model():
    recommender, later = make_recommender(0), make_recommender(5)

    async def play():
        async with Bench(recommender) as bench:
            recommender.ranker.hold.clear()
            asked = bench.ask(*[[item_id] for item_id in IDS[:10]])
            await until(lambda: recommender.ranker.batches)
            bench.current = served(later)
            recommender.ranker.hold.set()
            return await asked, await bench.ask(["i3"])

    first, second = asyncio.run(play())
    assert recommender.ranker.batches == [4, 4, 2]
    assert first[0].recommender is recommender and second[0].recommender is later
    assert lists(first) == [expected([item_id], 3) for item_id in IDS[:10]]
    assert lists(second) == [expected(["i3"], 3, shift=5)]


def test_one_caller_never_waits_for_the_window_and_several_do():
    recommender = make_recommender()

    async def play():
        async with Bench(recommender, window_s=5.0) as bench:
            begin = time.monotonic()
            for _ in range(3):
                await bench.ask(["i1"])
            alone = time.monotonic() - begin
            await asyncio.gather(*[bench.ask(["i1"]) for _ in range(2)])
            bench.batcher._last = 2  # however the two came in
            first = bench.ask(["i1"])
            await asyncio.sleep(0.05)
            assert not first.done() and bench.batcher.waiting == 1
            await asyncio.gather(first, bench.ask(["i2"]))
            together = time.monotonic() - begin
            return alone, together

    alone, together = asyncio.run(play())
    assert alone < 2 and together < 4
    assert recommender.ranker.batches[-1] == 2


def test_the_window_ends_where_no_more_come():
    async def play():
        async with Bench(make_recommender(), window_s=0.05) as bench:
            bench.batcher._last = 4
            await asyncio.wait_for(bench.ask(["i1"]), 10)

    asyncio.run(play())


def test_a_full_queue_refuses_at_once():
    recommender = make_recommender()

    async def play():
        async with Bench(recommender, queue=5) as bench:
            recommender.ranker.hold.clear()
            asked = [bench.ask(["i1"])]
            await until(lambda: recommender.ranker.batches)
            asked.append(bench.ask(*[["i2"]] * 4))
            with pytest.raises(Refusal) as raised:
                bench.ask(["i3"], ["i4"])
            assert (raised.value.status, raised.value.retry_after) == (503, 1)
            asked.append(bench.ask(["i5"]))
            recommender.ranker.hold.set()
            outcomes = await asyncio.gather(*asked)
            assert bench.metrics.registry.get_sample_value("minionerec_refused_total", {"reason": "queue"}) == 1
            return outcomes

    assert [len(values) for _, values in asyncio.run(play())] == [1, 4, 1]


def test_what_could_not_be_answered_in_time_is_refused():
    recommender = make_recommender()

    async def play():
        async with Bench(recommender, timeout_s=4.0) as bench:
            bench.batcher._row_seconds = 2.0
            bench.batcher.check_room()  # nobody waits: however slow the model is, one may come
            recommender.ranker.hold.clear()
            asked = [bench.ask(["i1"])]
            await until(lambda: recommender.ranker.batches)
            asked += [bench.ask(["i1"]), bench.ask(["i1"])]
            with pytest.raises(Refusal) as raised:
                bench.ask(["i1"])
            assert raised.value.retry_after == 4
            recommender.ranker.hold.set()
            await asyncio.gather(*asked)

    asyncio.run(play())


def test_what_is_not_waited_for_is_not_computed():
    recommender = make_recommender()

    async def play():
        async with Bench(recommender, timeout_s=0.2) as bench:
            recommender.ranker.hold.clear()
            first = bench.ask(["i1"])
            await until(lambda: recommender.ranker.batches)
            bench.ask(["i2"]).cancel()
            bench.ask(["i3"])  # its time is over before the model is free
            await asyncio.sleep(0.3)
            recommender.ranker.hold.set()
            await first
            await until(lambda: bench.batcher.waiting == 0)
            await bench.ask(["i4"])
            assert bench.count("minionerec_abandoned_total") == 2

    asyncio.run(play())
    assert sum(recommender.ranker.batches) == 2


def test_a_request_that_fails_leaves_the_others_their_answers():
    recommender = make_recommender()
    recommender.ranker.fail = 7
    requests = [Request(history=[item_id], k=2) for item_id in IDS[:20]]
    requests[3] = Request(where={"colour": "red"})
    found = answer_each(recommender, requests, lambda answer: to_json(answered(answer)))
    assert isinstance(found[3], RequestError) and found[3].field == "where.colour"
    assert isinstance(found[7], ValueError)
    for position in (0, 1, 2, 4, 5, 6, *range(8, 20)):
        assert [item["item_id"] for item in json.loads(found[position])["items"]] == expected([IDS[position]], 2)


def test_work_of_another_kind_is_done_alone_and_its_error_is_given_back():
    recommender = make_recommender()

    async def play():
        async with Bench(recommender) as bench:
            recommender.ranker.hold.clear()
            first = bench.ask(["i1"])
            await until(lambda: recommender.ranker.batches)
            work = bench.batcher.submit([Request()], lambda served: threading.current_thread().name.encode())
            bad = bench.batcher.submit([Request()], lambda served: b"%d" % (1 // 0))
            others = [bench.ask(["i2"]), bench.ask(["i3"])]
            recommender.ranker.hold.set()
            await asyncio.gather(first, *others)
            assert (await work.future)[1] == [b"model"]
            assert isinstance((await bad.future)[1][0], ZeroDivisionError)

    asyncio.run(play())
    assert recommender.ranker.batches == [1, 2]


def test_the_end_answers_what_was_taken_and_takes_no_more():
    recommender = make_recommender()

    async def play():
        async with Bench(recommender) as bench:
            recommender.ranker.hold.clear()
            asked = [bench.ask(["i1"])]
            await until(lambda: recommender.ranker.batches)
            asked += [bench.ask([item_id]) for item_id in IDS[:6]]
            stopping = asyncio.create_task(asyncio.to_thread(bench.batcher.stop))
            await until(lambda: bench.batcher._stopping)
            with pytest.raises(Refusal) as raised:
                bench.ask(["i1"])
            assert raised.value.status == 503
            recommender.ranker.hold.set()
            await stopping
            return await asyncio.gather(*asked)

    assert len(asyncio.run(play())) == 7


def test_a_defect_of_the_thread_is_reported_and_the_thread_lives_on(monkeypatch):
    recommender = make_recommender()

    async def play():
        async with Bench(recommender) as bench:
            monkeypatch.setattr(bench.batcher, "_work", lambda jobs: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                await bench.ask(["i1"])
            monkeypatch.undo()
            return await bench.ask(["i1"])

    assert lists(asyncio.run(play())) == [expected(["i1"], 3)]
