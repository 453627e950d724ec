"""Sequential recommenders: models over item ids, their registry, and how a saved one ranks."""

MODEL_KIND = "sequential_model"
"""Kind of the artefact of a trained model; defined here, so that it can be imported without torch."""
