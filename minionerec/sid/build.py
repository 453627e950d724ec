"""The stage that gives every item of a corpus a semantic ID."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.core.artefacts import is_current, read_json, read_manifest, write_artefact, write_text_atomic
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.core.log import get_logger
from minionerec.data.corpus import Corpus
from minionerec.embed.vectors import EncoderConfig, encoder_inputs, make_vectors
from minionerec.sid.collisions import METHODS as COLLISION_METHODS
from minionerec.sid.collisions import Resolution, resolve_collisions, stack_codes
from minionerec.sid.quantiser import CODEBOOKS_FILE, Quantiser
from minionerec.sid.report import level_use, report_lines, sid_report
from minionerec.sid.residual_kmeans import encode, fit_codebook_sizes, residual_kmeans
from minionerec.sid.table import INDEX_FILE, LEVELS, SidTable

logger = get_logger(__name__)

REPORT_FILE = "report.json"
SPACE_TOLERANCE = 0.1  # share of variance by which known items may lie further from their codes than when they got them


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
            "help": "How SIDs come about: residual_kmeans (clusters of item vectors), balanced_kmeans (clusters of "
            "equal size), rq_vae (an autoencoder with codebooks), rq_vae_plus (one that starts at residual_kmeans), "
            "published (read an index.json) or append (SIDs for new items beside those of append_to)."
        },
    )
    append_to: str | None = field(
        default=None,
        metadata={
            "help": "Directory of SIDs with codebooks, for method append: its items keep their SIDs, other items of "
            "the corpus get codes from its codebooks. The encoder must be the one those were made with."
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
    train_points_per_code: int = field(
        default=256,
        metadata={"help": "k-means trains on a sample of at most so many items per code; all items get codes."},
    )
    threads: int = field(
        default=1, metadata={"help": "CPU threads; the same bytes come out for the same number of threads."}
    )
    latent_size: int = field(default=32, metadata={"help": "Width of the codebooks of rq_vae."})
    hidden_sizes: list[int] = field(
        default_factory=lambda: [512, 256, 128],
        metadata={"help": "Widths of the hidden layers of the encoder of rq_vae and rq_vae_plus."},
    )
    epochs: int = field(default=500, metadata={"help": "Most passes over the items for rq_vae and rq_vae_plus."})
    learning_rate: float | None = field(
        default=None, metadata={"help": "Of rq_vae (1e-3 if not given) and rq_vae_plus (1e-4 if not given)."}
    )
    train_batch: int = field(default=256, metadata={"help": "Items per training step of rq_vae and rq_vae_plus."})
    patience: int = field(
        default=10,
        metadata={"help": "rq_vae stops after so many checks, 10 epochs apart, without a new least error."},
    )
    collisions: str = field(
        default="relocate",
        metadata={
            "help": "What becomes of items that share an SID: keep them, relocate all but one to the nearest free "
            "code, or give each an extra_token."
        },
    )
    capacity: int = field(default=1, metadata={"help": "Most items that may share an SID after collisions relocate."})

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
        for name in ("iterations", "train_points_per_code", "threads", "latent_size", "train_batch", "patience",
                     "capacity"):  # fmt: skip
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.epochs < 0 or (self.learning_rate is not None and self.learning_rate <= 0):
            raise ConfigError(
                f"epochs is {self.epochs} and learning_rate {self.learning_rate}; neither may be negative."
            )
        if min(self.hidden_sizes, default=1) < 1:
            raise ConfigError(f"hidden_sizes is {list(self.hidden_sizes)}; widths must be at least 1.")
        if self.capacity > 1 and self.collisions != "relocate":
            raise ConfigError(
                f"capacity is {self.capacity}, but collisions is {self.collisions!r}; set collisions to relocate."
            )
        if (self.method == "append") != (self.append_to is not None):
            raise ConfigError(
                f"method is {self.method!r} and append_to {self.append_to!r}; give both method append and the SIDs to "
                "append to, or neither."
            )
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
    """Codes before collisions are resolved, int32 (N, L), and what they were made from.

    Where SIDs are appended, `codes` and `points` hold the new items alone, at the rows `new` of the corpus; `kept` are
    the codes of all other rows, and `taken` those that no new item may have.
    """

    codes: np.ndarray
    points: np.ndarray | None = None
    quantiser: Quantiser | None = None
    new: np.ndarray | None = None
    kept: np.ndarray | None = None
    taken: np.ndarray | None = None


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
    return _Made(table.codes)


def _sizes(vectors: np.ndarray, config: SidConfig) -> Sequence[int]:
    return fit_codebook_sizes(config.codebook_sizes, len(vectors)) if config.fit_sizes else config.codebook_sizes


def _make_kmeans(corpus: Corpus, config: SidConfig, counts: dict[str, Any], balanced: bool) -> _Made:
    vectors = make_vectors(corpus, config, counts)
    device = "cpu"
    if config.device not in ("auto", "cpu"):
        from minionerec.sid.rq_vae import torch_device

        device = str(torch_device(config.device))
    codes, codebooks = residual_kmeans(
        vectors,
        _sizes(vectors, config),
        config.seed,
        config.iterations,
        balanced=balanced,
        train_points_per_code=config.train_points_per_code,
        threads=config.threads,
        device=device,
    )
    return _Made(codes, vectors, Quantiser(codebooks))


def _make_rq_vae(corpus: Corpus, config: SidConfig, counts: dict[str, Any], plus: bool) -> _Made:
    from minionerec.sid.rq_vae import fit_rq_vae

    vectors = make_vectors(corpus, config, counts)
    fit = fit_rq_vae(
        vectors,
        _sizes(vectors, config),
        config.seed,
        plus=plus,
        hidden_sizes=config.hidden_sizes,
        latent_size=config.latent_size,
        epochs=config.epochs,
        learning_rate=config.learning_rate or (1e-4 if plus else 1e-3),
        batch_size=config.train_batch,
        patience=config.patience,
        threads=config.threads,
        device=config.device,
    )
    counts.update(
        checks=len(fit.errors), best_check=fit.best, decoded_error=fit.errors[fit.best], revived_codes=fit.revived
    )
    quantiser = fit.quantiser
    return _Made(quantiser.encode(vectors, config.threads), quantiser.points(vectors), quantiser)


def _make_appended(corpus: Corpus, config: SidConfig, counts: dict[str, Any]) -> _Made:
    folder = Path(str(config.append_to))
    base, quantiser = SidTable.load_index(folder), Quantiser.load(folder)
    rows = {item_id: row for row, item_id in enumerate(base.item_ids)}
    item_ids = corpus.items["item_id"].astype(str).tolist()
    found = np.array([rows.get(item_id, -1) for item_id in item_ids])
    points = quantiser.points(make_vectors(corpus, config, counts))
    known, new = np.flatnonzero(found >= 0), np.flatnonzero(found < 0)
    kept, levels = base.codes[found[known]], len(quantiser.codebooks)
    before = read_json(folder / REPORT_FILE)["levels"][levels - 1]["error"]
    if len(known):
        now = level_use(kept[:, :levels], vectors=points[known], codebooks=quantiser.codebooks)[-1].error
        if now is not None and now > before + SPACE_TOLERANCE:
            raise DataError(
                f"{folder}: with these vectors the SIDs of its {len(known)} known items leave {now:.0%} of the "
                f"variance; when they were made {before:.0%}. The vectors are of another space (TF-IDF's changes with "
                "the catalogue). Take an encoder that does not depend on the catalogue, or build all SIDs anew."
            )
    gone = len(base) - len(known)
    if gone:
        logger.warning("%s: %d of its items are not in the corpus; their SIDs stay taken.", folder, gone)
    counts.update(items_kept=len(known), items_appended=len(new), items_gone=gone)
    codes = encode(points[new], quantiser.codebooks, config.threads)
    return _Made(codes, points, quantiser, new, kept, base.codes)


METHODS: dict[str, Callable[[Corpus, SidConfig, dict[str, Any]], _Made]] = {
    "residual_kmeans": partial(_make_kmeans, balanced=False),
    "balanced_kmeans": partial(_make_kmeans, balanced=True),
    "rq_vae": partial(_make_rq_vae, plus=False),
    "rq_vae_plus": partial(_make_rq_vae, plus=True),
    "published": _make_published,
    "append": _make_appended,
}


def _resolve(made: _Made, config: SidConfig) -> Resolution:
    """Codes of all items of the corpus without collisions, as far as the settings wish."""
    books = made.quantiser.codebooks if made.quantiser else None
    if made.new is None or made.kept is None or made.points is None:
        return resolve_collisions(
            made.codes, config.collisions, vectors=made.points, codebooks=books, capacity=config.capacity
        )
    resolution = resolve_collisions(
        made.codes,
        config.collisions,
        vectors=made.points[made.new],
        codebooks=books,
        taken=made.taken,
        capacity=config.capacity,
    )
    known = np.setdiff1d(np.arange(len(made.points)), made.new)
    codes = stack_codes(made.kept, resolution.codes)[np.argsort(np.concatenate([known, made.new]))]
    return replace(resolution, codes=codes)


def run_build_sids(config: SidConfig) -> SidResult:
    """Build the SID table of a corpus: an artefact of kind "sids".

    It holds `index.json` (the published form: item id → token strings), `report.json` (see
    `minionerec.sid.report.sid_report`) and, where the SIDs were made here, `codebooks.safetensors` with float32
    `level_0`, `level_1`... of shape (C_l, D) and the encoder of an autoencoder (`minionerec.sid.quantiser`). Balanced
    codes, relocated items and extra tokens differ from a plain nearest-code assignment, so `index.json` alone says
    which item has which SID. Method append copies the codebooks, keeps the SIDs of the items that have one, and counts
    collisions over all SIDs ever given.

    Args:
        config: The stage's settings.

    Returns:
        The table, its report and where they lie.

    Raises:
        ArtefactError: If the corpus or the SIDs to append to are missing, or the output cannot be written.
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
    if config.append_to is not None:
        read_manifest(config.append_to, "sids")
        inputs["append_to"] = config.append_to
    if any(output.resolve() == Path(path).resolve() for path in inputs.values()):
        raise ArtefactError(f"{output}: is also an input of this stage. Choose another output.")
    if is_current(output, "sids", config, inputs):
        logger.info("%s is up to date.", output)
        return SidResult(output, SidTable.load_index(output), read_json(output / REPORT_FILE), True)

    corpus = Corpus.load(config.corpus)
    counts: dict[str, Any] = {}
    made = METHODS[config.method](corpus, config, counts)
    resolution = _resolve(made, config)
    table = SidTable(resolution.codes, corpus.items["item_id"].astype(str).tolist())
    books = made.quantiser.codebooks if made.quantiser else None
    report = sid_report(config.method, resolution, vectors=made.points, codebooks=books, counts=counts)
    summary = {**counts, "levels": table.levels, **asdict(resolution.after)}
    with write_artefact(output, "sids", config=config, inputs=inputs, seed=config.seed, counts=summary) as place:
        table.save_index(place / INDEX_FILE)
        write_text_atomic(place / REPORT_FILE, json.dumps(report, indent=1) + "\n")
        if made.quantiser is not None:
            made.quantiser.save(place / CODEBOOKS_FILE)
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
