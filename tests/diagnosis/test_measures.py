"""The measures on numbers that were computed by hand, and on partitions whose order is known."""

import numpy as np
import pytest

import unalike as ua
from unalike.data.population import Population
from unalike.diagnosis import labels, sizes
from unalike.diagnosis.features import SlicedDistance
from unalike.diagnosis.measure import (
    Measure,
    bootstrap_interval,
    mean_interval,
    p_value,
    shuffled_within,
    t_interval,
)
from unalike.diagnosis.samples import ClientSamples


def samples_of(clients, seed=0):
    return ClientSamples.of(Population.of(clients), seed)


def test_label_distances_of_disjoint_clients_match_hand_computed_values():
    # p_1 = (1, 0), p_2 = (0, 1), q = (3/4, 1/4)
    found = labels.distances(np.array([[6, 0], [0, 2]]))
    assert found["label_tv"] == pytest.approx((0.25 + 0.75) / 2)
    assert found["label_hellinger"] == pytest.approx(
        (np.sqrt(1 - np.sqrt(0.75)) + np.sqrt(1 - np.sqrt(0.25))) / 2
    )
    # JS(p_1, q) = H(7/8, 1/8) - H(q)/2, JS(p_2, q) = H(3/8, 5/8) - H(q)/2, in bits
    assert found["label_js"] == pytest.approx((0.543564 + 0.954434 - 0.811278) / 2, abs=1e-5)


def test_label_distances_of_equal_clients_are_zero():
    assert all(
        value == pytest.approx(0, abs=1e-7)
        for value in labels.distances(np.array([[5, 5], [20, 20]])).values()
    )


def test_pairwise_hellinger_distance_is_zero_for_equal_and_one_for_disjoint_clients():
    found = labels.pairwise(np.array([[4, 0], [2, 0], [0, 3], [2, 2]]))
    assert found[0, 1] == 0 and found[0, 2] == 1
    assert found[0, 3] == pytest.approx(np.sqrt(1 - np.sqrt(0.5)))
    assert (found == found.T).all()


def test_dealt_labels_keep_sizes_and_classes():
    counts = np.array([[9, 1, 0], [0, 2, 3], [1, 1, 1]])
    found = labels.dealt(counts, np.random.default_rng(0))
    assert (found.sum(0) == counts.sum(0)).all() and (found.sum(1) == counts.sum(1)).all()


def test_inequality_of_sizes_matches_hand_computed_values():
    found = sizes.inequality(np.array([1, 0, 3]))
    assert found == pytest.approx({"size_gini": 0.25, "size_ratio": 3})


def test_sliced_distance_in_one_direction_is_the_area_between_distribution_functions():
    features = np.array([[0.0], [1.0], [4.0], [5.0]])
    deviation = features.std()  # sqrt(17 / 4)
    found = SlicedDistance(features, np.zeros(4), np.eye(1)).of_clients(np.array([0, 0, 1, 1]), 2)
    assert found == pytest.approx([4 / deviation, 4 / deviation])


def test_sliced_distance_of_unequal_clients_is_that_to_the_others():
    features = np.array([[0.0], [0.0], [0.0], [2.0], [6.0]])
    found = SlicedDistance(features, np.zeros(5), np.eye(1)).of_clients(
        np.array([0, 0, 0, 1, 1]), 3
    )
    assert found[:2] == pytest.approx([4 / features.std()] * 2)  # 0 against the mean of 2 and 6
    assert np.isnan(found[2])  # a client without samples


def test_sliced_distance_compares_samples_within_their_class():
    features, strata = np.array([[0.0], [0.0], [9.0], [9.0]]), np.array([0, 0, 1, 1])
    sliced = SlicedDistance(features, strata, np.eye(1))
    assert sliced.of_clients(np.array([0, 1, 0, 1]), 2) == pytest.approx([0, 0])
    assert np.isnan(sliced.of_clients(np.array([0, 0, 1, 1]), 2)).all()  # no class at two clients


def test_shuffle_keeps_every_clients_number_of_each_stratum():
    rng = np.random.default_rng(0)
    strata, owners = rng.integers(0, 3, 200), rng.integers(0, 5, 200)
    found = shuffled_within(strata, owners, rng)
    assert (found != owners).any()
    for stratum in range(3):
        mine = strata == stratum
        assert (
            np.bincount(found[mine], minlength=5) == np.bincount(owners[mine], minlength=5)
        ).all()


def test_p_value_counts_the_division_itself():
    assert p_value(3.0, np.array([1.0, 2.0, 3.0])) == pytest.approx(2 / 4)
    assert p_value(9.0, np.zeros(99)) == pytest.approx(0.01)


