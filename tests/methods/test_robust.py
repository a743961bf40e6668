"""Robust aggregation: numbers by hand, and a colluding minority."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from simulation import Clients, Server, Simulation, advance, mlp, plane
from torch.nn import functional as F

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.types import Batch
from unalike.core.work import Work
from unalike.methods.method import Method

ROBUST = (
    "median",
    "trimmed_mean(beta=0.3)",
    "krum(byzantine=2)",
    "multikrum(byzantine=2)",
    "geometric_median",
)


def combined(spec, points, sizes=None, **more):
    points = [np.atleast_1d(p) for p in points]
    return Server(spec, {"w": np.zeros(len(points[0]))}).advance(
        [{"w": p} for p in points], sizes, **more
    )["w"]


def test_median_small_cohorts_equal_hand_numbers():
    assert combined("median", [1.0, 9.0, 2.0]) == [2.0]
    assert combined("median", [1.0, 9.0, 2.0, 4.0], [100, 1, 1, 1]) == [
        3.0
    ]  # of the two in the middle; no weights
    assert combined("median", [[1.0, 5.0], [2.0, 0.0], [9.0, 3.0]]).tolist() == [
        2.0,
        3.0,
    ]  # per coordinate


def test_trimmed_mean_small_cohorts_equal_hand_numbers():
    values = [0.0, 1.0, 2.0, 6.0, 100.0]
    assert combined("trimmed_mean(beta=0.2)", values, [9, 1, 1, 1, 1]) == [3.0]
    assert combined("trimmed_mean(beta=0.4)", values) == [2.0]
    assert combined("trimmed_mean(beta=0.19)", values) == [21.8]  # floor(0.95) = 0
    hundred = np.arange(100.0)
    hundred[-29:] = 1e6  # 0.29 * 100 is a little less than 29 in floats
    assert combined("trimmed_mean(beta=0.29)", hundred) == [49.5]
    # the median, also of an even number: a client that does not answer ends no run
    assert combined("trimmed_mean(beta=0.5)", [1.0, 2.0, 9.0]) == [2.0]
    assert combined("trimmed_mean(beta=0.5)", [1.0, 2.0, 6.0, 9.0]) == [4.0]
    with pytest.raises(UnalikeError, match="beta"):
        Method.parse("trimmed_mean(beta=0.6)")


def test_krum_and_multikrum_small_cohorts_equal_hand_numbers():
    """f = 1 of K = 5: the 2 nearest. On the line 0, 1, 1.5, 3, 10: scores 1 + 2.25, 1 + 0.25, 0.25 + 2.25, ..."""
    line = [0.0, 1.0, 1.5, 3.0, 10.0]
    assert combined("krum", line, [1, 1, 1, 1, 99]) == [1.0]
    # the 2 and 4 of least score; weights 3 and 1 of those kept
    assert combined("multikrum(keep=2)", line, [1, 3, 1, 1, 1]) == [(3 * 1 + 1.5) / 4]
    assert combined("multikrum", line) == [(0 + 1 + 1.5 + 3) / 4]
    assert combined("krum", [0.0, 1.0, 1.5, 10.0]) == [
        1.0
    ]  # K - f - 2 = 1: a tie of 1 and 1.5, the first wins
    assert combined("krum", [4.0]) == [4.0] and combined("krum", [4.0, 5.0]) == [4.0]
    assert combined("multikrum(keep=9)", line, [1, 2, 3, 4, 5]) == combined(
        "fedavg", line, [1, 2, 3, 4, 5]
    )


def test_krum_several_tensors_chooses_one_whole_model():
    """Per coordinate the middle is (1, 1), which nobody sent."""
    start = {"a": [0.0], "b": [0.0]}
    models = [
        {"a": [0.0], "b": [1.0]},
        {"a": [1.0], "b": [5.0]},
        {"a": [5.0], "b": [1.1]},
        {"a": [0.3], "b": [0.8]},
    ]
    found = Server("krum", start).advance(models)
    assert (found["a"], found["b"]) == ([0.0], [1.0])


@pytest.mark.parametrize("seed", range(20))
def test_geometric_median_converges_to_the_minimum_that_scipy_finds(seed):
    """Where the minimum lies near a client, a hundred steps end up to a tenth away from it."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rng.integers(3, 9), rng.integers(1, 6)))
    sizes = rng.integers(1, 50, len(x))

    def total(v):
        return (sizes / sizes.sum() * np.linalg.norm(x - v, axis=1)).sum()

    found = minimize(
        total,
        sizes / sizes.sum() @ x,
        method="Nelder-Mead",
        options={"xatol": 1e-10, "fatol": 1e-14},
    )
    least = min([found.x, *x], key=total)
    np.testing.assert_allclose(combined("geometric_median", list(x), sizes), least, atol=1e-4)


