"""Parts with a second gradient do in every executor, and in a federation, what plain torch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_federation import SmallFederation
from torch import Tensor, nn

import unalike as ua

SIZES = (7, 3, 8)
LR, STEPS, ROUNDS, RHO = 0.3, 3, 2, 0.1
EXECUTORS = ("loop", "batched", "batched(compiled_loops=False)", "distributed(workers=2)")
Point = Callable[[list[Tensor], list[Tensor]], list[Tensor]]


def climb(w: list[Tensor], g: list[Tensor]) -> list[Tensor]:
    length = torch.cat([t.flatten() for t in g]).norm()
    return [a + RHO * b / length for a, b in zip(w, g)]


def look_ahead(w: list[Tensor], g: list[Tensor]) -> list[Tensor]:
    return [a - LR * b for a, b in zip(w, g)]


POINTS: dict[str, Point] = {f"fedsam(rho={RHO})": climb, "extragradient": look_ahead}
LIMITS = ("fedsam(rho=0)", "extragradient(ahead=0)")
SUMS = (
    *("scaffold", "fedprox(mu=0.5)", "fedper", "fedrep(epochs=1)", "fedrep(epochs=1) + scaffold"),
    *("ditto", "perfedavg", "moon"),
)
"""A correction, a further term, private parameters, two phases, a personal model, an inner step, features of other models."""


def samples() -> list[ua.ClientData]:
    g = torch.Generator().manual_seed(0)
    x = [torch.randn(n + 4, 4, generator=g) + torch.randn(4, generator=g) for n in SIZES]
    y = [torch.randint(0, 3, (len(rows),), generator=g) for rows in x]
    return [ua.ClientData(train=(a[4:], b[4:]), test=(a[:4], b[:4])) for a, b in zip(x, y)]


def model(norm: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Linear(4, 5, bias=not norm),
            *([nn.BatchNorm1d(5)] if norm else []),
            nn.Tanh(),
            nn.Linear(5, 3),
        )


def params_of(spec: str, executor: str, norm: bool = False, **work: Any) -> dict[str, Tensor]:
    work = {"lr": LR, "batch_size": None, "steps": STEPS} | work
    return ua.run(
        *(spec, samples()),
        model=model(norm),
        rounds=ROUNDS,
        work=ua.Work(**work),
        executor=executor,
        progress=False,
    ).params


def plain(point: Point) -> dict[str, Tensor]:
    """The rounds in plain torch: full batches, two gradients a step, the mean by number of samples."""
    net = model()
    names, w = zip(*((n, p.detach().clone()) for n, p in net.named_parameters()))

    def gradient(at: list[Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in at]
        logits = torch.func.functional_call(net, dict(zip(names, leaves)), x)
        return list(torch.autograd.grad(nn.functional.cross_entropy(logits, y), leaves))

    for _ in range(ROUNDS):
        mean = [torch.zeros_like(t) for t in w]
        for client in samples():
            v = list(w)
            for _ in range(STEPS):
                g = gradient(point(v, gradient(v, *client.train)), *client.train)
                v = [a - LR * b for a, b in zip(v, g)]
            mean = [m + len(client.train[1]) / sum(SIZES) * t for m, t in zip(mean, v)]
        w = tuple(mean)
    return dict(zip(names, w))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("spec", POINTS)
def test_second_gradient_equals_plain_torch(spec, executor):
    torch.testing.assert_close(params_of(spec, executor), plain(POINTS[spec]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize("spec", LIMITS)
def test_second_gradient_at_the_same_point_is_fedavg(spec, executor):
    torch.testing.assert_close(
        params_of(spec, executor), params_of("fedavg", executor), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("other", SUMS)
@pytest.mark.parametrize("spec", POINTS)
def test_second_gradient_in_a_sum_is_the_same_stacked(spec, other, norm):
    """With small batches, so that rows and whole steps are padding; norms of two samples would enlarge rounding errors."""
    work: dict[str, Any] = {"batch_size": 4, "steps": None, "epochs": 2, "lr": 0.1}
    loop, batched = (params_of(f"{other} + {spec}", e, norm, **work) for e in ("loop", "batched"))
    torch.testing.assert_close(
        batched, loop, rtol=1e-3 if norm else 1e-4, atol=1e-4 if norm else 1e-6
    )


@pytest.mark.parametrize("spec", POINTS)
def test_federation_with_second_gradient_equals_simulation(spec, tmp_path):
    federation = SmallFederation(tmp_path, method=spec)
    torch.testing.assert_close(
        federation.run().params, federation.simulated().params, rtol=0, atol=0
    )
