"""The stage `recommend`: recommendations for a file of histories, in parts, on any number of processes, resumable."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from minionerec.core.artefacts import atomic_write
from minionerec.core.errors import DataError
from minionerec.core.log import NO_CLOCK, Clock, get_logger, progress
from minionerec.core.parquet import readable
from minionerec.core.processes import is_main_process, process_rank, wait_for_everyone, world_size
from minionerec.data.corpus import Corpus
from minionerec.data.files import parse_object
from minionerec.pipeline.config.recommend import RecommendConfig
from minionerec.pipeline.stage import Stage
from minionerec.pipeline.stages import StageResult
from minionerec.recommend.rankers.language import Search
from minionerec.recommend.rankers.load import make_ranker
from minionerec.recommend.rankers.protocol import Ranking
from minionerec.recommend.recommender import Recommender
from minionerec.recommend.requests import Request, RequestError, plain_time

# Reading a file of histories in parts.

COLUMNS = ("history", "user", "only", "without", "context", "times", "now", "events")
KINDS = (".parquet", ".jsonl")
ROWS_AT_ONCE = 4096
"""Histories that are read, ranked and written at a time."""


def read_histories(path: Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Rows of a file of histories, in parts.

    Args:
        path: parquet, or one JSON object per line.

    Yields:
        The index of its first row, from 0, and the rows: "history" is a list of texts, "user" a text (its index if
        missing), "only" a list or None, "without" a list, "context" name of a request feature → value, "times" and
        "now" as in the file, dates as text, "events" as in the file.

    Raises:
        DataError: If the file cannot be read, or a row is malformed; the message names file and row.
    """
    suffix = path.suffix.lower()
    if suffix not in KINDS:
        raise DataError(f"{path}: unknown file type {suffix!r}; known: {', '.join(KINDS)}. Convert it.")
    start = 0
    for part in (_parquet_parts if suffix == ".parquet" else _line_parts)(path):
        yield start, [_checked(row, path, start + index) for index, row in enumerate(part)]
        start += len(part)


def count_histories(path: Path) -> int | None:
    """Rows of the file, where known without reading it; else None."""
    return pq.ParquetFile(path).metadata.num_rows if path.suffix.lower() == ".parquet" else None


def _parquet_parts(path: Path) -> Iterator[list[dict[str, Any]]]:
    with readable(path, error=DataError, remedy="Write it again."), pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        if "history" not in names:
            raise DataError(f"{path}: column 'history' is missing; it has {', '.join(names)}. Name it history.")
        columns = [name for name in COLUMNS if name in names]
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=columns):
            yield batch.to_pylist()


def _line_parts(path: Path) -> Iterator[list[dict[str, Any]]]:
    with path.open("rb") as file:
        numbered = enumerate(file, 1)
        while part := [_line(line, path, number) for number, line in islice(numbered, ROWS_AT_ONCE)]:
            yield part


