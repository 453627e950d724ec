"""Tokenizers in the form of the hub's."""

import json

WORDS = ["red", "blue", "lamp", "table", "oak", "steel", "bolt", "long", "query", ":"]


def save_byte_tokenizer(path, side):
    """A byte-level BPE without merges, in the manner of Qwen: no special token at either end."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: position for position, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    about = {"padding_side": side, "eos_token": "<end>", "model_max_length": 64}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **about).save_pretrained(path)


def save_tokenizer(path):
    """A tokenizer of whole words with [CLS] and [SEP] around each text, in the manner of BERT."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: position for position, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokens = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "eos_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens, model_max_length=32).save_pretrained(path)


def save_qwen_tokenizer(path, texts):
    """A byte-level BPE of Qwen2.5's size: learnt on a few texts, filled up to 151,643 entries, and 22 added tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    learnt = json.loads(tokenizer.to_str())["model"]
    vocabulary = {**learnt["vocab"]}
    for position in range(len(vocabulary), 151_643):
        vocabulary[f"<unreachable {position}>"] = position
    tokenizer.model = models.BPE(vocab=vocabulary, merges=[tuple(pair) for pair in learnt["merges"]])
    tokenizer.decoder = decoders.ByteLevel()
    added = ["<|im_start|>", "<|im_end|>", *(f"<|added_{number}|>" for number in range(19))]
    tokens = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "additional_special_tokens": added}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens, model_max_length=32_768).save_pretrained(path)
