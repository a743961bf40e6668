"""Choose the executor: chains of layers train in compiled loops, other small models stacked, large ones one client at a time.

Start reading at `decide`.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from unalike._utils import seeds, spec
from unalike._utils.errors import UnalikeError, unknown
from unalike.core import tree
from unalike.engine.base import ClientPool, Executor
from unalike.engine.batched import CACHE_BYTES, Batched, cuts
from unalike.engine.client_chunk import is_out_of_memory
from unalike.engine.loop import Loop
from unalike.engine.obstacles import obstacles
from unalike.engine.padding_checks import FewClients, padding_problem
from unalike.training.client.client_states import ClientStates
from unalike.training.client.client_update import initial_client_state
from unalike.training.server.kept_updates import UpdateBuffer
from unalike.training.server.server_update import initial_server_state, make_broadcast

EXECUTORS: dict[str, Callable[..., Executor]] = {"loop": Loop, "batched": Batched}
"""Name in spec text -> the executor, whose parameters follow the client pool."""

MEASURE_FROM_SECONDS = 20.0
"""Seconds of training from which on the executors are measured."""
TRIAL_ROUNDS = 3
"""Rounds that are measured, of which the best counts."""
MESSAGE_SECONDS = 0.005
"""Seconds that the messages between processes cost a round."""

MIN_CLIENTS_PER_STEP = 5.0
"""Clients' work per stacked step from which on stacking pays, and one more for every `FLOPS_PER_EXTRA_CLIENT`.

A stacked step of a tiny model costs as much as four steps of one client; one of a transformer with 5 million or of a TextCNN with
11 million operations as much as seven for ten clients, and eight with clients of unequal sizes (measured on a CPU)."""
FLOPS_PER_EXTRA_CLIENT = 4e6
"""Floating-point operations of a forward pass for which stacking has to do the work of one more client."""
MAX_STACKED_FLOPS = 20e6
"""Floating-point operations of a forward pass beyond which stacking gains nothing on a CPU: it spares the overhead of a step, which
is then short beside the step itself (measured: ten stacked clients of a LeNet with group norm and 18 million are 1.7 times as
fast as the loop)."""
MAX_STACKED_FLOPS_ON_DEVICE = 2e10
"""The same on an accelerator: ten stacked clients of a ResNet-18 with 56 billion take an H200 twice as long as one after the other,
of a ResNet-20 with 4 billion half as long."""

THREADED_FLOPS = 200e6
"""Floating-point operations of a convolutional forward pass from which on torch's threads share it well (an estimate)."""


def build(text: str, client_pool: ClientPool) -> Executor:
    """The executor of one process that `text` names: "loop", "batched" or "batched(chunk=20)"."""
    call = spec.parse_one(text)
    if call.name not in EXECUTORS:
        raise unknown("executor", call.name, [*EXECUTORS, "auto", "distributed"])
    try:
        return EXECUTORS[call.name](client_pool, **call.parameters)
    except TypeError as error:
        raise UnalikeError(
            f"executor {call}: {error}; write 'loop', 'batched' or 'batched(chunk=20)'"
        ) from None


@dataclass(frozen=True)
class Choice:
    """An executor as text, and the reason for choosing it."""

    executor: str
    why: str

    def __str__(self) -> str:
        return f"{self.executor}: {self.why}"


def decide(text: str, client_pool: ClientPool, participants: int, rounds: int) -> Choice:
    """Replace "auto" by the executor to use; any other text stands for itself.

    A rule decides short runs, so that they repeat bit for bit. Runs of at least `MEASURE_FROM_SECONDS` are measured: the loop
    against chunks of several widths, on a few clients whose updates are thrown away.

    `text` is the executor as the user wrote it. Raises `UnalikeError` for chunks of a model or part that cannot be stacked.
    """
    call = spec.parse_one(text)
    problem = _stacking_problem(client_pool) if call.name == "batched" else None
    if problem:
        raise UnalikeError(
            f"executor {call}: the model cannot be stacked: {problem}; write 'loop' or 'auto'"
        )
    if call.name != "auto":
        return Choice(text, "asked for")
    choice = _rule(client_pool, participants, rounds) or _measured(client_pool, participants)
    reason = Batched(client_pool).loops_obstacle
    if reason is None:
        return choice
    return replace(choice, why=f"{choice.why}; compiled loops do not train the model: {reason}")


