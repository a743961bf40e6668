"""Schedules of the local learning rate are torch's, round by round."""

from functools import partial

import pytest
import torch
from torch.optim import lr_scheduler

from unalike._utils.errors import UnalikeError
from unalike.core.work import Work

TORCH = {
    "cosine": partial(lr_scheduler.CosineAnnealingLR, T_max=20),
    "cosine(end=0.1)": partial(lr_scheduler.CosineAnnealingLR, T_max=20, eta_min=0.03),
    "step(every=6, factor=0.5)": partial(lr_scheduler.StepLR, step_size=6, gamma=0.5),
    "exponential(factor=0.9)": partial(lr_scheduler.ExponentialLR, gamma=0.9),
}


def rates(rounds, **work):
    made = Work(lr=0.3, **work).over(rounds)
    return [made.lr_at(r) for r in range(rounds)]


@pytest.mark.parametrize("text", TORCH)
def test_schedule_equals_torch(text):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    theirs, expected = TORCH[text](optimizer), []
    for _ in range(20):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step(), theirs.step()
    assert rates(20, schedule=text) == pytest.approx(expected, rel=1e-9)


def test_warm_up_rises_to_the_rate_and_the_schedule_begins_after_it():
    found = rates(13, schedule="cosine(warmup=3)")
    assert found[:3] == pytest.approx([0.3 / 4, 0.6 / 4, 0.9 / 4])
    assert found[3:] == pytest.approx(rates(10, schedule="cosine"))
    assert rates(5, schedule="exponential(warmup=1)") == pytest.approx([0.15, 0.3, 0.3, 0.3, 0.3])


def test_number_and_function_are_factors():
    assert (
        rates(4, schedule=0.5)
        == rates(4, schedule="0.5")
        == pytest.approx([0.3, 0.15, 0.075, 0.0375])
    )
    assert rates(3, schedule=lambda r: 1 / (1 + r)) == pytest.approx([0.3, 0.15, 0.1])


def test_rounds_of_the_run_become_part_of_the_schedule():
    """So a run that is continued with more rounds is another run: its earlier rounds would have had other rates."""
    assert Work(schedule="cosine(warmup=5)").over(50).schedule == "cosine(rounds=50, warmup=5)"
    assert Work(schedule="cosine(rounds=80)").over(50).schedule == "cosine(rounds=80)"
    assert Work(schedule="step(every=5)").over(50).schedule == "step(every=5)"
    with pytest.raises(
        UnalikeError, match=r"depends on the number of rounds; write cosine\(rounds=50\)"
    ):
        Work(schedule="cosine").lr_at(3)


@pytest.mark.parametrize(
    "schedule, says",
    [
        (
            "cosine(rounds=5)",
            r"'cosine\(rounds=5\)' gives the learning rate 0.0 in round 5; expected one above 0",
        ),
        (lambda r: 1 - r, r"gives the learning rate 0.0 in round 1"),
        (lambda r: float("nan"), r"gives the learning rate nan in round 0"),
        (1e-200, r"gives the learning rate 0.0 in round 2"),
    ],
)
def test_rate_that_is_not_above_zero_is_refused_before_training(schedule, says):
    with pytest.raises(UnalikeError, match=says):
        Work(schedule=schedule).over(9)


@pytest.mark.parametrize(
    "wrong, says",
    [
        ("cosin", "did you mean 'cosine'"),
        ("step", "missing a required argument: 'every'"),
        ("step(every=0)", "expected a number of rounds, 1 or more"),
        ("cosine(rounds=5, warmup=5)", "found warmup=5 of 5 rounds; expected fewer"),
        (0, r"expected a factor above 0, or a name such as 'cosine\(warmup=5\)'"),
        ((1, 2), r"found tuple; expected a name, such as 'cosine\(warmup=5\)', or a function"),
    ],
)
def test_wrong_schedule_is_refused(wrong, says):
    with pytest.raises(UnalikeError, match=says):
        Work(schedule=wrong)
