"""Whole rounds against a simulation in NumPy: gradients, solvers, clients and server written from the equations.

The model is body -> tanh -> head with cross-entropy, in float64. Only the batch order is the library's. Four clients
of 3, 5, 8 and 16 samples; two of them take part in the second of three rounds.

Tolerances: the library keeps counts (samples, steps, Adam's count, 1/K) and the mixture's weight in float32 whatever
the model's
dtype, and products such as mu * seen with them. The sizes, the numbers of steps and lr are therefore chosen so that
p_k, 1/K and 1/(steps lr) are exact, and the agreement is 1e-9; where a float32 cannot be avoided it is 1e-6 (`SINGLE`).
"""

import copy
import math
from operator import mul

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, mlp

SIZES = (3, 5, 8, 16)
PRESENT = ((0, 1, 2, 3), (0, 1), (0, 1, 2, 3))
LR = 0.125
WORK = {"epochs": 2, "batch_size": 4, "lr": LR}
SINGLE = 1e-6


# --- model ------------------------------------------------------------------------------------------------------------


def forward(p, x):
    h = np.tanh(x @ p["body.weight"].T + p["body.bias"])
    return h, h @ p["head.weight"].T + p["head.bias"]


def backward(p, x, h, dz, dh=0.0):
    """Gradients from those of the logits and, directly, of the features."""
    da = (dz @ p["head.weight"] + dh) * (1 - h**2)
    return {
        "body.weight": da.T @ x,
        "body.bias": da.sum(0),
        "head.weight": dz.T @ h,
        "head.bias": dz.sum(0),
    }


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def d_task(z, y):
    return (softmax(z) - np.eye(z.shape[1])[y]) / len(y)


def gradient(p, x, y):
    h, z = forward(p, x)
    return backward(p, x, h, d_task(z, y))


def tmap(f, *trees):
    return {n: f(*(t[n] for t in trees)) for n in trees[0]}


def vdot(a, b):
    return sum((a[n] * b[n]).sum() for n in a)


# --- solvers ----------------------------------------------------------------------------------------------------------


class SGD:
    def __init__(self, lr=LR, momentum=0.0, nesterov=False, weight_decay=0.0):
        self.lr, self.rho, self.nesterov, self.wd, self.m = (
            lr,
            momentum,
            nesterov,
            weight_decay,
            None,
        )

    def step(self, p, g):
        g = tmap(lambda g, w: g + self.wd * w, g, p)
        self.m = g if self.m is None else tmap(lambda m, g: self.rho * m + g, self.m, g)
        d = tmap(lambda g, m: g + self.rho * m, g, self.m) if self.nesterov else self.m
        return tmap(lambda w, d: w - self.lr * d, p, d)


class Adam:
    def __init__(self, lr=LR, weight_decay=0.0, decoupled=False):
        self.lr, self.wd, self.decoupled, self.t, self.m, self.v = (
            lr,
            weight_decay,
            decoupled,
            0,
            0.0,
            0.0,
        )

    def step(self, p, g):
        self.t += 1
        new = {}
        if self.t == 1:
            self.m, self.v = tmap(np.zeros_like, p), tmap(np.zeros_like, p)
        for n, w in p.items():
            d = g[n] if self.decoupled else g[n] + self.wd * w
            w = w * (1 - self.lr * self.wd) if self.decoupled else w
            self.m[n] = 0.9 * self.m[n] + 0.1 * d
            self.v[n] = 0.999 * self.v[n] + 0.001 * d**2
            m, v = self.m[n] / (1 - 0.9**self.t), self.v[n] / (1 - 0.999**self.t)
            new[n] = w - self.lr * m / (np.sqrt(v) + 1e-8)
        return new


# --- methods ----------------------------------------------------------------------------------------------------------


