"""One GRPO step two ways: the project's trainer, and TRL's own with stock beam search and stock scoring.

python benchmarks/grpo_step.py                                      # 12 layers x 896, four prompts of 130 tokens
python benchmarks/grpo_step.py --prompt-length 250 --json
python benchmarks/grpo_step.py --zero-variance-share 0.7 --prompts 10 --json
python benchmarks/grpo_step.py --layers 24 --vocabulary 152700 --prompts 16 --at-once 4 --device cuda --dtype bfloat16
python benchmarks/grpo_step.py --layers 2 --width 64 --inner 128 --vocabulary 2000 --prompt-length 30 --prompts 2

A step is rollout, rewards, reference pass, policy pass and backward pass, as `Trainer.train` runs it; the optimiser is
left out. Both take the same weights, prompts, catalogue and rewards, as many prompts at a time, and stock is set to
search beams once for each prompt instead of once for each copy. Each way runs in a process of its own. `equal` says
whether their rollouts are the same and their gradients differ by less than a thousandth. In bfloat16, whose rounding
puts near-equal beams in another order, that is asked of at most four prompts in float32, before anything is timed.

The reference is the policy before a small random change. Where a share of the groups has no variance it is the policy
itself, so that the KL term, which is not computed for these groups, has no gradient either way.

`peak_memory_ratio` compares the largest memory above that of the two models, gradients included. `bound` is the ratio
of multiplications in the model's matrices, the head included at the positions that predict a completion token,
attention left out; on a CPU, TRL computes the head at all positions, so `ratio` may come out above it. On a GPU the
first step is not counted, and `used` is the share of the card's own speed of products that these multiplications reach.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from card import card_figures, forget_peak, used_share, wait

WAYS = ("ours", "stock")


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12, help="transformer blocks")
    parser.add_argument("--width", type=int, default=896, help="hidden size")
    parser.add_argument("--heads", type=int, default=0, help="attention heads; 0: width / 64")
    parser.add_argument("--kv-heads", type=int, default=2, help="key and value heads")
    parser.add_argument(
        "--inner", type=int, default=0, help="feed-forward width; 0: 4864 for width 896, else 3 x width"
    )
    parser.add_argument("--vocabulary", type=int, default=32000, help="tokens")
    parser.add_argument("--prompt-length", type=int, default=130, help="tokens of a prompt")
    parser.add_argument("--generations", type=int, default=16, help="rollouts of each prompt, and beams")
    parser.add_argument("--prompts", type=int, default=4, help="prompts of a step")
    parser.add_argument("--at-once", type=int, default=1, help="prompts in a forward and backward pass")
    parser.add_argument("--items", type=int, default=3000, help="SIDs of the catalogue, three levels of 256 codes")
    parser.add_argument("--tail", type=int, default=2, help="fixed tokens after each SID")
    parser.add_argument("--zero-variance-share", type=float, default=0.0, help="share of groups with equal rewards")
    parser.add_argument("--beta", type=float, default=0.01, help="weight of the KL term")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="of weights and gradients")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="where to compute")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: as torch decides")
    parser.add_argument("--repeats", type=int, default=3, help="timed steps of stock; of ours three at least")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, prompts, catalogue and rewards")
    parser.add_argument("--profile", action="store_true", help="also print where the time of ours goes")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def make_model(args: argparse.Namespace) -> None:
    """Write the model and its tokenizer, whose words are t2, t3 and so on."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(args.seed)
    config = Qwen2Config(
        vocab_size=args.vocabulary,
        hidden_size=args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        intermediate_size=args.inner,
        tie_word_embeddings=True,
        initializer_range=0.05,
    )
    with torch.device(args.device):
        model = Qwen2ForCausalLM(config)
    model.to(getattr(torch, args.dtype)).save_pretrained(args.folder)
    del model
    if args.device == "cuda":
        torch.cuda.empty_cache()  # both ways run in processes of their own
    names = ["<pad>", "<end>", *(f"t{where}" for where in range(2, args.vocabulary))]
    words = Tokenizer(models.WordLevel({name: where for where, name in enumerate(names)}, unk_token="<pad>"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.WhitespaceSplit(), decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>").save_pretrained(args.folder)


def resident(device: str) -> int:
    """Bytes of memory that this process holds, on a GPU in tensors."""
    import torch

    if device == "cuda":
        return torch.cuda.memory_allocated()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def most_held(device: str) -> int:
    """The most that it has held."""
    import torch

    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


def run_way(args: argparse.Namespace) -> dict[str, Any]:
    """Train some steps one way, in this process, and write the last gradient into the folder."""
    import numpy as np
    import torch
    from datasets import Dataset
    from safetensors.torch import save_file
    from stock import TrieLogitsProcessor
    from transformers import (
        AutoModelForCausalLM,
        GenerationConfig,
        LogitsProcessorList,
        PreTrainedTokenizerFast,
        TrainerCallback,
    )
    from transformers.trainer_callback import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from minionerec.core.machine import keep_freed_memory
    from minionerec.models.decoding.trie import Trie
    from minionerec.sid.table import SidTable
    from minionerec.training.grpo.rollouts import beams, roller
    from minionerec.training.grpo.trainer import Objective, SidGrpoTrainer
    from minionerec.training.rewards import Rollouts, WeightedRewards

    if args.threads:
        torch.set_num_threads(args.threads)
    if args.way == "ours":
        keep_freed_memory()  # as `run_grpo` does
    rng = np.random.default_rng(args.seed)
    ids = np.arange(3 * 256).reshape(3, 256) + args.vocabulary - 800
    trie = Trie.build(rng.integers(0, 256, (args.items, 3)), ids)
    tail = list(range(10, 10 + args.tail))
    texts = [[int(ids[level, code]) for level, code in enumerate(row)] for row in trie.codes().tolist()]
    prompts = rng.integers(20, args.vocabulary - 800, (args.prompts, args.prompt_length)).tolist()
    silent = round(args.zero_variance_share * args.prompts)
    table = rng.standard_normal(trie.n_sids)
    number = {tuple(tokens): folder for folder, tokens in enumerate(texts)}
    tokenizer = PreTrainedTokenizerFast.from_pretrained(args.folder)
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=getattr(torch, args.dtype))
    if args.device == "cuda":
        model.to("cuda")
    if not silent:
        torch.manual_seed(args.seed + 1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.01 * parameter.std())

    rolled_out: list[list[int]] = []

    def reward(rollouts: Rollouts) -> np.ndarray:
        rolled_out[:] = sorted(texts[sid] + tail for group in rollouts.sids.tolist() for sid in group)
        return np.where(rollouts.targets[:, None], table[rollouts.sids], 0.0)

    def stock_reward(completion_ids: list[list[int]], target: list[int], **columns: Any) -> list[float]:
        rolled_out[:] = sorted(completion_ids)
        sids = [number[tuple(one[: len(one) - args.tail])] for one in completion_ids]
        return [float(table[sid]) if live else 0.0 for sid, live in zip(sids, target, strict=True)]

    def stock_rollout(texts: list[str], trainer: Any) -> dict[str, Any]:
        """One beam search a prompt, by `generate`; TRL repeats each prompt for each rollout."""
        size = args.generations
        batch = torch.tensor(tokenizer(texts[::size])["input_ids"], device=args.device)
        processor = TrieLogitsProcessor(trie.to(args.device), args.prompt_length, tail, size)
        with torch.no_grad():
            output = trainer.model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                generation_config=GenerationConfig(
                    num_beams=size,
                    num_return_sequences=size,
                    max_new_tokens=3 + args.tail,
                    do_sample=False,
                    length_penalty=0.0,
                    pad_token_id=0,
                ),
                logits_processor=LogitsProcessorList([processor]),
            )
        repeated = [prompt for prompt in batch.tolist() for _ in range(size)]
        return {"prompt_ids": repeated, "completion_ids": output[:, args.prompt_length :].tolist(), "logprobs": None}

    class Watch(TrainerCallback):
        """Times each step up to the optimiser's, and keeps the last gradient."""

        def __init__(self) -> None:
            self.seconds: list[float] = []
            self.busy: list[float] = []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            wait(args.device)
            self.begin = time.perf_counter(), time.process_time()

        def on_pre_optimizer_step(self, settings: Any, state: Any, control: Any, **kwargs: Any) -> None:
            wait(args.device)
            self.seconds.append(time.perf_counter() - self.begin[0])
            self.busy.append(time.process_time() - self.begin[1])
            if state.global_step + 1 == state.max_steps:
                self.peak = most_held(args.device)
                gradient = {name: parameter.grad for name, parameter in kwargs["model"].named_parameters()}
                save_file(gradient, f"{args.folder}/{args.way}.gradient")

    steps = max(args.repeats, 3) if args.way == "ours" else args.repeats
    warm = int(args.device == "cuda")
    steps += warm
    at_once = args.at_once
    if args.way == "ours" and args.device == "cuda":  # in parts that memory holds, as `grpo` does by itself there
        at_once = args.prompts
    settings = GRPOConfig(
        output_dir=f"{args.folder}/{args.way}",
        max_steps=steps,
        learning_rate=0.0,  # every step has the same gradient
        optim="sgd",
        max_grad_norm=0.0,
        per_device_train_batch_size=at_once * args.generations,
        gradient_accumulation_steps=args.prompts // at_once,
        num_generations=args.generations,
        max_completion_length=3 + args.tail,
        loss_type="grpo",
        beta=args.beta,
        use_bias_correction_kl=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        use_cpu=args.device == "cpu",
        bf16=False,
        gradient_checkpointing=False,
    )
    live = [int(folder >= silent) for folder in range(args.prompts)]  # the target says whether a group has a signal
    watch = Watch()
    trainer: Any
    if args.way == "stock":
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=stock_reward,
            args=settings,
            train_dataset=Dataset.from_dict(
                {"prompt": [" ".join(f"t{token}" for token in prompt) for prompt in prompts], "target": live}
            ),
            processing_class=tokenizer,
            callbacks=[watch],
            rollout_func=stock_rollout,
        )
    else:
        sids = SidTable(trie.codes(), [str(folder) for folder in range(trie.n_sids)])
        trainer = SidGrpoTrainer(
            model,
            settings,
            Dataset.from_dict(
                {"prompt": prompts, "target": live, "tail": [tail] * len(prompts), "history": [None] * len(prompts)}
            ),
            tokenizer,
            roll_out=roller(beams(trie.to(args.device), args.generations), sids),
            objective=Objective(WeightedRewards({"table": reward}, {"table": 1.0})),
            sid_tokens=texts,
            callbacks=[watch],
        )
        if args.device == "cuda":
            trainer.compile_blocks(10**6)
            trainer.compute_in_parts(False)
    trainer.remove_callback(PrinterCallback)
    for parameter in (*model.parameters(), *trainer.ref_model.parameters()):
        parameter.sum()  # weights are read from their file when they are first touched
    held = resident(args.device)
    forget_peak(args.device)
    if args.profile and args.way == "ours":
        with torch.profiler.profile() as profiler:
            trainer.train()
        print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=48))
    else:
        trainer.train()
    return {
        "seconds": watch.seconds[warm:],
        "cpu_seconds": watch.busy[warm:],
        "held_mib": held / 2**20,
        "peak_mib": (watch.peak - held) / 2**20,
        "rollouts": rolled_out,
        "threads": torch.get_num_threads(),
    }


