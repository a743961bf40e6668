"""FedGH: the head's training by hand, what is sent, what it is without its training, what it is for."""

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, mlp, same

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.training.server.server_update import make_broadcast
from unalike.training.server.updates import decode_updates
from unalike.training.wire import NUMBERS_BYTES, wire

SIZES = (7, 3, 1, 5)
WORK = {"epochs": 2, "batch_size": 4, "lr": 0.1}


def softmax(v):
    e = np.exp(v - v.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_fedgh_three_rounds_equal_numpy():
    """Three rounds in float64 on a linear body and head with full batches, written from the equations; client 1 sits one out.

    One batch holds all pairs, so that their order does not matter.
    """
    rate, lr, rng = 0.5, 0.1, np.random.default_rng(0)
    data = [(rng.normal(size=(n, 4)), rng.integers(0, 3, n)) for n in (4, 6, 5)]
    sim = Simulation(
        f"fedgh(lr={rate}, epochs=2, batch_size=100)",
        mlp().double(),
        Clients.of(*data, dtype=torch.float64),
        epochs=1,
        batch_size=None,
        lr=lr,
    )
    start = {n: w.numpy().copy() for n, w in sim.params.items()}
    bodies = [{n: start[n] for n in ("body.weight", "body.bias")} for _ in data]
    head = {n: start[n] for n in ("head.weight", "head.bias")}
    for ids in ([0, 1, 2], [0, 2], [0, 1, 2]):
        sim.round(ids)
        z, y = [], []
        for k in ids:
            x, labels = data[k]
            b = bodies[k]
            h = np.tanh(x @ b["body.weight"].T + b["body.bias"])
            d = (softmax(h @ head["head.weight"].T + head["head.bias"]) - np.eye(3)[labels]) / len(
                x
            )
            back = (d @ head["head.weight"]) * (1 - h**2)
            bodies[k] = {
                "body.weight": b["body.weight"] - lr * back.T @ x,
                "body.bias": b["body.bias"] - lr * back.sum(0),
            }
            h = np.tanh(x @ bodies[k]["body.weight"].T + bodies[k]["body.bias"])
            for c in np.unique(labels):
                z.append(h[labels == c].mean(0))
                y.append(c)
        z, y = np.array(z), np.array(y)
        for _ in range(2):
            d = (softmax(z @ head["head.weight"].T + head["head.bias"]) - np.eye(3)[y]) / len(y)
            head = {
                "head.weight": head["head.weight"] - rate * d.T @ z,
                "head.bias": head["head.bias"] - rate * d.sum(0),
            }
        for n, w in head.items():
            np.testing.assert_allclose(sim.params[n].numpy(), w, rtol=1e-9)
        for k in range(3):
            for n, w in bodies[k].items():
                np.testing.assert_allclose(
                    sim.memory(k).get("private", sim.params)[n].numpy(), w, rtol=1e-9
                )


def test_fedgh_head_is_received_and_not_sent():
    sim = Simulation("fedgh", mlp(norm=True), Clients.random(SIZES), **WORK)
    cohort = sim.round()
    assert {n: tuple(t.shape) for n, t in cohort.update.items()} == {
        "head.weight:nothing": (4, 0),
        "head.bias:nothing": (4, 0),
    }
    present = cohort.stacked.messages["taught_head"]["class.present"]
    for k, rows in enumerate(sim.clients.train):
        assert present[k].tolist() == [int(c in sim.clients.y[rows]) for c in range(3)]
    items = {(i.direction, i.what): i.bytes for i in wire(sim.method, sim.settings.model)}
    assert items == {
        ("down", "parameters"): 4 * (15 + 3),  # the head's
        ("up", "message of taught_head"): 4 * 15 + 3,
        ("up", "counts and loss"): NUMBERS_BYTES,
    }
    personal = sim.method.personalizer.personal(
        sim.settings.model, sim.params, sim.memory(0)["private"]
    )
    assert torch.equal(personal["head.weight"], sim.params["head.weight"])
    assert not torch.equal(personal["body.weight"], sim.params["body.weight"])


@pytest.mark.parametrize("settings", ["epochs=0", "lr=0"])
def test_fedgh_without_training_leaves_head_unchanged(settings):
    sim = Simulation(f"fedgh({settings})", mlp(), Clients.random(SIZES), **WORK)
    head = {n: w for n, w in sim.params.items() if n.startswith("head")}
    sim.round(), sim.round()
    assert same({n: sim.params[n] for n in head}, head)


def test_taught_head_with_upload_parts_sends_body_update_only():
    for other in ("clip(norm=0.1)", "topk(fraction=0.5, error_feedback=True)", "quantize"):
        sim = Simulation("taught_head + " + other, mlp(), Clients.random(SIZES), **WORK)
        update = decode_updates(sim.method, sim.round().update, sim.state)
        assert {n: u.shape[1:] for n, u in update.items()} == {
            n: w.shape for n, w in sim.params.items()
        }
        assert not update["head.weight"].any() and update["body.weight"].any()


def test_taught_head_shared_bodies_equal_fedavg_after_first_round():
    """Local training and the mean of bodies are FedAvg's in the first round; the head alone goes another way."""
    sim, plain = (
        Simulation(m, mlp(), Clients.random(SIZES), **WORK) for m in ("taught_head", "fedavg")
    )
    sim.round(), plain.round()
    for n in plain.params:
        assert torch.equal(sim.params[n], plain.params[n]) == n.startswith("body")


def test_fedgh_server_training_lowers_loss_on_class_means():
    rng = np.random.default_rng(0)
    centres, labels = 2 * rng.normal(size=(3, 4)), [rng.integers(0, 3, n) for n in (30, 20, 25)]
    clients = Clients.of(*((centres[y] + rng.normal(size=(len(y), 4)), y) for y in labels))
    sim = Simulation("fedgh(lr=0.5, epochs=20, batch_size=4)", mlp(), clients, **WORK)
    letter = sim.run().stacked.messages["taught_head"]
    who, y = letter["class.present"].nonzero().unbind(1)

    def loss():
        logits = sim.settings.model.head(sim.params, letter["class.means"][who, y])
        return torch.nn.functional.cross_entropy(logits, y).item()

    before = loss()
    sim.round()
    assert loss() < 0.6 * before


def test_taught_head_private_heads_change_nothing_and_regression_is_refused():
    sim = Simulation("taught_head + private(select='head')", mlp(), Clients.random(SIZES), **WORK)
    plain = Simulation("private(select='head')", mlp(), Clients.random(SIZES), **WORK)
    for _ in range(2):
        sim.round(), plain.round()
    torch.testing.assert_close(sim.params, plain.params, rtol=0, atol=0)
    rng = np.random.default_rng(0)
    clients = Clients.of((rng.normal(size=(4, 4)), rng.normal(size=4).astype(np.float32)))
    with pytest.raises(UnalikeError, match="needs classes"):
        Simulation("fedgh", mlp(classes=1), clients, task="regression", **WORK).round()


def test_fedgh_same_run_twice_is_bitwise_equal():
    """The same run twice is the same to the bit; the passes of two rounds have other orders."""
    a, b = (
        Simulation("fedgh(batch_size=1)", mlp(), Clients.random(SIZES), **WORK) for _ in range(2)
    )
    for sim in (a, b):
        sim.round(), sim.round()
    assert same(a.params, b.params)
    order = make_broadcast(a.method, a.settings, a.state, 4)
    assert order.messages == {} and tree.nbytes(a.state.part_states.get("taught_head", {})) == 0
