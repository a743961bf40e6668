"""The loop's gradients: by `backward` for plain methods, else by `autograd.grad` of the parameters alone."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from simulation import Clients, Simulation, mlp
from torch import nn
from torch.func import functional_call

from unalike.core.types import Batch
from unalike.methods.plan import plan
from unalike.methods.roles import Objective
from unalike.training.client.local_step import MODEL, AutogradRule, by_backward, by_grad


class Words(nn.Module):
    """A recurrent model with shared weights and an unused layer."""

    def __init__(self):
        super().__init__()
        self.cell, self.head, self.unused = nn.GRUCell(3, 4), nn.Linear(4, 2), nn.Linear(2, 2)

    def forward(self, x):
        h = x.new_zeros(len(x), 4)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.head(h)


def test_gradients_both_ways_agree_and_leave_no_grad():
    torch.manual_seed(0)
    model, x, y = Words(), torch.randn(6, 5, 3), torch.randint(0, 2, (6,))
    params = {n: p.detach() for n, p in model.named_parameters()}
    found = []
    for gradients_of in (by_grad, by_backward):
        made = []

        def loss(variables, batch, made=made):
            made.append(variables[MODEL])
            logits = functional_call(model, variables[MODEL], (batch.x,))
            return nn.functional.cross_entropy(logits, batch.y), None

        grads, _ = AutogradRule(gradients_of).gradients(loss, {MODEL: params}, Batch(x, y))
        found.append(grads)
        [leaves] = made
        assert all(t.grad is None for t in leaves.values())
    one, other = found
    torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert not one[MODEL]["unused.weight"].any() and one[MODEL]["cell.weight_hh"].any()


@dataclass(frozen=True)
class Beside(Objective):
    """The distance from the outputs of the part's own model, whose parameters are not trained."""

    name: ClassVar[str] = "beside"
    own: ClassVar[nn.Linear] = nn.Linear(4, 3)

    def loss(self, local, batch):
        return batch.mean((local.out(batch).logits - self.own(batch.x)).square().mean(-1))


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_own_model_of_a_part_gets_no_gradients(method):
    sim = Simulation(
        plan(method) + Beside(), mlp(), Clients.random((7, 3)), lr=0.1, executor="loop"
    )
    sim.round()
    assert not sim.method.has_task_loss_only and all(
        p.grad is None for p in Beside.own.parameters()
    )


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedprox"])
def test_method_plain_is_true_for_task_loss_alone(method):
    assert plan(method).has_task_loss_only == (method != "fedprox")
