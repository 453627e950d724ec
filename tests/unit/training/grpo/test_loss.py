"""The loss against TRL's own, number by number and gradient by gradient; groups of a step, cut into slices."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from minionerec.models.backbone.build import scratch_model, train_tokenizer
from minionerec.training.grpo.loss import RolloutGroups, make_groups, policy_loss

GROUPS, SIZE, WIDTH = 3, 4, 5
# What TRL calls the losses.
NAMES = {"grpo": ("grpo", "token"), "bnpo": ("bnpo", "token"), "dapo": ("dapo", "token"), "gspo": ("grpo", "sequence")}


class GivenLogps(GRPOTrainer):
    """TRL's trainer, with the log-probabilities that a test gives."""

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        return self.given, torch.zeros_like(self.given), None


@pytest.fixture(scope="module")
def trl(tmp_path_factory):
    tokenizer = train_tokenizer(["a b c"], 300)
    args = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")),
        per_device_train_batch_size=GROUPS * SIZE,
        num_generations=SIZE,
        gradient_accumulation_steps=2,
        use_bias_correction_kl=False,
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = GivenLogps(
        model=scratch_model(tokenizer, 0, hidden_size=16, layers=1, heads=1, kv_heads=1, inner_size=16),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 12}),
        processing_class=tokenizer,
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 2
    return trainer


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("kind", NAMES)
def test_loss_and_gradient_are_trls(trl, kind, beta):
    rng = np.random.default_rng(0)
    lengths = torch.from_numpy(rng.integers(1, WIDTH + 1, GROUPS * SIZE))
    mask = torch.arange(WIDTH) < lengths.unsqueeze(1)
    logps = (torch.from_numpy(rng.normal(-2, 1, mask.shape)).float() * mask).requires_grad_()
    reference = torch.from_numpy(rng.normal(-2, 1, mask.shape)).float() * mask
    advantages = torch.from_numpy(rng.normal(0, 1, GROUPS * SIZE)).float()
    groups = RolloutGroups(
        prompts=[[7]] * GROUPS,
        completions=[[[1]] * SIZE] * GROUPS,
        mask=mask,
        advantages=advantages,
        scored=torch.ones(GROUPS, dtype=torch.bool),
        tokens=2 * int(lengths.sum()),
        may_rest=True,
        reference=reference if beta else None,
    )
    found, ratio, kl = policy_loss(logps, groups, kind=kind, beta=beta, slices=2)
    (mine,) = torch.autograd.grad(found, logps)
    trl.given, trl.beta = logps, beta
    trl.loss_type, trl.importance_sampling_level = NAMES[kind]
    ids = torch.ones(mask.shape, dtype=torch.long)
    loss = trl._compute_loss(
        trl.model,
        {
            "prompt_ids": ids,
            "prompt_mask": ids,
            "completion_ids": ids,
            "completion_mask": mask.long(),
            "advantages": advantages,
            "ref_per_token_logps": reference,
            "num_items_in_batch": torch.tensor(groups.tokens),
        },
    )
    (theirs,) = torch.autograd.grad(loss, logps)
    assert torch.equal(found, loss)
    assert torch.equal(mine, theirs)
    assert float(mine.abs().sum()) > 0
    assert ratio.eq(1).all() and (kl is None) == (beta == 0)


def test_a_slice_without_a_token_has_no_loss():
    mask = torch.zeros(SIZE, WIDTH, dtype=torch.bool)
    groups = RolloutGroups([[7]], [[[]] * SIZE], mask, torch.ones(SIZE), torch.ones(1, dtype=torch.bool), 1, True)
    for kind in NAMES:
        assert policy_loss(torch.zeros(mask.shape), groups, kind=kind)[0].item() == 0


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
