"""Every script of `benchmarks` runs, at sizes that measure nothing: it would otherwise fail when it is next needed."""

import json
import os
import subprocess
import sys
import time

import pytest
from support.commands import command
from support.paths import ROOT
from support.scripts import benchmark
from support.store import shared

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = "--width 64 --layers 1 --heads 2 --kv-heads 1"
COMMANDS = {
    "beam_search": f"{SMALL} --vocabulary 4000 --prompt-length 10 --items 200 --beams 5 --repeats 1",
    "catalogue_scale": "--sids 1000 --hidden 16 --rounds 1 --steps 1 --lists 4 --beams 10 --negatives 64 --batch 8",
    "engines": "--rows 5000 --rounds 1 --json",
    "export_trie": "--items 2000 --size 16 --beams 10",
    "gpu": "--device cpu --small --out {output}",
    "grpo_step": "--layers 2 --width 64 --inner 128 --vocabulary 2000 --prompt-length 9 --prompts 4 --repeats 1 --json",
    "grpo_step --zero-variance-share=0.5": "--layers 2 --width 64 --inner 96 --vocabulary 2000 --prompt-length 24 "
    "--prompts 4 --at-once 2 --generations 8 --repeats 1 --items 500 --json",
    "item_vectors": "--corpus {corpus} --dimensions 8 --codes 16 --encoders tfidf interactions tfidf+",
    "linear": "--repeats 1 --hidden-size 64 --layers 1 --json",
    "prepare_data": "--reviews 20000 --json",
    "recommend_batch": "--checkpoint {sft} --corpus {corpus} --k 10 --repeats 1 --output {output}",
    "residual_kmeans": "--items 2000 --width 16 --codes 8 --threads 1 --iterations 3 --json",
    "scale": "--sizes 2000 --folder {folder} --out {output}",
    "sequential_epoch": "--model sasrec --corpus {data}/sequential/LastFM.txt --steps 1 --rows 20 --repeats 1 --json",
    "context_step": "--sids 300 --hidden 16 --steps 2",
    "sft_step": f"{SMALL} --vocabulary 4000 --rows 4 --steps 1 --users 4 --repeats 1 --json",
    "sft_step --count=64": f"{SMALL} --vocabulary 4000 --rows 4 --steps 1 --users 4 --json",
    "sids_scale": "--items 2000 --width 16 --fit_rows 0 500 --codes 32 --folder {folder} --out {output}",
    "stream": "--interactions 3000 --steps 4 --warm-up 1 --width 32 --layers 1",
    "teacher_step": f"--corpus {{corpus}} --sids {{sids}} --teacher {{catalogue}} --steps 2 --batch 8 {SMALL} --json",
    "trie": "--items 5000 --size 32 --no-model --json",
    "serving latency": "--checkpoint {catalogue} --corpus {corpus} --rows 20 --seconds 1 --rounds 1 --connections 1 "
    "--output {output}",
    "serving plain": "--checkpoint {sft} --corpus {corpus} --rows 2 --seconds 1 --rounds 1 --beams 5 --output {output}",
    "serving overload": "--checkpoint {catalogue} --corpus {corpus} --rows 20 --seconds 2 --output {output}",
    "serving soak": "--checkpoint {catalogue} --corpus {corpus} --rows 20 --minutes 0.2 --output {output}",
    "serving garbage": "--checkpoint {catalogue} --corpus {corpus} --rows 20 --requests 50 --output {output}",
    "serving million": "--catalogues 500 1000 --rounds 1 --seconds 1 --output {output}",
    "serving random": "--corpus {corpus} --sids {sids} --checkpoint {folder} --output {output} --vocabulary 4000 "
    "--layers 1 --width 64 --heads 2 --kv-heads 1 --inner 96",
}
NO_SCRIPTS = {"card", "http_load", "serving_made", "serving_plain", "stock"}  # imported or started by the others
ON_DATA = {"gpu", "sequential_epoch", "sft_step"}

SHAPE = ("--hidden_size", "32", "--layers", "1", "--heads", "2", "--epochs", "1")
LANGUAGE = ("--kv_heads", "1", "--inner_size", "48", "--text_vocabulary", "300", "--all_positions", "true")


