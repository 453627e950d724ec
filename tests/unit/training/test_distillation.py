"""Divergences between a teacher's next codes and a student's, and losses of terms that have nothing to compare."""

import pytest
import torch

from minionerec.training.distillation import divergences


def plain(logits, codes, teacher):
    """Both divergences of one row in double precision."""
    p = logits.detach().double().softmax(0)[codes]
    q = torch.tensor(teacher, dtype=torch.float64)
    own = p / p.sum()
    return float((q * (q / p).log()).sum()), float((own * (own / q).log()).sum())


def test_divergences_are_the_formula_and_codes_that_are_not_there_have_no_part():
    logits = torch.randn(3, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)
    tokens = torch.tensor([[2, 4, 6], [5, 3, -1], [-1, -1, -1]])
    probabilities = torch.tensor([[0.2, 0.5, 0.3], [0.9, 0.1, 0.0], [0.0, 0.0, 0.0]])
    log_probs = logits.log_softmax(1).gather(1, tokens.clamp(min=0))
    forward, reverse = divergences(log_probs, tokens, probabilities)
    wanted = [plain(logits[0], [2, 4, 6], [0.2, 0.5, 0.3]), plain(logits[1], [5, 3], [0.9, 0.1]), (0.0, 0.0)]
    assert torch.stack([forward, reverse], 1).tolist() == [pytest.approx(row, abs=1e-5) for row in wanted]
    (gradient,) = torch.autograd.grad(forward.sum() + reverse.sum(), logits)
    assert gradient.isfinite().all() and not gradient[2].any() and gradient[:2].any(1).all()


def test_a_code_that_the_teacher_never_gives_costs_a_finite_amount():
    tokens, probabilities = torch.tensor([[0, 1]]), torch.tensor([[1.0, 0.0]])
    forward, reverse = divergences(torch.tensor([[0.5, 0.5]]).log(), tokens, probabilities)
    assert forward.item() == pytest.approx(0.693147, abs=1e-5)
    assert reverse.item() == pytest.approx(-0.693147 + 0.5 * 20.723266, abs=1e-4)
