"""The sequential recommenders by name, and one way to build them."""

import inspect
from collections.abc import Mapping
from typing import Any

from minionerec.core.errors import ConfigError
from minionerec.core.values import convert
from minionerec.models.sequential.bert4rec import BERT4Rec
from minionerec.models.sequential.caser import Caser
from minionerec.models.sequential.causal import Causal
from minionerec.models.sequential.fearec import FEARec
from minionerec.models.sequential.gru4rec import GRU4Rec
from minionerec.models.sequential.hstu import HSTU
from minionerec.models.sequential.lightsans import LightSANs
from minionerec.models.sequential.model import SequentialModel
from minionerec.models.sequential.pswrec_unrotated import PSWRecV13Unrotated
from minionerec.models.sequential.pswrec_v5 import PSWRecV5
from minionerec.models.sequential.pswrec_v12 import PSWRecV12
from minionerec.models.sequential.pswrec_v13 import PSWRecV13, PSWRecV14
from minionerec.models.sequential.rpg import RPG
from minionerec.models.sequential.sasrec import SASRec
from minionerec.models.sequential.trm4rec import TRM4Rec
from minionerec.models.sequential.wearec import WEARec

MODELS: dict[str, type[SequentialModel]] = {
    "bert4rec": BERT4Rec,
    "caser": Caser,
    "causal": Causal,
    "fearec": FEARec,
    "gru4rec": GRU4Rec,
    "hstu": HSTU,
    "lightsans": LightSANs,
    "pswrec_v12": PSWRecV12,
    "pswrec_v13": PSWRecV13,
    "pswrec_v13_unrotated": PSWRecV13Unrotated,
    "pswrec_v14": PSWRecV14,
    "pswrec_v5": PSWRecV5,
    "rpg": RPG,
    "sasrec": SASRec,
    "trm4rec": TRM4Rec,
    "wearec": WEARec,
}
_FIXED = ("self", "num_items", "max_len")
_SET_BY_DATA = ("padding", "num_users", "text_width", "num_transitions", "num_digits", "num_codes")


def hyper_parameters(name: str) -> dict[str, Any]:
    """Hyper-parameters of a model and their defaults; `inspect.Parameter.empty` where there is none.

    Raises:
        ConfigError: If there is no model of that name.
    """
    if name not in MODELS:
        raise ConfigError(f"unknown model {name!r}; known models: {', '.join(sorted(MODELS))}.")
    signature = inspect.signature(MODELS[name].__init__)
    return {key: value.default for key, value in signature.parameters.items() if key not in _FIXED}


def check_hyper(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters that a user gives a model, each of its default's type.

    Args:
        name: Key of `MODELS`.
        given: Name to value, as YAML or the command line reads them.

    Raises:
        ConfigError: If a name is unknown, or set by the data, or a value does not fit.

    Example:
        >>> check_hyper("sasrec", {"hidden_size": 32, "hidden_dropout": "1e-1"})
        {'hidden_size': 32, 'hidden_dropout': 0.1}
    """
    known = {key: value for key, value in hyper_parameters(name).items() if key not in _SET_BY_DATA}
    found: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            raise ConfigError(f"hyper: model {name} has no hyper-parameter {key!r}; known: {', '.join(known)}.")
        try:
            found[key] = convert(value, type(known[key]), f"hyper: {key}")
        except ConfigError as error:
            raise ConfigError(f"{str(error).removesuffix('.')}, such as {known[key]!r}.") from None
    return found


def build_model(name: str, *, num_items: int, max_len: int = 50, **hyper: Any) -> SequentialModel:
    """Build a sequential recommender with freshly drawn weights.

    Args:
        name: Key of `MODELS`.
        num_items: Number of items; they are numbered 1 to `num_items`, 0 is padding.
        max_len: Longest history that the model reads.
        **hyper: Hyper-parameters of the model, as its class documents them.

    Raises:
        ConfigError: If the name or a hyper-parameter is unknown, one without a default is missing, or a value does not
            serve.

    Example:
        >>> model = build_model("sasrec", num_items=3646, max_len=50, hidden_size=64)
        >>> sum(parameter.numel() for parameter in model.parameters())
        336704
    """
    known = hyper_parameters(name)
    for key in hyper:
        if key not in known:
            raise ConfigError(f"model {name} has no hyper-parameter {key!r}; known: {', '.join(known)}.")
    for key, default in known.items():
        if default is inspect.Parameter.empty and key not in hyper:
            raise ConfigError(f"model {name} needs the hyper-parameter {key!r}; give it a value.")
    for key, value in (("num_items", num_items), ("max_len", max_len)):
        if value < 1:
            raise ConfigError(f"{key} is {value}; it must be at least 1.")
    return MODELS[name](num_items, max_len, **hyper)
