"""RPG from digits to predictions: what it reads, the model as a ranker, bad input."""

import json

import numpy as np
import pytest
from support.evaluation import config as eval_config
from support.training import sequential_config

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranked import Ranked
from minionerec.metrics.ranking import item_ranks
from minionerec.models.sequential.registry import load_sequential
from minionerec.pipeline.build_sids import run_build_sids
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.config.sids import SidConfig
from minionerec.pipeline.evaluate import run_eval
from minionerec.pipeline.prepare_data import run_prepare
from minionerec.pipeline.train_sequential import run_sequential
from minionerec.sid.table import SidTable


def opq(folder, output, **changes):
    settings = {"corpus": str(folder / "corpus"), "output": str(output), "dimensions": 16}
    return SidConfig(**{**settings, "collisions": "keep", "method": "opq", **changes})


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """The demo shop with digits of two kinds, and SIDs."""
    folder = tmp_path_factory.mktemp("shop")
    run_prepare(PrepareConfig(source="demo", output=str(folder / "corpus")))
    run_build_sids(opq(folder, folder / "digits", digits=8, codebook_sizes=[16], iterations=5))
    uneven = {"method": "residual_kmeans", "codebook_sizes": [24, 24], "collisions": "extra_token", "iterations": 5}
    run_build_sids(opq(folder, folder / "uneven", **uneven))
    return folder


@pytest.fixture(scope="module")
def trained(shop):
    """Two epochs on the demo's rows, measured by another table's SIDs too."""
    config = config_of(shop, shop / "rpg", sids=str(shop / "uneven"))
    run_sequential(config)
    return config


def config_of(shop, output, **changes):
    settings = {"model": "rpg", "digits": str(shop / "digits"), "all_positions": True, "epochs": 2}
    return sequential_config(shop / "corpus", output, **{**settings, "learning_rate": 1e-2, **changes})


def test_digits_are_an_input_and_lie_with_the_model(shop, trained):
    folder = shop / "rpg"
    assert set(read_manifest(folder / "model")["inputs"]) == {"corpus", "digits"}
    assert set(read_manifest(folder / "predictions")["inputs"]) == {"corpus", "digits", "sids", "model"}
    about = json.loads((folder / "model" / "model.json").read_text())
    assert (about["hyper"]["num_digits"], about["hyper"]["num_codes"]) == (8, 16)
    model, table = load_sequential(folder / "model"), SidTable.load_index(shop / "digits")
    assert (model.digits[1:].numpy() == table.codes).all()
    metrics = json.loads((folder / "predictions" / "metrics.json").read_text())["test"]
    assert metrics["sid"]["HR@10"][0] >= metrics["item"]["HR@10"][0] > 0
    assert trained.up_to_date()


def test_a_model_of_a_seed_is_a_ranker_of_the_same_lists(shop, trained, tmp_path):
    folder = shop / "rpg"
    result = run_eval(eval_config(shop, checkpoint=str(folder / "model"), output=str(tmp_path / "eval"), beams=50))
    ours, theirs = Predictions.load(result.output), Predictions.load(folder / "predictions")
    assert ours.items == theirs.items
    ranks = Ranked.load(folder / "predictions", "test").ranks["item"]
    assert item_ranks(ours).tolist() == [rank if rank <= 50 else 0 for rank in ranks]
    # Items with the same digits tie, and the lower index stands first.
    numbers = SidTable.load_index(shop / "digits").sid_numbers
    tied = 0
    for items, scores in zip(ours.items, ours.scores, strict=True):
        equal = numbers[items[1:]] == numbers[items[:-1]]
        assert (np.diff(scores)[equal] == 0).all() and (np.diff(items)[equal] > 0).all()
        tied += int(equal.sum())
    assert tied > 100 or SidTable.load_index(shop / "digits").n_unique == len(numbers)


def test_digits_that_do_not_fit(shop, trained, tmp_path):
    output = tmp_path / "out"
    with pytest.raises(ConfigError, match="model rpg reads the items' digits; give digits"):
        run_sequential(config_of(shop, output, digits=""))
    with pytest.raises(ConfigError, match=r"digits is .*digits', but model sasrec reads none; leave digits out"):
        run_sequential(config_of(shop, output, model="sasrec"))
    with pytest.raises(ConfigError, match="has no hyper-parameter 'num_digits'; known: hidden_size,"):
        run_sequential(config_of(shop, output, hyper={"num_digits": 4}))
    with pytest.raises(DataError, match=r"uneven: item .* has 2 digits, others have 3\. Build SIDs with collisions"):
        run_sequential(config_of(shop, output, digits=str(shop / "uneven")))
    with pytest.raises(ArtefactError, match="holds a 'corpus', expected a 'sids'"):
        run_sequential(config_of(shop, output, digits=str(shop / "corpus")))
    assert not output.exists() or not list(output.rglob("manifest.json"))


def test_a_saved_model_whose_digits_are_none_is_refused(shop, trained, tmp_path):
    from safetensors.torch import load_file, save_file

    from minionerec.models.sequential import registry

    file = tmp_path / "model.safetensors"
    tensors = load_file(shop / "rpg" / "model" / "model.safetensors")
    tensors["digits"][3, 1] = 16
    save_file(tensors, file)
    about = (shop / "rpg" / "model" / "model.json").read_bytes()
    (tmp_path / "model.json").write_bytes(about)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ArtefactError, match="item 3 has digits"):
        patch.setattr(registry, "open_artefact", lambda *_: None)
        load_sequential(tmp_path)