def test_geometric_median_known_points_give_optimum():
    np.testing.assert_allclose(
        combined("geometric_median", [[0.0, 0], [1.0, 0], [50.0, 0]]), [1, 0], atol=1e-4
    )
    triangle = [[0.0, 0.0], [2.0, 0.0], [1.0, np.sqrt(3)]]
    np.testing.assert_allclose(
        combined("geometric_median", triangle), np.mean(triangle, 0), rtol=1e-6
    )
    # a weight of more than a half decides
    np.testing.assert_allclose(
        combined("geometric_median", triangle, [1, 1, 4]), triangle[2], atol=1e-4
    )
    # at the optimum the weighted unit vectors to the points cancel
    rng = np.random.default_rng(0)
    points, sizes = rng.normal(size=(9, 4)), rng.integers(1, 4, 9)
    gap = points - combined("geometric_median", list(points), sizes)
    pull = (sizes / sizes.sum()) @ (gap / np.linalg.norm(gap, axis=1, keepdims=True))
    assert np.linalg.norm(pull) < 1e-5


@pytest.mark.parametrize("far", [1e3, 1e18, 3e38])
def test_geometric_median_far_minority_stays_with_majority(far):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(4, 5)).astype(np.float32)
    liars = [np.full(5, far, np.float32)] * 3
    server = Server("geometric_median", {"w": torch.zeros(5)})
    found = server.advance([{"w": torch.from_numpy(p)} for p in [*points, *liars]])["w"]
    assert np.abs(found).max() < 2 * np.abs(points).max()


BUFFERS = {"mean": [[0.0], [1.0], [1.5], [3.0], [10.0]]}


@pytest.mark.parametrize(
    "spec, expected",
    {
        "median": 1.5,
        "trimmed_mean": 5.5 / 3,
        "krum": 1.0,
        "multikrum(keep=2)": 1.25,
        "fedavg": 3.1,
    }.items(),
)
def test_robust_rules_float_buffers_are_combined_by_same_rule(spec, expected):
    """Krum takes those of the clients it chose: of 1, and of 1 and 1.5."""
    buffers = {n: torch.tensor(b, dtype=torch.float64) for n, b in BUFFERS.items()}
    server = Server(spec, {"w": [0.0]})
    server.advance([{"w": [v]} for v in (0.0, 1.0, 1.5, 3.0, 10.0)], buffers=buffers)
    assert server.state.buffers["mean"].item() == pytest.approx(expected)


def test_geometric_median_outlier_buffers_are_ignored():
    buffers = {"mean": torch.tensor([[1.0], [1.0], [1e6]], dtype=torch.float64)}
    server = Server("geometric_median", {"w": [0.0, 0.0]})
    server.advance([{"w": [1.0, 0.0]}, {"w": [1.0, 0.1]}, {"w": [1e6, 0.0]}], buffers=buffers)
    assert (
        server.state.buffers["mean"].item() == pytest.approx(1.0, rel=1e-2)
        or server.state.buffers["mean"] < 3
    )


def test_robust_rules_with_feddisco_warn_of_unused_weights():
    for name in ("median", "trimmed_mean", "krum"):
        with pytest.warns(UserWarning, match="label_discrepancy has no effect"):
            Method.parse(f"{name} + feddisco").check(Work())


# --- a colluding minority ---------------------------------------------------------------------------------------------


