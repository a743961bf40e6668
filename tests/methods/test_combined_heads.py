"""FedPAC: the combination of heads by hand, two rounds against numpy, what it is without variance, who gets what."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from simulation import Clients, Simulation, mlp

import unalike as ua
from unalike.core.views import ClientBatches
from unalike.methods.parts.combined_heads import combinations
from unalike.training.client.client_task import ClientTask
from unalike.training.server.server_update import make_broadcast
from unalike.training.wire import NUMBERS_BYTES, wire

SIZES = (7, 3, 1, 5)
WORK = {"epochs": 2, "batch_size": 4, "lr": 0.1}
HEAD = ("head.weight", "head.bias")


def numbers(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_combinations_equal_profiles_are_weighted_by_inverse_spread():
    """h alike: sum a^2 V has its minimum at a ~ 1/V = 1 : 1/2 : 1/4."""
    alpha = combinations(torch.ones(3, 2, 4, dtype=torch.float64), numbers(1.0, 2.0, 4.0))
    torch.testing.assert_close(alpha, numbers([4.0, 2, 1], [4, 2, 1], [4, 2, 1]) / 7)


def test_combinations_two_clients_equal_hand_numbers():
    """P_1 = diag(V) + diag(0, 9): a = (V_2 + 9, V_1) / (V_1 + V_2 + 9)."""
    h = numbers([[0.0, 0.0]], [[3.0, 0.0]])
    alpha = combinations(h, numbers(1.0, 2.0))
    torch.testing.assert_close(alpha, numbers([11 / 12, 1 / 12], [2 / 12, 10 / 12]))
    torch.testing.assert_close(
        combinations(h, numbers(0.0, 0.0)), torch.eye(2, dtype=torch.float64)
    )


@pytest.mark.parametrize("seed", range(3))
def test_combinations_random_profiles_reach_minimum_on_simplex(seed):
    """Against SLSQP, and 1000 points of the simplex; some weights are 0."""
    rng = np.random.default_rng(seed)
    h, v = rng.normal(size=(6, 3, 2)), 3 * rng.random(6)
    alpha = combinations(torch.from_numpy(h), torch.from_numpy(v)).numpy()
    assert (alpha >= 0).all() and np.allclose(alpha.sum(1), 1)
    for i, row in enumerate(alpha):

        def bound(a, i=i):
            return (a**2 * v).sum() + (np.tensordot(a, h[i] - h, 1) ** 2).sum()

        whole = {"type": "eq", "fun": lambda a: a.sum() - 1}
        found = minimize(
            bound,
            np.full(6, 1 / 6),
            bounds=[(0, 1)] * 6,
            constraints=whole,
            method="SLSQP",
            tol=1e-12,
        )
        np.testing.assert_allclose(row, found.x, atol=1e-5)  # of SLSQP
        assert all(bound(row) <= bound(a) + 1e-12 for a in rng.dirichlet(np.ones(6), 1000))


def statistics(x, y, body, classes=3):
    """h [C, D] and V from the definitions, sample by sample."""
    z = np.tanh(x @ body["body.weight"].T + body["body.bias"])
    h, v, n = np.zeros((classes, z.shape[1])), 0.0, len(y)
    for c in range(classes):
        mine = z[y == c]
        if len(mine):
            p, mu = len(mine) / n, mine.mean(0)
            h[c] = p * mu
            v += p * np.mean((mine**2).sum(1)) - p**2 * mu @ mu
    return h, v / n


def test_combined_heads_address_sends_each_client_its_own_head():
    """Two rounds in float64; client 1 sits out the second and keeps what was made for it."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(n, 4)), rng.integers(0, 3, n)) for n in (4, 6, 5)]
    clients = Clients.of(*data, dtype=torch.float64)
    sim = Simulation("fedpac", mlp().double(), clients, epochs=1, batch_size=None, lr=0.1)
    made = {}
    for ids in ([0, 1, 2], [0, 2]):
        body = {n: w.numpy().copy() for n, w in sim.params.items()}
        letter = sim.round(ids).stacked.messages["combined_heads"]
        found = [statistics(*data[k], body) for k in ids]
        for i, (h, v) in enumerate(found):
            np.testing.assert_allclose(
                letter["features.profile"][i].numpy(), h, rtol=1e-9, atol=1e-12
            )
            np.testing.assert_allclose(letter["features.spread"][i].item(), v, rtol=1e-9)
        alpha = combinations(*(torch.tensor(np.stack(t)) for t in zip(*found))).numpy()
        heads = {
            n: np.stack([sim.memory(k)["combined_heads"][n].numpy() for k in ids]) for n in HEAD
        }
        for i, k in enumerate(ids):
            made[k] = {n: np.tensordot(alpha[i], t, 1) for n, t in heads.items()}
        order = make_broadcast(sim.method, sim.settings, sim.state, 3, range(3))
        for k in range(3):
            batches, one = ClientBatches(()), torch.ones(())
            start = (
                ClientTask(sim.method, sim.settings, order.to(k), sim.memory(k), batches, {}, one)
                .begin()
                .start
            )
            for n in HEAD:
                np.testing.assert_allclose(start[n].numpy(), made[k][n], rtol=1e-7)
            assert torch.equal(start["body.weight"], sim.params["body.weight"])


