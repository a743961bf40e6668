"""FedSA and FedPake against a second implementation, written from section 19 of the semantics: plain loops over lists,
exact fractions for the similarities, so that a tie is a tie."""

from fractions import Fraction
from itertools import product
from math import sqrt

import numpy as np
import pytest
import torch
from simulation import Server, mlp
from torch import nn

import unalike as ua
from unalike.core import tree
from unalike.methods.method import Method

RULES = ["normalized", "sa", "pake", "consistent", "scaled"]
"""`skew`'s names of the variants; the literal ones are "sa" and "pake"."""


def skew(
    W,
    p,
    *,
    rule,
    threshold=0.2,
    similarity=0.2,
    micro=4,
    macro=4,
    weighted=False,
    normalize_by="range",
):
    """The new tensor [M] from the clients' W [K][M]; p are the weights that `weighted` uses. rule: one of `RULES`."""
    K, M = len(W), len(W[0])
    q = list(p) if weighted else [1 / K] * K
    mu = [sum(q[k] * W[k][m] for k in range(K)) for m in range(M)]
    equal = [all(W[k][m] == W[0][m] for k in range(K)) for m in range(M)]
    D = [[0.0 if equal[m] else (W[k][m] - mu[m]) ** 2 for m in range(M)] for k in range(K)]
    sd = [sqrt(sum(D[k][m] for k in range(K)) / K) for m in range(M)]
    if K == 1:
        return list(W[0])

    # high parameters
    cv = {m: sd[m] / (mu[m] if rule == "pake" else abs(mu[m])) for m in range(M) if mu[m] != 0}
    high = []
    for m in range(M):
        if threshold >= 1:
            continue
        if m not in cv:
            if sd[m] > 0:
                high.append(m)
        else:
            low, top = min(cv.values()), max(cv.values())
            rank = sum(other < cv[m] for other in cv.values()) / len(cv)
            if (
                top > low
                and (rank if normalize_by == "rank" else (cv[m] - low) / (top - low)) > threshold
            ):
                high.append(m)
    if not high:
        return mu

    # micro-classes, 0 for none
    flat = [d for row in D for d in row]
    low, top = min(flat), max(flat)
    E = [[0] * M for _ in range(K)]
    for k in range(K):
        for m in range(M):
            if rule in ("normalized", "scaled"):
                d = (D[k][m] - low) / (top - low) if top > low else 0.0
                E[k][m] = min(max(int(np.ceil(micro * d)), 1), micro)
            else:
                E[k][m] = next(
                    (i for i in range(1, micro + 1) if (i - 1) / micro < D[k][m] <= i / micro), 0
                )

    # similarity
    compared = range(M) if rule in ("pake", "consistent") else high
    sim = [
        [1 - Fraction(sum(E[a][m] != E[b][m] for m in compared), len(high)) for b in range(K)]
        for a in range(K)
    ]

    clusters = cluster(sim, macro, similarity, joins_first=rule == "normalized")
    if not clusters:
        return mu

    # weights of the clusters, parameter by parameter
    def modal(members, m):
        counts = [sum(E[k][m] == c for k in members) for c in range(micro + 1)]
        return counts.index(max(counts))

    Q = [{m: modal(members, m) for m in high} for members in clusters]
    new = list(mu)
    for m in high:
        alphas, means = [], []
        for s, members in enumerate(clusters):
            count = sum(Q[s][n] == Q[s][m] for n in high)
            share = sum(q[k] for k in members) if weighted else 1.0
            if rule == "normalized":
                alpha = count * share
            elif Q[s][m] == 0:
                alpha = 0.0
            else:
                alpha = count * share / (macro * (micro if rule == "sa" else len(high)))
            alphas.append(alpha)
            means.append(sum(q[k] * W[k][m] for k in members) / sum(q[k] for k in members))
        if rule == "normalized":
            total = sum(alphas)
            alphas = [a / total if total > 0 else 1 / len(clusters) for a in alphas]
        new[m] = sum(a * v for a, v in zip(alphas, means))
    return new


