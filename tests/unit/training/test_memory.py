"""The memory estimate against what autograd keeps, and steps whose memory ends."""

from contextlib import nullcontext

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from support.decoding import tiny_model
from support.scripts import study
from trl.trainer.sft_config import SFTConfig

from minionerec.core.errors import ConfigError
from minionerec.models.backbone.build import train_tokenizer
from minionerec.training.memory import MOST_TOKENS, TokenLimit, estimate_memory, saved_per_token
from minionerec.training.packing import TreeCollator
from minionerec.training.sft import SidSftTrainer, add_dropout
from minionerec.training.trainer import compile_blocks

TOKENS = 48


def model_of(layers=2, dtype=torch.float32):
    shape = {"hidden_size": 96, "num_attention_heads": 6, "head_dim": 16, "intermediate_size": 320}
    return tiny_model(vocab_size=50, num_hidden_layers=layers, **shape).train().to(dtype)


def kept_bytes(model):
    """Bytes of the tensors that autograd keeps of a forward pass; weights, their copies and masks left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    shapes = {tuple(shape) for parameter in model.parameters() for shape in (parameter.shape, parameter.shape[::-1])}
    shapes.add((1, 1, TOKENS, TOKENS))
    held, storages = [], {}

    def pack(tensor):
        held.append(tensor)  # alive, so that no address is used twice
        position = tensor.untyped_storage()
        if position.data_ptr() not in weights and tuple(tensor.shape) not in shapes:
            storages[position.data_ptr()] = position.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        mask = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
        model.model(input_ids=torch.zeros(1, TOKENS, dtype=torch.long), attention_mask=mask, use_cache=False)
    return sum(storages.values())


@pytest.mark.parametrize(
    ("dtype", "mixed", "dropout", "compiled"),
    [
        (torch.float32, False, 0.0, False),
        (torch.float32, False, 0.5, False),
        (torch.float32, True, 0.5, False),
        (torch.bfloat16, False, 0.0, False),
        (torch.float32, True, 0.0, True),
        pytest.param(torch.bfloat16, False, 0.0, True, marks=pytest.mark.slow),
    ],
)
def test_a_block_keeps_what_the_formula_says(dtype, mixed, dropout, compiled):
    kept = []
    for layers in (1, 2):
        model = model_of(layers, dtype).train()
        add_dropout(model, dropout)
        if compiled:
            compile_blocks(model, "aot_eager_decomp_partition")
        with torch.autocast("cpu", torch.bfloat16) if mixed else nullcontext():
            kept.append(kept_bytes(model))
    size = dtype.itemsize
    bytes_of = {"weight_bytes": size, "compute_bytes": 2 if mixed else size}
    formula = saved_per_token(96, 6, 320, **bytes_of, dropout=dropout > 0, compiled=compiled)
    assert (kept[1] - kept[0]) / TOKENS == pytest.approx(formula, rel=0.02)


def test_what_each_setting_saves():
    model = model_of()
    count, matrix = sum(parameter.numel() for parameter in model.parameters()), 50 * 96
    plain = estimate_memory(model, tokens=1000, labels=100)
    assert (plain.weights, plain.gradients, plain.optimiser) == (4 * count, 4 * count, 8 * count)
    assert plain.working == 1000 * (2 * 4 * 320 + 4 * 96)  # gradients within a block
    assert estimate_memory(model, tokens=100, labels=1000).working == 1000 * 50 * 12 + 4 * matrix  # the head's
    once = estimate_memory(model, tokens=1000, labels=100, several=False)
    assert plain.total - once.total == plain.gradients
    several = estimate_memory(model, tokens=1000, labels=100, processes=4)
    assert several.gradients == 2 * plain.gradients
    saved = estimate_memory(model, tokens=1000, labels=100, checkpointing=True)
    assert saved.activations == 1000 * 2 * 4 * 96 < plain.activations / 2
    mixed = estimate_memory(model, tokens=1000, labels=100, mixed_bf16=True)
    assert mixed.weights == 4 * count + 2 * (count - 2 * matrix)
    updates = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear")).get_base_model()
    assert estimate_memory(updates, tokens=1000, labels=100).optimiser < 0.1 * plain.optimiser


def test_what_zero_2_holds():
    """Many tokens: the head's backward pass, or the first reduction; few: the optimiser's step."""
    model = model_of(dtype=torch.bfloat16)
    count = sum(parameter.numel() for parameter in model.parameters())
    zero = {"stage": 2, "reduce_bucket_size": 1000, "overlap_comm": True}

    def found(tokens, **settings):
        return estimate_memory(model, tokens=tokens, labels=1, zero={**zero, **settings}, processes=4)

    many = found(10_000)
    assert (many.weights, many.optimiser) == (2 * count, 12 * count // 4)
    assert many.gradients == 2 * count // 4 + 2 * 2 * 1000  # added up so far, and two buckets
    large = found(10, reduce_bucket_size=10**6)
    assert large.gradients == 2 * (2 * count // 4) + 2 * 2 * 10**6 + 2 * count  # the newest too, and a bucket's copy
    few = found(1)
    assert (few.gradients, few.activations, few.working) == (2 * count // 4, 0, 6 * count // 4)
    assert found(10_000, offload_optimizer={"device": "cpu"}).optimiser == 0


SMALL = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 768,
}


@pytest.mark.parametrize(
    ("dtype", "mixed", "checkpointing", "device", "parts", "vocabulary", "rank"),
    [
        (torch.float32, False, False, "cpu", 2, 20_000, 0),
        (torch.float32, False, False, "cpu", 1, 20_000, 0),
        (torch.float32, True, False, "cuda", 2, 20_000, 0),
        (torch.float32, True, True, "cuda", 2, 20_000, 0),
        (torch.bfloat16, False, False, "cuda", 1, 20_000, 0),
        (torch.bfloat16, False, True, "cuda", 2, 20_000, 0),
        (torch.float32, False, False, "cpu", 1, 20_000, 8),
        (torch.float32, True, False, "cuda", 2, 40_000, 8),  # whose head is in tiles
        (torch.float32, True, True, "cuda", 2, 600, 64),  # whose blocks take more than the head
        (torch.bfloat16, False, False, "cuda", 2, 40_000, 64),
        (torch.bfloat16, False, True, "cuda", 1, 600, 8),
    ],
)
def test_the_estimate_is_what_a_step_holds(dtype, mixed, checkpointing, device, parts, vocabulary, rank):
    """Tensors of a step as training makes it, added up while they are alive."""
    memory = study("memory")
    batch = memory.sft_batch(4096, SMALL)
    how = {"checkpointing": checkpointing, "device": device}
    counted, model = memory.count_peak(
        SMALL, memory.sft_loss(batch), dtype, vocabulary=vocabulary, mixed=mixed, parts=parts, lora=rank, **how
    )
    tokens, labels = batch["input_ids"].numel(), batch["labels"].numel()
    foretold = estimate_memory(model, tokens=tokens, labels=labels, mixed_bf16=mixed, several=parts > 1, **how)
    assert foretold.total == pytest.approx(counted, rel=0.1)


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


def test_a_model_that_cannot_compute_blocks_again_is_not_asked_to():
    limit = TokenLimit.of(lambda tokens, again: 10 * tokens, 0, "cpu", None)
    assert (limit.tokens, limit.checkpointing) == (256, None)
    assert limit.lower(indivisible=False) and limit.tokens == 128
    assert not limit.lower(indivisible=True)


def test_other_errors_are_not_taken_for_memory(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.set_limit(TokenLimit(64, False))
    trainer.model.model.layers[0].register_forward_hook(lambda *_: 1 / torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError, match="size"):
        step(trainer, TreeCollator(16).share(examples()))


def test_the_limit_is_the_largest_that_leaves_room():
    def needed(tokens, checkpointing):
        return 1000 + tokens * (1 if checkpointing else 10)

    def limit(free, checkpointing=False):
        found = TokenLimit.of(needed, free, "cuda", checkpointing)
        return found.tokens, found.checkpointing

    assert limit(10**9) == (MOST_TOKENS["cuda"], False)
    assert TokenLimit.of(needed, 10**9, "cpu", False).tokens == MOST_TOKENS["cpu"]
    assert limit(int((1000 + 10 * 4096) / 0.85) + 1) == (4096, False)
    assert limit(int((1000 + 10 * 4096) / 0.85) - 1) == (2048, False)
    assert limit(2500) == (1024, True)
    assert limit(4000) == (2048, True)
    assert limit(10**9, True) == (MOST_TOKENS["cuda"], True)
    assert limit(0) == (1024, True)
