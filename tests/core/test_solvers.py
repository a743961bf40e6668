"""Local solvers are torch's, and their accumulated weights."""

from functools import partial

import pytest
import torch

from unalike._utils.errors import UnalikeError
from unalike.core.solvers import SGD, Adam, AdamW, GivenSolver
from unalike.core.work import Work

SOLVERS = {
    "sgd": (SGD(), torch.optim.SGD, {}),
    "momentum": (
        SGD(0.9, weight_decay=0.1),
        torch.optim.SGD,
        {"momentum": 0.9, "weight_decay": 0.1},
    ),
    "nesterov": (
        SGD(0.9, True, 0.1),
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "adam": (Adam(0.1), torch.optim.Adam, {"weight_decay": 0.1}),
    "adamw": (AdamW(0.1), torch.optim.AdamW, {"weight_decay": 0.1}),
    "betas": (
        Work(optimizer="adam(betas=(0.5, 0.9), eps=1e-3)").solver,
        torch.optim.Adam,
        {"betas": (0.5, 0.9), "eps": 1e-3},
    ),
    "no first beta": (Adam(betas=(0.0, 0.9)), torch.optim.Adam, {"betas": (0.0, 0.9)}),
    "adamw betas": (
        Work(optimizer="adamw(betas=(0.5, 0.9))", weight_decay=0.1).solver,
        torch.optim.AdamW,
        {"betas": (0.5, 0.9), "weight_decay": 0.1},
    ),
    "given": (
        GivenSolver(partial(torch.optim.RMSprop, alpha=0.9, momentum=0.5)),
        torch.optim.RMSprop,
        {"alpha": 0.9, "momentum": 0.5},
    ),
    "given class": (Work(optimizer=torch.optim.Adagrad).solver, torch.optim.Adagrad, {}),
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
    "momentum, nesterov",
    [(0, False), (0.5, False), (0.9, False), (0.999, False), (0.5, True), (0.9, True)],
)
def test_sgd_weight_equals_distance_under_unit_gradients(momentum, nesterov):
    """2e-7: the result is a float32."""
    solver = SGD(momentum, nesterov)
    params, state = (
        {"w": torch.zeros(1, dtype=torch.float64)},
        solver.init({"w": torch.zeros(1, dtype=torch.float64)}),
    )
    for tau in range(1, 60):
        params, state = solver.step(params, {"w": torch.ones(1, dtype=torch.float64)}, state, 1.0)
        assert solver.weight(torch.tensor(float(tau))).item() == pytest.approx(
            -params["w"].item(), rel=2e-7
        )


def test_adam_weight_equals_number_of_steps():
    assert Adam().weight(torch.tensor(7.0)) == 7 == AdamW().weight(torch.tensor(7.0))


def test_given_optimizer_follows_the_learning_rate_of_each_step():
    solver, params, state = GivenSolver(torch.optim.SGD), {"w": torch.ones(2)}, {}
    for lr in (0.5, 0.25):
        params, state = solver.step(params, {"w": torch.ones(2)}, state, lr)
    assert params["w"].tolist() == [0.25, 0.25]


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"optimizer": "adma"}, "did you mean 'adam'"),
        (
            {"optimizer": "adam(betas=(0.9, 1))"},
            r"found betas=\(0.9, 1\), eps=1e-08; expected 0 <= beta < 1",
        ),
        (
            {"optimizer": "sgd(momentum=0.9)"},
            "momentum is an option of its own; write momentum=0.9 beside it",
        ),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum=0.9 goes with optimizer='sgd'"),
        (
            {"optimizer": torch.optim.SGD, "momentum": 0.9},
            "give options of an optimizer of torch to itself",
        ),
        (
            {"optimizer": torch.optim.SGD, "keep_optimizer_state": True},
            "go with an optimizer by name",
        ),
        ({"optimizer": 3}, "found int; expected a name"),
    ],
)
def test_wrong_optimizer_is_refused(wrong, says):
    with pytest.raises(UnalikeError, match=says):
        Work(**wrong)


@pytest.mark.parametrize(
    "factory, says",
    [
        (
            lambda params: torch.optim.SGD(params, lr=1),
            "expected a function of parameters and lr, such as functools.partial",
        ),
        (lambda params, lr: "an optimizer", "gives str; expected a function of parameters and lr"),
        (
            torch.optim.LBFGS,
            "LBFGS computes losses in each of its steps; expected a function of parameters and lr",
        ),
    ],
)
def test_function_that_makes_no_optimizer_is_refused(factory, says):
    with pytest.raises(UnalikeError, match=says):
        GivenSolver(factory).step({"w": torch.ones(2)}, {"w": torch.ones(2)}, {}, 0.1)
