"""Choose the executor: small dense models want stacking, convolutions on a CPU want one client at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from unalike._utils import seeds, spec
from unalike._utils.errors import UnalikeError, unknown
from unalike.core import tree
from unalike.engine.base import ClientPool, Executor
from unalike.engine.batched import CACHE, Batched, cuts
from unalike.engine.client_chunk import out_of_client_state
from unalike.engine.dense.step import supports_dense
from unalike.engine.loop import Loop
from unalike.engine.padding_checks import FewClients, counting
from unalike.training.aggregation import UpdateBuffer
from unalike.training.client_states import ClientStates
from unalike.training.client_update import initial_client_state
from unalike.training.server_update import initial_server_state, make_broadcast

EXECUTORS: dict[str, Callable[..., Executor]] = {"loop": Loop, "batched": Batched}

LONG = 20.0
"""Seconds of training from which on measuring pays."""
TRIALS = 3

PAYS = 900.0
"""Seconds of stacked training from which on its steps are compiled: they get 1.2 to 1.5 times faster, after 15 to 50 seconds."""

WORTH = 5.0
"""A stacked step of small dense models costs about as much as four steps of one client (measured on a CPU)."""
MUCH = 10e6
"""Floating-point operations of a forward pass that keep a CPU busy for as long as a step's overhead takes, or longer: stacking,
which spares the overhead, gains nothing beyond them (measured; of models that are trained by hand it does)."""
BY_HAND = 2.0
"""The same of models that are trained by hand, where it costs little more than one."""


def build(text: str, client_pool: ClientPool) -> Executor:
    """The executor of one process that `text` names: "loop", "batched" or "batched(chunk=20, compile=True)"."""
    call = spec.parse_one(text)
    if call.name not in EXECUTORS:
        raise unknown("executor", call.name, [*EXECUTORS, "auto", "distributed"])
    try:
        return EXECUTORS[call.name](client_pool, **call.parameters)
    except TypeError as error:
        raise UnalikeError(
            f"executor {call}: {error}; write 'loop', 'batched' or 'batched(chunk=20, compile=True)'"
        ) from None


@dataclass(frozen=True)
class Choice:
    """An executor as text, and why it was chosen."""

    executor: str
    why: str


def decide(text: str, client_pool: ClientPool, participants: int, rounds: int) -> Choice:
    """What "auto" stands for; any other text stands for itself.

    A rule decides short runs, so that they are repeated bit by bit. A run long enough to pay for it (`LONG`) is decided by
    measurement: the loop against chunks of several widths, on a few clients whose reports are thrown away.

    Raises `UnalikeError` where chunks are asked for and the model, or a part, cannot be stacked.
    """
    call = spec.parse_one(text)
    if call.name == "batched" and (problem := _obstacle(client_pool)):
        raise UnalikeError(f"executor {call}: the model cannot be stacked: {problem}; write 'loop' or 'auto'")
    if call.name != "auto":
        return Choice(text, "asked for")
    found = _rule(client_pool, participants)
    if isinstance(found, Choice):
        return found
    if work_seconds(client_pool, participants, rounds) < LONG:
        return Choice("batched", found)
    return _compiling(_measured(client_pool, participants), client_pool, participants, rounds)


def work_seconds(client_pool: ClientPool, participants: int, rounds: int) -> float:
    """About how long one process trains, one client after the other."""
    return rounds * participants * _seconds_of_a_client(client_pool)


def _rule(client_pool: ClientPool, participants: int) -> Choice | str:
    """The choice where no measurement could change it; else why clients can be stacked."""
    model = client_pool.settings.model
    on_cpu = client_pool.source.x.device.type == "cpu"
    if Batched(client_pool).fuses:
        return Choice("batched", "compiled loops train dense models")
    if participants < 2:
        return Choice("loop", "one participant a round leaves nothing to stack")
    if on_cpu and model.convolutional:
        return Choice("loop", "stacked convolutions are slower on a CPU")
    if model.recurrent:
        return Choice("loop", "torch computes stacked recurrent layers one after the other")
    if on_cpu and 4 * tree.nbytes(model.params) > CACHE:
        return Choice("loop", "the model is too large for several of them to share the processor's cache")
    gain = _parallelism(client_pool, participants)
    by_hand = supports_dense(client_pool.method, client_pool.settings, client_pool.source.x)
    worth = BY_HAND if by_hand else WORTH
    if on_cpu and not by_hand and (work := _operations(client_pool)) > MUCH:
        return Choice("loop", f"a step is work enough for a processor ({work / 1e6:.0f} million operations forward)")
    if gain < worth:
        return Choice("loop", f"stacking would do the work of {gain:.1f} clients at a time, and pays from {worth:g} on")
    problem = _obstacle(client_pool)
    if problem:
        return Choice("loop", f"the model cannot be stacked: {problem}")
    return "the model is small and dense"


def _measured(client_pool: ClientPool, participants: int) -> Choice:
    """The fastest per client of the loop and of chunks of half, once and twice the width that fits the cache."""
    width = min(Batched(client_pool).width, participants)
    widths = sorted({max(2, min(participants, w)) for w in (width // 2, width, 2 * width)})
    seconds = {"loop": _trial(client_pool, Loop, 2)}
    seconds |= {f"batched(chunk={w})": _trial(client_pool, partial(Batched, chunk=w), w) for w in widths}
    best = min(seconds, key=lambda text: seconds[text])
    others = ", ".join(f"{text} {1e3 * s:.2f}" for text, s in seconds.items() if text != best)
    return Choice(best, f"measured {1e3 * seconds[best]:.2f} ms a client; {others}")


def _compiling(found: Choice, client_pool: ClientPool, participants: int, rounds: int) -> Choice:
    """The same choice with compiled steps, where there are few kinds of them and the run is by far long enough."""
    settings, chosen, sizes = client_pool.settings, spec.parse_one(found.executor), client_pool.sizes
    rows = np.minimum(sizes[sizes > 0], settings.work.batch_size or sizes.max())
    by_hand = supports_dense(client_pool.method, settings, client_pool.source.x)
    few = len(np.unique(rows)) == 1 and settings.work.schedule == 1 and client_pool.source.x.device.type == "cpu"
    if chosen.name != "batched" or by_hand or not few:
        return found
    width = chosen.parameters["chunk"]
    seconds = rounds * participants * _trial(client_pool, partial(Batched, chunk=width), width)
    if seconds < PAYS:
        return found
    why = f"{found.why}; about {seconds / 60:.0f} minutes of steps are worth compiling"
    return Choice(f"batched(chunk={width}, compile=True)", why)


def _trial(client_pool: ClientPool, make: Callable[[ClientPool], Executor], clients: int) -> float:
    """Seconds that one of so many typical clients takes, the best of three rounds after one that warms up."""
    sizes = client_pool.sizes
    filled = np.flatnonzero(sizes)
    typical = filled[np.argsort(sizes[filled], kind="stable")]
    ids = typical[len(typical) // 2 - min(clients, len(typical)) // 2 :][:clients].tolist()
    probe = make(
        replace(client_pool, client_states=ClientStates(initial_client_state(client_pool.method, client_pool.settings)))
    )
    order = make_broadcast(
        client_pool.method,
        client_pool.settings,
        initial_server_state(client_pool.method, client_pool.settings),
        len(filled),
        ids,
    )
    times = []
    for _ in range(TRIALS + 1):
        reports, started = UpdateBuffer(ids), time.perf_counter()
        probe.feed(order, ids, {}, reports)
        assert reports.taken is not None
        _wait_for([*reports.taken.stacked.update.values(), reports.taken.stacked.loss])
        times.append(time.perf_counter() - started)
    return min(times[1:]) / len(ids)


def _seconds_of_a_client(client_pool: ClientPool) -> float:
    """What a client of mean size takes in the loop: its steps times that of one forward and backward pass."""
    settings, size = client_pool.settings, client_pool.typical
    x, y = _batch(client_pool)
    leaves = {n: w.detach().requires_grad_(settings.model.trainable(n)) for n, w in settings.model.params.items()}
    times = []
    with seeds.isolated(0, x.device), torch.enable_grad():  # dropout; and whoever runs this may have gradients off
        for _ in range(TRIALS):
            started = time.perf_counter()
            output = settings.model(
                leaves, x, buffers=settings.model.buffers, context=client_pool.some_context, training=True
            )
            loss = settings.task.loss(output.logits, y)
            _wait_for(torch.autograd.grad(loss, [w for w in leaves.values() if w.requires_grad], allow_unused=True))
            times.append(time.perf_counter() - started)
    return client_pool.steps(size) * min(times)


def _operations(client_pool: ClientPool) -> int:
    """What the forward pass of a batch of a client of mean size comes to, in floating-point operations of products."""
    model = client_pool.settings.model
    x, _ = _batch(client_pool)
    with seeds.isolated(0, x.device), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(model.params, x, buffers=model.buffers, context=client_pool.some_context, training=True)
    return int(counter.get_total_flops())


def _batch(client_pool: ClientPool) -> tuple[Tensor, Tensor]:
    """As many samples as a batch of a client of mean size has."""
    size = client_pool.typical
    rows = min(len(client_pool.source.x), client_pool.settings.work.batch_size or size, size)
    return client_pool.source.x[:rows], client_pool.source.y[:rows]


def _wait_for(found: Iterable[Tensor | None]) -> None:
    """Return when the device has computed these: an accelerator is told what to do and answers later."""
    for t in found:
        if t is not None and t.device.type != "cpu":
            t.sum().item()


def _parallelism(client_pool: ClientPool, participants: int) -> float:
    """Steps of a typical cohort over the stacked steps that do the same: what padding leaves of the width of a chunk."""
    sizes = client_pool.sizes
    sizes = sizes[sizes > 0]
    cohort = np.sort(sizes)[np.arange(participants) * len(sizes) // participants]
    kinds, counts = np.unique(cohort, return_counts=True)
    steps = np.repeat([client_pool.steps(n) for n in kinds.tolist()], counts)
    chunks = np.split(steps, cuts(cohort, Batched(client_pool).width))
    return float(steps.sum() / sum(chunk.max() for chunk in chunks))


def _obstacle(client_pool: ClientPool) -> str | None:
    """Why clients cannot be trained stacked, most of it found by doing it with two; None when they can."""
    if problem := counting(client_pool):
        return problem
    few = FewClients(
        client_pool.source, [client_pool.source.train[k][:2] for k in np.flatnonzero(client_pool.sizes)[:2].tolist()]
    )
    settings = replace(client_pool.settings, work=replace(client_pool.settings.work, epochs=1, steps=2))
    try:
        few.stacked(client_pool.method, settings, len(few))
    except UnalikeError:
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        if isinstance(error, RuntimeError) and out_of_client_state(error):
            return None  # chunks are halved until they fit
        return str(error).split("\n")[0][:200] or type(error).__name__
    return None
