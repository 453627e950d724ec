"""Settings of encoders, and of the stage that turns item texts into vectors."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from minionerec.core.artefacts import is_artefact, read_manifest
from minionerec.core.errors import ConfigError, DataError
from minionerec.core.settings import Settings, StageConfig, setting
from minionerec.sid.embed.hf import AUTO, DTYPES, POOLINGS

_READY = {".npy": "a .npy file with one row per item", ".parquet": "a table with columns item_id and vector"}
TFIDF, WORDLLAMA, INTERACTIONS = "tfidf", "wordllama", "interactions"
WORDLLAMA_WEIGHTS, WORDLLAMA_TOKENIZER = "l2_supercat_256.safetensors", "l2_supercat_tokenizer_config.json"
_MODEL_FILES = (".json", ".txt", ".model", ".safetensors", ".bin")


@dataclass
class EncoderSettings(Settings):
    """Settings of the source of item vectors."""

    encoder: str = setting(
        TFIDF,
        "source of item vectors: 'tfidf' (TF-IDF + truncated SVD), 'wordllama' (256 numbers, of a model that lies in "
        "the package of the extra wordllama), 'interactions' (factors of item co-occurrence in the training "
        "interactions alone), the path of a .npy file with one row per item in item order, of a .parquet file with "
        "columns item_id and vector in any order, the output of embed-items, or a Hugging Face model by name or "
        "directory",
        required=True,
        path=True,
    )
    with_interactions: bool = setting(
        False,
        "put factors of item co-occurrence in the training interactions beside the encoder's vectors, each part of the "
        "same length; items without training interactions have the encoder's vectors alone",
    )
    dimensions: int = setting(
        64, "dimensions of TF-IDF vectors and of factors of interactions; lowered for small catalogues", least=1
    )
    pooling: str = setting(
        AUTO,
        "how a Hugging Face model's token states become one vector: as its own files say (auto; the mean if they say "
        "nothing), their mean, the last, the first (cls), the largest values (max), or a mean of rising weights",
        known=(AUTO, *POOLINGS),
    )
    prefix: str = setting("", "text put before each item's text for a Hugging Face model")
    max_length: int = setting(512, "maximum number of tokens per text for a Hugging Face model", least=1)
    dtype: str = setting("float32", "dtype of a Hugging Face model's weights", known=DTYPES)
    normalise: bool = setting(
        True, "scale vectors of a Hugging Face model to length 1 (those of TF-IDF and WordLlama always are)"
    )
    device: str = setting("auto", "device of a Hugging Face model: auto (GPU where there is one), cpu, cuda, ...")
    processes: int = setting(
        1,
        "processes that run a Hugging Face model, each with a copy of it; they share the GPUs",
        least=1,
        affects_result=False,
    )
    cache: str | None = setting(
        None,
        "folder that keeps the vectors of a Hugging Face model by the hash of their text, so that only new texts are "
        "encoded and a killed run resumes; embed-items takes its output's name with .cache by default",
        affects_result=False,
        writes=True,
    )
    seed: int = setting(42, "random seed of this stage", least=0)

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        if self.with_interactions and self.encoder == INTERACTIONS:
            yield (
                f"encoder is {INTERACTIONS!r} and with_interactions true, which puts interactions beside another "
                "encoder; leave with_interactions out, or name an encoder of texts."
            )

    @property
    def reads_interactions(self) -> bool:
        """Whether vectors are made of training interactions, too."""
        return self.with_interactions or self.encoder == INTERACTIONS


@dataclass
class EncoderConfig(EncoderSettings, StageConfig):
    """Settings common to stages that make vectors of a corpus's items."""

    corpus: str = setting("", "directory of the corpus whose items are encoded", required=True, input_kind="corpus")

    def inputs(self) -> dict[str, Path]:
        """Name to path of everything that is read: what the settings name, and what the encoder reads."""
        return super().inputs() | encoder_inputs(self.encoder)


@dataclass
class EmbedConfig(EncoderConfig):
    """Settings of the stage that turns item texts into vectors."""

    kind: ClassVar[str] = "vectors"

    output: str = setting("", "directory to write vectors.npy and manifest into", required=True, affects_result=False)


def encoder_inputs(encoder: str) -> dict[str, Path]:
    """Files and artefacts that an encoder reads, by name; TF-IDF, interactions and a model of the hub have none.

    Raises:
        ConfigError: If the encoder is WordLlama, and its package is not installed or lacks a file.
        DataError: If the encoder is a `.npy` or `.parquet` file that does not exist, or a file of another kind.
    """
    path = Path(encoder)
    if encoder in (WORDLLAMA, INTERACTIONS):
        return _wordllama_files() if encoder == WORDLLAMA else {}
    if path.suffix in _READY:
        if not path.is_file():
            raise DataError(f"{path}: no such file. Give {_READY[path.suffix]}.")
        return {"vectors": path}
    if is_artefact(path) and read_manifest(path)["kind"] == "vectors":
        return {"vectors": path}
    if encoder == TFIDF:
        return {}
    if path.is_file() or (is_artefact(path) and not (path / "config.json").is_file()):
        raise DataError(f"{encoder}: holds no vectors. Give the output of embed-items, a .npy or a .parquet file.")
    if path.is_dir():
        files = [*path.iterdir(), *path.glob("[1-9]_*/*")]  # also of the modules that sentence-transformers has
        files = [file for file in files if file.is_file() and file.suffix in _MODEL_FILES]
        return {f"encoder/{file.relative_to(path).as_posix()}": file for file in sorted(files)}
    return {}


def _wordllama_files() -> dict[str, Path]:
    """Weights and tokenizer in the package of WordLlama, which is not imported: its own loader may use the network.

    Raises:
        ConfigError: If the package is not installed or lacks a file.
    """
    found = find_spec("wordllama")
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            f"encoder is {WORDLLAMA!r}, but its package is not installed. Install it: pip install "
            "'minionerec[wordllama]'."
        )
    package = Path(found.submodule_search_locations[0])
    files = package / "weights" / WORDLLAMA_WEIGHTS, package / "tokenizers" / WORDLLAMA_TOKENIZER
    for file in files:
        if not file.is_file():
            raise ConfigError(
                f"{file}: no such file. This version of WordLlama lacks it, and nothing is downloaded; install the "
                "one of the extra: pip install 'minionerec[wordllama]'."
            )
    return {f"encoder/{file.name}": file for file in files}
