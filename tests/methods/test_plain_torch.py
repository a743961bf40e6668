"""Published methods do what plain PyTorch does.

The plain versions are written from the equations. Three clients of 7, 3 and 8 samples make two full-batch steps in each of three
rounds, so that no order of batches matters; the second client lacks a class.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unalike as ua
from unalike._utils import seeds
from unalike.runtime.results.finished_run import Run

SIZES = (7, 3, 8)
SHARES = [n / sum(SIZES) for n in SIZES]
CLASSES, FEATURES = 3, 5
LR, STEPS, ROUNDS = 0.3, 2, 3
EXECUTORS = ("loop", "batched")
Params = list[Tensor]


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


def trained(method: Any, executor: str, **options: Any) -> Run:
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
        **options,
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


def updates_and_losses(net: nn.Module) -> tuple[list[Params], list[float]]:
    """The clients' updates from the model, and its losses on their samples."""
    updates, losses = [], []
    for x, y in SAMPLES:
        losses.append(F.cross_entropy(net(x), y).item())
        local = copy.deepcopy(net)
        train(local, lambda local=local, x=x, y=y: F.cross_entropy(local(x), y))
        updates.append([v - w for v, w in zip(values_of(local), values_of(net))])
    return updates, losses


def move(net: nn.Module, update: Params) -> None:
    set_values(net, [w + u for w, u in zip(values_of(net), update)])


def square(values: Params) -> float:
    return sum(float(t.square().sum()) for t in values)


def term(t: float) -> nn.Module:
    net = new_net()
    for _ in range(ROUNDS):
        updates, losses = updates_and_losses(net)
        tilted = [p * math.exp(t * f) for p, f in zip(SHARES, losses)]
        move(net, mean(updates, [c / sum(tilted) for c in tilted]))
    return net


def afl(rate: float) -> nn.Module:
    """The nearest point of the simplex is found by bisection of its threshold."""
    net = new_net()
    c = [1 / len(SIZES)] * len(SIZES)
    for _ in range(ROUNDS):
        updates, losses = updates_and_losses(net)
        move(net, mean(updates, c))
        ascended = [c_k + rate * f for c_k, f in zip(c, losses)]
        low, high = min(ascended) - 1, max(ascended)
        for _ in range(60):
            threshold = (low + high) / 2
            if sum(max(a - threshold, 0) for a in ascended) > 1:
                low = threshold
            else:
                high = threshold
        c = [max(a - low, 0) for a in ascended]
    assert 0 in c  # the rate is one at which a client is left out
    return net


def fedlesam(rho: float) -> nn.Module:
    net = new_net()
    received = values_of(net)
    for _ in range(ROUNDS):
        w = values_of(net)
        back = [a - b for a, b in zip(received, w)]
        length = max(math.sqrt(square(back)), 1e-12)
        received = w
        models = []
        for x, y in SAMPLES:
            local = copy.deepcopy(net)
            for _ in range(STEPS):
                v = values_of(local)
                move(local, [rho / length * b for b in back])
                g = gradient(local, F.cross_entropy(local(x), y))
                set_values(local, v)
                descend(local, g)
            models.append(values_of(local))
        set_values(net, mean(models, SHARES))
    return net


def adabest(mu: float, beta: float) -> nn.Module:
    net = new_net()
    equal = [1 / len(SIZES)] * len(SIZES)
    h = [[torch.zeros_like(w) for w in values_of(net)] for _ in SIZES]
    last_mean = values_of(net)
    for _ in range(ROUNDS):
        models = []
        for k, (x, y) in enumerate(SAMPLES):
            local = copy.deepcopy(net)
            for _ in range(STEPS):
                g = gradient(local, F.cross_entropy(local(x), y))
                descend(local, [a - b for a, b in zip(g, h[k])])
            models.append(values_of(local))
            moved = zip(h[k], values_of(net), models[k])
            h[k] = [a + mu * (w - v) for a, w, v in moved]
        of_models = mean(models, equal)
        bias = [beta * (a - b) for a, b in zip(last_mean, of_models)]
        last_mean = of_models
        set_values(net, [a - b for a, b in zip(of_models, bias)])
    return net


