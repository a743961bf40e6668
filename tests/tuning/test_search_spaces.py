"""The search spaces that parts and plans declare."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import PositiveFloat

import unalike as ua
from unalike.core.work import Work
from unalike.methods.method import Method
from unalike.methods.part import part, registry
from unalike.methods.plan import plan
from unalike.methods.roles import ServerStep
from unalike.methods.search_space import LinearRange, LogRange, OneOf, search_spaces
from unalike.tuning.tunable import LOCAL_RATE, Tunable


def corners(space):
    """Values at both ends of a space, and one between them."""
    if isinstance(space, OneOf):
        return space.values
    middle = (
        (space.low * space.high) ** 0.5
        if isinstance(space, LogRange)
        else (space.low + space.high) / 2
    )
    return space.low, middle, space.high


@pytest.mark.parametrize("name", sorted(registry))
def test_every_value_of_every_space_of_the_catalogue_is_valid(name):
    tunable = Tunable(plan(name), Work())
    assert tunable.spaces.keys() == tunable.values.keys()
    for field, space in tunable.spaces.items():
        for value in corners(space):
            changed = tunable.with_values({field: value})
            assert changed.values == tunable.values | {field: value}
            assert plan(repr(changed.plan)) == changed.plan, "the changed method is spec text"


@pytest.mark.parametrize("name", sorted(registry))
def test_default_of_the_catalogue_lies_in_its_space(name):
    tunable = Tunable(plan(name), Work())
    assert {n: v for n, v in tunable.values.items() if v not in tunable.spaces[n]} == {}


def test_local_learning_rate_is_tuned_for_every_method_on_the_scale_of_its_optimizer():
    assert Tunable(plan("fedavg"), Work()).spaces == {LOCAL_RATE: LogRange(1e-3, 1)}
    assert Tunable(plan("fedavg"), Work(optimizer="adam")).spaces == {
        LOCAL_RATE: LogRange(1e-5, 0.1)
    }


def test_server_rate_is_tuned_where_a_method_has_one():
    assert list(Tunable(plan("fedadam"), Work()).spaces) == [
        "lr",
        "server_adam.lr",
        "server_adam.tau",
    ]
    assert list(Tunable(plan("scaffold"), Work()).spaces) == ["lr", "control_variates.server_lr"]


def test_values_of_a_plan_and_of_the_method_of_its_stages_are_changed():
    changed = Tunable(plan("ccvr(method='fedprox')"), Work()).with_values(
        {"lr": 0.5, "ccvr.lr": 0.02, "proximal.mu": 0.3}
    )
    assert changed.work == Work(lr=0.5) and changed.plan.lr == 0.02
    assert Method.parse(changed.plan.method) == Method.parse("fedprox(mu=0.3)")


def test_value_outside_of_a_field_is_refused():
    with pytest.raises(ua.UnalikeError, match="mu"):
        Tunable(plan("fedprox"), Work()).with_values({"proximal.mu": -1.0})


def test_part_of_a_user_declares_its_space():
    @part
    class TunedStep(ServerStep):
        """A step of the tests."""

        factor: Annotated[PositiveFloat, LinearRange(0.5, 2)] = 1.0
        other: float = 1.0

    assert search_spaces(TunedStep()) == {"factor": LinearRange(0.5, 2)}


def test_ranges_and_choices_know_their_values():
    assert 0.5 in LogRange(0.1, 1) and 0.0 not in LogRange(0.1, 1) and "a" not in LinearRange(0, 1)
    assert 5 in OneOf(1, 5) and 2 not in OneOf(1, 5)
