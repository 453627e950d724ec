"""Sequential recommenders: models over item ids, their protocols, one trainer and one evaluator."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minionerec.sequential.models import build_model

__all__ = ["build_model"]


def __getattr__(name: str) -> Any:
    # Late, because the configurations of this package must not wait for torch.
    if name == "build_model":
        from minionerec.sequential.models import build_model

        return build_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
