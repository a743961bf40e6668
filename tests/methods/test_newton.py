"""Newton's method by hand, in its limit case, and what it refuses."""

import math

import pytest
import torch
from simulation import Clients, Simulation
from torch import nn

from unalike._utils.errors import UnalikeError
from unalike.methods.method import Method

TWO_CLIENTS = [([[0.0], [2.0]], [0, 1]), ([[1.0], [-1.0]], [1, 0])]
"""Feature and class of each sample. At b = 0: H = 1/4 [[6, 2], [2, 4]] and g = [-2, 0], so that the first step is [1.6, -0.8]."""


class AtZero(nn.Module):
    """A linear head whose weights are 0."""

    def __init__(self, outputs):
        super().__init__()
        self.head = nn.Linear(1, outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        return self.head(x)


def after_one_round(outputs, task, labels):
    clients = Clients.of(*[(x, torch.tensor(y).to(labels)) for x, y in TWO_CLIENTS])
    sim = Simulation("newton", AtZero(outputs), clients, task=task)
    sim.round()
    return sim


def test_first_step_of_one_logit_is_that_by_hand():
    sim = after_one_round(1, "binary", torch.bool)
    torch.testing.assert_close(sim.params["head.weight"], torch.tensor([[1.6]]))
    torch.testing.assert_close(sim.params["head.bias"], torch.tensor([-0.8]))


@pytest.mark.parametrize("method", ["newton", "newton_own_intercepts"])
def test_fit_begins_at_zero_whatever_the_model_began_with(method):
    """From a weight of 9 Newton's method would overshoot by hundreds, and take halves of that back for many rounds."""
    moved = []
    for began in (0.0, 9.0):
        head = AtZero(1)
        nn.init.constant_(head.head.weight, began)
        nn.init.constant_(head.head.bias, began)
        clients = Clients.of(*[(x, torch.tensor(y) > 0) for x, y in TWO_CLIENTS])
        sim = Simulation(method, head, clients, task="binary")
        sim.round()
        moved.append(sim.params["head.weight"])
    torch.testing.assert_close(moved[0], moved[1])


def test_first_class_stays_and_the_second_one_moves_as_one_logit_does():
    sim = after_one_round(2, "classification", torch.int64)
    torch.testing.assert_close(sim.params["head.weight"], torch.tensor([[0.0], [1.6]]))
    torch.testing.assert_close(sim.params["head.bias"], torch.tensor([0.0, -0.8]))
    sent = sim.state.part_states["newton"]
    assert {name: sent[name].item() for name in ("samples", "clients", "small_clients")} == {
        "samples": 4.0,
        "clients": 2.0,
        "small_clients": 0.0,
    }
    # g_1 = [-1, 0], g_2 = [-1, 0]
    torch.testing.assert_close(sent["squares"].float(), torch.tensor([[2.0, 0.0], [0.0, 0.0]]))


def test_penalty_shortens_the_weight_and_leaves_the_intercept():
    """At b = 0 with l2 = 1/2: H + L = 1/4 [[8, 2], [2, 4]]."""
    clients = Clients.of(*[(x, torch.tensor(y) > 0) for x, y in TWO_CLIENTS])
    sim = Simulation("newton(l2=0.5)", AtZero(1), clients, task="binary")
    sim.round()
    torch.testing.assert_close(sim.params["head.weight"], torch.tensor([[32 / 28]]))
    torch.testing.assert_close(sim.params["head.bias"], torch.tensor([-16 / 28]))


@pytest.mark.parametrize("bias", [True, False])
def test_one_round_of_a_regression_is_least_squares_of_the_pooled_samples(bias):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 3, generator=generator), torch.randn(12, generator=generator)
    head = nn.Sequential(nn.Flatten(), nn.Linear(3, 1, bias=bias))
    sim = Simulation("newton", head, Clients.of((x[:5], y[:5]), (x[5:], y[5:])), task="regression")
    sim.round()
    design = torch.cat([x, torch.ones(12, int(bias))], dim=1)
    pooled = torch.linalg.lstsq(design.double(), y[:, None].double()).solution.T
    coefficients = sim.state.part_states["newton"]["coefficients"]
    torch.testing.assert_close(coefficients, pooled)
    assert not sim.method.has_converged(sim.state.part_states)
    sim.round()
    assert sim.method.has_converged(sim.state.part_states)


def test_move_is_halved_until_the_loss_of_the_counts_falls():
    """Counts of 0 and one of 200, of mean 10: the first move, 9, predicts e^9 events, e^4.5 are still too many; log 10 = 2.3."""
    few = ([[0.0]] * 10, torch.zeros(10, 2))
    many = ([[0.0]] * 10, torch.zeros(10, 2))
    many[1][3, 0] = 200.0
    sim = Simulation("newton", AtZero(1), Clients.of(few, many), task="counts")
    found = []
    for _ in range(3):
        sim.round()
        found.append(sim.params["head.bias"].item())
    assert found == pytest.approx([9.0, 4.5, 2.25])
    sim.round()
    assert abs(sim.params["head.bias"].item() - math.log(10)) < 0.01, "now Newton's method goes on"


def test_first_move_of_large_counts_is_as_far_as_the_loss_can_fall():
    """A count of 8 at z = 0: g = -7, H = 1 and the loss 1 + log 8!, so that t - t^2 / 2 = 11.6 / 49 and t = 0.2745."""
    clients = Clients.of(([[0.0]], torch.tensor([[8.0, 0.0]])))
    sim = Simulation("newton", AtZero(1), clients, task="counts")
    sim.round()
    torch.testing.assert_close(
        sim.params["head.bias"], torch.tensor([7 * 0.27451]), rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_first_step_of_a_cox_model_adds_up_the_clients_own_risk_sets(executor):
    """One event each, of the first sample, among x = (1, 0) and (1, 0, 0): g = -1/2 - 2/3 and H = 1/4 + 2/9; the bias stays."""
    two = ([[1.0], [0.0]], torch.tensor([[1.0, 1], [2, 0]]))
    three = ([[1.0], [0.0], [0.0]], torch.tensor([[1.0, 1], [2, 0], [3, 0]]))
    sim = Simulation(
        "newton", AtZero(1), Clients.of(two, three), task="survival", executor=executor
    )
    sim.round()
    torch.testing.assert_close(sim.params["head.weight"], torch.tensor([[(7 / 6) / (17 / 36)]]))
    assert sim.params["head.bias"].item() == 0


def test_newton_is_a_method_by_itself():
    with pytest.raises(UnalikeError, match=r"newton is a method by itself.*swap\('proximal"):
        Method.parse("newton + fedprox")


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(1, 5000)),
            "9998 coefficients.* expected at most 4096",
        ),
        (nn.Sequential(nn.Linear(1, 2).requires_grad_(False)), "one that is frozen"),
    ],
)
def test_head_that_cannot_be_fitted_is_refused(module, said):
    with pytest.raises(UnalikeError, match=said):
        Simulation("newton", module, Clients.of(*TWO_CLIENTS))
