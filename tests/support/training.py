"""A corpus of chains, and training stages on it that take seconds."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from minionerec.contrib.generative_baselines.config import DpoConfig, TigerTrainConfig
from minionerec.core.artefacts import read_json, write_artefact
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples
from minionerec.data.source import item_table
from minionerec.models.backbone.bundle import Bundle, load_bundle
from minionerec.models.prompts.examples import ExampleBuilder, special_texts
from minionerec.models.prompts.wording import load_wording
from minionerec.pipeline.config.sequential import SequentialConfig
from minionerec.pipeline.config.training import CatalogueTrainConfig, ExtendConfig, GrpoConfig, SftConfig
from minionerec.pipeline.train_sequential import run_sequential
from minionerec.sid.table import SidTable
from minionerec.training import memory
from minionerec.training.sequential import train
from minionerec.training.trainer import LogLines

N_ITEMS = 24
SHAPE = {"hidden_size": 32, "layers": 2, "heads": 2, "kv_heads": 1, "inner_size": 48, "text_vocabulary": 300}
TRAINED = {"epochs": 24, "all_positions": False, "batch_size": 16, "device_batch_size": 8, "evals_per_epoch": 0.5}
GROUP = 4


def chain_items() -> pd.DataFrame:
    """Items of four kinds, six of each, with titles and descriptions."""
    kinds = [kind for kind in ("cup", "lamp", "chair", "shelf") for _ in range(6)]
    titles = [f"{kind} number {position % 6}" for position, kind in enumerate(kinds)]
    return item_table([f"i{n}" for n in range(N_ITEMS)], title=titles, description=[f"a {kind}" for kind in kinds])


def make_inputs(folder: Path, users: int = 40) -> tuple[str, str]:
    """A corpus in which item i is followed by item i + 1, and its SIDs."""
    rng, items = np.random.default_rng(0), chain_items()
    split: dict[str, list] = {"train": [], "valid": [], "test": []}
    for user in range(users):
        start = int(rng.integers(N_ITEMS))
        chain = [(start + step) % N_ITEMS for step in range(6)]
        for position in range(1, 6):
            name = {4: "valid", 5: "test"}.get(position, "train")
            split[name].append((f"u{user}", np.array(chain[:position], dtype=np.int32), chain[position]))
    tables = {name: SplitExamples.of(*zip(*rows, strict=True)) for name, rows in split.items()}
    Corpus(items, **tables, split="leave-last-out", max_history=10).save(folder / "corpus", config={}, inputs={})
    codes = np.array([[position // 6, position % 6, 0] for position in range(N_ITEMS)])
    with write_artefact(folder / "sids", "sids", config={}, inputs={"corpus": folder / "corpus"}) as sids_folder:
        SidTable(codes, items["item_id"].tolist()).save_index(sids_folder / "index.json")
    return str(folder / "corpus"), str(folder / "sids")


def _paths(folder: Path, output: str, **inputs: str) -> dict[str, str]:
    """Settings that name the corpus of a folder, other inputs in it, and an output there."""
    return {name: str(folder / path) for name, path in {"corpus": "corpus", **inputs, "output": output}.items()}


EVALUATED = {"eval_examples": 20, "eval_beams": 10}
TRAINED_BRIEFLY = {"epochs": 2, "batch_size": 8, "device_batch_size": 8, "learning_rate": 3e-3, "dropout": 0.1}


def sft_config(folder: Path, **changes) -> SftConfig:
    settings = {**_paths(folder, "sft", sids="sids"), **SHAPE, **TRAINED_BRIEFLY, **EVALUATED}
    return SftConfig(**{**settings, "all_positions": True, "select_by": "ndcg", **changes})


def catalogue_config(folder: Path, **changes) -> CatalogueTrainConfig:
    shape = {"hidden_size": 16, "layers": 1, "heads": 2, "inner_size": 24, "vector_width": 8}
    settings = {**_paths(folder, "catalogue", sids="sids"), **shape, **TRAINED_BRIEFLY, **EVALUATED}
    return CatalogueTrainConfig(**{**settings, **changes})


def tiger_config(folder: Path, **changes) -> TigerTrainConfig:
    shape = {"hidden_size": 32, "layers": 1, "heads": 2, "head_size": 8, "inner_size": 48}
    steps = {"epochs": 2, "batch_size": 16, "device_batch_size": 16, "learning_rate": 1e-2}
    return TigerTrainConfig(**{**_paths(folder, "tiger", sids="sids"), **shape, **steps, **EVALUATED, **changes})


def dpo_config(folder: Path, **changes) -> DpoConfig:
    """Two epochs of three steps, with a validation after each."""
    steps = {"tasks": {"next_sid": 0.25}, "prompts_per_step": 8, "prompts_per_device": 4, "epochs": 2, "beta": 0.5}
    steps |= {"learning_rate": 1e-3, "schedule": "constant", "evals_per_epoch": 3}
    return DpoConfig(**{**_paths(folder, "dpo", checkpoint="sft"), **steps, **EVALUATED, **changes})


def extend_config(folder: Path, checkpoint: Path, output: Path, **changes) -> ExtendConfig:
    inputs = {"corpus": str(folder / "corpus"), "sids": str(folder / "sids"), "checkpoint": str(checkpoint)}
    return ExtendConfig(**{**inputs, "output": str(output), **changes})


def builder_of(folder: Path, wording: str = "compact") -> tuple[Bundle, ExampleBuilder, Corpus]:
    corpus = Corpus.load(folder / "corpus")
    bundle = load_bundle(folder / "sft")
    builder = ExampleBuilder(corpus, bundle.table, load_wording(wording), special_texts(bundle.tokenizer))
    return bundle, builder, corpus


def in_parts(run: Callable[[Any], Any], config: Any, tokens: int = 24) -> None:
    """A training stage that computes so many tokens at a time, where its settings leave it open."""
    memory.MOST_TOKENS["cpu"] = tokens
    run(config)


@pytest.fixture
def limits(monkeypatch):
    """Limits of tokens that `in_parts` may change."""
    monkeypatch.setitem(memory.MOST_TOKENS, "cpu", memory.MOST_TOKENS["cpu"])


def short_of_memory(monkeypatch: pytest.MonkeyPatch, trainer: type) -> list[int]:
    """Let memory end in parts of several rows but for the one with the first row, so that some parts are done before.

    Returns:
        Gets the number of rows of each part in which it ended.
    """
    loss, ended = trainer.compute_loss, []

    def compute(self, model, inputs, *about, **more):
        if len(inputs["rows"]) > 1 and 0 not in inputs["rows"]:
            ended.append(len(inputs["rows"]))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return loss(self, model, inputs, *about, **more)

    monkeypatch.setattr(trainer, "compute_loss", compute)
    return ended


# What brings a value, or a number of elements, from a device to the processor, which waits for it.
WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2")


def operators_of_a_step(run: Callable[[Any], Any], config: Any) -> Counter[str]:
    """How often each operator runs in the third optimiser step of a stage, but for those within the fused optimiser."""
    found: Counter[str] = Counter()
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])

    def begin(self, args, state, control, **others):
        if state.global_step == 2:
            profile.start()

    def end(self, args, state, control, **others):
        if state.global_step == 2:
            profile.stop()
            for event in profile.events():
                above = event.cpu_parent
                while above is not None and "fused_adamw" not in above.name:
                    above = above.cpu_parent
                if above is None and event.name.startswith("aten::"):
                    found[event.name] += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogLines, "on_step_begin", begin)
        patch.setattr(LogLines, "on_pre_optimizer_step", end)
        run(config)
    return found


class Killed(Exception):
    pass


def kill_after(monkeypatch, step):
    """Make training stop dead once a checkpoint at or after a step is on disk."""

    def stop(self, args, state, control, **kwargs):
        if state.global_step >= step:
            raise Killed

    monkeypatch.setattr(LogLines, "on_save", stop)


def same_weights(one, two):
    first, second = (load_file(Path(path) / "model.safetensors") for path in (one, two))
    return all(torch.equal(first[name], second[name]) for name in first) and first.keys() == second.keys()


def nearly_same_weights(one: str | Path, two: str | Path, learning_rate: float) -> bool:
    """Whether weights are equal up to rounding: in the mean square, to a thousandth of a step of Adam.

    Adam makes a whole step of a gradient that is nothing but rounding, so single weights may be further apart.
    """
    first, second = (load_file(Path(path) / "model.safetensors") for path in (one, two))
    assert first.keys() == second.keys()
    apart = torch.cat([(first[name].double() - second[name].double()).flatten() for name in first])
    return float(apart.square().mean().sqrt()) < 1e-3 * learning_rate


def check_same_run(one: Any, two: Any, names: tuple[str, ...]) -> None:
    """Figures of the logs of two runs, given by their settings, and their weights are equal up to rounding."""
    for first, second in zip(log_of(one.output), log_of(two.output), strict=True):
        for name in names:
            assert (name in first) == (name in second)
            assert second.get(name, 0) == pytest.approx(first.get(name, 0), rel=1e-3, abs=1e-5), name
    assert nearly_same_weights(one.output, two.output, one.learning_rate)


def mixed_sids(folder: Path, path: Path | None = None) -> str:
    """The SIDs of `make_inputs`, of which every second one is a code shorter; in its folder if no place is given."""
    table = SidTable.load_index(folder / "sids")
    codes = table.codes.copy()
    codes[1::2, 2] = -1
    with write_artefact(path or folder / "mixed", "sids", config={}, inputs={"corpus": folder / "corpus"}) as fresh:
        SidTable(codes, table.item_ids).save_index(fresh / "index.json")
    return str(path or folder / "mixed")


TINY = {"hidden_size": 16, "inner_size": 16, "num_layers": 1}


def sequential_config(corpus: Path, output: Path, **changes) -> SequentialConfig:
    settings = {"model": "sasrec", "corpus": str(corpus), "protocol": "rows", "output": str(output), "hyper": TINY}
    return SequentialConfig(**{**settings, "epochs": 1, "resamples": 20, **changes})


def interrupted_in_epoch(monkeypatch, config: SequentialConfig, epoch: int) -> None:
    """Run the training of a sequential recommender until an epoch, counted from 1."""
    original, calls = train.train_epoch, []

    def counted(*args):
        calls.append(args)
        if len(calls) == epoch:
            raise KeyboardInterrupt
        return original(*args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train, "train_epoch", counted)
        run_sequential(config)


def log_of(output: str | Path) -> list[dict]:
    return read_json(Path(output) / "training_log.json")


def logged(output: str | Path, name: str) -> list[float]:
    """A figure of a training's log, from every entry that has it."""
    found = [row[name] for row in log_of(output) if name in row]
    assert found
    return found


def grpo_config(folder: Path, **changes) -> GrpoConfig:
    steps = {"generations": GROUP, "prompts_per_step": 8, "prompts_per_device": 4, "learning_rate": 1e-4, "epochs": 2}
    steps |= {"evals_per_epoch": 3, "sync_steps": 2, "tasks": {"next_sid": 0.25, "title_to_sid": 1.0}}
    return GrpoConfig(**{**_paths(folder, "grpo", checkpoint="sft"), **steps, **EVALUATED, **changes})
