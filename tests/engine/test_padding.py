"""Chunks agree with the loop for any sizes of clients, batches and chunks: padding never counts."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import Clients, Simulation, distance, mlp
from torch import nn

from unalike.core import tree
from unalike.methods.method import Method
from unalike.methods.roles import Correction

SOLVERS = st.sampled_from(
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"optimizer": "adam", "lr": 0.01},
        {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
    ]
)


@pytest.mark.filterwarnings(
    "ignore:.*(plain SGD|accumulated weight)"
)  # what a method means with other solvers
@settings(max_examples=settings.default.max_examples // 2)  # an example takes a second
@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=6),
    batch=st.one_of(st.none(), st.integers(1, 10)),
    amount=st.one_of(
        st.builds(lambda n: {"epochs": n}, st.integers(1, 3)),
        st.builds(lambda n: {"steps": n}, st.integers(1, 5)),
    ),
    chunk=st.integers(1, 7),
    solver=SOLVERS,
    norm=st.booleans(),
    method=st.sampled_from(["fedavg", "scaffold", "moon + fednova"]),
)
def test_batched_any_sizes_equals_loop(sizes, batch, amount, chunk, solver, norm, method):
    """1e-3 of the update, in float64 where a solver or a layer divides by small numbers.

    A step of Adam is lr * g / (|g| + eps), so a gradient that is rounding noise moves a parameter by lr * noise / eps at most.
    With eps = 1e-8 that is a whole step in float32, whose noise is about 1e-8, and 1e-8 of a step in float64. In the same way a
    norm divides by the deviation of its rows, which is nearly 0 if two rows are nearly equal.
    """
    work = {"lr": 0.05, "batch_size": batch} | amount | solver
    dtype = torch.float64 if norm or "optimizer" in solver else torch.float32
    module, clients = mlp(norm=norm).to(dtype), Clients.random(sizes, dtype=dtype)
    sims = [
        Simulation(method, module, clients, executor=executor, chunk=chunk, **work)
        for executor in ("loop", "batched")
    ]
    for present in (list(range(len(sizes))), list(range(1, len(sizes)))):
        reports = [sim.round(present).stacked for sim in sims]
        assert torch.equal(reports[0].steps, reports[1].steps)
        torch.testing.assert_close(reports[1].loss, reports[0].loss, rtol=1e-3, atol=1e-4)
    loop, batched = sims
    assert distance(batched.params, loop.params, loop.settings.model.params) < 1e-3
    for n, b in loop.state.buffers.items():
        torch.testing.assert_close(batched.state.buffers[n], b, rtol=1e-3, atol=1e-4)


def test_padding_stays_zero_through_many_norms():
    """A client that has finished while others train has padding alone, and variance 0: norms divide by eps. If padding grew by
    that factor in each of twenty norms, the loss would be NaN."""
    torch.manual_seed(0)
    layers = [
        layer for _ in range(20) for layer in (nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
    ]
    module = nn.Sequential(nn.Flatten(), *layers, nn.Linear(4, 3))
    loop, batched = (
        Simulation(
            "fedavg", module, Clients.random((12, 15)), executor=executor, batch_size=4, lr=1e-3
        )
        .round()
        .stacked
        for executor in ("loop", "batched")
    )
    torch.testing.assert_close(batched.loss, loop.loss, rtol=1e-2, atol=0)


@dataclass(frozen=True)
class Slower(Correction):
    """Steps that get smaller with their number."""

    name: ClassVar[str] = "slower"

    def correct(self, local, grads, batch):
        return tree.scale(grads, 0.8**local.step)


@pytest.mark.parametrize("spec", ["fedavg", "fedrep"])
def test_step_numbers_do_not_depend_on_the_chunk(spec):
    """Also in a second phase, after a first one that was shorter for this client than for others in its chunk."""
    method, clients = Method.parse(spec) + Slower(), Clients.random((1, 3, 9, 4))
    loop, batched = (
        Simulation(method, mlp(), clients, executor=e, batch_size=2, lr=0.1)
        for e in ("loop", "batched")
    )
    theirs, mine = loop.round().update, batched.round().update
    for n, u in theirs.items():
        torch.testing.assert_close(mine[n], u, rtol=1e-4, atol=1e-6)