def attacked(spec, attack, rounds=8):
    """The loss on the honest clients' data after training with 2 of 7 clients that send `attack` of the honest mean."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(4, 3))
    clients = Clients.of(
        *((x, (x @ truth).argmax(1)) for x in (rng.normal(size=(24, 4)) for _ in range(7))),
    )
    sim = Simulation(spec, mlp(), clients, batch_size=8, lr=0.3)
    for _ in range(rounds):
        cohort = sim.run()
        lie = tree.map(lambda u: attack(u[2:].mean(0)), cohort.update)
        update = tree.map(
            lambda u, bad: torch.cat([bad[None], bad[None], u[2:]]), cohort.update, lie
        )
        cohort = replace(cohort, stacked=cohort.stacked._replace(update=update))
        sim.state = advance(sim.method, sim.settings, sim.state, cohort)
    x, y = clients.x[49:], clients.y[49:]
    return F.cross_entropy(sim.settings.model.module(sim.params, {})(x), y).item()


FLIP = {
    "sign flip": lambda u: -6 * u,
    "scaling": lambda u: 300 * u,
    "constant": lambda u: torch.full_like(u, 50.0),
}


@pytest.mark.parametrize("attack", FLIP)
def test_robust_rules_colluding_minority_keep_loss_low(attack):
    """Without it the loss falls from 1.08 to 0.40. The mean is led away, the robust rules hold. Krum follows one client of
    five, and is a little behind."""
    clean = attacked("fedavg", lambda u: u)
    assert clean < 0.5
    assert attacked("fedavg", FLIP[attack]) > 2 * clean
    for spec in ROBUST:
        assert attacked(spec, FLIP[attack]) < 1.5 * clean, spec


def test_bulyan_small_cohorts_equal_hand_numbers():
    """K = 7, f = 1: Krum takes 5 of the 7 one by one; of them the 3 next to their median count."""
    line = [0.0, 1.0, 1.5, 3.1, 4.0, 10.0, 11.0]
    left, chosen = list(line), []
    for _ in range(5):
        near = max(1, len(left) - 3)
        scores = [
            sum(sorted((a - b) ** 2 for j, b in enumerate(left) if j != i)[:near])
            for i, a in enumerate(left)
        ]
        chosen.append(left.pop(int(np.argmin(scores))))
    nearest = sorted(chosen, key=lambda v: abs(v - np.median(chosen)))[:3]
    assert sorted(nearest) == [0.0, 1.0, 1.5]
    assert combined("bulyan", line)[0] == pytest.approx(np.mean(nearest))
    assert combined("bulyan(byzantine=0)", line, [9, 1, 1, 1, 1, 1, 1])[0] == pytest.approx(
        np.mean(line)
    )
    assert combined("bulyan", [4.0]) == [4.0]
    assert combined("bulyan", [0.0, 1.0, 1.5, 10.0]) == [
        0.5
    ]  # below its bound: the median of 1 and 0, of equal scores


def test_centered_clipping_goes_on_from_its_last_update():
    """From v = 0 with norm 1: 0.5 and 1 (of 4). From v = 0.75: 0.75 + (-0.25 + 1) / 2."""
    server = Server("centered_clipping(norm=1)", {"w": [0.0]})
    assert server.advance([{"w": [0.5]}, {"w": [4.0]}])["w"] == [0.75]
    assert server.advance([{"w": [0.75 + 0.5]}, {"w": [0.75 + 4.0]}])["w"] == [
        0.75 + 0.75 + (-0.25 + 1) / 2
    ]
    twice = Server("centered_clipping(norm=1, iterations=2)", {"w": [0.0]})
    assert twice.advance([{"w": [0.5]}, {"w": [4.0]}])["w"] == [0.75 + (-0.25 + 1) / 2]
    assert combined("centered_clipping(norm=inf)", [1.0, 4.0], [1, 2]) == pytest.approx([3.0])


def test_norm_bound_shortens_long_updates_before_any_rule():
    assert combined("norm_bound(norm=1)", [[3.0, 4.0], [0.3, 0.4]]).tolist() == pytest.approx(
        [0.45, 0.6]
    )
    assert combined("norm_bound", [1.0, -2.0, 100.0])[0] == pytest.approx((1 - 2 + 2) / 3)
    assert combined("norm_bound(norm=inf)", [1.0, 5.0], [1, 3]) == [4.0]
    assert combined("norm_bound(norm=2) + median", [1.0, 5.0, 7.0]) == [2.0]
    assert combined("norm_bound", [0.0, 0.0]) == [0.0]


def test_bucketing_shows_means_of_buckets_to_the_rule():
    points = [0.0, 2.0, 4.0, 6.0, 8.0]
    found = set()
    for round in range(8):
        server = Server("bucketing + krum(byzantine=0)", {"w": [0.0]})
        server.state = server.state._replace(round=round)
        found.add(server.advance([{"w": [p]} for p in points])["w"].item())
    assert len(found) > 1  # drawn anew in every round
    sums = {(a + b) / 2 for a in points for b in points if a != b} | set(points)
    assert found <= sums
    assert combined("bucketing(size=5) + median", points, [1, 1, 1, 1, 4]) == pytest.approx(
        [(12 + 32) / 8]
    )
    assert combined("bucketing(size=1) + median", points) == combined("median", points)
    assert combined("bucketing + fedavg", points, [1, 1, 1, 1, 4]) == combined(
        "fedavg", points, [1, 1, 1, 1, 4]
    )
    with pytest.warns(
        UserWarning, match="bucketing has no effect with mean: the mean of means is the mean"
    ):
        Method.parse("bucketing").check(Work())


def test_bucketing_float_buffers_are_means_and_counts_maxima():
    buffers = {"mean": torch.tensor([[1.0], [3.0]]), "seen": torch.tensor([2, 7])}
    server = Server("bucketing + median", {"w": [0.0]})
    server.advance([{"w": [1.0]}, {"w": [3.0]}], buffers=buffers)
    assert (
        server.state.buffers["mean"].tolist() == [2.0] and server.state.buffers["seen"].item() == 7
    )


def test_fltrust_weighs_updates_by_their_direction():
    """The gradient at 0 of the server's sample (1, 0) -> 1 points to w1; the lengths of the updates count nothing."""
    clients = Clients.of(*((np.eye(2)[[0]], np.array([1.0])),) * 3)
    proxy = Batch(torch.tensor([[1.0, 0.0]]), torch.tensor([1.0]))
    sim = Simulation(
        "fltrust(steps=1)", plane(0.0, 0.0), clients, task="regression", proxy=proxy, lr=0.1
    )
    cohort = sim.run()
    name, rate = "head.weight", 0.1
    update = torch.tensor([[[5.0, 0.0]], [[-9.0, 0.0]], [[1.0, 1.0]]])
    after = advance(sim.method, sim.settings, sim.state, cohort.with_update({name: update})).params[
        name
    ]
    gradient = sim.settings.task.losses(
        torch.zeros(1), torch.ones(1)
    ).item()  # (0 - 1)^2, or half of it
    length, trust = rate * 2 * gradient, np.array([1.0, 0.0, 0.5**0.5])
    expected = length * (trust @ [[1, 0], [0, 0], [0.5**0.5, 0.5**0.5]]) / trust.sum()
    np.testing.assert_allclose(after.numpy()[0], expected, rtol=1e-5)
    nobody = cohort.with_update({name: -update.abs()[:1].expand(3, 1, 2)})
    assert not advance(sim.method, sim.settings, sim.state, nobody).params[name].any()


@pytest.mark.parametrize(
    ("spec", "clients", "why"),
    [
        (
            "bulyan",
            6,
            "7 clients or more in a round are needed for its guarantee (4 byzantine + 3) and 6 take part",
        ),
        (
            "bucketing + krum",
            8,
            "5 clients or more in a round are needed for its guarantee (2 byzantine + 3) and 4 take",
        ),
        ("bucketing(size=4) + median", 4, "one bucket of 4 holds all 4 clients of a round"),
    ],
)
def test_defence_notes_rounds_below_its_bound(spec, clients, why):
    run = ua.run(spec, tiny(clients), model="mlp(hidden=(2,))", rounds=1, progress=False)
    assert any(why in note for note in run.warnings), run.warnings
    more = ua.run(spec, tiny(3 * clients), model="mlp(hidden=(2,))", rounds=1, progress=False)
    assert not any("cannot do here" in note for note in more.warnings)


def tiny(clients):
    rng = np.random.default_rng(0)
    return [
        ua.ClientData(train=(rng.normal(size=(4, 2)), np.arange(4) % 2)) for _ in range(clients)
    ]
