"""All models: causality, padding, exact savings. SASRec, GRU4Rec, Caser, HSTU, the project's baseline: equations."""

import math

import numpy as np
import pytest
import torch
from support.histories import histories_of as padded_histories
from support.histories import sequential_model
from support.rounding import assert_near
from support.scripts import benchmark
from torch import nn
from torch.nn import functional

from minionerec.core.errors import ConfigError
from minionerec.data.transitions import count_transitions
from minionerec.models.nn.layers import Dropout, length_groups, readout_slots, take_slots
from minionerec.models.sequential.hstu import normalise
from minionerec.models.sequential.registry import MODELS, build_model

CLASSIC = ["sasrec", "hstu", "gru4rec", "causal"]
CAUSAL = [name for name, kind in sorted(MODELS.items()) if kind.causal]
ITEMS, LENGTH = 30, 12


def built(name, padding="right", max_len=LENGTH, seed=0, std=0.3, **hyper):
    """A small model without dropout whose weights are large enough to tell things apart."""
    torch.manual_seed(seed)
    model = sequential_model(name, ITEMS, max_len, padding, **hyper)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=std)
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
    return model


def histories_of(lengths, padding, width=LENGTH):
    return padded_histories(lengths, padding, width, ITEMS)


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("name", CAUSAL)
def test_later_items_change_no_earlier_position(name, padding):
    model = built(name, padding).double()
    histories = histories_of([LENGTH, 7], padding)
    before, items = model.position_vectors(histories), histories > 0  # what stands at padding has no meaning
    for cut in (1, 4, 6, LENGTH - 1):
        changed = histories.clone()
        changed[:, cut:] = torch.where(items, histories % ITEMS + 1, 0)[:, cut:]
        after = model.position_vectors(changed)
        earlier = items & (torch.arange(LENGTH) < cut)
        torch.testing.assert_close(after[earlier], before[earlier], rtol=0, atol=1e-12)
        assert (after - before)[:, cut][items[:, cut]].abs().amax(1).min() > 1e-3


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("name", CAUSAL)
def test_the_readout_is_the_position_of_the_newest_item(name, padding):
    model = built(name, padding)
    histories = histories_of([0, 1, 2, 5, 5, LENGTH], padding)
    expected = take_slots(model.position_vectors(histories), readout_slots(histories, padding))
    assert_near(model.user_vectors(histories), expected)


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_rows_of_a_batch_do_not_touch_one_another_and_short_batches_are_padded(name, padding):
    model = built(name, padding).double().eval()
    histories, users = histories_of([0, 1, 2, 5, 5, LENGTH], padding), torch.arange(6)
    together = model.user_vectors(histories, users)
    alone = torch.cat([model.user_vectors(histories[i : i + 1], users[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)
    columns = slice(LENGTH - 7, LENGTH) if padding == "left" else slice(0, 7)
    short, items = histories[1:5, columns], histories[1:5, columns] > 0
    if name != "caser" and (name, padding) != ("gru4rec", "left"):  # which runs through padding on the left
        torch.testing.assert_close(model.user_vectors(short), together[1:5], rtol=1e-9, atol=1e-9)
    if name in CAUSAL and padding == "right":
        whole = model.position_vectors(histories)[1:5, columns]
        torch.testing.assert_close(model.position_vectors(short)[items], whole[items], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in CLASSIC if name != "gru4rec"])
def test_padding_on_the_left_is_not_seen(name):
    # A model for 12 slots and one for 20 with the same last 12: more padding, same result.
    model, wide = built(name, "left"), built(name, "left", max_len=20)
    state = model.state_dict()
    for key, value in wide.state_dict().items():
        if value.shape != state[key].shape:
            if "relative" in key:  # indexed from the middle
                value[20 - 12 : len(value) - (20 - 12)] = state[key]
            else:
                value[20 - 12 : 20] = state[key][:12]
        else:
            value.copy_(state[key])
    histories = histories_of([1, 4, LENGTH], "left")
    padded = functional.pad(histories, (8, 0))
    # HSTU divides by the padded length, but the norm behind it takes that back.
    assert torch.allclose(model.user_vectors(histories), wide.user_vectors(padded), atol=1e-4)


def test_gru_runs_through_padding_on_the_left_and_stops_before_it_on_the_right():
    histories = histories_of([1, 4], "right")
    right = built("gru4rec", "right")
    assert torch.allclose(right.user_vectors(histories), right.user_vectors(histories[:, :4]), atol=1e-6)
    left = built("gru4rec", "left")
    moved = histories_of([1, 4], "left")
    assert not torch.allclose(left.user_vectors(moved), left.user_vectors(moved[:, -4:]), atol=1e-3)


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("name", CAUSAL)
def test_groups_of_similar_length_change_neither_loss_nor_gradient(name, padding, monkeypatch):
    model = built(name, padding).double()  # groups sum in another order, and a ReLU near zero passes that on
    histories = histories_of([0, 1, 1, 2, 3, 6, 7, LENGTH], padding)
    targets = torch.arange(1, 9)
    after = torch.where(histories > 0, histories % ITEMS + 1, 0)

    def measure():
        model.zero_grad()
        loss = model.loss(histories, targets) + model.sequence_loss(histories, after)
        loss.backward()
        return loss.item(), [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    assert len(length_groups(histories, padding)) == 3
    grouped = measure()
    whole = [(torch.arange(8), slice(0, LENGTH))]
    for folder in ("minionerec.models.nn.layers", "minionerec.models.sequential.model"):
        monkeypatch.setattr(f"{folder}.length_groups", lambda *_: whole)
    untrimmed = measure()
    assert grouped[0] == pytest.approx(untrimmed[0], rel=1e-12)
    assert len(grouped[1]) == len(untrimmed[1])
    for ours, theirs in zip(grouped[1], untrimmed[1], strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_sasrec_equals_a_full_width_implementation(padding):
    histories, model = histories_of([0, 1, 5, LENGTH], padding), built("sasrec", padding).eval()
    states = benchmark("sequential_epoch").field_sasrec(model, histories)
    assert_near(model.user_vectors(histories), take_slots(states, readout_slots(histories, padding)))


def test_an_empty_history_attends_to_all_slots_alike():
    model = built("sasrec", "left", num_layers=1, num_heads=1).eval()
    layer, x = model.layers[0], model.embedding(torch.zeros(1, LENGTH, dtype=torch.int64))
    values = layer.attention.qkv(x).chunk(3, -1)[2].mean(1)
    expected = layer.feed_forward(layer.attention.norm(x[:, -1] + layer.attention.out(values)))
    # -10000 is added in float32, which leaves steps of 1e-3 in the scores.
    assert torch.allclose(model.user_vectors(torch.zeros(1, LENGTH, dtype=torch.int64)), expected, atol=0.2)


@pytest.mark.parametrize("personal", [True, False])
def test_caser_is_its_equations(personal):
    model = built("caser", num_users=3, vertical=2, horizontal=3, personal=personal)
    assert model.needs_users == personal
    histories, users = histories_of([4, LENGTH, 0], "right"), torch.tensor([2, 0, 1])
    image = model.items(histories)  # (B, L, D)
    for row in range(3):
        across = [(model.vertical.weight[f][:, None] * image[row]).sum(0) + model.vertical.bias[f] for f in range(2)]
        along = []
        for height, bank in enumerate(model.horizontal, start=1):
            for f in range(3):
                windows = [
                    (bank.weight[f].T * image[row, start : start + height]).sum() + bank.bias[f]
                    for start in range(LENGTH - height + 1)
                ]
                along.append(torch.stack(windows).relu().max())
        z = model.inner(torch.cat([*across, torch.stack(along)])).relu()
        expected = model.outer(torch.cat([z, model.users.weight[users[row]]]) if personal else z).relu()
        assert torch.allclose(model.user_vectors(histories, users)[row], expected, atol=1e-4)
    norms = [model.items, model.vertical, model.inner, model.outer, *model.horizontal]
    norms += [model.users] if personal else []
    targets = torch.tensor([1, 2, 3])
    plain = functional.cross_entropy(model.logits(model.user_vectors(histories, users)), targets)
    penalty = 1e-4 * sum(part.weight.pow(2).sum().sqrt() for part in norms)
    assert model.loss(histories, targets, users).item() == pytest.approx((plain + penalty).item(), rel=1e-5)


def test_hstu_is_its_equations():
    model = built("hstu", hidden_size=8, num_layers=1, num_heads=2, head_size=3)
    history = histories_of([5], "right")
    block, n = model.blocks[0], LENGTH + 11
    x = model.items(history[0, :5]) * math.sqrt(8) + model.slots.weight[:5]
    u, v, q, k = functional.silu(block.uvqk(functional.layer_norm(x, (8,), eps=1e-6))).split(6, -1)
    context = torch.zeros(5, 6)
    for head in range(2):
        part = slice(3 * head, 3 * head + 3)
        for i in range(5):
            for j in range(i + 1):
                weight = functional.silu(q[i, part] @ k[j, part] + block.relative[n - 1 + j - i]) / n
                context[i, part] += weight * v[j, part]
    y = x + block.out(u * functional.layer_norm(context, (6,), eps=1e-6))
    expected = y / y.norm(dim=-1, keepdim=True)
    assert torch.allclose(model.position_vectors(history)[0, :5], expected, atol=1e-5)
    scores = model.logits(model.user_vectors(history))[0]
    cosine = functional.cosine_similarity(expected[-1], model.items.weight)
    assert torch.allclose(scores, cosine / 0.05, atol=1e-4)


def test_hstu_samples_negatives_that_are_not_the_target():
    model = built("hstu", num_negatives=4000, temperature=0.5)
    vectors, targets = normalise(torch.randn(2, 64)), torch.tensor([3, 8])
    scores = vectors @ model.item_matrix().T
    torch.manual_seed(0)
    sampled = model.cross_entropy(vectors, targets).item()
    # Uniform draws: the sum over negatives is 4000 times their mean.
    expected = 0.0
    for row, target in enumerate(targets.tolist()):
        others = [item for item in range(1, ITEMS + 1) if item != target]
        total = scores[row, target].exp() + 4000 / ITEMS * scores[row, others].exp().sum()
        expected += (total.log() - scores[row, target]).item() / 2
    assert sampled == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", ["causal", "sasrec", "gru4rec", "hstu", "bert4rec", "caser"])
def test_given_vectors_are_added_at_both_ends(name):
    model, plain = built(name), built(name)
    learned = model.item_table().weight.detach().clone()
    with torch.random.fork_rng():
        model.read_vectors(5)
    assert torch.equal(model.item_table().weight, learned)
    given = torch.randn(ITEMS, 5)
    model.set_vectors(given)
    (added,) = model.item_table().parametrizations.weight
    rows = model.item_table().weight
    assert_near(rows[1 : ITEMS + 1], learned[1 : ITEMS + 1] + given @ added.map.weight.T)
    assert torch.equal(rows[0], learned[0]) and torch.equal(rows[ITEMS + 1 :], learned[ITEMS + 1 :])
    plain.item_table().weight.data.copy_(rows.detach())
    histories, users = histories_of([3, 7], "right"), torch.zeros(2, dtype=torch.int64)
    assert_near(model.scores(histories, users), plain.scores(histories, users))
    with pytest.raises(ConfigError, match=r"shape \(30, 4\); expected \(30, 5\)"):
        model.set_vectors(torch.zeros(ITEMS, 4))


def test_label_smoothing_of_the_baseline():
    histories, targets = histories_of([3, 7], "right"), torch.tensor([4, 9])
    model = built("causal", label_smoothing=0.2)
    logits = model.logits(model.user_vectors(histories)).log_softmax(-1)
    expected = -(0.8 * logits[torch.arange(2), targets] + 0.2 * logits.mean(-1)).mean()
    assert_near(model.loss(histories, targets), expected)


SEEN, FOLLOWED = [[3, 7, 3, 9], [7, 9, 2, 0]], [[7, 3, 9, 4], [9, 2, 5, 0]]


def with_counts(padding):
    """The baseline with a pointer and counts of two windows."""
    windows = np.array(SEEN), np.array(FOLLOWED)
    counted = count_transitions([windows], ITEMS, reach=2, decay=0.5, reverse=0.25)
    model = built("causal", padding, pointer=True, reach=2, decay=0.5, reverse=0.25, num_transitions=counted.nnz)
    model.set_transitions(counted)
    return model


@pytest.mark.parametrize("padding", ["left", "right"])
def test_pointer_and_counts_of_the_baseline_by_hand(padding):
    model = with_counts(padding)
    dense = np.zeros((ITEMS + 1, ITEMS + 1))
    for items, targets in zip(SEEN, FOLLOWED, strict=True):
        for position, target in enumerate(targets):
            for back in range(min(2, position + 1)):
                if target:
                    dense[items[position - back], target] += 0.5**back
                    dense[target, items[position - back]] += 0.25 * 0.5**back
    history = [9, 3, 7]
    histories = torch.zeros(1, LENGTH, dtype=torch.int64)
    histories[0, LENGTH - 3 if padding == "left" else 0 :][:3] = torch.tensor(history)
    state = model.user_vectors(histories)
    added = (model.scores(histories) - model.logits(state))[0].detach()
    strength = model.history
    pointer, gain = strength.pointer(state)[0].tolist(), strength.gain(state)[0]
    found = np.zeros(ITEMS + 1)
    for back, item in enumerate([7, 3]):
        rarity = (dense[item].sum() + 1) ** -strength.commonness.item()
        found += functional.softplus(strength.distance[back]).item() * rarity * dense[item]
    expected = functional.softplus(gain[0]).item() * np.log1p(gain[1].exp().item() * found)
    for back, item in enumerate([7, 3, 9]):
        expected[item] += pointer[back]
    assert added.numpy() == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_training_leaves_its_own_answers_out_of_the_counts(padding):
    """A window's losses are those of a model whose counts lack what its targets from each position on added."""
    model = with_counts(padding)
    histories, targets = (torch.zeros(1, LENGTH, dtype=torch.int64) for _ in range(2))
    columns = slice(LENGTH - 4, LENGTH) if padding == "left" else slice(0, 4)
    histories[0, columns], targets[0, columns] = torch.tensor(SEEN[0]), torch.tensor(FOLLOWED[0])
    losses, rows = [], []
    for position in range(4):
        kept = np.array(FOLLOWED)
        kept[0, position:] = 0
        counted = count_transitions([(np.array(SEEN), kept)], ITEMS, reach=2, decay=0.5, reverse=0.25)
        other = built("causal", padding, pointer=True, reach=2, num_transitions=counted.nnz)
        state = {name: value for name, value in model.state_dict().items() if not name.startswith("pairs.")}
        other.load_state_dict(state, strict=False)
        other.set_transitions(counted)
        # Totals say how common an item is; they are those of the whole.
        other.pairs.totals.copy_(model.pairs.totals)
        row = torch.zeros(1, LENGTH, dtype=torch.int64)
        row[0, columns.start + (3 - position if padding == "left" else 0) :][: position + 1] = torch.tensor(
            SEEN[0][: position + 1]
        )
        wanted = torch.tensor([FOLLOWED[0][position]])
        losses.append(functional.cross_entropy(other.scores(row), wanted).item())
        rows.append((row, wanted))
    assert model.sequence_loss(histories, targets).item() == pytest.approx(np.mean(losses), rel=1e-4, abs=1e-4)
    # One position a row: nothing later is in the row, so only the row's own target is left out.
    assert model.loss(*rows[-1]).item() == pytest.approx(losses[-1], rel=1e-4, abs=1e-4)
    assert model.loss(*rows[-1]).item() != pytest.approx(
        functional.cross_entropy(model.scores(rows[-1][0]), rows[-1][1]).item(), abs=1e-2
    )


def test_what_the_baseline_says_of_its_counts():
    counted = count_transitions([(np.array(SEEN), np.array(FOLLOWED))], ITEMS, 2, 0.5, 0.25)
    with pytest.raises(ConfigError, match=r"there are \d+ counts; the model was built for none"):
        built("causal").set_transitions(counted)
    with pytest.raises(ConfigError, match=r"there are \d+ counts; the model was built for 3"):
        built("causal", reach=2, num_transitions=3).set_transitions(counted)
    with pytest.raises(ConfigError, match=r"reach is 2, decay 1.5 and reverse 0.3; .* at most 1"):
        build_model("causal", num_items=5, reach=2, decay=1.5)


@pytest.mark.parametrize(("positions", "distinguished"), [("rotary", True), ("learned", True), ("none", False)])
def test_positions_of_the_baseline_tell_orders_apart(positions, distinguished):
    model = built("causal", positions=positions, num_layers=1)
    first, second = (model.user_vectors(torch.tensor([[*items, 0, 0]])) for items in ([3, 8, 5], [8, 3, 5]))
    assert bool((first - second).abs().max() > 1e-4) is distinguished
