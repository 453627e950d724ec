"""The full-size recipe as a whole: four processes, ZeRO-2, a model folder in the form of Qwen2.5's, a kill.

Hub weights and Qwen's tokenizer are not at hand, and CPUs are too slow for half a billion weights. So the model is a
Qwen2 of two narrow layers with random weights; its folder, its vocabulary of 151,936 rows, its tied head and its
tokenizer's kind are those of Qwen2.5-0.5B. The rest is the shipped recipe on 500 examples of the published files.
"""

import ast
import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import yaml
from support.pages import page_text
from support.paths import ROOT
from support.tokenizers import save_qwen_tokenizer

from minionerec.core.artefacts import read_json, read_manifest
from minionerec.core.records import Batch, read_run_record

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow, pytest.mark.timeout(3600)]

COMMAND = [sys.executable, "-m", "minionerec"]
CATEGORY = "Industrial_and_Scientific"
EXAMPLES = {"train": 400, "valid": 50, "test": 50}
ITEMS = 100
VOCABULARY = 151_936
PROCESSES = 4

# What the test changes in the recipe's files, and nothing else: the launch and the model, fewer steps, and float32, for
# DeepSpeed computes in bfloat16 on GPUs alone.
FLOAT = {"dtype": "float32", "mixed_bf16": False}
CHANGES = {
    "sft": {**FLOAT, "model": "model", "batch_size": 256, "epochs": 2, "warmup": 2},
    "grpo": {**FLOAT, "max_steps": 6},
}


