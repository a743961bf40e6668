"""FedAS and FedAH: the alignment and the weights with torch modules, and what they are without their steps."""

from collections import OrderedDict

import torch
from simulation import Clients, Simulation, mlp, same
from torch import nn

from unalike.methods.method import Method
from unalike.methods.parts.aligned_start import FISHER, FisherMean
from unalike.methods.parts.client_privacy import ClientDP
from unalike.methods.parts.combined_heads import SPREAD, CombinedHeads
from unalike.methods.parts.federated_features import PRESENT, FederatedFeatures

SIZES = (7, 3, 5)
WORK = {"epochs": 1, "batch_size": None, "lr": 0.5}


def test_messages_outside_of_their_domain_are_refused():
    """Squares below 0, flags other than 0 and 1: each turned what the server makes of all clients around."""
    domains = [
        (FisherMean(), FISHER, 0.0, -1.0),
        (CombinedHeads(), SPREAD, 0.0, -1.0),
        (FederatedFeatures(), PRESENT, 1.0, -6.0),
        (ClientDP(noise_multiplier=1.0, quantile=0.5), "below", -0.5, -14.0),
    ]
    for part, name, possible, impossible in domains:
        assert part.why_impossible({name: torch.tensor(impossible)}, 5), name
        assert not part.why_impossible({name: torch.tensor(possible)}, 5), name


def body_of(module, x):
    return torch.tanh(module.body(x))


def trace(module, x, y):
    """The mean squared length of the gradient of one sample's loss in the body's parameters."""
    squares = []
    for row in range(len(y)):
        loss = nn.functional.cross_entropy(module(x[row : row + 1]), y[row : row + 1])
        for g in torch.autograd.grad(loss, [*module.body.parameters()]):
            squares.append(g.square().sum())
    return sum(squares) / len(y)


def test_fedas_two_rounds_equal_torch_alignment_and_fisher_weights():
    """Full batches; in the first round the body starts as it was received."""
    clients = Clients.random(SIZES, dtype=torch.float64)
    sim = Simulation("fedas(lr=0.3, epochs=2)", mlp().double(), clients, **WORK)
    model = sim.settings.model
    start = {n: w.clone() for n, w in sim.params.items()}
    body = {n: start[n] for n in ("body.weight", "body.bias")}
    own = [start] * 3
    for round in range(2):
        sim.round()
        traces, bodies = [], []
        for k, rows in enumerate(clients.train):
            x, y = clients.x[rows], clients.y[rows]
            previous = model.module(own[k], {})
            module = model.module(own[k] | body, {})
            aligner = torch.optim.SGD(module.body.parameters(), lr=0.3)
            for _ in range(2 * round):
                z = body_of(module, x)
                loss = 0.0
                for c in y.unique():
                    center = body_of(previous, x)[y == c].mean(0).detach()
                    loss = loss + nn.functional.mse_loss(z[y == c], center.expand_as(z[y == c]))
                aligner.zero_grad()
                loss.backward()
                aligner.step()
            module.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            torch.optim.SGD(module.parameters(), lr=0.5).step()
            own[k] = {n: w.detach() for n, w in module.named_parameters()}
            traces.append(trace(module, x, y))
            bodies.append({n: own[k][n] for n in body})
        shares = torch.stack(traces) / sum(traces)
        for n in body:
            body[n] = torch.tensordot(shares, torch.stack([b[n] for b in bodies]), 1)
            torch.testing.assert_close(sim.params[n], body[n])
        for k in range(3):
            torch.testing.assert_close(
                sim.method.personalizer.personal(model, sim.params, sim.memory(k)["aligned_start"]),
                own[k],
            )


def test_fedas_without_alignment_trains_as_fedper():
    aligned, plain = (
        Simulation(m, mlp(), Clients.random(SIZES), **WORK)
        for m in ("aligned_start(epochs=0)", "fedper")
    )
    for sim in (aligned, plain):
        sim.round(), sim.round()
    assert same(aligned.params, plain.params)


def test_fedah_without_learned_weights_is_head_first():
    """Weights that stay 1 start from the shared head."""
    fedah, plain = (
        Simulation(m, mlp(), Clients.random(SIZES), **WORK)
        for m in ("fedah(eta=1e-30, epochs=2)", "head_first(epochs=2)")
    )
    for sim in (fedah, plain):
        sim.round(), sim.round(), sim.round()
    assert same(fedah.params, plain.params)


def test_flop_is_fedper():
    assert Method.parse("flop") == Method.parse("fedper")


def test_fedas_of_a_model_without_a_body_is_local_training():
    clients = Clients.random(SIZES)
    head = OrderedDict(head=nn.Linear(clients.x.shape[1], 3))
    found = Simulation("fedas", nn.Sequential(head), clients, **WORK)
    local = Simulation("local_only", nn.Sequential(head), clients, **WORK)
    for sim in (found, local):
        sim.round()
    assert same(found.params, local.params)
    assert not same(found.memory(0)["aligned_start"]["head.weight"], found.params["head.weight"])
