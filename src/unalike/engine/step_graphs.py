"""Local steps as CUDA graphs: a step is recorded once, and then the host launches it as a whole, not kernel by kernel.

The steps of small models take the host longer than the device: on an H200 a step of a ResNet-20 in batches of 50 took 8.9 ms
kernel by kernel and 2.2 ms as a graph. A graph reads and writes fixed memory, so inputs are copied there and results from there.
Whatever else a step reads is the same in each replay; what differs is hidden from it (`NotReplayable`), and a step that asks for
it is not recorded. Start reading at `StepGraphs.trainers`.
"""

import gc
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unalike._utils.profiler_regions import profiled
from unalike.core.inputs import map_inputs
from unalike.core.nests import map_tensors, tensors_of
from unalike.core.types import Batch, Broadcast, PartTrees, Tree
from unalike.core.views import StageSettings
from unalike.core.work import Work
from unalike.engine.client_chunk import BatchSequence, ClientChunk, StackedBatches, is_out_of_memory
from unalike.engine.obstacles import obstacles
from unalike.methods.method import Method
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

MAX_RECORDED_PHASES = 16
"""Phases that are kept recorded. Each form of a phase's tensors is recorded by itself, and chunks of unequal clients have many."""
MAX_RECORDED_BYTES = 2**31
"""Bytes of their fixed memory, unless a single phase takes more."""


class NotRecordable(Exception):
    """A step cannot be recorded; the message gives the reason."""


class NotReplayable:
    """In the place of a value that differs between replays: whoever looks at it cannot be recorded."""

    def _refuse(self, *_: Any) -> Any:
        raise NotRecordable("a part reads the round, the client's samples or the index of the step")

    # everything else raises an error as it is
    __getattr__ = __bool__ = __eq__ = __ne__ = __hash__ = _refuse


class StepAfterFirst(NotReplayable):
    """The index of a step of which is known that it is not the first."""

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> Any:
        return False if isinstance(other, int) and other == 0 else self._refuse()

    __hash__ = NotReplayable._refuse


class RecordableOperations(TorchDispatchMode):
    """Refuses operations that wait for the device, or copy to it: a graph would repeat them with the numbers of its recording."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not WAITING_TAGS.isdisjoint(func.tags):
            raise NotRecordable(f"{func} waits for the device")
        result = func(*args, **(kwargs or {}))
        if func in COPYING_OPERATIONS:
            devices = {t.device for t in (*args, result) if isinstance(t, Tensor)}
            if len(devices) > 1:
                raise NotRecordable(f"{func} copies between devices")
        return result


WAITING_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Of operations whose result the host has to know."""
COPYING_OPERATIONS = torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default


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

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """A function that launches again what `function` launches; nothing is computed yet."""
        graph = torch.cuda.CUDAGraph()
        recording = torch.cuda.graph(graph, capture_error_mode="thread_local", **self._place)
        try:
            # garbage is collected only after the recording has ended
            with _without_garbage_collection(), recording:
                function()
        except Exception:
            # the generator would wait for the end of the failed recording for ever; a copy of it does not
            self.generator.graphsafe_set_state(self.generator.clone_state())
            raise
        # a recording sets the offset of the graph's random numbers on its own stream, a replay on this one
        torch.cuda.current_stream(self.device).wait_stream(self._place["stream"])
        return graph.replay


class StepFunction(Protocol):
    """A step as a function of tensors: the new state from the phase's inputs, the state before it and the batch's rows.

    `idle` is that of the batch, `first` says whether the step is the phase's first one.
    """

    def __call__(
        self, inputs: Nest, state: Nest, rows: Tree, *, idle: bool, first: bool
    ) -> Nest: ...


@dataclass(eq=False)
class StepForm:
    """Steps whose batches have one form: the batch's fixed memory, the step as a function, and its replay once recorded."""

    rows: Tree
    step: Callable[[], None]
    replay: Callable[[], None] | None = None


