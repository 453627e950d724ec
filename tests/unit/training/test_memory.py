"""Steps in parts, and steps whose memory ends."""

import pytest
import torch
from datasets import Dataset
from support.decoding import tiny_model
from trl.trainer.sft_config import SFTConfig

from minionerec.core import device
from minionerec.core.errors import ConfigError
from minionerec.models.backbone.build import train_tokenizer
from minionerec.training.memory import MOST_TOKENS, TokenLimit
from minionerec.training.packing import TreeCollator
from minionerec.training.sft import SidSftTrainer, add_dropout


def model_of(layers=2, dtype=torch.float32):
    shape = {"hidden_size": 96, "num_attention_heads": 6, "head_dim": 16, "intermediate_size": 320}
    return tiny_model(vocab_size=50, num_hidden_layers=layers, **shape).train().to(dtype)


def examples(count=10):
    """Examples of two tasks, of several lengths, each with some labels."""
    torch.manual_seed(1)
    found = []
    for number in range(count):
        answer = torch.randint(40, (3 + number % 4,)).tolist()
        prompt = [[1] * 9, [2, 3] * 5][number % 2] + torch.randint(40, (number % 7,)).tolist()
        labels = [-100] * len(prompt) + answer
        found.append({"input_ids": [*prompt, *answer], "labels": labels, "weights": [1.0 + number] * len(labels)})
    return found


def trainer_of(folder, dtype=torch.float64):
    args = SFTConfig(
        output_dir=str(folder),
        report_to=[],
        use_cpu=True,
        bf16=False,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
    )
    return SidSftTrainer(
        model=model_of(dtype=dtype),
        args=args,
        data_collator=TreeCollator(16),
        train_dataset=Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[0, 0]]}),
        processing_class=train_tokenizer(["a cup"], 300),
    )


def step(trainer, share):
    """The loss and the gradients of a step."""
    trainer.model.zero_grad()
    labels = share["shift_labels"].numel()
    assert labels == sum(label >= 0 for example in examples() for label in example["labels"][1:])
    loss = trainer.training_step(trainer.model, share, num_items_in_batch=labels)
    return loss, [parameter.grad.clone() for parameter in trainer.model.parameters()]


class SmallMemory:
    """Memory that ends in the forward or the backward pass of a block of which too many tokens are computed.

    Args:
        model: The model.
        tokens: Most tokens at a time; of blocks that are computed again, more.
        backward: Whether it ends in the backward pass, when later blocks have their gradients already.
        again: Most tokens of blocks that are computed again in the backward pass.
    """

    def __init__(self, model, tokens, backward, again=0):
        self.model, self.tokens, self.backward, self.again, self.ended = model, tokens, backward, again, 0
        model.model.layers[0].register_forward_hook(self.after)

    def after(self, _layer, _inputs, output):
        hidden = output[0] if isinstance(output, tuple) else output
        allowed = self.again if self.model.is_activation_checkpointing else self.tokens
        if hidden.shape[:2].numel() > allowed:
            if self.backward:
                hidden.register_hook(self.end)
            else:
                self.end()

    def end(self, *_):
        self.ended += 1
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")


def test_a_share_is_split_without_loss():
    share = TreeCollator(64).share(examples())["share"]
    (whole,) = share.split(1)
    for tokens in (1000, 100, 40, 1):
        parts = list(share.split(share.count(tokens)))
        assert len(parts) == share.count(tokens) <= len(share)
        for name in ("labels", "weights"):
            assert torch.equal(torch.cat([part[name].flatten() for part in parts]), whole[name].flatten()), name
        sizes = [part["input_ids"].numel() for part in parts]
        assert tokens == 1 or max(sizes) <= tokens + 64  # a row more, where they do not fit
    assert share.count(1) == 10 and share.count(10**6) == 1


def test_a_part_is_made_when_the_one_before_was_computed(tmp_path, monkeypatch):
    """A GPU that computes a part is not waited for, so the next one is packed meanwhile."""
    whole, trainer, happened = TreeCollator(16).share(examples()), trainer_of(tmp_path), []
    share = whole["share"]
    make, loss = share.make, trainer.compute_loss
    share.make = lambda part: happened.append("made") or make(part)
    monkeypatch.setattr(
        trainer, "compute_loss", lambda *given, **more: happened.append("computed") or loss(*given, **more)
    )
    trainer.set_limit(TokenLimit(40, False))
    step(trainer, whole)
    assert happened == ["made", "computed"] * share.count(40) and len(happened) > 4


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("tokens", "again"), [(70, 0), (8, 100)])
def test_a_step_whose_memory_ends_has_the_same_loss_and_gradient(tmp_path, caplog, backward, tokens, again):
    """Smaller parts are enough at first; then not even single examples fit but with blocks computed again."""
    share = TreeCollator(16).share(examples())
    trainer = trainer_of(tmp_path)
    trainer.set_limit(TokenLimit(1024, False))
    loss, gradients = step(trainer, share)
    assert trainer.limit.tokens == 1024
    memory = SmallMemory(trainer.model, tokens, backward, again)
    with caplog.at_level("INFO", "minionerec"):
        found, others = step(trainer, share)
    assert memory.ended > 0 and trainer.limit.tokens < 1024
    assert trainer.limit.checkpointing == trainer.model.is_activation_checkpointing == bool(again)
    assert f"At most {trainer.limit.tokens:,} tokens are computed at a time" in caplog.text
    assert torch.allclose(found, loss, rtol=1e-6)
    for ours, theirs in zip(others, gradients, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6 * float(theirs.abs().max()))
    ended = memory.ended
    step(trainer, share)  # the next step is computed so from its beginning
    assert memory.ended == ended


