"""Recipes with cases whose steps take no time: each is played in this process, and leaves what the real one would.

What a played model is worth is decided by its settings: its targets stand at rank 1 + 100 x learning_rate, one further
where counts are off, and one row in five further still by its seed, so that a test can compute every table.
"""

import json
import sys
from pathlib import Path

import numpy as np
import yaml

from minionerec.cli.main import dispatch
from minionerec.core.artefacts import read_json
from minionerec.core.settings import file_values
from minionerec.core.stage import Stage
from minionerec.core.stages import STAGES
from minionerec.metrics.predictions import FILE
from support.runs import lists_of

ROWS = 40
TINY = """\
output: {runs}
seeds: [1, 2]
data:
  shop:
    corpus: {{stage: prepare-data, config: "demo/language#data", output: "{{runs}}/corpus"}}
    sids: {{stage: build-sids, corpus: "{{corpus}}"}}
cases:
  labels:
    steps:
      model: {{stage: sft, corpus: "{{data.corpus}}", sids: "{{data.sids}}", learning_rate: 0.01}}
      valid: {{stage: eval-beam, checkpoint: "{{model}}", corpus: "{{data.corpus}}", split: valid}}
      test: {{config: "#valid", split: test}}
  slower:
    label: a slower rate
    base: labels
    steps: {{model: {{learning_rate: 0.03}}}}
  sharpened:
    steps:
      grpo: {{corpus: "{{data.corpus}}", checkpoint: "{{labels.model}}", learning_rate: 0.02}}
      test: {{stage: eval-beam, checkpoint: "{{grpo}}", corpus: "{{data.corpus}}"}}
compare:
  test: {{metrics: [HR@3, HR@5], resamples: 20}}
"""
REAL = ("report", "experiment-log", "train-sequential", "train-preference", "preference-report")
"""Stages that are run themselves, in this process."""
BROKEN = 0.66
"""A learning rate with which a played training fails."""


def write_study(folder, text=TINY, **changes):
    """A recipe's file in a folder, its output beside it; `changes` are put over the keys of the file."""
    content = yaml.safe_load(text.format(runs=folder / "runs")) | changes
    path = Path(folder) / "study.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(content)), sort_keys=False))  # no aliases
    return path


def study(monkeypatch, path, *words):
    """The command; its exit status."""
    monkeypatch.setattr(sys, "argv", ["minionerec", "run", str(path), *words])
    try:
        dispatch()
    except SystemExit as ended:
        return ended.code
    return 0


class Played:
    """Plays stages instead of starting them.

    Attributes:
        names: What was started, each "OUTPUT's last parts".
    """

    def __init__(self):
        self.names = []

    def __call__(self, words, threads, log):
        """What `started_words` gives: a context that yields a process, which has ended already."""
        name, file = words[words.index("--config") - 1], words[words.index("--config") + 1]
        kind = STAGES[name].config_class()
        config = kind(**file_values(kind, file))
        self.names.append("/".join(Path(config.output).parts[-3:]))
        return Ended(play(name, config, log))


class Ended:
    """A process that has ended."""

    def __init__(self, status):
        self.status = status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def poll(self):
        """Its exit status."""
        return self.status


def play(name, config, log):
    """Leave what a stage would; its exit status."""
    if name in REAL:
        STAGES[name].function()(config)
        return 0
    if getattr(config, "learning_rate", 0) == BROKEN:
        log.write(b"what came before\nerror: learning_rate is too bad.\nwhat came after\n")
        return 2
    stage = Stage(config, settings=config.deciding() if hasattr(config, "deciding") else None)
    with stage.work() as work:
        counts = {"split": "test", "rows": ROWS, "given": []}
        rank = np.ones(ROWS, int)
        if name == "eval-beam":
            counts["split"], counts["beams"] = config.split, 20
            reported = read_json(Path(config.checkpoint) / "said.json")
            rank += round(100 * reported["learning_rate"])
            rank[:: 5 + reported["seed"]] += 4
            counts["given"] = ["session context"] if config.session_context and reported["session_context"] else []
        with work.finish(seed=getattr(config, "seed", None), counts=counts) as folder:
            if name == "eval-beam":
                lists_of(rank, np.arange(ROWS)).to_frame().to_parquet(folder / FILE, index=False)
            rate = getattr(config, "learning_rate", 0)
            reported = {"learning_rate": rate, "seed": getattr(config, "seed", 0)}
            reported["session_context"] = getattr(config, "wording", "") == "session_context"
            (folder / "said.json").write_text(json.dumps(reported))
    return 0
