"""The stages of this part, named by entry points of the group `minionerec.stages`; light to import."""

from minionerec.pipeline.stages import StageSpec

TRAIN_TIGER = StageSpec(
    "train-tiger",
    "Train an encoder-decoder over semantic IDs (TIGER).",
    "minionerec.contrib.generative_baselines.config:TigerTrainConfig",
    "minionerec.contrib.generative_baselines.train_tiger:run_tiger",
    launched=True,
    seeds="each",
)
DPO = StageSpec(
    "dpo",
    "Train a checkpoint to prefer targets to other semantic IDs (softmax preference optimisation, S-DPO).",
    "minionerec.contrib.generative_baselines.config:DpoConfig",
    "minionerec.contrib.generative_baselines.dpo:run_dpo",
    launched=True,
    seeds="each",
    title="S-DPO",
)
GROUND_TITLES = StageSpec(
    "ground-titles",
    "Generate the next title as free text, rank the items by distance to it, and measure.",
    "minionerec.contrib.generative_baselines.config:GroundingConfig",
    "minionerec.contrib.generative_baselines.ground_titles:run_grounding",
)
