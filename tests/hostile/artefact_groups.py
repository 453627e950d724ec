"""What the campaign does to artefacts: their files forged, with and without hashes that agree."""

import contextlib
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
from contrib.preference.groups import COMPARISONS
from hostile import mutate
from hostile.architecture_groups import ARCHITECTURE_GROUPS
from hostile.groups import RAW, Group, holds
from hostile.launch_groups import LAUNCHES
from hostile.page_groups import PAGES
from hostile.path_groups import PATHS
from hostile.recipe_groups import RECIPES
from hostile.table_groups import TABLES
from support.gaps import GAP, LATER, SAME
from support.small_shop import make_shop, sign

from minionerec.core.artefacts import MANIFEST, open_artefact, read_json
from minionerec.core.errors import DataError
from minionerec.data.corpus import Corpus
from minionerec.metrics.predictions import Predictions
from minionerec.pipeline.recommend import read_histories
from minionerec.recommend.rankers.protocol import Queries
from minionerec.recommend.requests import Request
from minionerec.serve.config import Limits
from minionerec.serve.reading import Refusal, read_call
from minionerec.serve.reading import read_json as read_body
from minionerec.sid.embed.stored import load_vector_table, load_vectors
from minionerec.sid.table import SidTable

_MODELS = ("sft", "train-catalogue", "train-sequential", "train-tiger")
_SHOP = partial(make_shop, names=("prepare-data", "build-sids", *_MODELS, "eval-beam"))
_SMALL_SHOP = partial(make_shop, names=("prepare-data", "build-sids"))
"""The shop of the other hostile tests, as far as these groups read it, and its corpus and SIDs alone."""


def _make_vectors(folder: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)
    np.save(folder / "vectors.npy", vectors)
    table = pd.DataFrame({"item_id": [f"i{n}" for n in range(12)], "vector": list(vectors)})
    table.to_parquet(folder / "vectors.parquet")


def _strike_vectors(rng: Random, clean: Path, folder: Path) -> str:
    npy = rng.random() < 0.6
    path = folder / ("vectors.npy" if npy else "vectors.parquet")
    mutate.change_file(rng, path, mutate.spoil_npy if npy else mutate.spoil_parquet)
    found = load_vectors(path, 12) if npy else load_vector_table(path, [f"i{n}" for n in range(12)])
    holds(found.dtype == np.float32 and len(found) == 12 and bool(np.isfinite(found).all()), "not 12 finite vectors")
    with np.errstate(over="ignore"):
        holds(bool(np.isfinite((found * found).sum(dtype=np.float32))), "vectors whose squares overflow")
    return "read"


def _strike_index(rng: Random, clean: Path, folder: Path) -> str:
    path = folder / "sids" / "index.json"
    ids = list(read_json(path))
    if rng.random() < 0.5:
        content = json.loads(path.read_text())
        item = rng.choice(ids)
        tokens = ("<a_01>", "<a_٣>", "<a_2147483648>", "<a_2147483647>", "<z_1>", "<a_-1>", "<a_1", "<A_1>", "")
        content[item] = [rng.choice((*tokens, "<a_1><b_2>", 7)) for _ in range(rng.randint(0, 3))]
        path.write_text(json.dumps(content))
    else:
        mutate.change_file(rng, path, mutate.spoil_json)
    table = SidTable.load_index(path, ids if rng.random() < 0.5 else None)
    holds(table.codes.dtype == np.int32 and bool((table.codes[:, 0] >= 0).all()), "codes that are none")
    written = json.loads(path.read_text(encoding="utf-8"))
    for item, sid in zip(table.item_ids, table.sids, strict=True):
        holds("".join(written[item]).strip() == sid, f"{written[item]} of {item} is read as {sid}")
    return "read"


def _strike_manifest(rng: Random, clean: Path, folder: Path) -> str:
    kind = rng.choice(("corpus", "sids"))
    path = folder / kind / "manifest.json"
    before = path.read_bytes()
    mutate.change_file(rng, path, mutate.spoil_json)
    manifest = open_artefact(folder / kind, kind)
    holds(json.loads(before) == json.loads(path.read_bytes()) == manifest, "an edited manifest passes")
    return "read"