def work(args: argparse.Namespace) -> dict[str, float]:
    """Multiplications of a step in the model's matrices, for each way."""
    kv_width = args.width // args.heads * args.kv_heads
    body = args.layers * (2 * args.width**2 + 2 * args.width * kv_width + 3 * args.width * args.inner)
    head = args.width * args.vocabulary
    size, prompt, answer = args.generations, args.prompt_length, 3 + args.tail
    live = args.prompts - round(args.zero_variance_share * args.prompts)
    # A pass forward counts once, one backward twice; the head's backward pass computes its logits again.
    copies = size * (prompt + answer - 1) * 5 * body + size * answer * 6 * head
    searched = (prompt + 2 * size) * body + (1 + 2 * size) * head
    packed = (prompt + size * (answer - 1)) * 4 * body + size * answer * 5 * head
    return {"stock": args.prompts * copies, "ours": args.prompts * searched + live * packed}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run both ways, each in its own process, and compare."""
    from safetensors import safe_open

    if args.prompts % args.at_once:
        sys.exit(f"--prompts {args.prompts} is no multiple of --at-once {args.at_once}")
    checked = None
    if args.dtype != "float32":
        few = min(args.at_once, 4)
        changes = {"dtype": "float32", "prompts": few, "at_once": few, "repeats": 1, "profile": False}
        whole = measure(argparse.Namespace(**(vars(args) | changes)))
        checked = {name: whole[name] for name in ("equal", "shared", "gradient_difference")}
    with tempfile.TemporaryDirectory() as folder:
        args.folder = folder
        make_model(args)
        found: dict[str, dict[str, Any]] = {}
        for way in WAYS:
            given = {name: value for name, value in vars(args).items() if name not in ("way", "json", "profile")}
            words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]
            profile = ["--profile"] if args.profile else []
            done = subprocess.run(
                [sys.executable, __file__, "--way", way, *words, *profile], capture_output=True, text=True, check=False
            )
            if done.returncode:
                sys.exit(done.stderr)
            *rest, last = done.stdout.strip().splitlines()
            found[way] = json.loads(last)
            if not args.json:
                print("\n".join([*rest, f"{way}: {found[way]['seconds']}"]), file=sys.stderr)
        squares = [0.0, 0.0]
        with (
            safe_open(f"{folder}/ours.gradient", "pt") as ours,
            safe_open(f"{folder}/stock.gradient", "pt") as stock,
        ):
            for name in stock.keys():  # noqa: SIM118
                wanted = stock.get_tensor(name).double()
                squares[0] += float((ours.get_tensor(name) - wanted).square().sum())
                squares[1] += float(wanted.square().sum())
    difference = (squares[0] / squares[1]) ** 0.5
    median = {way: statistics.median(figures["seconds"]) for way, figures in found.items()}
    busy = {way: statistics.median(figures["cpu_seconds"]) for way, figures in found.items()}
    counted = work(args)
    ours, stock = (Counter(map(tuple, found[way]["rollouts"])) for way in WAYS)
    shared = (ours & stock).total() / ours.total()
    card = card_figures(args.device, args.dtype)
    return {
        "ratio": round(median["stock"] / median["ours"], 2),
        "cpu_ratio": round(busy["stock"] / busy["ours"], 2),
        "bound": round(counted["stock"] / counted["ours"], 2),
        "equal": checked["equal"] if checked else shared == 1 and difference < 1e-3,
        "checked_in_float32": checked,
        "gradient_difference": difference,
        "shared": round(shared, 4),
        "peak_memory_ratio": round(found["ours"]["peak_mib"] / found["stock"]["peak_mib"], 4),
        "seconds": {way: [round(second, 3) for second in figures["seconds"]] for way, figures in found.items()},
        "cpu_seconds": {way: [round(second, 3) for second in figures["cpu_seconds"]] for way, figures in found.items()},
        "peak_mib": {way: round(figures["peak_mib"], 1) for way, figures in found.items()},
        "held_mib": {way: round(figures["held_mib"], 1) for way, figures in found.items()},
        "rollouts_per_second": {way: round(args.prompts * args.generations / median[way], 1) for way in WAYS},
        "operations": {way: 2 * counted[way] for way in WAYS},
        "used": {way: used_share(2 * counted[way], median[way], card) for way in WAYS},
        "threads": found["ours"]["threads"],
        **card,
        "asked": {name: value for name, value in vars(args).items() if name not in ("way", "folder")},
    }


def main() -> int:
    """Measure and print; status 1 where rollouts or gradients differ."""
    args = options()
    args.heads = args.heads or max(1, args.width // 64)
    args.kv_heads = min(args.kv_heads, args.heads)
    args.inner = args.inner or (4864 if args.width == 896 else 3 * args.width)
    from minionerec.models.backbone.bundle import quiet_libraries

    quiet_libraries()
    if args.way:
        print(json.dumps(run_way(args)))
        return 0
    figures = measure(args)
    if args.json:
        print(json.dumps(figures))
        return 0 if figures["equal"] else 1
    print(f"\n{'':10}{'seconds':>10}{'peak MiB':>10}")
    for way in WAYS:
        print(f"{way:10}{statistics.median(figures['seconds'][way]):10.2f}{figures['peak_mib'][way]:10.1f}")
    for name in ("ratio", "cpu_ratio", "bound", "equal", "gradient_difference", "peak_memory_ratio"):
        print(f"{name:22}{figures[name]}")
    return 0 if figures["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
