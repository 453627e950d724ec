"""A catalogue model conditioned on the gap, of random weights: each of its values has its lists."""

from pathlib import Path

import pytest
import torch

from minionerec.data.corpus import Corpus
from minionerec.recommend.recommender import Recommender
from minionerec.sid.table import SidTable
from minionerec.training.catalogue.build import new_bundle
from support.checkpoints import save_checkpoint
from support.examples import sid_windows
from support.gaps import GAP
from support.store import shared
from support.training import make_inputs


def save_conditioned(folder: Path, conditioned: bool = True) -> Path:
    """Write a corpus of 24 items, its SIDs, and a checkpoint whose weights are drawn at random; gives its path.

    If not `conditioned`, the model reads no request feature.
    """
    path, sids = make_inputs(folder)
    corpus = Corpus.load(path)
    table = SidTable.load_index(f"{sids}/index.json", corpus.items["item_id"].tolist())
    windows = sid_windows(corpus, table, 0.0)[0]
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    settings = {"context": (GAP,) if conditioned else (), "vector_width": 8, "seed": 42}
    bundle = new_bundle(corpus, table, windows, **settings, **shape)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in bundle.model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    save_checkpoint(bundle, folder / "conditioned")
    return folder / "conditioned"


@pytest.fixture(scope="session")
def conditioned(tmp_path_factory) -> Path:
    """The folder of `save_conditioned`, which no test changes."""
    return shared(tmp_path_factory, save_conditioned)


@pytest.fixture(scope="module")
def telling(conditioned) -> Recommender:
    """That model over items i0 to i23, which can be told contexts."""
    return Recommender.load(conditioned / "conditioned", corpus=conditioned / "corpus")
