"""Settings of sequential recommenders; light to import, so that `--help` answers at once."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from minionerec.core.values import in_words
from minionerec.models.sequential import MODEL_KIND
from minionerec.pipeline.config.training import CONTEXT
from minionerec.pipeline.settings import StageConfig, setting

if TYPE_CHECKING:
    from minionerec.data.protocols import Protocol
    from minionerec.pipeline.stage import Stage

PROTOCOL_NAMES = ("a", "b", "rows")
SEEN = ("mask", "zero", "keep")
_OF_PROTOCOL = ("seed", "max_len", "stop_after", "batch_size", "seen")
_OF_LISTS = ("list_length", "resamples")


@dataclass
class SequentialConfig(StageConfig):
    """Settings of `run_sequential`; None takes the protocol's value."""

    kind: ClassVar[str] = MODEL_KIND

    model: str = setting("sasrec", "which recommender; an unknown name lists the known ones", required=True)
    corpus: str = setting(
        "",
        "corpus directory (protocol rows), or a 'user item item ...' file (protocols a and b; may begin with "
        "$MINIONEREC_DATA)",
        required=True,
        input_kind="any",
    )
    protocol: str = setting(
        "a",
        "a: last two out, seen items masked; b: 5-core, last two out, seen items compete; rows: the corpus's splits",
        known=PROTOCOL_NAMES,
    )
    output: str = setting("", "directory for the folders model and predictions", required=True, affects_result=False)
    seed: int | None = setting(None, "seed of weights, order and dropout (default: the protocol's)", least=0)
    hyper: dict[str, Any] = setting({}, "hyper-parameters of the model, e.g. hidden_size=128 num_layers=2")
    items: str = setting("", "JSON of item id → title for a file of sequences", input_kind="any")
    vectors: str = setting(
        "",
        "item vectors, besides learned ones: tfidf (of the titles), wordllama, a .npy file with one row an item, "
        "or the output of `minionerec embed-items`; empty: none",
        path=True,
    )
    vector_width: int = setting(64, "width of tfidf vectors", least=1)
    item_columns: list[str] = setting(
        [],
        "rows: columns of the items, such as [brand, category, price], that are added to item vectors: categories, "
        "tags, numbers and times (roles of prepare-data)",
    )
    digits: str = setting(
        "",
        "digits of the items for models that read them: an SID directory (`minionerec build-sids --method opq`)",
        input_kind="sids",
    )
    sids: str = setting(
        "", "SID directory (`minionerec build-sids`), to measure at SID level too; rows only", input_kind="sids"
    )
    max_len: int | None = setting(
        None, "most items of a history that the model reads (default: the protocol's)", least=1
    )
    epochs: int = setting(200, "most epochs", least=1)
    stop_after: int | None = setting(
        None, "stop after this many epochs in a row without improvement (default: the protocol's)", least=1
    )
    batch_size: int | None = setting(None, "examples (or windows) a step (default: the protocol's)", least=1)
    learning_rate: float = setting(1e-3, "learning rate of Adam", above=0)
    all_positions: bool = setting(
        False, "train at all positions of user windows instead of on single examples: another recipe; causal models"
    )
    context: list[str] = setting([], f"rows: {CONTEXT}")
    seen: str | None = setting(
        None,
        "scores of seen items: mask (never recommended), zero (set to 0.0, as published under a) or keep (default: the "
        "protocol's)",
        known=SEEN,
    )
    list_length: int = setting(50, "items of each example in the predictions file", least=1)
    resamples: int = setting(2000, "bootstrap resamples for the intervals", least=1)

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        if self.sids and self.protocol != "rows":
            yield (
                f"sids is {self.sids!r}, but protocol is {self.protocol!r}, whose items have no SIDs; leave sids out "
                "or take protocol rows."
            )
        if self.items and self.protocol == "rows":
            yield f"items is {self.items!r}, but a corpus has its own titles; leave items out."
        if self.item_columns and self.protocol != "rows":
            yield (
                f"item_columns is {self.item_columns}, but protocol is {self.protocol!r}, whose items have titles "
                "alone; take protocol rows, or leave item_columns out."
            )
        if self.context and self.protocol != "rows":
            yield (
                f"context is {in_words(self.context)}, but protocol is {self.protocol!r}, whose sequences have no "
                "times; take protocol rows, or leave context out."
            )

    def inputs(self) -> dict[str, Path]:
        """Inputs; of the text vectors what their source reads."""
        inputs = super().inputs()
        if self.vectors:
            from minionerec.sid.embed.encoder import encoder_inputs

            inputs |= encoder_inputs(self.vectors)
        return inputs

    def up_to_date(self) -> bool:
        """Whether model and predictions exist, made from these settings and from inputs of the same content."""
        return all(stage.current(say=False) is not None for stage in (self.model_stage(), self.predictions_stage()))

    def resolved_protocol(self) -> "Protocol":
        """The protocol with the changes of the settings."""
        from minionerec.data.protocols import PROTOCOLS

        settings = {name: getattr(self, name) for name in _OF_PROTOCOL}
        return replace(
            PROTOCOLS[self.protocol], **{name: value for name, value in settings.items() if value is not None}
        )

    def model_stage(self) -> "Stage[SequentialConfig]":
        """The training, in OUTPUT/model. Settings of lists and metrics alone do not affect it."""
        from minionerec.pipeline.stage import Stage

        protocol = self.resolved_protocol()
        decided = {**self.deciding(), **{name: getattr(protocol, name) for name in _OF_PROTOCOL}}
        settings = {name: value for name, value in decided.items() if name not in _OF_LISTS}
        stage = Stage(self, output=Path(self.output) / "model", settings=settings)
        stage.inputs.pop("sids", None)
        return stage

    def predictions_stage(self) -> "Stage[SequentialConfig]":
        """Lists, ranks and metrics of the trained model, which is one of its inputs, in OUTPUT/predictions."""
        from minionerec.metrics.ranked import KIND
        from minionerec.pipeline.stage import Stage

        protocol = self.resolved_protocol()
        settings = {
            "protocol": protocol.name,
            "seen": protocol.seen,
            "max_len": protocol.max_len,
            **{name: getattr(self, name) for name in _OF_LISTS},
        }
        stage = Stage(self, kind=KIND, output=Path(self.output) / "predictions", settings=settings)
        stage.inputs["model"] = Path(self.output) / "model"
        return stage
