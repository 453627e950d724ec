"""The stage that gives every item of a corpus a semantic ID."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.core.artefacts import is_current, read_json, read_manifest, write_artefact, write_text_atomic
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.core.log import get_logger
from minionerec.data.corpus import Corpus
from minionerec.embed.vectors import EncoderConfig, encoder_inputs, make_vectors
from minionerec.sid.collisions import METHODS as COLLISION_METHODS
from minionerec.sid.collisions import resolve_collisions
from minionerec.sid.report import report_lines, sid_report
from minionerec.sid.residual_kmeans import fit_codebook_sizes, residual_kmeans
from minionerec.sid.table import INDEX_FILE, LEVELS, SidTable

logger = get_logger(__name__)

CODEBOOKS_FILE = "codebooks.safetensors"
REPORT_FILE = "report.json"


@dataclass
class SidConfig(EncoderConfig):
    """Settings of the stage that builds semantic IDs."""

    output: str = field(
        default="runs/demo/sids",
        metadata={"help": "Directory to write index.json, codebooks.safetensors, report.json and the manifest into."},
    )
    method: str = field(
        default="residual_kmeans",
        metadata={
            "help": "How SIDs come about: residual_kmeans (clusters of item vectors) or published (read an index.json)."
        },
    )
    index: str | None = field(
        default=None,
        metadata={"help": "The index.json for method published; the published file of `category` if not given."},
    )
    category: str = field(
        default="Industrial_and_Scientific", metadata={"help": "Whose published index.json to look for."}
    )
    root: str | None = field(
        default=None,
        metadata={
            "help": "Folder of the published files; $MINIONEREC_DATA/Amazon if not given (data/Amazon without it)."
        },
    )
    codebook_sizes: list[int] = field(
        default_factory=lambda: [256, 256, 256], metadata={"help": "Codes per level, one number per level."}
    )
    fit_sizes: bool = field(
        default=True,
        metadata={
            "help": "Take fewer codes per level where there are too few items to fill them (otherwise an error)."
        },
    )
    iterations: int = field(default=25, metadata={"help": "k-means iterations per level."})
    collisions: str = field(
        default="relocate",
        metadata={
            "help": "What becomes of items that share an SID: keep them, relocate all but one to the nearest free "
            "code, or give each an extra_token."
        },
    )

    def __post_init__(self) -> None:
        """Check values alone and against each other.

        Raises:
            ConfigError: Naming the settings, their values and the remedy.
        """
        super().__post_init__()
        if self.method not in METHODS:
            raise ConfigError(f"unknown method {self.method!r}; known: {', '.join(METHODS)}.")
        if self.collisions not in COLLISION_METHODS:
            raise ConfigError(f"unknown collisions {self.collisions!r}; known: {', '.join(COLLISION_METHODS)}.")
        if not 1 <= len(self.codebook_sizes) < len(LEVELS) or min(self.codebook_sizes) < 1:
            raise ConfigError(
                f"codebook_sizes is {list(self.codebook_sizes)}; give 1 to {len(LEVELS) - 1} numbers of at least 1."
            )
        if self.iterations < 1:
            raise ConfigError(f"iterations is {self.iterations}; it must be at least 1.")
        if self.method == "published" and self.collisions == "relocate":
            raise ConfigError(
                "method published has no codebooks, so collisions relocate cannot work; set collisions to keep (the "
                "table as published) or extra_token."
            )
        if self.method != "published" and self.index is not None:
            raise ConfigError(f"index is {self.index!r}, but method is {self.method!r}; set method to published.")


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


@dataclass(frozen=True)
class _Made:
    """Codes before collisions are resolved, int32 (N, L), and what they were made from."""

    codes: np.ndarray
    vectors: np.ndarray | None
    codebooks: list[np.ndarray] | None


def _published_index(config: SidConfig) -> Path:
    from minionerec.data.published import default_root, published_index_path

    if config.index is None:
        return published_index_path(config.root or default_root(), config.category)
    path = Path(config.index)
    if path.is_dir():
        path = path / INDEX_FILE
    if not path.is_file():
        raise DataError(f"{path}: no such file. Give the path of an index.json.")
    return path


def _make_published(corpus: Corpus, config: SidConfig, counts: dict[str, Any]) -> _Made:
    path = _published_index(config)
    item_ids = corpus.items["item_id"].astype(str).tolist()
    table = SidTable.load_index(path, item_ids)
    left_over = len(read_json(path)) - len(item_ids)
    if left_over:
        logger.warning("%s: %d of its items are not in the corpus; their SIDs are left out.", path, left_over)
    counts.update(items=len(item_ids), items_only_in_index=left_over)
    return _Made(table.codes, None, None)


def _make_residual_kmeans(corpus: Corpus, config: SidConfig, counts: dict[str, Any]) -> _Made:
    vectors = make_vectors(corpus, config, counts)
    sizes = fit_codebook_sizes(config.codebook_sizes, len(vectors)) if config.fit_sizes else config.codebook_sizes
    codes, codebooks = residual_kmeans(vectors, sizes, config.seed, config.iterations)
    return _Made(codes, vectors, codebooks)


METHODS: dict[str, Callable[[Corpus, SidConfig, dict[str, Any]], _Made]] = {
    "residual_kmeans": _make_residual_kmeans,
    "published": _make_published,
}


def run_build_sids(config: SidConfig) -> SidResult:
    """Build the SID table of a corpus: an artefact of kind "sids".

    It holds `index.json` (the published form: item id → token strings), `report.json` (see
    `minionerec.sid.report.sid_report`) and, where the SIDs were made here, `codebooks.safetensors` with float32
    `level_0`, `level_1`... of shape (C_l, D). The codebooks are those of k-means; relocated items and extra tokens
    differ from a plain nearest-code assignment, so `index.json` alone says which item has which SID.

    Args:
        config: The stage's settings.

    Returns:
        The table, its report and where they lie.

    Raises:
        ArtefactError: If the corpus is missing or the output cannot be written.
        DataError: If an item has no SID, vectors do not fit the items, or there are too few items or codes.
        ConfigError: If the encoder is unknown.
    """
    output = Path(config.output)
    inputs: dict[str, str | Path] = {"corpus": config.corpus}
    if config.method == "published":
        inputs["index"] = _published_index(config)
    else:
        inputs.update(encoder_inputs(config.encoder))
    read_manifest(config.corpus, "corpus")
    if any(output.resolve() == Path(path).resolve() for path in inputs.values()):
        raise ArtefactError(f"{output}: is also an input of this stage. Choose another output.")
    if is_current(output, "sids", config, inputs):
        logger.info("%s is up to date.", output)
        return SidResult(output, SidTable.load_index(output), read_json(output / REPORT_FILE), True)

    corpus = Corpus.load(config.corpus)
    counts: dict[str, Any] = {}
    made = METHODS[config.method](corpus, config, counts)
    resolution = resolve_collisions(made.codes, config.collisions, vectors=made.vectors, codebooks=made.codebooks)
    table = SidTable(resolution.codes, corpus.items["item_id"].astype(str).tolist())
    report = sid_report(config.method, resolution, vectors=made.vectors, codebooks=made.codebooks, counts=counts)
    summary = {**counts, "levels": table.levels, **asdict(resolution.after)}
    with write_artefact(output, "sids", config=config, inputs=inputs, seed=config.seed, counts=summary) as place:
        table.save_index(place / INDEX_FILE)
        write_text_atomic(place / REPORT_FILE, json.dumps(report, indent=1) + "\n")
        if made.codebooks is not None:
            from safetensors.numpy import save

            books = {f"level_{level}": book for level, book in enumerate(made.codebooks)}
            (place / CODEBOOKS_FILE).write_bytes(save(books))
    for line in report_lines(report):
        logger.info("%s", line)
    for use in report["levels"]:
        if use["size"] is not None and use["size"] > 2 and use["largest"] > len(table) / 2:
            logger.warning(
                "Level %s has collapsed: %d of %d items share one code. Lower dimensions or raise codebook_sizes.",
                use["level"],
                use["largest"],
                len(table),
            )
    logger.info("SIDs of %d items are in %s.", len(table), output)
    return SidResult(output, table, report, False)
