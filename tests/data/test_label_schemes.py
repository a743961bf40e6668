import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.data import partition_labels

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
EXACT = [
    "iid",
    "dirichlet(alpha=0.3)",
    "dirichlet(alpha=0.1, balance=False)",
    "pathological(classes=2)",
    "quantity",
]
EXACT += ["shards", "shards(per_client=5)", "classes(k=2)", "clusters", "clusters(groups=2)"]
EXACT += [
    "pathological(classes=3)",
    "pathological(classes=2, balance=False)",
    "pathological(classes=10)",
]


def sizes(parts):
    return np.array([len(part) for part in parts])


def top_share(parts, labels):
    return np.mean([np.bincount(labels[part]).max() / len(part) for part in parts if len(part)])


@pytest.mark.parametrize("spec", EXACT)
def test_scheme_gives_every_sample_to_exactly_one_client(spec):
    parts = partition_labels(spec, LABELS, clients=20)
    assert len(parts) == 20 and np.array_equal(
        np.sort(np.concatenate(parts)), np.arange(len(LABELS))
    )


@pytest.mark.parametrize(
    "spec",
    [
        *EXACT,
        "halves",
        "zipf(size=200)",
        "zipf(size=200, order='swap')",
        "even(size=50)",
        "zipf_less",
        "mixture(even_less=20)",
    ],
)
def test_scheme_with_same_seed_gives_same_partition(spec):
    first, again, other = (
        partition_labels(spec, LABELS, clients=20, seed=seed) for seed in (3, 3, 4)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other))


def test_iid_sizes_differ_by_one_at_most():
    assert sizes(partition_labels("iid", [0] * 11, clients=4)).tolist() == [3, 3, 3, 2]


def test_shards_of_two_give_most_clients_two_classes():
    """200 shards of 30 in 10 classes of 600: a shard holds one class, and two are of one class 9.5 % of the time."""
    parts = partition_labels("shards", LABELS, clients=100)
    held = np.array([len(np.unique(LABELS[part])) for part in parts])
    assert set(sizes(parts)) == {60} and set(held) == {1, 2}
    assert np.mean(held == 1) == pytest.approx(19 / 199, abs=0.08)


def test_classes_gives_each_client_k_classes_in_even_shares():
    parts = partition_labels("classes(k=3)", LABELS, clients=20)
    counts = np.array([np.bincount(LABELS[part], minlength=10) for part in parts])
    assert ((counts > 0).sum(1) == 3).all() and all(counts[i, i % 10] for i in range(20))
    assert all(np.ptp(column[column > 0]) <= 1 for column in counts.T)
    assert len({tuple(np.flatnonzero(row)) for row in counts}) > 12
    everything = partition_labels("classes(k=10)", LABELS, clients=5)
    assert all((np.bincount(LABELS[part]) == 120).all() for part in everything)


def test_clusters_of_clients_share_ranges_of_labels():
    parts = partition_labels("clusters(groups=(2, 3, 5), size=100)", LABELS, clients=6)
    held = [set(np.unique(LABELS[part]).tolist()) for part in parts]
    assert held == [{0, 1}] * 2 + [{2, 3, 4}] * 2 + [{5, 6, 7, 8, 9}] * 2 and set(sizes(parts)) == {
        100
    }


def test_clusters_given_as_number_have_ranges_of_equal_width():
    labels = np.repeat(np.arange(10), np.arange(20, 30))  # classes of unequal sizes
    parts = partition_labels("clusters(groups=3)", labels, clients=3)
    assert [sorted(set(labels[part])) for part in parts] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    for mistake in ("groups=0", "groups=11", "size=0", "size=-5"):
        with pytest.raises(UnalikeError, match="clusters: found"):
            partition_labels(f"clusters({mistake})", labels, clients=12)


