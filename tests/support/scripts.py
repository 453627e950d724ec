"""Scripts that are no package, as modules."""

import importlib.util
import sys

from support.paths import ROOT


def load_script(path):
    """A file of the project as a module; files beside it are found by their names, as when it is run."""
    file = ROOT / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    spec.loader.exec_module(module)
    return module


def benchmark(name):
    return load_script(f"benchmarks/{name}.py")


def study(name):
    return load_script(f"studies/{name}.py")
