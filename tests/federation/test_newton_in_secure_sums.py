"""Exact fits in a federation: sums alone, and sites whose sums cannot be those of their samples."""

import numpy as np
import pytest
import torch
from secure_federation import FOUR, secure
from small_federation import SmallFederation, make_clients

from unalike._utils.errors import UnalikeError

QUANTUM = 1e-8
"""Largest difference of a coefficient in standard errors: secure sums are rounded to 2^-33 for each of four sites."""
MESSAGE = "messages.newton/"
METHOD = "newton(l2=1, robust_errors=False)"


@pytest.mark.filterwarnings("ignore:4 of 4 clients have fewer samples")
def test_coefficients_from_secure_sums_are_those_of_the_simulation(tmp_path):
    fed = secure(tmp_path, METHOD, model="logistic", rounds=12, threshold=4)
    run = fed.run()
    found = run.coefficients()
    wanted = fed.simulated().coefficients()
    for name in ("coefficient", "se"):
        gap = (found[name] - wanted[name]) / wanted["se"]
        np.testing.assert_allclose(gap, 0, atol=QUANTUM, err_msg=name)
    assert found["coefficient"].notna().all() and found["robust_se"].isna().all()
    assert run.history.last["round"] < 12, "the federation ends when the fit has converged"


def test_squares_of_single_gradients_are_no_sum_that_hides_them(tmp_path):
    """Three sites, 8 coefficients: the sums of g and g g^T, and whole numbers of cases, gave each site's g to 2e-11."""
    with pytest.raises(UnalikeError, match="squares of each site's gradient"):
        secure(tmp_path, "newton", model="logistic", threshold=4)


@pytest.mark.parametrize("method", [METHOD, "feature_alignment"])
def test_sums_that_stay_alike_are_over_all_sites_or_none(method, tmp_path):
    """Round 7 without one of four sites gave its second derivatives to 2e-11; counts of classes stay the same in every round."""
    with pytest.raises(
        UnalikeError, match="threshold of 3; expected one of all sites, --threshold 4"
    ):
        secure(tmp_path, method, rounds=1)
    secure(tmp_path, method, rounds=1, threshold=4)


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
