"""Settings of the preference stages; light to import, so that `--help` answers at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from minionerec.core.artefacts import MANIFEST
from minionerec.pipeline.settings import StageConfig, setting

SPLITS = ("pair", "row", "item", "user", "time")
BASELINES = ("majority", "agreeing_user", "bt_global", "bt_user")
MODELS = (*BASELINES, "bt_lowrank", "bt_hier", "mlp_concat", "mlp_siamese")
POPULATIONS = ("halo", "no_halo", "one_taste", "permuted")
ACTIVATIONS = ("leaky_relu", "relu", "gelu", "silu")
ANSWERS = ("a", "b", "tie", "")
COMPAT = "blink-2025-09"


@dataclass
class PreferenceConfig(StageConfig):
    """Settings of `train-preference`: models of one data set, one split and one seed."""

    kind: ClassVar[str] = "preference"

    output: str = setting("runs/preference", "directory to write", required=True, affects_result=False)
    comparisons: str = setting(
        "",
        "csv, parquet or jsonl with comparison_id, user_id, item_a, item_b and one column per target; "
        "empty: synthetic data",
        input_kind="any",
    )
    features: str = setting("", "npz (arrays item_id, features) or parquet (columns item_id, vector)", input_kind="any")
    targets: list[str] = setting(
        ["attractive", "smart", "trustworthy"], "columns of the answers, one for each question", required=True
    )
    label_map: dict[str, str] = setting(
        {}, "meaning of each raw code, as CODE=a, CODE=b or CODE=tie; required for numeric codes"
    )
    population: str = setting(
        "halo",
        "synthetic data: halo (a user's targets on a pair share noise), no_halo, one_taste (all users alike), permuted "
        "(answers shuffled)",
        known=POPULATIONS,
    )
    items: int = setting(4602, "synthetic data: items, and as many pairs", least=20)
    width: int = setting(512, "synthetic data: dimensions of the feature vectors", least=1)
    split: str = setting(
        "pair",
        "unit that stays in one fold: pair, item, user, time, or row (leaks; for comparison only)",
        known=SPLITS,
    )
    models: list[str] = setting(["bt_hier"], "models to fit; the baselines always run", known=MODELS)
    seed: int = setting(42, "seed of the synthetic data, the split, the weights and the bootstrap", least=0)
    shots: list[int] = setting([0, 5, 20, 100], "user split: comparisons of a new user before the test", least=0)
    compat: str = setting(
        "",
        f"'{COMPAT}': train mlp_concat as the published report does (raw features, N(0,1) user vectors, "
        "one full batch per target, targets weighted equally)",
        known=("", COMPAT),
    )
    activation: str = setting("leaky_relu", "MLPs: activation", known=ACTIVATIONS)
    scale: str = setting("standardize", "MLPs: scaling of the features", known=("none", "standardize", "l2"))
    embedding_std: float = setting(0.1, "MLPs: standard deviation of the user vectors at the start", least=0)
    max_epochs: int = setting(200, "MLPs: most epochs", least=1)
    position_bias: bool = setting(True, "let a user prefer the first position; off: antisymmetric")
    resamples: int = setting(1000, "bootstrap resamples, drawn over pairs", least=1)

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        if bool(self.comparisons) != bool(self.features):
            yield (
                f"comparisons is {self.comparisons!r} and features {self.features!r}: give both, or neither for "
                "synthetic data."
            )
        if not self.comparisons and self.split == "time":
            yield "split is 'time', but synthetic data have no time. Choose another split, or give comparisons."
        for name in ("targets", "models"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                yield f"{name} is {getattr(self, name)}; expected none twice."
        for code, answer in self.label_map.items():
            if answer not in ANSWERS or not code:
                yield f"label_map has '{code}={answer}'; expected CODE=a, CODE=b or CODE=tie."
        if self.label_map and not {"a", "b"} <= set(self.label_map.values()):
            yield f"label_map is {self.label_map}; expected a code for 'a' and one for 'b'."


@dataclass
class PreferenceReportConfig(StageConfig):
    """Settings of `preference-report`."""

    kind: ClassVar[str] = "preference_report"

    output: str = setting("", "directory of the page", required=True, affects_result=False)
    runs: dict[str, str] = setting(
        {},
        "runs to compare, each as NAME=DIRECTORY: an output of train-preference, or a folder of them by seed (seed-N); "
        "differences are taken from the first",
        required=True,
        input_kind="preference",
    )

    def folders(self) -> dict[str, list[Path]]:
        """Name of each run to its outputs, one a seed."""
        folders = {}
        for name, path in self.runs.items():
            of_seeds = [file.parent for file in Path(path).glob(f"seed-*/{MANIFEST}")]
            folders[name] = sorted(of_seeds, key=lambda folder: (len(folder.name), folder.name)) or [Path(path)]
        return folders

    def inputs(self) -> dict[str, Path]:
        """Return the outputs of all runs, as "runs NAME" or, of several seeds, "runs NAME seed-N"."""
        return {
            f"runs {name}" if len(folders) == 1 else f"runs {name} {folder.name}": folder
            for name, folders in self.folders().items()
            for folder in folders
        }
