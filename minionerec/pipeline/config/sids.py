"""Settings of the stage that builds semantic IDs."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from minionerec.core.errors import DataError
from minionerec.core.values import in_words
from minionerec.pipeline.config.encoder import EncoderConfig
from minionerec.pipeline.settings import StageConfig, setting
from minionerec.sid.collisions import METHODS as COLLISION_METHODS
from minionerec.sid.table import CODES_FILE, INDEX_FILE, LEVELS, index_path

METHODS = (
    "residual_kmeans",
    "balanced_kmeans",
    "opq",
    "rq_vae",
    "rq_vae_plus",
    "published",
    "shuffled",
    "append",
)

_READ = ("published", "shuffled")
"""Methods that read an index.json."""
_IN_BLOCKS = ("residual_kmeans", "balanced_kmeans", "opq")
"""Methods that need no more than a sample of the vectors in memory; those of an autoencoder do with `fit_rows`."""


@dataclass
class SidConfig(EncoderConfig):
    """Settings of the stage that builds semantic IDs."""

    kind: ClassVar[str] = "sids"

    method: str = setting(
        "residual_kmeans",
        "how SIDs are made: residual_kmeans (clusters of item vectors), balanced_kmeans (clusters of equal size), "
        "opq (clusters of the parts of a turned vector, many unordered digits an item), "
        "rq_vae (an autoencoder with codebooks), rq_vae_plus (one that starts at residual_kmeans), published (read an "
        "index.json), shuffled (read one and assign its SIDs at random, by seed: a control) or append (SIDs for new "
        "items beside those of append_to)",
        known=METHODS,
    )
    append_to: str | None = setting(
        None,
        "directory of SIDs with codebooks, for method append: its items keep their SIDs, other items of the corpus get "
        "codes from its codebooks; the encoder must be the one those were made with (tfidf is fitted on the texts that "
        "it was first fitted on)",
        input_kind="sids",
    )
    index: str | None = setting(
        None,
        "index.json for methods published and shuffled, or a directory that holds one; the published files are in "
        "$MINIONEREC_DATA/Amazon/index",
        input_kind="any",
    )
    codebook_sizes: list[int] = setting(
        [256, 256, 256], "codes per level, one number per level; fewer where there are too few items to fill them"
    )
    digits: int = setting(
        32, "levels of opq, each with the first of codebook_sizes codes", least=1, most=len(LEVELS) - 1
    )
    iterations: int = setting(25, "k-means iterations per level", least=1)
    fit_rows: int = setting(
        0,
        "items of the sample, drawn by seed, that codebooks and autoencoders are fitted on; all items get codes. 0: "
        "256 for each code of the largest level, and all for rq_vae and rq_vae_plus",
        least=0,
    )
    device: str = setting(
        "auto",
        "device of a Hugging Face model and of autoencoders (auto: a GPU where there is one), and of k-means (auto: "
        "the CPU): auto, cpu, cuda, ...",
    )
    threads: int = setting(1, "CPU threads; the same bytes come out for the same number of threads", least=1)
    epochs: int = setting(500, "maximum number of epochs of rq_vae and rq_vae_plus, which stop early", least=0)
    collisions: str = setting(
        "relocate",
        "how to treat items that share an SID: keep them, relocate all but one to the nearest free code, assign "
        "last codes among them by optimal transport as far as possible (sinkhorn), give each an extra_token, or "
        "give every item one, shared or not (extra_token_all)",
        known=COLLISION_METHODS,
    )

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        if not 1 <= len(self.codebook_sizes) < len(LEVELS) or min(self.codebook_sizes) < 1:
            sizes = in_words(list(self.codebook_sizes))
            yield f"codebook_sizes is {sizes}; give 1 to {len(LEVELS) - 1} numbers of at least 1."
        if (self.method == "append") != (self.append_to is not None):
            yield (
                f"method is {self.method!r} and append_to {self.append_to!r}; give both method append and the SIDs to "
                "append to, or neither."
            )
        if self.method in _READ and self.collisions in ("relocate", "sinkhorn"):
            yield (
                f"method {self.method} has no codebooks, so collisions {self.collisions} cannot work; set collisions "
                "to keep (the table as published) or extra_token."
            )
        if self.fit_rows:
            yield from self._of_fit_rows()
        if (self.method in _READ) != (self.index is not None):
            yield (
                f"method is {self.method!r} and index {self.index!r}; give both method published or shuffled and the "
                "index.json that it reads, or neither."
            )

    def _of_fit_rows(self) -> Iterator[str]:
        if self.method in (*_READ, "append"):
            yield (
                f"fit_rows is {self.fit_rows}, but method {self.method} fits nothing; leave fit_rows out or choose "
                f"another method, such as {_IN_BLOCKS[0]}."
            )
        if self.fit_rows < max(self.wished_sizes):
            yield (
                f"fit_rows is {self.fit_rows}, but codebook_sizes needs {max(self.wished_sizes)} codes a level; "
                "give at least as many rows as codes."
            )

    @property
    def in_blocks(self) -> bool:
        """Whether the vectors, except a sample, may stay in a file."""
        fits = self.method in _IN_BLOCKS or (self.method in ("rq_vae", "rq_vae_plus") and self.fit_rows > 0)
        return fits and self.collisions != "sinkhorn"

    @property
    def wished_sizes(self) -> list[int]:
        """Codes per level before they are fitted to the number of items."""
        return self.codebook_sizes[:1] * self.digits if self.method == "opq" else self.codebook_sizes

    def deciding(self) -> dict[str, Any]:
        """The settings that affect the result; digits only of opq, and no codebook_sizes of SIDs that are appended."""
        unused = {"digits": self.method != "opq", "codebook_sizes": self.method == "append"}
        return {name: value for name, value in super().deciding().items() if not unused.get(name)}

    def inputs(self) -> dict[str, Path]:
        """Name to path of everything that is read: the published index, or else what the encoder reads.

        Raises:
            DataError: If the published index or a file of vectors is missing.
        """
        if self.method in _READ:
            return StageConfig.inputs(self) | {"index": self._published_index()}
        return super().inputs()

    def _published_index(self) -> Path:
        path = Path(str(self.index))
        path = index_path(path / INDEX_FILE if path.is_dir() else path)
        if not path.is_file():
            raise DataError(f"{path}: no such file. Give the path of an index.json or {CODES_FILE}.")
        return path
