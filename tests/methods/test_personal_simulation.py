"""Three rounds of the personalized methods against NumPy, from the equations alone.

The model is body -> tanh -> head with cross-entropy, in float64; only the order of batches is the library's. Sizes and lr
make all weights exact, so the agreement is 1e-9; the letter counts are float32.
"""

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, mlp

SIZES, LR = (8, 8, 16), 0.125
PRESENT = ((0, 1, 2), (0, 2), (0, 1, 2))
HEAD, BODY = ("head.weight", "head.bias"), ("body.weight", "body.bias")


def gradient(p, x, y):
    h = np.tanh(x @ p["body.weight"].T + p["body.bias"])
    z = h @ p["head.weight"].T + p["head.bias"]
    q = np.exp(z - z.max(1, keepdims=True))
    d = (q / q.sum(1, keepdims=True) - np.eye(z.shape[1])[y]) / len(y)
    a = (d @ p["head.weight"]) * (1 - h**2)
    return {
        "body.weight": a.T @ x,
        "body.bias": a.sum(0),
        "head.weight": d.T @ h,
        "head.bias": d.sum(0),
    }


def loss(p, x, y):
    z = np.tanh(x @ p["body.weight"].T + p["body.bias"]) @ p["head.weight"].T + p["head.bias"]
    z = z - z.max(1, keepdims=True)
    return (np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]).mean()


def moved(p, g, names=(*BODY, *HEAD), lr=LR):
    return p | {n: p[n] - lr * g[n] for n in names}


class Method:
    """FedAvg on the parameters `shared`; what a client keeps is in `self.kept[k]`."""

    shared, uniform, beta = (*BODY, *HEAD), False, 1.0

    def __init__(self, start, sim):
        self.w, self.sim, self.kept = start, sim, {}
        x, y = sim.clients.x.numpy(), sim.clients.y.numpy()
        self.data = lambda rows: (x[rows], y[rows])

    def batches(self, k, r):
        return [
            [self.data(rows) for rows in phase]
            for [phase] in self.sim.executor.client_pool.schedules([k], r)
        ]

    def whole(self, k, r):
        return [self.data(rows) for rows in self.sim.executor.client_pool.whole([k], r)[0]]

    def round(self, r, ids):
        trained = {k: self.train(k, r) for k in ids}
        sizes = np.array([1.0 if self.uniform else SIZES[k] for k in ids])
        p = sizes / sizes.sum()
        means = {n: sum(c * trained[k][n] for c, k in zip(p, ids)) for n in self.shared}
        self.w = self.w | {n: (1 - self.beta) * self.w[n] + self.beta * w for n, w in means.items()}


class FedPer(Method):
    shared = BODY

    def train(self, k, r):
        p = self.w | self.kept.get(k, {})
        for batch in self.batches(k, r)[0]:
            p = moved(p, gradient(p, *batch))
        self.kept[k] = {n: p[n] for n in HEAD}
        return p

    def personal(self, k):
        return self.w | self.kept.get(k, {})


class FedRep(FedPer):
    def train(self, k, r):
        p = self.w | self.kept.get(k, {})
        heads, bodies = self.batches(k, r)
        for batch in heads:
            p = moved(p, gradient(p, *batch), HEAD)
        for batch in bodies:
            p = moved(p, gradient(p, *batch), BODY)
        self.kept[k] = {n: p[n] for n in HEAD}
        return p


class FedBabu(Method):
    shared = BODY

    def train(self, k, r):
        p = self.w
        for batch in self.batches(k, r)[0]:
            p = moved(p, gradient(p, *batch), BODY)
        return p

    def personal(self, k):
        p = self.w
        for rows in self.sim.executor.client_pool.schedules(
            [k], 3, self.sim.executor.client_pool.finetuning
        )[0][0]:
            p = moved(p, gradient(p, *self.data(rows)))
        return p


class PerFedAvg(Method):
    alpha, second = 0.25, False

    def train(self, k, r):
        p = self.w
        for x, y in self.batches(k, r)[0]:
            inner = gradient(p, x[::2], y[::2])
            outer = gradient(moved(p, inner, lr=self.alpha), x[1::2], y[1::2])
            if self.second:  # (I - alpha H) g by central differences: 1e-5 of their error is 1e-10
                up, down = (gradient(moved(p, outer, lr=s), x[::2], y[::2]) for s in (-1e-5, 1e-5))
                outer = {n: outer[n] - self.alpha * (up[n] - down[n]) / 2e-5 for n in outer}
            p = moved(p, outer)
        return p

    def personal(self, k):
        rows = self.sim.clients.train[k]
        return moved(self.w, gradient(self.w, *self.data(rows)), lr=self.alpha)


class SecondOrder(PerFedAvg):
    second = True


class PFedMe(Method):
    uniform, lam, steps, rate = True, 4.0, 3, 0.0625

    def solve(self, w, x, y):
        theta = w
        for _ in range(self.steps):
            g = gradient(theta, x, y)
            theta = {n: theta[n] - self.rate * (g[n] + self.lam * (theta[n] - w[n])) for n in w}
        return theta

    def train(self, k, r):
        p = self.w
        for batch in self.batches(k, r)[0]:
            theta = self.solve(p, *batch)
            p = {n: p[n] - LR * self.lam * (p[n] - theta[n]) for n in p}
        self.kept[k] = self.solve(p, *self.data(self.sim.clients.train[k]))
        return p

    def personal(self, k):
        return self.kept[k]


