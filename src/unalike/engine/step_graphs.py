"""Local steps as CUDA graphs: a step is recorded once, and then the host launches it as a whole, not kernel by kernel.

The steps of small models take the host longer than the device: on an H200 a step of a ResNet-20 in batches of 50 took 8.9 ms
kernel by kernel and 2.2 ms as a graph. A graph reads and writes fixed memory, so inputs are copied there and results from there.
Whatever else a step reads is the same in each replay; what differs is hidden from it (`Unknown`), and a step that asks for it
is not recorded. Start reading at `StepGraphs.trainers`.
"""

import gc
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unalike._utils.profiler_regions import profiled
from unalike.core.nests import map_tensors, tensors_of
from unalike.core.types import Batch, Broadcast, ClientUpdate, PartTrees, Tree
from unalike.core.views import StageSettings
from unalike.core.work import Work
from unalike.engine.client_chunk import BatchSequence, ClientChunk, StackedBatches, is_out_of_memory
from unalike.methods.method import Method
from unalike.methods.roles import Phase
from unalike.training.client.client_task import ClientTask
from unalike.training.client.client_update import TrainedClient, stepwise
from unalike.training.client.local_step import (
    StepState,
    StepSums,
    TrainerFactory,
    initial_solver_state,
)

R = TypeVar("R")
Nest = dict[str, Any]
"""Tensors in dictionaries."""

KEPT, BYTES = 16, 2**31
"""Phases that are kept recorded, and bytes of their fixed memory. Each form of a phase's tensors is recorded by itself, and chunks
of unequal clients have many."""


class NotRecordable(Exception):
    """A step cannot be recorded; the message gives the reason."""


class Unknown:
    """In the place of a value that differs between replays: whoever looks at it cannot be recorded."""

    def _refuse(self, *_: Any) -> Any:
        raise NotRecordable("a part reads the round, the client's samples or the index of the step")

    __getattr__ = __bool__ = __eq__ = __ne__ = __hash__ = (
        _refuse  # everything else raises an error as it is
    )


class LaterStep(Unknown):
    """The index of a step of which is known that it is not the first."""

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> Any:
        return False if isinstance(other, int) and other == 0 else self._refuse()

    __hash__ = Unknown._refuse


class RecordableOperations(TorchDispatchMode):
    """Refuses operations that wait for the device, or copy to it: a graph would repeat them with the numbers of its recording."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*func.tags}:
            raise NotRecordable(f"{func} waits for the device")
        found = func(*args, **(kwargs or {}))
        if func in COPIES and len({t.device for t in (*args, found) if isinstance(t, Tensor)}) > 1:
            raise NotRecordable(f"{func} copies between devices")
        return found


COPIES = torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default


@dataclass(eq=False)
class CudaRecorder:
    """Records what functions launch on a CUDA device. All of its graphs share their memory: none keeps anything there."""

    device: torch.device

    @property
    def refused(self) -> str | None:
        """The reason why nothing can be recorded on the device."""
        return None if self.device.type == "cuda" else "it takes a CUDA device"

    @property
    def generator(self) -> torch.Generator:
        """The device's generator of random numbers."""
        return torch.cuda.default_generators[self.device.index or 0]

    @cached_property
    def _place(self) -> dict[str, Any]:
        return {"pool": torch.cuda.graph_pool_handle(), "stream": torch.cuda.Stream(self.device)}

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """A function that launches again what `function` launches; nothing is computed yet."""
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.graph(graph, capture_error_mode="thread_local", **self._place),
            _kept_garbage(),
        ):
            function()
        return graph.replay


@dataclass(eq=False)
class StepKind:
    """Steps whose batches have one form: the batch's fixed memory, the step as a function, and its replay once recorded."""

    rows: Tree
    step: Callable[[], None]
    replay: Callable[[], None] | None = None


class RecordedPhase:
    """The steps of a phase in fixed memory: `inputs` stay the same during the phase, `state` is what steps change.

    `step(inputs, state, rows, idle=, first=)` returns the new state. The first step of a kind is a trial, the second one is
    recorded.
    """

    def __init__(
        self, recorder: CudaRecorder, step: Callable[..., Nest], inputs: Nest, state: Nest
    ):
        self.recorder, self.step, self.kinds = recorder, step, dict[Any, StepKind]()
        self.inputs, self.state = (
            map_tensors(partial(_fixed, recorder.device), nest) for nest in (inputs, state)
        )

    @cached_property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in tensors_of([self.inputs, self.state]))

    def load(self, inputs: Nest, state: Nest) -> None:
        """Start with these values, which have the same form."""
        _write([self.inputs, self.state], [inputs, state])

    def __call__(self, batch: Batch, first: bool) -> None:
        """Make a step."""
        rows = {name: t for name, t in batch._asdict().items() if isinstance(t, Tensor)}
        form = first, batch.idle, _form(rows)
        kind = self.kinds.get(form)
        with profiled("forward and backward"):
            if kind is None:
                rows = map_tensors(partial(_fixed, self.recorder.device), rows)
                kind = StepKind(rows, partial(self._run, rows, batch.idle, first))
                with _no_numbers_drawn(), RecordableOperations():
                    kind.step()
                self.kinds[form] = kind
                return
            _write(kind.rows, rows)
            if kind.replay is None:
                kind.replay = self.recorder.record(kind.step)
            kind.replay()

    def _run(self, rows: Tree, idle: bool, first: bool) -> None:
        after = self.step(self.inputs, self.state, rows, idle=idle, first=first)
        for old, new in _pairs(self.state, after):
            if old.data_ptr() != new.data_ptr():
                old.copy_(new)


