"""A tiny Hugging Face encoder, and a record of the texts that it is asked for."""

from pathlib import Path

from minionerec.sid.embed import vectors
from minionerec.sid.embed.hf import HFEncoder
from support.tokenizers import save_tokenizer


def save_encoder(path: Path) -> str:
    """Write a BERT of one layer, 8 wide, that reads at most 32 tokens, with its tokenizer; its path as text."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = BertConfig(vocab_size=20, max_position_embeddings=32, initializer_range=0.5, **sizes)
    BertModel(config).save_pretrained(path)
    save_tokenizer(path)
    return str(path)


def watch_encoder(monkeypatch) -> list[str]:
    """Every text that a model is asked for from now on, in order; parts are of six."""
    asked: list[str] = []
    plain = HFEncoder.encode

    def encode(self, texts):
        asked.extend(texts)
        return plain(self, texts)

    monkeypatch.setattr(HFEncoder, "encode", encode)
    monkeypatch.setattr(vectors, "PART_TEXTS", 6)
    return asked
