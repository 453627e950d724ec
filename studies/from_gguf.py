"""A language model that comes as one GGUF file, as folders that `minionerec sft --model FOLDER` reads.

python studies/from_gguf.py --file SmolLM2-135M-Instruct.Q4_1.gguf --output runs/smollm2 --random 42

Needs the package gguf. For each seed of `--random` OUTPUT-random-SEED gets the same shape and tokenizer with weights as
transformers draws them: the control that says what pretraining is worth.
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase
from transformers import set_seed as draw_from

from minionerec.core.commands import run_command
from minionerec.core.errors import DataError


def write(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, output: Path) -> None:
    """Model and tokenizer in one folder, which is there once it is whole."""
    if output.exists():
        print(f"{output} is there already.")
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    beside = output.with_name(f".{output.name}.partial")
    model.save_pretrained(beside)
    tokenizer.save_pretrained(beside)
    beside.rename(output)
    print(f"{output}: {model.num_parameters():,} parameters")


def main() -> None:
    """Convert, and draw the random twins."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, required=True, help="the GGUF file of a model in the form of Llama's")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--random", type=int, nargs="*", default=[], help="seeds of further folders of random weights")
    args = parser.parse_args()
    if not args.file.is_file():
        raise DataError(f"{args.file}: no such file. Give the .gguf file itself.")
    place = {"pretrained_model_name_or_path": str(args.file.resolve().parent), "gguf_file": args.file.name}
    tokenizer = AutoTokenizer.from_pretrained(**place)
    read = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    # The weights are no longer quantised, and the folder says so.
    settings = {name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
    config = LlamaConfig(**settings | {"dtype": "float32"})
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    write(model, tokenizer, args.output)
    for seed in args.random:
        draw_from(seed)
        write(LlamaForCausalLM(config), tokenizer, args.output.with_name(f"{args.output.name}-random-{seed}"))


if __name__ == "__main__":
    run_command(main)