def _line(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = parse_object(line)
    except ValueError as error:
        problem = f"not valid JSON ({str(error)[:200]})"
        raise DataError(f'{path}, line {number}: {problem}. Write an object such as {{"history": ["id"]}}.') from None
    foreign = sorted(set(row) - set(COLUMNS))
    if foreign:
        raise DataError(f"{path}, line {number}: unknown name {foreign[0]!r}; known: {', '.join(COLUMNS)}.")
    return row


def _checked(row: Mapping[str, Any], path: Path, number: int) -> dict[str, Any]:
    """A checked row with all its fields."""
    where = f"{path}, row {number + 1}"
    user = row.get("user")
    if not (user is None or isinstance(user, str | int)):
        raise DataError(f"{where}: user is {str(user)[:60]!r}; expected a text or a whole number.")
    context = row.get("context") or {}
    if isinstance(context, list) and all(isinstance(pair, tuple) for pair in context):  # of a column of maps
        context = dict(context)
    if not isinstance(context, dict):
        raise DataError(
            f"{where}: context is {str(context)[:60]!r}; expected an object of request features and values."
        )
    only, times = row.get("only"), row.get("times")
    return {
        "user": str(number) if user is None else str(user),
        "history": _ids([] if row.get("history", "") is None else row.get("history"), "history", where),
        "only": None if only is None else _ids(only, "only", where),
        "without": [] if row.get("without") is None else _ids(row["without"], "without", where),
        "context": {name: value for name, value in context.items() if value is not None},
        "times": [plain_time(time) for time in times] if isinstance(times, list) else times,
        "now": plain_time(row.get("now")),
        "events": row.get("events"),
    }


def _ids(value: Any, name: str, where: str) -> list[str]:
    """A list of ids as texts; integers are converted."""
    if isinstance(value, list | np.ndarray) and all(
        isinstance(item, str) or (isinstance(item, int) and not isinstance(item, bool)) for item in value
    ):
        return [str(item) for item in value]
    raise DataError(f"{where}: {name} is {str(value)[:60]!r}; expected a list of item ids.")


logger = get_logger(__name__)

FILE = "recommendations.parquet"
BEAMS = 50
"""Minimum number of beams of a language model."""
SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("items", pa.list_(pa.string())),
        ("titles", pa.list_(pa.string())),
        ("sids", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float64())),
        ("probabilities", pa.list_(pa.float64())),
        ("unknown", pa.list_(pa.string())),
        ("context", pa.map_(pa.string(), pa.string())),
    ]
)


def run_recommend(config: RecommendConfig) -> StageResult:
    """Recommend for every row of a file of histories: an artefact with `recommendations.parquet`.

    One row per history, in the order of the file: `user`, `items` (ids, best first), `titles`, `sids`, `probabilities`
    (empty where the model has none), `scores`, `unknown` (unknown ids) and `context` (request features that the model
    was given, name → name of the value). Rows are read, ranked and written in parts of `ROWS_AT_ONCE`, so that memory
    does not grow with the file; processes of a distributed launch take turns; an interrupted run is resumed at the
    first missing part.

    Args:
        config: Settings.

    Raises:
        ArtefactError: If an input is missing, or model and corpus do not belong together.
        ConfigError: If the settings contradict each other.
        DataError: If a row cannot be answered; the message names it.
    """
    stage = Stage(config)
    if (manifest := stage.current()) is not None:
        return _result(stage.output, manifest["counts"])
    counts = {"rows": 0, "short_lists": 0, "rows_with_unknown_ids": 0}
    inputs = stage.inputs
    settings = {name: getattr(config, name) for name in ("k", "exclude_seen", "where")}

    def load() -> Recommender:
        if config.ranker:
            corpus = Corpus.load(inputs["corpus"])
            return Recommender.of(make_ranker(config.ranker, corpus), corpus)
        search = Search(beams=BEAMS)
        return Recommender.load(inputs["checkpoint"], corpus=inputs["corpus"], search=search)

    with stage.work() as work:
        next(read_histories(inputs["histories"]), None)  # fails before a folder is created
        folder = work.folder
        with work.phase("search"):
            parts = _answer_parts(inputs["histories"], load, settings, folder, work)
            wait_for_everyone()
        if is_main_process():
            with work.finish(counts=counts) as output, pq.ParquetWriter(output / FILE, SCHEMA) as writer:
                for number in range(parts):
                    part = pq.read_table(_part(folder, number), schema=SCHEMA)
                    _count(part, config.k, counts)
                    writer.write_table(part)
    return _result(stage.output, counts)


def _result(output: Path, counts: Mapping[str, Any]) -> StageResult:
    rows, short, unknown = (counts[name] for name in ("rows", "short_lists", "rows_with_unknown_ids"))
    what = f"{rows:,} lists ({short:,} with fewer than k items, {unknown:,} histories with unknown ids)"
    return StageResult(output, [f"{what}: {output / FILE}"], counts)


