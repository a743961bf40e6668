"""Steps of local training: what a correction is given, and where the gradient of the local loss can be asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

import unalike as ua
from unalike.methods.method import Method
from unalike.methods.part import Part
from unalike.methods.roles import Correction, Objective


def run(part: Part, model: nn.Module | None = None, spec: str = "fedavg", **work):
    """One round of one client with seven samples."""
    torch.manual_seed(0)
    clients = [
        ua.ClientData(
            train=(torch.randn(7, 4), torch.arange(7) % 3),
            test=(torch.randn(3, 4), torch.arange(3)),
        )
    ]
    usual = {"batch_size": 4, "epochs": 1, "lr": 0.1}
    method, net = (
        Method.parse(spec) + part,
        model or nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
    )
    return ua.run(
        method, clients, model=net, rounds=1, work=ua.Work(**usual | work), executor="loop"
    )


def test_correct_is_given_batch_phase_and_step():
    seen = []

    @dataclass(frozen=True)
    class Watching(Correction):
        name: ClassVar[str] = "watching"

        def correct(self, client, grads, batch):
            seen.append((client.phase, client.step, len(batch.y)))
            return grads

    run(Watching(), spec="fedrep(epochs=1)")
    assert seen == [(0, 0, 4), (0, 1, 3), (1, 0, 4), (1, 1, 3)]


def test_gradient_at_current_parameters_is_the_gradient_before_corrections():
    """Also where another term adds to the task's loss, and where it is asked for at a few of the parameters."""

    @dataclass(frozen=True)
    class Comparing(Correction):
        name: ClassVar[str] = "comparing"

        def correct(self, client, grads, batch):
            some = {n: client.params[n] for n in list(grads)[:2]}
            torch.testing.assert_close(
                client.gradient(at=some), {n: grads[n] for n in some}, rtol=0, atol=0
            )
            return grads

    run(Comparing(), spec="fedprox(mu=3)", steps=3)


def test_gradient_elsewhere_leaves_the_statistics_of_norms():
    @dataclass(frozen=True)
    class Elsewhere(Correction):
        name: ClassVar[str] = "elsewhere"
        far: bool = True

        def correct(self, client, grads, batch):
            if self.far:
                client.gradient(at={n: 10 * client.params[n] for n in grads})
            return grads

    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    with_it, without = (run(Elsewhere(far), net).module().state_dict() for far in (True, False))
    torch.testing.assert_close(with_it, without, rtol=0, atol=0)


def test_gradient_outside_of_correct_is_refused():
    @dataclass(frozen=True)
    class Early(Objective):
        name: ClassVar[str] = "early"

        def loss(self, client, batch):
            return client.gradient(client.params)

    with pytest.raises(
        ua.UnalikeError, match="early asks for the gradient of the local loss outside of a step"
    ):
        run(Early())
