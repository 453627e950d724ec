"""Settings of a recipe that follow from the data: a rule for each, with its reason.

The rules interpolate between the shapes that this project has measured (its demo shop, Industrial_and_Scientific,
Steam); a larger data set never gets a smaller model, a shorter history or fewer dimensions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minionerec.data.names import CATEGORY, CODED, TAGS, TEXT_COLUMNS

LEVELS, CODES = 3, 256
"""Levels of an SID, and most codes of each."""
LANGUAGE = ("sft", "eval_sft")
"""The steps of the language model."""
FEWEST_ITEMS = 10
"""Metrics at 10 need as many items."""
_MANY, _SOME = 30_000, 5_000  # training examples from which the hidden size is 128 and 64
_SCORES = 1 << 32  # most scores of a training (examples x items x towers x epochs) with the exact loss
_SEEN = 10_000  # fewest windows that a training sees, over all epochs
_FEW_IN_SESSION = 0.1  # least share of examples within a session, and of others, where the gap is read
_NO_TEXT = "no item has a title or a description"
_SECONDS_A_SCORE, _SECONDS_A_TOKEN, _SECONDS_A_STAGE = 1.7e-7, 1.7e-4, 12.0  # of Steam, of the demo shop, of any
TRAININGS = ("catalogue", "sft")
"""The steps that train, whose time a trial measures."""


@dataclass(frozen=True)
class Shape:
    """The counts that sizes follow from.

    Attributes:
        items: Items of the catalogue.
        interactions: Interactions.
        users: Users.
        examples: Training examples: interactions with one of the same user before them, less those held out.
        windows: Training windows (`minionerec.data.windows.row_windows`).
        before: Median number of the user's items before an example.
        ties: Share of neighbouring pairs with equal times; None where no times are known.
        listed: Whether the order of equal times agrees with the order of item ids.
        texts: Whether some item has a title or a description.
        all_targets: Whether every interaction is predicted, whatever its event.
        roles: The further columns of the items and their roles (`minionerec.data.roles`).
        in_session: Share of the training examples that follow the item before within a session
            (`minionerec.data.contexts.share_in_session`); None where times do not tell it.
        contexts: The columns of the interactions that are request features (`minionerec.data.context_columns`).
    """

    items: int
    interactions: int
    users: int
    examples: int
    windows: int
    before: float
    ties: float | None
    listed: bool
    texts: bool = True
    all_targets: bool = True
    roles: Mapping[str, str] = field(default_factory=dict)
    in_session: float | None = None
    contexts: tuple[str, ...] = ()

    @property
    def text_columns(self) -> list[str]:
        """The columns of an item's text: title, description and all categories."""
        return [*TEXT_COLUMNS, *(name for name, role in self.roles.items() if role in (CATEGORY, TAGS))]


@dataclass(frozen=True)
class Pace:
    """The time of a training on the machine at hand, by a trial (`minionerec.pipeline.cli.init.measured_paces`).

    Attributes:
        fixed: Processor seconds whatever the number of steps, without the start of the process.
        window: Processor seconds of each window that the training sees.
    """

    fixed: float
    window: float


ChosenSettings = dict[str, tuple[Any, str]]
"""Setting of a step → its value, and the reason, which holds for the settings without one after it too."""


def history_length(before: float) -> int:
    """Longest history that is read, by the median number of items before an example."""
    return 10 if before <= 10 else 20


def width(examples: int) -> int:
    """Hidden size of a catalogue model."""
    return 128 if examples >= _MANY else 64 if examples >= _SOME else 32


def dimensions(items: int) -> int:
    """Dimensions of TF-IDF vectors: twice the square root of the catalogue's size, a multiple of 4, 64 at most."""
    return min(64, 4 * max(2, int(items**0.5 / 2 + 0.5)))


def batch(windows: int) -> int:
    """Windows of an optimiser step."""
    return 128 if windows >= 5_000 else 64 if windows >= 1_500 else 32 if windows >= 500 else 16


