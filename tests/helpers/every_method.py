"""What the contract is tested on: every registered method, four small ragged clients, two rounds."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch
from simulation import Clients, Simulation, mlp

from unalike.core.types import Batch
from unalike.core.views import Cohort
from unalike.methods.method import Method
from unalike.methods.part import Part, parameters, registry
from unalike.methods.parts.shared_momentum import SharedMomentum
from unalike.methods.plan import Plan, plan
from unalike.methods.roles import ServerStep
from unalike.methods.sampler import Sampler

SIZES = (7, 3, 1, 5)
WORK: dict[str, Any] = {"epochs": 2, "batch_size": 4, "lr": 0.1}


LONG, SHORT = 10, 3
"""Where a part trains for `LONG` or more `steps` or `epochs` of its own, `SHORT` of them run the same code."""


SUMS = {"fedacg", "fedproto", "lg_fedavg"}
"""Methods whose parts are each tested in another method, where alone a case could fail."""


def distinct() -> dict[str, Plan]:
    """Registered name -> plan, each value once: a name of the catalogue before that of a part (`fedavg`, not `mean`).

    A part that papers do not know by its own name is tested in the method that it belongs to, and not once more by itself.
    Samplers act before a round, of which the contract knows nothing: `tests/methods/test_samplers.py` tests them.
    """
    methods = sorted(name for name in registry if not _is_part(registry[name]))
    named: dict[Plan, str] = {}
    tested: set[type] = set()
    for name in methods:
        if name not in SUMS:
            found = plan(name)
            named.setdefault(found, name)
            tested |= {type(p) for p in getattr(found, "parts", ())}
    for name in sorted(set(registry) - set(methods)):
        part: Any = registry[name]
        if issubclass(part, Sampler):
            continue
        if part.has_own_name or part not in tested:
            named.setdefault(plan(name), name)
    return {name: found for found, name in sorted(named.items(), key=lambda item: item[1])}


def _is_part(builder: Any) -> bool:
    return isinstance(builder, type) and issubclass(builder, Part)


def short(method: Plan) -> Plan:
    """The same, with `SHORT` steps where a part makes many."""
    if not isinstance(method, Method):
        return method
    long = {
        p: {f: SHORT for f in ("steps", "epochs") if parameters(p).get(f, 0) >= LONG}
        for p in method.parts
    }
    return Method(*(type(p)(**(parameters(p) | fewer)) for p, fewer in long.items()))


VARIANTS = (
    "topk(error_feedback=True)",
    "fedlaw(mapping='quadratic')",
    "feddisco(discrepancy='cosine', target='global')",
    "dp_sgd(noise_multiplier=0, batches='poisson')",
)
"""Settings that take another way than the defaults."""

QUIET = {"dp_sgd": Method.parse("dp_sgd(noise_multiplier=0)")}
"""Methods whose default draws other numbers in each executor."""

PLANS = {name: short(found) for name, found in distinct().items()} | QUIET
"""Name -> method or plan of several stages, each once: with its defaults, a new one is tested by being registered."""

METHODS = {name: m for name, m in PLANS.items() if isinstance(m, Method)}
METHODS |= {spec: short(Method.parse(spec)) for spec in VARIANTS}
"""Name -> method; plans of several stages have tests of their own."""


def federation(
    method: Method | str,
    executor: str = "loop",
    *,
    norm: bool = False,
    dtype: torch.dtype = torch.float32,
    **more: Any,
) -> Simulation:
    """Two rounds are to be played on this; warnings of combinations known to mislead do not matter here."""
    clients = Clients.random(SIZES, dtype=dtype)
    proxy = Batch(clients.x[1:7], clients.y[1:7])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Simulation(
            method,
            mlp(norm=norm and not _clips_samples(method), dropout=more.pop("dropout", 0.0)).to(
                dtype
            ),
            clients,
            executor=executor,
            proxy=proxy,
            **(WORK | more),
        )


def _clips_samples(method: Method | str) -> bool:
    """Whether the method refuses batch norm, because it clips the gradient of each sample."""
    return (Method.parse(method) if isinstance(method, str) else method).local_gradient is not None


def played(
    method: Method | str, executor: str = "loop", rounds: int = 2, **more: Any
) -> tuple[Simulation, list[Cohort]]:
    sim = federation(method, executor, **more)
    return sim, [sim.round() for _ in range(rounds)]


@cache
def reference(name: str) -> tuple[Simulation, list[Cohort]]:
    """Two rounds of a method by the loop; not to be played further."""
    return played(METHODS[name])


def clone(nest: Any) -> Any:
    """A deep copy of a nest of tensors."""
    if isinstance(nest, torch.Tensor):
        return nest.clone()
    if isinstance(nest, dict):
        return {name: clone(value) for name, value in nest.items()}
    if isinstance(nest, list | tuple):
        values = [clone(value) for value in nest]
        return type(nest)(*values) if hasattr(nest, "_fields") else type(nest)(values)
    return nest


def rounding(method: Method) -> float:
    """How far two executors may be apart, in shares of the update: float32 sums in another order.

    1e-4 where the server distils: steps of Adam, which divides by small numbers, enlarge the last bits. And where the first steps
    are a tenth of the gradient, so that the last bits are a larger share.
    """
    if any(isinstance(p, SharedMomentum) for p in method.parts):
        return 1e-4
    distils = any(
        isinstance(p, ServerStep) and p.rank == ServerStep.DISTILLATION for p in method.parts
    )
    return 1e-4 if distils else 1e-5
