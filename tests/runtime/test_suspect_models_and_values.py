"""Notes about models whose outputs are no logits or depend on nothing, and about values that are not what they seem."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import unalike as ua
from unalike.data.suspect_values import suspect_values

RNG = np.random.default_rng(0)


def clients(y=None, x=None):
    x = RNG.normal(size=(3, 20, 4)) if x is None else x
    y = np.tile(np.arange(20) % 3, (3, 1)) if y is None else y
    return [
        ua.ClientData(train=(x[k][:15], y[k][:15]), test=(x[k][15:], y[k][15:])) for k in range(3)
    ]


def notes(model, **options):
    return ua.run("fedavg", clients(**options), rounds=1, model=model, progress=False).notes


def about(found, words):
    return [note for note in found if words in note]


class Probabilities(nn.Module):
    """A softmax that is no layer of its own."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return torch.softmax(self.head(x), 1)


@pytest.mark.parametrize(
    "model", [Probabilities, lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))]
)
def test_outputs_of_a_softmax_are_noted(model):
    [note] = about(notes(model), "as a softmax makes them")
    assert "not negative and of sum 1" in note and "leave the last softmax out" in note


def test_outputs_of_a_sigmoid_are_noted():
    model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    truths = np.tile(np.arange(20) % 2 == 0, (3, 1))
    [note] = about(notes(model, y=truths), "as a sigmoid makes them")
    assert "between 0 and 1" in note


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (nn.Sigmoid(), "between 0 and 1, as a sigmoid makes them, so that no class"),
        (nn.ReLU(), "never negative, as a ReLU makes them"),
        (nn.Softmax(0), "depends on the others of its batch, also in evaluation"),
        (nn.BatchNorm1d(3, track_running_stats=False), "depends on the others of its batch"),
    ],
)
def test_outputs_of_several_classes_that_are_no_logits_are_noted(last, words):
    assert len(about(notes(nn.Sequential(nn.Linear(4, 3), last)), words)) == 1


class Ignoring(nn.Module):
    """A module that leaves its input out."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.ones_like(x))


@pytest.mark.parametrize(
    "model",
    [
        lambda: nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(4, 4), nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.Linear(4, 1), nn.LayerNorm(1), nn.Linear(1, 3)),
        lambda: nn.Sequential(nn.Linear(4, 1), nn.Softmax(1), nn.Linear(1, 3)),
        Ignoring,
    ],
)
def test_outputs_that_no_input_changes_are_noted(model):
    assert len(about(notes(model), "do not depend on its input")) == 1


def test_outputs_for_classes_that_no_sample_has_are_noted():
    [note] = about(notes(lambda: nn.Linear(4, 100)), "outputs for")
    assert note.startswith("the model has 100 outputs for 3 classes")


class Zeros(nn.Module):
    """A head that begins with zeros, so that all outputs are equal at first."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        return self.head(x)


@pytest.mark.parametrize(
    "model", ["linear", "mlp", Zeros, lambda: nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1))]
)
def test_usual_models_are_not_noted(model):
    found = notes(model)
    assert not [n for n in found if n.startswith(("the model has", "the outputs of the model"))]


def test_gaps_in_labels_are_noted():
    y = np.tile(np.array([0, 1, 9, 1]).repeat(5), (3, 1))
    [note] = about(notes("linear", y=y), "no sample is of the class")
    assert "class 2, 3, 4, 5, 6 and 2 more, so that 7 of 10 outputs are never trained" in note


def test_a_class_that_one_client_lacks_is_no_gap():
    y = np.stack([np.arange(20) % 2, np.arange(20) % 2, np.full(20, 2)])
    assert not about(notes("linear", y=y), "no sample is of the class")


def ages(*codes):
    column = RNG.integers(18, 80, 60).astype(float)
    column[: len(codes)] = codes
    return column


