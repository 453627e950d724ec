"""A server without a trained model: a ranker whose lists can be told beforehand, and its server in a thread."""

import contextlib
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd

from minionerec.core.errors import ArtefactError
from minionerec.recommend.items import CatalogueItems, Column
from minionerec.recommend.rankers.protocol import Ranking
from minionerec.recommend.recommender import Recommender
from minionerec.serve.config import ServeConfig
from minionerec.serve.server import bind, make_server, make_service

N = 40
IDS = [f"i{index}" for index in range(N)]


class FakeRanker:
    """Items in a circle, begun behind the sum of the history and turned by `shift`."""

    def __init__(self, shift=0, seconds=0.0):
        self.shift, self.seconds = shift, seconds
        self.batches = []
        self.hold = threading.Event()
        self.hold.set()
        self.fail = None

    def rank(self, queries, k, allowed=None):
        self.batches.append(len(queries))
        assert self.hold.wait(20)
        if self.seconds:
            time.sleep(self.seconds)
        rows = []
        for row, history in enumerate(queries.histories):
            if self.fail is not None and self.fail in history:
                raise ValueError("a secret of the inside at /srv/secret/model.py")
            order = [(int(history.sum()) + self.shift + step) % N for step in range(N)]
            mask = np.ones(N, dtype=bool) if allowed is None else allowed.row(row)
            rows.append([item for item in order if mask[item]][:k])
        return Ranking(rows, [[-float(position) for position in range(len(row))] for row in rows])


def expected(history, k, shift=0):
    start = sum(int(item_id[1:]) for item_id in history[-10:]) + shift
    return [f"i{(start + step) % N}" for step in range(k)]


def make_recommender(shift=0, version="", seconds=0.0):
    """A recommender of items i0 to i39 in departments and with prices."""
    columns = {
        "department": Column.of(pd.Series(["Tea", "Ink"] * (N // 2))),
        "price": Column.of(pd.Series([float(position) for position in range(N)])),
        "in_stock": Column.of(pd.Series([position % 3 != 0 for position in range(N)])),
    }
    items = CatalogueItems(IDS, [f"<b>Thing</b> {position}" for position in range(N)], columns)
    return Recommender(FakeRanker(shift, seconds), items, "fake", version or f"version-{shift}", 10)


def load_fake(sources):
    """A loader: a checkpoint called `shift-7` is the fake ranker turned by 7; others do not belong together."""
    name = Path(sources.checkpoint).resolve().name
    if not name.startswith("shift-"):
        raise ArtefactError(f"{sources.checkpoint}/manifest.json: is of another catalogue. Give its own corpus.")
    return make_recommender(int(name.removeprefix("shift-")))


def fake_service(folder, *, keys=(), **settings):
    """Parts of an application whose model is the fake one in `folder`/shift-0, not loaded yet."""
    (folder / "shift-0").mkdir(exist_ok=True)
    config = ServeConfig(checkpoint=str(folder / "shift-0"), **{"log": "errors", "hosts": ["*"], **settings})
    return make_service(config, [key.encode() for key in keys], load_fake)


@contextlib.contextmanager
def running(service):
    """A server in a thread on a free port of 127.0.0.1; gives the port."""
    if service.shelf.current is None:
        service.shelf.bring(service.reloader.sources)
    listening = bind("127.0.0.1", 0)
    server = make_server(service)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
        assert not thread.is_alive()


def counted(service, name, **labels):
    return service.metrics.registry.get_sample_value(name, labels)


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def talk(port, sent):
    """The answer to some bytes, as far as it came."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        with contextlib.suppress(OSError):  # the server may have heard enough
            line.sendall(sent)
        found = b""
        with contextlib.suppress(ConnectionError):
            while piece := line.recv(65536):
                found += piece
                head, _, body = found.partition(b"\r\n\r\n")
                length = [int(row[16:]) for row in head.lower().split(b"\r\n") if row.startswith(b"content-length: ")]
                if length and len(body) >= length[0]:
                    break
    return found
