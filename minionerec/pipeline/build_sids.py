"""The stage that gives every item of a corpus a semantic ID."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.core.artefacts import read_manifest, write_json
from minionerec.core.errors import ConfigError, DataError
from minionerec.core.log import Clock, get_logger
from minionerec.data.corpus import Corpus
from minionerec.pipeline.config.sids import SidConfig
from minionerec.pipeline.embed_items import load_encoded
from minionerec.pipeline.stage import Stage
from minionerec.pipeline.stages import StageResult
from minionerec.sid.collisions import Resolution, resolve_collisions, stack_codes
from minionerec.sid.embed.encoder import INTERACTIONS, TFIDF
from minionerec.sid.embed.interactions import text_part
from minionerec.sid.embed.stored import VectorRows
from minionerec.sid.embed.texts import FittedTexts
from minionerec.sid.embed.vectors import make_vectors, vectors_in_blocks
from minionerec.sid.kmeans import (
    assign,
    check_vectors,
    fit_codebook_sizes,
    fit_residual,
    product_kmeans,
    residual_kmeans,
    training_rows,
)
from minionerec.sid.quantiser import CODEBOOKS_FILE, EncodedVectors, Quantiser
from minionerec.sid.report import REPORT_FILE, advice, level_use, read_sid_report, report_lines, sid_report
from minionerec.sid.table import INDEX_FILE, SidTable, ids_of, index_size

logger = get_logger(__name__)


# One function for each method of the stage that builds semantic IDs.

POINTS_PER_CODE = 256  # items of the sample that k-means is fitted on, for each code of the largest level
SPACE_TOLERANCE = 0.1  # share of variance that known items may lose more than when codes were assigned


@dataclass(frozen=True)
class CodesAndPoints:
    """Codes before collisions are resolved, and the points that they were made from.

    Attributes:
        codes: int32 (N, L); where SIDs are appended, of the new items alone.
        points: float32 (N, D).
        quantiser: Codebooks, and the encoder of an autoencoder.
        new_items: int64 (M,), where SIDs are appended: the new items' numbers in the corpus.
        known_codes: int32 (N - M, L), the codes of all other items.
        taken_codes: int32 (T, L), the codes that no new item may have.
        fitted: Texts that TF-IDF was fitted on, where it made the vectors of appended SIDs.
        distances: float32 (N,), squared distance of each point to its reconstruction, where it is known.
        settings: Settings that were taken from the first SIDs, which the manifest records.
    """

    codes: np.ndarray
    points: VectorRows | None = None
    quantiser: Quantiser | None = None
    new_items: np.ndarray | None = None
    known_codes: np.ndarray | None = None
    taken_codes: np.ndarray | None = None
    fitted: FittedTexts | None = None
    distances: np.ndarray | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MethodInputs:
    """The inputs of every method.

    Attributes:
        corpus: The corpus, or its items.
        config: The stage's settings.
        paths: Name to path of the stage's inputs.
        counts: Counts for the manifest, added on the way.
        clock: Counts the seconds of encoding texts.
    """

    corpus: Corpus
    config: SidConfig
    paths: Mapping[str, Path]
    counts: dict[str, Any]
    clock: Clock

    @cached_property
    def item_ids(self) -> Sequence[str]:
        """The N item ids, in item order."""
        return ids_of(self.corpus.items)

    def vectors(self, fitted: FittedTexts | None = None) -> np.ndarray:
        """Vectors of the items, float32 (N, D); of TF-IDF that was fitted on other texts, if these are given."""
        with self.clock.phase("embed"):
            texts = None if fitted is None else fitted.texts
            return make_vectors(self.corpus, self.config.vector_source, self.counts, texts)

    def rows(self) -> VectorRows:
        """Vectors of the items, float32 (N, D), which stay in their file where they are many and the method allows."""
        if not self.config.in_blocks:
            return self.vectors()
        with self.clock.phase("embed"):
            return vectors_in_blocks(self.corpus, self.config.vector_source, self.counts)

    def sample(self, vectors: VectorRows, sizes: Sequence[int]) -> tuple[np.ndarray, int]:
        """The rows that codebooks are fitted on, ascending; their number is logged."""
        config = self.config
        unlimited = config.method.startswith("rq_vae")
        size = min(config.fit_rows or (len(vectors) if unlimited else POINTS_PER_CODE * max(sizes)), len(vectors))
        if config.fit_rows or not isinstance(vectors, np.ndarray):
            self.counts.update(fit_rows=size)
            logger.info("Fitting on %s of %s items, drawn with seed %d.", f"{size:,}", f"{len(vectors):,}", config.seed)
        return training_rows(len(vectors), size, config.seed), size


def _make_published(inputs: MethodInputs) -> CodesAndPoints:
    path, item_ids = inputs.paths["index"], inputs.item_ids
    table = SidTable.load_index(path, item_ids)
    missing = index_size(path) - len(item_ids)
    if missing:
        logger.warning("%s: %d of its items are not in the corpus; their SIDs are left out.", path, missing)
    inputs.counts.update(items=len(item_ids), items_only_in_index=missing)
    return CodesAndPoints(table.codes)


def _make_shuffled(inputs: MethodInputs) -> CodesAndPoints:
    """Published SIDs, shuffled among items: the shape of a table without its meaning."""
    codes = _make_published(inputs).codes
    return CodesAndPoints(codes[np.random.default_rng(inputs.config.seed).permutation(len(codes))])


def _sizes(vectors: VectorRows, config: SidConfig) -> Sequence[int]:
    return fit_codebook_sizes(config.wished_sizes, len(vectors))


def _make_kmeans(inputs: MethodInputs, balanced: bool) -> CodesAndPoints:
    config, vectors = inputs.config, inputs.rows()
    device = "cpu"
    if config.device not in ("auto", "cpu"):
        from minionerec.sid.on_device import torch_device

        device = str(torch_device(config.device))
    if not balanced:
        return _fitted(inputs, vectors, partial(fit_residual, device=device), device)
    sizes = _sizes(vectors, config)
    options: dict[str, Any] = {
        "train_rows": inputs.sample(vectors, sizes)[1],
        "threads": config.threads,
        "device": device,
    }
    codes, codebooks = residual_kmeans(vectors, sizes, config.seed, config.iterations, balanced=True, **options)
    return CodesAndPoints(codes, vectors, Quantiser(codebooks))


def _fitted(
    inputs: MethodInputs, vectors: VectorRows, fit: Callable[..., list[np.ndarray]], device: str = "cpu"
) -> CodesAndPoints:
    """Codes of the nearest codes of codebooks that were fitted on a sample."""
    config, sizes = inputs.config, _sizes(vectors, inputs.config)
    trained, _ = inputs.sample(vectors, sizes)
    check_vectors(vectors, sizes)
    with inputs.clock.phase("fit"):
        points = np.asarray(vectors[trained], dtype=np.float32)  # a copy that each level reduces
        codebooks = fit(points, sizes, config.seed, config.iterations, threads=config.threads)
        del points
    return _assigned(inputs, vectors, Quantiser(codebooks), device)


def _assigned(inputs: MethodInputs, points: VectorRows, quantiser: Quantiser, device: str = "cpu") -> CodesAndPoints:
    """Codes of points by the nearest code of each codebook; their distances are kept where the points are in a file."""
    with inputs.clock.phase("assign"):
        codes, distances = assign(points, quantiser.codebooks, inputs.config.threads, device)
    return CodesAndPoints(codes, points, quantiser, distances=None if isinstance(points, np.ndarray) else distances)


def _make_rq_vae(inputs: MethodInputs, plus: bool) -> CodesAndPoints:
    from minionerec.sid.rq_vae import fit_rq_vae

    config, vectors = inputs.config, inputs.rows()
    sizes = _sizes(vectors, config)
    trained, size = inputs.sample(vectors, sizes)
    with inputs.clock.phase("fit"):
        quantiser, errors, best, revived = fit_rq_vae(
            vectors[trained] if size < len(vectors) else vectors[:],
            sizes,
            config.seed,
            plus=plus,
            epochs=config.epochs,
            learning_rate=1e-4 if plus else 1e-3,
            threads=config.threads,
            device=config.device,
        )
    inputs.counts.update(checks=len(errors), best_check=best, decoded_error=errors[best], revived_codes=revived)
    points = quantiser.points(vectors) if isinstance(vectors, np.ndarray) else EncodedVectors(vectors, quantiser)
    return _assigned(inputs, points, quantiser)


def _same_tfidf(folder: Path, first: Mapping[str, Any], config: SidConfig, width: int) -> SidConfig:
    """The settings with the dimensions of the first SIDs where they are not given.

    Args:
        folder: The SIDs that others are appended to.
        first: Their settings.
        config: The settings.
        width: Dimensions of the vectors that its codebooks read.

    Raises:
        ConfigError: Naming the setting that differs.
    """
    if first.get("encoder") != TFIDF:
        return config
    dimensions = first["dimensions"] if config.with_interactions else width
    if config.dimensions == SidConfig.__dataclass_fields__["dimensions"].default:
        config = replace(config, dimensions=dimensions)
    for name, allowed in (("dimensions", (first["dimensions"], dimensions)), ("seed", (first["seed"],))):
        if getattr(config, name) not in allowed:
            raise ConfigError(
                f"{name} is {getattr(config, name)}, but {folder} was made with {allowed[0]}, and only the same TF-IDF "
                f"gives new items vectors of its space. Give --{name} {allowed[0]}."
            )
    return config


def _make_appended(inputs: MethodInputs) -> CodesAndPoints:
    folder = inputs.paths["append_to"]
    base, quantiser, first = SidTable.load_index(folder), Quantiser.load(folder), read_manifest(folder)["settings"]
    fitted = None
    _check_interactions(folder, first, inputs.config, quantiser)
    if inputs.config.encoder == TFIDF:
        inputs = replace(inputs, config=_same_tfidf(folder, first, inputs.config, quantiser.width))
        fitted = FittedTexts.of(folder, base.item_ids, inputs.corpus)
    base_numbers = {item_id: number for number, item_id in enumerate(base.item_ids)}
    numbers = np.array([base_numbers.get(item_id, -1) for item_id in inputs.item_ids])
    known, new = np.flatnonzero(numbers >= 0), np.flatnonzero(numbers < 0)
    known_codes, levels = base.codes[numbers[known]], len(quantiser.codebooks)
    if inputs.config.with_interactions:
        points, codes = _points_by_text(inputs, fitted, quantiser, known, known_codes[:, :levels])
        codes = codes[new]
    else:
        points = quantiser.points(inputs.vectors(fitted))
        codes, _ = assign(points[new], quantiser.codebooks, inputs.config.threads)
    first_errors = [level["error"] for level in read_sid_report(folder)["levels"]]
    first_error = first_errors[levels - 1] if levels <= len(first_errors) else None
    if len(known):
        error = level_use(known_codes[:, :levels], vectors=points[known], codebooks=quantiser.codebooks)[-1].error
        if error is not None and first_error is not None and error > first_error + SPACE_TOLERANCE:
            raise DataError(
                f"{folder}: with these vectors the SIDs of its {len(known)} known items leave {error:.0%} of the "
                f"variance; when they were made {first_error:.0%}. The vectors are of another space, or the texts have "
                "changed. Use the encoder of the first ones, or rebuild all SIDs."
            )
    missing = len(base) - len(known)
    if missing:
        logger.warning("%s: %d of its items are not in the corpus; their SIDs stay taken.", folder, missing)
    inputs.counts.update(items_kept=len(known), items_appended=len(new), items_gone=missing)
    settings = {"codebook_sizes": list(map(len, quantiser.codebooks)), "dimensions": inputs.config.dimensions}
    return CodesAndPoints(codes, points, quantiser, new, known_codes, base.codes, fitted, settings=settings)


def _check_interactions(folder: Path, first: Mapping[str, Any], config: SidConfig, quantiser: Quantiser) -> None:
    """Check that items can be appended to SIDs of these settings, as far as vectors are made of interactions.

    Raises:
        ConfigError: If they cannot.
    """
    if INTERACTIONS in (config.encoder, first.get("encoder")):
        raise ConfigError(
            f"{folder}: SIDs of interactions alone were asked for, but new items have none, and those of a larger "
            "corpus give known items other vectors. Append to SIDs with text (with_interactions true), or rebuild all."
        )
    with_interactions = bool(first.get("with_interactions"))
    if with_interactions != config.with_interactions:
        word = str(with_interactions).lower()
        raise ConfigError(
            f"with_interactions is {str(config.with_interactions).lower()}, but {folder} was made with {word}. Give "
            f"--with_interactions {word}."
        )
    if with_interactions and quantiser.encoder is not None:
        raise ConfigError(
            f"{folder}: an autoencoder reads texts and interactions together, and new items have no interactions. "
            "Append to SIDs of method residual_kmeans, or rebuild all."
        )


def _points_by_text(
    inputs: MethodInputs, fitted: FittedTexts | None, quantiser: Quantiser, known: np.ndarray, known_codes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Points and codes of items by their text alone; the part of interactions of a point is that of its codes.

    The interactions of a larger corpus have other factors, so those of known items are read from their codes as well.

    Args:
        inputs: The inputs.
        fitted: Texts that TF-IDF was fitted on.
        quantiser: Codebooks of texts with interactions beside them.
        known: int64 (K,), items that have codes.
        known_codes: int (K, L), these codes.

    Returns:
        Points, float32 (N, D), and codes, int32 (N, L).

    Raises:
        DataError: If the texts' vectors are not narrower than the codebooks.
    """
    texts = text_part(replace(inputs, config=replace(inputs.config, with_interactions=False)).vectors(fitted))
    width, codebooks = texts.shape[1], quantiser.codebooks
    if width >= quantiser.width:
        raise DataError(
            f"vectors of texts have {width} dimensions, but the codebooks have {quantiser.width} for texts and "
            "interactions. Use the encoder and the settings that they were made with."
        )
    codes, _ = assign(texts, [np.ascontiguousarray(book[:, :width]) for book in codebooks], inputs.config.threads)
    codes[known] = known_codes
    interactions = sum(book[codes[:, level], width:] for level, book in enumerate(codebooks))
    return np.hstack([texts, interactions]).astype(np.float32), codes