def _answer_parts(
    path: Path,
    load: Callable[[], Recommender],
    settings: Mapping[str, Any],
    folder: Path,
    clock: Clock = NO_CLOCK,
) -> int:
    """Compute this process's missing parts; returns the number of all parts.

    Args:
        path: The file of histories.
        load: Loads the recommender; called if a part is missing.
        settings: Fields of all requests (`Request`).
        folder: Folder of the parts.
        clock: Records the number of finished parts.
    """
    kept = len(list(folder.glob("part-*.parquet")))
    clock.reached(kept)
    rows = count_histories(path)
    parts = None if rows is None else -(-rows // ROWS_AT_ONCE)
    recommender: Recommender | None = None
    number, done, spent = -1, 0, 0.0
    reading = read_histories(path)
    for number, (start, part) in enumerate(progress(reading, "recommending", total=parts, unit="part")):
        if number % world_size() != process_rank() or _part(folder, number).is_file():
            continue
        recommender = recommender or load()
        begin = time.perf_counter()
        listed = _answered(recommender, settings, path, start, part)
        _write_part(_part(folder, number), [row["user"] for row in part], *listed, recommender)
        done, spent = done + len(part), spent + time.perf_counter() - begin
        kept += 1
        clock.reached(kept)
    if done:
        logger.info("Ranked %s histories in %.1f s: %.1f histories/s.", f"{done:,}", spent, done / spent)
    return number + 1


def _answered(
    recommender: Recommender,
    settings: Mapping[str, Any],
    path: Path,
    start: int,
    rows: Sequence[Mapping[str, Any]],
) -> tuple[Ranking, list[tuple[str, ...]], list[dict[str, str]]]:
    """See `Recommender.listed`."""
    requests: list[Request] = []
    try:
        for row in rows:
            requests.append(Request(**settings, **{name: value for name, value in row.items() if name != "user"}))
        return recommender.listed(requests)
    except RequestError as wrong:
        for index, request in enumerate(requests):  # find the row
            try:
                recommender.understand(request)
            except RequestError as error:
                raise DataError(f"{path}, row {start + index + 1}: {error}") from None
        if len(requests) < len(rows):
            raise DataError(f"{path}, row {start + len(requests) + 1}: {wrong}") from None
        raise


def _part(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06d}.parquet"


def _write_part(
    path: Path,
    users: Sequence[str],
    ranking: Ranking,
    unknown: Sequence[Sequence[str]],
    contexts: Sequence[Mapping[str, str]],
    recommender: Recommender,
) -> None:
    """Write one part atomically."""
    lengths = [len(items) for items in ranking.items]
    listed = np.fromiter((item for items in ranking.items for item in items), np.int64, sum(lengths))
    scores = np.fromiter((score for own in ranking.scores for score in own), np.float64, len(listed))
    chances = recommender.probabilities(listed, scores)
    offsets = pa.array(np.cumsum([0, *lengths]), pa.int32())
    empty = pa.array(np.zeros(len(offsets)), pa.int32())

    def taken(names: Sequence[str] | None) -> pa.ListArray:
        """The names of the listed items, list by list."""
        if names is None:
            return pa.ListArray.from_arrays(empty, pa.array([], pa.string()))
        return pa.ListArray.from_arrays(offsets, pa.array(names, pa.string()).take(pa.array(listed)))

    none = pa.ListArray.from_arrays(empty, pa.array([], pa.float64()))
    columns = [
        pa.array(users, pa.string()),
        taken(recommender.items.ids),
        taken(recommender.items.titles),
        taken(recommender.sids),
        pa.ListArray.from_arrays(offsets, pa.array(scores)),
        none if chances is None else pa.ListArray.from_arrays(offsets, pa.array(chances)),
        pa.array([list(ids) for ids in unknown], pa.list_(pa.string())),
        pa.array([list(context.items()) for context in contexts], pa.map_(pa.string(), pa.string())),
    ]
    with atomic_write(path) as fresh:
        pq.write_table(pa.table(columns, schema=SCHEMA), fresh)


def _count(part: pa.Table, k: int, counts: dict[str, int]) -> None:
    counts["rows"] += part.num_rows
    counts["short_lists"] += sum(len(items) < k for items in part["items"].to_pylist())
    counts["rows_with_unknown_ids"] += sum(bool(ids) for ids in part["unknown"].to_pylist())
