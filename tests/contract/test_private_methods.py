"""Every method of the catalogue with each kind of privacy: what it sends is accounted, or the run is refused and says why."""

import pytest
import torch
from every_method import METHODS, SIZES, WORK
from simulation import Clients, Simulation, mlp

from unalike._utils.errors import UnalikeError
from unalike.core.types import Batch
from unalike.data.client_data import ClientData
from unalike.methods.part import overrides
from unalike.runtime.setup.run_config import configure_run
from unalike.training.server.server_update import initial_server_state, make_broadcast
from unalike.training.wire import wire

ACCOUNTED = {"update", "counts", "message of client_dp"}
CLIENTS = Clients.random(SIZES)


def prepared(spec, **options):
    clients = [ClientData((CLIENTS.x[rows], CLIENTS.y[rows])) for rows in CLIENTS.train]
    proxy = CLIENTS.x[1:7], CLIENTS.y[1:7]
    return configure_run(
        spec, clients, model=options.pop("model", mlp()), rounds=2, proxy=proxy, **options
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", METHODS)
def test_method_sends_what_is_accounted_or_is_refused(name):
    method = METHODS[name]
    if "client_dp" in method.parts[-1].name or any(p.name == "client_dp" for p in method.parts):
        return
    items = {i.what for i in wire(method, mlp(), {}) if i.direction == "up"} - {
        "update",
        "counts and loss",
    }
    single = any(p.needs != "sums" or overrides(p, "fold") or p.shares for p in method.parts)
    try:
        run_config = prepared(method + "client_dp(noise_multiplier=1)")
    except UnalikeError as error:
        told = str(error)
        assert (
            "client_dp cannot account" in told
            or "equal, fixed weights alone" in told
            or "dp_sgd" in told
            or "is a method by itself" in told
        ), told
        named = [p.name for p in method.parts if p.name in told]
        assert named, "the message names the part that leaks"
        return
    assert not items and not single
    assert {i.what for i in run_config.wire if i.direction == "up"} <= ACCOUNTED
    private = run_config.outline[0].method
    state = initial_server_state(private, run_config.settings)
    # nothing that clients are told carries what the server has of them but the model and the accounted sums
    messages = make_broadcast(private, run_config.settings, state, len(SIZES), [0]).to(0).messages
    assert all(
        not overrides(p, "fold") or p.name == "client_dp"
        for p in private.parts
        if p.name in messages
    )


def _sent(method, seed):
    """All that clients send in two rounds, with samples by a seed; those of the server are the same."""
    proxy = Batch(CLIENTS.x[1:7], CLIENTS.y[1:7])
    sim = Simulation(method, mlp(), Clients.random(SIZES, seed=seed), proxy=proxy, **WORK)
    return [sim.round().stacked for _ in range(2)]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.privacy is None])
def test_method_sends_nothing_but_what_follows_from_clipped_steps_or_is_refused(name):
    """With a bound of nearly 0, samples move nothing: what still depends on them is beside the accounting."""
    method = METHODS[name]
    try:
        prepared(method + "dp_sgd(noise_multiplier=1)")
    except UnalikeError as error:
        told = str(error)
        assert "dp_sgd cannot account" in told or "is a method by itself" in told, told
        assert any(p.name in told for p in method.parts), "the message names the part that leaks"
        return
    bounded = method + "dp_sgd(noise_multiplier=0, clip=1e-30)"
    for one, other in zip(_sent(bounded, 0), _sent(bounded, 1), strict=True):
        torch.testing.assert_close(one._asdict(), other._asdict(), rtol=0, atol=0)


def test_samples_that_are_read_outside_the_steps_show_in_what_is_sent():
    bounded = METHODS["feddisco"] + "dp_sgd(noise_multiplier=0, clip=1e-30)"
    with pytest.raises(AssertionError):
        torch.testing.assert_close(_sent(bounded, 0)[0]._asdict(), _sent(bounded, 1)[0]._asdict())


@pytest.mark.parametrize(
    "spec", ["scaffold", "feddisco", "fedlws", "median", "fedpac", "feddyn", "fedgh", "ldawa"]
)
def test_known_leaks_are_refused(spec):
    with pytest.raises(UnalikeError, match=r"client_dp"):
        prepared(f"{spec} + client_dp")


@pytest.mark.parametrize(
    "spec", ["fedavg", "fedprox", "fedavgm", "fedadam", "fedper", "moon", "ditto", "topk"]
)
def test_known_private_methods_are_accepted(spec):
    assert prepared(f"{spec} + client_dp").outline[0].method.privacy is not None


def test_batch_norm_is_refused_and_group_norm_named():
    with pytest.raises(UnalikeError, match=r"buffers of the model .* group norm has none"):
        prepared("client_dp", model=mlp(norm=True))
    assert prepared("client_dp", model=mlp(norm=True), buffers="local").wire
