"""A corpus of six items, two of which share their SID, and a checkpoint that was never trained."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from minionerec.core.artefacts import read_manifest, write_artefact
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples
from minionerec.data.source import item_table
from minionerec.metrics.predictions import Predictions
from minionerec.models.backbone.build import scratch_model, train_tokenizer
from minionerec.models.backbone.bundle import Bundle
from minionerec.models.backbone.vocabulary import add_code_tokens
from minionerec.models.decoding import shards
from minionerec.models.prompts.wording import load_wording
from minionerec.pipeline.config.evaluation import EvalConfig
from minionerec.recommend.rankers.load import load_ranker
from minionerec.recommend.rankers.protocol import Queries
from minionerec.sid.table import SidTable
from support.checkpoints import save_checkpoint
from support.paths import ROOT
from support.preloaded import python

CODES = np.array([[0, 0], [0, 1], [1, 0], [2, 2], [0, 1], [2, 1]])


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    items = item_table(list("uvwxyz"), title=[f"thing {position}" for position in range(6)])
    items["shelf"] = pd.Series(["1a", "1a", "2b", "2b", "1a", None], dtype="str")
    items["price"] = pd.Series(["1", "2", "3", "4", "5", None], dtype="str")

    def rows(n, seed):
        rng = np.random.default_rng(seed)
        users = [f"u{position}" for position in range(n)]
        histories = [rng.integers(0, 6, rng.integers(1, 5)) for _ in range(n)]
        return SplitExamples.of(users, histories, [4, 4, *rng.integers(0, 6, n - 2)])

    corpus = Corpus(items, rows(30, 0), rows(5, 1), rows(40, 2), "leave-last-out", 10)
    corpus.save(folder / "corpus", config={}, inputs={})
    table = SidTable(CODES, list("uvwxyz"))
    with write_artefact(folder / "sids", "sids", config={}) as sids_folder:
        table.save_index(sids_folder / "index.json")
    tokenizer = train_tokenizer(["thing 0 1 2 3 4 5"], 300)
    add_code_tokens(tokenizer, table)
    model = scratch_model(tokenizer, 0, hidden_size=32, layers=2, heads=2, kv_heads=1, inner_size=48)
    for parameter in model.parameters():
        parameter.data *= 4
    bundle = Bundle(model, tokenizer, table, load_wording("compact"), 64)
    save_checkpoint(bundle, folder / "checkpoint")
    return folder


def config(folder: Path, **changes) -> EvalConfig:
    """Settings of an evaluation in a folder, without baselines, whose constants take longer to find than lists."""
    paths = {"corpus": "corpus", "checkpoint": "checkpoint", "output": "eval"}
    settings = {name: str(folder / path) for name, path in paths.items()}
    return EvalConfig(**{**settings, "beams": 5, "ks": [1, 5], "resamples": 50, "baselines": False, **changes})


def copy_artefact(source: Path, target: Path, counts: dict | None = None, **texts: str) -> Path:
    """An artefact of the same kind with some counts and files written anew, as its stage would have done."""
    manifest = read_manifest(source)
    kept = {name: manifest[name] for name in ("config", "seed", "stage")}
    counts = {**manifest["counts"], **(counts or {})}
    with write_artefact(target, manifest["kind"], **kept, counts=counts) as folder:
        for name in manifest["files"]:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, folder / name)
        for name, text in texts.items():
            (folder / name).write_text(text)
    return target


class Interrupted(Exception):
    """What a process that was cut off says."""


def interrupted(monkeypatch, run, output, after):
    """Runs an evaluation that is cut off when some shards are written; gives what is left of it."""
    written, write = [], shards._write_shard

    def dying(*args):
        if len(written) == after:
            raise Interrupted
        written.append(args[0])
        write(*args)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(shards, "_write_shard", dying)
        run()
    assert not output.exists()
    return written


def launch(processes, folder, output, **environment):
    """An evaluation in processes of its own, of the settings in a folder's eval.yaml."""
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(processes)] if processes else []
    script = str(ROOT / "scripts" / "eval_beam.py")
    words = [python(), *launcher, script, "--config", str(folder / "eval.yaml"), "--output", str(output)]
    about = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, **about, env={**os.environ, "OMP_NUM_THREADS": "1", **environment})


def by_name(predictions: Predictions) -> list[dict[str, float]]:
    """Scores of each example's list by SID, or title."""
    lists = zip(predictions.sids, predictions.scores, strict=True)
    return [dict(zip(sids, scores, strict=True)) for sids, scores in lists]


def assistant_scores(model: Path, corpus: Corpus, names: list[str]) -> list[dict[str, float]]:
    """Log-probability of each SID, or title, for each test example, by softmax and sums in double precision.

    Args:
        model: A sequential recommender; after an empty history items are as probable as they are popular.
        corpus: That of the examples.
        names: SID or title of each item; probabilities of items that share one are added up.
    """
    histories = corpus.rows("test").histories.tolist()
    ranking = load_ranker(model, corpus).rank(Queries(histories), corpus.n_items)
    found = []
    for history, items, scores in zip(histories, ranking.items, ranking.scores, strict=True):
        shares = corpus.popularity() + 1.0
        if len(history):
            shares = np.zeros(corpus.n_items)
            shares[np.asarray(items)] = np.exp(np.asarray(scores, dtype=np.float64))
        sums = pd.Series(shares / shares.sum(), index=names).groupby(level=0).sum()
        found.append(np.log(sums).to_dict())
    return found
