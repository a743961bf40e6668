import numpy as np
import pytest

from unalike.data import heterogeneity

ALIKE = np.array([[5, 5], [20, 20]])
DISJOINT = np.array([[8, 0], [0, 8], [0, 0]])


def test_divergences_of_equal_and_disjoint_clients_are_their_limits():
    assert heterogeneity.js_divergence(ALIKE) == pytest.approx([0, 0])
    # p = (1, 0), q = (1/2, 1/2): JS = H(3/4, 1/4) - H(q)/2 = 0.8113 - 0.5 bits
    assert heterogeneity.js_divergence(DISJOINT) == pytest.approx([0.31128, 0.31128], abs=1e-5)
    assert heterogeneity.total_variation(ALIKE) == 0 and heterogeneity.total_variation(
        DISJOINT
    ) == pytest.approx(1)


def test_total_variation_equals_mean_over_pairs():
    counts = np.random.default_rng(0).integers(0, 9, (7, 4)) + 1
    p = counts / counts.sum(1, keepdims=True)
    pairs = [np.abs(p[i] - p[j]).sum() / 2 for i in range(7) for j in range(i)]
    assert heterogeneity.total_variation(counts) == pytest.approx(np.mean(pairs))


def test_effective_classes_and_top_share_match_hand_computed_values():
    counts = np.array([[4, 4, 4], [9, 0, 0], [6, 6, 0]])
    assert heterogeneity.effective_classes(counts) == pytest.approx([3, 1, 2])
    assert heterogeneity.top_share(counts) == pytest.approx([1 / 3, 1, 1 / 2])


def test_gini_of_equal_sizes_is_zero_and_of_one_owner_is_largest():
    assert (
        heterogeneity.gini(np.array([5, 5, 5])) == 0 and heterogeneity.gini(np.array([0, 0])) == 0
    )
    assert heterogeneity.gini(np.array([0, 0, 0, 9])) == pytest.approx(3 / 4)


def test_summary_leaves_out_empty_clients():
    table = heterogeneity.summary(np.array([8, 8, 0]), DISJOINT)
    assert (
        table["smallest"] == 0
        and table["largest / smallest"] == 1
        and table["top-class share"] == 1
    )
    assert "pairwise TV" not in heterogeneity.summary(np.zeros(2), np.zeros((2, 0)))