def test_halves_are_two_groups_with_half_of_the_classes_and_one_with_all():
    """Figure 5 of FedLWS: 12 clients, four of each kind, 500 samples each."""
    parts = partition_labels("halves", LABELS, clients=12)
    held = [set(np.unique(LABELS[part]).tolist()) for part in parts]
    assert held == [set(range(5))] * 4 + [set(range(5, 10))] * 4 + [set(range(10))] * 4
    assert set(sizes(parts)) == {500} and np.array_equal(
        np.sort(np.concatenate(parts)), np.arange(len(LABELS))
    )
    everyone = ua.partition(ua.load("digits"), "halves", clients=6)
    assert list(everyone.clusters) == [0, 0, 1, 1, 2, 2]


@given(
    counts=st.lists(st.integers(1, 60), min_size=2, max_size=7),
    clients=st.integers(3, 9),
    seed=st.integers(0, 10**6),
)
def test_halves_have_equal_sizes_and_repeat_no_sample(counts, clients, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    half, groups = (len(counts) + 1) // 2, np.bincount(np.arange(clients) * 3 // clients)
    share = sum(counts[:half]) / len(labels)
    most = min(
        sum(counts[:half]) / (groups[0] + groups[2] * share),
        sum(counts[half:]) / (groups[1] + groups[2] * (1 - share)),
    )
    if most < 1:
        with pytest.raises(
            UnalikeError, match=r"halves: .* samples are too few|expected a sample for each"
        ):
            partition_labels("halves", labels, clients, seed)
        return
    parts = partition_labels("halves", labels, clients, seed)
    assert set(sizes(parts)) == {int(most)} and len(
        np.unique(np.concatenate(parts))
    ) == clients * int(most)
    for k, part in enumerate(parts):
        ranges = ((0, half), (half, len(counts)), (0, len(counts)))
        low, end = ranges[3 * k // clients]
        assert ((low <= labels[part]) & (labels[part] < end)).all()


def test_quantity_sizes_have_dirichlet_variance_and_labels_stay_mixed():
    """Shares ~ Dir(beta 1_K): mean 1/K, variance (1/K)(1 - 1/K) / (K beta + 1) = 0.09 / 21 for K = 10, beta = 2."""
    draws = [
        partition_labels("quantity(beta=2, min_size=0)", LABELS, 10, seed) for seed in range(60)
    ]
    shares = np.array([sizes(parts) for parts in draws]) / len(LABELS)
    assert shares.var() == pytest.approx(0.09 / 21, rel=0.2)
    assert np.mean([top_share(parts, LABELS) for parts in draws]) < 0.2


@given(
    spec=st.sampled_from(
        [
            "iid",
            "dirichlet(alpha=0.2, balance=False)",
            "shards",
            "quantity(min_size=0)",
            "classes(k=2)",
        ]
    ),
    classes=st.integers(2, 6),
    clients=st.integers(6, 15),
    seed=st.integers(0, 10**6),
)
def test_scheme_loses_and_repeats_no_sample(spec, classes, clients, seed):
    labels = np.random.default_rng(seed).permutation(np.arange(97) % classes)
    parts = partition_labels(spec, labels, clients, seed)
    assert len(parts) == clients and np.array_equal(np.sort(np.concatenate(parts)), np.arange(97))


@pytest.mark.parametrize(("size", "total"), [(6000, 5952), (1000, 992), (600, 558), (100, 62)])
def test_even_counts_of_62_labels_match_formula(size, total):
    labels = np.repeat(np.arange(62), 200)
    for part in partition_labels(f"even(size={size})", labels, clients=2):
        assert len(part) == len(set(part)) == total and np.ptp(np.bincount(labels[part])) == 0


def test_pathological_two_of_ten_classes_makes_five_groups_of_four():
    parts = partition_labels("pathological(classes=2)", LABELS, clients=20)
    held = [set(np.unique(LABELS[part]).tolist()) for part in parts]
    assert held == [{2 * (k // 4), 2 * (k // 4) + 1} for k in range(20)]
    assert set(sizes(parts)) == {300}


def test_pathological_without_balance_keeps_sizes_in_range():
    parts = partition_labels("pathological(classes=2, balance=False, least=40)", LABELS, clients=20)
    for k, part in enumerate(parts):
        counts = np.bincount(LABELS[part], minlength=10)
        first, second = counts[counts > 0]
        last = k % 4 == 3
        assert all(150 <= n <= 600 if last else 15 <= n < 150 for n in (first, second))


@pytest.mark.parametrize(("size", "total"), [(6000, 5973), (600, 622), (1000, 1013), (100, 144)])
def test_zipf_counts_of_62_labels_match_formula(size, total):
    labels = np.repeat(np.arange(62), 4000)
    for part in partition_labels(f"zipf(a=2, size={size})", labels, clients=2):
        counts = np.bincount(labels[part], minlength=62)
        assert len(part) == len(set(part)) == total and counts.min() == 1
        assert counts.max() == int(size / (1 / np.arange(1.0, 63) ** 2).sum())


def test_zipf_order_is_random_or_swaps_the_first_label():
    def ranked(order):
        parts = partition_labels(f"zipf(size=300, order={order!r})", LABELS, clients=12)
        return [int(np.bincount(LABELS[part]).argmax()) for part in parts]

    assert ranked("swap") == [k % 10 for k in range(12)]
    assert len(set(ranked("random"))) > 3


def test_zipf_label_with_too_few_samples_gives_all():
    labels = np.array([0] * 3 + [1] * 50)
    with pytest.warns(UserWarning, match="2 of 2 clients get fewer samples"):
        parts = partition_labels("zipf(size=40, order='swap')", labels, clients=2)
    assert [np.bincount(labels[part]).tolist() for part in parts] == [[3, 8], [3, 32]]


def test_dirichlet_every_client_reaches_min_size():
    for seed in range(5):
        assert sizes(partition_labels("dirichlet(alpha=0.1)", LABELS, 20, seed)).min() >= 10
        assert (
            sizes(partition_labels("dirichlet(alpha=0.3, min_size=100)", LABELS, 20, seed)).min()
            >= 100
        )


def test_dirichlet_balance_matches_published_forms():
    """20 clients, 6000 samples, alpha 0.1: top-class share .705 and .641, largest client 638 and 879."""
    balanced = [
        partition_labels("dirichlet(alpha=0.1, min_size=40)", LABELS, 20, seed)
        for seed in range(12)
    ]
    plain = [
        partition_labels("dirichlet(alpha=0.1, balance=False)", LABELS, 20, seed)
        for seed in range(12)
    ]
    assert np.mean([top_share(parts, LABELS) for parts in balanced]) == pytest.approx(
        0.705, abs=0.04
    )
    assert np.mean([top_share(parts, LABELS) for parts in plain]) == pytest.approx(0.641, abs=0.04)
    largest = [np.mean([sizes(parts).max() for parts in draws]) for draws in (balanced, plain)]
    assert largest == pytest.approx([638, 879], rel=0.15)


def test_dirichlet_alpha_limits_are_iid_and_one_client_per_class():
    even = partition_labels("dirichlet(alpha=1e6)", LABELS, clients=10)
    assert all(np.ptp(np.bincount(LABELS[part], minlength=10)) <= 3 for part in even)
    lone = partition_labels("dirichlet(alpha=1e-4, balance=False)", LABELS, clients=20)
    assert all(np.sum([(LABELS[part] == c).any() for part in lone]) == 1 for c in range(10))


@pytest.mark.parametrize(
    ("spec", "clients", "message"),
    [
        ("dirichlet(alpha=0.1)", 700, "needs 7000 samples, found 6000: lower min_size or clients"),
        (
            "dirichlet(alpha=0.05, min_size=290)",
            20,
            r"reached \d+ of min_size=290 in the best of 1000 draws",
        ),
        ("quantity(beta=0.1, min_size=200)", 20, r"reached \d+ of min_size=200"),
        ("dirichlet(alpha=0)", 5, "alpha=0, expected a finite number above 0"),
        ("dirichlet", 5, "alpha"),
        ("pathological(classes=11)", 5, "1 to the 10 classes"),
        ("pathological(classes=2, least=-4)", 5, "found least=-4"),
        ("halves", 2, "found 2 clients and 10 classes, expected 3 and 2"),
        ("pathological(classes=2)", 4, "leaves 2 of 10 classes to no client"),
        ("zipf(size=9)", 5, "size=9, expected at least one sample for each of the 10 classes"),
        ("zipf(order='sorted')", 5, "unknown order 'sorted'"),
        ("zipf(a=-1)", 5, "a=-1"),
        ("dirichlt(alpha=1)", 5, "did you mean 'dirichlet'"),
        ("iid", 0, "clients=0"),
        ("shards(per_client=400)", 20, "cuts 8000 shards, found 6000 samples"),
        ("shards(per_client=0)", 20, "per_client=0"),
        ("classes(k=1)", 4, "leaves 6 of 10 classes to no client; choose 10 clients or more"),
        ("classes(k=11)", 4, "1 to the 10 classes"),
        ("clusters(groups=(5, 6))", 4, "add up to the 10 classes"),
        ("clusters(groups=5)", 4, "at most one group per client"),
        ("mixture", 4, "expected numbers of clients such as zipf_more=9"),
        ("mixture(zipf_more=9, even_more=1)", 11, "add up to 10 clients, found clients=11"),
        ("iid + quantity", 4, "divides samples in 2 ways"),
        ("noise", 4, "changes samples, found labels only"),
        ("classes(k=2.0)", 10, "found k=2.0, expected a whole number; it takes classes"),
        ("zipf(a='x')", 5, "found a='x', expected a number"),
        ("zipf(order=3)", 5, "found order=3, expected a text"),
        ("mixture(zipf_more=1, scale=0)", None, "found scale=0, expected a finite number above 0"),
        ("mixture(zipf_more=1.5)", None, "found zipf_more=1.5, expected a whole number"),
        ("dirichlet(alpha=True)", 5, "found alpha=True, expected a number"),
        ("dirichlet(alpha=0.1, balance='no')", 5, "found balance='no', expected True or False"),
        (
            "dirichlet(alpha=0.1, min_size='x')",
            5,
            "found min_size='x', expected a whole number or None",
        ),
        (
            "dirichlet(alpha=0.1, min_size=1.5)",
            5,
            "found min_size=1.5, expected a whole number or None",
        ),
        (
            "dirichlet(alpha=0.1, min_size=-4)",
            5,
            "found min_size=-4, expected a whole number of 0 or more",
        ),
        ("quantity(min_size=-1)", 5, "found min_size=-1, expected a whole number of 0 or more"),
        (
            "clusters(groups=2.0)",
            4,
            r"found groups=2.0, expected a whole number or \(a whole number, \.\.\.\)",
        ),
    ],
)
def test_scheme_with_unsatisfiable_constraint_raises_and_names_it(spec, clients, message):
    with pytest.raises(UnalikeError, match=message):
        partition_labels(spec, LABELS, clients)


def test_partition_labels_with_invalid_labels_or_seed_raises():
    with pytest.raises(UnalikeError, match="N > 0"):
        partition_labels("iid", [], 2)
    with pytest.raises(UnalikeError, match="seed=-1"):
        partition_labels("iid", [0, 1], 2, seed=-1)
    with pytest.raises(UnalikeError, match="labels that are no classes: give groups"):
        partition_labels("dirichlet(alpha=1)", np.linspace(0, 1, 50), 2)


def test_partition_leaves_global_generator_unchanged():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    partition_labels("dirichlet(alpha=1)", LABELS, 5)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002
