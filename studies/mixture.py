"""What a language model adds to a catalogue model: their probabilities mixed, over all rows and over later ones.

python studies/mixture.py --language runs/industrial/sft --split valid
python studies/mixture.py --language A/sft B/sft --catalogue A/catalogue B/catalogue --split test --shares 0 0.3

For each row the catalogue model's best SIDs are scored by both models exactly and ranked by (1 - share) log q + share
log p, where p is the language model's. Several checkpoints are seeds: a row's value is its mean. Differences to share 0
are paired over rows. Of a corpus with times (the published data: `minionerec prepare-data --times FILE`) the rows whose
target came on a later day than the history's newest item are shown too.
"""

import argparse
import sys

import numpy as np
import torch

from minionerec.core.commands import run_command
from minionerec.core.log import progress
from minionerec.data.corpus import Corpus
from minionerec.metrics.statistics import paired_differences
from minionerec.metrics.tables import markdown_table
from minionerec.models.backbone.bundle import Bundle, load_bundle
from minionerec.models.backbone.catalogue import CatalogueModel
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import ExampleBuilder, encode_prompt, special_texts
from minionerec.reports.cells import with_interval
from minionerec.training.packing import pack_groups, picked_logits

WIDTH, AT_ONCE, ROW_TOKENS = 100, 16, 512


def prompts_of(bundle: Bundle, corpus: Corpus, split: str) -> tuple[list[list[int]], np.ndarray]:
    """Token ids of the rows' prompts in a checkpoint's own wording, and SID numbers of their targets."""
    builder = ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer))
    examples = builder.build("next_sid", split)
    ids = encode_prompt(bundle.tokenizer, [example.prompt for example in examples], bundle.max_prompt_length)[0]
    return ids, bundle.table.sid_numbers[[example.target for example in examples]]


@torch.inference_mode()
def best_sids(bundle: Bundle, prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The catalogue model's best SIDs of each prompt, int64 (R, K), and their log-probabilities, float32 (R, K)."""
    model = bundle.model
    assert isinstance(model, CatalogueModel), f"{bundle.path} holds a {type(model).__name__}"
    found = [
        model.leaf_log_probs(model.histories_of(prompts[start : start + 256])).topk(WIDTH, dim=1)
        for start in range(0, len(prompts), 256)
    ]
    return torch.cat([part.indices for part in found]), torch.cat([part.values for part in found])


@torch.inference_mode()
def language_scores(bundle: Bundle, prompts: list[list[int]], sids: torch.Tensor) -> torch.Tensor:
    """The language model's log-probabilities of SIDs after prompts: float32 (R, K)."""
    codes = torch.from_numpy(Trie.build(bundle.table.codes, bundle.code_ids).codes()).long()
    levels = torch.arange(codes.shape[1])
    tokens = torch.from_numpy(bundle.code_ids)[levels, codes]  # (S, L)
    scores = []
    for start in progress(range(0, len(prompts), AT_ONCE), "language model", unit="batches"):
        part = slice(start, start + AT_ONCE)
        packed = pack_groups(prompts[part], tokens[sids[part]].tolist(), ROW_TOKENS)
        logits = picked_logits(bundle.model, bundle.model, packed)
        own = logits.float().log_softmax(-1).gather(1, packed["labels"][:, None])
        scores.append(own.view(-1, WIDTH, len(levels)).sum(-1))
    return torch.cat(scores)


def values_of(scores: torch.Tensor, hits: torch.Tensor) -> np.ndarray:
    """NDCG@10 and HR@10 of each row: float64 (2, R)."""
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :10]
    hit = hits.gather(1, order).double()
    gains = 1 / torch.log2(torch.arange(2, 12, dtype=torch.float64))
    return torch.stack([hit @ gains, hit.sum(1)]).numpy()


def later_rows(corpus: Corpus, split: str) -> np.ndarray | None:
    """Which rows have a target of a later day than the history's newest item; None where that is not known."""
    times = corpus.rows(split).times
    return None if times is None else times.later


def main() -> None:
    """Score, mix and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--language", nargs="+", default=["runs/industrial/sft"], help="checkpoints, one a seed")
    parser.add_argument("--catalogue", nargs="+", default=["runs/industrial/catalogue"], help="as many")
    parser.add_argument("--corpus", default="runs/industrial/corpus")
    parser.add_argument("--split", default="valid", choices=("valid", "test"))
    parser.add_argument("--shares", type=float, nargs="+", default=[0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    corpus = Corpus.load(args.corpus)
    found: dict[float, list[np.ndarray]] = {share: [] for share in args.shares}
    for language, catalogue in zip(args.language, args.catalogue, strict=True):
        teacher, student = load_bundle(catalogue), load_bundle(language)
        prompts, targets = prompts_of(teacher, corpus, args.split)
        sids, known = best_sids(teacher, prompts)
        reported = language_scores(student, prompts_of(student, corpus, args.split)[0], sids)
        hits = sids == torch.from_numpy(targets)[:, None]
        for share, values in found.items():
            values.append(values_of((1 - share) * known + share * reported, hits))
    later, users = later_rows(corpus, args.split), corpus.rows(args.split).users
    lines = []
    for name, rows in (("all rows", None), ("later rows", later)):
        if rows is None and name != "all rows":
            sys.stdout.write("later rows: no file of days (data/README.md)\n")
            continue
        first = np.mean(found[args.shares[0]], axis=0)
        for share, values in found.items():
            mean = np.mean(values, axis=0)
            mean, base = (part if rows is None else part[:, rows] for part in (mean, first))
            gap = paired_differences({"": mean[0]}, {"": base[0]}, clusters=users if rows is None else users[rows])[""]
            cells = [f"{mean[0].mean():.4f}", f"{mean[1].mean():.4f}", with_interval(gap), f"{gap.p:.3f}"]
            lines.append([name, f"{share:g}", *cells])
    headers = ["", "share", "NDCG@10", "HR@10", "NDCG@10 minus that of the first share", "p"]
    sys.stdout.write(f"{markdown_table(headers, lines)}\n")


if __name__ == "__main__":
    run_command(main)
