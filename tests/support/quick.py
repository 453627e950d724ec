"""Many short trainings in one process: what stands already is not looked through at the end of each of them."""

import functools
import gc
import importlib.metadata
import sys

_modules = 0


def quicken() -> None:
    """Leave what there is out of garbage collections, and read what is known of an installed package once.

    A trainer collects garbage as it ends, and asks tens of times which packages there are: of a training of ten steps,
    in a process that has imported the trainers, that is half of the time. Called again, it does so again where much has
    been imported since, as by the first training.
    """
    global _modules
    if len(sys.modules) < _modules + 30:
        return
    _modules = len(sys.modules)
    gc.freeze()
    for name in ("metadata", "version"):
        function = getattr(importlib.metadata, name)
        if not hasattr(function, "cache_info"):
            setattr(importlib.metadata, name, functools.cache(function))
