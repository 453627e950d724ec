"""The stage that writes the leaderboard."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minionerec.core.artefacts import read_json
from minionerec.core.stage import Stage
from minionerec.reports.document import Paragraph, Section
from minionerec.reports.leaderboard.board import gather
from minionerec.reports.leaderboard.config import LeaderboardConfig
from minionerec.reports.leaderboard.content import board_json
from minionerec.reports.leaderboard.page import lead, sections
from minionerec.reports.page import write_page
from minionerec.reports.provenance import manifests, sources

NAME = "leaderboard"


@dataclass(frozen=True)
class LeaderboardResult:
    """What was written.

    Attributes:
        output: The directory.
        said: The sentences of the page.
        up_to_date: Whether an earlier page of the same inputs was kept.
    """

    output: Path
    said: Sequence[str]
    up_to_date: bool

    def lines(self) -> list[str]:
        """The sentences, and where the page lies."""
        return [*self.said, f"leaderboard: {self.output / NAME}.html (and .md, .json)"]


def run_leaderboard(config: LeaderboardConfig) -> LeaderboardResult:
    """Set recommenders side by side on the same rows, from finished predictions; nothing is recomputed but metrics.

    Writes an artefact of kind "leaderboard": `leaderboard.md`, `leaderboard.html` and `leaderboard.json` (unrounded).
    Equal inputs give equal bytes, but for what run records say.

    Raises:
        ArtefactError: If an input is missing, or the inputs do not belong together.
        ConfigError: If no row has predictions, or a K is larger than the lists of some recommender.
        DataError: If a file is malformed.
    """
    stage = Stage(config)
    up_to_date = stage.current() is not None
    if not up_to_date:
        with stage.work() as work:
            board = gather(config)
            found = manifests(stage.inputs)
            where = [Paragraph("Every artefact and file behind this page."), *sources(found, stage.inputs)]
            parts = [*sections(board), Section("Where the numbers come from", where)]
            pending = sum(line.pending for line in board.lines)
            counts = {"rows": len(board.ground.rows), "recommenders": len(board.lines), "pending": pending}
            with work.finish(seed=config.seed, counts=counts) as place:
                write_page(place, NAME, config.title, lead(board), parts)
                text = json.dumps(board_json(board), indent=1)
                (place / f"{NAME}.json").write_text(text + "\n", encoding="utf-8")
    said = [each["text"] for each in read_json(stage.output / f"{NAME}.json")["said"]]
    return LeaderboardResult(stage.output, said, up_to_date)
