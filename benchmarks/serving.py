"""What `minionerec serve` carries, over loopback, with the load generator on the same machine.

python benchmarks/serving.py latency  --checkpoint runs/industrial/best/catalogue --output latency.json
python benchmarks/serving.py plain    --checkpoint runs/industrial/sft --output plain.json
python benchmarks/serving.py overload --checkpoint runs/industrial/best/catalogue --seconds 120 --output overload.json
python benchmarks/serving.py soak     --checkpoint runs/industrial/best/catalogue --minutes 10 --output soak.json
python benchmarks/serving.py garbage  --checkpoint runs/industrial/best/catalogue --output garbage.json
python benchmarks/serving.py million  --output million.json
python benchmarks/serving.py random   --corpus runs/industrial/corpus --sids runs/industrial/sids_published \
    --checkpoint random --output random.json        # a 24 x 896 model with random weights, for latency and plain

Histories are those of the test examples. Wherever something is timed, all lists are first compared with those of
the Python side; status 1 where they differ. Words after `--` go to the server: `-- --threads 2 --window_ms 5`.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import psutil
from http_load import Load, arrive, drive, mutated, recommend_bytes, request_bytes

_TIE = 1e-4


def options() -> tuple[argparse.Namespace, list[str]]:
    """The command line, and the words after `--`."""
    words, more = sys.argv[1:], []
    if "--" in words:
        position = words.index("--")
        words, more = words[:position], words[position + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(MEASURES))
    parser.add_argument("--checkpoint", help="model to serve; of random, the directory to write")
    parser.add_argument("--corpus", help="its corpus; as its manifest says if not given")
    parser.add_argument("--output", required=True, help="JSON file for the figures")
    parser.add_argument("--k", type=int, default=10, help="length of lists")
    parser.add_argument("--rows", type=int, default=2000, help="most histories")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 32], help="latency: requests under way")
    parser.add_argument("--seconds", type=float, default=10, help="of one timed round; of the overload")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of each kind, in turn")
    parser.add_argument("--times", type=float, default=4, help="overload: times of what the server carries")
    parser.add_argument("--minutes", type=float, default=10, help="soak: how long")
    parser.add_argument("--requests", type=int, default=5000, help="garbage: mutated requests")
    parser.add_argument("--beams", type=int, default=50, help="plain: number of beams")
    parser.add_argument("--catalogues", type=int, nargs="+", default=[5000, 1_000_000], help="million: numbers of SIDs")
    parser.add_argument("--sids", help="random: semantic IDs of the items")
    for name, value in (("layers", 24), ("width", 896), ("heads", 14), ("kv-heads", 2), ("inner", 4864)):
        parser.add_argument(f"--{name}", type=int, default=value, help="random: shape")
    parser.add_argument("--vocabulary", type=int, default=152_700, help="random: tokens")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(words), more


class Server:
    """A process that serves, and what it takes.

    Attributes:
        port: Where it listens.
        start_seconds: Until it had printed its address.
        process: Its numbers.
    """

    def __init__(self, words: list[str], log: Any):
        begin = time.perf_counter()
        self._started = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._started.stdout is not None
        line = self._started.stdout.readline()
        if "http://" not in line:
            self.stop()
            raise SystemExit(f"the server did not start: {' '.join(words)}")
        self.start_seconds = round(time.perf_counter() - begin, 2)
        self.port = int(line.rsplit(":", 1)[1])
        self.process = psutil.Process(self._started.pid)

    def resident_mib(self) -> float:
        """Resident memory."""
        return round(self.process.memory_info().rss / 2**20, 1)

    def cpu_seconds(self) -> float:
        """Processor time so far."""
        spent = self.process.cpu_times()
        return float(spent.user + spent.system)

    def stop(self) -> int:
        """End it; its status."""
        self._started.terminate()
        return self._started.wait(60)


@contextmanager
def serving(words: list[str]) -> Iterator[Server]:
    """A server for a while; its standard error goes to ours where it fails."""
    with tempfile.TemporaryFile("w+") as log:
        server = Server(words, log)
        try:
            yield server
        finally:
            status = server.stop()
            log.seek(0)
            reported = [line for line in log if '"error"' in line or "Traceback" in line]
            if status or reported:
                sys.stderr.write(f"status {status}\n" + "".join(reported[:20]))


def serve_words(args: argparse.Namespace, more: list[str]) -> list[str]:
    """The words that start our server."""
    corpus = ["--corpus", args.corpus] if args.corpus else []
    given = ["--checkpoint", args.checkpoint, *corpus, "--port", "0", "--log", "errors", *more]
    return ["-m", "minionerec", "serve", *given]


def histories_of(args: argparse.Namespace) -> list[list[str]]:
    """Histories of the test examples, as item ids."""
    from minionerec.core.artefacts import read_manifest
    from minionerec.data.corpus import Corpus

    corpus = Corpus.load(args.corpus or read_manifest(args.checkpoint)["inputs"]["corpus"]["path"])
    ids = corpus.items["item_id"].astype(str).tolist()
    found = [[ids[item] for item in history] for history in corpus.test.histories]
    return [list(history) for history in dict.fromkeys(map(tuple, found))][: args.rows]


def python_lists(args: argparse.Namespace, histories: list[list[str]]) -> list[list[tuple[str, float]]]:
    """Lists of the Python side: (item id, score)."""
    from minionerec.recommend.recommender import Recommender

    recommender = Recommender.load(args.checkpoint, corpus=args.corpus)
    answers = []
    for start in range(0, len(histories), 32):
        answers += recommender.recommend_many(histories[start : start + 32], args.k)
    return [[(item.item_id, item.score) for item in answer.items] for answer in answers]


def compare(load: Load, wanted: list[list[tuple[str, float]]]) -> dict[str, Any]:
    """How many lists are those wanted: the same items, or others of the same scores at some ranks (ties)."""
    found = Counter({"equal": 0, "tied": 0, "different": 0})
    for position, status, body in zip(load.positions, load.statuses, load.bodies, strict=True):
        assert status == 200, (status, body)
        got = [(item["item_id"], item["score"]) for item in json.loads(body)["items"]]
        if [item for item, _ in got] == [item for item, _ in wanted[position]]:
            found["equal"] += 1
        elif np.allclose([score for _, score in got], [score for _, score in wanted[position]], rtol=0, atol=_TIE):
            found["tied"] += 1
        else:
            found["different"] += 1
    return dict(found)


def checked(port: int, requests: list[bytes], wanted: list[list[tuple[str, float]]]) -> dict[str, Any]:
    """Every list once, 32 at a time, compared."""
    return compare(asyncio.run(drive(port, requests, 32, keep=True)), wanted)


def pooled(loads: list[Load]) -> dict[str, Any]:
    """Figures of some rounds together."""
    whole = Load(sum(load.seconds for load in loads))
    for load in loads:
        whole.times += load.times
        whole.statuses += load.statuses
    rates = [load.figures()["a_second"] for load in loads]
    return {**whole.figures(), "a_second_by_round": rates, "failed": sum(status != 200 for status in whole.statuses)}


def latency(args: argparse.Namespace, more: list[str]) -> dict[str, Any]:
    """Latency and requests a second by the number of requests under way."""
    histories = histories_of(args)
    requests, wanted = recommend_bytes(histories, args.k), python_lists(args, histories)
    with serving(serve_words(args, more)) as server:
        lists = checked(server.port, requests, wanted)
        loads: dict[int, list[Load]] = {count: [] for count in args.connections}
        spent = dict.fromkeys(args.connections, 0.0)
        for _ in range(args.rounds):
            for count in args.connections:
                asyncio.run(drive(server.port, requests, count, seconds=0.5))
                before = server.cpu_seconds()
                loads[count].append(asyncio.run(drive(server.port, requests, count, seconds=args.seconds)))
                spent[count] += server.cpu_seconds() - before
        found = {}
        for count, rounds in loads.items():
            figures = pooled(rounds)
            found[str(count)] = {**figures, "server_cpu_ms": round(1000 * spent[count] / figures["requests"], 2)}
        return {
            "lists": lists,
            "connections": found,
            "start_seconds": server.start_seconds,
            "resident_mib": server.resident_mib(),
        }


def plain(args: argparse.Namespace, more: list[str]) -> dict[str, Any]:
    """Requests a second at the most connections, beside a plain server; rounds in turn."""
    histories = histories_of(args)
    requests, wanted = recommend_bytes(histories, args.k), python_lists(args, histories)
    corpus = args.corpus
    if corpus is None:
        from minionerec.core.artefacts import read_manifest

        corpus = read_manifest(args.checkpoint)["inputs"]["corpus"]["path"]
    count = max(args.connections)
    script = str(Path(__file__).with_name("serving_plain.py"))
    simple = [script, "--checkpoint", args.checkpoint, "--corpus", corpus, "--beams", str(args.beams)]
    few = min(len(requests), 4 * count)  # the plain server is slow
    with (
        serving(serve_words(args, more)) as ours,
        serving(simple) as threads,
        serving([*simple, "--one-at-a-time"]) as single,
    ):
        servers = {"ours": ours, "plain, in threads": threads, "plain, one at a time": single}
        lists = {
            name: checked(server.port, requests if name == "ours" else requests[:few], wanted)
            for name, server in servers.items()
        }
        loads: dict[str, list[Load]] = {name: [] for name in servers}
        for _ in range(args.rounds):
            for name, server in servers.items():
                loads[name].append(asyncio.run(drive(server.port, requests, count, seconds=args.seconds)))
    figures = {name: pooled(rounds) for name, rounds in loads.items()}
    best = max(figures[name]["a_second"] for name in figures if name != "ours")
    return {
        "lists": lists,
        "connections": count,
        "servers": figures,
        "ratio": round(figures["ours"]["a_second"] / best, 2),
    }


def _by_status(load: Load) -> dict[str, Any]:
    found = {}
    for status in sorted(set(load.statuses)):
        times = np.array([t for s, t in zip(load.statuses, load.times, strict=True) if s == status]) * 1000
        shown = {"p50_ms": np.median(times), "p99_ms": np.percentile(times, 99), "most_ms": times.max()}
        found[str(status)] = {"requests": len(times), **{name: round(float(value), 2) for name, value in shown.items()}}
    return found


async def _sampled(server: Server, work: Any, seconds: float) -> tuple[Any, list[float]]:
    """The outcome of some traffic, and resident memory sampled meanwhile."""
    task = asyncio.ensure_future(work)
    memory = []
    while not task.done():
        memory.append(server.resident_mib())
        await asyncio.wait([task], timeout=seconds)
    return await task, memory


def _limit(more: list[str]) -> float:
    return float(more[more.index("--timeout_s") + 1]) if "--timeout_s" in more else 10.0


def overload(args: argparse.Namespace, more: list[str]) -> dict[str, Any]:
    """Several times of what the server carries: refusals are quick, what is taken is answered in time."""
    histories = histories_of(args)
    requests, wanted = recommend_bytes(histories, args.k), python_lists(args, histories)
    with serving(serve_words(args, more)) as server:
        lists = checked(server.port, requests, wanted)
        carried = asyncio.run(drive(server.port, requests, 32, seconds=5)).figures()["a_second"]
        rate = args.times * carried
        work = arrive(server.port, requests, rate, args.seconds, connections=512)
        (load, left_out), memory = asyncio.run(_sampled(server, work, 1.0))
        after = asyncio.run(drive(server.port, requests[:100], 1))
        reported = asyncio.run(drive(server.port, [request_bytes(b"", "/metrics", "GET")], 1, keep=True)).bodies[0]
    half = memory[len(memory) // 4]  # after the queue has been full for a while
    return {
        "lists": lists,
        "carried_a_second": carried,
        "sent_a_second": round(len(load.times) / load.seconds, 1),
        "asked_a_second": round(rate, 1),
        "not_sent": left_out,
        "seconds": round(load.seconds, 1),
        "by_status": _by_status(load),
        "resident_mib": {"start": memory[0], "after_a_quarter": half, "end": memory[-1], "most": max(memory)},
        "memory_growth": round(memory[-1] / half - 1, 4),
        "answers_after": dict(Counter(after.statuses)),
        "time_limit_s": _limit(more),
        "metrics": [line for line in reported.decode().splitlines() if line.startswith("minionerec_refused_total")],
    }


def soak(args: argparse.Namespace, more: list[str]) -> dict[str, Any]:
    """Mixed traffic for minutes: memory and errors."""
    histories = histories_of(args)
    rng = random.Random(args.seed)
    wanted = python_lists(args, histories)
    requests = recommend_bytes(histories, args.k)
    mixed = list(requests)
    for position in range(0, len(histories), 10):
        some = [{"history": history, "k": rng.randrange(1, 50)} for history in histories[position : position + 8]]
        mixed.append(request_bytes(json.dumps({"requests": some}).encode()))
        filtered = {"history": histories[position], "exclude_seen": True, "without": rng.choice(histories)}
        mixed.append(request_bytes(json.dumps(filtered).encode()))
        mixed.append(request_bytes(json.dumps({"history": histories[position], "k": 5}).encode(), "/v1/explain"))
        mixed.append(request_bytes(b"", "/v1/items?query=s&limit=10", "GET"))
    rng.shuffle(mixed)
    with serving(serve_words(args, more)) as server:
        lists = checked(server.port, requests, wanted)
        work = drive(server.port, mixed, 8, seconds=60 * args.minutes)
        load, memory = asyncio.run(_sampled(server, work, 5.0))
    warm, step = memory[max(1, len(memory) // 10)], max(1, len(memory) // 40)
    resident = {"after_a_tenth": warm, "end": memory[-1], "most": max(memory), "samples": memory[::step]}
    return {
        "lists": lists,
        "minutes": round(load.seconds / 60, 2),
        "by_status": _by_status(load),
        "resident_mib": resident,
        "memory_growth": round(memory[-1] / warm - 1, 4),
    }


def _strange(body: bytes) -> bool:
    """Whether a body is no JSON, or holds what no JSON holds."""
    try:
        json.loads(body, parse_constant=lambda word: 1 // 0)
    except (ValueError, ZeroDivisionError):
        return True
    return False


def garbage(args: argparse.Namespace, more: list[str]) -> dict[str, Any]:
    """Mutated requests: the answer to each."""
    histories = histories_of(args)
    rng = random.Random(args.seed)
    bodies = []
    for history in histories[:200]:
        full = {"history": history, "k": args.k, "exclude_seen": True, "only": None, "without": history[:1]}
        full |= {"unknown": "skip", "where": {}}
        bodies += [json.dumps(full).encode(), json.dumps({"requests": [full, {"history": history}]}).encode()]
    paths = ["/v1/recommend", "/v1/recommend", "/v1/recommend", "/v1/explain", "/v1/reload"]
    requests = [request_bytes(mutated(rng.choice(bodies), rng), rng.choice(paths)) for _ in range(args.requests)]
    with serving(serve_words(args, [*more, "--reload", "request"])) as server:
        load = asyncio.run(drive(server.port, requests, 8, keep=True))
        after = asyncio.run(drive(server.port, recommend_bytes(histories[:50], args.k), 1))
    strange = sum(_strange(body) for body in load.bodies)
    return {
        "requests": len(load.statuses),
        "by_status": {str(status): count for status, count in sorted(Counter(load.statuses).items())},
        "answers_that_are_no_json": strange,
        "answers_after": dict(Counter(after.statuses)),
    }


def million(args: argparse.Namespace, more: list[str]) -> dict[str, Any]:
    """A small language model with random weights over catalogues of several sizes: start-up, memory, latency."""
    from serving_made import made_checkpoint, made_corpus, random_codes

    from minionerec.sid.table import SidTable

    found = {}
    for count in args.catalogues:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            begin = time.perf_counter()
            corpus = made_corpus(path / "corpus", count, args.seed)
            table = SidTable(random_codes(count, args.seed), corpus.items["item_id"].tolist())
            shape = {"layers": 4, "width": 256, "heads": 4, "kv_heads": 4, "inner": 768, "vocabulary": 0}
            weights = made_checkpoint(path / "model", table, corpus.items["title"].tolist(), args.seed, **shape)
            del corpus, table
            made = round(time.perf_counter() - begin, 1)
            own = argparse.Namespace(**vars(args))
            own.checkpoint, own.corpus, own.rows = str(path / "model"), str(path / "corpus"), min(args.rows, 300)
            measured = latency(own, more)
            found[str(count)] = {"weights": weights, "made_in_seconds": made, **measured}
    lists = Counter()
    for each in found.values():
        lists.update(each["lists"])
    return {"lists": dict(lists), "catalogues": found}


def make_random(args: argparse.Namespace, more: list[str]) -> dict[str, Any]:
    """Write a checkpoint with random weights over the items of a corpus."""
    from serving_made import made_checkpoint

    from minionerec.data.corpus import Corpus
    from minionerec.sid.table import SidTable

    corpus = Corpus.load(args.corpus)
    table = SidTable.load_index(args.sids, corpus.items["item_id"].tolist())
    shape = {name: getattr(args, name) for name in ("layers", "width", "heads", "kv_heads", "inner", "vocabulary")}
    weights = made_checkpoint(Path(args.checkpoint), table, corpus.items["title"].tolist(), args.seed, **shape)
    return {"shape": shape, "weights": weights, "checkpoint": args.checkpoint}


MEASURES = {
    "latency": latency,
    "plain": plain,
    "overload": overload,
    "soak": soak,
    "garbage": garbage,
    "million": million,
    "random": make_random,
}


def _different(found: dict[str, Any]) -> int:
    """Lists that are not those of the Python side."""
    lists = found.get("lists", {})
    kinds = [lists] if "different" in lists else [each for each in lists.values() if isinstance(each, dict)]
    return sum(each["different"] for each in kinds)


def main() -> int:
    """Measure, write and print; status 1 where lists differ."""
    args, more = options()
    if args.checkpoint is None and args.what != "million":
        raise SystemExit(f"{args.what} needs --checkpoint")
    found = {"what": args.what, "asked": vars(args), "server": more, "load_before": os.getloadavg()}
    found |= MEASURES[args.what](args, more)
    Path(args.output).write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name not in ("asked",)}, indent=1))
    return 1 if _different(found) else 0


if __name__ == "__main__":
    sys.exit(main())
