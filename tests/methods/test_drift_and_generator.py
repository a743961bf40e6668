"""FedDC, FedGen, the bipartition of clustered FL and fixed parameters: numbers by hand, reductions, what each is for."""

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, mlp, plane, same

from unalike.core import tree
from unalike.methods.method import Method
from unalike.methods.parts.bipartition import Bipartition, bipartition, halves
from unalike.methods.parts.feature_generator import AverageGenerator, EnsembleGenerator, generate
from unalike.methods.plan import plan
from unalike.training.server.server_update import make_broadcast

SIZES = (7, 3, 1, 5)
WORK = {"epochs": 2, "batch_size": 4, "lr": 0.1}
FULL = {"epochs": 1, "batch_size": None, "lr": 0.1}


# --- FedDC ------------------------------------------------------------------------------------------------------------


def test_feddc_three_rounds_equal_numpy():
    """Three rounds of two full-batch steps on y = w x, written from the equations; client 1 sits out the second round.

    All means have the weights of the objective: shares of the samples, of all clients or of those of the round.
    """
    alpha, lr, rng = 0.3, 0.05, np.random.default_rng(0)
    data = [(rng.normal(size=(n, 2)), rng.normal(size=n)) for n in (4, 6, 5)]
    clients = Clients.of(*data, dtype=torch.float64)
    sim = Simulation(
        f"feddc(alpha={alpha})",
        plane(0.5, -0.2).double(),
        clients,
        task="regression",
        epochs=2,
        batch_size=None,
        lr=lr,
    )
    w, h, c, pace, drift = (
        np.array([0.5, -0.2]),
        np.zeros((3, 2)),
        np.zeros((3, 2)),
        np.zeros(2),
        np.zeros(2),
    )
    w = sim.params["head.weight"].numpy()[0].copy()
    for ids in ([0, 1, 2], [0, 2], [0, 1, 2]):
        sim.round(ids)
        sizes = np.array([len(data[k][1]) for k in ids])
        moved = []
        for k in ids:
            x, y = data[k]
            v = w.copy()
            for _ in range(2):
                v = v - lr * (2 * x.T @ (x @ v - y) / len(y) + alpha * (h[k] + v - w) + c[k] - pace)
            h[k] += v - w
            c[k] = (v - w) / (lr * 2)
            moved.append(v - w)
        drift = drift + sizes / 15 @ np.array(moved)
        pace = sizes / sizes.sum() @ np.array(moved) / (lr * 2)
        w = w + sizes / sizes.sum() @ np.array(moved) + drift
        np.testing.assert_allclose(
            sim.params["head.weight"].numpy()[0], w, rtol=1e-6
        )  # data are float32 in part
        np.testing.assert_allclose(
            drift, np.array([4, 6, 5]) / 15 @ h, atol=1e-12
        )  # the server knows the mean drift from the updates alone


def test_feddc_partial_participation_keeps_drift_as_sum_of_updates():
    sim = Simulation("feddc", mlp(), Clients.random(SIZES), **WORK)
    moved = [tree.zeros(sim.params) for _ in SIZES]
    for ids in ([0, 1, 2, 3], [1, 3], [0, 1, 2]):
        cohort = sim.round(ids)
        for i, k in enumerate(ids):
            moved[k] = tree.add(moved[k], tree.row(cohort.update, i))
    for k in range(len(SIZES)):
        kept = tree.unpack(sim.memory(k)["local_drift"])["drift"]
        torch.testing.assert_close(kept, moved[k], rtol=1e-5, atol=1e-6)  # float32 sums


def test_feddc_first_round_alpha_zero_moves_twice_as_far_as_uniform():
    """Nothing is remembered yet: with alpha = 0 clients train as in FedAvg, and uniform FedDC goes exactly twice as far."""
    one = Simulation("feddc(alpha=0, weighted=False)", mlp(), Clients.random(SIZES), **WORK)
    other = Simulation("fedavg + uniform", mlp(), Clients.random(SIZES), **WORK)
    start = one.params
    a, b = one.round(), other.round()
    assert same(a.update, b.update)
    for n, w in start.items():
        torch.testing.assert_close(
            one.params[n] - w, 2 * (other.params[n] - w), rtol=1e-4, atol=1e-7
        )


