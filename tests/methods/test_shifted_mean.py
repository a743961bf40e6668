"""The mean moved along the skewness of each entry, with numbers computed by hand."""

import numpy as np
import pytest
from simulation import Server


@pytest.mark.parametrize(("shift", "expected"), [(0, 1.0), (1, 1 - 1 / 6), (3, 0.5), (-6, 2.0)])
def test_shifted_mean_three_clients_equals_hand_numbers(shift, expected):
    """0, 0, 3: mean 1, m2 = (1 + 1 + 4) / 3 = 2, m3 = (-1 - 1 + 8) / 3 = 2: 1 - shift * 2 / 12. A symmetric entry and an equal
    one keep their mean, tiny values are treated as large ones."""
    W = [[0.0, -1, 5, 0], [0.0, 0, 5, 0], [3.0, 1, 5, 3e-30]]
    found = Server(f"shifted_mean(shift={shift})", {"w": np.zeros(4)}).advance(
        [{"w": row} for row in W]
    )["w"]
    np.testing.assert_allclose(found, [expected, 0, 5, expected * 1e-30], rtol=1e-12)


def test_shifted_mean_without_shift_is_uniform():
    W = [{"w": row} for row in np.random.default_rng(0).normal(size=(5, 7))]
    found = Server("shifted_mean(shift=0)", {"w": np.zeros(7)}).advance(W, [1, 2, 3, 4, 5])["w"]
    plain = Server("uniform", {"w": np.zeros(7)}).advance(W, [1, 2, 3, 4, 5])["w"]
    np.testing.assert_allclose(found, plain, rtol=1e-6)  # the float32 of 1/5
