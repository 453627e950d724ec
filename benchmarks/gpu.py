"""The three benchmarks of Qwen2.5's shapes on a GPU, one after the other, as a section of docs/results/gpu.md.

MINIONEREC_DATA=/path/to/data python benchmarks/gpu.py --out section.md
python benchmarks/gpu.py --device cpu --small --only grpo_step --out section.md   # to try it, without a GPU or data

Each compares results with the stock way before it times anything, and a benchmark whose results differ, that fails or
that does not end within its limit has no figures, but its last line of error. The limits add up to less than eight
minutes, and the section is written to the file before them and after each. Status 1 where one failed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from minionerec.core.artefacts import write_text_atomic
from minionerec.metrics.tables import markdown_table

TITLE = "## Qwen2.5's shapes, by one script"
HEADERS = (
    "",
    "counted",
    "a second, stock",
    "ours",
    "ratio",
    "of products, stock, ours",
    "peak GiB, stock, ours",
)
SHAPE = "--layers 24 --width 896 --heads 14 --kv-heads 2 --inner 4864 --vocabulary 151936"
LARGE = "--layers 28 --width 1536 --heads 12 --kv-heads 2 --inner 8960 --vocabulary 151936"
SMALL = "--layers 1 --width 64 --heads 2 --kv-heads 1 --inner 96 --vocabulary 4000"
# Name of a line, its benchmark, the seconds that it may take, and its words beside the shape.
Part = tuple[str, str, float, str]
WORK: tuple[Part, ...] = (
    ("SFT, 0.5B", "sft_step", 150, f"{SHAPE} --dtype mixed --rows 128 --steps 8 --users 1200"),
    ("GRPO, 0.5B", "grpo_step", 140, f"{SHAPE} --dtype bfloat16 --prompts 64 --at-once 16 --items 3670 --repeats 2"),
    *(
        (
            f"beam search, 0.5B, {prompts} prompts",
            "beam_search",
            40,
            f"{SHAPE} --dtype bfloat16 --items 3670 --batch {prompts} --beams 50 --check 4 --ways ours trie",
        )
        for prompts in (32, 256)
    ),
    ("SFT, 1.5B", "sft_step", 100, f"{LARGE} --dtype mixed --rows 64 --steps 8 --users 600"),
)
TRIED: tuple[Part, ...] = (
    ("SFT, small", "sft_step", 300, f"{SMALL} --rows 4 --steps 1 --users 4 --repeats 1"),
    (
        "beam search, small",
        "beam_search",
        300,
        f"{SMALL} --prompt-length 10 --items 200 --beams 5 --ways ours trie --repeats 1",
    ),
    ("GRPO, small", "grpo_step", 300, f"{SMALL} --prompt-length 9 --prompts 4 --items 200 --repeats 1"),
)


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", required=True, help="file to write the section into")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"], help="where to compute")
    parser.add_argument("--small", action="store_true", help="small shapes in float32, to try the script")
    parser.add_argument("--only", nargs="+", default=[], help="benchmarks that are run, by file; all if not given")
    return parser.parse_args()


def run(words: Sequence[str], seconds: float) -> tuple[int | None, str, str]:
    """Status of a program, None where it was ended after so many seconds, and what it printed and reported."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    ended = False
    try:
        printed, reported = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        ended = True
    finally:
        with suppress(ProcessLookupError):  # with those that it started
            os.killpg(process.pid, signal.SIGKILL)
    if ended:
        printed, reported = process.communicate()
    return None if ended else process.returncode, printed, reported


def figures_of(benchmark: str, words: str, seconds: float) -> tuple[dict[str, Any] | None, str]:
    """What a benchmark measured, None where its results differ or it failed; and why."""
    status, printed, reported = run(
        [sys.executable, str(Path(__file__).with_name(f"{benchmark}.py")), *words.split()], seconds
    )
    if status is None:
        return None, f"it did not end within {seconds:g} seconds"
    lines, errors = printed.strip().splitlines(), reported.strip().splitlines()
    if status == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found, ""
    if lines and lines[-1].startswith("{"):
        return None, "the results differ from the stock way's"
    return None, errors[-1] if errors else f"ended with status {status}"


