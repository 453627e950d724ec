"""RPG: scores and losses by brute force, ties, GPT-2's layers, padding, what it refuses."""

import numpy as np
import pytest
import torch
from support.histories import histories_of, scrambled
from support.rounding import assert_near
from torch.nn import functional
from transformers import GPT2Config, GPT2Model

from minionerec.contrib.sequential_zoo import rpg
from minionerec.core.errors import ConfigError
from minionerec.data.rows import SplitExamples
from minionerec.models.nn.layers import readout_slots, take_slots
from minionerec.models.sequential.rank import rank_rows, top_items
from minionerec.models.sequential.registry import build_model

ITEMS, LENGTH, DIGITS, CODES = 30, 10, 5, 7
SMALL = {"hidden_size": 16, "inner_size": 24, "num_heads": 2, "num_digits": DIGITS, "num_codes": CODES}
CPU = torch.device("cpu")


def digits_of(seed=0):
    """Digits of all items; the last three items have those of the first."""
    digits = torch.randint(0, CODES, (ITEMS, DIGITS), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    digits[-3:] = digits[0]
    return digits


def built(padding="right", seed=0, **hyper):
    """A small model in evaluation mode whose weights are large enough to tell things apart."""
    torch.manual_seed(seed)
    model = build_model("rpg", num_items=ITEMS, max_len=LENGTH, padding=padding, **{**SMALL, **hyper})
    model.set_digits(digits_of())
    return scrambled(model).eval()


def brute_force(model, vectors):
    """Scores of all items from the definition, item by item and digit by digit, in double: (K, V)."""
    weights = {name: value.double() for name, value in model.state_dict().items()}
    tables = weights["codes.weight"].view(DIGITS, CODES, -1)
    log_probs = []
    for digit in range(DIGITS):
        rows = slice(16 * digit, 16 * (digit + 1))
        inner = vectors.double() @ weights["heads.weight"][rows].T + weights["heads.bias"][rows]
        state = vectors.double() + inner * torch.sigmoid(inner)
        cosines = functional.cosine_similarity(state[:, None], tables[digit][None], dim=-1)
        log_probs.append((cosines / model.temperature).log_softmax(-1))
    scores = torch.full((len(vectors), ITEMS + 1), -torch.inf, dtype=torch.float64)
    for item in range(1, ITEMS + 1):
        own = model.digits[item].tolist()
        scores[:, item] = sum(log_probs[digit][:, code] for digit, code in enumerate(own)) / DIGITS
    return scores


@pytest.mark.parametrize("padding", ["left", "right"])
def test_scores_are_means_of_gathered_log_probabilities(padding):
    model = built(padding)
    histories = histories_of([0, 1, 4, 4, LENGTH], padding, LENGTH, ITEMS)
    vectors = model.user_vectors(histories)
    expected, scores = brute_force(model, vectors), model.scores(histories)
    assert scores.shape == (5, ITEMS + 1) and bool((scores[:, 0] == -torch.inf).all())
    assert_near(scores[:, 1:], expected[:, 1:])
    assert scores[:, 1:].std(1).min() > 0.1
    everywhere = model.logits(model.position_vectors(histories))
    assert everywhere.shape == (5, LENGTH, ITEMS + 1)
    assert_near(take_slots(everywhere, readout_slots(histories, padding))[:, 1:], scores[:, 1:])


def test_ranking_is_that_of_brute_force_and_equal_digits_tie():
    model = built().double()  # in which nothing but equal digits ties
    histories = histories_of([1 + row % LENGTH for row in range(60)], "right", LENGTH, ITEMS)
    read = [row[row > 0].numpy() - 1 for row in histories]
    rows = SplitExamples.of([""] * 60, read, np.arange(60) % ITEMS)
    expected = brute_force(model, model.user_vectors(histories))
    expected[:, -3:] = expected[:, 1:2]  # equal to the last bit, as their digits are
    order = np.argsort(-expected.detach().numpy()[:, 1:], kind="stable") + 1
    found, values = top_items(model, rows, "keep", CPU, ITEMS)
    assert found.tolist() == order.tolist()
    ranks = rank_rows(model, rows, "keep", CPU)["item"]
    pairs = zip(order.tolist(), rows.targets + 1, strict=True)
    assert ranks.tolist() == [row.index(target) + 1 for row, target in pairs]
    position = found.tolist()[0].index(1)
    assert found[0, position : position + 4].tolist() == [1, ITEMS - 2, ITEMS - 1, ITEMS]
    assert len(set(values[0, position : position + 4].tolist())) == 1


def test_items_go_in_blocks_of_the_same_bits(monkeypatch):
    model, histories = built(), histories_of([3, 5, 9], "right", LENGTH, ITEMS)
    whole = model.scores(histories)
    monkeypatch.setattr(rpg, "_ITEMS_AT_ONCE", 4)
    assert torch.equal(model.scores(histories), whole)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_losses_are_mean_cross_entropies_of_digits(padding):
    model = built(padding)
    histories = histories_of([2, 5, LENGTH], padding, LENGTH, ITEMS)
    targets = torch.where(histories > 0, histories % ITEMS + 1, 0)
    rows = torch.arange(3)
    wanted = targets[rows, readout_slots(histories, padding)]
    scores = brute_force(model, model.user_vectors(histories))
    assert_near(model.loss(histories, wanted), -scores[rows, wanted].mean())
    row, slot = targets.nonzero(as_tuple=True)
    scores = brute_force(model, model.position_vectors(histories)[row, slot])
    expected = -scores[torch.arange(len(row)), targets[row, slot]].mean()
    assert_near(model.sequence_loss(histories, targets), expected)


def test_an_item_is_the_mean_of_its_code_vectors_and_a_head_starts_as_the_identity():
    model = build_model("rpg", num_items=ITEMS, max_len=LENGTH, **SMALL)
    model.set_digits(digits_of())
    matrix, table = model.item_matrix(), model.codes.weight.view(DIGITS, CODES, -1)
    assert matrix[1:].std().item() == pytest.approx(model.slots.weight.std().item(), rel=0.2)
    assert bool((matrix[0] == 0).all())
    for item in (1, 17, ITEMS):
        own = [table[digit, code] for digit, code in enumerate(model.digits[item].tolist())]
        assert torch.allclose(matrix[item], torch.stack(own).mean(0), atol=1e-6)
    vectors = torch.randn(4, 16)
    cosines = functional.cosine_similarity(vectors[None, :, None], table[:, None], dim=-1)
    assert torch.allclose(model.digit_log_probs(vectors), (cosines / 0.03).log_softmax(-1), atol=1e-4)


def test_layers_are_those_of_gpt2():
    model = built(num_layers=2)
    shape = {"vocab_size": 2, "n_positions": LENGTH, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_inner": 24}
    config = GPT2Config(**shape, activation_function="gelu")
    theirs, ours = GPT2Model(config).eval(), model.state_dict()
    names = {"attention_norm": "ln_1", "norm": "ln_2", "qkv": "attn.c_attn", "out": "attn.c_proj"}
    names |= {"inner": "mlp.c_fc", "outer": "mlp.c_proj"}
    state = {"wte.weight": torch.zeros(2, 16), "wpe.weight": ours["slots.weight"]}
    state |= {f"ln_f.{part}": ours[f"norm.{part}"] for part in ("weight", "bias")}
    for layer in range(2):
        for name, other in names.items():
            for part in ("weight", "bias"):
                value = ours[f"layers.{layer}.{name}.{part}"]
                state[f"h.{layer}.{other}.{part}"] = value.T if value.ndim == 2 else value
    theirs.load_state_dict(state)
    histories = histories_of([3, LENGTH], "right", LENGTH, ITEMS)
    given = {"inputs_embeds": model.item_vectors(histories), "attention_mask": (histories > 0).long()}
    items = histories > 0
    assert torch.allclose(model.position_vectors(histories)[items], theirs(**given)[0][items], atol=1e-4)


def test_what_does_not_serve():
    model = build_model("rpg", num_items=ITEMS, max_len=LENGTH, **SMALL)
    with pytest.raises(ConfigError, match=r"digits have shape \(29, 5\); expected \(30, 5\)"):
        model.set_digits(digits_of()[1:])
    digits = digits_of()
    digits[6, 2] = CODES
    with pytest.raises(ConfigError, match=r"item 7 has digits .*, which must be from 0 to 6"):
        model.set_digits(digits)
    with pytest.raises(ConfigError, match=r"temperature is 0\.0, num_digits 5"):
        build_model("rpg", num_items=ITEMS, **SMALL, temperature=0.0)
    with pytest.raises(ConfigError, match="SASRec reads no digits"):
        build_model("sasrec", num_items=ITEMS).set_digits(digits)
