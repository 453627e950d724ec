"""Groups of a step, cut into slices."""

import numpy as np
import torch

from minionerec.training.grpo.loss import make_groups


def groups_of(scored=(True, False, True)):
    rows = [{"prompt": [1] * length, "target": 0, "tail": [], "history": None} for length in (2, 3, 4)]
    completions = [[[5, 6, 7], [5, 6]], [[5], [6]], [[5, 6], [7]]]
    advantages = np.arange(6, dtype=np.float32).reshape(3, 2)
    return make_groups(rows, completions, advantages, np.array(scored), 11, torch.device("cpu"))


def test_completions_are_masked_by_their_lengths():
    groups = groups_of()
    assert groups.mask.sum(1).tolist() == [3, 2, 1, 1, 2, 1]
    assert groups.scored_mask.sum(1).tolist() == [3, 2, 0, 0, 2, 1]
    assert len(groups) == 3 and groups.tokens == 11 and groups.may_rest


def test_slices_keep_whole_groups_and_the_width_of_the_step():
    first, second = groups_of((False, False, True)).parts(2)
    assert (len(first), len(second)) == (2, 1)
    assert first.mask.shape == (4, 3) and second.mask.shape == (2, 3)
    assert second.prompts == [[1] * 4] and second.completions == [[[5, 6], [7]]]
    assert second.advantages.tolist() == [4, 5] and second.scored.tolist() == [True]
    assert not first.scored.any() and first.may_rest  # some group of the step is scored
    assert not groups_of((False,) * 3).parts(2)[0].may_rest
