"""What a checkpoint's lists lose to the beam and to bfloat16, on rows of a split.

python studies/decoding_error.py --checkpoint runs/industrial/sft --corpus runs/industrial/corpus --rows 500
"""

import argparse
import json
from dataclasses import asdict


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory")
    parser.add_argument("--corpus", required=True, help="corpus directory")
    parser.add_argument("--split", default="test", help="test or valid")
    parser.add_argument("--rows", type=int, default=500, help="rows, drawn at random")
    parser.add_argument("--beams", type=int, default=50, help="beam width and length of the lists")
    parser.add_argument("--batch-size", type=int, default=32, help="prompts at a time")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    args = parser.parse_args()

    import numpy as np
    import torch

    from minionerec.data.corpus import Corpus
    from minionerec.models.backbone.bundle import load_bundle
    from minionerec.models.decoding.decoder import decode_prompts, decoding_device
    from minionerec.models.decoding.exact import exact_prompts, search_error
    from minionerec.models.decoding.trie import Trie
    from minionerec.models.prompts.examples import ExampleBuilder, encode_prompt, special_texts

    corpus = Corpus.load(args.corpus)
    rows = corpus.rows(args.split)
    chosen = np.sort(np.random.default_rng(args.seed).permutation(len(rows))[: args.rows])
    rows = rows.take(chosen)
    bundle = load_bundle(args.checkpoint, dtype=torch.float32)
    model = bundle.model.to(decoding_device())
    builder = ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer))
    texts = [builder.prompt("next_sid", history=history) for history in rows.histories]
    prompts = encode_prompt(bundle.tokenizer, texts, bundle.max_prompt_length).ids
    trie = Trie.build(bundle.table.codes, bundle.code_ids)
    numbers = np.unique(bundle.table.codes, axis=0, return_inverse=True)[1].reshape(-1)
    targets = numbers[rows.targets]
    ks = sorted({1, 10, args.beams})
    beam, _ = decode_prompts(model, prompts, trie, args.beams, batch_size=args.batch_size, description="beams")
    exact, _, opened = exact_prompts(model, prompts, trie, args.beams, batch_size=8, description="exact")
    inner = int((trie.first_child[1:] > trie.first_child[:-1]).sum())
    half, _ = decode_prompts(
        model.to(torch.bfloat16), prompts, trie, args.beams, batch_size=args.batch_size, description="bfloat16"
    )
    figures = {
        "rows": len(prompts),
        "beam_against_exact": asdict(search_error(beam, exact, targets, ks)),
        "prefixes_opened": {
            "mean": float(opened.mean()),
            "median": float(np.median(opened)),
            "most": int(opened.max()),
            "of": inner,
        },
        "bfloat16_against_float32": asdict(search_error(half, beam, targets, ks)),
        "bfloat16_top_10_differ": float((half[:, :10] != beam[:, :10]).any(1).mean()),
        "bfloat16_top_1_differ": float((half[:, 0] != beam[:, 0]).mean()),
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
