"""Private methods under a hostile server: whatever it sends, and whatever the samples are, clients answer in the same way.

A reply that is not finite, has other shapes, or is an error for some samples only would be an answer about them without noise.
"""

from dataclasses import replace
from functools import cache

import pytest
import torch
from every_method import METHODS, SIZES, federation
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import Clients, mlp

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.nests import map_tensors
from unalike.core.privacy import ReleaseSampling
from unalike.core.types import Batch
from unalike.data.client_data import ClientData
from unalike.methods.method import Method
from unalike.methods.sample_gradients import clipped_sum
from unalike.runtime.setup.run_config import configure_run
from unalike.training.server.server_update import make_broadcast
from unalike.training.server.updates import decode_updates

CLIP = 0.03
ROUNDING = 1e-4
"""Share of the bound by which float32 may exceed it."""
PRIVATE_PARTS = (
    f"client_dp(noise_multiplier=1, clip={CLIP})",
    f"client_dp(noise_multiplier=1, clip={CLIP}, where='site', quantile=0.5)",
    f"dp_sgd(noise_multiplier=1, clip={CLIP})",
    f"dp_sgd(noise_multiplier=1, clip={CLIP}, batches='poisson')",
)
ODD_NUMBERS = (float("nan"), float("inf"), -float("inf"), 1e38, -1e38, 1e20, 1e-30, 0.0)
"""Features and gradients that a clip could let pass."""
LARGEST = torch.finfo(torch.float32).max


def _accepted():
    """Method with each kind of privacy -> spec; those that are refused, since something leaves them unaccounted, send nothing."""
    random = Clients.random(SIZES)
    clients = [ClientData((random.x[rows], random.y[rows])) for rows in random.train]
    specs = {}
    for name, method in METHODS.items():
        if method.privacy is not None or method.attack is not None:
            continue
        for part in PRIVATE_PARTS:
            try:
                configure_run(
                    method + part,
                    clients,
                    model=mlp(),
                    rounds=2,
                    proxy=(random.x[1:7], random.y[1:7]),
                )
            except UnalikeError:
                continue
            specs[f"{name} + {part}"] = method + part
    return specs


ACCEPTED = _accepted()


@cache
def _ready(method, executor):
    """A simulation of a private method, which draws its noise as sites do, and the shapes of what its clients send.

    Facts of the samples are made here, from samples as loading lets them pass.
    """
    sim = federation(method, executor)
    sampling = ReleaseSampling(4, 4, "all", 2, 4, tuple(sorted(SIZES)))
    sim.settings = replace(sim.settings, sampling=sampling, secret_noise=True)
    object.__setattr__(sim.executor.client_pool, "settings", sim.settings)
    return sim, map_tensors(lambda t: (t.shape, t.dtype), sim.run().stacked)


def _hostile(generator):
    """Makes finite values of the shape of a tensor, of any magnitude."""

    def change(t):
        if not t.is_floating_point():
            return t
        exponents = torch.randint(-40, 39, (), generator=generator)
        values = torch.randn(t.shape, generator=generator) * 10.0**exponents
        return values.nan_to_num().clamp(-LARGEST, LARGEST).to(t.dtype)

    return change


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ACCEPTED)
@given(
    seed=st.integers(0, 2**31),
    executor=st.sampled_from(["loop", "by hand", "batched"]),
    odd=st.lists(st.sampled_from(ODD_NUMBERS), min_size=1, max_size=12),
)
@settings(max_examples=2, deadline=None)
def test_reply_is_finite_and_of_one_shape_for_any_broadcast_and_samples(name, seed, executor, odd):
    sim, shapes = _ready(ACCEPTED[name], executor)
    generator = torch.Generator().manual_seed(seed)
    broadcast = make_broadcast(sim.method, sim.settings, sim.state, len(SIZES), sim.everyone())
    hostile = _hostile(generator)
    broadcast = broadcast._replace(
        params=tree.map(hostile, broadcast.params),
        messages=map_tensors(hostile, broadcast.messages),
    )
    found = _replies(sim, broadcast, odd, generator)
    assert map_tensors(lambda t: (t.shape, t.dtype), found) == shapes
    map_tensors(_assert_finite, found)
    assert not found.loss.any()
    assert found.size.tolist() == [*SIZES]


@pytest.mark.parametrize("shape", [(1,), (50, 1, 1), (4,)])
def test_bound_that_is_more_than_one_number_is_refused(shape):
    """Each number would get a copy of the update with noise of its own."""
    sim, _ = _ready(Method.parse("fedavg") + PRIVATE_PARTS[1], "loop")
    broadcast = make_broadcast(sim.method, sim.settings, sim.state, len(SIZES), sim.everyone())
    bounds = {"client_dp": {"clip": torch.full(shape, CLIP)}}
    with pytest.raises(UnalikeError, match="expected one number"):
        sim.executor.run(broadcast._replace(messages=bounds), sim.everyone(), {})


