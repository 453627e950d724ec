"""The model: T5 of transformers, which opens branches of its own."""

from collections.abc import Sequence

from transformers import AutoConfig, AutoModelForCausalLM, T5ForConditionalGeneration

from minionerec.backbone.tiger.branches import TigerBranches
from minionerec.backbone.tiger.config import TigerConfig
from minionerec.decoding.branches import OpensBranches
from minionerec.decoding.trie import Trie


class TigerModel(T5ForConditionalGeneration, OpensBranches):
    """A T5 over semantic IDs; see the package. It is built by `build_tiger`, and read by `AutoModelForCausalLM`."""

    config_class = TigerConfig
    config: TigerConfig

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary that prompts and tries speak in."""
        size: int = self.config.vocab_size
        return size

    def branches(self, prompts: Sequence[Sequence[int]], trie: Trie) -> TigerBranches:
        """What the project's searches grow prefixes on (`minionerec.decoding.branches.open_branches`)."""
        return TigerBranches(self, prompts, trie.levels)


AutoConfig.register(TigerConfig.model_type, TigerConfig)
AutoModelForCausalLM.register(TigerConfig, TigerModel)
