"""Sites whose networks differ: which site has which is agreed, and the bits are those of a simulation."""

import pytest
from deployed_methods import SAMPLE_SIZES, agree
from safetensors.torch import load_file
from small_federation import SmallFederation, make_clients

from unalike._utils.errors import UnalikeError

RULE = "names(patterns=('site[02]', '*'))"
BODIES = f"networks(small='mlp(hidden=(6, 5))', large='mlp(hidden=(12, 5))', rule={RULE!r})"
UNLIKE = f"networks(small='mlp(hidden=(6,))', large='mlp(hidden=(12, 7))', rule={RULE!r})"
NESTED = f"networks(small='mlp(hidden=(6,))', large='mlp(hidden=(12,))', rule={RULE!r})"
WIDTHS = {"site0": 6, "site1": 12, "site2": 6, "site3": 12}


def federation(folder, method, model, **more):
    return SmallFederation(folder, make_clients(SAMPLE_SIZES), method, model=model, **more)


@pytest.mark.parametrize(
    ("method", "model"), [("fedproto", BODIES), ("heterofl", NESTED), ("fedmd", UNLIKE)]
)
def test_sites_with_unlike_networks_train_as_in_a_simulation(tmp_path, method, model):
    fed = federation(tmp_path, method, model, rounds=3, proxy=make_clients(((8, 8),))[0].test)
    agree(fed)
    # each site keeps the network that it predicts with, and no other
    for name, width in WIDTHS.items():
        [file] = (tmp_path / name).glob("*/model/model.safetensors")
        assert load_file(file)["body.1.weight"].shape == (width, 6)


def test_drawn_shares_are_the_same_at_every_site(tmp_path):
    drawn = "networks(small='mlp(hidden=(6, 5))', large='mlp(hidden=(12, 5))')"
    agree(federation(tmp_path, "lg_fedavg", drawn))


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"open": True}, "open to sites that come later"),
        ({"secure_aggregation": True, "protocol": ("clients",)}, "into groups, each with a sum"),
    ],
)
def test_unlike_networks_are_refused_where_one_model_is_agreed_or_summed(tmp_path, terms, message):
    with pytest.raises(UnalikeError, match=message):
        federation(tmp_path, "heterofl", NESTED, **terms)