def fedacg(lam: float, beta: float) -> nn.Module:
    """What the server sends: w + lam m."""
    net = new_net()
    w = values_of(net)
    m = [torch.zeros_like(t) for t in w]
    for _ in range(ROUNDS):
        sent = [a + lam * b for a, b in zip(w, m)]
        models = []
        for x, y in SAMPLES:
            set_values(net, sent)
            for _ in range(STEPS):
                g = gradient(net, F.cross_entropy(net(x), y))
                drift = [v - s for v, s in zip(values_of(net), sent)]
                descend(net, [a + beta * d for a, d in zip(g, drift)])
            models.append(values_of(net))
        u = [a - b for a, b in zip(mean(models, [1 / 3] * 3), sent)]
        m = [lam * a + b for a, b in zip(m, u)]
        w = [a + b for a, b in zip(w, m)]
    set_values(net, [a + lam * b for a, b in zip(w, m)])
    return net


def fedamp(alpha: float, sigma: float, lam: float) -> list[nn.Module]:
    nets = [new_net() for _ in SIZES]
    for _ in range(ROUNDS):
        models = [values_of(net) for net in nets]
        for k, (net, (x, y)) in enumerate(zip(nets, SAMPLES)):
            xi = []
            for model in models:
                gap = square([a - b for a, b in zip(models[k], model)])
                xi.append(alpha / sigma * math.exp(-gap / sigma))
            xi[k] = 0
            xi[k] = 1 - sum(xi)
            assert xi[k] > 0
            u = mean(models, xi)
            set_values(net, u)
            for _ in range(STEPS):
                g = gradient(net, F.cross_entropy(net(x), y))
                drift = [v - t for v, t in zip(values_of(net), u)]
                descend(net, [a + lam * d for a, d in zip(g, drift)])
    return nets


def fedmd(public: Tensor, steps: int, lr: float) -> list[nn.Module]:
    nets = [new_net() for _ in SIZES]
    consensus = None
    for _ in range(ROUNDS):
        logits = []
        for net, (x, y) in zip(nets, SAMPLES):
            if consensus is not None:
                for _ in range(steps):
                    g = gradient(net, (net(public) - consensus).abs().mean())
                    set_values(net, [p - lr * d for p, d in zip(values_of(net), g)])
            train(net, lambda net=net, x=x, y=y: F.cross_entropy(net(x), y))
            logits.append(net(public).detach())
        consensus = sum(logits) / len(logits)
    return nets


def creff(samples: int, steps: int, match_lr: float, epochs: int, lr: float) -> nn.Module:
    """FedAvg's body under the retrained head."""
    net = new_net()
    first_head, head = copy.deepcopy(net[2]), copy.deepcopy(net[2])
    generator = torch.Generator().manual_seed(seeds.number(0, "federated_features"))
    z = torch.randn(CLASSES, samples, FEATURES, generator=generator)

    def gradient_of_class(features: Tensor, c: int, create_graph: bool = False) -> Params:
        loss = F.cross_entropy(head(features), torch.full((len(features),), c))
        return list(torch.autograd.grad(loss, list(head.parameters()), create_graph=create_graph))

    def gap(own: Tensor, wanted: Tensor) -> Tensor:
        lengths = own.norm(dim=-1) * wanted.norm(dim=-1) + 1e-6
        return (1 - (own * wanted).sum(-1) / lengths).sum()

    for _ in range(ROUNDS):
        wanted = []
        for c in range(CLASSES):
            of_clients = [
                gradient_of_class(net[:2](x[y == c]).detach(), c) for x, y in SAMPLES if c in y
            ]
            wanted.append(mean(of_clients, [1 / len(of_clients)] * len(of_clients)))
        for _ in range(steps):
            z = z.detach().requires_grad_()
            total = torch.zeros(())
            for c in range(CLASSES):
                for own, of_clients in zip(gradient_of_class(z[c], c, True), wanted[c]):
                    total = total + gap(own, of_clients)
            [slope] = torch.autograd.grad(total, [z])
            z = z - match_lr * slope
        z = z.detach()
        head = copy.deepcopy(first_head)
        y = torch.arange(CLASSES).repeat_interleave(samples)
        for _ in range(epochs):
            slopes = gradient(head, F.cross_entropy(head(z.flatten(0, 1)), y))
            set_values(head, [w - lr * g for w, g in zip(values_of(head), slopes)])
        updates, _ = updates_and_losses(net)
        move(net, mean(updates, SHARES))
    return nn.Sequential(net[0], net[1], head)