class PFedMeBeta(PFedMe):
    """w <- (1 - beta) w + beta mean_k w_k (algorithm 1)."""

    beta = 2.0


class FedAla(Method):
    eta, share, threshold = 1.0, 0.8, 1e-3

    def start(self, k, weights):
        own = self.kept[k][0]
        return self.w | {n: own[n] + (self.w[n] - own[n]) * weights[n] for n in HEAD}

    def learned(self, k, r):
        own, weights, times = self.kept[k]
        x, y = (np.concatenate(part) for part in zip(*self.whole(k, r)))
        rows, losses = round(self.share * len(y)), []
        while True:
            for i in range(0, rows, 4):
                cut = slice(i, min(i + 4, rows))
                theta = self.start(k, weights)
                g, last = gradient(theta, x[cut], y[cut]), loss(theta, x[cut], y[cut])
                weights = {
                    n: np.clip(weights[n] - self.eta * g[n] * (self.w[n] - own[n]), 0, 1)
                    for n in HEAD
                }
            losses.append(last)
            if (
                times > 1
                or (len(losses) > 10 and np.std(losses[-10:]) < self.threshold)
                or len(losses) == 100
            ):
                return weights

    def train(self, k, r):
        p, weights, times = self.w, {n: np.ones_like(self.w[n]) for n in HEAD}, 0
        if k in self.kept:
            weights, times = self.learned(k, r), self.kept[k][2]
            p = self.start(k, weights)
        for batch in self.batches(k, r)[0]:
            p = moved(p, gradient(p, *batch))
        self.kept[k] = p, weights, times + 1
        return p

    def personal(self, k):
        return self.start(k, self.kept[k][1])


CASES = {
    "fedper": FedPer,
    "fedrep(epochs=2)": FedRep,
    "fedbabu(epochs=2)": FedBabu,
    "perfedavg(alpha=0.25)": PerFedAvg,
    "perfedavg(alpha=0.25, second_order=True)": SecondOrder,
    "pfedme(lam=4, steps=3, rate=0.0625)": PFedMe,
    "pfedme(lam=4, steps=3, rate=0.0625, beta=2)": PFedMeBeta,
    "fedala(threshold=1e-3)": FedAla,
}


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize("text", CASES)
def test_personal_methods_three_rounds_equal_numpy(text, executor):
    clients = Clients.random(SIZES, dtype=torch.float64)
    sim = Simulation(
        text, mlp().double(), clients, executor=executor, epochs=2, batch_size=4, lr=LR
    )
    theirs = CASES[text]({n: t.numpy() for n, t in sim.params.items()}, sim)
    tolerance = 1e-7 if "second" in text else 1e-9  # finite differences
    for r, ids in enumerate(PRESENT):
        sim.round(list(ids)), theirs.round(r, ids)
    for n, w in sim.params.items():
        np.testing.assert_allclose(w.numpy(), theirs.w[n], rtol=0, atol=tolerance, err_msg=n)
    tuned = sim.tuned() if sim.method.finetuning_phase else {}
    person = sim.method.personalizer
    for k in range(3):
        found = (
            tuned[k]
            if tuned
            else person.personal(sim.settings.model, sim.params, sim.memory(k)[person.name])
        )
        for n, w in theirs.personal(k).items():
            np.testing.assert_allclose(found[n].numpy(), w, rtol=0, atol=tolerance, err_msg=n)


def test_pfedme_one_inner_step_equals_fedavg():
    """theta = w - rate g, so w - lr lam (w - theta) = w - lr lam rate g: uniform FedAvg with another learning rate (float64)."""
    clients = Clients.random(SIZES, dtype=torch.float64)
    sims = [
        Simulation(text, mlp().double(), clients, batch_size=4, lr=lr)
        for text, lr in (("pfedme(lam=4, steps=1, rate=0.25)", 0.125), ("uniform", 0.125))
    ]
    for sim in sims:
        sim.round(), sim.round()
    for n, w in sims[1].params.items():
        torch.testing.assert_close(sims[0].params[n], w, rtol=1e-12, atol=1e-14)


def test_perfedavg_vanishing_alpha_equals_fedavg_on_half_batches():
    """alpha = 1e-12: the other half decides nothing; 1e-9."""
    clients = Clients.random(SIZES, dtype=torch.float64)
    sim = Simulation("perfedavg(alpha=1e-12)", mlp().double(), clients, batch_size=4, lr=LR)
    theirs = Method({n: t.numpy() for n, t in sim.params.items()}, sim)

    def train(k, r):
        p = theirs.w
        for x, y in theirs.batches(k, r)[0]:
            p = moved(p, gradient(p, x[1::2], y[1::2]))
        return p

    theirs.train = train
    for r in range(2):
        sim.round(), theirs.round(r, (0, 1, 2))
    for n, w in sim.params.items():
        np.testing.assert_allclose(w.numpy(), theirs.w[n], rtol=0, atol=1e-9)


def test_pfedme_server_rate_beta_interpolates_to_client_mean():
    """beta: w+ = (1 - beta) w + beta mean; float64."""
    clients = Clients.random(SIZES, dtype=torch.float64)
    one, half = (
        Simulation(f"pfedme(beta={b})", mlp().double(), clients, batch_size=4, lr=0.05)
        for b in (1.0, 0.5)
    )
    start = one.params
    one.round(), half.round()
    for n, w in start.items():
        torch.testing.assert_close(half.params[n], (w + one.params[n]) / 2, rtol=1e-12, atol=1e-14)
