"""What SFT says of its memory, against the peak of a process that trains."""

import logging
import re
import resource
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import torch
from support.processes import trainer_context
from support.scripts import study
from support.training import make_inputs, sft_config
from torch.optim.optimizer import register_optimizer_step_post_hook

from minionerec.training.sft import run_sft


class Remember(logging.Handler):
    """Notes the estimate, and the memory of the process at that moment."""

    found: tuple[float, int, int] | None = None

    def emit(self, record):
        reported = re.search(r"needs about ([\d.]+) GB \(weights", record.getMessage())
        if reported:
            weights = record.args[0].weights
            Remember.found = (record.args[0].total, weights, psutil.Process().memory_info().rss)


def measure(config, answer):
    logging.getLogger("minionerec").addHandler(Remember())
    logging.getLogger("minionerec").setLevel(logging.INFO)
    peaks = []
    register_optimizer_step_post_hook(
        lambda *_: peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    )
    run_sft(config)
    estimate, weights, before = Remember.found
    if torch.cuda.is_available():
        answer.send((estimate, torch.cuda.max_memory_allocated()))
        return
    answer.send((estimate, peaks[-1] - before + weights))


@pytest.mark.parametrize("changes", [{}, {"gradient_checkpointing": True}, {"mixed_bf16": True}])
def test_the_estimate_is_near_the_measured_peak(tmp_path, changes):
    make_inputs(tmp_path, users=200, shuffled=True)  # so that no two share much
    config = sft_config(
        tmp_path,
        hidden_size=256,
        inner_size=512,
        heads=4,
        layers=4,
        text_vocabulary=300,
        epochs=2,
        batch_size=200,
        device_batch_size=200,
        dropout=0.1,
        eval_examples=0,
        select_by="loss",
        **changes,
    )
    context = trainer_context()
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=measure, args=(config, send))
    child.start()
    estimate, measured = receive.recv()
    child.join()
    assert measured / 2 < estimate < measured * 1.5, f"{estimate / 1e6:.0f} MB estimated, {measured / 1e6:.0f} used"


def count(answer):
    memory = study("memory")
    answer.send([memory.count_zero(64, 0.33), memory.count_zero(1024, 0.33), memory.count_zero(64, 3)])


def test_the_estimate_is_what_zero_2_holds():
    """DeepSpeed's own code: the optimiser's step, activations, and buckets are the most in turn."""
    context = trainer_context()
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=count, args=(send,))
    child.start()
    for counted, foretold, _ in receive.recv():
        assert foretold == pytest.approx(counted, rel=0.1)
    child.join()


def test_too_little_memory_is_reported_before_the_start(tmp_path, monkeypatch, caplog):
    make_inputs(tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (1000, 1000))
    with caplog.at_level("INFO", "minionerec"):
        run_sft(replace(sft_config(tmp_path), epochs=0.2, eval_examples=0, select_by="loss"))
    assert re.search(r"A process needs about 0.00 GB \(weights 0.00, .*\) for micro-batches of \d+ tokens", caplog.text)
    ways = "lower device_batch_size (8), or give --gradient_checkpointing true, or lower max_prompt_length, "
    ways += "or launch with ZeRO-2, or train a smaller model."  # of scratch no adapters are trained
    assert f"more than the 0.00 GB that are free: {ways}" in caplog.text
