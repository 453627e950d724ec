"""Published numbers of parameters, and hyper-parameters that make no model."""

import pytest

from minionerec.core.errors import ConfigError
from minionerec.models.sequential.registry import build_model

LASTFM, BEAUTY = 3_646, 12_101


@pytest.mark.parametrize(
    ("name", "items", "hyper", "count"),
    [
        ("lightsans", BEAUTY, {}, 896_000),
        ("fearec", BEAUTY, {}, 877_824),
        ("trm4rec", BEAUTY, {}, 840_192),
        ("trm4rec", BEAUTY, {"num_blocks": 2}, 905_728),
        ("trm4rec", BEAUTY, {"full_backprop": True}, 840_192),
        ("trm4rec", BEAUTY, {"use_positions": True}, 843_392),
        ("trm4rec", BEAUTY, {"use_positions": True, "use_rope": False, "num_blocks": 2}, 908_928),
        ("wearec", LASTFM, {}, 328_674),
        ("wearec", BEAUTY, {"num_heads": 8, "alpha": 0.2}, 910_978),
        ("wearec", LASTFM, {"max_len": 200}, 387_474),
        ("pswrec_v5", LASTFM, {}, 343_894),
        ("pswrec_v5", BEAUTY, {}, 885_014),
        ("pswrec_v12", LASTFM, {}, 343_872),
        ("pswrec_v13", LASTFM, {}, 343_880),
        ("pswrec_v13", LASTFM, {"num_heads": 2}, 343_876),
        ("pswrec_v13", LASTFM, {"inner_size": 512}, 409_928),
        ("pswrec_v13", LASTFM, {"max_len": 200}, 353_480),
        ("pswrec_v14", LASTFM, {}, 343_880),
        ("pswrec_v13_unrotated", LASTFM, {}, 343_944),
        ("pswrec_v13_unrotated", LASTFM, {"num_heads": 2}, 343_908),
        # 2 layers of 4 D² + 2 D F + 9 D + F, tables of codes and slots, a norm, M heads of D² + D.
        ("rpg", 30, {}, 13_580_928),
    ],
)
def test_models_have_the_published_numbers_of_parameters(name, items, hyper, count):
    assert sum(parameter.numel() for parameter in build_model(name, num_items=items, **hyper).parameters()) == count


@pytest.mark.parametrize(
    ("name", "hyper", "message"),
    [
        ("wearec", {"alpha": 1.5}, r"alpha is 1\.5"),
        ("wearec", {"num_heads": 5}, "no multiple of num_heads 5"),
        ("pswrec_v12", {"num_heads": 2}, "num_heads is 2; .* each of its 4 bands"),
        ("pswrec_v13", {"num_heads": 8}, "would use 8 bands"),
        ("pswrec_v13_unrotated", {"num_bands": 0}, "would use 0 bands"),
        ("pswrec_v13", {"hidden_size": 12}, "heads are 3 wide"),
        ("pswrec_v5", {"phase_aux_weight": -0.1}, r"phase_aux_weight is -0\.1"),
        ("fearec", {"topk_factor": 0.1}, r"topk_factor 0\.1 makes 0 delays of max_len 50"),
        ("lightsans", {"num_interests": 0}, "num_interests is 0"),
        ("trm4rec", {"num_steps": 0}, "num_steps is 0"),
        ("trm4rec", {"hidden_size": 10}, r"hidden_size 10 with num_heads 2 .* odd width"),
    ],
)
def test_what_makes_no_model_is_refused(name, hyper, message):
    with pytest.raises(ConfigError, match=message):
        build_model(name, **{"num_items": 30, **hyper})
