"""Each recipe of the cookbook, taken from the page as it stands, does what plain PyTorch does.

The plain versions are written from the equations. Three clients of 7, 3 and 8 samples make two full-batch steps in each of three
rounds, so that no order of batches matters; the second client lacks a class.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unalike as ua
from unalike.methods.part import registry
from unalike.runtime.results.finished_run import Run

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "cookbook.md"
SIZES = (7, 3, 8)
SHARES = [n / sum(SIZES) for n in SIZES]
CLASSES, FEATURES = 3, 5
LR, STEPS, ROUNDS = 0.3, 2, 3
EXECUTORS = ("loop", "batched")
Params = list[Tensor]


@pytest.fixture(scope="module")
def page() -> Iterator[ModuleType]:
    """The names that the page defines; its parts are registered for the time of this file."""
    with pytest.MonkeyPatch.context() as patch:
        list(registry)  # loads the names of the library
        patch.setattr(registry, "_builders", dict(registry._builders))
        module = ModuleType("page_cookbook")
        patch.setitem(sys.modules, module.__name__, module)
        for text in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.S | re.M):
            exec(compile(text, PAGE.name, "exec"), vars(module))
        yield module


# ---- the task ----


def new_samples() -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)
    data = []
    for k, n in enumerate(SIZES):
        y = torch.arange(n) % (2 if k == 1 else CLASSES)
        data.append((torch.randn(n, 4, generator=g) + y[:, None] - k, y))
    return data


SAMPLES = new_samples()
X = torch.cat([x for x, _ in SAMPLES])


def new_net() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, FEATURES), nn.Tanh(), nn.Linear(FEATURES, CLASSES))


def trained(method: Any, executor: str) -> Run:
    clients = [ua.ClientData(train=data, test=data) for data in SAMPLES]
    work = ua.Work(lr=LR, batch_size=None, steps=STEPS)
    return ua.run(
        method,
        clients,
        model=new_net(),
        rounds=ROUNDS,
        work=work,
        executor=executor,
        progress=False,
    )


# ---- plain PyTorch ----


def values_of(net: nn.Module) -> Params:
    return [p.detach().clone() for p in net.parameters()]


def set_values(net: nn.Module, values: Params) -> None:
    with torch.no_grad():
        for p, value in zip(net.parameters(), values, strict=True):
            p.copy_(value)


def gradient(net: nn.Module, loss: Tensor) -> Params:
    return list(torch.autograd.grad(loss, list(net.parameters())))


def descend(net: nn.Module, direction: Params) -> None:
    set_values(net, [p - LR * d for p, d in zip(values_of(net), direction)])


def train(net: nn.Module, loss: Callable[[], Tensor]) -> None:
    for _ in range(STEPS):
        descend(net, gradient(net, loss()))


def mean(models: list[Params], weights: list[float]) -> Params:
    return [sum(w * t for w, t in zip(weights, tensors)) for tensors in zip(*models)]


def fedavg(loss_of: Callable[[nn.Module, int], Tensor]) -> nn.Module:
    """FedAvg of clients with this loss of the model and the client."""
    net = new_net()
    for _ in range(ROUNDS):
        models = []
        for k in range(len(SIZES)):
            local = copy.deepcopy(net)
            train(local, lambda local=local, k=k: loss_of(local, k))
            models.append(values_of(local))
        set_values(net, mean(models, SHARES))
    return net


def counts_of(k: int) -> Tensor:
    return torch.bincount(SAMPLES[k][1], minlength=CLASSES).float()


def fedlc(tau: float) -> nn.Module:
    def loss(net: nn.Module, k: int) -> Tensor:
        x, y = SAMPLES[k]
        scores = torch.exp(net(x) - tau * counts_of(k).clamp_min(1e-8) ** -0.25)
        return -torch.log(scores[torch.arange(len(y)), y] / scores.sum(1)).mean()

    return fedavg(loss)


def distance(z: Tensor, y: Tensor, prototypes: dict[int, Tensor]) -> Tensor:
    """mean_b ||z_b - c_y||^2 / D over the samples, 0 for those whose class has no prototype."""
    total = torch.zeros(())
    for feature, label in zip(z, y.tolist()):
        if label in prototypes:
            total = total + (feature - prototypes[label]).square().mean()
    return total / len(y)


def fedproto(lam: float) -> list[nn.Module]:
    nets = [new_net() for _ in SIZES]
    prototypes: dict[int, Tensor] = {}
    for _ in range(ROUNDS):
        of_clients: dict[int, list[Tensor]] = {}
        for net, (x, y) in zip(nets, SAMPLES):
            for _ in range(STEPS):
                term = distance(net[:2](x), y, prototypes)
                descend(net, gradient(net, F.cross_entropy(net(x), y) + lam * term))
            for label in y.unique().tolist():
                of_clients.setdefault(label, []).append(net[:2](x[y == label]).detach().mean(0))
        prototypes |= {c: torch.stack(means).mean(0) for c, means in of_clients.items()}
    return nets


def information(net: nn.Module, x: Tensor, y: Tensor) -> Params:
    """The mean over samples of the squared gradient of a sample's loss."""
    of_samples = []
    for i in range(len(y)):
        of_samples.append(gradient(net, F.cross_entropy(net(x[i : i + 1]), y[i : i + 1])))
    return [torch.stack(g).square().mean(0) for g in zip(*of_samples)]