# --- FedGen -----------------------------------------------------------------------------------------------------------

SMALL = "noise=6, hidden=16"


def test_fedgen_teacher_and_spread_losses_equal_numpy():
    """Against sums written out in numpy."""
    rng = np.random.default_rng(0)
    logits, y = rng.normal(size=(3, 5, 4)), rng.integers(0, 4, 5)
    counts, weights = rng.integers(0, 4, (3, 4)).astype(float), np.array([0.5, 0.3, 0.2])
    counts[:, 2] = 0  # a class nobody has

    def ce(z, c):
        return np.log(np.exp(z).sum()) - z[c]

    ensemble = 0.0
    for k in range(3):
        terms = [
            counts[k, c] / max(counts[:, c].sum(), 1) * ce(logits[k, b], c) for b, c in enumerate(y)
        ]
        ensemble += np.mean(terms)
    mixed = np.tensordot(weights, logits, 1)
    average = np.mean([ce(mixed[b], c) for b, c in enumerate(y)])
    given = [torch.from_numpy(np.asarray(v)) for v in (logits, y, counts, weights)]
    assert EnsembleGenerator().teach(*given).item() == pytest.approx(ensemble)
    assert AverageGenerator().teach(*given).item() == pytest.approx(average)
    eps, z = rng.normal(size=(4, 3)), rng.normal(size=(4, 2))
    pairs = [
        np.mean((a - b) ** 2) * np.mean(np.abs(p - q))
        for a, p in zip(eps, z)
        for b, q in zip(eps, z)
    ]
    found = EnsembleGenerator().spread(torch.from_numpy(eps), torch.from_numpy(z))
    assert found.item() == pytest.approx(np.exp(-np.mean(pairs)))


@pytest.mark.parametrize("preset", ["zhu", "pfllib"])
def test_fedgen_without_terms_or_generator_steps_equals_fedavg(preset):
    plain = Simulation("fedavg", mlp(), Clients.random(SIZES), **WORK)
    off = Simulation(
        f"fedgen(preset='{preset}', {SMALL}, alpha=0, beta=0, steps=3)",
        mlp(),
        Clients.random(SIZES),
        **WORK,
    )
    idle = Simulation(
        f"fedgen(preset='{preset}', {SMALL}, steps=0)", mlp(), Clients.random(SIZES), **WORK
    )
    on = Simulation(
        f"fedgen(preset='{preset}', {SMALL}, steps=3)", mlp(), Clients.random(SIZES), **WORK
    )
    for number in range(3):
        for sim in (plain, off, idle, on):
            sim.round()
        for sim in (off, idle):
            # equal up to the sign of zeros that the switched-off terms add
            for n, w in plain.params.items():
                torch.testing.assert_close(sim.params[n], w, rtol=0, atol=0)
        assert same(on.params, plain.params) == (
            number == 0
        )  # the generator is trained after the first round


@pytest.mark.parametrize("preset", ["zhu", "pfllib"])
def test_fedgen_generator_after_training_matches_shared_head(preset):
    """Its features of class c are classified as c by the shared head, better after more rounds."""
    clients = Clients.random((30, 20, 25), seed=2)
    sim = Simulation(f"fedgen(preset='{preset}', {SMALL}, steps=60)", mlp(), clients, **WORK)

    def loss():
        g = make_broadcast(sim.method, sim.settings, sim.state, 3).messages[
            sim.method.losses[-1].name
        ]
        y = torch.arange(3).repeat(40)
        eps = torch.from_numpy(np.random.default_rng(0).random((120, 6))).float()
        z, _ = generate(g, eps, y)
        return torch.nn.functional.cross_entropy(sim.settings.model.head(sim.params, z), y).item()

    before = loss()
    for _ in range(3):
        sim.round()
    assert loss() < 0.5 * before


