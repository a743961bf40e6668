"""Exact fits in a federation: sums alone, and sites whose sums cannot be those of their samples."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from secure_federation import FOUR, TERMS, secure
from small_federation import SmallFederation, make_clients

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.federation.protocol.federation_file import Schema

QUANTUM = 1e-8
"""Largest difference of a coefficient in standard errors: secure sums are rounded to 2^-33 for each of four sites."""
MESSAGE = "messages.newton/"
METHOD = "newton(l2=1, robust_errors=False)"


def assert_same_coefficients(found, wanted):
    for name in ("coefficient", "se"):
        gap = (found[name] - wanted[name]) / wanted["se"]
        np.testing.assert_allclose(gap, 0, atol=QUANTUM, err_msg=name)
    assert found["coefficient"].notna().all() and found["robust_se"].isna().all()


@pytest.mark.filterwarnings("ignore:4 of 4 clients have fewer samples")
def test_coefficients_from_secure_sums_are_those_of_the_simulation(tmp_path):
    fed = secure(tmp_path, METHOD, model="logistic", rounds=12, threshold=4)
    run = fed.run()
    assert_same_coefficients(run.coefficients(), fed.simulated().coefficients())
    assert run.history.last["round"] < 12, "the federation ends when the fit has converged"


def test_squares_of_single_gradients_are_no_sum_that_hides_them(tmp_path):
    """Three sites, 8 coefficients: the sums of g and g g^T, and whole numbers of cases, gave each site's g to 2e-11."""
    with pytest.raises(UnalikeError, match="squares of each site's gradient"):
        secure(tmp_path, "newton", model="logistic", threshold=4)


def test_sums_that_stay_alike_are_over_all_sites_or_none(tmp_path):
    """Round 7 without one of four sites gave its second derivatives to 2e-11."""
    with pytest.raises(
        UnalikeError, match="threshold of 3; expected one of all sites, --threshold 4"
    ):
        secure(tmp_path, METHOD, rounds=1)
    secure(tmp_path, METHOD, rounds=1, threshold=4)


def scaled(name, factor):
    return lambda message: message | {name: factor * message[name]}


def asymmetric(message):
    curvature = message["curvature"].clone()
    curvature[0, 1] += curvature[0, 0]
    return message | {"curvature": curvature}


@pytest.mark.parametrize(
    "change",
    [
        scaled("gradient", -5),
        scaled("squares", -1),
        scaled("curvature", -2),
        scaled("loss", -100),
        scaled("samples", 10),
        scaled("clients", 1000),
        scaled("small_clients", -7),
        asymmetric,
    ],
)
def test_sums_that_no_samples_give_are_refused(change, tmp_path):
    """One of five sites that sent -5 times its gradient took the accuracy from 0.76 to 0.35; false counts change the errors."""
    fed = SmallFederation(
        tmp_path, make_clients(FOUR), "newton(l2=1)", model="logistic", rounds=1, quorum=3
    )

    def corrupt(head, facts, tensors):
        message = {n.removeprefix(MESSAGE): t for n, t in tensors.items() if MESSAGE in n}
        if not message:
            return None
        return head, facts, tensors | {MESSAGE + n: t for n, t in change(message).items()}

    fed.corrupt("site3", corrupt)
    run = fed.run()
    assert [event["client"] for event in fed.events("refused")] == ["site3"]
    state = run._runner.state.states["all"].part_states["newton"]
    assert torch.equal(state["clients"], torch.tensor(3.0, dtype=torch.float64))


def test_false_loss_of_one_site_does_not_end_the_fit(tmp_path):
    """A loss that one site says rises had each move taken back: the fit ended at the initial model, as if it had converged."""

    def rising(head, facts, tensors):
        loss = f"{MESSAGE}loss"
        if loss not in tensors or not head.round:
            return None
        rise = torch.full_like(tensors[loss], 100.0 + 5 * head.round)
        return head, facts, tensors | {loss: rise}

    fitted = []
    for change in (None, rising):
        fed = SmallFederation(
            tmp_path / str(change is None),
            make_clients(FOUR),
            "newton(l2=1)",
            model="logistic",
            rounds=12,
        )
        if change is not None:
            fed.corrupt("site3", change)
        fitted.append(fed.run())
    honest, attacked = fitted
    assert len(attacked.history) == len(honest.history) < 12
    assert attacked.coefficients()["coefficient"].equals(honest.coefficients()["coefficient"])


def test_sums_of_a_site_with_far_more_samples_count_as_they_are(tmp_path):
    """Scaled to the usual size, they would be those of no samples, and the coefficients those of no table."""
    sizes = ((30, 5), (30, 5), (30, 5), (900, 5))
    fed = SmallFederation(
        tmp_path, make_clients(sizes), "newton(l2=1)", model="logistic", rounds=12
    )
    found = fed.run().coefficients()
    assert fed.events("scaled down") == []
    wanted = fed.simulated().coefficients()
    np.testing.assert_allclose(found["coefficient"], wanted["coefficient"], rtol=QUANTUM)


def test_sums_that_are_far_too_large_for_their_samples_are_refused(tmp_path):
    def enlarge(head, facts, tensors):
        if MESSAGE + "gradient" not in tensors:
            return None
        gradient = 1000 * tensors[MESSAGE + "gradient"]
        large = {
            MESSAGE + "gradient": gradient,
            MESSAGE + "squares": torch.outer(gradient, gradient),
        }
        return head, facts, tensors | large

    fed = SmallFederation(
        tmp_path, make_clients(FOUR), "newton(l2=1)", model="logistic", rounds=1, quorum=3
    )
    fed.corrupt("site3", enlarge)
    fed.run()
    [refused] = fed.events("refused")
    assert refused["client"] == "site3" and "message of newton" in refused["why"]


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
        (METHOD, "survival", times),
        ("newton_own_intercepts(l2=1, robust_errors=False)", "counts", counts),
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
    fed = SmallFederation(
        tmp_path, clients, method, data=schema, **settings, **TERMS | {"threshold": 4}
    )

    population = ua.Population.of(clients, task=task)
    work = fed.federation.work
    simulated = ua.run(method, population, work=work, seed=fed.federation.seed, **settings)
    assert_same_coefficients(fed.run().coefficients(), simulated.coefficients())