def copy_part(source: Path, folder: Path) -> None:
    """Write the examples among the most frequent items, in the published layout."""
    rows = {}
    for split in EXAMPLES:
        (file,) = (source / split).glob(f"{CATEGORY}*.csv")
        with file.open(encoding="utf-8", newline="") as stream:
            rows[split] = list(csv.DictReader(stream))
    counts = Counter(row["item_id"] for row in rows["train"])
    kept = {item for item, _ in counts.most_common(ITEMS)}
    numbers = {}
    for split, most in EXAMPLES.items():
        inside = [
            number
            for number, row in enumerate(rows[split])
            if {row["item_id"], *map(str, ast.literal_eval(row["history_item_id"]))} <= kept
        ][:most]
        assert len(inside) == most
        numbers[split] = {old: new for new, old in enumerate(inside)}
        (folder / split).mkdir(parents=True)
        with (folder / split / f"{CATEGORY}_part.csv").open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, rows[split][0])
            writer.writeheader()
            writer.writerows(rows[split][number] for number in inside)
    (info,) = (source / "info").glob(f"{CATEGORY}*.txt")
    lines = [line for line in info.read_text().splitlines() if line.split("\t")[2] in kept]
    (folder / "info").mkdir()
    (folder / "info" / f"{CATEGORY}_part.txt").write_text("\n".join(lines) + "\n")
    (folder / "index").mkdir()
    for kind in ("item", "index"):
        name = f"{CATEGORY}.{kind}.json"
        content = json.loads((source / "index" / name).read_text())
        (folder / "index" / name).write_text(json.dumps({item: content[item] for item in content if item in kept}))
    with (source / "times" / f"{CATEGORY}.times.csv").open(newline="") as stream:
        times = [row for row in csv.DictReader(stream) if int(row["row"]) in numbers[row["split"]]]
    (folder / "times").mkdir()
    with (folder / "times" / f"{CATEGORY}.times.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, times[0])
        writer.writeheader()
        writer.writerows({**row, "row": numbers[row["split"]][int(row["row"])]} for row in times)


def save_model(folder: Path, titles: list[str]) -> None:
    """Write a Qwen2 of two layers with the vocabulary and the tied head of Qwen2.5-0.5B, as the hub has its files."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    save_qwen_tokenizer(folder, titles)


@pytest.fixture(scope="module")
def folder(data_root, tmp_path_factory):
    """A folder with a part of the data, the model, the launch file of four processes, and a copy of the recipe."""
    folder = tmp_path_factory.mktemp("full_size")
    copy_part(data_root / "Amazon", folder / "data" / "Amazon")
    items = read_json(folder / "data" / "Amazon" / "index" / f"{CATEGORY}.item.json")
    save_model(folder / "model", [item["title"] for item in items.values()])
    launch = yaml.safe_load((ROOT / "ds_configs" / "zero2_cpu.yaml").read_text())
    launch["deepspeed_config"]["deepspeed_config_file"] = str(ROOT / "ds_configs" / "zero2_cpu.json")
    (folder / "zero2_cpu.yaml").write_text(yaml.safe_dump({**launch, "num_processes": PROCESSES}))
    assert command(folder, "recipes", "copy", "industrial/qwen-0.5b", "here.yaml").returncode == 0
    file = folder / "here.yaml"
    recipe = yaml.safe_load(file.read_text()) | {"launch": "zero2_cpu.yaml"}
    for name, changed in CHANGES.items():
        recipe["steps"][name] |= changed
    file.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return folder


def words_of(folder, *words):
    return {
        "args": [*COMMAND, *words],
        "cwd": folder,
        "env": {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "MINIONEREC_DATA": str(folder / "data"),
            "OMP_NUM_THREADS": "1",
        },
    }


def command(folder, *words):
    """A command of ours in the folder."""
    return subprocess.run(**words_of(folder, *words), capture_output=True, text=True)


def kill_in_training(folder):
    """Start the recipe, and let the machine stop as SFT has its second checkpoint: every process ends at once."""
    work = folder / "runs/industrial_qwen_0.5b/sft.partial"
    with (folder / "killed.log").open("w") as log:
        process = subprocess.Popen(
            **words_of(folder, "run", "here.yaml"), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        while len(list(work.glob("checkpoint-*/trainer_state.json"))) < 2:  # so the first of them is whole
            assert process.poll() is None, (folder / "killed.log").read_text()
            time.sleep(0.05)
        started = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for each in started:
            each.send_signal(signal.SIGKILL)
        process.wait()
        psutil.wait_procs(started[1:], timeout=60)
    return started


@pytest.fixture(scope="module")
def run(folder):
    """The folder after a kill in SFT and a second run of the recipe, and what that run said."""
    killed = kill_in_training(folder)
    assert len(killed) > PROCESSES
    assert not (folder / "runs/industrial_qwen_0.5b/sft").exists()
    done = command(folder, "run", "here.yaml")
    assert done.returncode == 0, done.stderr[-5000:]
    return folder / "runs/industrial_qwen_0.5b", done


def test_sft_was_resumed_on_four_processes(run):
    folder, done = run
    assert "Resuming from" in done.stderr
    record = read_run_record(folder / "sft")
    assert record.parts == 2 and record.resumed_from >= 2
    assert record.processes == PROCESSES and record.batch == Batch(64, 1, 256, tokens=record.batch.tokens)
    assert 256 <= record.batch.tokens <= 4096
    states = list((folder / "sft.finished").glob("checkpoint-8/global_step8/*optim_states.pt"))
    assert len(states) == PROCESSES  # each process has its share of the optimiser's state
    losses = [row["eval_loss"] for row in read_json(folder / "sft/training_log.json") if "eval_loss" in row]
    assert len(losses) == 4 and losses[-1] < losses[0]


def test_the_checkpoint_is_read_by_stock_transformers_and_has_the_vocabulary_of_qwen(run):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _ = run
    for name in ("sft", "grpo"):
        model = AutoModelForCausalLM.from_pretrained(folder / name)
        assert type(model).__name__ == "Qwen2ForCausalLM"
        assert model.config.vocab_size == VOCABULARY and model.config.tie_word_embeddings
        assert model.lm_head.weight is model.model.embed_tokens.weight
    tokenizer = AutoTokenizer.from_pretrained(folder / "sft")
    sid = "".join(next(iter(read_json(folder / "sft/index.json").values())))
    assert len(tokenizer.encode(sid)) == 3 and min(tokenizer.encode(sid)) >= 151_665


def test_grpo_moved_the_weights_by_rewards(run):
    from safetensors.torch import load_file

    folder, _ = run
    assert read_run_record(folder / "grpo").processes == PROCESSES
    log = read_json(folder / "grpo/training_log.json")
    steps = [row for row in log if "reward" in row]
    assert len(steps) == 6 and all(row["reward"] > 0 and row["zero_variance"] < 1 for row in steps)
    before, after = (load_file(folder / name / "model.safetensors") for name in ("sft", "grpo.finished/checkpoint-6"))
    assert any((before[name] != after[name]).any() for name in before)


def test_it_ends_in_lists_and_a_report(run):
    folder, done = run
    for name in ("eval_sft", "eval_grpo"):
        assert read_manifest(folder / name)["counts"]["rows"] == EXAMPLES["test"]
        found = read_json(folder / name / "metrics.json")["recommenders"]["beam search"]
        assert found["rows"] == EXAMPLES["test"] and 0 < found["sid"]["HR@50"][0] <= 1
    page = page_text(folder / "report/report.html")
    assert "| SFT |" in page and "| GRPO |" in page
    assert "| time: later | 13 26 % |" in page  # by the times of the part
    assert "Report: runs/industrial_qwen_0.5b/report/report.html" in done.stdout