def make_models(folder):
    """A corpus, semantic IDs and two models of the demo shop, trained for one epoch."""
    for words in (
        ["prepare-data", "--config", "demo#data", "--output", "corpus"],
        ["build-sids", "--config", "demo#sids", "--corpus", "corpus", "--output", "sids"],
        ["train-catalogue", "--corpus", "corpus", "--sids", "sids", *SHAPE, "--output", "catalogue"],
        ["sft", "--corpus", "corpus", "--sids", "sids", *SHAPE, *LANGUAGE, "--output", "sft"],
    ):
        outcome = command(folder, *words)
        assert outcome.status == 0, outcome.err


def test_every_script_is_in_the_table():
    scripts = {file.stem for file in (ROOT / "benchmarks").glob("*.py")}
    assert scripts == {name.split()[0] for name in COMMANDS} | NO_SCRIPTS


@pytest.mark.parametrize("name", COMMANDS)
def test_a_benchmark_runs(name, tmp_path, tmp_path_factory, request):
    data = request.getfixturevalue("data_root") if name.split()[0] in ON_DATA else ""
    models = shared(tmp_path_factory, make_models)
    folders = {part: models / part for part in ("corpus", "sids", "catalogue", "sft")}
    folders |= {"folder": tmp_path / "folder", "output": tmp_path / "output.json", "data": data}
    script, *more = name.split()
    words = [*more, *COMMANDS[name].format(**folders).split()]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / f"{script}.py"), *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    if "--json" in words:
        figures = json.loads(done.stdout.splitlines()[-1])
        if script == "grpo_step":
            assert figures["equal"] is True and figures["gradient_difference"] < 1e-5
            assert {"ratio", "peak_memory_ratio"} <= figures.keys()


def test_the_section_of_a_gpu_replaces_the_one_before_it(tmp_path, monkeypatch):
    """A benchmark whose results differ, that fails or that takes too long has no figures there; the others have."""
    gpu = benchmark("gpu")
    assert sum(seconds for _, _, seconds, _ in gpu.WORK) < 480
    rates = {"stock": 50.0, "ours": 100.0}
    measured = {
        "rollouts_per_second": rates, "ratio": 2.0, "used": {"stock": 0.05, "ours": 0.25},
        "peak_mib": {"stock": 2048, "ours": 1024}, "card": "A card", "product_tflops": 700.0,
    }  # fmt: skip
    answers = [
        (None, "", "Warning: slow"),
        (1, json.dumps({"equal": False}), ""),
        (1, "", "Traceback\nValueError: no"),
        (0, json.dumps(measured), ""),
    ]
    monkeypatch.setattr(gpu, "run", lambda words, seconds: answers.pop())
    work = [("one", "grpo_step", 1, ""), *((name, "sft_step", 2.5, "") for name in ("two", "three", "four"))]
    before, first, *_, (text, whole) = gpu.sections("cuda", work)
    assert not whole and not answers
    for written in (first[0], text):
        assert "Measured on A card, 700.0 TFLOP/s of products" in written
        assert "| one | rollouts | 50 | 100 | 2.00 | 5.0%, 25.0% | 2.00, 1.00 |" in written
    reasons = ("ValueError: no", "the results differ from the stock way's", "it did not end within 2.5 seconds")
    names = ("two", "three", "four")
    assert "\n".join(f"- {name}: it was not run." for name in ("one", *names)) in before[0]
    assert "\n".join(f"- {name}: it was not run." for name in names) in first[0]
    assert "\n".join(f"- {name}: {why}." for name, why in zip(names, reasons, strict=True)) in text
    monkeypatch.setattr(gpu, "sections", lambda *_: iter([before, (text, whole)]))
    section = tmp_path / "section.md"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(section)])
    assert gpu.main() == 1
    assert section.read_text() == f"{text}\n"


def test_a_benchmark_that_takes_too_long_is_ended_with_what_it_started():
    waits = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    start = time.monotonic()
    assert benchmark("gpu").run([sys.executable, "-c", waits], 2)[0] is None
    assert time.monotonic() - start < 60  # the pipes are closed, so that nothing holds them any more
    assert benchmark("gpu").run([sys.executable, "-c", "print(1); exit(3)"], 60) == (3, "1\n", "")
