"""Exact fits in a federation whose coordinator sees sums alone."""

from dataclasses import replace

import numpy as np
import pytest
from secure_federation import FOUR, TERMS, secure
from small_federation import SmallFederation, make_clients

import unalike as ua
from unalike.federation.protocol.federation_file import Schema

QUANTUM = 1e-8
"""Largest difference of a coefficient in standard errors: secure sums are rounded to 2^-33 for each of four sites."""


def assert_same_coefficients(found, wanted):
    for name in ("coefficient", "se", "robust_se"):
        gap = (found[name] - wanted[name]) / wanted["se"]
        np.testing.assert_allclose(gap, 0, atol=QUANTUM, err_msg=name)
    assert found["coefficient"].notna().all()


@pytest.mark.filterwarnings("ignore:4 of 4 clients have fewer samples")
def test_coefficients_from_secure_sums_are_those_of_the_simulation(tmp_path):
    fed = secure(tmp_path, "newton(l2=1)", model="logistic", rounds=12)
    run = fed.run()
    assert_same_coefficients(run.coefficients(), fed.simulated().coefficients())
    assert run.history.last["round"] < 12, "the federation ends when the fit has converged"


def counts(rng, x):
    """Counts, and the logarithms of their exposures."""
    log_exposure = rng.normal(size=len(x))
    return np.stack([rng.poisson(np.exp(log_exposure + 0.3 * x[:, 0])), log_exposure], axis=1)


def times(rng, x):
    """Times, and whether an event ended them."""
    return np.stack([rng.exponential(np.exp(0.3 * x[:, 0])), rng.random(len(x)) < 0.7], axis=1)


@pytest.mark.parametrize(
    "method, task, label",
    [
        ("newton(l2=1)", "survival", times),
        ("newton_own_intercepts(l2=1)", "counts", counts),
    ],
)
def test_secure_sums_of_counts_and_of_own_risk_sets_have_the_same_coefficients(
    tmp_path, method, task, label
):
    rng = np.random.default_rng(0)
    clients = []
    for client in make_clients(FOUR):
        labelled = {}
        for split in ("train", "test"):
            x, _ = getattr(client, split)
            labelled[split] = (x, label(rng, x.numpy()).astype(np.float32))
        clients.append(replace(client, **labelled))
    settings = {"model": "linear", "rounds": 12}
    schema = Schema(shape=(6,), task=task, label_shape=(2,))
    fed = SmallFederation(tmp_path, clients, method, data=schema, **settings, **TERMS)

    population = ua.Population.of(clients, task=task)
    work = fed.federation.work
    simulated = ua.run(method, population, work=work, seed=fed.federation.seed, **settings)
    assert_same_coefficients(fed.run().coefficients(), simulated.coefficients())
