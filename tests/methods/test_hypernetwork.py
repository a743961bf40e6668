"""pFedHN: three rounds with a hypernetwork that is a torch module, what is sent and scored, and the first step of its biases."""

import torch
from simulation import Clients, Simulation, mlp, same
from torch import nn

from unalike.training.server.server_update import make_broadcast

SIZES = (7, 3, 5)
WORK = {"epochs": 1, "batch_size": None, "lr": 0.5}


def trained(model, params, x, y):
    """The parameters after one full-batch step of local training."""
    module = model.module(params, {})
    nn.functional.cross_entropy(module(x), y).backward()
    return {n: (p - 0.5 * p.grad).detach() for n, p in module.named_parameters()}


def test_pfedhn_three_rounds_equal_torch_sgd_on_hypernetwork():
    """Client 1 sits the second round out. The gradient that SGD descends is -<h(e_k), theta~_k - theta_k> of all clients."""
    clients = Clients.random(SIZES, dtype=torch.float64)
    spec = "pfedhn(lr=0.2, size=2, width=6, layers=2)"
    sim = Simulation(spec, mlp().double(), clients, **WORK)
    state = sim.state.part_states["hypernetwork"]
    hidden = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU()).double()
    for place, layer in enumerate(hidden[::2]):
        layer.weight.data.copy_(state[f"hidden.{place}.weight"])
        layer.bias.data.copy_(state[f"hidden.{place}.bias"])
    makers = {n: nn.Linear(6, w.numel()).double() for n, w in sim.params.items()}
    for n, maker in makers.items():
        maker.weight.data.zero_()
        maker.bias.data.copy_(sim.params[n].flatten())
    vectors = None
    for ids in ([0, 1, 2], [0, 2], [0, 1, 2]):
        sim.round(ids)
        found = sim.state.part_states["hypernetwork"]
        if vectors is None:
            # W is 0 in the first round: vectors get no gradient, and stay as they were drawn
            drawn = torch.stack([found[f"vector of {k}"] for k in range(3)])
            vectors = nn.Parameter(drawn.clone())
        optimizer = torch.optim.SGD([vectors, *hidden.parameters()], lr=0.2)
        for maker in makers.values():
            optimizer.add_param_group({"params": [*maker.parameters()]})
        loss = 0.0
        for k in ids:
            features = hidden(vectors[k])
            made = {n: m(features).view(sim.params[n].shape) for n, m in makers.items()}
            theta = {n: w.detach() for n, w in made.items()}
            rows = clients.train[k]
            after = trained(sim.settings.model, theta, clients.x[rows], clients.y[rows])
            loss = loss - sum((w * (after[n] - theta[n])).sum() for n, w in made.items())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for k in range(3):
            torch.testing.assert_close(found[f"vector of {k}"], vectors[k].detach())
        for n, maker in makers.items():
            weight = found[f"weight of {n}"].flatten(0, -2)
            torch.testing.assert_close(weight, maker.weight.detach())
            torch.testing.assert_close(found[f"bias of {n}"].flatten(), maker.bias.detach())
    assert not torch.equal(vectors.detach(), drawn)


def test_pfedhn_clients_are_scored_with_what_they_would_receive():
    sim = Simulation("pfedhn(width=4)", mlp(), Clients.random(SIZES), **WORK)
    start = sim.params
    cohort = sim.round()
    sim.round()
    assert cohort.update == {} and same(sim.params, start)
    order = make_broadcast(sim.method, sim.settings, sim.state, 3, [0, 1])
    first, second = (order.to(k).messages["hypernetwork"] for k in (0, 1))
    assert not torch.equal(first["head.weight"], second["head.weight"])
    personal = sim.method.personalizer.personal(sim.settings.model, sim.params, second)
    assert same(personal, second)


def test_pfedhn_biases_move_in_first_round_as_uniform_mean():
    sim = Simulation("pfedhn(lr=0.1)", mlp(), Clients.random(SIZES), **WORK)
    mean = Simulation("uniform", mlp(), Clients.random(SIZES), **WORK)
    start = mean.params
    sim.round(), mean.round()
    for n, w in mean.params.items():
        moved = sim.state.part_states["hypernetwork"][f"bias of {n}"] - start[n]
        torch.testing.assert_close(moved, 3 * 0.1 * (w - start[n]), rtol=1e-4, atol=1e-6)