def lines_of(name: str, benchmark: str, found: dict[str, Any]) -> list[list[str]]:
    """Lines of the table: what is counted a second, stock and ours, their ratio, share of products, memory in GiB."""
    if benchmark == "sft_step":
        return [
            _line(
                f"{name}, {kind}",
                "tokens",
                found[f"tokens_per_second_{kind}"],
                found[f"ratio_{kind}"],
                found[f"used_{kind}"],
                found[f"peak_gib_{kind}"],
            )
            for kind in found["asked"]["kinds"]
        ]
    peaks = {way: mib / 1024 for way, mib in found["peak_mib"].items()}
    if benchmark == "grpo_step":
        return [_line(name, "rollouts", found["rollouts_per_second"], found["ratio"], found["used"], peaks)]
    rates = found["rows_per_second"]
    return [_line(name, "rows", _named(rates), found["ratio"], {}, _named(peaks))]


def _named(values: dict[str, float]) -> dict[str, float]:
    """Values of the stock way with our trie, and of ours."""
    return {"stock": values["stock, trie"], "ours": values["ours"]}


def _line(
    name: str, unit: str, rates: dict[str, float], ratio: float, used: dict[str, Any], peaks: dict[str, Any]
) -> list[str]:
    share = "" if used.get("ours") is None else f"{used['stock']:.1%}, {used['ours']:.1%}"
    memory = "" if peaks.get("ours") is None else f"{peaks['stock']:.2f}, {peaks['ours']:.2f}"
    return [name, unit, f"{rates['stock']:,.0f}", f"{rates['ours']:,.0f}", f"{ratio:.2f}", share, memory]


def sections(device: str, work: Sequence[Part]) -> Iterator[tuple[str, bool]]:
    """The section before the benchmarks and after each of them, and whether every one has figures by then."""
    rows: list[list[str]] = []
    missing = {name: "it was not run" for name, *_ in work}
    machine: dict[str, Any] = {}
    given = [f"{words} --device {device} --json" for *_, words in work]

    def section() -> tuple[str, bool]:
        where = f"{machine['card']}, {machine['product_tflops']} TFLOP/s of products" if machine else "a CPU"
        text = [
            TITLE,
            "",
            f"Measured on {where}; results were compared with the stock way's first; medians of rounds in turn.",
            "",
            markdown_table(HEADERS, rows, text_columns=2),
            "",
            *(f"- {name}: {why}." for name, why in missing.items()),
            *([""] if missing else []),
            "```bash",
            *(f"python benchmarks/{one[1]}.py {words}" for one, words in zip(work, given, strict=True)),
            "```",
        ]
        return "\n".join(text), not missing

    yield section()
    for (name, benchmark, seconds, _), words in zip(work, given, strict=True):
        found, missing[name] = figures_of(benchmark, words, seconds)
        print(f"{name}: {missing[name] or json.dumps(found)}", file=sys.stderr)
        if found is not None:
            del missing[name]
            machine |= {key: found[key] for key in ("card", "product_tflops") if key in found}
            rows += lines_of(name, benchmark, found)
        yield section()


def main() -> int:
    """Run the benchmarks and write the section."""
    args = options()
    work = tuple(one for one in (TRIED if args.small else WORK) if not args.only or one[1] in args.only)
    if not work:
        sys.exit(f"--only: the benchmarks are {', '.join(sorted({one[1] for one in WORK}))}.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what is running ends with it
    status = 1
    for text, whole in sections(args.device, work):
        write_text_atomic(args.out, f"{text}\n")
        status = 0 if whole else 1
    return status


if __name__ == "__main__":
    sys.exit(main())
