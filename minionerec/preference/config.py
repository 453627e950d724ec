"""Settings of the preference stage; light to import, so that `--help` answers at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minionerec.core.errors import ConfigError

UNITS = ("pair", "row", "item", "user", "time")
FLOORS = ("majority", "agreeing_user", "bt_global", "bt_user")
MODELS = (*FLOORS, "bt_lowrank", "bt_hier", "mlp_concat", "mlp_siamese")
WORLDS = ("halo", "no_halo", "one_taste", "permuted")
ACTIVATIONS = ("leaky_relu", "relu", "gelu", "silu")
ANSWERS = ("a", "b", "tie", "")
COMPAT = "blink-2025-09"


@dataclass
class PreferenceConfig:
    """Settings of `run_preference`; paths are relative to the current directory."""

    output: str = field(default="runs/preference", metadata={"help": "directory for all runs and reports"})
    comparisons: str = field(
        default="",
        metadata={
            "help": "csv, parquet or jsonl with comparison_id, user_id, item_a, item_b and one column per target; "
            "empty: synthetic data"
        },
    )
    features: str = field(
        default="", metadata={"help": "npz (arrays item_id, features) or parquet (columns item_id, vector)"}
    )
    targets: list[str] = field(
        default_factory=lambda: ["attractive", "smart", "trustworthy"],
        metadata={"help": "columns of the answers, one question each"},
    )
    label_map: list[str] = field(
        default_factory=list,
        metadata={"help": "what each raw code means, as CODE=a, CODE=b or CODE=tie; required for numeric codes"},
    )
    worlds: list[str] = field(
        default_factory=lambda: ["halo"],
        metadata={
            "help": "synthetic data: halo, no_halo, one_taste (all users alike), permuted (labels shuffled); "
            "the first and no_halo on every split, the others on the first split"
        },
    )
    items: int = field(default=4602, metadata={"help": "synthetic data: items, and as many pairs"})
    width: int = field(default=512, metadata={"help": "synthetic data: width of the feature vectors"})
    control_items: int = field(
        default=0, metadata={"help": "synthetic data: items of every world but the first; 0: as many as items"}
    )
    control_models: list[str] = field(
        default_factory=list, metadata={"help": "models, beside the floors, run in worlds but the first; empty: all"}
    )
    halo: float = field(
        default=0.6, metadata={"help": "synthetic data: share of the choice noise that a pair's targets have in common"}
    )
    nonlinear: float = field(default=0.15, metadata={"help": "synthetic data: non-linear share of utility's variance"})
    lapse: float = field(default=0.0, metadata={"help": "synthetic data: share of answers given by tossing a coin"})
    splits: list[str] = field(
        default_factory=lambda: ["pair"],
        metadata={"help": "unit that stays in one fold: pair, item, user, time, or row (leaks; for comparison only)"},
    )
    models: list[str] = field(
        default_factory=lambda: ["bt_hier"],
        metadata={"help": f"models to fit, of {', '.join(MODELS)}; floors always run"},
    )
    seeds: list[int] = field(
        default_factory=lambda: [42], metadata={"help": "one run per seed: synthetic data, split, weights, bootstrap"}
    )
    shots: list[int] = field(
        default_factory=lambda: [0, 5, 20, 100],
        metadata={"help": "user split: answers a new user gives before the test"},
    )
    compat: str = field(
        default="",
        metadata={
            "help": f"'{COMPAT}': train mlp_concat as the published report does (raw features, N(0,1) user vectors, "
            "one full batch per target, targets weighted equally), and show its last epoch too"
        },
    )
    activation: str = field(default="leaky_relu", metadata={"help": f"MLPs: {', '.join(ACTIVATIONS)}"})
    dropout: float = field(default=0.15, metadata={"help": "MLPs: share of units dropped after every block"})
    scale: str = field(default="standardize", metadata={"help": "MLPs: features none, standardize or l2"})
    embedding_std: float = field(default=0.1, metadata={"help": "MLPs: spread of the user vectors at the start"})
    learning_rate: float = field(default=1e-3, metadata={"help": "MLPs: AdamW's step"})
    weight_decay: float = field(default=1e-3, metadata={"help": "MLPs: AdamW's decay, on all parameters"})
    batch_size: int = field(default=1024, metadata={"help": "MLPs: comparisons an optimiser step, all targets at once"})
    full_batch: bool = field(
        default=False, metadata={"help": "MLPs: one step per target on all its rows instead of batches"}
    )
    monitor: str = field(default="pooled", metadata={"help": "MLPs: validation CE over rows, or macro_target"})
    max_epochs: int = field(default=200, metadata={"help": "MLPs: most epochs"})
    patience: int = field(default=10, metadata={"help": "MLPs: epochs without improvement before the stop"})
    min_delta: float = field(default=1e-3, metadata={"help": "MLPs: fall of validation CE, in nats, that counts"})
    position_bias: bool = field(
        default=True, metadata={"help": "let a user prefer the first place; off: antisymmetric"}
    )
    min_user_rows: int = field(default=10, metadata={"help": "test rows that a user needs to be shown by name"})
    resamples: int = field(default=1000, metadata={"help": "bootstrap resamples, drawn over pairs"})
    workers: int = field(default=2, metadata={"help": "processes, of one thread each"})
    document: str = field(
        default="", metadata={"help": "Markdown file that shows all runs side by side; none if empty"}
    )

    def __post_init__(self) -> None:
        """Check the settings against one another."""
        if isinstance(self.label_map, Mapping):
            self.label_map = [f"{code}={answer}" for code, answer in self.label_map.items()]
        known: tuple[str, ...]
        for name, known in (("worlds", WORLDS), ("splits", UNITS), ("models", MODELS), ("control_models", MODELS)):
            for value in getattr(self, name):
                if value not in known:
                    raise ConfigError(f"{name} has {value!r}; known: {', '.join(known)}.")
        for name, known in (
            ("activation", ACTIVATIONS),
            ("scale", ("none", "standardize", "l2")),
            ("monitor", ("pooled", "macro_target")),
            ("compat", ("", COMPAT)),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; known: {', '.join(map(repr, known))}.")
        if bool(self.comparisons) != bool(self.features):
            raise ConfigError(
                f"comparisons is {self.comparisons!r} and features {self.features!r}: give both, or neither for "
                "synthetic data."
            )
        if not self.comparisons and "time" in self.splits:
            raise ConfigError("splits has 'time', but synthetic data have no time. Leave it out or give comparisons.")
        for name in ("targets", "splits", "seeds", "worlds"):
            if not getattr(self, name) or len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least one, and none twice.")
        for name, least in (("batch_size", 2), ("max_epochs", 1), ("patience", 1), ("workers", 1), ("items", 20)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least {least}.")
        for name in ("halo", "nonlinear", "lapse", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a share from 0 to below 1.")
        self.answers  # noqa: B018 - checks label_map

    @property
    def answers(self) -> dict[str, str]:
        """What each raw code means.

        Raises:
            ConfigError: If an entry is malformed, or neither answer has a code.
        """
        meaning: dict[str, str] = {}
        for entry in self.label_map:
            code, _, answer = str(entry).partition("=")
            if answer not in ANSWERS or not code or code in meaning:
                raise ConfigError(f"label_map has {entry!r}; expected CODE=a, CODE=b or CODE=tie, each code once.")
            meaning[code] = answer
        if meaning and not {"a", "b"} <= set(meaning.values()):
            raise ConfigError(f"label_map is {self.label_map}; expected a code for 'a' and one for 'b'.")
        return meaning

    def settings(self) -> dict[str, Any]:
        """What decides a run's numbers, as plain values: everything but the lists of runs and the way of running."""
        apart = {"output", "worlds", "items", "control_items", "control_models", "splits", "models", "seeds", "workers",
                 "document", "comparisons", "features"}  # fmt: skip
        return {name: value for name, value in vars(self).items() if name not in apart}
