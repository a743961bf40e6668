"""Seeded generators are NumPy's, made from a number, a purpose and a path."""

import numpy as np
import pytest

from unalike._utils import seeds


@pytest.mark.parametrize("number", [0, 7, 2**31, 2**40 + 5])
@pytest.mark.parametrize("purpose", ["cohort", "batches", "batches of phase 1", "x"])
@pytest.mark.parametrize("path", [(), (3,), (2**33, 1)])
def test_generator_equals_numpy_default_rng(number, purpose, path):
    own, known = (
        seeds.generator(number, purpose, *path),
        np.random.default_rng([number, int.from_bytes(purpose.encode()), *path]),
    )
    assert own.bit_generator.state == known.bit_generator.state
