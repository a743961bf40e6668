"""Settings of local work, and the batches that follow from them."""

import numpy as np
import pytest
from every_method import SIZES
from hypothesis import given
from hypothesis import strategies as st
from simulation import Clients, Simulation, mlp

from unalike.core.work import Work


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"steps": 0},
        {"batch_size": 0},
        {"lr": 0},
        {"lr": -1},
        {"momentum": 1},
        {"momentum": -0.1},
        {"nesterov": True},
        {"optimizer": "adam", "momentum": 0.9},
        {"optimizer": "lion"},
        {"weight_decay": -1},
        {"schedule": 0},
        {"clip": 0},
        {"lr": float("nan")},
        {"rounds": 3},
    ],
)
def test_work_wrong_setting_is_refused(wrong):
    with pytest.raises((ValueError, TypeError)):
        Work(**wrong)


@given(
    st.integers(1, 40),
    st.one_of(st.none(), st.integers(1, 12)),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(1, 30)),
)
def test_work_batches_use_every_sample_once_per_epoch(n, size, epochs, steps):
    work = Work(epochs=epochs, batch_size=size, steps=steps)
    batches = work.batches(n, np.random.default_rng(0))
    assert len(batches) == work.steps_for(n) == (steps or epochs * -(-n // (size or n)))
    assert all(1 <= len(b) <= (size or n) and len(set(b.tolist())) == len(b) for b in batches)
    assert [b.tolist() for b in batches[1:]] == [b.tolist() for b in batches][1:] and batches[
        -1
    ].tolist()
    per_epoch = -(-n // (size or n))
    for first in range(0, len(batches) - per_epoch + 1, per_epoch):
        assert sorted(np.concatenate(batches[first : first + per_epoch]).tolist()) == list(range(n))


def test_work_without_samples_has_no_steps_and_no_batches():
    assert (
        Work().steps_for(0) == 0
        and Work(steps=5).steps_for(0) == 0
        and not Work(batch_size=None).batches(0, np.random.default_rng(0))
    )


def test_batches_depend_only_on_seed_round_and_client():
    sim, other = (
        Simulation("fedavg", mlp(), Clients.random(SIZES), seed=s, batch_size=2) for s in (3, 4)
    )

    def order(s, client, round):
        return [b.tolist() for b in s.batches(client, round)]

    assert order(sim, 0, 1) == order(sim, 0, 1) != order(sim, 0, 2)
    assert order(sim, 0, 1) != order(other, 0, 1)
    more = Simulation("fedprox", mlp(), Clients.random((*SIZES, 9)), seed=3, batch_size=2)
    assert order(sim, 0, 1) == order(more, 0, 1)