class RecordedPhase:
    """The steps of a phase in fixed memory: `inputs` stay the same during the phase, `state` is what steps change.

    The first step of a form is a trial, the second one is recorded.
    """

    def __init__(self, recorder: CudaRecorder, step: StepFunction, inputs: Nest, state: Nest):
        to_fixed_memory = partial(_fixed, recorder.device)
        self.recorder = recorder
        self.step = step
        self.inputs = map_tensors(to_fixed_memory, inputs)
        self.state = map_tensors(to_fixed_memory, state)
        self.forms: dict[Any, StepForm] = {}

    @cached_property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in tensors_of([self.inputs, self.state]))

    def load(self, inputs: Nest, state: Nest) -> None:
        """Start with these values, which have the same form."""
        _write([self.inputs, self.state], [inputs, state])

    def __call__(self, batch: Batch, first: bool) -> None:
        """Make a step."""
        rows = {name: t for name, t in batch._asdict().items() if isinstance(t, Tensor)}
        key = first, batch.idle, _form(rows)
        form = self.forms.get(key)
        with profiled("forward and backward"):
            # a trial in fixed memory shows whether the step can be recorded
            if form is None:
                rows = map_tensors(partial(_fixed, self.recorder.device), rows)
                form = StepForm(rows, partial(self._run, rows, batch.idle, first))
                with _no_numbers_drawn(), RecordableOperations():
                    form.step()
                self.forms[key] = form
                return
            # a graph reads its batch where the trial had it
            _write(form.rows, rows)
            if form.replay is None:
                form.replay = self.recorder.capture(form.step)
            form.replay()

    def _run(self, rows: Tree, idle: bool, first: bool) -> None:
        after = self.step(self.inputs, self.state, rows, idle=idle, first=first)
        for old, new in _pairs(self.state, after):
            if old.data_ptr() != new.data_ptr():
                old.copy_(new)