def work_seconds(client_pool: ClientPool, participants: int, rounds: int) -> float:
    """An estimate of the training time in seconds in one process, one client after the other."""
    return rounds * participants * _seconds_of_a_client(client_pool)


def _rule(client_pool: ClientPool, participants: int, rounds: int) -> Choice | None:
    """The choice for a short run; for a long one None where a measurement could change it."""
    model, operations = client_pool.settings.model, client_pool.operations
    on_cpu = client_pool.source.y.device.type == "cpu"

    # compiled loops are the fastest, unless most threads would have no client
    if Batched(client_pool).uses_compiled_loops:
        leaves_threads = 2 * participants < torch.get_num_threads()
        if model.convolutional and leaves_threads and operations > THREADED_FLOPS:
            return Choice(
                "loop",
                "threads share a step, and compiled loops would leave most of them without a client",
            )
        return Choice("batched", "compiled loops train the model")

    # where stacking can gain nothing, whatever the clients are
    if participants < 2:
        return Choice("loop", "one client a round leaves nothing to stack")
    if model.recurrent:
        return Choice("loop", "torch computes stacked recurrent layers one after the other")
    if on_cpu and 4 * tree.nbytes(model.params) > CACHE_BYTES:
        return Choice(
            "loop", "the model is too large for several of them to share the processor's cache"
        )
    if operations > (MAX_STACKED_FLOPS if on_cpu else MAX_STACKED_FLOPS_ON_DEVICE):
        millions = f"{operations / 1e6:.0f} million operations forward"
        return Choice("loop", f"a step is work enough for a processor ({millions})")

    # where the clients of a round are too few, or too unlike in size; a long run is measured instead
    gain = _clients_per_step(client_pool, participants)
    worth = MIN_CLIENTS_PER_STEP
    if on_cpu:
        worth += operations / FLOPS_PER_EXTRA_CLIENT
    is_long = work_seconds(client_pool, participants, rounds) >= MEASURE_FROM_SECONDS
    if not is_long and gain < worth:
        return Choice(
            "loop",
            f"stacking would do the work of {gain:.1f} clients at a time, and pays from {worth:.1f} on",
        )
    problem = _stacking_problem(client_pool)
    if problem:
        return Choice("loop", f"the model cannot be stacked: {problem}")
    return None if is_long else Choice("batched", "a step of the model is little work")


def _measured(client_pool: ClientPool, participants: int) -> Choice:
    """The fastest per client of the loop and of chunks of half, once and twice the width that fits the cache."""
    seconds = _seconds_by_executor(client_pool, participants)
    best = min(seconds, key=lambda text: seconds[text])
    milliseconds = {text: f"{1e3 * s:.2f}" for text, s in seconds.items()}
    best_time = milliseconds.pop(best)
    others = ", ".join(f"{text} {time}" for text, time in milliseconds.items())
    return Choice(best, f"measured {best_time} ms a client; {others}")