class FedAvg:
    """The base of all: subclasses change the gradient, what a client keeps, or the server."""

    uniform = False

    def __init__(self, start, solver=SGD, **solver_settings):
        self.w, self.new_solver = start, lambda lr: solver(lr, **solver_settings)
        self.clients = {k: self.fresh() for k in range(len(SIZES))}
        self.open()

    def open(self):
        pass

    def fresh(self):
        return {}

    def change(self, g, p, x, y, k):
        return g

    def local(self, k, data, order, lr):
        p, solver = copy.deepcopy(self.w), self.new_solver(lr)
        for rows in order:
            x, y = data[0][rows], data[1][rows]
            p = solver.step(p, self.change(gradient(p, x, y), p, x, y, k))
        return p

    def after(self, k, p, steps, lr):
        pass

    def sent(self, k, p):
        return p

    def of_all(self, present):
        """The clients' weights in the objective over all clients."""
        n = np.ones(len(SIZES)) if self.uniform else np.array(SIZES, float)
        return n[list(present)] / n.sum()

    def server(self, present, models, q, steps):
        return tmap(lambda *v: sum(a * b for a, b in zip(q, v)), *models)

    def round(self, present, data, orders, lr=LR):
        models = []
        for k in present:
            models.append(self.local(k, data, orders[k], lr))
            self.after(k, models[-1], len(orders[k]), lr)
            models[-1] = self.sent(k, models[-1])
        n = np.array([1 if self.uniform else SIZES[k] for k in present], float)
        self.w = self.server(present, models, n / n.sum(), [len(orders[k]) for k in present])


class FedProx(FedAvg):
    mu = 0.3

    def change(self, g, p, x, y, k):
        return tmap(lambda g, v, w: g + self.mu * (v - w), g, p, self.w)


class FedNova(FedAvg):
    """rho: momentum; alpha: lr mu of the prox-aware form."""

    rho = 0.0
    nesterov = False
    alpha = 0.0

    def a(self, tau):
        """||a||_1: the way under unit gradients at learning rate 1, step by step."""
        if self.alpha:
            return (1 - (1 - self.alpha) ** tau) / self.alpha
        way = m = 0.0
        for _ in range(tau):
            m = self.rho * m + 1
            way += 1 + self.rho * m if self.nesterov else m
        return way

    def server(self, present, models, q, steps):
        a = [self.a(t) for t in steps]
        tau_eff = sum(p * (t if self.alpha else b) for p, b, t in zip(q, a, steps))
        return tmap(
            lambda w, *v: w + tau_eff * sum(p * (m - w) / b for p, m, b in zip(q, v, a)),
            self.w,
            *models,
        )


class FedMix(FedNova):
    mu = 0.3
    change = FedProx.change


class ProxAware(FedMix):
    alpha = LR * 0.3


class FedAvgM(FedAvg):
    momentum, eta, nesterov = 0.7, 0.5, False

    def open(self):
        self.v = tmap(np.zeros_like, self.w)

    def server(self, present, models, q, steps):
        d = tmap(np.subtract, self.w, super().server(present, models, q, steps))
        self.v = tmap(lambda v, d: self.momentum * v + d, self.v, d)
        move = tmap(lambda d, v: d + self.momentum * v, d, self.v) if self.nesterov else self.v
        return tmap(lambda w, v: w - self.eta * v, self.w, move)


class FedAvgMNesterov(FedAvgM):
    nesterov = True


class Scaffold(FedAvg):
    uniform = True
    option, eta = 2, 0.5

    def open(self):
        self.c = tmap(np.zeros_like, self.w)

    def fresh(self):
        return {"c": tmap(np.zeros_like, self.w)}

    def change(self, g, p, x, y, k):
        return tmap(lambda g, ck, c: g - ck + c, g, self.clients[k]["c"], self.c)

    def after(self, k, p, steps, lr):
        old = self.clients[k]["c"]
        if self.option == 1:
            rows = self.own[k]
            new = gradient(self.w, self.data[0][rows], self.data[1][rows])
        else:
            new = tmap(lambda ck, c, x, y: ck - c + (x - y) / (steps * lr), old, self.c, self.w, p)
        self.clients[k]["moved"], self.clients[k]["c"] = tmap(np.subtract, new, old), new

    def server(self, present, models, q, steps):
        mean = super().server(present, models, q, steps)
        p = self.of_all(present)
        self.c = tmap(
            lambda c, *d: c + sum(map(mul, p, d)),
            self.c,
            *(self.clients[k]["moved"] for k in present),
        )
        return tmap(lambda w, m: w + self.eta * (m - w), self.w, mean)


class Scaffold1(Scaffold):
    option = 1


class ScaffoldWeighted(Scaffold):
    uniform = False


class ScaffoldAfterMomentum(Scaffold):
    """The correction is made after the step of the optimizer, and no momentum sees it."""

    def local(self, k, data, order, lr):
        p, solver = copy.deepcopy(self.w), self.new_solver(lr)
        for rows in order:
            p = solver.step(p, gradient(p, data[0][rows], data[1][rows]))
            p = tmap(lambda w, ck, c: w - lr * (c - ck), p, self.clients[k]["c"], self.c)
        return p