@dataclass(eq=False)
class StepGraphs:
    """The recorded phases of a method's training in one executor.

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
        refused = next(obstacles("recorded", method, settings.work), recorder.refused)
        return cls(stacked, recorder, refused)

    def attempt(self, recorded: Callable[[], R], unrecorded: Callable[[], R]) -> R:
        """The result of `recorded` for stacked clients, or of `unrecorded` where steps cannot be recorded."""
        if self.refused is None:
            before = self.recorder.generator.get_state()
            try:
                return recorded()
            except NotRecordable:
                self.recorder.generator.set_state(before)
        return unrecorded()

    def refuse(self, error: Exception) -> None:
        """Record no more steps, and say so; memory that has run out is raised again, without what the graphs held."""
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            self._phases.clear()
            raise error
        self.refused = str(error)
        text = f"local steps are launched kernel by kernel, which takes up to ten times as long: {self.refused}"
        warnings.warn(text, stacklevel=3)

    def train(self, chunk: ClientChunk) -> TrainedClient:
        """Stacked clients that have begun, after their training."""
        return chunk.run(partial(self.trainers, messages=chunk.inputs["messages"]))

    def trainers(self, task: ClientTask, messages: PartTrees = {}) -> TrainerFactory:  # noqa: B006
        """Makes trainers of a client's phases, or of stacked clients', whose own `messages` are not in the broadcast.

        Where steps are not recorded these are the ordinary ones of one client.
        """
        return stepwise(task) if self.refused else partial(GraphTrainer, self, task, messages)

    def phase(self, key: Any, step: StepFunction, inputs: Nest, state: Nest) -> RecordedPhase:
        """The recorded phase of this key and form, loaded with these values; the oldest ones beyond the limits go."""
        key = key, _form(inputs), _form(state)
        phase = self._phases.pop(key, None)
        if phase is None:
            phase = RecordedPhase(self.recorder, step, inputs, state)
        else:
            phase.load(inputs, state)
        # the last one is the newest
        self._phases[key] = phase
        while self._holds_too_much(phase):
            del self._phases[next(iter(self._phases))]
        return phase

    def _holds_too_much(self, newest: RecordedPhase) -> bool:
        held = sum(phase.nbytes for phase in self._phases.values())
        most = max(MAX_RECORDED_BYTES, newest.nbytes)
        return len(self._phases) > MAX_RECORDED_PHASES or held > most


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

    def __call__(self, inputs: Nest, state: Nest, rows: Tree, *, idle: bool, first: bool) -> Nest:
        """The new state of the client, or of stacked ones."""
        one = partial(self._one, idle=idle, first=first)
        if not self.stacked:
            return one(inputs["shared"], inputs["own"], state, rows)
        stacked = torch.vmap(one, in_dims=(None, 0, 0, 0), randomness="different")
        return stacked(inputs["shared"], inputs["own"], state, rows)

    def _one(
        self, shared: Nest, own: Nest, state: Nest, rows: Tree, idle: bool, first: bool
    ) -> Nest:
        # the task as the client has it, without what differs between replays
        hidden: Any = NotReplayable()
        broadcast = Broadcast(
            round=hidden,
            params=shared["params"],
            buffers=own["buffers"],
            messages=shared["messages"],
            lr=self.lr,
        )
        task = ClientTask(
            method=self.method,
            settings=self.settings,
            broadcast=broadcast.with_messages(own["messages"]),
            client_state=own["client_state"],
            data=hidden,
            context=own["context"],
            size=own["size"],
            begun=own["begun"],
        )
        make_trainer = partial(stepwise(task, self.stacked), self.work, phase=self.phase)
        step = make_trainer(params=own["params"], client_state=own["client_state"])

        # one unrecorded step; only whether it is the first may be known of its number
        tensors = {name: t for name, t in state.items() if name != "sums"}
        before = StepState(**tensors)
        batch = Batch(idle=idle, **rows)
        number: Any = 0 if first else StepAfterFirst()
        owned = not idle and not self.method.trained_parts
        mean, after = step(before, batch, number, owned=owned)

        # the sums of `StepSums`, in fixed memory as well
        count = mean.new_full((), len(batch.y)) if batch.weight is None else batch.weight.sum()
        increments = {"loss": count * mean, "rows": count, "steps": count > 0}
        sums = {name: total + increments[name] for name, total in state["sums"].items()}
        return vars(after) | {"sums": sums}


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
        self.graphs = graphs
        self.size = task.size
        self.step = PureStep(task.method, task.settings, work, phase, lr, graphs.stacked)
        self.key = phase, work.lr, lr
        self.unrecorded = partial(
            stepwise(task), work, phase=phase, params=params, client_state=client_state
        )
        broadcast = task.broadcast
        self.inputs = {
            "shared": {"params": broadcast.params, "messages": broadcast.messages},
            "own": {
                "context": dict(task.context),
                "size": task.size,
                "messages": messages,
                "buffers": broadcast.buffers,
                "begun": task.start,
                "params": params,
                "client_state": client_state,
            },
        }

    def phase(self, before: StepState, batches: Sequence[Batch]) -> tuple[StepSums, StepState]:
        # fixed memory has a place for the solver's state from the first step on
        fresh_state = partial(initial_solver_state, self.step.work.solver)
        make_state = torch.vmap(fresh_state) if self.graphs.stacked else fresh_state
        solver_state = before.solver_state or make_state(before.variables)
        before = replace(before, solver_state=solver_state)
        if not batches:
            return StepSums(), before

        sums = {name: torch.zeros_like(self.size) for name in ("loss", "rows", "steps")}
        generator = self.graphs.recorder.generator
        generator_before = generator.get_state()
        try:
            recorded = self.graphs.phase(
                self.key, self.step, self.inputs, vars(before) | {"sums": sums}
            )
            for number, batch in enumerate(self._batches(batches)):
                recorded(batch, first=number == 0)
        except Exception as error:
            # the steps are made again without graphs, with the same random numbers; of stacked clients by the caller
            self.graphs.refuse(error)
            if self.graphs.stacked:
                raise NotRecordable(str(error)) from error
            generator.set_state(generator_before)
            return self.unrecorded().phase(before, batches)

        # the next phase overwrites the fixed memory; one copy of all is faster than a clone of each
        end = map_tensors(torch.empty_like, recorded.state)
        _write(end, recorded.state)
        return StepSums(**end.pop("sums")), StepState(**end)

    def _batches(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        if not self.graphs.stacked:
            yield from batches
            return
        assert isinstance(batches, BatchSequence) and isinstance(batches.rows, StackedBatches)
        rows = batches.rows
        for t, (full, idle) in enumerate(batches.paddings):
            weight = None if full else rows.weight[:, t]
            x = map_inputs(itemgetter((slice(None), t)), rows.x)
            yield Batch(x, rows.y[:, t], weight, idle)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
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
    # tensors of one kind are copied by one kernel
    for group in groups.values():
        targets = [target for target, _ in group]
        sources = [source for _, source in group]
        torch._foreach_copy_(targets, sources)