@dataclass(eq=False)
class StepGraphs:
    """The recorded phases of a method's training, or of its fine-tuning, in one executor.

    With `stacked` clients every tensor has a leading [K]. `refused` is the reason why steps are not recorded; None while they are.
    """

    stacked: bool
    recorder: CudaRecorder
    refused: str | None
    _phases: dict[Any, RecordedPhase] = field(default_factory=dict)

    @classmethod
    def of(cls, method: Method, settings: StageSettings, stacked: bool) -> "StepGraphs":
        """The graphs of a method's steps, or the reason why none of them can be recorded."""
        recorder = CudaRecorder(next(iter(settings.model.params.values())).device)
        refused = recorder.refused
        if method.local_gradient is not None:
            refused = "private steps draw numbers for each batch"
        elif callable(settings.work.optimizer):
            refused = "its optimizer is a function of a program"
        return cls(stacked, recorder, refused)

    def attempt(self, recorded: Callable[[], R], plain: Callable[[], R]) -> R:
        """The result of `recorded` for stacked clients, or of `plain` where steps cannot be recorded."""
        if self.refused is None:
            before = self.recorder.generator.get_state()
            try:
                return recorded()
            except NotRecordable:
                self.recorder.generator.set_state(before)
        return plain()

    def refuse(self, error: Exception) -> None:
        """Record no more steps, and say so; memory that has run out is raised again, without what the graphs held."""
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            self._phases.clear()
            raise error
        self.refused = str(error)
        text = f"local steps are launched kernel by kernel, which takes up to ten times as long: {self.refused}"
        warnings.warn(text, stacklevel=3)

    def train(self, chunk: ClientChunk) -> tuple[ClientUpdate, PartTrees]:
        """The round of stacked clients."""
        chunk = chunk.begin()
        return chunk.client_updates(self._run(chunk, chunk.method.phases))

    def tune(self, chunk: ClientChunk) -> Tree:
        """The parameters and buffers of stacked clients after the method's fine-tuning."""
        assert chunk.method.finetuning_phase is not None
        trained = self._run(chunk.tuner.begin(), (chunk.method.finetuning_phase,))
        return trained.params | trained.buffers

    def _run(self, chunk: ClientChunk, phases: Sequence[Phase]) -> TrainedClient:
        return chunk.run(phases, partial(self.trainers, messages=chunk.given["messages"]))

    def trainers(self, task: ClientTask, messages: PartTrees = {}) -> TrainerFactory:  # noqa: B006
        """Makes trainers of a client's phases, or of stacked clients', whose own `messages` are not in the broadcast.

        Where steps are not recorded these are the plain ones of one client.
        """
        return stepwise(task) if self.refused else partial(GraphTrainer, self, task, messages)

    def phase(
        self, key: Any, step: Callable[..., Nest], inputs: Nest, state: Nest
    ) -> RecordedPhase:
        """The recorded phase of this key and form, loaded with these values; the oldest ones beyond the limits go."""
        key = key, _form(inputs), _form(state)
        found = self._phases.pop(key, None)
        if found is None:
            found = RecordedPhase(self.recorder, step, inputs, state)
        else:
            found.load(inputs, state)
        self._phases[key] = found
        while len(self._phases) > KEPT or sum(p.nbytes for p in self._phases.values()) > max(
            BYTES, found.nbytes
        ):
            del self._phases[next(iter(self._phases))]
        return found


@dataclass(frozen=True, eq=False)
class PureStep:
    """A step of `LocalStep` as a function of tensors; it holds no client.

    `lr` is the learning rate of the round, `work.lr` that of the phase.
    """

    method: Method
    settings: StageSettings
    work: Work
    phase: int
    lr: float
    stacked: bool

    def __call__(self, inputs: Nest, state: Nest, rows: Tree, idle: bool, first: bool) -> Nest:
        """The new state of the client, or of stacked ones."""
        one = partial(self._one, idle=idle, first=first)
        stacked = torch.vmap(one, in_dims=(None, 0, 0, 0), randomness="different")
        return (stacked if self.stacked else one)(inputs["shared"], inputs["own"], state, rows)

    def _one(
        self, shared: Nest, own: Nest, state: Nest, rows: Tree, idle: bool, first: bool
    ) -> Nest:
        unknown: Any = Unknown()
        params, messages, buffers, begun = (
            own[name] for name in ("params", "messages", "buffers", "begun")
        )
        client_state, context, size = own["client_state"], own["context"], own["size"]
        broadcast = Broadcast(
            unknown, shared["params"], buffers, shared["messages"], self.lr
        ).with_messages(messages)
        task = ClientTask(
            self.method, self.settings, broadcast, client_state, unknown, context, size, begun
        )
        make = partial(stepwise(task, self.stacked), self.work, phase=self.phase)
        step = make(params=params, client_state=client_state)
        batch, number = Batch(idle=idle, **rows), 0 if first else LaterStep()
        before = StepState(**{name: t for name, t in state.items() if name != "sums"})
        mean, after = step(before, batch, number, owned=not idle and not self.method.trained_parts)  # type: ignore[operator]
        count = mean.new_full((), len(batch.y)) if batch.weight is None else batch.weight.sum()
        more = {"loss": count * mean, "rows": count, "steps": count > 0}
        return vars(after) | {
            "sums": {name: total + more[name] for name, total in state["sums"].items()}
        }


