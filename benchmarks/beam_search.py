"""Beam search several ways on one model: stock with a dictionary, stock with the trie, and the shared prefix.

python benchmarks/beam_search.py                                    # 0.5B shape, two prompts of 130 tokens, 50 beams
python benchmarks/beam_search.py --layers 8 --width 512 --json
python benchmarks/beam_search.py --tail 2                           # a newline and an end token, scored
python benchmarks/beam_search.py --ways ours function --device cuda --dtype bfloat16 --batch 32 --check 4 --json

Stock is `transformers.generate` with num_beams, constrained by a logits processor that looks tokens up in a dictionary,
by the trie's, or (`function`) by `prefix_allowed_tokens_fn`; all stop by length, take the same weights, prompts and
catalogue, and their lists are compared before anything else is timed. `bound` is the ratio of multiplications in the
model's matrices, heads included, attention left out. `cpu_ratio` compares processor time, which says more than `ratio`
where other programs share the machine and one thread is used. Ratios are those of the last way to ours.

Bfloat16 puts near-equal beams in another order, so with `--check N` the lists of N prompts are first compared with the
same weights in float32, which is then what `equal` says; `shared` is the mean share of a list of ours that is also in
the other's, and `score_difference` that of scores at the same rank, both as timed. A way is run once before it is timed
on a GPU.
"""

import argparse
import ctypes
import gc
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from card import card_figures

WAYS = {"ours": "ours", "trie": "stock, trie", "function": "stock, function", "dictionary": "stock, dictionary"}


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24, help="transformer blocks")
    parser.add_argument("--width", type=int, default=896, help="hidden size")
    parser.add_argument("--heads", type=int, default=0, help="attention heads; 0: width / 64")
    parser.add_argument("--kv-heads", type=int, default=2, help="key and value heads")
    parser.add_argument(
        "--inner", type=int, default=0, help="feed-forward width; 0: 4864 for width 896, else 3 x width"
    )
    parser.add_argument("--vocabulary", type=int, default=152700, help="tokens")
    parser.add_argument("--prompt-length", type=int, default=130, help="tokens of a prompt")
    parser.add_argument("--beams", type=int, default=50, help="number of beams")
    parser.add_argument("--batch", type=int, default=2, help="prompts at a time")
    parser.add_argument("--items", type=int, default=5000, help="SIDs of the catalogue, three levels of 256 codes")
    parser.add_argument("--tail", type=int, default=0, help="fixed tokens after each SID that are scored too")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"], help="of the weights")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--ways", nargs="+", default=["ours", "trie", "dictionary"], choices=list(WAYS), help="timed")
    parser.add_argument("--check", type=int, default=0, help="prompts whose lists are compared in float32 first")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: as torch decides")
    parser.add_argument("--repeats", type=int, default=3, help="timed rounds; medians are shown")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, prompts and catalogue")
    parser.add_argument("--profile", action="store_true", help="also print where the time of ours goes")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    return parser.parse_args()


class Peak:
    """Largest memory above what is held when the block begins, in MiB; sampled each 2 ms on a CPU."""

    def __init__(self, device: str):
        self.device = device
        self.mib = 0.0

    def _resident(self) -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self._most = max(self._most, self._resident())

    def __enter__(self) -> "Peak":
        import torch

        gc.collect()
        if self.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._start = torch.cuda.memory_allocated()
        else:
            ctypes.CDLL(None).malloc_trim(0)
            self._start = self._most = self._resident()
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()
            most = torch.cuda.max_memory_allocated()
        else:
            self._stop.set()
            self._thread.join()
            most = max(self._most, self._resident())
        self.mib = (most - self._start) / 2**20