def _strike_histories(rng: Random, clean: Path, folder: Path) -> str:
    json_lines = rng.random() < 0.6
    path = folder / ("histories.jsonl" if json_lines else "histories.parquet")
    mutate.change_file(rng, path, mutate.spoil_json if json_lines else mutate.spoil_parquet)
    rows = [row for _, part in read_histories(path) for row in part]
    for row in rows:
        holds(all(isinstance(item, str) for item in [*row["history"], row["user"]]), f"not texts: {row!r:.80}")
    if json_lines:
        lines = path.read_bytes().split(b"\n")
        holds(len(rows) in (len(lines), len(lines) - 1), f"{len(rows)} rows of {len(lines)} lines")
    for row in rows:
        _check_times(Request(**{name: row[name] for name in ("history", "times", "now")}))
    return "read"


BY_DAY = replace(GAP, unit=86_400)


def _check_times(request: Request) -> None:
    """Each time of a request gives the gap of its day, as far as plain Python reads it."""
    if request.times is None:
        return
    seconds, now = request.seconds()
    holds(len(seconds) == len(request.history), f"{len(seconds)} times of {len(request.history)} items")
    for time, second in zip(request.times, seconds, strict=True):
        holds((time is None) == (second is None), f"{time!r} is {second}")
        days = [_day(time), _day(request.now)]
        if second is not None and None not in days:
            context = BY_DAY.of_request(second, now)
            holds(context == (SAME if days[0] == days[1] else LATER), f"{time!r} and {request.now!r} are {context}")


def _day(time: Any) -> Any:
    """The day of a time in UTC; None where plain Python does not read it."""
    with contextlib.suppress(ValueError, TypeError):
        if isinstance(time, str):
            read = datetime.fromisoformat(time.strip())
            return (read if read.tzinfo is None else read.astimezone(UTC)).date()
        return datetime.fromtimestamp(time, UTC).date() if 1e8 < time < 4e9 else None
    return None


TIMES = (
    *("2018-11-05", "2018-11-05T23:59:59.9999", "2018-11-06T01:00+02:00", "2018-11", "2018-W45-1", "20181105", ""),
    *("2018-11-31", "9999-12-31", "0001-01-01", "NaT", "now", "1541376000", " 2018-11-05", "2018-11-05T24:00", "1e9"),
    *(1_541_376_000, 1_541_376_000.5, 1_541_376_000_000, 17_840, 20_181_105, -1, 0, 2**62, 1e300, True, None, [], {}),
)
"""Times of requests, most of which are none, or not in the form of the others."""


ODD = ("view", "", 3, -1, 0, 1, 1.5, 1e308, float("inf"), float("nan"), "2", True, None, [], {}, ["view"], {"a": 1})
"""Values of other fields, of which most fields take few."""


def _make_request(folder: Path) -> None:
    times = {"times": ["2018-11-05", None, "2018-11-05T09:30:00"], "now": "2018-11-06"}
    request = {"history": ["i1", "i2", "i9"], "k": 3, "exclude_seen": True, "context": {"gap": "unknown"}, **times}
    request |= {"events": ["view", None, "purchase"], "columns": ["brand"], "boost": {"brand": {"Acme": 1.2}}}
    request |= {"at_most": {"brand": 2}, "diversity": 0.3}
    seconds = {"times": [1_541_376_000, 1_541_379_600, None], "now": 1_541_380_000}
    (folder / "body.json").write_text(json.dumps({"requests": [request, request | seconds]}))


def _strike_request(rng: Random, clean: Path, folder: Path) -> str:
    path = folder / "body.json"
    if rng.random() < 0.5:
        body = json.loads(path.read_bytes())
        request = rng.choice(body["requests"])
        for _ in range(rng.randint(1, 2)):
            holder, key = rng.choice(((request, "now"), (request["times"], rng.randrange(3))))
            holder[key] = rng.choice(TIMES)
        if rng.random() < 0.5:
            fields = (request, request["events"], request["boost"], request["boost"]["brand"], request["at_most"])
            holder = rng.choice(fields)
            keys = range(len(holder)) if isinstance(holder, list) else (*holder, "other")
            holder[rng.choice(keys)] = rng.choice(ODD)
        path.write_text(json.dumps(body))
    else:
        mutate.change_file(rng, path, mutate.spoil_json)
    try:
        requests, _ = read_call(read_body(path.read_bytes()), Limits())
    except Refusal as refused:
        holds(refused.status in (400, 422), f"status {refused.status}")
        raise DataError(refused.message) from None
    for request in requests:
        _check_times(request)
        events = request.events or [None] * len(request.history)
        holds(len(events) == len(request.history), "events of other items")
        holds(all(event is None or isinstance(event, str) for event in events), "events that are no texts")
        holds(0 <= request.diversity <= 1, f"diversity {request.diversity}")
        factors = [factor for of in (request.boost or {}).values() for factor in of.values()]
        holds(all(0 < factor <= 1e6 for factor in factors), f"factors {factors}")
        holds(all(type(most) is int and most >= 1 for most in (request.at_most or {}).values()), "at_most of no number")
    return "read"


