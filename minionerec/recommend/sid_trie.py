"""The trie of an exported model: valid next tokens, and a beam search that needs only log-probabilities.

This file is part of every export, next to `trie.safetensors`, and does not import the project that wrote it: numpy and
safetensors are enough. Run as a script it loads the export with transformers, runs the examples of `prompts.json` with
stock `generate`, and reports whether the lists are as expected:

    python sid_trie.py
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

# For each sequence of token ids, the natural log-probabilities of the given tokens, in the same order;
# each from a softmax over the whole vocabulary.
LogProbs = Callable[[list[list[int]], list[list[int]]], Sequence[Sequence[float]]]

Beam = tuple[float, int, list[int]]  # log-probability, node, token ids

_NO_CANDIDATE = -1e8  # `generate` gives lower scores to beams without a candidate


class SidTrie:
    """All semantic IDs of a catalogue; node 0 is the root, siblings are adjacent.

    Twelve bytes per node: a million SIDs of three codes take 12 to 25 MB.

    Args:
        folder: The folder of `trie.safetensors`.

    Attributes:
        first_child: int32 (M + 1,); the children of node n are first_child[n] to first_child[n + 1] - 1.
        token: int32 (M,), token id that leads to each node; -1 at the root.
        sid: int32 (M,), number of the SID that ends at each node, from 0 in the order of `sid_to_item.json`; else -1.
    """

    def __init__(self, folder: str | Path):
        arrays = load_file(Path(folder) / "trie.safetensors")
        self.first_child, self.token, self.sid = (arrays[name] for name in ("first_child", "token", "sid"))

    def children(self, node: int) -> range:
        """Nodes below a node."""
        return range(int(self.first_child[node]), int(self.first_child[node + 1]))

    def tokens(self, nodes: range) -> list[int]:
        """Token ids of adjacent nodes."""
        found: list[int] = self.token[nodes.start : nodes.stop].tolist()
        return found

    def child(self, node: int, token: int) -> int:
        """The node that a token leads to, -1 if there is none."""
        below = self.children(node)
        found = np.flatnonzero(self.token[below.start : below.stop] == token)
        return below[int(found[0])] if len(found) else -1

    def allowed(self, tokens: Sequence[int], end: Sequence[int] = ()) -> list[int]:
        """Token ids that may follow; none after an invalid prefix or a complete SID.

        Args:
            tokens: The tokens generated after the prompt.
            end: Tokens that follow a complete SID, if any.
        """
        node, ended = 0, 0
        for token in tokens:
            onward = -1 if ended else self.child(node, token)
            if onward >= 0:
                node = onward
            elif ended < len(end) and self.sid[node] >= 0 and token == end[ended]:
                ended += 1
            else:
                return []
        if ended:
            return list(end[ended : ended + 1])
        return self.tokens(self.children(node)) + (list(end[:1]) if self.sid[node] >= 0 else [])

    def prefix_allowed_tokens_fn(self, prompt_length: int, end: Sequence[int] = ()) -> Callable[[int, Any], list[int]]:
        """The argument of this name of stock `generate`.

        Beams without a candidate are filled by `generate` with invalid tokens at a score of minus infinity; there any
        token may follow.

        Args:
            prompt_length: Tokens of the prompts, padding included.
            end: As in `allowed`.
        """
        return lambda _, ids: self.allowed(ids[prompt_length:].tolist(), end) or [0]

    def search(self, log_probs: LogProbs, prompt: Sequence[int], k: int) -> list[tuple[list[int], float]]:
        """Beam search with the log-probabilities of any engine, called once per code of an SID.

        Args:
            log_probs: Queries the engine; prompts and beams are token ids.
            prompt: Token ids of one prompt.
            k: Number of beams, and length of the list.

        Returns:
            Token ids of SIDs with their log-probabilities, best first; fewer than `k` where there are fewer.
        """
        beams: list[Beam] = [(0.0, 0, [])]
        done: list[tuple[list[int], float]] = []
        while beams:
            below = [self.children(node) for _, node, _ in beams]
            scores = log_probs(
                [[*prompt, *generated] for _, _, generated in beams], [self.tokens(nodes) for nodes in below]
            )
            totals = np.concatenate([beam[0] + np.asarray(row, float) for beam, row in zip(beams, scores, strict=True)])
            nodes = np.concatenate([np.arange(span.start, span.stop) for span in below])
            parents = np.repeat(np.arange(len(beams)), [len(span) for span in below])
            order = np.argsort(-totals, kind="stable")
            best = order[:k]
            running = order[self.first_child[nodes[order] + 1] > self.first_child[nodes[order]]][:k]
            for total, node, generated in self._grow(beams, parents[best], nodes[best], totals[best]):
                if self.sid[node] >= 0:
                    done.append((generated, total))
            done.sort(key=lambda pair: -pair[1])
            beams = self._grow(beams, parents[running], nodes[running], totals[running])
        return done[:k]

    def _grow(self, beams: list[Beam], parents: np.ndarray, nodes: np.ndarray, totals: np.ndarray) -> list[Beam]:
        """Beams extended by one code."""
        each = zip(parents.tolist(), nodes.tolist(), totals.tolist(), strict=True)
        return [(total, node, [*beams[old][2], int(self.token[node])]) for old, node, total in each]


def stock_lists(model: Any, trie: SidTrie, prompt: Sequence[int], k: int, steps: int) -> list[tuple[list[int], float]]:
    """The lists of stock `generate`: token ids of SIDs with their log-probabilities, best first.

    Args:
        model: A causal language model of transformers.
        trie: The SIDs, all of `steps` codes.
        prompt: Token ids.
        k: Number of beams, at least 2.
        steps: Codes of an SID.
    """
    import torch

    ids = torch.tensor([list(prompt)], device=model.device)
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=steps,
        num_beams=k,
        num_return_sequences=k,
        do_sample=False,
        length_penalty=0.0,
        early_stopping=False,
        prefix_allowed_tokens_fn=trie.prefix_allowed_tokens_fn(ids.shape[1]),
        return_dict_in_generate=True,
        output_scores=True,
    )
    tokens = found.sequences[:, ids.shape[1] :].tolist()
    pairs = zip(tokens, found.sequences_scores.tolist(), strict=True)
    return [(generated, score) for generated, score in pairs if score > _NO_CANDIDATE]


def model_log_probs(model: Any) -> LogProbs:
    """Log-probabilities from a model of transformers: sequences of one length, no cache."""
    import torch

    def log_probs(sequences: list[list[int]], tokens: list[list[int]]) -> list[list[float]]:
        with torch.no_grad():
            rows = model(torch.tensor(sequences, device=model.device)).logits[:, -1].float().log_softmax(-1)
        return [row[ids].tolist() for row, ids in zip(rows, tokens, strict=True)]

    return log_probs


def check(folder: str | Path = ".") -> str:
    """Run the examples of an export; returns a line about differences from the expected lists.

    Raises:
        SystemExit: If scores differ by more than the weights' precision explains, or transformers cannot load the
            model.
    """
    import torch
    import transformers

    about = json.loads((Path(folder) / "prompts.json").read_text(encoding="utf-8"))
    versions = f"transformers {transformers.__version__}, and the export was written with {about['transformers']}"
    load = transformers.AutoModelForCausalLM.from_pretrained
    try:
        model = load(folder, dtype="auto", use_safetensors=True, trust_remote_code=False)
    except (ValueError, KeyError, TypeError, ImportError) as error:
        reason = " ".join(str(error).split())[:300]
        raise SystemExit(f"The model cannot be loaded with {versions}: {type(error).__name__}, {reason}") from None
    model, trie = model.eval(), SidTrie(folder)
    k, equal, largest = about["beams"], 0, 0.0
    for example in about["examples"]:
        if about["shortest"] == about["longest"]:
            found = stock_lists(model, trie, example["input_ids"], max(k, 2), about["longest"])[:k]
        else:
            found = trie.search(model_log_probs(model), example["input_ids"], k)
        equal += [generated for generated, _ in found] == example["sid_tokens"]
        wanted = example["scores"]
        far = [abs(score - other) for (_, score), other in zip(found, wanted, strict=False)]
        largest = max([largest, *far, 0.0 if len(found) == len(wanted) else np.inf])
    result = f"{equal} of {len(about['examples'])} lists are equal; scores differ by at most {largest:.2g}."
    if largest > (1e-3 if model.dtype == torch.float32 else 0.1):
        another = about["transformers"] != transformers.__version__
        reason = f" Or it is read otherwise: this is {versions}." if another else ""
        raise SystemExit(f"{result} The model or the trie is not the exported one.{reason}")
    return result


if __name__ == "__main__":
    sys.stdout.write(check(Path(__file__).parent) + "\n")
