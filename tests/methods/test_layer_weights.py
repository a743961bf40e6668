"""pFedLA: rounds with networks that are torch modules, the layers that are mixed, and clients whose weights are all 0."""

import torch
from simulation import Clients, Simulation, mlp, same
from torch import nn

from unalike.training.server.server_update import make_broadcast

SIZES = (7, 3, 5)
WORK = {"epochs": 1, "batch_size": None, "lr": 0.5}
LAYERS = (("body.weight", "body.bias"), ("head.weight", "head.bias"))


class Weigher(nn.Module):
    """Three hidden layers, and for each of the clients known and each layer one output."""

    def __init__(self, state, client, known):
        super().__init__()
        network = f"network of {client}/"
        self.vector = nn.Parameter(state[network + "vector"].clone())
        self.hidden = nn.ModuleList()
        for number in range(3):
            weight = state[f"{network}hidden.{number}.weight"]
            layer = nn.Linear(*weight.T.shape).double()
            layer.weight.data.copy_(weight)
            layer.bias.data.copy_(state[f"{network}hidden.{number}.bias"])
            self.hidden.append(layer)
        outputs = [f"outputs of {client} {other}/" for other in known]
        self.weight = nn.Parameter(torch.stack([state[name + "weight"] for name in outputs]))
        self.bias = nn.Parameter(torch.stack([state[name + "bias"] for name in outputs]))

    def forward(self, models):
        f = self.vector
        for layer in self.hidden:
            f = layer(f).relu()
        mixed = {}
        for place, names in enumerate(LAYERS):
            scores = [(w[place] @ f + b[place]).relu() for w, b in zip(self.weight, self.bias)]
            for name in names:
                sums = sum(score * model[name] for score, model in zip(scores, models))
                mixed[name] = sums / sum(scores)
        return mixed


def trained(model, params, x, y):
    """The parameters after one full-batch step of local training."""
    module = model.module(params, {})
    nn.functional.cross_entropy(module(x), y).backward()
    return {n: (p - 0.5 * p.grad).detach() for n, p in module.named_parameters()}


def test_pfedla_rounds_equal_torch_sgd_on_the_networks_of_the_clients():
    """Each network descends -<w_k, w~_k - w_k>. Client 1 sits a round out, and what it sent before is mixed all the same."""
    clients = Clients.random(SIZES, dtype=torch.float64)
    sim = Simulation("pfedla(lr=0.3, size=2, width=4)", mlp().double(), clients, **WORK)
    # after the first round the server has models of all, after the second one the outputs of all pairs
    sim.round()
    sim.round()
    known = [0, 1, 2]
    for ids in (known, [0, 2], known):
        before = sim.state.part_states["layer_weights"]
        models = [{n: before[f"{k}/{n}"] for n in sim.params} for k in known]
        sim.round(ids)
        found = sim.state.part_states["layer_weights"]
        for k in ids:
            network = Weigher(before, k, known)
            received = network(models)
            start = {n: w.detach() for n, w in received.items()}
            rows = clients.train[k]
            after = trained(sim.settings.model, start, clients.x[rows], clients.y[rows])
            loss = -sum((w * (after[n] - start[n])).sum() for n, w in received.items())
            optimizer = torch.optim.SGD(network.parameters(), lr=0.3)
            loss.backward()
            optimizer.step()
            moved = Weigher(found, k, known)
            for (name, wanted), given in zip(network.named_parameters(), moved.parameters()):
                torch.testing.assert_close(given, wanted, msg=f"{name} of client {k}")
            assert not torch.equal(moved.weight, Weigher(before, k, known).weight)
            for name, wanted in after.items():
                torch.testing.assert_close(found[f"{k}/{name}"], wanted)
                torch.testing.assert_close(sim.memory(k)["private"][name], wanted)


def test_pfedla_sends_the_client_its_own_layer_where_all_weights_are_0():
    sim = Simulation("pfedla", mlp(), Clients.random(SIZES), **WORK)
    sim.round()
    sim.round()
    state = sim.state.part_states["layer_weights"]
    # without weight in the second layer alone
    for other in range(3):
        state[f"outputs of 1 {other}/weight"][1] = 0
    order = make_broadcast(sim.method, sim.settings, sim.state, 3, [1])
    message = order.to(1).messages["layer_weights"]
    assert torch.equal(message["head.weight"], state["1/head.weight"])
    assert not torch.equal(message["body.weight"], state["1/body.weight"])


def test_pfedla_of_one_client_is_local_training():
    both = {}
    for method in ("pfedla", "local_only"):
        sim = Simulation(method, mlp(), Clients.random((7,)), **WORK)
        sim.round()
        sim.round()
        both[method] = sim.memory(0)["private"]
    torch.testing.assert_close(both["pfedla"], both["local_only"])
    assert not same(both["pfedla"], dict(mlp().named_parameters()))