@pytest.mark.parametrize(
    "codes",
    [
        *[(-999,), (9999, 9999), (-1, -1), (-9, -9, -9), (999,), (-99, -99), (99999.0,)],
        *[(-88, -88), (777,), (99, 99, 99)],
    ],
)
def test_codes_for_missing_values_are_noted(codes):
    column = ages(*codes)
    x = np.stack([RNG.normal(size=60), column], 1).reshape(3, 20, 2)
    [note] = suspect_values(ua.Population.of(clients(x=x)))
    assert f"column 1 ({codes[0]:g} in " in note

    table = pd.DataFrame({"age": column, "dose": RNG.normal(size=60), "ill": np.arange(60) % 2})
    population = ua.partition(ua.load(table, target="ill"), "iid", clients=2, split=0.9)
    train = population.x.numpy()[population.train.values]
    if (np.abs(train) > 2.5).any() or codes[0] in (-1, -9, 99):
        [note] = suspect_values(population)
        assert f"'age' ({codes[0]:g} in " in note


@pytest.mark.parametrize(
    "column",
    [
        ages(),
        RNG.integers(-5, 30, 60).astype(float),
        RNG.integers(-1, 2, 60).astype(float),
        RNG.integers(0, 100, 60).astype(float),
        np.arange(60.0) - 1,
        RNG.lognormal(3, 2, 60),
        RNG.integers(0, 5, 60) * RNG.integers(0, 2, 60).astype(float),
        np.where(RNG.random(60) < 0.5, 0, RNG.integers(20, 40, 60)).astype(float),
        RNG.integers(-1, 30, 60).astype(float),
    ],
)
def test_usual_columns_hold_no_codes(column):
    x = np.stack([RNG.normal(size=60), column], 1).reshape(3, 20, 2)
    assert suspect_values(ua.Population.of(clients(x=x))) == []


def test_a_number_that_wipes_out_all_others_is_noted():
    table = pd.DataFrame({"age": ages(1e30), "dose": RNG.normal(size=60), "ill": np.arange(60) % 2})
    with pytest.warns(
        UserWarning, match=r"'age' has numbers up to 1e\+30, beside which all others"
    ):
        ua.load(table, target="ill")


@pytest.mark.parametrize(
    ("outcomes", "found"),
    [
        (["ill", "well", "Unknown"], "'Unknown' (20 training samples)"),
        ([0, 1, 9], "'9' (20 training samples)"),
        ([1, 2, 99], "'99' (20 training samples)"),
        ([0, 1, 2], ""),
        (["ill", "well", "dead"], ""),
        ([1, 5, 9], ""),
    ],
)
def test_missing_labels_among_classes_are_noted(outcomes, found):
    table = pd.DataFrame({"dose": RNG.normal(size=60), "outcome": np.resize(outcomes, 60)})
    population = ua.partition(ua.load(table, target="outcome"), "iid", clients=2, split=1)
    notes = about(suspect_values(population), "classes that look like missing labels")
    assert [found in note for note in notes] == [True] * bool(found)


def test_large_amounts_do_not_hide_a_code():
    incomes = RNG.integers(0, 10**6, 60).astype(float)
    incomes[:2] = -999
    [note] = suspect_values(ua.Population.of(clients(x=incomes.reshape(3, 20, 1))))
    assert "(-999 in 2 rows)" in note


def test_codes_among_amounts_to_predict_are_noted():
    table = pd.DataFrame({"dose": RNG.normal(size=60), "cost": ages(-999, -999) + 0.5})
    table.loc[:1, "cost"] = -999
    [note] = suspect_values(ua.partition(ua.load(table, target="cost"), "iid", clients=2))
    assert "the target (-999 in " in note


@pytest.mark.parametrize("unit", ["%", " mg", "%  ", " mg/l"])
def test_amounts_that_are_read_as_categories_are_noted(unit):
    shares = [f"{value}{unit}".strip() for value in RNG.integers(0, 30, 60)]
    table = pd.DataFrame({"share": shares, "dose": RNG.normal(size=60), "ill": np.arange(60) % 2})
    [note] = suspect_values(ua.partition(ua.load(table, target="ill"), "iid", clients=2))
    assert note.startswith("the column 'share' holds amounts as texts, such as ")
