"""Generative recommendation with semantic IDs.

Items become short code sequences (semantic IDs), a language model learns to generate them, and constrained beam search
turns its output into a ranked list of real items. The functions named here are those of `minionerec.api`, imported when
they are first used; `docs/reference/stages.md` shows all of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minionerec.api import build_sids, evaluate, grpo, prepare_data, run_stage, sft, train_catalogue
    from minionerec.recommend.recommender import Recommender

__version__ = "0.2.0"
__all__ = ["Recommender", "build_sids", "evaluate", "grpo", "prepare_data", "run_stage", "sft", "train_catalogue"]


def __getattr__(name: str) -> Any:
    """A function of the Python interface, or `Recommender`."""
    if name not in __all__:
        raise AttributeError(f"module 'minionerec' has no attribute {name!r}")
    module = "minionerec.recommend.recommender" if name == "Recommender" else "minionerec.api"
    return getattr(import_module(module), name)