class FedDyn(FedAvg):
    uniform = True
    alpha = 0.25

    def open(self):
        self.h = tmap(np.zeros_like, self.w)

    def fresh(self):
        return {"h": tmap(np.zeros_like, self.w)}

    def change(self, g, p, x, y, k):
        return tmap(
            lambda g, h, v, w: g - h + self.alpha * (v - w), g, self.clients[k]["h"], p, self.w
        )

    def after(self, k, p, steps, lr):
        self.clients[k]["h"] = tmap(
            lambda h, v, w: h - self.alpha * (v - w), self.clients[k]["h"], p, self.w
        )

    def server(self, present, models, q, steps):
        for p, v in zip(self.of_all(present), models):
            self.h = tmap(lambda h, v, w, p=p: h - self.alpha * p * (v - w), self.h, v, self.w)
        return tmap(
            lambda m, h: m - h / self.alpha, super().server(present, models, q, steps), self.h
        )


class Ditto(FedAvg):
    lam = 0.5

    def fresh(self):
        return {"v": copy.deepcopy(self.w)}

    def local(self, k, data, order, lr):
        solver = self.new_solver(lr)
        for rows in order:
            v = self.clients[k]["v"]
            g = tmap(
                lambda g, v, w: g + self.lam * (v - w),
                gradient(v, data[0][rows], data[1][rows]),
                v,
                self.w,
            )
            self.clients[k]["v"] = solver.step(v, g)
        return super().local(k, data, order, lr)


class APFL(FedAvg):
    output = False

    def fresh(self):
        return {"v": copy.deepcopy(self.w), "a": 0.5}

    def local(self, k, data, order, lr):
        p, own, solver, mine = (
            copy.deepcopy(self.w),
            self.clients[k],
            self.new_solver(lr),
            self.new_solver(lr),
        )
        for step, rows in enumerate(order):
            x, y, v, a = data[0][rows], data[1][rows], own["v"], own["a"]
            if self.output:
                (h, z), (_, shared) = forward(v, x), forward(p, x)
                dz = d_task(a * z + (1 - a) * shared, y)
                g, da = backward(v, x, h, a * dz), (dz * (z - shared)).sum()
            else:
                full = gradient(tmap(lambda v, w, a=a: a * v + (1 - a) * w, v, p), x, y)
                g, da = tmap(lambda g, a=a: a * g, full), vdot(tmap(np.subtract, v, p), full)
            own["v"], p = mine.step(v, g), solver.step(p, gradient(p, x, y))
            if step == 0:
                own["a"] = min(max(a - lr * da, 0.0), 1.0)
        return p


class APFLOutput(APFL):
    output = True


class Moon(FedAvg):
    mu, tau = 0.8, 0.4

    def fresh(self):
        return {"previous": None}

    def change(self, g, p, x, y, k):
        previous = self.clients[k]["previous"]
        if previous is None:
            return g
        z, z_g, z_p = (forward(m, x)[0] for m in (p, self.w, previous))
        size = np.linalg.norm(z, axis=1, keepdims=True)

        def cosine(other):
            norm = np.linalg.norm(other, axis=1, keepdims=True)
            s = (z * other).sum(1, keepdims=True) / (size * norm)
            return s, other / (size * norm) - s * z / size**2

        (s_g, ds_g), (s_p, ds_p) = cosine(z_g), cosine(z_p)
        share = softmax(np.hstack([s_g, s_p]) / self.tau)
        dh = self.mu / self.tau / len(x) * ((share[:, :1] - 1) * ds_g + share[:, 1:] * ds_p)
        return tmap(np.add, g, backward(p, x, z, np.zeros((len(x), 3)), dh))

    def after(self, k, p, steps, lr):
        self.clients[k]["previous"] = p


class FedNTD(FedAvg):
    beta, tau = 0.7, 2.0

    def change(self, g, p, x, y, k):
        h, z = forward(p, x)
        _, z_g = forward(self.w, x)
        true = np.eye(3, dtype=bool)[y]
        q, q_g = (softmax(np.where(true, -np.inf, t / self.tau)) for t in (z, z_g))
        return tmap(np.add, g, backward(p, x, h, self.beta * self.tau * (q - q_g) / len(x)))


