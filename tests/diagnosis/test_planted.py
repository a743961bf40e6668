"""Planted heterogeneity is found, and none is found where none is."""

import numpy as np
import pytest

import unalike as ua
from unalike.data.population import Population
from unalike.diagnosis.clusters import best_cut, cut, label_clusters, linkage_of
from unalike.diagnosis.concepts import ClassMeans, Ridge, concept_shift, pair_gaps
from unalike.diagnosis.features import feature_skew
from unalike.diagnosis.labels import label_skew
from unalike.diagnosis.samples import ClientSamples

SEEDS = 10
"""Divisions without heterogeneity. At level 0.01, two or more alarms among ten tests come up four times in a thousand."""
MOST_ALARMS = 1


def samples_of(clients, seed=0):
    return ClientSamples.of(
        clients if isinstance(clients, Population) else Population.of(clients), seed
    )


def test_concept_shift_of_swapped_labels_is_found_between_the_groups(plant):
    clients = plant([48] * 6, labels_of=lambda k: [0, 1, 2, 3] if k < 3 else [1, 0, 3, 2])
    found = concept_shift(samples_of(clients), None, 0)
    same = np.arange(6)[:, None] // 3 == np.arange(6) // 3
    np.fill_diagonal(same, False)
    assert found.measure.found and found.measure.value > 0.3
    assert (
        np.nanmean(found.gaps[same])
        < 0
        < 0.5
        < np.nanmean(found.gaps[~same & ~np.eye(6, dtype=bool)])
    )


def test_concept_shift_is_not_tested_where_no_labels_overlap(plant):
    clients = plant([40] * 2, labels_of=lambda k: [0, 1, 0, 1] if k else [2, 3, 2, 3])
    assert concept_shift(samples_of(clients), None, 0) is None


def test_concept_shift_label_skew_alone_is_none():
    data = ua.load("digits")
    for seed in range(3):
        population = ua.partition(data, "dirichlet(alpha=0.5)", clients=8, seed=seed)
        assert not concept_shift(samples_of(population), None, 0).measure.found


def test_concept_shift_of_regression_clusters_is_found():
    data = ua.load("linear_clusters(clusters=2, clients=4, points=60)")
    found = concept_shift(samples_of(ua.partition(data, "natural(column='client')")), None, 0)
    assert found.measure.found
    assert np.nanmean(found.gaps[:4, 4:]) > 0.5 > abs(np.nanmean(found.gaps[:4, :4]))


def test_class_means_leave_the_sample_itself_out():
    features, labels = (
        np.array([[0.0], [1.0], [2.0], [9.0], [10.0], [11.0]]),
        np.array([0, 0, 0, 1, 1, 1]),
    )
    models = ClassMeans(np.tile(features, (2, 1)), np.tile(labels, 2), 2, 2)
    theirs, own, comparable = models.losses(np.repeat([0, 1], 6))
    assert theirs.sum() == 0 and own.sum() == 0
    assert comparable.any()


def test_ridge_leave_one_out_error_equals_that_of_refitted_models():
    rng = np.random.default_rng(0)
    x, y, owners = rng.normal(size=(30, 3)), rng.normal(size=30), np.repeat([0, 1], 15)
    _, own, _ = Ridge(x, y, 2).losses(owners)
    scaled, design = (y - y.mean()) / y.std(), np.column_stack([np.ones(30), x])
    for n in (0, 20):
        rest = (owners == owners[n]) & (np.arange(30) != n)
        penalty = np.diag([0.0, 1, 1, 1])
        weights = np.linalg.solve(
            design[rest].T @ design[rest] + penalty, design[rest].T @ scaled[rest]
        )
        assert own[n, 0] == pytest.approx((scaled[n] - design[n] @ weights) ** 2)


def test_pair_gaps_too_few_common_samples_are_unknown(plant):
    samples = samples_of(plant([48, 48, 6]))
    features = samples.inputs.double().numpy()
    gaps = pair_gaps(ClassMeans(features, samples.labels, 3, 4), samples.owners, 3)
    assert np.isnan(gaps[2]).all() and np.isnan(gaps[:, 2]).all() and np.isfinite(gaps[0, 1])


def test_feature_skew_of_moved_clients_is_found_and_concept_shift_is_not(plant):
    clients = plant([60] * 6, move=lambda k: np.eye(6)[k] * 60)  # far outside of each other
    samples = samples_of(clients)
    measures = {measure.name: measure for measure in feature_skew(samples, None, 0)}
    assert (
        measures["feature_distance_within"].found
        and not label_skew(samples.client_counts, 0)[0].found
    )
    concept = concept_shift(samples, None, 0)
    assert concept is None or not concept.measure.found


def test_feature_skew_within_classes_leaves_label_skew_out():
    population = ua.partition(ua.load("digits"), "dirichlet(alpha=0.3)", clients=8, seed=0)
    everything, within = feature_skew(samples_of(population), None, 0)
    assert everything.found and not within.found


def test_feature_skew_reads_given_features(plant):
    clients = plant([48] * 4, move=lambda k: np.eye(6)[0] * k * 3)
    found = ua.diagnose(clients, features=lambda x: x[:, 1:], progress=False)
    assert not found.measures["feature_distance_within"].found
    assert ua.diagnose(clients, progress=False).measures["feature_distance_within"].found


def test_clusters_of_labels_are_found_with_their_members():
    population = ua.partition(ua.load("digits"), "clusters(groups=3)", clients=12, seed=0)
    found = label_clusters(samples_of(population).client_counts, 0)
    assert found.found and found.count == 3 and found.stability.value == pytest.approx(1)
    assert found.members.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_clusters_by_hand_are_cut_at_the_gap():
    place = np.array([0.0, 1.0, 10.0, 12.0])
    score, members, joins = best_cut(np.abs(place[:, None] - place))
    assert members.tolist() == [0, 0, 1, 1]
    # a = 1, 1, 2, 2; b = 11, 10, 9.5, 11.5
    assert score == pytest.approx(np.mean([10 / 11, 9 / 10, 7.5 / 9.5, 9.5 / 11.5]))
    assert (
        cut(joins, 4).tolist() == [0, 1, 2, 3]
        and (linkage_of(np.abs(place[:, None] - place)) == joins).all()
    )


def test_false_alarms_of_iid_data_are_as_rare_as_promised(plant):
    alarms = {"labels": 0, "features": 0, "concepts": 0, "clusters": 0}
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        x, y = zip(*(client.train for client in plant([40] * 8, seed=seed)))
        x, y = np.concatenate(x), np.concatenate(y)
        parts = np.array_split(rng.permutation(len(y)), 8)
        samples = samples_of([ua.ClientData(train=(x[part], y[part])) for part in parts])
        alarms["labels"] += label_skew(samples.client_counts, seed)[0].found
        alarms["features"] += feature_skew(samples, None, seed)[1].found
        alarms["concepts"] += concept_shift(samples, None, seed).measure.found
        alarms["clusters"] += label_clusters(samples.client_counts, seed).found
    assert max(alarms.values()) <= MOST_ALARMS, alarms


def test_clusters_none_among_clients_that_differ_without_groups():
    data = ua.load("digits")
    found = [
        label_clusters(
            samples_of(
                ua.partition(data, "dirichlet(alpha=0.5)", clients=12, seed=seed)
            ).client_counts,
            0,
        ).found
        for seed in range(SEEDS)
    ]
    assert sum(found) <= MOST_ALARMS
