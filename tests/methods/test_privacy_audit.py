"""An audit of client-level privacy: what an attacker learns from the released model stays below the epsilon that is accounted."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import beta
from simulation import Clients, Simulation, advance, mlp

from unalike.core import tree
from unalike.core.privacy import ReleaseSampling, epsilon_of

pytest.importorskip("dp_accounting")
DELTA, TRIALS = 1e-2, 400


def _attacks(z):
    """Of one released model, the component along a canary's clipped update: with the canary and without it, [TRIALS] each."""
    part = f"client_dp(noise_multiplier={z}, clip=1.0)"
    sim = Simulation(part, mlp(), Clients.random((3, 3, 3)), lr=0.1, batch_size=None)
    cohort = sim.run()
    canary = tree.map(torch.zeros_like, tree.row(cohort.stacked.update, 0))
    name = next(iter(canary))
    canary[name].view(-1)[0] = 1.0  # the largest contribution that the bound allows
    found = []
    for present in (1.0, 0.0):
        update = {
            n: torch.stack([present * canary[n], u[1], u[2]])
            for n, u in cohort.stacked.update.items()
        }
        told = cohort.__class__(cohort.ids, cohort.stacked._replace(update=update), cohort.members)
        scores = []
        for trial in range(TRIALS):
            state = sim.state._replace(round=trial)
            after = advance(sim.method, sim.settings, state, told)
            scores.append(float((after.params[name] - state.params[name]).view(-1)[0]) * 3)
        found.append(np.array(scores))
    return found


def _lower_bound(inside, outside):
    """Epsilon that the attack proves at 95 %, by the bounds of Clopper and Pearson; its threshold is in the middle."""
    middle = (np.median(inside) + np.median(outside)) / 2
    hits, alarms = int((inside > middle).sum()), int((outside > middle).sum())
    power = beta.ppf(0.025, hits, TRIALS - hits + 1)
    false = beta.ppf(0.975, alarms + 1, TRIALS - alarms)
    return math.log(max(power - DELTA, 1e-9) / false)


def test_audit_proves_less_than_is_accounted_and_finds_noise_that_is_missing():
    accounted = epsilon_of(1.0, ReleaseSampling(3, 3), 1, DELTA)
    proved = _lower_bound(*_attacks(1.0))
    assert 0.3 < proved <= accounted
    assert _lower_bound(*_attacks(0.2)) > accounted, "a fifth of the noise would be found out"


def test_advantage_of_membership_inference_falls_with_epsilon():
    advantages = []
    for z in (0.5, 1.0, 4.0):
        inside, outside = _attacks(z)
        best = max(
            float((inside > t).mean() - (outside > t).mean())
            for t in np.concatenate([inside, outside])
        )
        advantages.append(best)
    assert advantages[0] > advantages[1] > advantages[2]
    # of two normal distributions 1/z apart it is 2 Phi(1 / 2z) - 1
    wanted = [math.erf(1 / (2 * z) / math.sqrt(2)) for z in (0.5, 1.0, 4.0)]
    assert advantages == pytest.approx(wanted, abs=0.12)
