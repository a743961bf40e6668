"""Which running statistics personal models use, in training and in evaluation: runs against plain torch, from the equations.

The model is body -> batch norm -> tanh -> head in float64; a batch is all of a client's samples, so no order of batches matters.
"""

import copy

import numpy as np
import pytest
import torch
from simulation import mlp
from torch import nn

import unalike as ua

SIZES, ROUNDS, LR = (8, 12, 10, 16), 3, 0.125
HEAD = ("net.head.weight", "net.head.bias")


class Double(nn.Module):
    """The network on float64 inputs; data sets hold float32."""

    def __init__(self):
        super().__init__()
        self.net = mlp(norm=True).double()

    def forward(self, x):
        return self.net(x.double())


def people():
    rng = np.random.default_rng(0)
    made = []
    for n in SIZES:
        x, y = rng.normal(size=(n + 7, 4)) + rng.normal(size=4), rng.integers(0, 3, n + 7)
        y[:3] = range(3)
        made.append(ua.ClientData(train=(x[:n], y[:n]), test=(x[n:], y[n:])))
    return made


def step(p, g, names=None, lr=LR):
    return {n: w - lr * g[n] if names is None or n in names else w for n, w in p.items()}


def mean(weights, trees):
    """Integer buffers, which count batches, take the maximum."""
    return {
        n: sum(float(c) * t[n] for c, t in zip(weights, trees, strict=True))
        if trees[0][n].is_floating_point()
        else torch.stack([t[n] for t in trees]).max(0).values
        for n in trees[0]
    }


class FedRep:
    """The base of the others. `kept[k]` is what client k keeps, `own[k]` the buffers after its last training."""

    private, uniform = HEAD, False

    def __init__(self, module, clients, buffers):
        self.module, self.clients, self.mode = copy.deepcopy(module), clients, buffers
        self.w = {n: p.detach() for n, p in self.module.named_parameters()}
        self.b = {n: b.clone() for n, b in self.module.named_buffers()}
        self.start, self.kept, self.own = (
            (self.w, self.b),
            {},
            dict.fromkeys(range(len(clients)), self.b),
        )

    def gradient(self, p, b, k):
        """The gradient at p in training mode, and the buffers after that pass."""
        b = {n: t.clone() for n, t in b.items()}
        p = {n: w.clone().requires_grad_() for n, w in p.items()}
        x, y = self.clients[k].train
        loss = nn.functional.cross_entropy(
            torch.func.functional_call(self.module.train(), p | b, (x,)), y
        )
        return dict(zip(p, torch.autograd.grad(loss, list(p.values())), strict=True)), b

    def loss(self, k):
        p, b = self.personal(k)
        x, y = self.clients[k].test
        return nn.functional.cross_entropy(
            torch.func.functional_call(self.module.eval(), p | b, (x,)), y
        ).item()

    def received(self, k):
        return self.own[k] if self.mode == "local" else self.b

    def round(self, ids):
        trained = [self.train(k) for k in ids]
        self.own |= {k: b for k, (_, b) in zip(ids, trained, strict=True)}
        sizes = np.array([1 if self.uniform else SIZES[k] for k in ids])
        shared = [{n: w for n, w in p.items() if n not in self.private} for p, _ in trained]
        self.w = self.w | mean(sizes / sizes.sum(), shared)
        self.b = (
            trained[0][1]
            if self.mode == "first"
            else mean(sizes / sizes.sum(), [b for _, b in trained])
        )

    def train(self, k):
        p, b = self.w | self.kept.get(k, {}), self.received(k)
        for names in [HEAD] * 3 + [
            [n for n in p if n not in HEAD]
        ] * 2:  # the passes of both phases move the statistics
            g, b = self.gradient(p, b, k)
            p = step(p, g, names)
        self.kept[k] = {n: p[n] for n in HEAD}
        return p, b

    def personal(self, k):
        return self.w | self.kept.get(k, {}), self.received(k)


