"""A small shop with an SFT and RL from it, as their stages would have left them, made by hand."""

import json

import numpy as np
import pandas as pd

from minionerec.core.artefacts import write_artefact
from minionerec.core.records import record_path
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples
from minionerec.metrics.predictions import Predictions
from minionerec.sid.table import SidTable

N = 40
SFT = {"teacher_share": 0.7, "model": "org/Qwen2.5-1.5B-Instruct", "batch_size": 1024, "device_batch_size": 16}
SFT |= {"learning_rate": 3e-4, "schedule": "cosine", "warmup": 20, "epochs": 10.0, "patience": 3}
SFT |= {"max_prompt_length": 512, "tasks": {"next_sid": 1.0}, "select_by": "loss"}
GRPO = {"prompts_per_step": 64, "prompts_per_device": 4, "generations": 16, "beta": 1e-3, "rollouts": "sampling"}
GRPO |= {"rewards": {"ranking": 1.0}, "sync_steps": 512, "loss": "grpo"}
GRPO |= {"learning_rate": 1e-5, "schedule": "cosine", "warmup": 0.03, "epochs": 2.0, "patience": 0}
MACHINE = {"processor": "Some CPU", "cores": 32, "threads": 8, "memory_bytes": 2**36}
MACHINE |= {"gpus": [{"name": "A40", "memory_bytes": 2**35}] * 4}
RECORD = {"command": ["minionerec", "sft"], "commit": "abc123", "machine": MACHINE, "processes": 4}
RECORD |= {"started": "2030-01-31T12:00:00Z", "ended": "2030-01-31T12:50:00Z", "resumed_from": None}
RECORD |= {"seconds": {"all": 3000.0, "train": 2900.0, "validate": 90.0}, "peak_memory_bytes": 2**31}


def make_rows(rng, count):
    """Rows with made-up histories and targets."""
    histories = [rng.integers(0, N, rng.integers(1, 6)).astype(np.int32) for _ in range(count)]
    targets = rng.integers(0, N, count).astype(np.int32)
    return SplitExamples.of([f"u{n}" for n in range(count)], histories, targets)


def make_predictions(rng, rows, table, share):
    """Lists of twenty items in which a share of the targets stands among the first eight."""
    items = []
    for target in rows.targets:
        row = rng.permutation(N)[:20].tolist()
        if rng.random() < share:
            row.insert(int(rng.integers(0, 8)), int(target))
        items.append(list(dict.fromkeys(row))[:20])
    sids = [[table.sids[item] for item in row] for row in items]
    scores = [[-float(position) for position in range(len(row))] for row in items]
    targets = rows.targets
    return Predictions(rows.users.tolist(), targets, [table.sids[target] for target in targets], items, sids, scores)


def checkpoint(folder, settings, counts, inputs, log, stage="sft"):
    """What a training leaves, but for its weights."""
    about = {"stage": stage, "config": settings, "inputs": inputs, "counts": counts, "seed": 42}
    with write_artefact(folder, "checkpoint", **about) as fresh:
        (fresh / "training_log.json").write_text(json.dumps(log))


def write_trained(folder):
    """Corpus, SIDs that pairs of items share, checkpoints of SFT (with a run record) and RL (without), and predictions.

    Returns:
        The entry's settings.
    """
    rng = np.random.default_rng(0)
    ids = [f"i{n}" for n in range(N)]
    items = pd.DataFrame({"item_id": ids, "title": ids, "description": [""] * N})
    corpus = Corpus(items, make_rows(rng, 100), make_rows(rng, 20), make_rows(rng, 120), "global time 8:1:1", 10)
    corpus.save(folder / "corpus", config={}, inputs={})
    table = SidTable(np.stack([np.arange(N) // 8, np.arange(N) % 4, np.arange(N) // 2 % 2], axis=1), ids)
    with write_artefact(folder / "sids", "sids", config={"method": "published"}) as path:
        table.save_index(path / "index.json")
    steps = [(39 * n, n / 2, 2.0 - n / 20, 1.6 + abs(n - 10) / 50) for n in range(1, 14)]
    log = [{"step": step, "epoch": epoch, "loss": loss, "eval_loss": found} for step, epoch, loss, found in steps]
    checkpoint(folder / "sft", SFT, {"parameters": 1_500_000_000, "steps": 507, "best_step": 390, "best": {}}, {}, log)
    log = [{"step": 0, "epoch": 0, "eval_ndcg@10": 0.1}]
    log.append({"step": 1650, "epoch": 2.0, "loss": 0.01, "eval_ndcg@10": 0.11})
    counts = {"best_step": 1650, "best": {"eval_ndcg@10": 0.11}, "steps": 1650}
    checkpoint(folder / "grpo", GRPO, counts, {"checkpoint": folder / "sft"}, log, "grpo")
    for name, share in (("sft", 0.4), ("grpo", 0.6)):
        about = {"config": {"beams": 20, "search": "beam", "seen": "keep"}, "counts": {"split": "test"}}
        predictions = make_predictions(rng, corpus.test, table, share)
        predictions.save(folder / f"eval_{name}", inputs={"checkpoint": folder / name}, **about)
    for name in ("sft", "eval_sft"):
        record_path(folder / name).write_text(json.dumps(RECORD))
    stages = {"SFT": str(folder / "eval_sft"), "RL": str(folder / "eval_grpo")}
    inputs = {"corpus": str(folder / "corpus"), "sids": str(folder / "sids")}
    return {**inputs, "stages": stages, "reference": "industrial"}