@pytest.mark.parametrize("loss", ["cross_entropy(label_smoothing=0.1)", "focal(gamma=2.0)"])
@given(seed=st.integers(0, 2**31), odd=st.lists(st.sampled_from(ODD_NUMBERS), max_size=12))
@settings(max_examples=10, deadline=None)
def test_losses_of_the_catalogue_raise_nothing_for_any_values(loss, seed, odd):
    sim = federation(PRIVATE_PARTS[2], loss=loss)
    generator = torch.Generator().manual_seed(seed)
    broadcast = make_broadcast(sim.method, sim.settings, sim.state, len(SIZES), sim.everyone())
    broadcast = broadcast._replace(params=tree.map(_hostile(generator), broadcast.params))
    map_tensors(_assert_finite, _replies(sim, broadcast, odd, generator))


def _replies(sim, broadcast, odd, generator):
    """What clients send, with odd numbers somewhere in their samples."""
    x = sim.clients.x
    usual = x.clone()
    places = torch.randint(x.numel(), (len(odd),), generator=generator)
    x.view(-1)[places] = torch.tensor(odd)
    try:
        return sim.executor.run(broadcast, sim.everyone(), {})
    finally:
        x.copy_(usual)


def _assert_finite(t):
    assert t.isfinite().all()
    return t


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [n for n in ACCEPTED if "client_dp" in n and "quantile" not in n])
@given(seed=st.integers(0, 2**31), odd=st.lists(st.sampled_from(ODD_NUMBERS), max_size=12))
@settings(max_examples=2, deadline=None)
def test_client_moves_the_sum_by_the_bound_at_most(name, seed, odd):
    """Of adjacent data sets one has zeros for a client: the sums without noise differ by what it sends."""
    silent = ACCEPTED[name].swap(f"client_dp(noise_multiplier=0, clip={CLIP})")
    sim, _ = _ready(silent, "loop")
    generator = torch.Generator().manual_seed(seed)
    broadcast = make_broadcast(sim.method, sim.settings, sim.state, len(SIZES), sim.everyone())
    broadcast = broadcast._replace(params=tree.map(_hostile(generator), broadcast.params))
    found = _replies(sim, broadcast, odd, generator)
    decoded = decode_updates(sim.method, found.update, sim.state)
    for client in range(len(SIZES)):
        norm = float(tree.norm(tree.row(decoded, client)))
        assert norm <= CLIP * (1 + ROUNDING)


@given(
    rows=st.lists(
        st.lists(
            st.one_of(st.floats(width=32), st.sampled_from(ODD_NUMBERS)), min_size=3, max_size=3
        ),
        min_size=1,
        max_size=6,
    ),
    clip=st.sampled_from([1e-30, 0.1, 5.0]),
)
def test_sample_moves_the_sum_of_gradients_by_the_bound_at_most(rows, clip):
    """The gradient of row b is x_b itself: any gradients that a loss may have."""
    x = torch.tensor(rows)
    params = {"w": torch.zeros(3)}

    def loss(params, row):
        return (params["w"] * row.x[0]).sum()

    def summed(weight):
        batch = Batch(x, torch.zeros(len(x), dtype=torch.int64), weight)
        return clipped_sum(loss, params, batch, clip)["w"].double()

    everybody = torch.ones(len(x))
    for left_out in range(len(x)):
        others = everybody.clone()
        others[left_out] = 0.0
        moved = summed(everybody) - summed(others)
        assert moved.isfinite().all()
        # sums of other rows are rounded in float32
        assert float(moved.norm()) <= clip * (1 + len(x) * ROUNDING)


@given(
    values=st.lists(
        st.one_of(st.floats(width=32), st.sampled_from(ODD_NUMBERS)), min_size=1, max_size=6
    ),
    limit=st.sampled_from([1e-20, 0.5, 1e20]),
)
def test_bounded_tree_is_within_the_limit_and_zero_if_its_norm_is_not_finite(values, limit):
    update = {"w": torch.tensor(values[:1]), "b": torch.tensor(values[1:])}
    shortened = tree.bounded(update, limit)
    norm = tree.norm(update)
    assert float(tree.flatten(shortened).double().norm()) <= limit * (1 + ROUNDING)
    if not norm.isfinite():
        assert not tree.flatten(shortened).any()
    elif norm <= limit:
        assert torch.equal(tree.flatten(shortened), tree.flatten(update))


def test_adaptive_bound_of_a_server_leaves_room_for_noise():
    """With a bound of 1e-45 the noise would be rounded to 0, and the sign of an update would leave in clear."""
    method = Method.parse("client_dp(noise_multiplier=1, where='site', quantile=0.5)")
    sim = federation(method)
    sim.settings = replace(sim.settings, sampling=ReleaseSampling(4, 4, "all", 2, 4))
    object.__setattr__(sim.executor.client_pool, "settings", sim.settings)
    broadcast = make_broadcast(method, sim.settings, sim.state, 4, sim.everyone())
    for bound in (0.0, 1e-45, 3e38):
        message = {"clip": torch.tensor(bound)}
        found = sim.executor.run(
            broadcast._replace(messages={"client_dp": message}), sim.everyone(), {}
        )
        values = tree.flatten(found.update, rows=4)
        assert values.isfinite().all()
        assert values.unique().numel() > values.numel() // 2
