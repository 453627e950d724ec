"""The suite under three instruction sets: `make test-processors ARGS="tests/unit --only AVX2"`; all of it without ARGS.

Matrix products are added up in another order under each instruction set and with each number of threads, so that sums
are rounded in other ways. A run that fails leaves the others to run. What is no argument of this command is one of
pytest; linters are left to `make lint`.
"""

import argparse
import os
import subprocess
import sys
import time
from typing import NamedTuple

from support.paths import ROOT


class Setting(NamedTuple):
    """How a run computes: processes of tests beside one another, threads of each, and variables of the libraries."""

    name: str
    workers: int
    threads: int
    variables: dict[str, str]


# PyTorch, oneDNN and MKL; then OpenBLAS (NumPy, SciPy), Faiss and NumPy itself.
LIBRARIES = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
LIBRARIES += ("OPENBLAS_CORETYPE", "FAISS_OPT_LEVEL", "NPY_DISABLE_CPU_FEATURES")
AVX2 = ("avx2", "AVX2", "AVX2", "Haswell", "avx2", "X86_V4 AVX512_ICL AVX512_SPR")
SSE4 = ("default", "SSE41", "SSE4_2", "Nehalem", "generic", "X86_V3 X86_V4 AVX512_ICL AVX512_SPR")
SETTINGS = (
    Setting("the machine's own", 3, 1, {}),
    Setting("AVX2", 2, 2, dict(zip(LIBRARIES, AVX2, strict=True))),
    Setting("SSE4", 1, 3, dict(zip(LIBRARIES, SSE4, strict=True))),
)


def command_of(setting: Setting, words: list[str]) -> tuple[list[str], dict[str, str]]:
    """The words and the environment of a run of pytest, without the caller's own variables of this kind."""
    beside = ["-n", str(setting.workers), "--dist", "loadfile", "--no-loadscope-reorder"] if setting.workers > 1 else []
    environment = {name: value for name, value in os.environ.items() if name not in LIBRARIES}
    environment |= {"OMP_NUM_THREADS": str(setting.threads), **setting.variables}
    environment |= {"OMP_WAIT_POLICY": "PASSIVE"}  # more threads than processors: none takes time while it waits
    patience = ["--timeout", "3000"]  # a test takes longer with few instructions
    return [sys.executable, "-m", "pytest", *patience, *beside, *words], environment


def main() -> int:
    """Run the suite under each setting, and print a table of the results; the status is 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[setting.name for setting in SETTINGS], help="these alone")
    args, words = parser.parse_known_args()
    lines = [f"{'instructions':<20}{'workers':>8}{'threads':>8}{'seconds':>9}  result"]
    failed = False
    for setting in SETTINGS:
        if args.only and setting.name not in args.only:
            continue
        print(f"\nInstructions: {setting.name}. Workers: {setting.workers}. Threads: {setting.threads}.", flush=True)
        command, environment = command_of(setting, words)
        began = time.monotonic()
        status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        failed |= status != 0
        result = "passed" if status == 0 else f"failed: pytest ended with status {status}"
        numbers = f"{setting.workers:>8}{setting.threads:>8}{time.monotonic() - began:>9.0f}"
        lines.append(f"{setting.name:<20}{numbers}  {result}")
    print("", *lines, sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