def cluster(sim, macro, similarity, joins_first):
    """Average linkage with exact similarities: the best of (client, cluster) and, while there is room, (client,
    client)."""
    free, clusters = list(range(len(sim))), []
    while free:
        options = []  # (similarity, preference at a tie, lowest index, action)
        for k in free:
            for i, members in enumerate(clusters):
                value = sum(sim[k][j] for j in members) / len(members)
                if len(clusters) < macro or value > similarity:
                    options.append((value, joins_first, (-k, -i), ("join", k, i)))
        if len(clusters) < macro:
            options += [
                (sim[a][b], not joins_first, (-a, -b), ("pair", a, b))
                for a in free
                for b in free
                if a < b
            ]
        if not options:
            break
        _, _, _, (what, a, b) = max(options)
        if what == "join":
            clusters[b].append(a)
            free.remove(a)
        else:
            clusters.append([a, b])
            free = [k for k in free if k not in (a, b)]
    return clusters


def spec(rule, weighted, scope="tensor", **fields):
    name = "fedpake" if rule == "pake" else "fedsa"
    variant = "literal" if rule in ("sa", "pake") else rule
    extra = "".join(f", {k}={v}" for k, v in fields.items())
    return f"{name}(variant={variant!r}, weighted={weighted}, scope={scope!r}{extra})"


