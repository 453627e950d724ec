"""Settings of the stages of this part; light to import."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from minionerec.pipeline.config.evaluation import EvaluationConfig
from minionerec.pipeline.config.training import FITTING, LanguageRunConfig, RunConfig
from minionerec.pipeline.settings import setting
from minionerec.sid.embed.encoder import encoder_inputs


@dataclass
class TigerTrainConfig(RunConfig):
    """Settings of the stage that trains a TIGER (`minionerec.contrib.generative_baselines.tiger`)."""

    sids: str = setting("", "SID directory (minionerec build-sids)", required=True, input_kind="sids")
    learning_rate: float = setting(1e-2, "peak learning rate of Adafactor", above=0)
    max_prompt_length: int = setting(512, "prompts are truncated to their last tokens, this many", least=1)
    hidden_size: int = setting(128, "width", least=1)
    layers: int = setting(4, "layers of the encoder, and as many of the decoder", least=1)
    heads: int = setting(6, "attention heads", least=1)
    head_size: int = setting(64, "width of a head", least=1)
    inner_size: int = setting(1024, "width of the feed-forward layers", least=1)
    dropout: float = setting(
        0.1, "dropout of embeddings, attention weights and after each part of a layer", least=0, below=1
    )
    batch_size: int = setting(256, "examples an optimiser step, over all devices", least=1)
    device_batch_size: int = setting(0, f"examples a device computes at a time; {FITTING}", least=0)

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        if self.eval_examples == 0:
            yield "eval_examples is 0; the best checkpoint is chosen by ranking validation examples."


DPO_NEGATIVES = ("uniform", "beam")


@dataclass
class DpoConfig(LanguageRunConfig):
    """Settings of softmax direct preference optimisation."""

    batch: ClassVar[tuple[str, str]] = ("prompts_per_step", "prompts_per_device")

    checkpoint: str = setting(
        "",
        "checkpoint to start from (minionerec sft); it is also the frozen reference",
        required=True,
        input_kind="checkpoint",
    )
    negatives: int = setting(3, "negatives of each target (N); 1 is plain DPO", least=1)
    negatives_from: str = setting(
        "uniform",
        "source of negatives: uniform (any other SID, redrawn in every epoch), or beam (the best of the checkpoint's "
        "own search, the same in every epoch)",
        known=DPO_NEGATIVES,
    )
    max_grad_norm: float = setting(1.0, "gradients are clipped to this norm", least=0)
    beta: float = setting(1.0, "scale of log-ratios in the loss; the higher, the closer to the checkpoint", above=0)
    prompts_per_step: int = setting(128, "prompts an optimiser step, over all devices", least=1)
    prompts_per_device: int = setting(0, f"prompts a device computes at a time; {FITTING}", least=0)

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        if self.eval_examples == 0:
            yield "eval_examples is 0; S-DPO can hurt, so it must be watched on validation examples."


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
    seed: int = setting(0, "seed of TF-IDF and of the sample of validation examples", least=0)
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