MAKERS: dict[str, Callable[[MethodInputs], CodesAndPoints]] = {
    "residual_kmeans": partial(_make_kmeans, balanced=False),
    "balanced_kmeans": partial(_make_kmeans, balanced=True),
    "opq": lambda inputs: _fitted(inputs, inputs.rows(), product_kmeans),
    "rq_vae": partial(_make_rq_vae, plus=False),
    "rq_vae_plus": partial(_make_rq_vae, plus=True),
    "published": _make_published,
    "shuffled": _make_shuffled,
    "append": _make_appended,
}


def resolve(result: CodesAndPoints, config: SidConfig) -> tuple[np.ndarray, Resolution]:
    """Codes of all items of the corpus without collisions, as far as the settings require."""
    points, new_items, known_codes = result.points, result.new_items, result.known_codes
    codes, resolution = resolve_collisions(
        result.codes,
        config.collisions,
        vectors=points if points is None or new_items is None else points[new_items],
        codebooks=result.quantiser.codebooks if result.quantiser else None,
        taken=result.taken_codes,
        left=result.distances,
    )
    if new_items is None or known_codes is None:
        return codes, resolution
    known = np.setdiff1d(np.arange(len(known_codes) + len(new_items)), new_items)
    return stack_codes(known_codes, codes)[np.argsort(np.concatenate([known, new_items]))], resolution