def _make_histories(folder: Path) -> None:
    times = {"times": ["2018-11-05", "2018-11-05T09:30:00"], "now": "2018-11-06"}
    rows = [{"history": [f"i{n}", "i2"], "user": f"u{n}", "events": ["view", None], **times} for n in range(5)]
    (folder / "histories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pd.DataFrame(rows).to_parquet(folder / "histories.parquet")


def _load_corpus(path: Path) -> None:
    corpus = Corpus.load(path)
    for rows in corpus.splits().values():
        items = np.concatenate([*rows.histories, rows.targets, np.zeros(0, np.int32)])
        inside = items.dtype.kind == "i" and bool(((items >= 0) & (items < corpus.n_items)).all())
        holds(inside, "items beyond the catalogue")
        holds(bool((rows.lengths <= corpus.max_history).all()), "histories beyond what one may hold")
        holds(all(isinstance(user, str) for user in rows.users), "users that are no texts")


def _load_predictions(path: Path) -> None:
    from minionerec.metrics.ranked import Ranked

    open_artefact(path, "predictions")
    found = Predictions.load(path)
    ranked = Ranked.from_predictions(found)
    holds(len(ranked) == len(found), "rows vanish")


def _load_checkpoint(path: Path) -> None:
    from minionerec.recommend.rankers.load import load_ranker

    open_artefact(path)
    corpus = Corpus.load(next(folder for folder in path.parents if (folder / "corpus").is_dir()) / "corpus")
    ranking = load_ranker(path, corpus).rank(Queries([np.array([3, 1]), np.array([], dtype=np.int64)]), 3)
    scores = list(itertools.chain(*ranking.scores))
    holds(bool(np.isfinite(scores).all()), "scores that are no numbers")


def _forged(name: str, read: Callable[[Path], Any], files: tuple[str, ...], share: float) -> Group:
    """An attack on one of several files of an artefact whose maker signs what he forged, or does not."""
    spoilers = {".parquet": mutate.spoil_parquet, ".json": mutate.spoil_json, ".safetensors": mutate.spoil_safetensors}

    def strike(rng: Random, clean: Path, folder: Path) -> str:
        path = folder / rng.choice(files)
        artefact = next(parent for parent in path.parents if (parent / MANIFEST).is_file())
        before = path.read_bytes()
        mutate.change_file(rng, path, spoilers[path.suffix])
        signed = rng.random() < 0.6
        if signed:
            sign(artefact)
        read(artefact)
        holds(signed or path.read_bytes() == before, "an edited file passes")
        return "read"

    return Group(name, _SMALL_SHOP if name == "corpus" else _SHOP, strike, share)


_LANGUAGE = tuple(f"sft/{name}" for name in ("model.safetensors", "config.json", "tokenizer.json", "index.json"))
_TIGER = tuple(f"tiger/{name}" for name in ("config.json", "model.safetensors", "index.json", "tokenizer.json"))
_CATALOGUE = tuple(f"catalogue/{name}" for name in ("model.safetensors", "config.json", "index.json"))
_SEQUENTIAL = tuple(f"sequential/model/{name}" for name in ("model.safetensors", "model.json"))
GROUPS = {
    group.name: group
    for group in (
        *(*RAW, *TABLES, COMPARISONS, *PATHS, *RECIPES, *PAGES, *ARCHITECTURE_GROUPS, *LAUNCHES),
        Group("vectors", _make_vectors, _strike_vectors, 4),
        Group("index", _SMALL_SHOP, _strike_index, 4),
        Group("manifest", _SMALL_SHOP, _strike_manifest, 3),
        Group("histories", _make_histories, _strike_histories, 4),
        Group("requests", _make_request, _strike_request, 3),
        _forged("corpus", _load_corpus, ("corpus/items.parquet", "corpus/sequences/00000.parquet"), 3),
        _forged("predictions", _load_predictions, ("predictions/predictions.parquet",), 3),
        _forged("language model", _load_checkpoint, _LANGUAGE, 0.6),
        _forged("catalogue model", _load_checkpoint, _CATALOGUE, 0.6),
        _forged("TIGER", _load_checkpoint, _TIGER, 0.3),
        _forged("sequential model", _load_checkpoint, _SEQUENTIAL, 0.6),
    )
}