# ---- the tests ----

SHARED_MODELS: dict[str, Callable[[], nn.Module]] = {
    "fedlc(tau=0.5)": lambda: fedlc(0.5),
    "fedcurv(lam=0.5)": lambda: fedcurv(0.5),
    "q_ffl(q=2)": lambda: q_fedavg(2),
    "term(t=2)": lambda: term(2),
    "afl(rate=2)": lambda: afl(2),
    "mimelite(beta=0.8)": lambda: mime_lite(0.8),
    "fedlesam(rho=0.5)": lambda: fedlesam(0.5),
    "adabest(mu=0.3, beta=0.8)": lambda: adabest(0.3, 0.8),
    "fedacg(lam=0.6, beta=0.3)": lambda: fedacg(0.6, 0.3),
}
OWN_MODELS: dict[str, Callable[[], list[nn.Module]]] = {
    "fedproto(lam=2)": lambda: fedproto(2),
    "fedamp(alpha=0.3, sigma=2, lam=0.5)": lambda: fedamp(0.3, 2, 0.5),
}
LIMIT_CASES = {
    "fedlc(tau=0)": "fedavg",
    "fedproto(lam=0)": "local_only",
    "fedamp(alpha=0, lam=0)": "local_only",
    "fedcurv(lam=0)": "fedavg",
    "q_ffl(q=0)": "uniform",
    "term(t=0)": "fedavg",
    "afl(rate=0)": "uniform",
    "mimelite(beta=0, weighted=True)": "fedavg",
    "adabest(mu=0, beta=0, weighted=True)": "fedavg",
    "fedacg(lam=0, beta=0, weighted=True)": "fedavg",
    "fedexp(epsilon=1e9)": "fedavg",
    "fedlesam(rho=0)": "fedavg",
    "fedrod": "balanced_softmax",
}


def assert_equal_to(net: nn.Module, params: dict[str, Tensor]) -> None:
    for (name, value), expected in zip(params.items(), net.parameters(), strict=True):
        torch.testing.assert_close(value, expected.detach(), rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("spec", SHARED_MODELS)
def test_shared_model_equals_plain_torch(spec, executor):
    assert_equal_to(SHARED_MODELS[spec](), trained(spec, executor).params)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("spec", OWN_MODELS)
def test_own_models_equal_plain_torch(spec, executor):
    run = trained(spec, executor)
    for k, net in enumerate(OWN_MODELS[spec]()):
        assert_equal_to(net, run.personal(k))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_fedmd_equals_plain_torch(executor):
    public = X[::3] + 0.5
    proxy = (public, torch.arange(len(public)) % CLASSES)
    run = trained("fedmd(steps=2, lr=0.2)", executor, proxy=proxy)
    for k, net in enumerate(fedmd(public, steps=2, lr=0.2)):
        assert_equal_to(net, run.personal(k))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_fedrod_equals_plain_torch(executor):
    run = trained("fedrod", executor)
    net, heads = fedrod()
    assert_equal_to(net, run.params)
    for k, head in enumerate(heads):
        expected = net(X) + head(net[:2](X))
        torch.testing.assert_close(run.predictor(k)(X), expected.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_creff_equals_plain_torch(executor):
    options = {"samples": 4, "steps": 5, "match_lr": 0.5, "epochs": 7, "lr": 0.3}
    arguments = ", ".join(f"{name}={value}" for name, value in options.items())
    run = trained(f"creff({arguments})", executor)
    expected = creff(**options)(X)
    torch.testing.assert_close(run.predictor(1)(X), expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(run.params, trained("fedavg", executor).params)


@pytest.mark.parametrize("spec", LIMIT_CASES)
def test_limit_case(spec):
    run, limit = trained(spec, "loop"), trained(LIMIT_CASES[spec], "loop")
    for own, other in zip(run.personal(0).values(), limit.personal(0).values(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-7)
