"""Exact fits in a federation whose coordinator sees sums alone."""

import numpy as np
import pytest
from secure_federation import secure

QUANTUM = 1e-8
"""Largest difference of a coefficient in standard errors: secure sums are rounded to 2^-33 for each of four sites."""


@pytest.mark.filterwarnings("ignore:4 of 4 clients have fewer samples")
def test_coefficients_from_secure_sums_are_those_of_the_simulation(tmp_path):
    fed = secure(tmp_path, "newton(l2=1)", model="logistic", rounds=12)
    run = fed.run()
    found = run.coefficients()
    wanted = fed.simulated().coefficients()
    for name in ("coefficient", "se", "robust_se"):
        gap = (found[name] - wanted[name]) / wanted["se"]
        np.testing.assert_allclose(gap, 0, atol=QUANTUM, err_msg=name)
    assert found["coefficient"].notna().all()
    assert run.history.last["round"] < 12, "the federation ends when the fit has converged"