class APFL(FedRep):
    """The mixture has statistics of its own, from its own passes; they are never sent."""

    private = ()

    def train(self, k):
        p, b = self.w, self.received(k)
        v, a, statistics = self.kept.get(k, (self.start[0], 0.5, self.start[1]))
        for number in range(2):
            mixed, statistics = self.gradient(
                {n: a * v[n] + (1 - a) * p[n] for n in p}, statistics, k
            )
            g, b = self.gradient(p, b, k)
            d = sum(((v[n] - p[n]) * mixed[n]).sum() for n in p)
            v, p = step(v, {n: a * mixed[n] for n in p}), step(p, g)
            a = float((a - LR * d).clamp(0, 1)) if number == 0 else a
        self.kept[k] = v, a, statistics
        return p, b

    def personal(self, k):
        v, a, statistics = self.kept[k]
        return {n: a * v[n] + (1 - a) * w for n, w in self.w.items()}, statistics


class Ditto(FedRep):
    """The client's model has statistics of its own, too."""

    private = ()

    def train(self, k):
        p, b = self.w, self.received(k)
        v, statistics = self.kept.get(k, self.start)
        for _ in range(2):
            own, statistics = self.gradient(v, statistics, k)
            g, b = self.gradient(p, b, k)
            v, p = step(v, {n: own[n] + 0.5 * (v[n] - self.w[n]) for n in v}), step(p, g)
        self.kept[k] = v, statistics
        return p, b

    def personal(self, k):
        return self.kept[k]


class PFedMe(FedRep):
    """The first inner pass of a step, which is at w, moves the statistics; theta is evaluated with those of the shared model."""

    private, uniform = (), True

    def envelope(self, w, b, k):
        theta, after = w, []
        for _ in range(3):
            g, moved = self.gradient(theta, b, k)
            theta = {n: theta[n] - 0.0625 * (g[n] + 4 * (theta[n] - w[n])) for n in w}
            after.append(moved)
        return theta, after[0]

    def train(self, k):
        p, b = self.w, self.received(k)
        for _ in range(2):
            theta, b = self.envelope(p, b, k)
            p = {n: w - LR * 4 * (w - theta[n]) for n, w in p.items()}
        self.kept[k] = self.envelope(p, b, k)[0]
        return p, b

    def personal(self, k):
        return self.kept[k], self.received(k)


CASES = {
    "fedrep(epochs=3)": FedRep,
    "apfl": APFL,
    "ditto(lam=0.5)": Ditto,
    "pfedme(lam=4, steps=3, rate=0.0625)": PFedMe,
}


@pytest.mark.parametrize("buffers", ["average", "local", "first"])
@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize("spec", CASES)
def test_personal_models_with_batch_norm_equal_plain_torch(spec, executor, buffers):
    """Two of four clients a round. Weights are float32 in some products of the library: 1e-6."""
    module, clients, ids = Double(), people(), []
    theirs = CASES[spec](module, clients, buffers)

    def cohort(number, cohorts, before, after):
        ids.extend(c.ids for c in cohorts.values())
        return []

    work = ua.Work(epochs=2, batch_size=64, lr=LR)
    options = {
        "participation": 0.5,
        "executor": executor,
        "buffers": buffers,
        "record": cohort,
        "progress": False,
    }
    run = ua.run(spec, clients, model=module, rounds=ROUNDS, work=work, **options)
    for present in ids:
        theirs.round(present)
    assert set().union(*ids) == set(range(4)) and {len(present) for present in ids} == {2}
    for k in range(4):
        params, statistics = theirs.personal(k)
        for n, value in (params | statistics).items():
            torch.testing.assert_close(
                run.personal(k)[n], value, rtol=0, atol=1e-6, msg=f"client {k}: {n}"
            )
    found = run.history.clients.query(f"round == {ROUNDS}")["personal_loss"].tolist()
    assert found == pytest.approx([theirs.loss(k) for k in range(4)], abs=1e-6)