def penalty(net: nn.Module, others: list[tuple[Params, Params]]) -> Tensor:
    """sum_j (v - v_j)^T diag(I_j) (v - v_j) over the other clients' (v_j, I_j)."""
    total = torch.zeros(())
    for model, weights in others:
        for v, v_j, i_j in zip(net.parameters(), model, weights):
            total = total + (i_j * (v - v_j) ** 2).sum()
    return total


def fedcurv(lam: float) -> nn.Module:
    net = new_net()
    last: list[tuple[Params, Params]] = []
    for _ in range(ROUNDS):
        after = []
        for k, (x, y) in enumerate(SAMPLES):
            local = copy.deepcopy(net)
            for _ in range(STEPS):
                term = penalty(local, last[:k] + last[k + 1 :])
                descend(local, gradient(local, F.cross_entropy(local(x), y) + lam * term))
            after.append((values_of(local), information(local, x, y)))
        last = after
        set_values(net, mean([model for model, _ in last], SHARES))
    return net


def fedrod() -> tuple[nn.Module, list[nn.Linear]]:
    net = new_net()
    heads = [copy.deepcopy(net[2]) for _ in SIZES]
    for _ in range(ROUNDS):
        models = []
        for k, (x, y) in enumerate(SAMPLES):
            local = copy.deepcopy(net)
            present = counts_of(k) > 0  # absent classes are left out of the sum
            for _ in range(STEPS):
                logits = (local(x) + counts_of(k).log())[:, present]
                label = (present.cumsum(0) - 1)[y]
                generic = F.cross_entropy(logits, label)
                z = local[:2](x).detach()
                own = F.cross_entropy(local(x).detach() + heads[k](z), y)
                g, g_own = gradient(local, generic), gradient(heads[k], own)
                descend(local, g)
                descend(heads[k], g_own)
            models.append(values_of(local))
        set_values(net, mean(models, SHARES))
    return net, heads


def q_fedavg(q: float) -> nn.Module:
    net = new_net()
    lipschitz = 1 / LR
    for _ in range(ROUNDS):
        deltas, h = [], []
        for x, y in SAMPLES:
            f = F.cross_entropy(net(x), y).item()
            local = copy.deepcopy(net)
            train(local, lambda local=local, x=x, y=y: F.cross_entropy(local(x), y))
            dw = [lipschitz * (w - v) for w, v in zip(values_of(net), values_of(local))]
            deltas.append([f**q * d for d in dw])
            square = sum(float(d.square().sum()) for d in dw)
            h.append(q * f ** (q - 1) * square + lipschitz * f**q)
        step = mean(deltas, [1 / sum(h)] * len(h))
        set_values(net, [w - s for w, s in zip(values_of(net), step)])
    return net


def mime_lite(beta: float) -> nn.Module:
    net = new_net()
    m = [torch.zeros_like(w) for w in values_of(net)]
    for _ in range(ROUNDS):
        models, gradients = [], []
        for x, y in SAMPLES:
            gradients.append(gradient(net, F.cross_entropy(net(x), y)))
            local = copy.deepcopy(net)
            for _ in range(STEPS):
                g = gradient(local, F.cross_entropy(local(x), y))
                descend(local, [(1 - beta) * a + beta * b for a, b in zip(g, m)])
            models.append(values_of(local))
        weights = [1 / len(SIZES)] * len(SIZES)
        full = mean(gradients, weights)
        m = [beta * b + (1 - beta) * a for a, b in zip(full, m)]
        set_values(net, mean(models, weights))
    return net


# ---- the tests ----

SHARED_MODELS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "fedlc": ("calibrated_logits(tau=0.5)", lambda: fedlc(0.5)),
    "fedcurv": ("curvature(lam=0.5)", lambda: fedcurv(0.5)),
    "q-fedavg": ("fair_mean(q=2)", lambda: q_fedavg(2)),
    "mimelite": ("shared_momentum(beta=0.8) + uniform", lambda: mime_lite(0.8)),
}
LIMIT_CASES = {
    "calibrated_logits(tau=0)": "fedavg",
    "private(select='all') + prototypes(lam=0)": "local_only",
    "curvature(lam=0)": "fedavg",
    "fair_mean(q=0)": "uniform",
    "shared_momentum(beta=0)": "fedavg",
    "balanced_softmax + personal_head": "balanced_softmax",
}


def assert_equal_to(net: nn.Module, params: dict[str, Tensor]) -> None:
    for (name, value), expected in zip(params.items(), net.parameters(), strict=True):
        torch.testing.assert_close(value, expected.detach(), rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("recipe", SHARED_MODELS)
def test_shared_model_of_a_recipe_equals_plain_torch(page, recipe, executor):
    spec, plain = SHARED_MODELS[recipe]
    assert_equal_to(plain(), trained(spec, executor).params)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_fedproto_equals_plain_torch(page, executor):
    run = trained("private(select='all') + prototypes(lam=2)", executor)
    for k, net in enumerate(fedproto(2)):
        assert_equal_to(net, run.personal(k))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_fedrod_equals_plain_torch(page, executor):
    run = trained(page.fedrod, executor)
    net, heads = fedrod()
    assert_equal_to(net, run.params)
    for k, head in enumerate(heads):
        expected = net(X) + head(net[:2](X))
        torch.testing.assert_close(run.predictor(k)(X), expected.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", LIMIT_CASES)
def test_limit_case_of_a_recipe(page, spec):
    run, limit = trained(spec, "loop"), trained(LIMIT_CASES[spec], "loop")
    for own, other in zip(run.personal(0).values(), limit.personal(0).values(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-7)