class FedLWS(FedAvg):
    beta = 3.0

    def server(self, present, models, q, steps):
        hat, new = super().server(present, models, q, steps), {}
        for layer in (["body.weight", "body.bias"], ["head.weight", "head.bias"]):

            def flat(tree, layer=layer):
                return np.concatenate([tree[n].ravel() for n in layer])

            w, updates = flat(self.w), np.stack([flat(m) - flat(self.w) for m in models])
            tau = np.mean(np.linalg.norm(updates - updates.mean(0), axis=1))
            gamma = np.linalg.norm(w) / (
                self.beta * tau * np.linalg.norm(flat(hat) - w) + np.linalg.norm(w)
            )
            new |= {n: gamma * hat[n] for n in layer}
        return new


def rows(trees):
    """The trees as rows [K, P]."""
    return np.stack([np.concatenate([t.ravel() for t in tree.values()]) for tree in trees])


class Rule(FedAvg):
    """An aggregator of the updates as rows u [K, P]."""

    def server(self, present, models, q, steps):
        move = self.rule(rows(models) - rows([self.w]), q)
        ends = np.cumsum([w.size for w in self.w.values()])[:-1]
        return {
            n: w + m.reshape(w.shape) for (n, w), m in zip(self.w.items(), np.split(move, ends))
        }


class Median(Rule):
    def rule(self, u, q):
        return np.median(u, axis=0)


class Krum(Rule):
    keep = 1

    def rule(self, u, q):
        d = ((u[:, None] - u[None]) ** 2).sum(2)
        scores = np.sort(d, axis=1)[:, 1 : 1 + max(1, len(u) - 3)].sum(1)
        best = np.argsort(scores, kind="stable")[: self.keep]
        return q[best] @ u[best] / q[best].sum()


class CenteredClipping(Rule):
    v = 0.0

    def rule(self, u, q):
        for _ in range(2):
            d = u - self.v
            self.v = self.v + (q * np.minimum(1, 0.1 / np.linalg.norm(d, axis=1))) @ d
        return self.v


class LDawa(FedAvg):
    uniform = True

    def server(self, present, models, q, steps):
        def one(w, *v):
            return sum(
                a * min((m * w).sum() / np.sqrt((m * m).sum() * (w * w).sum()), 1) * m
                for a, m in zip(q, v)
            )

        return tmap(one, self.w, *models)


class FedDC(FedAvg):
    alpha = 0.25

    def fresh(self):
        return {"drift": tmap(np.zeros_like, self.w), "pace": tmap(np.zeros_like, self.w)}

    def open(self):
        self.pace = tmap(np.zeros_like, self.w)

    def change(self, g, p, x, y, k):
        own = self.clients[k]
        return tmap(
            lambda g, h, v, w, a, c: g + self.alpha * (h + v - w) + a - c,
            g,
            own["drift"],
            p,
            self.w,
            own["pace"],
            self.pace,
        )

    def after(self, k, p, steps, lr):
        own = self.clients[k]
        own["drift"] = tmap(lambda h, v, w: h + v - w, own["drift"], p, self.w)
        own["pace"] = tmap(lambda v, w: (v - w) / (steps * lr), p, self.w)

    def server(self, present, models, q, steps):
        self.pace = tmap(
            lambda *c: sum(map(mul, q, c)), *(self.clients[k]["pace"] for k in present)
        )
        share = self.of_all(range(len(SIZES)))
        drift = tmap(
            lambda *h: sum(map(mul, share, h)), *(kept["drift"] for kept in self.clients.values())
        )
        return tmap(np.add, super().server(present, models, q, steps), drift)


class Balanced(FedAvg):
    def change(self, g, p, x, y, k):
        counts = np.bincount(self.data[1][self.own[k]], minlength=3)
        h, z = forward(p, x)
        with np.errstate(divide="ignore"):
            return backward(p, x, h, d_task(z + np.log(counts), y))


class DPSGD(FedAvg):
    """Without noise."""

    def change(self, g, p, x, y, k):
        each = [gradient(p, x[i : i + 1], y[i : i + 1]) for i in range(len(y))]
        return tmap(
            lambda *t: sum(t) / len(y),
            *(tmap(lambda t, g=g: t * min(1, 0.5 / np.sqrt(vdot(g, g))), g) for g in each),
        )


class TopK(FedAvg):
    """Half of the entries of each tensor, with error feedback."""

    def sent(self, k, p):
        u = tmap(
            lambda v, w, e: v - w + e,
            p,
            self.w,
            self.clients[k].setdefault("error", tmap(np.zeros_like, self.w)),
        )
        kept = tmap(
            lambda u: u * (np.abs(u) >= np.sort(np.abs(u), axis=None)[-math.ceil(u.size / 2)]), u
        )
        self.clients[k]["error"] = tmap(np.subtract, u, kept)
        return tmap(np.add, self.w, kept)


