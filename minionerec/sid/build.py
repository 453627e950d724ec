"""The stage that gives every item of a corpus a semantic ID."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import read_json, write_text_atomic
from minionerec.core.log import get_logger
from minionerec.core.stage import Stage
from minionerec.sid.config import SidConfig
from minionerec.sid.embed.config import encoder_inputs
from minionerec.sid.embed.items import ItemTexts
from minionerec.sid.methods import MAKERS, MethodInputs, resolve
from minionerec.sid.quantiser import CODEBOOKS_FILE
from minionerec.sid.report import REPORT_FILE, report_lines, sid_report
from minionerec.sid.table import INDEX_FILE, SidTable

logger = get_logger(__name__)


@dataclass(frozen=True)
class SidResult:
    """What `run_build_sids` made.

    Attributes:
        output: The artefact's directory.
        table: The SIDs of all items.
        report: Content of report.json, as `minionerec.sid.report.sid_report` describes it.
        up_to_date: Whether the output already stood, made from the same settings and inputs.
    """

    output: Path
    table: SidTable
    report: Mapping[str, Any]
    up_to_date: bool

    def lines(self) -> list[str]:
        """How many SIDs there are and where they lie."""
        return [f"{self.table.n_unique} distinct SIDs of {len(self.table)} items: {self.output}"]


def run_build_sids(config: SidConfig) -> SidResult:
    """Build the SID table of a corpus: an artefact of kind "sids".

    It holds `index.json` (the published form: item id → token strings; of more than 1,048,576 items `codes.parquet`
    instead, see `minionerec.sid.index`), `report.json` (see
    `minionerec.sid.report.sid_report`) and, where the SIDs were made here, `codebooks.safetensors` with float32
    `level_0`, `level_1`... of shape (C_l, D) and the encoder of an autoencoder (`minionerec.sid.quantiser`). Balanced
    codes, relocated items and extra tokens differ from a plain nearest-code assignment, so `index.json` alone says
    which item has which SID. Method append copies the codebooks, keeps the SIDs of the items that have one, and counts
    collisions over all SIDs ever given; with TF-IDF it writes what that was fitted on (`minionerec.sid.embed.fitted`).

    Args:
        config: The stage's settings.

    Returns:
        The table, its report and where they lie.

    Raises:
        ArtefactError: If the corpus or the SIDs to append to are missing, or the output cannot be written.
        DataError: If an item has no SID, vectors do not fit the items, or there are too few items or codes.
        ConfigError: If the encoder is unknown.
    """
    stage = Stage(config)
    if stage.current() is not None:
        report = read_json(stage.output / REPORT_FILE)
        return SidResult(stage.output, SidTable.load_index(stage.output), report, up_to_date=True)
    with stage.work() as work:
        with work.phase("load"):
            items = ItemTexts.load(stage.inputs["corpus"], texts="vectors" not in encoder_inputs(config.encoder))
        given = MethodInputs(items, config, stage.inputs, {}, work)
        with work.phase("quantise"):
            made = MAKERS[config.method](given)
        with work.phase("resolve"):
            resolution = resolve(made, config)
        table = SidTable(resolution.codes, given.item_ids)
        books = made.quantiser.codebooks if made.quantiser else None
        with work.phase("measure"):
            report = sid_report(
                config.method, resolution, vectors=made.points, codebooks=books, counts=given.counts, seed=config.seed
            )
        counts = {**given.counts, "levels": table.levels, **asdict(resolution.after)}
        with work.finish(seed=config.seed, counts=counts) as place:
            table.save_index(place / INDEX_FILE)
            write_text_atomic(place / REPORT_FILE, json.dumps(report, indent=1) + "\n")
            if made.quantiser is not None:
                made.quantiser.save(place / CODEBOOKS_FILE)
            if made.fitted is not None:
                made.fitted.save(place)
    _say(report)
    logger.info("SIDs of %d items are in %s.", len(table), stage.output)
    return SidResult(stage.output, table, report, up_to_date=False)


def _say(report: Mapping[str, Any]) -> None:
    """Log what the table looks like, and warn of a level that hardly tells items apart."""
    for line in report_lines(report):
        logger.info("%s", line)
    for use in report["levels"]:
        if use["size"] is not None and use["size"] > 2 and use["largest"] > report["items"] / 2:
            logger.warning(
                "Level %s has collapsed: %d of %d items share one code. Lower dimensions or raise codebook_sizes.",
                use["level"],
                use["largest"],
                report["items"],
            )
