"""FedLAMA: the intervals by hand, four rounds against numpy, who holds which layer, what is sent."""

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, mlp, same
from torch import nn

import unalike as ua
from unalike.core import tree
from unalike.methods.parts.layer_intervals import LayerIntervals
from unalike.training.server.server_update import make_broadcast

SIZES = (7, 3, 1, 5)
WORK = {"epochs": 2, "batch_size": 4, "lr": 0.1}


def test_fedlama_phi_one_equals_fedavg():
    a, b = (
        Simulation(m, mlp(norm=True), Clients.random(SIZES), **WORK)
        for m in ("fedlama(phi=1)", "fedavg")
    )
    for ids in ([0, 1, 2, 3], [1, 3], [0, 1, 2]):
        a.round(ids), b.round(ids)
    assert same(a.params, b.params)


def test_layer_intervals_known_discrepancies_equal_hand_numbers():
    """d = (3, 1, 2), sizes (1, 4, 5): sorted 1, 2, 3 with sizes 4, 5, 1; d dim = 4, 10, 3 of 17.

    delta = 4/17, 14/17, 1 and 1 - lambda = 6/10, 1/10, 0: the second is the first above, and still has the long interval.
    """
    found = LayerIntervals(phi=3).intervals(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1, 4, 5]))
    assert found.tolist() == [1, 3, 3]
    # equal discrepancies and sizes: 1/4, 2/4, 3/4 against 3/4, 2/4, 1/4
    found = LayerIntervals(phi=4).intervals(torch.ones(4), torch.tensor([7, 7, 7, 7]))
    assert found.tolist() == [4, 4, 4, 1]


def two_layers(a, b):
    """y = b (a x) with scalars a and b."""
    module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    with torch.no_grad():
        for layer, value in zip(module, (a, b)):
            layer.weight.fill_(value)
            layer.bias.zero_()
    return module.double()


def test_fedlama_eight_rounds_equal_numpy():
    """Eight rounds of full-batch steps on y = b2 + w2 (b1 + w1 x) in float64, written from the paper; phi = 3, all take part."""
    phi, lr, rng = 3, 0.05, np.random.default_rng(2)
    data = [(rng.normal(size=(n, 1)), rng.normal(size=n) + k) for k, n in enumerate((4, 6, 5))]
    sim = Simulation(
        f"fedlama(phi={phi})",
        two_layers(0.5, -0.7),
        Clients.of(*data, dtype=torch.float64),
        task="regression",
        epochs=1,
        batch_size=None,
        lr=lr,
    )
    names = (("0.weight", "0.bias"), ("1.weight", "1.bias"))
    shares = np.array([4, 6, 5]) / 15
    server = np.array([[0.5, 0.0], [-0.7, 0.0]])  # layer, then weight and bias
    server = np.array([[sim.params[n].item() for n in layer] for layer in names])
    clients, interval, d, seen = np.stack([server] * 3), np.array([1, 1]), np.zeros(2), set()
    for number in range(1, 9):
        for k, (x, y) in enumerate(data):
            (w1, b1), (w2, b2) = clients[k]
            z = b1 + w1 * x[:, 0]
            e = 2 * (b2 + w2 * z - y) / len(y)
            clients[k] -= lr * np.array(
                [[(e * w2 * x[:, 0]).sum(), (e * w2).sum()], [(e * z).sum(), e.sum()]]
            )
        for layer in range(2):
            if number % interval[layer] == 0:
                mean = clients[:, layer].mean(0)
                d[layer] = ((clients[:, layer] - mean) ** 2).sum() / 3 / (interval[layer] * 2)
                server[layer] = shares @ clients[:, layer]
                clients[:, layer] = server[layer]
        if number % phi == 0:
            order = np.argsort(d)
            interval = np.array([1, 1])
            delta, cost = d[order].cumsum() / d.sum(), np.array([0.5, 1.0])
            for place, layer in enumerate(order):
                interval[layer] = phi
                if delta[place] > 1 - cost[place]:
                    break
        sim.round()
        assert sim.state.part_states["layer_intervals"]["interval"].tolist() == interval.tolist()
        seen.add(tuple(interval))
        for layer in range(2):
            found = [sim.params[n].item() for n in names[layer]]
            np.testing.assert_allclose(found, server[layer], rtol=1e-6)  # targets are float32
    assert seen > {(1, 1)} and len(seen) > 1  # some layer did wait


class Waiting:
    """A simulation whose first layer waits for phi = 2 rounds from the third round on."""

    def __new__(cls, executor="loop", method="fedlama", **options):
        sim = Simulation(method, mlp(), Clients.random(SIZES), executor=executor, **WORK, **options)
        sim.round(), sim.round()
        memory = sim.state.part_states["layer_intervals"] | {"interval": torch.tensor([2, 1])}
        sim.state = sim.state._replace(
            part_states=sim.state.part_states | {"layer_intervals": memory}
        )
        return sim


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_fedlama_withheld_layer_stays_on_client_and_costs_nothing(executor):
    sim = Waiting(executor)
    before = sim.params
    cohort = sim.round([0, 1, 3])
    assert {n: tuple(u.shape[1:]) for n, u in cohort.update.items()} == {
        "body.weight:nothing": (0,),
        "body.bias:nothing": (0,),
        "head.weight": (3, 5),
        "head.bias": (3,),
    }
    assert all(torch.equal(sim.params[n], before[n]) == n.startswith("body") for n in before)
    own = sim.memory(0)["layer_intervals"]["body.weight"]
    assert not torch.equal(own, before["body.weight"])
    # client 2 takes part for the first time since, the others go on from their own; then everybody is in step
    first = sim.run()
    assert set(first.update) == set(before)
    sim.round()
    sizes = torch.tensor(SIZES, dtype=torch.float32)
    mean = sum(
        s / sizes.sum() * sim.memory(k)["layer_intervals"]["body.weight"]
        for k, s in enumerate(sizes)
    )
    torch.testing.assert_close(sim.params["body.weight"], mean)


