"""The text by which a record names a function: the same in every process, another for another function."""

import subprocess
import sys
from functools import partial

import pytest
import torch

from unalike._utils.errors import UnalikeError
from unalike._utils.functions import MissingFunction, is_text_of_function, text_of_function

FACTOR = 2.0


def named(x, y=1):
    return FACTOR * x + y


class Margin:
    def __init__(self, margin):
        self.margin, self.itself = margin, self

    def loss(self, x):
        return x.clamp_min(self.margin)

    __call__ = loss


def made(gamma):
    return lambda x: x**gamma


def test_plain_values_stand_for_themselves():
    assert [text_of_function(v) for v in (1.5, "focal", None, (1, 2))] == [
        1.5,
        "focal",
        None,
        (1, 2),
    ]


def test_function_is_its_name_and_a_hash():
    text = text_of_function(named)
    assert (
        text.startswith("<named ")
        and is_text_of_function(text)
        and not is_text_of_function("named")
        and text_of_function(named) == text
    )


@pytest.mark.parametrize(
    "one, other",
    [
        (made(2), made(3)),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: x.sum(), lambda x: x.mean()),
        (lambda x: x[..., 0], lambda x: x[..., 1]),
        (lambda x: x in {"a", "b"}, lambda x: x in {"a", "c"}),
        (partial(named, y=1), partial(named, y=2)),
        (torch.nn.CrossEntropyLoss(torch.ones(3)), torch.nn.CrossEntropyLoss(torch.ones(4))),
        (torch.nn.CrossEntropyLoss(), torch.nn.CrossEntropyLoss(label_smoothing=0.1)),
        (torch.optim.Adam, torch.optim.RMSprop),
        (Margin(1).loss, Margin(2).loss),
        (Margin(1), Margin(2)),
    ],
)
def test_other_code_or_values_give_another_text(one, other):
    assert text_of_function(one) != text_of_function(other)


def test_global_number_that_a_function_uses_counts(monkeypatch):
    before = text_of_function(named)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert text_of_function(named) != before


def test_equal_functions_give_one_text():
    assert text_of_function(made(2)) == text_of_function(made(2))
    weights = (torch.nn.CrossEntropyLoss(torch.tensor([1.0, 2.0])) for _ in range(2))
    assert len({text_of_function(loss) for loss in weights}) == 1


def test_text_is_the_same_in_another_process():
    code = (
        "import test_functions as t; print(t.text_of_function(t.named), "
        "t.text_of_function(t.torch.optim.Adam), t.text_of_function(t.made(2)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=__file__.rpartition("/")[0],
    )
    assert (
        found.stdout.strip()
        == f"{text_of_function(named)} {text_of_function(torch.optim.Adam)} {text_of_function(made(2))}"
    )


def test_missing_function_keeps_its_text_and_cannot_be_called():
    assert text_of_function(MissingFunction("<focal 1f>")) == "<focal 1f>"
    with pytest.raises(
        UnalikeError, match=r"<focal 1f> is a function of the program that made the run"
    ):
        MissingFunction("<focal 1f>")(1)
