"""Settings of the preference stage; light to import, so that `--help` answers at once."""

from dataclasses import dataclass
from typing import Any, ClassVar

from minionerec.core.errors import ConfigError
from minionerec.core.settings import StageConfig, setting

UNITS = ("pair", "row", "item", "user", "time")
FLOORS = ("majority", "agreeing_user", "bt_global", "bt_user")
MODELS = (*FLOORS, "bt_lowrank", "bt_hier", "mlp_concat", "mlp_siamese")
WORLDS = ("halo", "no_halo", "one_taste", "permuted")
ACTIVATIONS = ("leaky_relu", "relu", "gelu", "silu")
SCALES = ("none", "standardize", "l2")
MONITORS = ("pooled", "macro_target")
ANSWERS = ("a", "b", "tie", "")
COMPAT = "blink-2025-09"
# What says which runs there are, and decides nothing within one of them.
_OF_THE_STUDY = frozenset({"worlds", "items", "control_items", "control_models", "splits", "models", "seeds"})


@dataclass
class PreferenceConfig(StageConfig):
    """Settings of the stage; paths are relative to the current directory."""

    kind: ClassVar[str] = "preference_study"

    output: str = setting("runs/preference", "directory for all runs and reports", required=True, decides=False)
    comparisons: str = setting(
        "",
        "csv, parquet or jsonl with comparison_id, user_id, item_a, item_b and one column per target; "
        "empty: synthetic data",
        reads="any",
    )
    features: str = setting("", "npz (arrays item_id, features) or parquet (columns item_id, vector)", reads="any")
    targets: list[str] = setting(
        ["attractive", "smart", "trustworthy"], "columns of the answers, one question each", required=True
    )
    label_map: dict[str, str] = setting(
        {}, "what each raw code means, as CODE=a, CODE=b or CODE=tie; required for numeric codes"
    )
    worlds: list[str] = setting(
        ["halo"],
        "synthetic data: halo, no_halo, one_taste (all users alike), permuted (labels shuffled); "
        "the first and no_halo on every split, the others on the first split",
        known=WORLDS,
        required=True,
    )
    items: int = setting(4602, "synthetic data: items, and as many pairs", least=20)
    width: int = setting(512, "synthetic data: width of the feature vectors", least=1)
    control_items: int = setting(0, "synthetic data: items of every world but the first; 0: as many as items", least=0)
    control_models: list[str] = setting(
        [], "models, beside the floors, run in worlds but the first; empty: all", known=MODELS
    )
    halo: float = setting(
        0.6, "synthetic data: share of the choice noise that a pair's targets have in common", least=0, below=1
    )
    nonlinear: float = setting(0.15, "synthetic data: non-linear share of utility's variance", least=0, below=1)
    lapse: float = setting(0.0, "synthetic data: share of answers given by tossing a coin", least=0, below=1)
    splits: list[str] = setting(
        ["pair"],
        "unit that stays in one fold: pair, item, user, time, or row (leaks; for comparison only)",
        known=UNITS,
        required=True,
    )
    models: list[str] = setting(["bt_hier"], "models to fit; floors always run", known=MODELS)
    seeds: list[int] = setting(
        [42], "one run per seed: synthetic data, split, weights, bootstrap", required=True, least=0
    )
    shots: list[int] = setting([0, 5, 20, 100], "user split: answers a new user gives before the test", least=0)
    compat: str = setting(
        "",
        f"'{COMPAT}': train mlp_concat as the published report does (raw features, N(0,1) user vectors, "
        "one full batch per target, targets weighted equally), and show its last epoch too",
        known=("", COMPAT),
    )
    activation: str = setting("leaky_relu", "MLPs: activation", known=ACTIVATIONS)
    dropout: float = setting(0.15, "MLPs: share of units dropped after every block", least=0, below=1)
    scale: str = setting("standardize", "MLPs: what is done to the features", known=SCALES)
    embedding_std: float = setting(0.1, "MLPs: spread of the user vectors at the start", least=0)
    learning_rate: float = setting(1e-3, "MLPs: AdamW's step", above=0)
    weight_decay: float = setting(1e-3, "MLPs: AdamW's decay, on all parameters", least=0)
    batch_size: int = setting(1024, "MLPs: comparisons an optimiser step, all targets at once", least=2)
    full_batch: bool = setting(False, "MLPs: one step per target on all its rows instead of batches")
    monitor: str = setting("pooled", "MLPs: validation CE over rows, or the mean of the targets'", known=MONITORS)
    max_epochs: int = setting(200, "MLPs: most epochs", least=1)
    patience: int = setting(10, "MLPs: epochs without improvement before the stop", least=1)
    min_delta: float = setting(1e-3, "MLPs: fall of validation CE, in nats, that counts", least=0)
    position_bias: bool = setting(True, "let a user prefer the first place; off: antisymmetric")
    min_user_rows: int = setting(10, "test rows that a user needs to be shown by name", least=1)
    resamples: int = setting(1000, "bootstrap resamples, drawn over pairs", least=1)
    workers: int = setting(2, "processes, of one thread each", least=1, decides=False)
    document: str = setting(
        "", "Markdown file that shows all runs side by side; none if empty", decides=False, writes=True
    )

    def __post_init__(self) -> None:
        """Check the settings against one another."""
        super().__post_init__()
        if bool(self.comparisons) != bool(self.features):
            raise ConfigError(
                f"comparisons is {self.comparisons!r} and features {self.features!r}: give both, or neither for "
                "synthetic data."
            )
        if not self.comparisons and "time" in self.splits:
            raise ConfigError("splits has 'time', but synthetic data have no time. Leave it out or give comparisons.")
        for name in ("targets", "splits", "seeds", "worlds"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ConfigError(f"{name} is {getattr(self, name)}; expected none twice.")
        for code, answer in self.label_map.items():
            if answer not in ANSWERS or not code:
                raise ConfigError(f"label_map has '{code}={answer}'; expected CODE=a, CODE=b or CODE=tie.")
        if self.label_map and not {"a", "b"} <= set(self.label_map.values()):
            raise ConfigError(f"label_map is {self.label_map}; expected a code for 'a' and one for 'b'.")

    def settings(self) -> dict[str, Any]:
        """What decides a run's numbers, as plain values: everything but the lists of runs and the way of running."""
        return {name: value for name, value in self.deciding().items() if name not in _OF_THE_STUDY}

    def up_to_date(self) -> bool:
        """Whether every run stands and the reports of these runs lie there."""
        from minionerec.preference.jobs import study_stands

        return study_stands(self, say=False)


@dataclass
class WorldConfig(StageConfig):
    """Settings of one synthetic data set; those of `PreferenceConfig` under the same names.

    Attributes:
        kind: The kind of artefact.
    """

    kind: ClassVar[str] = "preference_world"

    world: str = setting("halo", "which one", known=WORLDS)
    items: int = setting(4602, "items, and as many pairs", least=20)
    width: int = setting(512, "width of the feature vectors", least=1)
    halo: float = setting(0.6, "share of the choice noise that a pair's targets have in common", least=0, below=1)
    nonlinear: float = setting(0.15, "non-linear share of utility's variance", least=0, below=1)
    lapse: float = setting(0.0, "share of answers given by tossing a coin", least=0, below=1)
    seed: int = setting(42, "seed of everything", least=0)