def test_fedlama_client_that_missed_synchronization_takes_shared_layer():
    """One round with learning switched off shows where each client starts."""
    sim = Waiting()
    sim.round([0, 1])  # the body waits
    sim.round([1, 3])  # it is synchronized without client 0
    [part] = [p for p in sim.method.parts if p.name == "layer_intervals"]
    order = make_broadcast(sim.method, sim.settings, sim.state, 4)
    assert order.messages[part.name]["since"].tolist() == [4, 4]
    for client in range(4):
        from unalike.core.views import ClientBatches
        from unalike.training.client.client_task import ClientTask

        data, one = ClientBatches(()), torch.ones(())
        task = ClientTask(sim.method, sim.settings, order, sim.memory(client), data, {}, one)
        assert same(task.begin().start, sim.params)


def test_fedlama_withheld_layers_are_equal_in_both_executors():
    loop, batched = Waiting("loop"), Waiting("batched")
    for ids in ([0, 1, 3], [1, 2, 3], [0, 2]):
        loop.round(ids), batched.round(ids)
    for n, w in loop.params.items():
        torch.testing.assert_close(
            batched.params[n], w, rtol=1e-4, atol=1e-6
        )  # float32 sums in another order


@pytest.mark.parametrize(
    "other", ["topk(fraction=0.5, error_feedback=True)", "quantize", "fedavgm", "scaffold", "fedgh"]
)
def test_fedlama_combines_with_other_methods(other):
    sim = Waiting(method="fedlama + " + other)
    for ids in ([0, 1, 3], [1, 2, 3]):
        sim.round(ids)
    assert all(w.isfinite().all() for w in sim.params.values())


def test_fedlama_history_counts_bytes_of_sent_layers(tmp_path):
    """mlp 6-8-4: layers of 56 and 36 parameters. The first phi rounds send everything, then some layer waits."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 6)).astype(np.float32), rng.integers(0, 4, 60)
    people = [ua.ClientData(train=(x[i::3], y[i::3]), test=(x[i::3], y[i::3])) for i in range(3)]
    run = ua.run(
        "fedlama(phi=3)",
        people,
        model="mlp(hidden=(8,))",
        rounds=6,
        work=ua.Work(batch_size=5, lr=0.1),
    )
    up = run.history.rounds["bytes_up"].tolist()
    assert up[1:4] == [3 * (4 * 92 + 16)] * 3 and up[6] == up[3]
    assert up[4] == up[5] and up[4] in (3 * (4 * 36 + 16), 3 * (4 * 56 + 16), 3 * 16)
    assert tree.nbytes(run.params) == 4 * 92


@pytest.mark.parametrize(
    "more",
    [
        "fedavgm",
        "fedadam",
        "feddyn",
        "feddc",
        "gaussian_noise",
        "awd(lam=0.5)",
        "fixed_shrink(step=0.2)",
    ],
)
def test_fedlama_withheld_layer_is_not_changed_by_server_parts(more):
    """Rounds 1 to 3 synchronize all layers, those of interval 3 the next time in round 6."""
    sim = Simulation(f"fedlama(phi=3) + {more}", mlp(), Clients.random(SIZES), **WORK)
    for _ in range(3):
        sim.round()
    layers = tree.layers(sim.params)
    late = sim.state.part_states["layer_intervals"]["interval"] == 3
    assert late.any()
    for number in (4, 5, 6):
        before = sim.params
        sim.round()
        for names, some in zip(layers, late.tolist(), strict=True):
            for n in names:
                assert torch.equal(sim.params[n], before[n]) == (some and number < 6), n


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_fedlama_and_feddyn_server_memory_stays_the_mean_of_the_clients(executor):
    """h = sum_k h_k / N, whoever takes part, and whether the first layer is sent (rounds 4 and 6) or waits (3 and 5)."""
    sim = Waiting(executor, "fedlama + feddyn")
    for ids in ([0, 1, 3], [1, 2, 3], [0, 2], [0, 1, 2, 3]):
        sim.round(ids)
        own = [sim.memory(k)["dynamic_regularizer"] for k in range(len(SIZES))]
        for n, h in sim.state.part_states["dynamic_regularizer"].items():
            assert h.any()
            torch.testing.assert_close(
                h, sum(m[n] for m in own) / len(own), rtol=1e-4, atol=1e-7
            )  # float32 sums


def test_fedlama_withheld_layers_keep_error_feedback():
    """A round in which a layer is not sent leaves the errors of its compression as they were."""
    sim = Simulation(
        "fedlama(phi=3) + topk(fraction=0.3, error_feedback=True)",
        mlp(),
        Clients.random(SIZES),
        **WORK,
    )
    for _ in range(3):
        sim.round()
    late = sim.state.part_states["layer_intervals"]["interval"] == 3
    assert late.any()
    for _ in range(2):
        before = sim.memory(0)["topk"]
        sim.round()
        for names, waits in zip(tree.layers(sim.params), late.tolist(), strict=True):
            assert all(torch.equal(sim.memory(0)["topk"][n], before[n]) == waits for n in names)