def test_fedgen_wire_lists_generator_and_counts():
    sim = Simulation(f"fedgen({SMALL}, steps=2)", mlp(), Clients.random(SIZES), **WORK)
    [name] = [p.name for p in sim.method.parts if isinstance(p, EnsembleGenerator)]
    cohort = sim.round()
    counts = cohort.stacked.messages[name]["generator.counts"]
    for k, rows in enumerate(sim.clients.train):
        assert counts[k].tolist() == np.bincount(sim.clients.y[rows], minlength=3).tolist()
    order = make_broadcast(sim.method, sim.settings, sim.state, 4)
    assert (
        order.messages[name]["out.weight"].shape == (5, 16) and order.messages[name]["ready"] == 1
    )
    assert plan("fedgen") == plan("fedgen(preset='zhu')") != plan("fedgen(preset='pfllib')")


def test_fedgen_private_heads_leave_generator_untrained():
    sim = Simulation(
        f"fedgen({SMALL}) + private(select='head')", mlp(), Clients.random(SIZES), **WORK
    )
    plain = Simulation("private(select='head')", mlp(), Clients.random(SIZES), **WORK)
    for _ in range(2):
        sim.round(), plain.round()
    assert sim.state.part_states["ensemble_generator"]["ready"] == 0
    torch.testing.assert_close(sim.params, plain.params, rtol=0, atol=0)


# --- bipartition ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_bipartition_minimizes_largest_similarity_between_halves(seed):
    """Against all 2^6 - 1 ways to cut seven clients in two."""
    v = torch.nn.functional.normalize(
        torch.randn(7, 3, generator=torch.Generator().manual_seed(seed)), dim=1
    )
    s = (v @ v.T).double()
    found = bipartition(s)
    ways = [torch.tensor([bool(n >> i & 1) for i in range(7)]) for n in range(1, 127)]
    best = min(s[w][:, ~w].max() for w in ways)
    assert not found[0] and found.any() and s[found][:, ~found].max() == best


def test_bipartition_thresholds_met_after_warmup_records_halves():
    """Updates (1, 0) and (-1, 0), sizes 1 and 1: the mean is 0, the largest norm 1."""

    def noted(**fields):
        from simulation import Server

        server = Server(Method(Bipartition(**{"warmup": 0} | fields)), {"w": [0.0, 0.0]})
        server.advance([{"w": [1.0, 0.0]}, {"w": [-1.0, 0.0]}])
        return halves(server.state)

    assert noted(eps1=0.1, eps2=0.9) == ((0,), (1,))
    assert noted(eps1=0.1, eps2=1.1) is None and noted(eps1=0, eps2=0.9) is None
    assert noted(eps1=0.1, eps2=0.9, warmup=1) is None


def test_bipartition_beside_fedavg_leaves_parameters_unchanged():
    a, b = (
        Simulation(m, mlp(), Clients.random(SIZES), **WORK)
        for m in ("fedavg", "bipartition(eps1=9, eps2=0.001, warmup=0)")
    )
    for _ in range(2):
        a.round(), b.round()
    assert same(a.params, b.params) and halves(b.state) is not None


# --- fixed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "select, still",
    [
        ("head", ("head.weight", "head.bias")),
        ("body", ("body.weight", "body.bias")),
        ("*.bias", ("body.bias", "head.bias")),
    ],
)
def test_fixed_parameters_stay_and_are_not_sent(select, still):
    sim = Simulation(f"fixed(select='{select}')", mlp(), Clients.random(SIZES), **FULL)
    start = sim.params
    cohort = sim.round()
    assert not set(cohort.update) & set(still)
    for n, w in start.items():
        assert torch.equal(sim.params[n], w) == (n in still)


@pytest.mark.parametrize(
    "select, own", [("bias", {"body.bias", "head.bias"}), ("h*d.*", {"head.weight", "head.bias"})]
)
def test_private_parameters_are_chosen_by_names(select, own):
    sim = Simulation(f"private(select='{select}')", mlp(), Clients.random(SIZES), **FULL)
    cohort = sim.round()
    assert set(cohort.update) == sim.params.keys() - own
    assert set(sim.memory(0)["private"]) == own
    nothing = Simulation("private(select='heads.*')", mlp(), Clients.random(SIZES), **FULL)
    nothing.round()
    plain = Simulation("fedavg", mlp(), Clients.random(SIZES), **FULL)
    plain.round()
    assert same(nothing.params, plain.params)