class GraphTrainer:
    """Trains a phase of one client, or of stacked ones, in recorded steps of `LocalStep`."""

    def __init__(
        self,
        graphs: StepGraphs,
        task: ClientTask,
        messages: PartTrees,
        work: Work,
        *,
        phase: int,
        params: Tree,
        client_state: PartTrees,
    ):
        lr = task.broadcast.lr
        self.step = PureStep(task.method, task.settings, work, phase, lr, graphs.stacked)
        self.graphs, self.size, self.key = graphs, task.size, (phase, work.lr, lr)
        self.plain = partial(
            stepwise(task), work, phase=phase, params=params, client_state=client_state
        )
        own = {
            "context": dict(task.context),
            "size": task.size,
            "messages": messages,
            "buffers": task.broadcast.buffers,
        }
        own |= {"begun": task.start, "params": params, "client_state": client_state}
        self.inputs = {
            "shared": {"params": task.broadcast.params, "messages": task.broadcast.messages},
            "own": own,
        }

    def phase(self, before: StepState, batches: Sequence[Batch]) -> tuple[StepSums, StepState]:
        init = partial(initial_solver_state, self.step.work.solver)
        make = torch.vmap(init) if self.graphs.stacked else init
        before = replace(before, solver_state=before.solver_state or make(before.variables))
        if not batches:
            return StepSums(), before
        sums = {name: torch.zeros_like(self.size) for name in ("loss", "rows", "steps")}
        generator = self.graphs.recorder.generator
        drawn = generator.get_state()
        try:
            recorded = self.graphs.phase(
                self.key, self.step, self.inputs, vars(before) | {"sums": sums}
            )
            for i, batch in enumerate(self._batches(batches)):
                recorded(batch, first=i == 0)
        except Exception as error:
            self.graphs.refuse(error)
            if self.graphs.stacked:
                raise NotRecordable(str(error)) from error
            generator.set_state(drawn)
            return self.plain().phase(before, batches)
        end = map_tensors(
            torch.empty_like, recorded.state
        )  # one copy of all is faster than a clone of each
        _write(end, recorded.state)
        return StepSums(**end.pop("sums")), StepState(**end)

    def _batches(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        if not self.graphs.stacked:
            yield from batches
            return
        assert isinstance(batches, BatchSequence) and isinstance(batches.rows, StackedBatches)
        rows = batches.rows
        for t, (full, idle) in enumerate(batches.paddings):
            yield Batch(rows.x[:, t], rows.y[:, t], None if full else rows.weight[:, t], idle)


@contextmanager
def _kept_garbage() -> Iterator[None]:
    """Free no graph of a run that is over: a device cannot do that while it records."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _no_numbers_drawn() -> Iterator[None]:
    """Refuse a block that draws random numbers on the host, which would be the same in each replay."""
    before = _host_generators()
    yield
    if _host_generators() != before:
        raise NotRecordable("a step draws random numbers on the host")


def _host_generators() -> tuple[Any, ...]:
    return random.getstate(), str(np.random.get_state()), torch.get_rng_state().numpy().tobytes()  # noqa: NPY002


def _fixed(device: torch.device, t: Tensor) -> Tensor:
    """A copy that stays where it is."""
    return t.detach().to(device).clone()


def _form(nest: Any) -> Any:
    """The names, shapes and kinds of a nest's tensors."""
    if isinstance(nest, Tensor):
        return nest.shape, nest.dtype
    return tuple((name, _form(value)) for name, value in nest.items())


def _pairs(nest: Any, other: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """The tensors of a nest with those of the same name in another."""
    if isinstance(nest, Tensor):
        yield nest, other
    else:
        for name, value in nest.items():
            yield from _pairs(value, other[name])


def _write(nests: Any, values: Any) -> None:
    """Overwrite the tensors of nests with those of others of the same form."""
    groups: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for pair in zip(tensors_of(nests), tensors_of(values), strict=True):
        groups.setdefault(pair[0].dtype, []).append(pair)
    for group in groups.values():  # tensors of one kind are copied by one kernel
        to, source = map(list, zip(*group, strict=True))
        torch._foreach_copy_(to, source)
