"""The stages of this part, named by entry points of the group `minionerec.stages`; light to import."""

from minionerec.pipeline.stages import StageSpec

TRAIN_PREFERENCE = StageSpec(
    "train-preference",
    "Train models of pairwise preferences; compare them with baselines and, where known, the ceiling.",
    "minionerec.contrib.preference.config:PreferenceConfig",
    "minionerec.contrib.preference.train:run_preference",
    seeds="each",
)
PREFERENCE_REPORT = StageSpec(
    "preference-report",
    "Compare runs of train-preference: models, users and differences over seeds.",
    "minionerec.contrib.preference.config:PreferenceReportConfig",
    "minionerec.contrib.preference.report:run_preference_report",
    seeds="all",
)