def test_combined_heads_without_variance_equals_fedrep():
    """Clients of one sample have V = 0, and other features than the others: each starts from its own head."""
    pac, rep = (
        Simulation(m, mlp(), Clients.random((1, 1, 1), seed=4), epochs=2, batch_size=4, lr=0.1)
        for m in ("fedpac(lam=0)", "fedrep(epochs=1)")
    )
    for ids in ([0, 1, 2], [0, 2], [0, 1, 2]):
        pac.round(ids), rep.round(ids)
        torch.testing.assert_close(
            pac.params, rep.params, rtol=1e-5, atol=1e-6
        )  # V is rounding noise, not 0
        for k in range(3):
            found, wanted = pac.memory(k).get("combined_heads"), rep.memory(k).get("private")
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("other", ["", " + topk(fraction=0.5, error_feedback=True)", " + scaffold"])
def test_combined_heads_partial_participation_is_equal_in_both_executors(other):
    loop, batched = (
        Simulation("fedpac" + other, mlp(), Clients.random(SIZES), executor=e, **WORK)
        for e in ("loop", "batched")
    )
    for ids in ([0, 1, 3], [1, 2, 3], [0, 2]):
        loop.round(ids), batched.round(ids)
    for k in range(4):
        torch.testing.assert_close(
            batched.memory(k), loop.memory(k), rtol=1e-3, atol=1e-5
        )  # float32
    torch.testing.assert_close(batched.params, loop.params, rtol=1e-3, atol=1e-5)


def test_combined_heads_weights_join_clients_of_same_classes():
    """Clients 0 and 1 have classes 0 and 1, clients 2 and 3 have 1 and 2; 60 samples each."""
    rng = np.random.default_rng(0)
    centres = 2 * rng.normal(size=(3, 4))
    labels = [np.repeat(pair, 30) for pair in ((0, 1), (0, 1), (1, 2), (1, 2))]
    clients = Clients.of(*((centres[y] + rng.normal(size=(60, 4)), y) for y in labels))
    sim = Simulation("fedpac", mlp(), clients, **WORK)
    sim.round()
    letter = sim.round().stacked.messages["combined_heads"]
    alpha = combinations(letter["features.profile"], letter["features.spread"])
    within = alpha[:2, :2].sum(1).min(), alpha[2:, 2:].sum(1).min()
    assert min(within) > 0.95 and 0.2 < alpha[0, 1] < 0.8