MOMENTUM = {"momentum": 0.5}
NESTEROV = {"momentum": 0.5, "nesterov": True}
CASES = {
    "fedavg": (FedAvg, {}, 1e-9),
    "fedavg momentum": (FedAvg, {"momentum": 0.9, "weight_decay": 0.01}, 1e-9),
    "fedavg nesterov": (FedAvg, {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True}, 1e-9),
    "fedavg adam": (FedAvg, {"optimizer": "adam", "weight_decay": 0.02}, SINGLE),
    "fedavg adamw": (FedAvg, {"optimizer": "adamw", "weight_decay": 0.02}, SINGLE),
    "fedprox(mu=0.3)": (FedProx, {}, 1e-9),
    "fedprox(mu=0.3) momentum": (FedProx, MOMENTUM, 1e-9),
    "fednova": (FedNova, {}, 1e-9),
    "fednova momentum": (type("Nova", (FedNova,), {"rho": 0.5}), MOMENTUM, SINGLE),
    "fednova nesterov": (
        type("Nova", (FedNova,), {"rho": 0.5, "nesterov": True}),
        NESTEROV,
        SINGLE,
    ),
    "fedmix(mu=0.3)": (FedMix, {}, 1e-9),
    "fedprox(mu=0.3)+fednova(prox_aware=True)": (ProxAware, {}, SINGLE),
    "fedavgm(lr=0.5,momentum=0.7)": (FedAvgM, {}, 1e-9),
    "fedavgm(lr=0.5,momentum=0.7,nesterov=True)": (FedAvgMNesterov, {}, 1e-9),
    "scaffold(server_lr=0.5)": (Scaffold, {}, 1e-9),
    "scaffold(server_lr=0.5,option=1)": (Scaffold1, {}, SINGLE),
    "scaffold(server_lr=0.5,weighted=True)": (ScaffoldWeighted, {}, 1e-9),
    "scaffold(server_lr=0.5,after_momentum=True)": (ScaffoldAfterMomentum, {}, 1e-9),
    "scaffold(server_lr=0.5,after_momentum=True) momentum": (ScaffoldAfterMomentum, MOMENTUM, 1e-9),
    "feddyn(alpha=0.25)": (FedDyn, {}, 1e-9),
    "feddyn(alpha=0.25) momentum": (FedDyn, MOMENTUM, 1e-9),
    "feddyn(alpha=0.25,weighted=True)": (type("Dyn", (FedDyn,), {"uniform": False}), {}, 1e-9),
    "ditto(lam=0.5)": (Ditto, {}, 1e-9),
    "ditto(lam=0.5) momentum": (Ditto, NESTEROV, 1e-9),
    "apfl": (APFL, {}, SINGLE),
    "apfl momentum": (APFL, MOMENTUM, SINGLE),
    "apfl(mixing='output')": (APFLOutput, {}, SINGLE),
    "moon(mu=0.8,tau=0.4)": (Moon, {}, SINGLE),
    "fedntd(beta=0.7,tau=2)": (FedNTD, {}, 1e-9),
    "fedlws(beta=3)": (FedLWS, {}, 1e-9),
    "median": (Median, {}, 1e-9),
    "krum": (Krum, {}, 1e-9),
    "multikrum(keep=2)": (type("Multikrum", (Krum,), {"keep": 2}), {}, SINGLE),
    "centered_clipping(norm=0.1,iterations=2)": (CenteredClipping, {}, SINGLE),
    "dp_sgd(noise_multiplier=0,clip=0.5)": (DPSGD, {}, SINGLE),
    "ldawa": (LDawa, {}, SINGLE),
    "feddc(alpha=0.25)": (FedDC, {}, SINGLE),
    "balanced_softmax": (Balanced, {}, SINGLE),
    "topk(fraction=0.5,error_feedback=True)": (TopK, {}, 1e-9),
    "scaffold(server_lr=0.5)+topk(fraction=0.5,error_feedback=True)": (
        type("Both", (TopK, Scaffold), {}),
        {},
        1e-9,
    ),
    "feddyn(alpha=0.25)+topk(fraction=0.5,error_feedback=True)": (
        type("Both", (TopK, FedDyn), {}),
        {},
        1e-9,
    ),
    "fedprox(mu=0.3)+krum": (type("Both", (FedProx, Krum), {}), {}, 1e-9),
    "fedavgm(lr=0.5,momentum=0.7)+median": (type("Both", (FedAvgM, Median), {}), {}, 1e-9),
    "ditto(lam=0.5)+centered_clipping(norm=0.1,iterations=2)": (
        type("Both", (Ditto, CenteredClipping), {}),
        {},
        SINGLE,
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", CASES)
def test_methods_three_rounds_equal_numpy(case):
    reference, solver, tolerance = CASES[case]
    clients = Clients.random(SIZES, dtype=torch.float64)
    sim = Simulation(case.split(" ")[0], mlp().double(), clients, **WORK, **solver)
    start = {n: t.numpy().copy() for n, t in sim.params.items()}
    settings = {n: v for n, v in solver.items() if n != "optimizer"}
    if "optimizer" in solver:
        settings["decoupled"] = solver["optimizer"] == "adamw"
    model = reference(start, Adam if "optimizer" in solver else SGD, **settings)
    model.data, model.own = (clients.x.numpy(), clients.y.numpy()), clients.train
    for number, present in enumerate(PRESENT):
        orders = {k: sim.batches(k, number) for k in present}
        assert [len(orders[k]) for k in present] == [[2, 4, 4, 8][k] for k in present]
        sim.round(present)
        model.round(present, model.data, orders)
        for n, w in model.w.items():
            np.testing.assert_allclose(
                sim.params[n].numpy(),
                w,
                rtol=tolerance,
                atol=tolerance * 0.1,
                err_msg=f"round {number}: {n}",
            )

    # what the clients keep
    for k, kept in model.clients.items():
        for slot, part in (
            ("v", case.split("(")[0]),
            (
                "c",
                "control_variates_after_momentum"
                if "after_momentum" in case
                else "control_variates",
            ),
            ("h", "dynamic_regularizer"),
            ("previous", "model_contrast"),
        ):
            if slot in kept:
                drawer = {
                    "ditto": "proximal_model",
                    "apfl": "parameter_mixture",
                    "apfl momentum": "parameter_mixture",
                }.get(part, part)
                drawer = "output_mixture" if "output" in case else drawer
                for n, value in kept[slot].items():
                    np.testing.assert_allclose(
                        sim.memory(k)[drawer][n].numpy(),
                        value,
                        rtol=tolerance,
                        atol=tolerance * 0.1,
                    )
        if "a" in kept:
            assert float(sim.memory(k)[drawer]["mixture.alpha"]) == pytest.approx(
                kept["a"], rel=SINGLE
            )


def test_schedule_and_kept_optimizer_state_equal_numpy():
    """Momentum goes on over the rounds a client takes part in, and lr falls by the factor 1/2 per round."""

    class Keeping(FedAvg):
        def local(self, k, data, order, lr):
            solver = self.clients[k].setdefault("solver", SGD(lr, momentum=0.5))
            solver.lr, p = lr, copy.deepcopy(self.w)
            for rows in order:
                p = solver.step(p, gradient(p, data[0][rows], data[1][rows]))
            return p

    clients = Clients.random(SIZES, dtype=torch.float64)
    sim = Simulation(
        "fedavg",
        mlp().double(),
        clients,
        **WORK,
        momentum=0.5,
        keep_optimizer_state=True,
        schedule=0.5,
    )
    model = Keeping({n: t.numpy().copy() for n, t in sim.params.items()})
    for number, present in enumerate(PRESENT):
        orders = {k: sim.batches(k, number) for k in present}
        sim.round(present)
        model.round(present, (clients.x.numpy(), clients.y.numpy()), orders, lr=LR * 0.5**number)
    for n, w in model.w.items():
        np.testing.assert_allclose(sim.params[n].numpy(), w, rtol=1e-9, atol=1e-10)


def test_fedavg_gradient_clip_equals_numpy():
    class Clipped(FedAvg):
        def change(self, g, p, x, y, k):
            norm = np.sqrt(vdot(g, g))
            return tmap(lambda g: g * min(1, 0.3 / norm), g)

    clients = Clients.random(SIZES, dtype=torch.float64)
    sim = Simulation("fedavg", mlp().double(), clients, **WORK, clip=0.3)
    model = Clipped({n: t.numpy().copy() for n, t in sim.params.items()})
    orders = {k: sim.batches(k, 0) for k in range(4)}
    sim.round()
    model.round(range(4), (clients.x.numpy(), clients.y.numpy()), orders)
    for n, w in model.w.items():
        np.testing.assert_allclose(sim.params[n].numpy(), w, rtol=1e-9, atol=1e-10)