def test_interval_is_a_t_interval_cut_to_the_limits():
    values = np.array([1.0, 2.0, 3.0, 6.0])
    mean, low, high = mean_interval(values)
    assert mean == 3 and low == pytest.approx(max(0, 3 - 3.182446 * values.std(ddof=1) / 2))
    assert high == pytest.approx(3 + 3.182446 * values.std(ddof=1) / 2)
    # the standard deviation 0.4 of the resampled numbers, times sqrt(4 / 3) and t(0.975, 3) = 3.182
    assert t_interval(5.0, np.array([4.6, 5.0, 5.4]), 4) == pytest.approx(
        (5 - 1.469909, 5 + 1.469909), abs=1e-5
    )
    assert t_interval(0.9, np.array([0.5, 0.9, 1.3]), 4, (0, 1))[1] == 1


def test_bootstrap_interval_is_moved_back_by_the_bias():
    resampled = np.linspace(0.3, 0.5, 1001)  # quantiles 0.305 and 0.495 around 0.4
    assert bootstrap_interval(0.6, resampled) == pytest.approx((0.505, 0.695))
    assert bootstrap_interval(0.95, resampled, (0, 1)) == pytest.approx((0.855, 1))
    assert np.isnan(bootstrap_interval(float("nan"), resampled)).all()


def test_place_names_the_references_around_a_value():
    def place(value):
        return Measure(
            "k", "n", "t", value, 0, 1, {"iid": 0.1, "Dir(1)": 0.4, "Dir(0.1)": 0.8}
        ).place

    assert place(0.41) == "like Dir(1)" and place(0.6) == "between Dir(1) and Dir(0.1)"
    assert place(0.01) == "below iid" and place(0.99) == "above Dir(0.1)"


def test_label_skew_orders_known_partitions():
    data = ua.load("digits")
    specs = ("iid", "dirichlet(alpha=1.0)", "dirichlet(alpha=0.1)", "classes(k=1)")
    found = [
        labels.label_skew(samples_of(ua.partition(data, spec, clients=10, seed=3)).client_counts, 0)
        for spec in specs
    ]
    for values in zip(*([measure.value for measure in row] for row in found)):
        assert list(values) == sorted(values) and values[1] > 3 * values[0]
    assert [row[0].found for row in found] == [False, True, True, True]
    assert [row[0].place for row in found] == [
        "like iid",
        "like Dir(1)",
        "like Dir(0.1)",
        "like 1 class",
    ]


def test_label_scale_is_simulated_for_the_same_clients_and_samples():
    data = ua.load("digits")
    few, many = (
        labels.label_skew(
            samples_of(ua.partition(data, "iid", clients=clients, seed=0)).client_counts, 0
        )[0].scale
        for clients in (5, 50)
    )
    assert list(few) == ["iid", "Dir(1)", "Dir(0.1)", "sorted by label"]
    assert list(many) == ["iid", "Dir(1)", "Dir(0.1)", "1 class"]
    assert many["iid"] > 2 * few["iid"]  # 27 samples a client differ by chance more than 270


def test_quantity_skew_orders_known_partitions():
    data = ua.load("digits")
    specs = ("iid", "quantity(beta=5.0)", "quantity(beta=0.5)")
    found = [
        sizes.quantity_skew(
            samples_of(ua.partition(data, spec, clients=10, seed=3)).client_counts, 0
        )[0]
        for spec in specs
    ]
    assert found[0].value < 0.01 < found[1].value < found[2].value
    assert found[0].place == "like equal"


def test_regression_labels_are_counted_in_tenths():
    rng = np.random.default_rng(0)
    clients = [
        ua.ClientData(
            train=(
                rng.normal(size=(100, 2)).astype(np.float32),
                rng.normal(shift, 1, 100).astype(np.float32),
            )
        )
        for shift in (-3, 3)
    ]
    samples = samples_of(clients)
    assert samples.regression and (samples.counts.sum(0) == 20).all() and len(samples.classes) == 10
    assert labels.label_skew(samples.client_counts, 0)[0].value > 0.4


def test_many_clients_are_drawn_by_chance():
    data = ua.load("digits")
    found = ua.diagnose(ua.partition(data, "iid", clients=120, seed=0), progress=False)
    assert len(found.counts) == 100
    assert any("100 of 120 clients" in note for note in found.notes)


def test_signs_of_components_do_not_hang_on_rounding():
    """Two complementary columns, of which the first has a loading that is larger or smaller by less than 10^-6 of it."""
    rng = np.random.default_rng(0)
    answers, other, found = rng.integers(0, 2, 40), rng.normal(size=40), []
    for shift in (5e-7, -5e-7):
        x = np.stack([answers + shift * other, 1 - answers, answers + other], 1).astype(np.float32)
        found.append(
            samples_of(
                [ua.ClientData(train=(x[k::2], answers[k::2])) for k in range(2)]
            ).components(None, 0)
        )
    np.testing.assert_allclose(*found, atol=1e-3)
