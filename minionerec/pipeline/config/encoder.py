"""Settings of encoders, and of the stage that turns item texts into vectors."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from minionerec.pipeline.settings import StageConfig, setting
from minionerec.sid.embed.encoder import INTERACTIONS, TFIDF, VectorSource, encoder_inputs
from minionerec.sid.embed.hf import AUTO, DTYPES, POOLINGS


@dataclass
class EncoderConfig(StageConfig):
    """Settings common to the stages that make vectors of a corpus's items, to keep them or to build SIDs of them."""

    corpus: str = setting("", "directory of the corpus whose items are encoded", required=True, input_kind="corpus")
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
    def vector_source(self) -> VectorSource:
        """The source of item vectors that these settings describe."""
        known = {field.name for field in fields(VectorSource)}
        return VectorSource(**{field.name: getattr(self, field.name) for field in fields(self) if field.name in known})

    def inputs(self) -> dict[str, Path]:
        """Name to path of everything that is read: what the settings name, and what the encoder reads."""
        return super().inputs() | encoder_inputs(self.encoder)


@dataclass
class EmbedConfig(EncoderConfig):
    """Settings of the stage that turns item texts into vectors."""

    kind: ClassVar[str] = "vectors"

    pooling: str = setting(
        AUTO,
        "how a Hugging Face model's token states become one vector: as its own files say (auto; the mean if they say "
        "nothing), their mean, the last, the first (cls), the largest values (max), or a mean of rising weights",
        known=(AUTO, *POOLINGS),
    )
    prefix: str = setting("", "text put before each item's text for a Hugging Face model")
    max_length: int = setting(512, "maximum number of tokens per text for a Hugging Face model", least=1)
    dtype: str = setting("float32", "dtype of a Hugging Face model's weights", known=DTYPES)
