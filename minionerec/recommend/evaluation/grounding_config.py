"""Settings of the stage `ground-titles`; light to import, so that `--help` is fast."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minionerec.core.settings import setting
from minionerec.recommend.evaluation.config import EvaluationConfig
from minionerec.sid.embed.config import encoder_inputs

OWN = "self"
WEIGHTS = ("none", "popularity", "sequential")
_WRITING = ("text_beams", "max_new_tokens", "length_penalty", "dtype")


@dataclass
class GroundingConfig(EvaluationConfig):
    """Settings of grounding."""

    checkpoint: str = setting(
        "",
        "language model over titles (minionerec sft with the task title_history_to_title)",
        required=True,
        input_kind="checkpoint",
    )
    text_beams: int = setting(4, "number of beams for a text, of which the best is used", least=1)
    max_new_tokens: int = setting(64, "maximum tokens of a text", least=1)
    length_penalty: float = setting(
        0.0,
        "a text's log-probability is divided by its length to this power; 1 is the default of transformers",
        least=0,
    )
    texts: str = setting(
        "",
        "earlier output of this stage with the same checkpoint, corpus and search, whose texts are reused",
        input_kind="predictions",
    )
    encoder: str = setting(
        OWN,
        "encoder of texts and titles: last hidden state at a text's last token, of the checkpoint (self) or "
        "of a Hugging Face model by name or directory; or tfidf (TF-IDF of the titles + truncated SVD) or wordllama",
        required=True,
        path=True,
    )
    dimensions: int = setting(256, "dimensions of TF-IDF vectors; lowered for small catalogues", least=1)
    weights: str = setting(
        "none",
        "weights that reduce distances: none, popularity in training, or the logits of a sequential model",
        known=WEIGHTS,
    )
    sequential: str = setting(
        "", "with weights sequential: the folder `model` of train-sequential", input_kind="sequential_model"
    )
    gammas: list[float] = setting(
        [0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 99.0],
        "with weights: exponents of the weights; of several, the one with the best NDCG@10 on validation examples is "
        "used for all metrics",
        least=0,
    )
    valid_examples: int = setting(
        0, "validation examples for choosing the exponent, drawn by the seed; 0: all", least=0
    )
    candidates: int = setting(50, "length of the ranked lists, in distinct titles", least=1)

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        yield from self.wrong_ks(self.candidates, "candidates")
        if not self.gammas:
            yield "gammas is empty; give at least one exponent."
        if (self.weights == "sequential") != bool(self.sequential):
            yield (
                f"weights is {self.weights!r} and sequential {self.sequential!r}; a model is needed with "
                "weights sequential, and only then."
            )
        if Path(self.encoder).suffix in (".npy", ".parquet"):
            yield (
                f"encoder is {self.encoder!r}, a file of vectors, but generated texts need an encoder. Give "
                "self, tfidf, wordllama or a Hugging Face model."
            )

    def inputs(self) -> dict[str, Path]:
        """All inputs, with the files of an encoder in a directory."""
        return {**super().inputs(), **({} if self.encoder == OWN else encoder_inputs(self.encoder))}

    def writing(self) -> dict[str, Any]:
        """The settings that affect the generated texts."""
        return {name: getattr(self, name) for name in _WRITING}
