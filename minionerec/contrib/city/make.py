"""The stage that makes a city of any size, block after block of users."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from minionerec.contrib.city.columns import DEVICES, EVENTS, PURCHASE, events_of
from minionerec.contrib.city.config import MakeCityConfig
from minionerec.contrib.city.people import Columns, People, people_of
from minionerec.contrib.city.purchases import purchases_of
from minionerec.contrib.city.sizes import PARQUET, SHOP
from minionerec.contrib.city.text import ids, items_table, shop_table
from minionerec.core.artefacts import atomic_write
from minionerec.core.log import progress
from minionerec.pipeline.stage import Stage, Work
from minionerec.pipeline.stages import StageResult

ITEMS, INTERACTIONS = "items.parquet", "interactions.parquet"
"""The two tables, in the form of the source `tables` of prepare-data."""
SHOP_ITEMS, SHOP_INTERACTIONS = "items.csv", "interactions.csv"
"""The two tables of a shop."""
ITEMS_AT_ONCE = 1 << 16
_PARTS = "parts"
_WRITING: dict[str, Any] = {"compression": "zstd", "dictionary_pagesize_limit": 1 << 23}


def city_people(settings: Mapping[str, Any]) -> People:
    """The users (and the world) of settings of `make-city`, from a configuration or a manifest."""
    names = ("items", "users", "mean_interactions", "days", "epoch_days", "seed")
    later = {name: settings[name] for name in ("late", "returns", "memory") if name in settings}
    if settings.get("columns"):
        later["columns"] = Columns(*(settings[field.name] for field in fields(Columns)))
    return people_of(*(int(settings[name]) for name in names), **later)


def run_make_city(config: MakeCityConfig) -> StageResult:
    """Draw all purchases and write both tables.

    Every block of users is a file of its own until all exist, so an interrupted run resumes with the blocks
    that are missing.

    Raises:
        ArtefactError: If the output cannot be written.
    """
    stage = Stage(config)
    if (manifest := stage.current()) is not None:
        return _result(stage.output, manifest["counts"])
    people = city_people(stage.settings)
    counts: dict[str, Any] = {"items": people.world.items, "shelves": people.world.shelves, "users": people.users}
    with stage.work() as work:
        parts = _make_parts(config.processes, people.blocks, work)
        with work.finish(seed=config.seed, counts=counts) as folder:
            if config.form == SHOP:
                counts["interactions"] = _write_shop(people, parts, folder)
            else:
                _write_items(people, folder / ITEMS)
                counts["interactions"] = _join(parts, folder / INTERACTIONS)
            if people.columns is not None:
                counts["purchases"] = sum(_purchases(part) for part in parts)
            counts |= {"blocks": people.blocks, "epochs": people.world.epochs}
    return _result(stage.output, counts)


def _result(output: Path, counts: Mapping[str, Any]) -> StageResult:
    summary = ", ".join(f"{counts[name]:,} {name}" for name in ("items", "users", "interactions"))
    return StageResult(output, [summary, f"city: {output}"], counts)


def _make_parts(processes: int, blocks: int, work: Work) -> list[Path]:
    """Write one file per block, in order; files of an interrupted run are reused."""
    folder = work.folder / _PARTS
    folder.mkdir(exist_ok=True)
    parts = [folder / f"{block:06d}.parquet" for block in range(blocks)]
    missing = [block for block, part in enumerate(parts) if not part.is_file()]
    done = len(parts) - len(missing)
    work.reached(done)
    with work.phase("choose"):
        written = _written(processes, [(work.stage.settings, block, parts[block]) for block in missing])
        for _ in progress(written, "generating users", total=len(missing), unit="block"):
            done += 1
            work.reached(done)
    return parts


def _written(processes: int, blocks: list[tuple[Mapping[str, Any], int, Path]]) -> Iterator[None]:
    """Write blocks one by one, or several at a time in processes."""
    if processes == 1:
        for block in blocks:
            write_block(*block)
            yield
        return
    with ProcessPoolExecutor(min(processes, max(1, len(blocks))), mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(write_block, *block) for block in blocks]
        try:
            for job in as_completed(jobs):
                yield job.result()
        finally:
            pool.shutdown(cancel_futures=True)


def write_block(settings: Mapping[str, Any], block: int, path: Path) -> None:
    """Draw the purchases of one block and write them atomically; a process makes the world of its settings once.

    Args:
        settings: As for `city_people`.
        block: Number of the block.
        path: The parquet file.
    """
    people, form = city_people(settings), settings.get("form", PARQUET)
    if people.columns is None:
        users, items, times = purchases_of(people, block)
        further = {}
    else:
        events = events_of(people, block)
        users, items, times = (events[name] for name in ("users", "items", "times"))
        further = {
            "event": pa.array(EVENTS).take(events["events"]),
            "device": pa.array(DEVICES).take(events["devices"]),
        }
    table = pa.table(
        {
            "user_id": ids("u", users, form),
            "item_id": ids("p", items, form),
            "timestamp": pa.array(times, pa.int64()),
            **further,
        }
    )
    with atomic_write(path) as fresh:
        pq.write_table(table, fresh, row_group_size=len(table), **_WRITING)


def _purchases(part: Path) -> int:
    """Number of purchases among the interactions of a part."""
    number: int = pc.sum(pc.equal(pq.read_table(part, columns=["event"])["event"], PURCHASE)).as_py()
    return number


def _write_items(people: People, path: Path) -> None:
    """Write the items table part by part."""
    world = people.world
    writer: pq.ParquetWriter | None = None
    for begin in range(0, world.items, ITEMS_AT_ONCE):
        table = items_table(world, begin, min(begin + ITEMS_AT_ONCE, world.items), people.columns is not None)
        writer = writer or pq.ParquetWriter(path, table.schema, **_WRITING)
        writer.write_table(table, row_group_size=len(table))
    if writer is not None:
        writer.close()


def _write_shop(people: People, parts: list[Path], folder: Path) -> int:
    """Write both tables as csv, interactions in order of time, and return the number of interactions."""
    shop_table(people.world, people.columns is not None).to_pandas().to_csv(
        folder / SHOP_ITEMS, index=False, lineterminator="\n"
    )
    interactions = pa.concat_tables([pq.read_table(part) for part in parts]).to_pandas()
    interactions = interactions.sort_values("timestamp", kind="stable")
    interactions.to_csv(folder / SHOP_INTERACTIONS, index=False, lineterminator="\n")
    return len(interactions)


def _join(parts: list[Path], path: Path) -> int:
    """Write all parts into one file, a row group each, and return the number of rows."""
    count = 0
    with pq.ParquetWriter(path, pq.read_schema(parts[0]), **_WRITING) as writer:
        for part in parts:
            table = pq.read_table(part)
            writer.write_table(table, row_group_size=len(table))
            count += len(table)
    return count
