"""Sequential recommenders: models over item ids, their registry, and how a saved one ranks."""

MODEL_KIND = "sequential_model"
"""Kind of the artefact of a trained model; here, so that it can be named without torch."""