def clients(rng, kind, K, M):
    """Client values of several kinds; for 2^n clients multiples of 2^-10, so that means and differences are exact."""
    W = rng.normal(size=(K, M)) * rng.choice([0.05, 0.4, 1.5], size=M)
    if kind == "alike":
        W = rng.normal(size=M) + 0.02 * rng.normal(size=(K, M))
    if kind == "groups":
        W = rng.normal(size=(3, M))[rng.integers(0, 3, K)] + 0.05 * rng.normal(size=(K, M))
    if kind == "coarse":  # few distinct values: ties, zero means, equal columns
        W = rng.integers(-2, 3, size=(K, M)) / 2
        W[:, 0] = 0.5
        W[:, 1] = [1, -1] * (K // 2) if K % 2 == 0 else 0
    if kind == "equal columns":
        W[:, ::2] = W[0, ::2]
    return np.round(W * 1024) / 1024 if K in (1, 2, 4, 8) else W


@pytest.mark.parametrize("block", [tree.BLOCK_ENTRIES, 16])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_parameter_skew_random_clients_equal_plain_implementation(
    rule, weighted, block, monkeypatch
):
    """In one block of columns, and in many."""
    monkeypatch.setattr(tree, "BLOCK_ENTRIES", block)
    rng = np.random.default_rng(5)
    for number in range(120):
        K, M = int(rng.choice([1, 2, 3, 4, 5, 8, 10])), int(rng.integers(1, 12))
        kind = ["any", "alike", "groups", "coarse", "equal columns"][number % 5]
        M = max(M, 2)
        if (
            kind == "coarse"
        ):  # values on the borders of the classes, means of 0: only where 1/K and all else is exact
            K = int(rng.choice([1, 2, 4, 8]))
        W = clients(rng, kind, K, M)
        # weights with sum a power of two are exact in the library's float32
        sizes = rng.multinomial(64 - K, [1 / K] * K) + 1
        fields = {"micro": int(rng.choice([1, 3, 4, 8])), "macro": int(rng.choice([1, 2, 4, 5]))}
        fields |= {
            "threshold": float(rng.choice([0.0, 0.05, 0.2, 0.6])),
            # no mean of similarities is 0.21 or 0.71; a mean of 7/10 would exceed the float 0.7 or not, as it is rounded
            "similarity": float(rng.choice([-1.0, 0.21, 0.71])),
        }
        normalize_by = str(rng.choice(["range", "rank"]))
        start = np.round(rng.normal(size=M) * 1024) / 1024
        text = spec(rule, weighted, **fields, normalize_by=repr(normalize_by))
        found = Server(text, {"w": start}).advance([{"w": row} for row in W], sizes)["w"]
        expected = skew(
            W.tolist(),
            (sizes / 64).tolist(),
            rule=rule,
            weighted=weighted,
            **fields,
            normalize_by=normalize_by,
        )
        # float64, but 1/K and the weights of clusters are float32 in the library: 6e-8 relative
        np.testing.assert_allclose(
            found, expected, rtol=3e-7, atol=3e-7, err_msg=f"{number} {kind} K={K} {fields}\n{W}"
        )


@pytest.mark.parametrize("rule", RULES)
def test_parameter_skew_scopes_equal_plain_implementation(rule):
    """A layer ends with its bias: a norm's scale belongs to the weights before it, and a head without bias is a layer."""
    rng = np.random.default_rng(8)
    for K in (2, 5, 10):
        W = clients(rng, "groups", K, 10)
        ends = {"tensor": [4, 5, 6, 10], "layer": [6, 10], "model": [10]}
        start = {
            "a.weight": np.zeros((2, 2)),
            "n.weight": np.zeros(1),
            "n.bias": np.zeros(1),
            "head": np.zeros(4),
        }
        given = [
            dict(zip(start, (row[:4].reshape(2, 2), row[4:5], row[5:6], row[6:]), strict=True))
            for row in W
        ]
        for scope, stops in ends.items():
            groups = zip([0, *stops], stops, strict=False)
            expected = [w for a, b in groups for w in skew(W[:, a:b].tolist(), None, rule=rule)]
            found = Server(spec(rule, False, scope), start).advance(given)
            flat = np.concatenate([found[name].ravel() for name in start])
            np.testing.assert_allclose(flat, expected, rtol=3e-7, atol=3e-7)  # float32 weights


@pytest.mark.filterwarnings("ignore:.* is .* which can lose the scale of the model")
@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize("rule", RULES)
def test_parameter_skew_runs_equal_plain_implementation(rule, executor):
    """Three rounds of four of six clients, from the data on: full-batch gradients of two layers in float64."""

    class Double(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(hidden=7).double()

        def forward(self, x):
            return self.net(x.double())

    rng = np.random.default_rng(0)
    samples = [
        (rng.normal(size=(n, 4)) + rng.normal(size=4), rng.integers(0, 3, n))
        for n in (8, 12, 10, 16, 9, 14)
    ]
    people, module, ids = [ua.ClientData(train=pair, test=pair) for pair in samples], Double(), []

    def cohort(number, cohorts, before, after):
        ids.extend(c.ids for c in cohorts.values())
        return []

    text, work = (
        spec(rule, True, "layer", normalize_by="'rank'", macro=3),
        ua.Work(epochs=2, batch_size=64, lr=1.0),
    )
    options = {"participation": 0.67, "executor": executor, "record": cohort, "progress": False}
    run = ua.run(text, people, model=module, rounds=3, work=work, **options)
    w = {n: p.detach().clone() for n, p in module.named_parameters()}
    for present in ids:
        rows, sizes = [], np.array([len(samples[k][1]) for k in present])
        for k in present:
            v, (x, y) = w, people[k].train
            for _ in range(2):
                v = {n: p.clone().requires_grad_() for n, p in v.items()}
                loss = nn.functional.cross_entropy(torch.func.functional_call(module, v, (x,)), y)
                v = {
                    n: (p - torch.autograd.grad(loss, p, retain_graph=True)[0]).detach()
                    for n, p in v.items()
                }
            rows.append(np.concatenate([p.numpy().ravel() for p in v.values()]))
        W, end = np.stack(rows), sum(p.numel() for n, p in w.items() if "body" in n)
        layers = (W[:, :end], W[:, end:])
        fields = {"rule": rule, "weighted": True, "normalize_by": "rank", "macro": 3}
        new = np.concatenate(
            [skew(layer.tolist(), sizes / sizes.sum(), **fields) for layer in layers]
        )
        sections = np.split(new, np.cumsum([p.numel() for p in w.values()])[:-1])
        w = {
            n: torch.tensor(v).reshape(p.shape)
            for (n, p), v in zip(w.items(), sections, strict=True)
        }
    for n, p in w.items():
        torch.testing.assert_close(run.params[n], p, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["fedsa", "fedsa(variant='literal')"])
def test_macro_classes_equal_exact_arithmetic(name):
    """Few columns, many equal similarities: a mean of similarities equal to another one is a tie, whatever the
    rounding."""
    rng = np.random.default_rng(3)
    part = Method.parse(name).aggregator
    for number in range(400):
        K, H = int(rng.integers(3, 9)), int(rng.integers(3, 24))
        E = rng.integers(1, 1 + rng.integers(2, 4), size=(K, H))
        sim = [[1 - Fraction(int((E[a] != E[b]).sum()), H) for b in range(K)] for a in range(K)]
        found = part._macro_classes(part._similarity(torch.from_numpy(E), H))
        assert found == cluster(sim, 4, 0.2, joins_first=part.pairs_first is False), (
            f"{number}\n{E}"
        )


def test_parameter_skew_four_clients_equal_hand_numbers():
    """K = 4, M = 2: column 0 is 1 for all; column 1 is 1, 1, 3, 3. mu = (1, 2), D = (0, 1), cv = (0, 1/2), normalized
    (0, 1): only column 1 is high. D there is 1 for all clients, the last class (min-max normalized, with the 0 of
    column 0
    as the minimum, or raw). All are similar: the normalized rule puts all in one cluster and gives the mean 2; the
    literal
    rules form the pairs {0, 1} and {2, 3} with means 1 and 3, and alpha = 1/(S #high) = 1/4 (FedPake), 1/(S C) = 1/16
    (FedSA)."""
    W = [[1.0, 1], [1.0, 1], [1.0, 3], [1.0, 3]]
    printed = [1, 1 / 4 * (1 + 3)]
    found = {
        "normalized": [1, 2],
        "pake": printed,
        "consistent": printed,
        "scaled": printed,
        "sa": [1, 1 / 16 * (1 + 3)],
    }
    for rule, expected in found.items():
        found = Server(spec(rule, False), {"w": [0.5, 0.5]}).advance([{"w": row} for row in W])["w"]
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(skew(W, None, rule=rule), expected)


def test_printed_fedpake_with_more_macro_classes_than_pairs_loses_scale():
    """K = 4, S = 3: only the pairs {0, 1} and {2, 3} form, with means 1 and 3 and alpha = 1/S each."""
    W = [{"w": row} for row in ([1.0, 1], [1.0, 1], [1.0, 3], [1.0, 3])]
    found = Server(spec("pake", False, macro=3), {"w": [0.5, 0.5]}).advance(W)["w"]
    np.testing.assert_allclose(found, [1, (1 + 3) / 3], rtol=1e-6)


def test_printed_fedpake_sets_a_parameter_that_no_client_changes_to_zero():
    """Column 0 is 2 for all: D = 0 and cv = 0. Column 1 has mu = -2, sd = 1, cv = -1/2: min-max normalized, column 0 is the high
    one. It is in no micro-class, so that its alphas are 0."""
    W = [{"w": row} for row in ([2.0, -1], [2.0, -1], [2.0, -3], [2.0, -3])]
    np.testing.assert_array_equal(
        Server(spec("pake", False), {"w": [2.0, -1]}).advance(W)["w"], [0, -2]
    )
    np.testing.assert_array_equal(
        Server(spec("normalized", False), {"w": [2.0, -1]}).advance(W)["w"], [2, -2]
    )


def test_fedsa_outlier_client_equals_hand_numbers():
    """Columns 1 and 2 are high, 0 and 3 equal everywhere. Column 1 is 0, 0, 0, 4 (mu 1, D 1, 1, 1, 9), column 2 its
    negative. Normalized D: 1/9, 1/9, 1/9, 1: classes 1, 1, 1, 4. Client 3 agrees with nobody (similarity 0). 0, 1,
    then 2
    join; 3, the lone last one, joins too as there is room: one cluster, the mean. With macro = 1 it stays out (0 <=
    0.2): the cluster's mean is 0 in both.
    """
    W = [[1.0, 0, 0, 1], [1.0, 0, 0, 1], [1.0, 0, 0, 1], [1.0, 4, -4, 1]]
    for macro, expected in {4: [1, 1, -1, 1], 1: [1, 0, 0, 1]}.items():
        found = Server(f"fedsa(macro={macro})", {"w": np.zeros(4)}).advance(
            [{"w": row} for row in W]
        )["w"]
        np.testing.assert_array_equal(found, expected)


def test_parameter_skew_threshold_one_equals_uniform():
    rng = np.random.default_rng(0)
    W = [{"w": row} for row in rng.normal(size=(5, 7))]
    kinds = [("normalized", "rank"), ("literal", "range"), ("literal", "rank"), ("scaled", "rank")]
    for name, (variant, kind) in product(("fedsa", "fedpake"), [("normalized", "range"), *kinds]):
        text = f"{name}(threshold=1, variant={variant!r}, normalize_by={kind!r})"
        found = Server(text, {"w": np.zeros(7)}).advance(W, [1, 2, 3, 4, 5])["w"]
        np.testing.assert_array_equal(
            found, Server("uniform", {"w": np.zeros(7)}).advance(W, [1, 2, 3, 4, 5])["w"]
        )


def test_parameter_skew_equal_clients_give_their_model():
    w = np.random.default_rng(0).normal(size=9)
    for rule in RULES:
        found = Server(spec(rule, False), {"w": np.ones(9)}).advance([{"w": w}] * 5)["w"]
        np.testing.assert_allclose(found, w, rtol=1e-6)  # 5 times the float32 of 1/5


def test_parameter_skew_random_macro_classes_equal_hand_numbers():
    """K = 2, S = 2, one micro-class. Columns: 1 for both (low); 1 and 3 (high, mean 2). The clients are drawn into one
    macro-class, with alpha = 1/S = 1/2 and the mean 2, or into two, with 1/2 * 1 + 1/2 * 3: FedPake's high parameter
    becomes 1 or 2. Normalized alphas give the mean either way."""
    W = [{"w": [1.0, 1]}, {"w": [1.0, 3]}]
    fields = {"micro": 1, "macro": 2, "assignment": "'random_macro'"}
    first, again, plain = (
        Server(spec(rule, False, **fields), {"w": [0.5, 0.5]})
        for rule in ("pake", "pake", "normalized")
    )
    found = set()
    for _ in range(12):
        low, high = first.advance(W)["w"]
        np.testing.assert_array_equal([low, high], again.advance(W)["w"])
        np.testing.assert_array_equal(plain.advance(W)["w"], [1, 2])
        assert low == 1
        found.add(float(high))
    assert found == {1.0, 2.0}


def test_parameter_skew_random_micro_classes_with_one_class_and_one_cluster_equal_hand_numbers():
    """C = S = 1: whatever is drawn, all high parameters share the class, and FedPake's alpha = H / (S H) = 1 gives the
    mean; FedSA's alpha = H / (S C) = H, here 2, gives twice the mean. Columns: 1 for all, then 1 and 3, 1 and 3."""
    W = [{"w": [1.0, 1, 1]}, {"w": [1.0, 3, 3]}]
    for rule, expected in {"pake": [1, 2, 2], "sa": [1, 4, 4], "normalized": [1, 2, 2]}.items():
        for assignment in ("random_micro", "random"):
            text = spec(rule, False, micro=1, macro=1, assignment=repr(assignment))
            np.testing.assert_array_equal(Server(text, {"w": [0.5] * 3}).advance(W)["w"], expected)


def test_scaled_rule_gives_groups_of_clients_equal_weight():
    """Clients 0, 1, 2 have 1 and clients 3, 4 have 1.3 in two columns; a third column is equal everywhere. mu = 1.12, and D = .0144
    or .0324. By rank, 1/3 > .2, the two columns are high. Scaled by 0 and .0324, D is in micro-class 2 or 4: the groups are
    (0, 1, 2) and (3, 4), and the new value is (1 + 1.3) / 2. Raw, all are alike: (0, 1, 4) and (2, 3) by ties."""
    start, given = {"w": np.ones(3)}, [{"w": [5, v, v]} for v in (1.0, 1.0, 1.0, 1.3, 1.3)]
    for rule, new in {
        "scaled": (1 + 1.3) / 2,
        "consistent": ((1 + 1 + 1.3) / 3 + (1 + 1.3) / 2) / 2,
    }.items():
        found = Server(spec(rule, False, macro=2, normalize_by="'rank'"), start).advance(given)["w"]
        np.testing.assert_allclose(found, [5, new, new], rtol=1e-6)


def test_rank_normalization_makes_one_less_threshold_of_the_parameters_high():
    rng = np.random.default_rng(0)
    update, weights = {"w": torch.from_numpy(rng.normal(size=(6, 1000)))}, torch.full((6,), 1 / 6)
    for threshold in (0.0, 0.2, 0.55, 0.999):
        part = Method.parse(
            f"fedpake(variant='scaled', normalize_by='rank', threshold={threshold})"
        ).aggregator
        high = part.decide({"w": torch.zeros(1000, dtype=torch.float64)}, update, weights)["w"].high
        assert len(high) == round(1000 * (1 - threshold)) - 1


def test_random_modal_classes_sum_to_one_share_of_the_micro_classes():
    """Measured, both pairs have one micro-class and the alphas sum to 1; with Q_j drawn from C classes each parameter shares its
    class with 1 / C of the others. The clients' groups stay."""
    rng = np.random.default_rng(1)
    shift = np.repeat([[0.0], [0.1]], 2, axis=0)
    update = {"w": torch.from_numpy(1 + shift * rng.uniform(0.9, 1, size=4000))}
    start, weights = {"w": torch.zeros(4000, dtype=torch.float64)}, torch.full((4,), 0.25)
    for micro in (2, 4, 8):
        text = "fedpake(variant='consistent', macro=2, normalize_by='rank', threshold=0, micro={}, assignment={!r})"
        measured, drawn, again = (
            Method.parse(text.format(micro, how)).aggregator.decide(
                start, update, weights, torch.Generator().manual_seed(3)
            )["w"]
            for how in ("measured", "random_modal", "random_modal")
        )
        assert measured.macro == drawn.macro == [[0, 1], [2, 3]]
        torch.testing.assert_close(
            measured.alpha.sum(0), torch.ones(measured.alpha.shape[1], dtype=torch.float64)
        )
        assert drawn.alpha.sum(0).mean().item() == pytest.approx(1 / micro, rel=0.05)
        assert torch.equal(drawn.alpha, again.alpha)


@pytest.mark.parametrize(
    "rule, groups",
    [
        ("pake", ([0, 1, 4], [2, 3])),
        ("scaled", ([0, 1, 2], [3, 4])),
        ("normalized", ([0, 1, 2], [3, 4])),
    ],
)
def test_random_modal_classes_equal_hand_numbers(rule, groups):
    """C = S = 2, and three of four parameters are high. Raw, all D are below 1/2, and ties make the macro-classes; scaled, they are
    in class 1 for the first three clients and in class 2 for the others. Of the classes drawn for three parameters all are equal,
    alpha = 3 / (S H), or one is alone: 1 / 6 there and 2 / 6 at the two others. The normalized rule divides by the sum of both."""
    W = np.array([[0.3, 0.1, 0.1, 0.1]] * 3 + [[0.3, 0.7, 0.8, 0.9]] * 2)
    fields = {
        "micro": 2,
        "macro": 2,
        "normalize_by": "'rank'",
        "threshold": 0,
        "assignment": "'random_modal'",
    }
    server, again = (Server(spec(rule, False, **fields), {"w": np.zeros(4)}) for _ in range(2))
    patterns, means = (
        np.array([[3, 3, 3], [1, 2, 2], [2, 1, 2], [2, 2, 1]]) / 6,
        [W[g, 1:].mean(0) for g in groups],
    )
    possible = []
    for alphas in product(patterns, patterns):
        total = sum(alphas) if rule == "normalized" else 1.0
        possible.append(sum(a * mean for a, mean in zip(alphas, means, strict=True)) / total)
    found = set()
    for _ in range(40):
        low, *high = server.advance([{"w": row} for row in W])["w"]
        np.testing.assert_array_equal([low, *high], again.advance([{"w": row} for row in W])["w"])
        assert low == pytest.approx(0.3)
        found.add(next(i for i, p in enumerate(possible) if np.allclose(high, p, atol=1e-6)))
    assert len(found) > 8


def test_default_says_that_it_is_nearly_the_mean_once():
    clients = ua.partition(ua.load("digits"), "iid", clients=3)
    run = {"clients": clients, "model": "mlp(hidden=4)", "rounds": 2}
    with pytest.warns(UserWarning, match="uniform FedAvg on nearly all"):
        assert [n for n in ua.run("fedpake", **run).notes if "uniform FedAvg" in n] == [
            "normalized_skew (fedsa, fedpake) equals uniform FedAvg on nearly all parameters: about .3 % are high; "
            "record='server' notes the share in this run, and normalize_by='rank' makes 1 - threshold of them high"
        ]
    assert not any(
        "uniform FedAvg" in n for n in ua.run("fedpake(normalize_by='rank')", **run).notes
    )


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("fedpake(variant='literal')", "literal_pake is the rule as printed, which"),
        ("fedsa(variant='literal')", "literal_sa is the rule as printed, which"),
        (
            "fedpake(variant='consistent')",
            "consistent_skew is a reading that neither paper prints (|mu| from FedSA",
        ),
        (
            "fedpake(variant='scaled')",
            "scaled_skew is a reading that neither paper prints (`consistent` with scaled",
        ),
    ],
)
def test_run_notes_whether_a_variant_is_printed_or_a_reading(text, origin):
    clients = ua.partition(ua.load("digits"), "iid", clients=3)
    with pytest.warns(UserWarning, match="variant='normalized' does neither"):
        notes = ua.run(text, clients=clients, model="mlp(hidden=4)", rounds=1).notes
    [note] = [note for note in notes if "variant='normalized'" in note]
    assert note.startswith(origin) and "can lose the scale of the model" in note


