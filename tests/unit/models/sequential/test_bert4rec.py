"""BERT4Rec against a literal transcription of its equations."""

import pytest
import torch
from support.histories import assert_same_gradients, newest_slots, scrambled
from support.histories import of_all_lengths as histories

from minionerec.models.sequential.registry import build_model


def literal_bert(model, given):
    """BERT4Rec's states on the whole padded batch, before the head and without dropout."""
    x = model.embedding.norm(model.embedding.items(given) + model.embedding.positions.weight)
    for layer in model.layers:
        attention = layer.attention
        q, k, v = (p.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for p in attention.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + (given == 0)[:, None, None] * -10000.0
        x = attention.norm(x + attention.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))
        x = layer.feed_forward(x)
    return x


def small_bert(**hyper):
    hyper = {"hidden_size": 8, "hidden_dropout": 0.0, "attention_dropout": 0.0, **hyper}
    return scrambled(build_model("bert4rec", num_items=30, max_len=10, **hyper))


@pytest.mark.parametrize("padding", ["left", "right"])
def test_bert4rec_predicts_at_a_mask_after_the_history_without_its_oldest_slot(padding):
    model = small_bert(padding=padding).eval()
    batch = histories(12, 10, 30, padding)
    asked = []
    for row in batch.tolist():
        items = [item for item in row if item]
        if padding == "right":
            asked.append(([*items, 31] + [0] * 10)[1:11])
        else:
            asked.append(([0] * 10 + [*items, 31])[-10:])
    asked = torch.tensor(asked)
    assert torch.equal(model.mask_next(batch), asked)
    at = newest_slots(batch, padding)
    hidden = literal_bert(model, asked)[torch.arange(12), at]
    expected = model.head[2](torch.nn.functional.gelu(model.head[0](hidden)))
    torch.testing.assert_close(model.user_vectors(batch), expected, rtol=1e-4, atol=1e-4)
    scores = expected @ model.embedding.items.weight[:31].T + model.bias
    torch.testing.assert_close(model.logits(model.user_vectors(batch)), scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_bert4rec_loss_is_that_of_the_scored_masks_and_not_of_the_next_items(padding):
    model = small_bert(padding=padding, mask_ratio=0.5)
    batch = histories(12, 10, 30, padding)
    for seed in range(4):
        torch.manual_seed(seed)
        given, wanted = model.hide(batch)
        hidden = literal_bert(model, given)[wanted > 0]
        logits = model.logits(model.head(hidden))
        expected = sum(-row.log_softmax(0)[item] for row, item in zip(logits, wanted[wanted > 0], strict=True))
        torch.manual_seed(seed)
        loss = model.loss(batch, torch.randint(1, 30, (12,), generator=torch.Generator().manual_seed(seed)))
        torch.testing.assert_close(loss, expected / (wanted > 0).sum(), rtol=1e-4, atol=1e-4)
    assert_same_gradients(loss, expected / (wanted > 0).sum(), list(model.parameters()), 1e-4)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_bert4rec_hides_each_item_or_the_newest_and_scores_the_newest_few_after_slot_0(padding):
    batch = histories(4000, 10, 30, padding)
    at = newest_slots(batch, padding)
    rows, slots = torch.arange(4000), torch.arange(10)
    given, wanted = small_bert(padding=padding, newest_ratio=1.0).hide(batch)
    assert torch.equal(given == 31, slots == at[:, None])
    assert torch.equal(wanted[rows, at], batch[rows, at] * (at > 0))
    assert ((wanted > 0).sum(1) == (at > 0)).all()

    model = small_bert(padding=padding, newest_ratio=0.0, mask_ratio=0.3)
    given, wanted = model.hide(batch)
    assert torch.equal(torch.where(given == 31, batch, given), batch)
    assert (given[batch > 0] == 31).double().mean().item() == pytest.approx(0.3, abs=0.02)
    assert not (given[batch == 0] == 31).any()
    for row in range(0, 4000, 13):
        masked = (given[row] == 31).nonzero()[:, 0].tolist()
        expected = [slot for slot in masked[-3:] if slot > 0]
        assert (wanted[row] > 0).nonzero()[:, 0].tolist() == expected
        assert wanted[row, expected].tolist() == batch[row, expected].tolist()

    model = small_bert(padding=padding, newest_ratio=0.25)
    newest = [bool((model.hide(batch[-40:])[0] == 31).sum(1).eq(1).all()) for _ in range(400)]
    assert sum(newest) / 400 == pytest.approx(0.25, abs=0.08)


def test_bert4rec_learns_nothing_from_a_batch_without_a_scored_mask():
    model = small_bert(newest_ratio=1.0)
    loss = model.loss(torch.tensor([[3, 0, 0], [4, 0, 0]]), torch.tensor([5, 6]))
    loss.backward()
    assert loss.item() == 0


def test_bert4rec_does_not_depend_on_its_padding():
    model = scrambled(build_model("bert4rec", num_items=30, max_len=20, hidden_size=8)).eval()
    batch = histories(20, 20, 30)
    before = model.user_vectors(batch)
    with torch.no_grad():
        model.item_matrix()[0] += torch.arange(8)
    torch.testing.assert_close(model.user_vectors(batch), before, rtol=1e-5, atol=1e-5)