def epochs(windows: int, usual: int) -> int:
    """Epochs: `usual`, more where they would see fewer than 10,000 windows, 40 at most."""
    return max(usual, min(40, -(-_SEEN // max(1, windows))))


def choose(shape: Shape) -> dict[str, ChosenSettings]:
    """The settings of the steps `corpus`, `sids`, `catalogue`, `eval_catalogue` and `sft`.

    Args:
        shape: The data.

    Returns:
        Step to its settings.
    """
    return {
        "corpus": _corpus(shape),
        "sids": _sids(shape),
        "catalogue": _catalogue(shape),
        "eval_catalogue": _evaluation(shape),
        "sft": _language(shape),
    }


def _corpus(shape: Shape) -> ChosenSettings:
    agrees = "is that of the item ids, which users do not choose" if shape.listed else "is not that of the item ids"
    order = "the times of a user's neighbouring pairs are unknown"
    if shape.ties is not None:
        share = f"{shape.ties:.0%}" if shape.ties >= 0.005 else "less than 1%" if shape.ties else "none"
        order = f"{share} of a user's neighbouring pairs are within one second" + (
            f"; their order {agrees}" if shape.ties else ""
        )
    chosen: ChosenSettings = {}
    if len(shape.text_columns) > len(TEXT_COLUMNS):
        chosen["text_columns"] = (shape.text_columns, "items are compared by the columns that hold categories, too")
    return chosen | {
        "ties": (
            ("shuffle" if shape.all_targets else "together") if shape.listed else "keep",
            order,
        ),
        "max_history": (
            history_length(shape.before),
            f"half of the examples have {shape.before:,.0f} items or more before them",
        ),
    }


def _sids(shape: Shape) -> ChosenSettings:
    from minionerec.sid.kmeans import most_codes

    codes = min(CODES, most_codes(LEVELS, shape.items))
    chosen: ChosenSettings = {
        "dimensions": (dimensions(shape.items), f"of the item vectors, by the {shape.items:,} items"),
        "codebook_sizes": (
            [codes] * LEVELS,
            "codes of each level: most are learned from several items, and SIDs suffice for all",
        ),
    }
    return chosen if shape.texts else chosen | {"encoder": ("interactions", _NO_TEXT)}


def _catalogue(shape: Shape) -> ChosenSettings:
    wide, passes = width(shape.examples), epochs(shape.windows, 8)
    scores = shape.examples * shape.items * passes
    towers = 2 if wide == 128 and 2 * scores <= 2 * _SCORES else 1
    chosen: ChosenSettings = {
        "hidden_size": (wide, f"by the {shape.examples:,} training examples"),
        "vector_width": (wide, ""),
        "inner_size": (4 * wide, ""),
        "heads": (2 if wide < 64 else 4, ""),
        "towers": (
            towers,
            "models whose probabilities are averaged: two where there are many examples, as far as time allows",
        ),
        "dropout": (0.5 if wide == 128 else 0.4, ""),
        "learning_rate": ({32: 0.003, 64: 0.002, 128: 0.001}[wide], ""),
        "epochs": (passes, "at most; it stops after four validations without a better one"),
        "evals_per_epoch": (1 if passes <= 12 else 0.5 if passes <= 24 else 0.25, ""),
        "batch_size": (batch(shape.windows), f"by the {shape.windows:,} training windows"),
        "eval_examples": (5000, "validation examples that are ranked, at most"),
        "eval_beams": (_beams(shape.items, 20), ""),
    }
    if not shape.texts:
        chosen["vectors"] = ("interactions", _NO_TEXT)
    if columns := [name for name, role in shape.roles.items() if role in CODED]:
        chosen["item_columns"] = (columns, "added to the items' vectors; an item without a purchase has them too")
    features, why = _context(shape.in_session)
    if shape.contexts:
        why += "; columns of the interactions that the item does not determine, whose values requests give"
    chosen["context"] = ([*features, *shape.contexts], why)
    if scores * towers > 2 * _SCORES:
        why = f"{shape.examples:,} examples times {shape.items:,} items are too many to score each at every step"
        chosen |= {"loss": ("sampled", why), "negatives": (1024, "")}
    return chosen


def _context(in_session: float | None) -> tuple[list[str], str]:
    """The request features, and the reason: the gap where it tells who stays from who comes back."""
    if in_session is None:
        return [], "times tell no sessions: they are unknown, without a unit, or coarser than half an hour"
    share = f"{in_session:.0%} of the examples come within half an hour of the item before"
    if _FEW_IN_SESSION <= in_session <= 1 - _FEW_IN_SESSION:
        return ["gap"], f"{share}, the others later; requests give their times, or the gap"
    return [], f"{share}: the gap tells little"


def _evaluation(shape: Shape) -> ChosenSettings:
    beams = _beams(shape.items, 50)
    return {
        "beams": (beams, f"candidates per list, of {shape.items:,} items"),
        "ks": ([k for k in (1, 5, 10, 20, 50) if k <= beams], ""),
    }


def _language(shape: Shape) -> ChosenSettings:
    wide, variants = (128, 19) if shape.examples >= _MANY else (96, 39)
    windows = (1 + variants) * shape.windows
    return {
        "hidden_size": (wide, f"by the {shape.examples:,} training examples; small, since it is distilled"),
        "layers": (2, ""),
        "inner_size": (3 * wide, ""),
        "text_vocabulary": (600, ""),
        "variants": (variants, "copies of each window, with items left out at random; each is seen once in an epoch"),
        "epochs": (epochs(windows, 1), ""),
        "batch_size": (min(64 if wide == 128 else 32, batch(windows)), ""),
        "eval_examples": (1000, ""),
        "eval_beams": (_beams(shape.items, 20), ""),
    }


def _beams(items: int, most: int) -> int:
    """Candidates of a list: `most`, or 10 of a catalogue of fewer than 100 items."""
    return most if items >= 100 else 10


def windows_seen(settings: Mapping[str, Any], shape: Shape) -> float:
    """Windows that a training sees, over all epochs and variants; of several towers as often."""
    passes = settings["epochs"] * (1 + settings.get("variants", 0)) * settings.get("towers", 1)
    return float(shape.windows * passes)


def shortened(chosen: dict[str, ChosenSettings], shape: Shape, paces: Mapping[str, Pace], limit: float) -> None:
    """Give a catalogue model fewer towers and epochs, one at least, until the steps without language model fit.

    Args:
        chosen: Step to its settings, changed in place.
        shape: The data.
        paces: See `seconds`.
        limit: Seconds.
    """
    model = chosen["catalogue"]
    reason = f"with more the run would take more than {limit / 60:g} minutes"

    def remaining() -> float:
        return limit - sum(time for step, time in seconds(chosen, shape, paces).items() if step not in LANGUAGE)

    if remaining() < 0 and model["towers"][0] > 1:
        model["towers"] = 1, reason
    if remaining() < 0:
        usual = model["epochs"]
        model["epochs"] = 1, reason
        after_one = remaining()
        model["epochs"] = 2, reason
        epoch = after_one - remaining()
        fitting = 1 + int(max(0.0, after_one) / epoch) if epoch > 0 else usual[0]
        model["epochs"] = (fitting, reason) if fitting < usual[0] else usual
        model["evals_per_epoch"] = 1, ""


def seconds(
    chosen: Mapping[str, ChosenSettings], shape: Shape, paces: Mapping[str, Pace] | None = None
) -> dict[str, float]:
    """Estimated time of each step on one core.

    Args:
        chosen: Step to its settings.
        shape: The data.
        paces: Training to its pace; where there is none the time is that of runs on a CPU of 2026.

    Returns:
        Step to seconds.
    """
    model, language = ({key: value for key, (value, _) in chosen[step].items()} for step in ("catalogue", "sft"))
    columns = (
        model["negatives"] + shape.examples // max(1, shape.windows) * model["batch_size"] if "loss" in model else 0
    )
    scored = min(shape.items, columns) if columns else shape.items
    scores = shape.examples * (scored + 500) * model["towers"] * model["epochs"]
    tokens = (1 + language["variants"]) * shape.examples * LEVELS * language["epochs"]
    usual = {
        "catalogue": _SECONDS_A_SCORE * scores,
        "sft": _SECONDS_A_TOKEN * tokens * (language["hidden_size"] / 128),
    }
    times, slower = dict(usual), dict.fromkeys(TRAININGS, 1.0)
    for step, settings in zip(TRAININGS, (model, language), strict=True):
        if paces and step in paces:
            times[step] = paces[step].fixed + paces[step].window * windows_seen(settings, shape)
            slower[step] = times[step] / usual[step]
    return {
        "corpus": _SECONDS_A_STAGE + 5e-5 * shape.interactions,
        "sids": _SECONDS_A_STAGE + 2e-3 * shape.items,
        "catalogue": _SECONDS_A_STAGE + times["catalogue"],
        "eval_catalogue": 2 * _SECONDS_A_STAGE + 1e-8 * shape.examples * shape.items * slower["catalogue"],
        "sft": _SECONDS_A_STAGE + times["sft"],
        "eval_sft": 2 * _SECONDS_A_STAGE + 2e-3 * shape.examples * slower["sft"],
        "report": _SECONDS_A_STAGE,
    }
