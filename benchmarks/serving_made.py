"""Checkpoints that were never trained, for measuring what serving costs: any shape, any number of semantic IDs."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from minionerec.core.artefacts import write_artefact
from minionerec.data.corpus import Corpus
from minionerec.data.rows import SplitExamples
from minionerec.models.backbone.build import train_tokenizer
from minionerec.models.backbone.bundle import Bundle, bundle_counts, write_model_files
from minionerec.models.backbone.vocabulary import add_code_tokens
from minionerec.models.prompts.wording import load_wording
from minionerec.sid.table import SidTable

_LEVEL = 256


def made_corpus(folder: Path, n_items: int, seed: int, rows: int = 2000) -> Corpus:
    """A corpus of numbered items and random histories of up to ten.

    Args:
        folder: Directory to write it to.
        n_items: Items.
        seed: Seed of the histories.
        rows: Training rows, and test examples.
    """
    rng = np.random.default_rng(seed)
    ids = [f"I{item}" for item in range(n_items)]
    items = pd.DataFrame({"item_id": ids, "title": [f"thing number {item}" for item in ids], "description": ""})

    def split(count: int) -> SplitExamples:
        histories = [rng.integers(0, n_items, rng.integers(1, 11)) for _ in range(count)]
        return SplitExamples.of([f"u{row}" for row in range(count)], histories, rng.integers(0, n_items, count))

    corpus = Corpus(items, split(rows), split(2), split(rows), "made", 10)
    corpus.save(folder, config={}, inputs={})
    return corpus


def random_codes(n_items: int, seed: int) -> np.ndarray:
    """Distinct semantic IDs of three levels with 256 codes each: int32 (N, 3)."""
    rng = np.random.default_rng(seed)
    numbers = rng.choice(_LEVEL**3, n_items, replace=False)
    return np.stack(np.unravel_index(numbers, (_LEVEL,) * 3), axis=1).astype(np.int32)


def made_checkpoint(path: Path, table: SidTable, titles: list[str], seed: int, **shape: int) -> int:
    """A language model with random weights that speaks a table.

    Args:
        path: Directory to write it to.
        table: Its semantic IDs.
        titles: Texts that its tokenizer is trained on.
        seed: Seed of the weights.
        shape: layers, width, heads, kv_heads, inner, and vocabulary, of which the tokenizer uses a part.

    Returns:
        Its number of weights.
    """
    tokenizer = train_tokenizer(titles[:5000], 1000)
    add_code_tokens(tokenizer, table)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=max(shape["vocabulary"], len(tokenizer)),
        hidden_size=shape["width"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        intermediate_size=shape["inner"],
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model: Any = Qwen2ForCausalLM(config).eval()
    bundle = Bundle(model, tokenizer, table, load_wording("compact"), 512)
    with write_artefact(path, "checkpoint", config={}, seed=seed, counts=bundle_counts(bundle)) as folder:
        write_model_files(bundle, folder)
    return sum(parameter.numel() for parameter in model.parameters())