def test_combined_heads_wire_lists_heads_and_statistics():
    """mlp 4-5-3: 18 numbers of the head, 15 of centroids or profiles, 3 counts, 1 spread."""
    sim = Simulation("fedpac", mlp(), Clients.random(SIZES), **WORK)
    sim.round([0, 2])
    items = {(i.direction, i.what): i.bytes for i in wire(sim.method, sim.settings.model)}
    assert items == {
        ("down", "parameters"): 4 * 25,
        ("down", "message of feature_alignment"): 4 * 18,
        ("down", "message of combined_heads"): 4 * 18,
        ("up", "update"): 4 * 25,
        ("up", "message of combined_heads"): 4 * (18 + 15 + 1),
        ("up", "message of feature_alignment"): 4 * 18,
        ("up", "counts and loss"): NUMBERS_BYTES,
    }
    assert set(sim.state.part_states["combined_heads"]) == {
        f"{k}/{n}" for k in (0, 2) for n in HEAD
    }
    assert "head.weight" not in sim.run().update


def test_combined_heads_run_is_supported_and_aggregate_is_refused():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 6)).astype(np.float32), rng.integers(0, 4, 60)
    people = [ua.ClientData(train=(x[i::3], y[i::3]), test=(x[i::3], y[i::3])) for i in range(3)]
    for executor in ("loop", "batched"):
        run = ua.run(
            "fedpac",
            people,
            model="mlp(hidden=(8,))",
            rounds=2,
            participation=0.7,
            executor=executor,
        )
        assert run.history.rounds["personal_accuracy"].notna().all()
    from unalike.training.functional import aggregate

    params = {n: w.numpy() for n, w in mlp().state_dict().items()}
    with pytest.raises(ua.UnalikeError, match="only run can do"):
        aggregate("combined_heads", params, [params, params])


@pytest.mark.parametrize("executor", ["loop", "batched", "distributed(workers=2)"])
def test_combined_scores_are_those_of_the_heads_that_the_server_has(tmp_path, executor):
    """Client 3 never took part and has the initial head; training and the shared model are the same as with own heads."""
    rng = np.random.default_rng(0)
    made = [
        ua.ClientData((rng.normal(size=(20, 4)).astype("float32"), rng.integers(0, 3, 20)))
        for _ in range(4)
    ]
    clients = [ua.ClientData(c.train, (c.train[0][:9], c.train[1][:9])) for c in made]
    usual = {
        "rounds": 2,
        "model": "mlp(hidden=(5,))",
        "participation": 0.5,
        "protocol": "personal",
        "progress": False,
    }
    usual |= {"work": ua.Work(lr=0.1, batch_size=5), "executor": executor, "seed": 4}
    own, run = (ua.run(f"fedpac(scored={s!r})", clients, **usual) for s in ("own", "combined"))
    assert all(torch.equal(a, b) for a, b in zip(own.params.values(), run.params.values()))
    [state] = run._runner.state.states.values()
    heads, right = state.part_states["combined_heads"], 0
    trained = {int(n.partition("/")[0]) for n in heads}
    assert len(trained) < 4
    for k, client in enumerate(clients):
        values = {
            n: heads.get(f"{k}/{n}", run.model.params[n]) if n in HEAD else w
            for n, w in state.params.items()
        }
        assert all(torch.equal(run.personal(k)[n], w) for n, w in values.items())
        w = {n: t.double().numpy() for n, t in values.items()}
        first, last = (n.removesuffix(".weight") for n in w if n.endswith("weight"))
        z = np.maximum(np.asarray(client.test[0]) @ w[f"{first}.weight"].T + w[f"{first}.bias"], 0)
        logits = z @ w[f"{last}.weight"].T + w[f"{last}.bias"]
        right += (logits.argmax(1) == np.asarray(client.test[1])).sum()
    assert run.history.last["accuracy"] == pytest.approx(right / 36)
    assert any(
        not torch.equal(run.personal(k)[n], own.personal(k)[n]) for k in trained for n in HEAD
    )
