"""One network in every usual spelling of `forward` is one chain of layers."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unalike as ua
from unalike.engine.compiled.layer_chain import LayerChain, layer_chain


class Network(nn.Module):
    """Two convolutions with pooling and two linear layers, as people write them; subclasses differ in `forward` alone."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 3, 3, padding=1)
        self.fc, self.head = nn.Linear(12, 5), nn.Linear(5, 3)
        self.pool, self.act, self.drop = nn.MaxPool2d(2), nn.ReLU(inplace=True), nn.Dropout(0.0)


def network(forward):
    return type("Spelled", (Network,), {"forward": forward})()


def functional(net, x):
    x = F.max_pool2d(F.relu(net.conv1(x)), 2)
    x = F.max_pool2d(F.relu(net.conv2(x)), kernel_size=2, stride=2)
    return net.head(F.relu(net.fc(torch.flatten(x, 1))))


def of_torch(net, x):
    x = torch.max_pool2d(torch.relu(net.conv1(x)), 2)
    x = torch.max_pool2d(torch.relu_(net.conv2(x)), (2, 2))
    return net.head(torch.relu(net.fc(torch.flatten(x, start_dim=1))))


def modules(net, x):
    x = net.act(net.pool(net.conv1(x)))
    x = net.act(net.pool(net.conv2(x)))
    return net.head(net.drop(net.act(net.fc(nn.Flatten()(x)))))


def methods(net, x):
    x = net.pool(net.conv1(x).relu())
    x = net.pool(net.conv2(x).relu_())
    return net.head(net.fc(x.flatten(1)).relu())


def viewed(net, x, view):
    x = net.pool(F.relu(net.conv1(x), inplace=True))
    x = net.pool(F.relu_(net.conv2(x)))
    return net.head(F.dropout(F.relu(net.fc(view(x))), 0.0, training=net.training))


SPELLINGS = {
    "functional": functional,
    "functions of torch": of_torch,
    "modules": modules,
    "methods": methods,
    "view, size": lambda net, x: viewed(net, x, lambda h: h.view(h.size(0), -1)),
    "view, shape": lambda net, x: viewed(net, x, lambda h: h.view(h.shape[0], -1)),
    "view, size of the input": lambda net, x: viewed(net, x, lambda h: h.view(x.size()[0], -1)),
    "view, features": lambda net, x: viewed(net, x, lambda h: h.view(-1, 12)),
    "view, both": lambda net, x: viewed(net, x, lambda h: h.view(h.size(0), 12)),
    "reshape": lambda net, x: viewed(net, x, lambda h: h.reshape(h.shape[0], -1)),
    "reshape, tuple": lambda net, x: viewed(net, x, lambda h: h.reshape((-1, 12))),
    "torch.reshape": lambda net, x: viewed(net, x, lambda h: torch.reshape(h, (h.shape[0], -1))),
}
PLAIN = network(functional)


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_the_same_chain(name):
    found = layer_chain(network(SPELLINGS[name]))
    assert isinstance(found, LayerChain) and found == layer_chain(PLAIN)
    assert found.takes(torch.zeros(2, 1, 10, 10)) and not found.takes(torch.zeros(2, 1, 14, 14))


OTHERS = {
    "a sum of branches": (
        lambda net, x: functional(net, x) + functional(net, x),
        "takes more than",
    ),
    "a feature map at the end": (lambda net, x: net.pool(net.conv1(x)), "not linear"),
    "dropout": (lambda net, x: viewed(net, x, lambda h: F.dropout(h).flatten(1)), "Dropout(p=0.5"),
    "samples that a view mixes": (lambda net, x: viewed(net, x, lambda h: h.view(12, -1)), "view"),
    "another view": (lambda net, x: viewed(net, x, lambda h: h.view(h.size(0), 3, 4)), "view"),
    "a whole batch flattened": (
        lambda net, x: viewed(net, x, torch.flatten),
        "Flatten(start_dim=0",
    ),
    "control flow": (lambda net, x: functional(net, x if x.sum() > 0 else -x), "cannot be traced"),
    "scaled": (lambda net, x: functional(net, 2 * x), "mul"),
    "an output before the last layer": (
        lambda net, x: (h := net.conv1(x), net.conv2(h))[0],
        "last operation",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_forms_are_none_and_the_reason_names_the_operation(name):
    forward, reason = OTHERS[name]
    found = layer_chain(network(forward))
    assert isinstance(found, str) and reason in found


@pytest.mark.parametrize("name", ["functional", "view, features"])
def test_spelled_network_trains_in_compiled_loops_as_torch_trains_it(name):
    pytest.importorskip("numba")
    torch.manual_seed(0)
    net = network(SPELLINGS[name])
    clients = [ua.ClientData((torch.randn(n, 1, 10, 10), torch.arange(n) % 3)) for n in (7, 4)]
    work = ua.Work(batch_size=3, lr=0.05)
    runs = [
        ua.run(
            "fedavg",
            clients,
            model=net,
            rounds=2,
            work=work,
            executor=e,
            protocol="server",
            test=clients[0].train,
        )
        for e in ("loop", "auto")
    ]
    loop, batched = (run.module().state_dict() for run in runs)
    assert runs[1].executor == "batched: compiled loops train the model"
    for key, value in loop.items():
        assert torch.allclose(batched[key], value, atol=1e-6), key
