"""The source of item vectors: which encoder, how it encodes, and the files that it reads."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from minionerec.core.artefacts import is_artefact, read_manifest
from minionerec.core.errors import ConfigError, DataError

_VECTOR_FILES = {".npy": "a .npy file with one row per item", ".parquet": "a table with columns item_id and vector"}
TFIDF, WORDLLAMA, INTERACTIONS = "tfidf", "wordllama", "interactions"
WORDLLAMA_WEIGHTS, WORDLLAMA_TOKENIZER = "l2_supercat_256.safetensors", "l2_supercat_tokenizer_config.json"
_MODEL_FILES = (".json", ".txt", ".model", ".safetensors", ".bin")


@dataclass(frozen=True)
class VectorSource:
    """Source of item vectors.

    Attributes:
        encoder: "tfidf", "wordllama", "interactions", the path of a `.npy` or `.parquet` file or of an artefact of
            vectors, or a Hugging Face model by name or directory.
        with_interactions: Whether to append factors of item co-occurrence in the training interactions to the
            encoder's vectors.
        dimensions: Dimensions of TF-IDF vectors and of factors of interactions; lowered for small catalogues.
        pooling: Pooling of token states of a Hugging Face model (key of `minionerec.sid.embed.hf.POOLINGS`), or "auto"
            for the pooling in the model's files.
        prefix: Text before each item's text for a Hugging Face model.
        max_length: Maximum number of tokens per text for a Hugging Face model.
        dtype: Dtype of a Hugging Face model's weights.
        device: Device of a Hugging Face model; "auto" is a GPU if there is one.
        cache: Folder that caches vectors of a Hugging Face model by the hash of their text; no cache if None.
        seed: Seed of TF-IDF's decomposition and of the factors of interactions.
    """

    encoder: str = TFIDF
    with_interactions: bool = False
    dimensions: int = 64
    pooling: str = "auto"
    prefix: str = ""
    max_length: int = 512
    dtype: str = "float32"
    device: str = "auto"
    cache: str | None = None
    seed: int = 42

    @property
    def reads_interactions(self) -> bool:
        """Whether vectors depend on the training interactions."""
        return self.with_interactions or self.encoder == INTERACTIONS


def encoder_inputs(encoder: str) -> dict[str, Path]:
    """Files and artefacts that an encoder reads, by name; TF-IDF, interactions and a model of the hub have none.

    Raises:
        ConfigError: If the encoder is WordLlama, and its package is not installed or lacks a file.
        DataError: If the encoder is a `.npy` or `.parquet` file that does not exist, or a file of another kind.
    """
    path = Path(encoder)
    if encoder in (WORDLLAMA, INTERACTIONS):
        return _wordllama_files() if encoder == WORDLLAMA else {}
    if path.suffix in _VECTOR_FILES:
        if not path.is_file():
            raise DataError(f"{path}: no such file. Give {_VECTOR_FILES[path.suffix]}.")
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
    """Weights and tokenizer of the package WordLlama, which is not imported because its loader may use the network.

    Raises:
        ConfigError: If the package is not installed or lacks a file.
    """
    spec = find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"encoder is {WORDLLAMA!r}, but its package is not installed. Install it: pip install "
            "'minionerec[wordllama]'."
        )
    package = Path(spec.submodule_search_locations[0])
    files = package / "weights" / WORDLLAMA_WEIGHTS, package / "tokenizers" / WORDLLAMA_TOKENIZER
    for file in files:
        if not file.is_file():
            raise ConfigError(
                f"{file}: no such file. This version of WordLlama lacks it, and nothing is downloaded. Install the "
                "version of the extra: pip install 'minionerec[wordllama]'."
            )
    return {f"encoder/{file.name}": file for file in files}