@dataclass(frozen=True)
class SidResult(StageResult):
    """The result of `run_build_sids`; its metrics are those of report.json (`minionerec.sid.report.sid_report`).

    Attributes:
        table: The SIDs of all items.
    """

    table: SidTable = field(kw_only=True)


def run_build_sids(config: SidConfig) -> SidResult:
    """Build the SID table of a corpus: an artefact of kind "sids".

    It holds `index.json` (the published form: item id → token strings; of more than 1,048,576 items `codes.parquet`
    instead, see `minionerec.sid.table`), `report.json` (see
    `minionerec.sid.report.sid_report`) and, where the SIDs were made here, `codebooks.safetensors` with float32
    `level_0`, `level_1`... of shape (C_l, D) and the encoder of an autoencoder (`minionerec.sid.quantiser`). Balanced
    codes, relocated items and extra tokens differ from a plain nearest-code assignment, so `index.json` alone says
    which item has which SID. Method append copies the codebooks, keeps the SIDs of the items that have one, and counts
    collisions over all SIDs ever given; with TF-IDF it writes what that was fitted on (`minionerec.sid.embed.texts`).

    Args:
        config: The stage's settings.

    Returns:
        The table, its report and their path.

    Raises:
        ArtefactError: If the corpus or the SIDs to append to are missing, or the output cannot be written.
        DataError: If an item has no SID, vectors do not fit the items, or there are too few items or codes.
        ConfigError: If the encoder is unknown.
    """
    stage = Stage(config)
    if stage.current() is not None:
        report = read_sid_report(stage.output)
        return _result(stage.output, SidTable.load_index(stage.output), report, up_to_date=True)
    config = stage.config
    with stage.work() as work:
        with work.phase("load"):
            items = load_encoded(config, stage.inputs)
        inputs = MethodInputs(items, config, stage.inputs, {}, work)
        with work.phase("quantise"):
            result = MAKERS[config.method](inputs)
        with work.phase("resolve"):
            codes, resolution = resolve(result, config)
        table = SidTable(codes, inputs.item_ids)
        stage.given = replace(stage.given, **result.settings)
        with work.phase("measure"):
            report = sid_report(
                config.method,
                codes,
                resolution,
                vectors=result.points,
                codebooks=result.quantiser.codebooks if result.quantiser else None,
                counts=inputs.counts,
                seed=config.seed,
            )
        counts = {**inputs.counts, "levels": table.levels, **asdict(resolution.after)}
        with work.finish(seed=config.seed, counts=counts) as folder:
            table.save_index(folder / INDEX_FILE)
            write_json(folder / REPORT_FILE, report)
            if result.quantiser is not None:
                result.quantiser.save(folder / CODEBOOKS_FILE)
            if result.fitted is not None:
                result.fitted.save(folder)
    _log_report(report)
    logger.info("SIDs of %d items are in %s.", len(table), stage.output)
    return _result(stage.output, table, report, up_to_date=False)


def _result(output: Path, table: SidTable, report: Mapping[str, Any], up_to_date: bool) -> SidResult:
    line = f"{table.n_unique} distinct SIDs of {len(table)} items: {output}"
    return SidResult(output, [line, advice(report)], metrics=report, up_to_date=up_to_date, table=table)


def _log_report(report: Mapping[str, Any]) -> None:
    """Log the table's report, and warn of a collapsed level."""
    for line in report_lines(report):
        logger.info("%s", line)
    counts = report["counts"]
    has_few_texts = counts.get("empty_texts", 0) + counts.get("duplicate_texts", 0) > report["items"] / 2
    reason = (
        "Most have no text, or that of another" if has_few_texts else "Raise codebook_sizes, or try another encoder"
    )
    for use in report["levels"]:
        if use["size"] is not None and use["size"] > 2 and use["largest"] > report["items"] / 2:
            logger.warning(
                "Level %s has collapsed: %d of %d items share one code. %s.",
                use["level"],
                use["largest"],
                report["items"],
                reason,
            )