def share_gain(client_pool: ClientPool, participants: int, rounds: int, processes: int) -> float:
    """Time of a round in one process over that of the largest share, if its clients are shared out to several processes.

    A step of stacked small models costs nearly the same for half of the clients, so that halves gain little; messages count
    (`MESSAGE_SECONDS`).
    """
    largest = -(-participants // processes)
    if _rule(client_pool, participants, rounds) is not None:
        return participants / largest
    whole = participants * min(_seconds_by_executor(client_pool, participants).values())
    share = largest * min(_seconds_by_executor(client_pool, largest).values())
    return whole / (share + MESSAGE_SECONDS)


def _seconds_by_executor(client_pool: ClientPool, participants: int) -> dict[str, float]:
    """Measured seconds of a client by the loop, and in chunks."""
    width = min(Batched(client_pool).width, participants)
    steps = client_pool.steps(client_pool.typical)
    seconds = {"loop": steps * _trial(client_pool, Loop, 2)}
    widths = {max(2, min(participants, w)) for w in (width // 2, width, 2 * width)}
    for chunk in sorted(widths):
        make = partial(Batched, chunk=chunk)
        seconds[f"batched(chunk={chunk})"] = steps * _trial(client_pool, make, chunk)
    return seconds


def _trial(client_pool: ClientPool, make: Callable[[ClientPool], Executor], clients: int) -> float:
    """Seconds per step in a round of this many clients, of all sizes: the best of several rounds after one to warm up."""
    # clients at equal distances in the order of sizes
    sizes = client_pool.sizes
    filled = np.flatnonzero(sizes)
    ordered = filled[np.argsort(sizes[filled], kind="stable")]
    clients = min(clients, len(ordered))
    ids = ordered[(2 * np.arange(clients) + 1) * len(ordered) // (2 * clients)].tolist()

    # states of its own: the updates are thrown away
    method, settings = client_pool.method, client_pool.settings
    client_states = ClientStates(initial_client_state(method, settings))
    executor = make(replace(client_pool, client_states=client_states))
    server_state = initial_server_state(method, settings)
    broadcast = make_broadcast(method, settings, server_state, len(filled), ids)

    times = []
    for _ in range(TRIAL_ROUNDS + 1):
        updates = UpdateBuffer(ids)
        started = time.perf_counter()
        executor.feed(broadcast, ids, {}, updates)
        stacked = updates.stacked(ids)
        _wait_for([*stacked.update.values(), stacked.loss])
        times.append(time.perf_counter() - started)
    steps = sum(client_pool.steps(n) for n in sizes[ids].tolist())
    return min(times[1:]) / steps


def _seconds_of_a_client(client_pool: ClientPool) -> float:
    """Seconds of a client of mean size in the loop: its steps times the seconds of one forward and backward pass."""
    settings = client_pool.settings
    model, task = settings.model, settings.task
    x, y = client_pool.typical_batch
    leaves = {n: w.detach().requires_grad_(model.trainable(n)) for n, w in model.params.items()}
    trained = [leaf for leaf in leaves.values() if leaf.requires_grad]
    times = []
    # dropout draws numbers; the caller may have gradients off
    with seeds.isolated(0, y.device), torch.enable_grad():
        for _ in range(TRIAL_ROUNDS):
            started = time.perf_counter()
            output = model(
                leaves,
                x,
                buffers=model.buffers,
                context=client_pool.some_context,
                training=True,
            )
            loss = task.loss(output.logits, y)
            _wait_for(torch.autograd.grad(loss, trained, allow_unused=True))
            times.append(time.perf_counter() - started)
    return client_pool.steps(client_pool.typical) * min(times)


def _wait_for(tensors: Iterable[Tensor | None]) -> None:
    """Return when these are computed: an accelerator works asynchronously."""
    for t in tensors:
        if t is not None and t.device.type != "cpu":
            t.sum().item()


def _clients_per_step(client_pool: ClientPool, participants: int) -> float:
    """Clients' steps per stacked step in a typical cohort: the width of a chunk less its padding."""
    sizes = client_pool.sizes
    sizes = sizes[sizes > 0]
    cohort = np.sort(sizes)[np.arange(participants) * len(sizes) // participants]
    distinct_sizes, counts = np.unique(cohort, return_counts=True)
    steps = np.repeat([client_pool.steps(n) for n in distinct_sizes.tolist()], counts)
    chunks = np.split(steps, cuts(cohort, Batched(client_pool).width))
    # a chunk makes as many steps as its longest client
    return float(steps.sum() / sum(chunk.max() for chunk in chunks))


def _stacking_problem(client_pool: ClientPool) -> str | None:
    """The reason why clients cannot be trained stacked, found by training two of them; None if they can."""
    method, settings = client_pool.method, client_pool.settings
    known = next(obstacles("stacked", method, settings.work), None)
    problem = known or padding_problem(client_pool)
    if problem:
        return problem
    # two samples of two clients are enough for an operation that cannot be stacked
    clients = np.flatnonzero(client_pool.sizes)[:2].tolist()
    rows = [client_pool.source.train[k][:2] for k in clients]
    few = FewClients(client_pool.source, rows)
    work = replace(settings.work, epochs=1, steps=2)
    try:
        few.stacked(method, replace(settings, work=work), len(few))
    except UnalikeError:
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        # chunks are halved until they fit
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            return None
        return str(error).split("\n")[0][:200] or type(error).__name__
    return None