def test_validation_is_computed_in_parts_too(tmp_path):
    trainer, rows = trainer_of(tmp_path), examples()
    trainer.model.eval()
    wanted = trainer.prediction_step(trainer.model, TreeCollator(16)(rows), True)[0]
    trainer.set_limit(TokenLimit(1024, False))
    share = TreeCollator(16).share(rows)
    assert torch.allclose(trainer.prediction_step(trainer.model, share, True)[0], wanted, rtol=1e-6)
    memory = SmallMemory(trainer.model, 70, False)
    found = trainer.prediction_step(trainer.model, share, True)[0]
    assert memory.ended > 0 and trainer.limit.tokens < 1024
    assert torch.allclose(found, wanted, rtol=1e-6) and not found.requires_grad


def test_every_label_of_a_step_is_counted(tmp_path):
    """In micro-batches as in a share, so that the loss of a step does not depend on how it is divided."""
    trainer, rows, packed = trainer_of(tmp_path), examples(), TreeCollator(16)
    labels = sum(label >= 0 for example in rows for label in example["labels"][1:])
    for batches in ([packed(rows[:5]), packed(rows[5:])], [packed.share(rows)]):
        assert trainer.get_batch_samples(iter(batches), len(batches), "cpu")[1] == labels


def test_memory_that_ends_with_a_single_example_is_an_error(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.set_limit(TokenLimit(64, False))
    SmallMemory(trainer.model, 0, False)
    with pytest.raises(ConfigError, match="memory ended with a single example at a time"):
        step(trainer, TreeCollator(16).share(examples()))


def test_memory_that_ends_where_processes_add_up_gradients_is_an_error(tmp_path):
    trainer, share = trainer_of(tmp_path), TreeCollator(16).share(examples())["share"]
    trainer.is_deepspeed_enabled = True
    for checkpointing, words in ((False, "1, or --gradient_checkpointing true\\."), (True, "1\\.")):
        trainer.set_limit(TokenLimit(64, checkpointing))
        with pytest.raises(ConfigError, match=f"memory ended at 64 tokens .* --device_batch_size {words}"):
            trainer._lower(share, 1, gradients=True)
    trainer._lower(share, 1, gradients=False)
    assert trainer.limit.tokens == 32


def test_a_model_that_cannot_compute_blocks_again_gives_up():
    limit = TokenLimit(256, None)
    assert limit.lower(indivisible=False) and limit.tokens == 128
    assert not limit.lower(indivisible=True)


def test_other_errors_are_not_taken_for_memory(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.set_limit(TokenLimit(64, False))
    trainer.model.model.layers[0].register_forward_hook(lambda *_: 1 / torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError, match="size"):
        step(trainer, TreeCollator(16).share(examples()))


def test_first_parts_have_the_most_tokens_that_are_worth_it(tmp_path, monkeypatch):
    trainer = trainer_of(tmp_path)
    trainer.compute_in_parts(False)
    assert (trainer.limit.tokens, trainer.limit.checkpointing) == (MOST_TOKENS["cpu"], False)
    monkeypatch.setattr(device, "free_memory", lambda _: 2 * 1000 * 300)
    trainer.compute_in_parts(None, 1000)
    assert (trainer.limit.tokens, trainer.limit.checkpointing) == (256, None)


@pytest.mark.parametrize("memory_ends", [False, True])
def test_a_trial_changes_nothing_but_the_limit(tmp_path, memory_ends):
    share, trainer = TreeCollator(16).share(examples())["share"], trainer_of(tmp_path)
    add_dropout(trainer.model, 0.5)
    trainer.set_limit(TokenLimit(64, False))
    memory = SmallMemory(trainer.model, 40 if memory_ends else 1000, backward=True)
    weights, states = [weight.clone() for weight in trainer.model.parameters()], torch.get_rng_state()
    trainer.try_parts(share)
    assert all(map(torch.equal, weights, trainer.model.parameters()))
    assert torch.equal(torch.get_rng_state(), states)
    assert all(weight.grad is None for weight in trainer.model.parameters())
    assert bool(memory.ended) == memory_ends == (trainer.limit.tokens < 64)
    ended, part = memory.ended, next(share.split(max(1, int(share.borders[-1]) // trainer.limit.tokens)))
    trainer.compute_loss(trainer.model, part, num_items_in_batch=1).backward()
    assert memory.ended == ended


def test_several_processes_try_a_part_before_their_first_step(tmp_path, monkeypatch):
    """A step that memory ended in could not be repeated where processes add up gradients."""
    trainer, share, tried = trainer_of(tmp_path), TreeCollator(16).share(examples()), []
    trainer.set_limit(TokenLimit(64, False))
    monkeypatch.setattr(trainer, "try_parts", tried.append)
    step(trainer, share)
    assert not tried
    trainer.tried, trainer.is_deepspeed_enabled = False, True
    monkeypatch.setattr(trainer.accelerator, "gather", lambda count: count)
    monkeypatch.setattr(trainer, "in_parts", lambda *_, **__: torch.zeros(()))
    for _ in range(2):
        trainer.training_step(trainer.model, share)
    assert tried == [share["share"]]
