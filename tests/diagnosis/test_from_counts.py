"""Feature skew from histograms, the ranges that a server chooses, and the guarantee of noise, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from unalike.diagnosis.features import SlicedDistance
from unalike.diagnosis.from_counts.histogram_distance import (
    ClientHistograms,
    dealt,
    distances,
    histogram_skew,
    moved,
)
from unalike.diagnosis.from_counts.run_diagnosis import epsilon
from unalike.methods.plans.diagnosis_plan import quantiles, spanned
from unalike.methods.plans.histograms import MAGNITUDES, magnitude_edges


def test_distance_of_shifted_histograms_is_the_shift():
    """Two clients, one class, one direction: samples in ranges 1 and 3 of width 0.5 are one apart, in whole ranges."""
    counts = np.zeros((2, 1, 1, 5), np.int64)
    counts[0, 0, 0, 1], counts[1, 0, 0, 3] = 4, 4
    edges = np.linspace(0, 2.5, 6)[None]
    assert distances(counts, edges) == pytest.approx(np.ones((2, 1)))


def test_distance_without_a_common_class_is_unknown():
    counts = np.zeros((2, 1, 2, 3), np.int64)
    counts[0, 0, 0, 1], counts[1, 0, 1, 1] = 4, 4
    assert np.isnan(distances(counts, np.arange(4.0)[None])).all()


def test_distance_agrees_with_that_of_samples():
    """Within 0.01 sd at 64 ranges, for the same directions."""
    rng = np.random.default_rng(0)
    owners, labels = rng.integers(0, 3, 600), rng.integers(0, 2, 600)
    values = rng.normal(size=(600, 1)) + 0.5 * owners[:, None] + labels[:, None]
    exact = SlicedDistance(values, labels, np.ones((1, 1))).of_clients(owners, 3)
    ends = np.linspace(values.min(), values.max() + 1e-9, 65)
    counts = np.zeros((3, 1, 2, 64), np.int64)
    np.add.at(counts, (owners, 0, labels, np.digitize(values[:, 0], ends) - 1), 1)
    found = ClientHistograms(counts, counts.sum((1, 3)), ends[:1], ends[-1:])
    assert distances(counts, found.edges)[:, 0] == pytest.approx(exact, abs=0.01)


def test_dealt_keeps_sizes_and_pool():
    pool, sizes = np.array([[[3, 4, 5], [2, 0, 2]]]), np.array([[5, 1], [7, 3]])
    table = dealt(pool, sizes, np.random.default_rng(0))
    assert (table.sum(0) == pool).all() and (table.sum(-1)[:, 0] == sizes).all()


def test_moved_histogram_lies_one_move_further():
    counts = np.zeros((2, 1, 1, 160), np.int64)
    counts[:, 0, 0, 70] = 100
    table, ends = moved(counts, np.linspace(-4, 4, 161)[None], np.array([[0.0], [2.0]]))
    middles = (ends[0, 1:] + ends[0, :-1]) / 2
    means = (table[:, 0, 0] * middles).sum(1) / table[:, 0, 0].sum(1)
    assert means[1] - means[0] == pytest.approx(
        2 / math.sqrt(2), abs=0.05
    )  # half moved by 2: 1 more variance


def test_same_histograms_have_no_skew_and_shifted_ones_do():
    rng = np.random.default_rng(1)
    for shift, there in ((0.0, False), (1.0, True)):
        counts = np.zeros((3, 4, 1, 32), np.int64)
        for k, r in np.ndindex(3, 4):
            counts[k, r, 0] = np.histogram(rng.normal(shift * k, 1, 200), 32, (-4, 6))[0]
        found = ClientHistograms(counts, counts.sum(-1)[:, 0], np.full(4, -4.0), np.full(4, 6.0))
        within = histogram_skew(found, 0)[1]
        assert within.found == there and within.name == "feature_distance_within"


def test_noise_alone_is_no_feature_skew():
    rng = np.random.default_rng(2)
    counts = np.stack(
        [np.histogram(rng.normal(size=2000), 32, (-4, 4))[0] for _ in range(12)]
    ).reshape(3, 4, 1, 32)
    noisy = counts + np.rint(rng.normal(0, 5, counts.shape)).astype(np.int64)
    low, high = np.full(4, -4.0), np.full(4, 4.0)
    found = histogram_skew(ClientHistograms(noisy, counts.sum(-1)[:, 0], low, high, 5.0), 0)
    assert [m.name for m in found] == ["feature_distance", "feature_distance_within"] and not any(
        m.found for m in found
    )
    drowned = ClientHistograms(noisy, counts.sum(-1)[:, 0], low, high, 100.0)
    assert histogram_skew(drowned, 0) == []  # 2000 samples are less than 4 x 100 x sqrt(32)


def test_spanned_ranges_leave_tails_out():
    counts = torch.tensor([[1, 0, 5000, 5000, 0, 1], [0, 0, 7, 0, 0, 0]])
    low, high = spanned(counts, torch.arange(7.0))
    assert low.tolist() == [2, 2] and high.tolist() == [4, 3]


def test_quantiles_of_a_histogram_are_interpolated():
    found = quantiles(torch.tensor([10, 0, 30]), torch.tensor([0.0, 1.0, 2.0, 3.0]))
    assert found.tolist() == pytest.approx(
        [0.4, 0.8, *(2 + (4 * k - 10) / 30 for k in range(3, 10))]
    )


def test_magnitude_edges_grow_by_a_constant_factor():
    edges = magnitude_edges()
    assert len(edges) == MAGNITUDES + 1 and edges[MAGNITUDES // 2] == 0
    assert edges[-1] == pytest.approx(1e9) and edges[-1] / edges[-2] == pytest.approx(
        1.147, abs=1e-3
    )


def test_epsilon_of_noise_by_hand():
    """One histogram of classes: rho = 2 / (2 sigma^2) = 1 / 100; epsilon = 0.01 + 2 sqrt(0.01 ln 1e5)."""
    assert epsilon(10.0, 0, 1) == pytest.approx(0.01 + 2 * math.sqrt(0.01 * math.log(1e5)))
    assert (
        epsilon(10.0, 3, 1) > epsilon(10.0, 1, 1) > epsilon(20.0, 1, 1)
        and epsilon(0.0, 3) == math.inf
    )