def compare(answers: dict[str, list[list[tuple[list[int], float]]]]) -> dict[str, Any]:
    """How far ours agrees with the last way, and whether all of stock's ways agree with one another."""
    ours, *others = answers.values()
    pairs = list(zip(others[-1], ours, strict=True))
    same = all([tokens for tokens, _ in a] == [tokens for tokens, _ in b] for a, b in pairs)
    shares = [len({tuple(tokens) for tokens, _ in a} & {tuple(tokens) for tokens, _ in b}) / len(b) for a, b in pairs]
    gaps = [abs(one[1] - other[1]) for a, b in pairs for one, other in zip(a, b, strict=True)]
    return {
        "equal": same and all(other == others[-1] for other in others),
        "shared": round(statistics.mean(shares), 4),
        "score_difference": max(gaps),
        "lists": len(pairs),
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run all ways in turn and compare."""
    import numpy as np
    import torch
    from stock import TrieLogitsProcessor
    from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, Qwen2Config, Qwen2ForCausalLM

    from minionerec.models.decoding.beam import beam_search
    from minionerec.models.decoding.trie import Trie

    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    config = Qwen2Config(
        vocab_size=args.vocabulary,
        hidden_size=args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads or args.width // 64,
        num_key_value_heads=args.kv_heads,
        intermediate_size=args.inner or (4864 if args.width == 896 else 3 * args.width),
        tie_word_embeddings=True,
        initializer_range=0.05,
    )
    with torch.device(args.device):
        model = Qwen2ForCausalLM(config).eval()
    if not args.check:
        model.to(getattr(torch, args.dtype))
    rng = np.random.default_rng(args.seed)
    ids = np.arange(3 * 256).reshape(3, 256) + args.vocabulary - 800
    tail = list(range(10, 10 + args.tail))
    trie = Trie.build(rng.integers(0, 256, (args.items, 3)), ids).to(args.device)
    searched = trie.with_tail(tail)
    texts = [[int(ids[level, code]) for level, code in enumerate(row)] + tail for row in trie.codes().tolist()]
    prompts = rng.integers(1000, args.vocabulary - 1000, (args.batch, args.prompt_length))
    steps = 3 + args.tail

    class Dictionary(LogitsProcessor):
        """The constraint as the field writes it: allowed tokens by prefix in a dictionary, looked up beam by beam."""

        def __init__(self) -> None:
            self.allowed: dict[str, list[int]] = {}
            for tokens in texts:
                for depth, token in enumerate(tokens):
                    known = self.allowed.setdefault("-".join(map(str, tokens[:depth])), [])
                    if token not in known:
                        known.append(token)

        def __call__(self, input_ids: Any, scores: Any) -> Any:
            mask = torch.full_like(scores, -torch.inf)
            for row, sequence in enumerate(input_ids):
                prefix = "-".join(map(str, sequence[args.prompt_length :].tolist()))
                mask[row, self.allowed.get(prefix, [])] = 0
            return scores + mask

    def stock(
        prompts: Any, processor: LogitsProcessor | None = None, function: Callable[..., list[int]] | None = None
    ) -> list[list[tuple[list[int], float]]]:
        batch = torch.from_numpy(prompts).to(args.device)
        output = model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            generation_config=GenerationConfig(
                num_beams=args.beams,
                num_return_sequences=args.beams,
                max_new_tokens=steps,
                do_sample=False,
                length_penalty=0.0,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_scores=True,  # as the field asks for, to have the scores of the lists
            ),
            logits_processor=LogitsProcessorList([] if processor is None else [processor]),
            prefix_allowed_tokens_fn=function,
        )
        found = list(
            zip(output.sequences[:, args.prompt_length :].tolist(), output.sequences_scores.tolist(), strict=True)
        )
        return [found[row * args.beams : (row + 1) * args.beams] for row in range(len(prompts))]

    def ours(prompts: Any) -> list[list[tuple[list[int], float]]]:
        found = beam_search(model, prompts.tolist(), searched, args.beams)
        return [
            [(texts[sid], score) for sid, score in zip(sids, scores, strict=True) if sid >= 0]
            for sids, scores in zip(found.sids.tolist(), found.scores.tolist(), strict=True)
        ]

    dictionary = Dictionary()
    processor = TrieLogitsProcessor(trie, args.prompt_length, tail, args.beams)
    known: dict[tuple[int, ...], list[int]] = {}
    for tokens in texts:
        for depth, token in enumerate(tokens):
            children = known.setdefault(tuple(tokens[:depth]), [])
            if token not in children:
                children.append(token)

    def function(_row: int, sequence: Any) -> list[int]:
        return known.get(tuple(sequence[args.prompt_length :].tolist()), [0])

    every: dict[str, Callable[[Any], Any]] = {
        "ours": ours,
        "stock, trie": lambda prompts: stock(prompts, processor),
        "stock, function": lambda prompts: stock(prompts, function=function),
        "stock, dictionary": lambda prompts: stock(prompts, dictionary),
    }
    ways = {name: every[name] for name in (WAYS[way] for way in args.ways)}
    checked = None
    if args.check:
        checked = compare({name: way(prompts[: args.check]) for name, way in ways.items()})
        model.to(getattr(torch, args.dtype))
    counted = {"body": 0, "head": 0}
    hooks = [
        model.get_input_embeddings().register_forward_pre_hook(
            lambda _, inputs: counted.update(body=counted["body"] + inputs[0].numel())
        ),
        model.lm_head.register_forward_hook(
            lambda _, inputs, output: counted.update(head=counted["head"] + output[..., 0].numel())
        ),
    ]
    beam_search(model, prompts[:, :4].tolist(), searched, args.beams)  # warms the libraries up
    if args.device == "cuda":
        for way in ways.values():
            way(prompts)
    times: dict[str, list[float]] = {name: [] for name in ways}
    busy: dict[str, list[float]] = {name: [] for name in ways}
    tokens, peaks, answers = {}, {}, {}
    for repeat in range(max(args.repeats, 3)):
        for name, way in ways.items():
            if repeat >= args.repeats and name != "ours":  # ours takes little: it is timed three times at least
                continue
            counted.update(body=0, head=0)
            with Peak(args.device) as peak:
                start, start_busy = time.perf_counter(), time.process_time()
                answer = way(prompts)
                if args.device == "cuda":
                    torch.cuda.synchronize()
                times[name].append(time.perf_counter() - start)
                busy[name].append(time.process_time() - start_busy)
            if repeat == 0:
                tokens[name], peaks[name], answers[name] = dict(counted), peak.mib, answer
                if not args.json:
                    print(f"{name}: {times[name][-1]:.2f} s", file=sys.stderr)
    for hook in hooks:
        hook.remove()
    card = card_figures(args.device, args.dtype)
    # Ours reads the head's weights directly, where no hook sees it: one row a prompt, then one a running beam.
    widths = np.diff(searched.level_start)[1:-1]
    tokens["ours"]["head"] = args.batch * (1 + int(np.minimum(widths, args.beams).sum()))
    parameters = sum(p.numel() for p in model.get_decoder().layers.parameters() if p.dim() == 2)
    work = {name: n["body"] * parameters + n["head"] * args.width * args.vocabulary for name, n in tokens.items()}
    last = WAYS[args.ways[-1]]
    median = {name: statistics.median(seconds) for name, seconds in times.items()}
    found, trie_seconds = compare(answers), median.get("stock, trie")
    figures = {
        "ratio": round(median[last] / median["ours"], 2),
        "ratio_to_stock_with_trie": round(trie_seconds / median["ours"], 2) if trie_seconds else None,
        "cpu_ratio": round(statistics.median(busy[last]) / statistics.median(busy["ours"]), 2),
        "bound": round(work[last] / work["ours"], 2),
        "equal": (found if checked is None else checked)["equal"],
        "checked_in_float32": checked,
        "shared": found["shared"],
        "score_difference": found["score_difference"],
        "peak_memory_ratio": round(peaks["ours"] / peaks[last], 4),
        "rows_per_second": {name: round(args.batch / seconds, 2) for name, seconds in median.items()},
        "seconds": {name: [round(second, 4) for second in seconds] for name, seconds in times.items()},
        "cpu_seconds": {name: [round(second, 4) for second in seconds] for name, seconds in busy.items()},
        "peak_mib": {name: round(peak, 1) for name, peak in peaks.items()},
        "weights_mib": round(sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20, 1),
        "tokens": tokens,
        "threads": torch.get_num_threads(),
        **card,
        "asked": vars(args),
    }
    if args.profile:
        with torch.profiler.profile() as profiler:
            ours(prompts)
        print(
            profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=12, max_name_column_width=48),
            file=sys.stderr,
        )
    return figures


def main() -> int:
    """Measure and print; status 1 where the lists differ."""
    args = options()
    if args.ways[0] != "ours" or len(args.ways) < 2:
        sys.exit("--ways: ours first, and at least one other.")
    figures = measure(args)
    if args.json:
        print(json.dumps(figures))
    else:
        print(f"\n{'':20}{'seconds':>10}{'peak MiB':>10}{'tokens':>10}{'head rows':>10}")
        for name, seconds in figures["seconds"].items():
            count = figures["tokens"][name]
            print(
                f"{name:20}{statistics.median(seconds):10.2f}{figures['peak_mib'][name]:10.1f}"
                f"{count['body']:10,}{count['head']:10,}"
            )
        for name in (
            "ratio",
            "ratio_to_stock_with_trie",
            "cpu_ratio",
            "bound",
            "peak_memory_ratio",
            "equal",
            "shared",
            "score_difference",
            "rows_per_second",
        ):
            print(f"{name:26}{figures.get(name)}")
    return 0 if figures["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
