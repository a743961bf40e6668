"""Schemes by where samples come from, and the mixtures that bring test samples of their own."""

import numpy as np
import pytest

from unalike._utils.errors import UnalikeError
from unalike.data import Dataset, PartitionPlan, partition, partition_labels

RNG = np.random.default_rng(0)
SITES = RNG.choice(["north", "south", "east"], 90, p=[0.5, 0.3, 0.2])


@pytest.fixture(scope="module")
def sites() -> Dataset:
    """60 training and 30 test rows; "late" has test samples only."""
    site = SITES.copy()
    site[80:] = "late"
    x, y = RNG.normal(size=(90, 2)), RNG.integers(0, 2, 90)
    coast = np.isin(site, ["north", "east"]).astype(int)
    return Dataset(
        "sites", (x[:60], y[:60]), (x[60:], y[60:]), groups={"site": site, "coast": coast}
    )


def test_natural_clients_keep_their_own_test_samples(sites):
    everyone = partition(sites, "natural(column='site', cluster='coast')")
    assert list(everyone.names) == ["east", "late", "north", "south"] and list(
        everyone.clusters
    ) == [1, 0, 1, 0]
    for k, name in enumerate(everyone.names):
        mine = np.flatnonzero(sites.groups["site"] == name)
        assert set(everyone.train[k]) | set(everyone.test[k]) == set(mine)
        if name != "late":
            assert set(everyone.test[k]) == set(mine[mine >= 60])
    assert len(everyone.train[1]) == 7 and len(everyone.test[1]) == 3


def test_natural_without_own_test_divides_and_fewer_clients_are_drawn(sites):
    everyone = partition(sites, "natural(column='site', own_test=False)")
    assert "the 30 test samples that sites declares are divided anew" in everyone.plan.notes[0]
    assert (
        partition(sites, "natural(column='site')").plan.notes
        == partition(sites, "iid", merge=False).plan.notes
        == ()
    )
    assert (everyone.sizes == np.floor(0.75 * (everyone.sizes + everyone.test.sizes))).all()
    two = [partition(sites, "natural(column='site')", clients=2, seed=seed) for seed in range(9)]
    assert all(len(p) == 2 for p in two) and len({tuple(p.names) for p in two}) > 2
    with pytest.raises(UnalikeError, match="clients=5, the data has 4"):
        partition(sites, "natural(column='site')", clients=5)
    with pytest.raises(
        UnalikeError,
        match=r"no column 'ward' \(columns: 'site', 'coast'\).* a table with group='ward'",
    ):
        partition(sites, "natural(column='ward')")


def test_natural_client_in_several_clusters_raises(sites):
    with pytest.raises(
        UnalikeError, match="the samples of client 0 lie in several clusters, expected one"
    ):
        partition(sites, "natural(column='coast', cluster='site')")


def test_natural_without_merge_uses_training_samples_only(sites):
    everyone = partition(sites, "natural(column='site')", merge=False)
    assert (
        list(everyone.names) == ["east", "north", "south"]
        and everyone.sizes.sum() + everyone.test.sizes.sum() == 60
    )


def test_domains_are_divided_evenly_among_their_clients(sites):
    assert list(partition(sites, "domains(column='site')").names) == [
        "east",
        "late",
        "north",
        "south",
    ]
    everyone = partition(sites, "domains(column='site')", clients=6)
    assert list(everyone.names) == ["east-0", "east-1", "late-0", "late-1", "north", "south"]
    assert list(everyone.clusters) == [0, 0, 1, 1, 2, 3]
    owned = [np.concatenate([everyone.train[k], everyone.test[k]]) for k in range(6)]
    assert np.array_equal(np.sort(np.concatenate(owned)), np.arange(90))
    assert len({*sites.groups["site"][owned[0]]}) == 1 and abs(len(owned[0]) - len(owned[1])) <= 1
    with pytest.raises(
        UnalikeError,
        match=r"expected one or more for each of 4 domains \(east, late, north, south\)",
    ):
        partition(sites, "domains(column='site')", clients=3)


def test_domains_named_like_numbered_clients_get_distinct_names():
    data = Dataset(
        "two", (np.zeros((6, 1)), np.arange(6) % 2), groups={"domain": ["a"] * 4 + ["a-0"] * 2}
    )
    assert list(partition(data, "domains", clients=3).names) == ["a-0", "a-1", "a-0-0"]
    assert list(partition(data, "domains", clients=2).names) == ["a", "a-0"]


