"""Generators that are made together are those that are made one by one."""

import numpy as np
import pytest

from unalike.core import seed


@pytest.mark.parametrize("number", [0, 7, 2**31, 2**40 + 5])
@pytest.mark.parametrize("purpose", ["cohort", "batches", "batches of phase 1", "x"])
@pytest.mark.parametrize("path", [(), (3,), (2**33, 1)])
def test_many_at_once(number, purpose, path):
    clients = [*range(seed.MANY), 12_345, 2**32 - 1]
    for client, rng in zip(clients, seed.generators(number, purpose, *path, last=clients), strict=True):
        words = [number, int.from_bytes(purpose.encode()), *path, client]
        alone, known = seed.generator(number, purpose, *path, client), np.random.default_rng(words)
        assert rng.bit_generator.state == alone.bit_generator.state == known.bit_generator.state
        assert rng.permutation(50).tolist() == known.permutation(50).tolist()


def test_few_are_made_as_ever():
    [rng] = seed.generators(1, "batches", 2, last=[3])
    assert rng.random() == seed.generator(1, "batches", 2, 3).random()
