"""What a step of the sampled loss holds, and that the probabilities that it is there are right."""

import numpy as np
import pytest
import torch

from minionerec.models.backbone.catalogue.sampled import sampled_losses
from minionerec.training.catalogue.objectives import Sampler

RNG = np.random.default_rng(0)
N = 48
TARGETS = RNG.integers(N, size=200) // RNG.integers(1, 4, size=200)
COUNTS = np.bincount(TARGETS, minlength=N)
SHARES = COUNTS / len(TARGETS)
OWN = torch.tensor([3, 6, -100])  # numbers from 1: SIDs 2 and 5
OTHERS = 6
NEGATIVES = [1, 10, 20]
DRAWS = 1500


def draws(negatives, count, seed=0):
    """Samples of batches of which the first window stays, and the targets of the others are drawn anew."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    sampler = Sampler(COUNTS, negatives)
    others = torch.from_numpy(1 + rng.choice(N, size=(count, OTHERS // 2, 2), p=SHARES))
    for labels in torch.cat([OWN.expand(count, 1, 3), torch.nn.functional.pad(others, (0, 1))], 1):
        yield labels, sampler.draw(labels)


@pytest.fixture(scope="module", params=NEGATIVES)
def drawn(request):
    """Many samples with one number of negatives, made once for the tests that count over them."""
    return [sample for _, sample in draws(request.param, DRAWS)]


def test_a_step_holds_targets_and_what_was_drawn():
    seen_others = 0
    for labels, (columns, _) in draws(2, 50):
        numbers = columns.numbers
        targets = set((labels[labels > 0] - 1).tolist())
        assert numbers.tolist() == sorted(set(numbers.tolist()))
        assert targets <= set(numbers.tolist()) <= set(range(N))
        assert len(numbers) <= len(labels[labels > 0]) + 2
        seen_others += len(numbers) > len(targets)
    assert seen_others


def test_probabilities_of_being_there_are_the_frequencies(drawn):
    there, reckoned = torch.zeros(N), torch.full((N,), torch.nan)
    for columns, log_shares in drawn:
        there[columns.numbers] += 1
        reckoned[columns.numbers] = log_shares[0].exp()
    frequency = there / DRAWS
    assert (frequency[[2, 5]] == 1).all() and (reckoned[[2, 5]] == 1).all()
    deviation = (reckoned * (1 - reckoned) / DRAWS) ** 0.5  # of each frequency
    assert ((frequency - reckoned).abs() <= 4.5 * deviation + 1e-6).all()


def test_the_sum_of_the_softmax_is_estimated_without_bias(drawn):
    scores = torch.linspace(-1, 2, N)[torch.randperm(N, generator=torch.Generator().manual_seed(3))]
    sums = []
    for sample in drawn:
        row, wanted = torch.tensor([0]), torch.tensor([2])
        loss = sampled_losses(scores[sample[0].numbers][None], sample, row, wanted)
        sums.append(float((loss + scores[2]).exp()))
    error = np.std(sums) / np.sqrt(len(sums))
    assert np.mean(sums) == pytest.approx(float(scores.exp().sum()), abs=4 * error)


def test_what_another_window_bought_is_a_negative_but_never_against_itself():
    torch.manual_seed(0)
    sampler = Sampler(COUNTS, 1)
    labels = torch.tensor([[1, 4], [4, 1]])
    sample = columns, _ = sampler.draw(labels)
    scores = torch.zeros(4, len(columns), requires_grad=True)
    row, slot = (labels > 0).nonzero(as_tuple=True)
    wanted = labels[row, slot] - 1
    sampled_losses(scores, sample, row, wanted).sum().backward()
    own = columns.find(wanted)
    for position in range(4):
        assert scores.grad[position, own[position]] < 0
        others = torch.arange(len(columns)) != own[position]
        assert (scores.grad[position, others] > 0).all()


def test_the_same_seed_draws_the_same():
    one, other = (list(draws(3, 3, 5)) for _ in range(2))
    for (_, first), (_, second) in zip(one, other, strict=True):
        assert torch.equal(first[0].numbers, second[0].numbers)
        assert torch.equal(first[1], second[1])