def test_parameter_skew_unknown_assignment_is_refused():
    with pytest.raises(ua.UnalikeError, match="assignment"):
        Method.parse("fedsa(assignment='rondom')")


def test_fedsa_and_fedpake_normalized_are_equal():
    assert Method.parse("fedsa") == Method.parse("fedpake")
    assert Method.parse("fedsa(variant='literal')") != Method.parse("fedpake(variant='literal')")


@pytest.mark.parametrize("name", ["fedsa", "fedpake", "fedpake(weighted=True)"])
def test_parameter_skew_clients_of_weight_zero_keep_parameters_finite(name):
    """FedDisco gives 0 to all members of a cluster: it counts as their plain mean, or not at all where weights count."""
    g = torch.Generator().manual_seed(0)
    counts = torch.tensor([[30, 0, 0], [0, 30, 0], [10, 10, 10], [9, 11, 10], [0, 0, 30]])
    start = {"w": torch.zeros(2, 3)}
    sent = [{"w": torch.randn(2, 3, generator=g)} for _ in counts]
    facts = {"label_histogram": counts}
    new, _ = ua.aggregate(f"{name} + feddisco(discrepancy='l1', a=5.0)", start, sent, facts=facts)
    assert new["w"].isfinite().all()


def test_decide_gives_classes_clusters_and_weights_of_each_high_parameter():
    """FedPake as printed, C = S = 2, from w = 0. The first parameter is .3 for all clients, the others differ and are high. Every
    D is below 1/2, which is micro-class 1, so all clients are alike, and ties decide: (0, 1), (2, 3), and 4 joins the first.
    alpha = 2 / (2 * 2) each; the new values are (1.2 / 3 + 1.3 / 2) / 2 = .525 and (1 / 3 + 1.5 / 2) / 2 = 13/24, the means .5.
    """
    update = {
        "w": torch.tensor(
            [[0.3, 0.1, 0.1], [0.3, 0.2, 0.3], [0.3, 0.7, 0.8], [0.3, 0.6, 0.7], [0.3, 0.9, 0.6]]
        )
    }
    start, weights = {"w": torch.zeros(3)}, torch.full((5,), 0.2)
    decision = Method.parse("fedpake(variant='literal', micro=2, macro=2)").aggregator.decide(
        start, update, weights
    )["w"]
    assert decision.high.tolist() == [1, 2]
    assert decision.micro.tolist() == [[1, 1]] * 5
    assert decision.macro == [[0, 1, 4], [2, 3]]
    assert decision.alpha.tolist() == [[0.5, 0.5]] * 2
    new = decision.applied(start["w"], update["w"], update["w"].mean(0), weights)
    assert new.tolist() == pytest.approx([0.3, 0.525, 13 / 24])
