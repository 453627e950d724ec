"""Beam search three ways on one model: stock with a dictionary, stock with the trie, and the shared prefix.

python benchmarks/beam_search.py                                    # 0.5B shape, two prompts of 130 tokens, 50 beams
python benchmarks/beam_search.py --layers 8 --width 512 --json
python benchmarks/beam_search.py --tail 2                           # a newline and an end token, scored

Stock is `transformers.generate` with num_beams; all three stop by length, take the same weights, prompts and catalogue,
and their lists are compared before anything else is timed. `bound` is the ratio of multiplications in the model's
matrices, heads included, attention left out. `cpu_ratio` compares processor time, which says more than `ratio` where
other programs share the machine and one thread is used.
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
    parser.add_argument("--beams", type=int, default=50, help="beam width")
    parser.add_argument("--batch", type=int, default=2, help="prompts at a time")
    parser.add_argument("--items", type=int, default=5000, help="SIDs of the catalogue, three levels of 256 codes")
    parser.add_argument("--tail", type=int, default=0, help="fixed tokens behind each SID that are scored too")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"], help="of the weights")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
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


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run all three in turn and compare."""
    import numpy as np
    import torch
    from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, Qwen2Config, Qwen2ForCausalLM

    from minionerec.decoding.beam import beam_search
    from minionerec.decoding.logits_processor import TrieLogitsProcessor
    from minionerec.decoding.trie import Trie

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
    model = Qwen2ForCausalLM(config).to(args.device, getattr(torch, args.dtype)).eval()
    rng = np.random.default_rng(args.seed)
    ids = np.arange(3 * 256).reshape(3, 256) + args.vocabulary - 800
    tail = list(range(10, 10 + args.tail))
    trie = Trie.build(rng.integers(0, 256, (args.items, 3)), ids).to(args.device)
    searched = trie.with_tail(tail)
    texts = [[int(ids[level, code]) for level, code in enumerate(row)] + tail for row in trie.codes().tolist()]
    prompts = rng.integers(1000, args.vocabulary - 1000, (args.batch, args.prompt_length))
    batch = torch.from_numpy(prompts).to(args.device)
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

    def stock(processor: LogitsProcessor) -> list[list[tuple[list[int], float]]]:
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
            logits_processor=LogitsProcessorList([processor]),
        )
        found = list(
            zip(output.sequences[:, args.prompt_length :].tolist(), output.sequences_scores.tolist(), strict=True)
        )
        return [found[row * args.beams : (row + 1) * args.beams] for row in range(args.batch)]

    def ours() -> list[list[tuple[list[int], float]]]:
        found = beam_search(model, prompts.tolist(), searched, args.beams)
        return [
            [(texts[sid], score) for sid, score in zip(sids, scores, strict=True) if sid >= 0]
            for sids, scores in zip(found.sids.tolist(), found.scores.tolist(), strict=True)
        ]

    dictionary = Dictionary()
    processor = TrieLogitsProcessor(trie, args.prompt_length, tail, args.beams)
    ways: dict[str, Callable[[], Any]] = {
        "ours": ours,
        "stock, trie": lambda: stock(processor),
        "stock, dictionary": lambda: stock(dictionary),
    }
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
                answer = way()
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
    # Ours reads the head's weights directly, where no hook sees it: one row a prompt, then one a running beam.
    widths = np.diff(searched.level_start)[1:-1]
    tokens["ours"]["head"] = args.batch * (1 + int(np.minimum(widths, args.beams).sum()))
    parameters = sum(p.numel() for p in model.get_decoder().layers.parameters() if p.dim() == 2)
    work = {name: n["body"] * parameters + n["head"] * args.width * args.vocabulary for name, n in tokens.items()}
    median = {name: statistics.median(seconds) for name, seconds in times.items()}
    compared = [
        (a, b)
        for wanted, got in zip(answers["stock, dictionary"], answers["ours"], strict=True)
        for a, b in zip(wanted, got, strict=True)
    ]
    figures = {
        "ratio": round(median["stock, dictionary"] / median["ours"], 2),
        "ratio_to_stock_with_trie": round(median["stock, trie"] / median["ours"], 2),
        "cpu_ratio": round(statistics.median(busy["stock, dictionary"]) / statistics.median(busy["ours"]), 2),
        "bound": round(work["stock, dictionary"] / work["ours"], 2),
        "equal": all(a[0] == b[0] for a, b in compared) and answers["stock, trie"] == answers["stock, dictionary"],
        "score_difference": max(abs(a[1] - b[1]) for a, b in compared),
        "peak_memory_ratio": round(peaks["ours"] / peaks["stock, dictionary"], 4),
        "seconds": {name: [round(second, 3) for second in seconds] for name, seconds in times.items()},
        "cpu_seconds": {name: [round(second, 3) for second in seconds] for name, seconds in busy.items()},
        "peak_mib": {name: round(peak, 1) for name, peak in peaks.items()},
        "tokens": tokens,
        "threads": torch.get_num_threads(),
    }
    if args.profile:
        with torch.profiler.profile() as profiler:
            ours()
        print(
            profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=12, max_name_column_width=48),
            file=sys.stderr,
        )
    return figures


def main() -> int:
    """Measure and print; status 1 where the lists differ."""
    args = options()
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
            "score_difference",
        ):
            print(f"{name:26}{figures[name]}")
    return 0 if figures["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
