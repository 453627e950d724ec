"""Models by their names: published numbers of parameters, and hyper-parameters that make no model."""

import pytest
import torch
from support.gaps import GAP

from minionerec.core.artefacts import write_artefact
from minionerec.core.errors import ConfigError
from minionerec.models.sequential import MODEL_KIND
from minionerec.models.sequential.model import ModelData
from minionerec.models.sequential.registry import (
    MODELS,
    build_model,
    hyper_parameters,
    load_sequential,
    model_class,
    save_sequential,
)

LASTFM, BEAUTY = 3_646, 12_101


@pytest.mark.parametrize(
    ("name", "items", "hyper", "count"),
    [
        ("sasrec", BEAUTY, {}, 877_824),
        ("sasrec", LASTFM, {}, 336_704),
        ("gru4rec", BEAUTY, {}, 856_512),
        # The WEARec code counts a table of positions, 50 x 64, that nothing reads.
        ("gru4rec", LASTFM, {"hidden_size": 64, "num_layers": 2}, 289_920 - 3_200),
        ("gru4rec", BEAUTY, {"hidden_size": 64, "num_layers": 2}, 831_040 - 3_200),
        ("caser", BEAUTY, {"num_users": 22_363}, 2_909_532),
        ("caser", LASTFM, {"num_users": 1_090}, 1_010_140 - 3_200),
        ("caser", LASTFM, {"num_users": 1_090, "personal": False}, 1_010_140 - 3_200 - 1_091 * 64 - 64 * 64),
        ("hstu", BEAUTY, {}, 861_092),
        ("bert4rec", BEAUTY, {}, 894_278),
    ],
)
def test_models_have_the_published_numbers_of_parameters(name, items, hyper, count):
    assert sum(parameter.numel() for parameter in build_model(name, num_items=items, **hyper).parameters()) == count


@pytest.mark.parametrize(
    ("name", "hyper", "message"),
    [
        ("sasrek", {}, r"unknown model 'sasrek'; known models: .*caser, causal, .*sasrec"),
        ("sasrec", {"depth": 3}, r"model sasrec has no hyper-parameter 'depth'; known: padding, hidden_size"),
        ("sasrec", {"num_items": 0}, "num_items is 0; it must be at least 1"),
        ("sasrec", {"num_heads": 5}, "hidden_size is 64, which is no multiple of num_heads 5"),
        ("caser", {}, "model caser needs the hyper-parameter 'num_users'"),
        ("causal", {"positions": "sinus"}, "unknown positions 'sinus'; known: rotary, learned, none"),
        ("causal", {"hidden_size": 12}, "even width a head, not 3"),
        ("hstu", {"temperature": 0.0}, "temperature is 0"),
        ("bert4rec", {"newest_ratio": 1.5}, r"newest_ratio is 1\.5"),
        ("bert4rec", {"mask_ratio": 0.01}, r"mask_ratio 0\.01 of max_len 50 is less than one item"),
    ],
)
def test_what_makes_no_model_is_refused(name, hyper, message):
    with pytest.raises(ConfigError, match=message):
        build_model(name, **{"num_items": 30, **hyper})


def test_hyper_parameters_have_their_defaults():
    assert hyper_parameters("sasrec")["hidden_dropout"] == 0.5


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_is_loaded_with_all_that_it_holds_and_draws_nothing(tmp_path, name):
    data = ModelData(num_users=3, digits=torch.arange(27, dtype=torch.int32).view(9, 3) % 4)
    hyper = model_class(name).data_hyper(data)
    model = build_model(name, num_items=9, max_len=8, **hyper).eval()
    if model.learns_next:
        model.condition_on([GAP])
    if name != "rpg":  # which has no table of items
        model.read_vectors(4)
        model.set_vectors(torch.randn(9, 4))
    with write_artefact(tmp_path / "model", MODEL_KIND, config={}) as folder:
        save_sequential(model, name, hyper, folder)
    before = torch.get_rng_state()
    loaded = load_sequential(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), before)
    assert loaded.features == model.features
    for kind in ("named_parameters", "named_buffers"):  # buffers that are not saved too
        wanted, found = (dict(getattr(each, kind)()) for each in (model, loaded))
        assert found.keys() == wanted.keys()
        for key, value in found.items():
            assert value.dtype == wanted[key].dtype and value.requires_grad == wanted[key].requires_grad
            assert torch.equal(value, wanted[key]), key
