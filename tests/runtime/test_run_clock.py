"""The clock of a run: the seconds in its history are those of the clock, and stop rules and budgets follow them."""

from functools import partial

import pytest
from small_federation import SmallFederation

from unalike.federation.coordinator.network_backend import NetworkBackend
from unalike.runtime.stages.local_backend import LocalBackend
from unalike.runtime.stages.model_group import ModelGroup

SECONDS_OF_A_ROUND = 40.0


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self):
        self.now = 1e6

    def __call__(self):
        return self.now


@pytest.fixture
def timed(people, small, monkeypatch):
    """A run of up to ten rounds by a clock that training moves."""
    clock = Clock()
    train = ModelGroup.train

    def slow(group, *cohort):
        clock.now += SECONDS_OF_A_ROUND
        return train(group, *cohort)

    monkeypatch.setattr(ModelGroup, "train", slow)
    monkeypatch.setattr(
        "unalike.runtime.processes.launch.LocalBackend", partial(LocalBackend, clock=clock)
    )
    return partial(small, "fedavg", people, rounds=10, executor="loop")


def test_seconds_of_the_history_are_those_of_the_clock(timed):
    rounds = timed(evaluate_every=5).history.rounds
    assert rounds["seconds"].tolist() == [0.0] + [SECONDS_OF_A_ROUND] * 10
    assert rounds["evaluation_seconds"].tolist() == [0.0] * 11


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"budget": "2 min"}, "budget of 2 min spent"),
        ({"stop": "seconds >= 100"}, "stop rule: seconds >= 100"),
    ],
)
def test_budget_and_stop_rule_follow_the_clock(timed, rule, why):
    run = timed(**rule)
    assert run.ended == why
    assert run.history.rounds["round"].iloc[-1] == 3


def test_federation_counts_the_seconds_of_its_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "unalike.federation.coordinator.coordinator.NetworkBackend",
        partial(NetworkBackend, clock=Clock()),
    )
    rounds = SmallFederation(tmp_path).run().history.rounds
    assert len(rounds) > 1
    assert (rounds["seconds"] == 0).all()