def test_natural_plan_round_trip_keeps_names_and_clusters(sites, tmp_path):
    plan = partition(sites, "domains(column='site')", clients=5).plan
    again = PartitionPlan.load(plan.save(tmp_path))
    assert (
        again.hash == plan.hash
        and list(again.names) == list(plan.names)
        and again.clusters == plan.clusters
    )


def test_partition_labels_with_groups_divides_by_column():
    parts = partition_labels(
        "natural(column='ward')", [0, 1, 0, 1], groups={"ward": ["b", "a", "b", "b"]}
    )
    assert [part.tolist() for part in parts] == [[1], [0, 2, 3]]
    with pytest.raises(UnalikeError, match="column 'ward' has shape"):
        partition_labels("natural(column='ward')", [0, 1], groups={"ward": [1]})


@pytest.fixture(scope="module")
def letters() -> Dataset:
    """62 classes of 5000 samples without features to speak of: enough for every kind of the FedMix testbed."""
    y = np.tile(np.arange(62), 5000)
    return Dataset("letters", (np.zeros((len(y), 1), np.float32), y))


@pytest.mark.parametrize(
    ("kind", "train", "test"),
    [
        ("zipf_more", 5973, 1013),
        ("zipf_less", 622, 144),
        ("even_more", 5952, 992),
        ("even_less", 558, 62),
    ],
)
def test_mixture_kinds_have_published_sizes(letters, kind, train, test):
    everyone = partition(letters, kind, clients=3)
    assert everyone.sizes.tolist() == [train] * 3 and everyone.test.sizes.tolist() == [test] * 3


def test_mixture_scale_keeps_the_kinds_and_their_ratio(letters):
    everyone = partition(letters, "mixture(zipf_more=1, even_more=1, even_less=1, scale=0.249)")
    # floor(1494 / 62) = 24 and floor(149 / 62) = 2 samples of each class; of 25 test samples at least one of each class
    assert everyone.sizes.tolist()[1:] == [24 * 62, 2 * 62] and everyone.test.sizes.tolist()[
        1:
    ] == [4 * 62, 62]
    p = np.arange(1, 63.0) ** -2
    assert everyone.sizes[0] == np.maximum(1, np.floor(1494 * p / p.sum())).sum() == 1498


def test_mixture_scale_one_is_the_published_testbed(letters):
    plain, scaled = (
        partition(letters, f"mixture(zipf_more=1, even_less=1{s})") for s in ("", ", scale=1")
    )
    assert all((plain.train[k] == scaled.train[k]).all() for k in range(2))


def test_mixture_kinds_rank_training_and_test_labels_equally(letters):
    everyone = partition(letters, "zipf_more(order='swap')", clients=4)
    y = everyone.y.numpy()
    for k in range(4):
        tops = [
            np.bincount(y[part[k]], minlength=62).argsort()[::-1][:3]
            for part in (everyone.train, everyone.test)
        ]
        assert tops[0].tolist() == tops[1].tolist() and tops[0][0] == k


def test_mixture_test_samples_are_trained_on_by_no_client(letters):
    everyone = partition(letters, "mixture(zipf_more=3, even_less=2)")
    assert everyone.sizes.tolist() == [5973] * 3 + [558] * 2
    assert not set(everyone.train.values) & set(everyone.test.values)


def test_mixture_of_small_data_takes_all_samples(blobs):
    with pytest.warns(UserWarning, match="3 of 3 clients get fewer samples"):
        everyone = partition(blobs, "even_more", clients=3)
    assert set(everyone.sizes) == {680} and set(everyone.test.sizes) == {120}


def test_shortfall_is_kept_with_the_plan(blobs, tmp_path):
    with pytest.warns(UserWarning, match="mixture: 3 of 3 clients get fewer"):
        plan = partition(blobs, "mixture(even_more=3)").plan
    assert [note.split(",")[0] for note in plan.notes] == [
        "mixture: 3 of 3 clients get fewer samples than asked for"
    ]
    loaded = PartitionPlan.load(plan.save(tmp_path))
    assert loaded.notes == plan.notes and loaded.hash == plan.hash
