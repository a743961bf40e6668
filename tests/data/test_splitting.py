"""Test samples drawn within each client: stratified, with units on one side, and the folds of cross-validation."""

from __future__ import annotations

import numpy as np
import pytest

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.data import Dataset, partition
from unalike.data.partitioning.hold_out import draw_tests, hold_out

RNG = np.random.default_rng(0)
SITE = np.repeat(["north", "south", "tiny"], [60, 33, 7])
LABELS = np.concatenate([np.arange(60) % 4 == 0, np.arange(33) % 2 == 0, np.arange(7) == 0]).astype(
    int
)


def sites(**details) -> Dataset:
    """Three sites of 60, 33 and 7 samples; the reader set the last 20 apart."""
    order = RNG.permutation(100)
    x, y = RNG.normal(size=(100, 2)), LABELS[order]
    groups = {"site": SITE[order], "patient": order // 3}
    return Dataset("sites", (x[:80], y[:80]), (x[80:], y[80:]), groups=groups, **details)


def test_owners_draw_other_tests_under_each_seed_unless_the_test_set_is_published():
    for published, tests in ((False, 5), (True, 1)):
        data = sites(published=published)
        everyone = [partition(data, seed=seed) for seed in range(5)]
        assert len({tuple(np.sort(people.test.values)) for people in everyone}) == tests
        assert (
            len({tuple(np.sort(np.r_[p.train[0], p.test[0]])) for p in everyone}) == 1
        )  # the owners stay
    assert set(np.flatnonzero(np.isin(np.arange(100), everyone[0].test.values))) == set(
        range(80, 100)
    )


def test_each_class_of_each_client_has_its_share_of_tests_up_to_one():
    owned = [np.flatnonzero(name == SITE) for name in ("north", "south", "tiny")]
    for seed in range(50):
        for rows, tests in zip(owned, draw_tests(owned, LABELS, np.arange(100), seed, split=0.75)):
            assert tests.sum() == len(rows) - int(0.75 * len(rows))
            for label in (0, 1):
                mine = LABELS[rows] == label
                assert abs(tests[mine].sum() - tests.mean() * mine.sum()) < 1


def test_a_numeric_outcome_is_stratified_by_its_order():
    y = RNG.normal(size=100)
    [tests] = draw_tests([np.arange(100)], y, np.arange(100), seed=3, split=0.75)
    assert np.bincount(np.argsort(np.argsort(y))[tests] // 20).tolist() == [5] * 5


def test_every_sample_tests_with_the_same_probability():
    """Also the only sample of its class: of 13 samples 4 test, in 4 of 13 draws each."""
    y = np.r_[np.zeros(9), np.ones(3), 2].astype(int)
    drawn = np.mean(
        [draw_tests([np.arange(13)], y, np.arange(13), seed, 0.75)[0] for seed in range(4000)],
        axis=0,
    )
    assert drawn == pytest.approx([4 / 13] * 13, abs=4 * (4 / 13 * 9 / 13 / 4000) ** 0.5)


def test_seeds_of_folds_are_repeated_cross_validation():
    """With three folds, three seeds in a row test every sample once, and the next three divide the samples in another way."""
    data = sites(published=False)
    tests = [partition(data, seed=seed, folds=3).test.values for seed in range(6)]
    for repetition in (tests[:3], tests[3:]):
        assert np.array_equal(np.sort(np.concatenate(repetition)), np.arange(100))
    assert set(tests[0]) not in [set(found) for found in tests[3:]]
    positives = [LABELS[SITE == "north"].sum() / 3] * 3
    y = data.merged()[1].numpy()
    found = [y[t][data.groups["site"][t] == "north"].sum() for t in tests[:3]]
    assert np.abs(np.subtract(found, positives)).max() < 1


@pytest.mark.parametrize(
    "spec", ["natural(column='site')", "iid", "dirichlet(alpha=1.0, min_size=8)"]
)
def test_units_are_on_one_side_even_where_they_have_samples_of_several_clients(spec):
    data = sites(published=False)
    order, patient = np.argsort(data.groups["patient"], kind="stable"), data.groups["patient"]
    first = np.isin(patient, patient[order][:80])  # a test set that divides no patient
    x, y = (t.numpy() for t in data.merged())
    rows = np.r_[np.flatnonzero(first), np.flatnonzero(~first)]
    groups = {name: values[rows] for name, values in data.groups.items()}
    whole = Dataset.divided(
        "sites", x[rows], y[rows], int(first.sum()), None, groups, unit="patient", published=False
    )
    clients = None if spec.startswith("natural") else 4
    for seed in range(5):
        people = partition(whole, spec, clients, seed=seed, val=0.2 if clients is None else 0.0)
        sides = [
            set(whole.groups["patient"][part.values])
            for part in (people.train, people.test, people.val)
        ]
        assert not sides[0] & sides[1] and not sides[2] & sides[1]
        assert len(people.test.values) > 10
    rest, (x, y) = hold_out(whole, 0.1)
    assert len(rest.merged()[1]) + len(y) == 100
    patients = dict(zip(map(tuple, whole.merged()[0].tolist()), whole.groups["patient"]))
    assert not {patients[tuple(row)] for row in x.tolist()} & set(rest.groups["patient"])
    assert rest.unit == "patient" and not rest.published


def test_published_tests_that_divide_a_unit_raise():
    with pytest.raises(UnalikeError, match="training and test samples share values of 'patient'"):
        sites(unit="patient")
    with pytest.raises(UnalikeError, match="found unit='ward', expected a column of groups"):
        sites(unit="ward")


def test_table_with_a_unit_column(tmp_path):
    lines = [
        f"{i % 7},{i // 4},{'north' if i < 60 else 'south'},{(i // 4) % 2}" for i in range(120)
    ]
    (tmp_path / "visits.csv").write_text("\n".join(["age,patient,site,ill", *lines]) + "\n")
    data = ua.load(tmp_path / "visits.csv", target="ill", group="site", unit="patient")
    assert list(data.encoding.names) == ["age"]
    assert (data.unit, data.published, list(data.groups)) == ("patient", False, ["site", "patient"])
    people = partition(data, seed=1)
    sizes = np.unique(data.groups["patient"][people.test.values], return_counts=True)[1]
    assert set(sizes) == {4} and people.test.sizes.tolist() == [4 * 4, 4 * 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": 0.5, "folds": 2}, "found split=0.5 beside folds=2"),
        ({"folds": 1}, "found folds=1, expected a whole number, 2 or more"),
    ],
)
def test_shares_that_contradict_raise(options, message):
    with pytest.raises(UnalikeError, match=message):
        partition(sites(published=False), **options)


def test_split_beside_published_tests_raises_instead_of_doing_nothing():
    """The 20 published test samples are enough for every site to have some."""
    data = sites()
    assert partition(data).test.sizes.min() > 0
    with pytest.raises(
        UnalikeError,
        match=r"found split=0.5 beside natural.* leave it out, or write own_test=False",
    ):
        partition(data, split=0.5)
    assert partition(data, "natural(column='site', own_test=False)", split=0.5).sizes.tolist() == [
        30,
        16,
        3,
    ]
