"""The accounting against dp-accounting itself, and secret noise."""

import math

import pytest
import torch

from unalike._utils.errors import UnalikeError
from unalike.core import privacy
from unalike.core.privacy import ReleaseSampling, epsilon_of, noise_multiplier_of, normal_noise

dp = pytest.importorskip("dp_accounting")
rdp = pytest.importorskip("dp_accounting.rdp")

SAMPLINGS = {draw: ReleaseSampling(50, 5, draw, 20) for draw in ("all", "fixed", "poisson")}


def _event(draw, z):
    """One release, and the relation of adjacent data sets, as the documentation of dp-accounting has them."""
    relation = dp.NeighboringRelation
    return {
        "all": (dp.GaussianDpEvent(z), relation.ADD_OR_REMOVE_ONE),
        "poisson": (
            dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(z)),
            relation.ADD_OR_REMOVE_ONE,
        ),
        # another contribution moves the sum by up to 2 C
        "fixed": (
            dp.SampledWithoutReplacementDpEvent(50, 5, dp.GaussianDpEvent(z / 2)),
            relation.REPLACE_ONE,
        ),
    }[draw]


@pytest.mark.parametrize("draw", SAMPLINGS)
def test_epsilon_is_that_of_dp_accounting(draw):
    event, relation = _event(draw, 1.5)
    whole = rdp.RdpAccountant([*range(2, 65)], relation).compose(event, 20).get_epsilon(1e-5)
    found = epsilon_of(1.5, SAMPLINGS[draw], 20, 1e-5)
    assert (
        0.8 * whole < found <= whole * (1 + 1e-6)
    )  # the composed Gaussian is exact, the others are Renyi's
    if draw != "all":
        assert found == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("draw", ["all", "poisson"])
def test_noise_multiplier_is_that_of_dp_accounting(draw):
    found = noise_multiplier_of(2.0, SAMPLINGS[draw], 1e-5)
    if draw == "all":  # of one Gaussian release with z / sqrt(20)
        wanted = math.sqrt(20) * dp.get_sigma_gaussian(2.0, 1e-5)
    else:
        wanted = dp.calibrate_dp_mechanism(
            lambda: rdp.RdpAccountant([*range(2, 65)]),
            lambda z: dp.SelfComposedDpEvent(_event(draw, z)[0], 20),
            2.0,
            1e-5,
            dp.ExplicitBracketInterval(0.5, 4.0),
            tol=1e-3,
        )
    assert (
        found == pytest.approx(wanted, rel=2e-3)
        and epsilon_of(found, SAMPLINGS[draw], 20, 1e-5) <= 2.0
    )


def test_more_releases_cost_more_and_no_noise_costs_everything():
    poisson = SAMPLINGS["poisson"]
    costs = [epsilon_of(1.0, poisson, n, 1e-5) for n in (0, 1, 10, 100)]
    assert (
        costs == sorted(costs) and costs[0] == 0 and epsilon_of(0.0, poisson, 1, 1e-5) == math.inf
    )
    assert epsilon_of(1.0, poisson, 10, 1e-5) < epsilon_of(1.0, SAMPLINGS["all"], 10, 1e-5)


def test_pld_is_tighter_and_refuses_cohorts_of_fixed_size():
    poisson = SAMPLINGS["poisson"]
    assert epsilon_of(2.0, poisson, 5, 1e-5, "pld") < epsilon_of(2.0, poisson, 5, 1e-5)
    with pytest.raises(UnalikeError, match="cohorts of a fixed size"):
        epsilon_of(2.0, SAMPLINGS["fixed"], 5, 1e-5, "pld")


def test_budget_out_of_reach_and_a_missing_extra_are_said(monkeypatch):
    with pytest.raises(UnalikeError, match="give a larger epsilon or delta, or fewer rounds"):
        noise_multiplier_of(1e-9, SAMPLINGS["all"], 1e-12)
    monkeypatch.setattr("unalike._utils.errors.find_spec", lambda name: None)
    with pytest.raises(UnalikeError, match=r"pip install 'unalike\[privacy\]'"):
        epsilon_of(1.234, SAMPLINGS["all"], 3, 1e-5)


def test_noise_of_a_seed_is_the_same_again_and_secret_noise_never_is():
    like = torch.zeros(200, 100)
    a, b = (normal_noise(like, False, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(a, b)
    torch.manual_seed(0)
    a = normal_noise(like, True)
    torch.manual_seed(0)
    b = normal_noise(like, True)
    assert a.shape == like.shape and a.dtype == like.dtype and not torch.equal(a, b)
    drawn = torch.cat([a, b]).flatten().double().sort().values
    uniform = torch.special.ndtr(drawn)
    distance = (uniform - torch.linspace(0, 1, len(drawn), dtype=torch.float64)).abs().max()
    assert distance < 1.95 / len(drawn) ** 0.5  # Kolmogorov and Smirnov, at 0.1 %
    assert bool(normal_noise(torch.zeros(()), True).isfinite()) and privacy.os.urandom
