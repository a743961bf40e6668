"""Local solvers are torch's, and their accumulated weights."""

import pytest
import torch

from unalike.core.solvers import SGD, Adam, AdamW

SOLVERS = {
    "sgd": (SGD(), torch.optim.SGD, {}),
    "momentum": (SGD(0.9, weight_decay=0.1), torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    "nesterov": (SGD(0.9, True, 0.1), torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "adam": (Adam(0.1), torch.optim.Adam, {"weight_decay": 0.1}),
    "adamw": (AdamW(0.1), torch.optim.AdamW, {"weight_decay": 0.1}),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_solver_steps_equal_torch_optimizer(name):
    """float32, 30 steps: 1e-5 of the way."""
    solver, kind, options = SOLVERS[name]
    gen = torch.Generator().manual_seed(0)
    start = torch.randn(6, generator=gen)
    weight, params, state = start.clone().requires_grad_(), {"w": start}, solver.init({"w": start})
    theirs = kind([weight], lr=0.05, **options)
    for step in range(30):
        g = torch.randn(6, generator=gen) * 10 ** (-step % 4)
        weight.grad = g
        theirs.step()
        params, state = solver.step(params, {"w": g}, state, 0.05)
        assert (params["w"] - weight).norm() < 1e-5 * (weight - start).norm()


@pytest.mark.parametrize(
    "momentum, nesterov", [(0, False), (0.5, False), (0.9, False), (0.999, False), (0.5, True), (0.9, True)]
)
def test_sgd_weight_equals_distance_under_unit_gradients(momentum, nesterov):
    """2e-7: the result is a float32."""
    solver = SGD(momentum, nesterov)
    params, state = {"w": torch.zeros(1, dtype=torch.float64)}, solver.init({"w": torch.zeros(1, dtype=torch.float64)})
    for tau in range(1, 60):
        params, state = solver.step(params, {"w": torch.ones(1, dtype=torch.float64)}, state, 1.0)
        assert solver.weight(torch.tensor(float(tau))).item() == pytest.approx(-params["w"].item(), rel=2e-7)


def test_adam_weight_equals_number_of_steps():
    assert Adam().weight(torch.tensor(7.0)) == 7 == AdamW().weight(torch.tensor(7.0))
