"""What the campaign does to architectures: random small language models of every kind that transformers builds.

python tests/hostile/architecture_groups.py      # a table of all kinds, each with its plain configuration
"""

import contextlib
import io
import sys
from pathlib import Path
from random import Random

import numpy as np
import torch
from hostile.groups import Group, holds
from support.architectures import KINDS, VOCABULARY, plain_log_probs, small_config, small_model
from support.decoding import lists, sid_scores, token_ids
from trl.trainer.utils import add_fused_lm_head

from minionerec.core.errors import ConfigError
from minionerec.models.decoding.architectures import ARCHITECTURES, check_architecture, longest_sequence
from minionerec.models.decoding.beam import beam_search
from minionerec.models.decoding.trie import Trie
from minionerec.training.packing import TreeCollator, picked_losses, shared_prefix_scores

_ROUNDING = 1000 * torch.finfo(torch.float32).eps


def _equal(found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    difference = float((found.double() - wanted.double()).abs().max() / wanted.abs().max())
    holds(difference <= _ROUNDING, f"{what} differ from those of plain forward passes by {difference:.1e}")


def compare(config, rng: Random) -> None:
    """Check a model of a configuration against plain forward passes, in losses, likelihoods and lists.

    Raises:
        ConfigError: If it is refused, or cannot be built.
        Broken: If anything differs.
    """
    check_architecture(config, "base")
    try:
        model = small_model(config, rng.randrange(100))
        plain_log_probs(model, [5], [6])
    except Exception as error:  # a configuration at random may contradict itself
        raise ConfigError(f"cannot be built: {type(error).__name__}") from None
    most = min(20, (longest_sequence(config) or 100) - 3)
    prompts = [[rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, most))] for _ in range(3)]
    prompts[0] = prompts[1][: len(prompts[0])]
    completions = [[[rng.randrange(5, 8), rng.randrange(10, 12), 30] for _ in range(4)] for _ in prompts]
    every = sorted([*prompt, *ids] for prompt, many in zip(prompts, completions, strict=True) for ids in many)
    examples = [
        {"input_ids": ids, "labels": [-100] * (len(ids) - 3) + ids[-3:], "weights": [1.0] * len(ids)} for ids in every
    ]
    wanted = torch.cat([plain_log_probs(model, ids[:-3], ids[-3:]) for ids in every])
    with torch.no_grad():
        losses = picked_losses(model, model, TreeCollator(rng.choice([16, 64, 512]))(examples))[0]
    _equal(-losses.sort().values, wanted.sort(descending=True).values, "losses")
    codes = np.random.default_rng(rng.randrange(100)).integers(0, 6, (30, 3))
    trie = Trie.build(codes, token_ids(3, 6))
    for prompt, found in zip(prompts, lists(beam_search(model, prompts, trie, trie.n_sids)), strict=True):
        scores = sid_scores(model, prompt, trie)[torch.tensor([sid for sid, _ in found])]
        _equal(torch.tensor([score for _, score in found]), scores, "scores of a beam search")
        _equal(scores, scores.sort(descending=True).values, "places of a beam search")
    wanted = torch.cat(
        [plain_log_probs(model, prompt, ids) for prompt, many in zip(prompts, completions, strict=True) for ids in many]
    )
    add_fused_lm_head(model)
    with torch.no_grad():
        _equal(shared_prefix_scores(model, model, prompts, completions, 64)[0], wanted, "likelihoods")


def _config(kind: str, rng: Random | None):
    try:
        return small_config(kind, rng)
    except Exception as error:  # as in `compare`
        raise ConfigError(f"cannot be built: {type(error).__name__}") from None


def _strike(rng: Random, clean: Path, folder: Path) -> str:
    kind = rng.choice(list(ARCHITECTURES) if rng.random() < 0.5 else KINDS)
    compare(_config(kind, rng), rng)
    return "equal"


def _warm_up(folder: Path) -> None:
    """Import what a comparison needs, which takes longer than a case may."""
    compare(small_config("llama"), Random(0))


ARCHITECTURE_GROUPS = (Group("architectures", _warm_up, _strike, 0.6),)


def main() -> None:
    """Print what comes of each kind."""
    found: dict[str, list[str]] = {}
    for kind in KINDS:
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                compare(_config(kind, None), Random(0))
            words = "supported"
        except ConfigError as error:
            words = str(error).partition(", which is")[0].removeprefix(f"base: is a {kind} model, ")
        found.setdefault(words.partition(" (")[0], []).append(kind)
    for words, kinds in sorted(found.items(), key=lambda pair: -len(pair[1])):
        sys.stdout.write(f"| {words} | {len(kinds)} | {', '.join(kinds)} |\n")


if __name__ == "__main__":
    main()
