"""The two halves of a round by themselves, for use inside any other system: the caller carries state and messages.

`aggregate` is one round of a method's server, `local_update` one client's work. What they compute is what `ua.run` computes:
both call the same `advance` and `train`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.losses import LossFunction
from unalike.core.model import Model
from unalike.core.norm_layers import STATISTICS
from unalike.core.tasks.classification import ASSUMED_TASK
from unalike.core.tasks.registry import task_for
from unalike.core.types import Batch, Broadcast, ClientUpdate, Context, PartTrees, Tree
from unalike.core.views import ClientBatches, Members, ServerState, StageSettings
from unalike.core.work import Work
from unalike.methods.method import Method
from unalike.methods.part import overrides
from unalike.methods.plan import plan
from unalike.training.client.client_task import ClientTask
from unalike.training.client.client_update import initial_client_state, train
from unalike.training.server.kept_updates import KeptUpdates
from unalike.training.server.server_update import advance, initial_server_state, make_broadcast
from unalike.training.server.update_checks import find_faults
from unalike.training.server.updates import decode_update

Array = Tensor | np.ndarray
Arrays = Mapping[str, Array]


HALF_PRECISION = (torch.float16, torch.bfloat16)
"""Types in which no sum is computed."""


class PartMessage(NamedTuple):
    """The message of a client to the server, beside its parameters.

    Attributes:
        messages: Message of each part, by the part's name.
        shared: Facts that the client shares with the server: name -> tree.
        size: Number of training samples, [].
        steps: Number of local steps, [].
        weight: Accumulated weight ||a_k||_1 of the local solver (FedNova), [].
    """

    messages: PartTrees
    shared: PartTrees
    size: Tensor
    steps: Tensor
    weight: Tensor


class AggregateState(NamedTuple):
    """State of the server between rounds.

    Attributes:
        round: Number of finished rounds.
        part_states: Server state of each part, by the part's name.
        messages: Messages of the parts to all clients, for the next `local_update`.
    """

    round: int
    part_states: PartTrees
    messages: PartTrees


def aggregate(
    spec: object,
    global_params: Arrays,
    client_params: Sequence[Arrays],
    *,
    num_examples: Sequence[float] | None = None,
    steps: Sequence[float] | None = None,
    work: Work | None = None,
    messages: Sequence[PartMessage] | None = None,
    facts: Mapping[str, Array] | None = None,
    population: int | None = None,
    state: AggregateState | None = None,
    buffers: Sequence[str] = (),
    model: nn.Module | None = None,
    proxy: tuple[Array, Array] | None = None,
    seed: int = 0,
) -> tuple[dict[str, Array], AggregateState]:
    """One server round of a method.

    Args:
        spec: Spec text, a part or a method.
        global_params: Parameters and buffers that the clients received: name -> tensor or array.
        client_params: Those of each client after its training.
        num_examples: Training samples of each client; equal unless given here or in `messages`.
        steps: Optimizer steps of each client, for methods that need them; else those in `messages`.
        work: Local work of the clients, for methods that need its learning rate or momentum.
        messages: What `local_update` returned as a message, for each client.
        facts: Shared facts of the clients, such as `label_histogram` [K, C].
        population: Number of all clients; K unless given. Their mean number of samples is taken to be that of the K.
        state: What the last call returned; None in the first round.
        buffers: Names to average as batch statistics, beside integers and `running_mean running_var num_batches_tracked`.
        model: The module, for methods that compute with it on the server.
        proxy: (x, y) of the server, for methods that learn there.
        seed: Seed of random methods.

    Returns:
        The new parameters, of the kind and dtype of `global_params`, and the state for the next call. Sums are computed at
        least in float32; float64 stays float64.

    Raises:
        UnalikeError: Something that the method needs is missing or does not fit; the message names it.

    >>> import torch
    >>> clients = [{"w": torch.ones(1)}, {"w": torch.full((1,), 4.0)}]
    >>> new, state = aggregate("fedavg", {"w": torch.zeros(1)}, clients, num_examples=[1, 2])
    >>> new["w"]
    tensor([3.])
    """
    method = _method(spec)
    start = _tree(global_params)
    trained = [_tree(params) for params in client_params]
    _check_names(start, trained)
    params = {name: t for name, t in start.items() if not _is_buffer(name, t, buffers)}
    model_buffers = {name: t for name, t in start.items() if name not in params}
    batch = None if proxy is None else Batch(torch.as_tensor(proxy[0]), torch.as_tensor(proxy[1]))
    _require(method, batch, model, messages, facts, steps, work)

    # The state before the round: that of the caller, or the one that a run begins with.
    settings = StageSettings(
        model=_frame(model, params, model_buffers),
        task=ASSUMED_TASK,
        work=work or Work(),
        seed=seed,
        proxy=batch,
    )
    before = initial_server_state(method, settings)
    if state is not None:
        before = before._replace(round=state.round, part_states=state.part_states)

    # The clients' models as the updates that they would have sent in a run, with the same checks.
    client_updates = _client_updates(
        settings, before, trained, num_examples, steps, messages, facts
    )
    ids = range(len(trained))
    refused = find_faults(ids, client_updates)
    if refused:
        client, why = next(iter(refused.items()))
        raise UnalikeError(f"client {client} of {len(trained)}: {why}; leave it out")

    clients = population or len(trained)
    members = Members(clients, clients * float(client_updates.size.mean()))
    updates = KeptUpdates.in_memory(ids, client_updates)
    after = advance(method, settings, before, updates, members)
    new = after.params | after.buffers
    new_params = {name: _like(new[name], given) for name, given in global_params.items()}
    next_messages = make_broadcast(method, settings, after, clients).messages
    return new_params, AggregateState(after.round, after.part_states, next_messages)


def local_update(
    spec: object,
    model: nn.Module,
    params: Arrays,
    batches: Sequence[tuple[Any, Any]],
    *,
    lr: float,
    momentum: float = 0.0,
    loss: str | LossFunction | None = None,
    client_state: PartTrees | None = None,
    messages: PartTrees | None = None,
    context: Context | None = None,
    num_examples: int | None = None,
) -> tuple[dict[str, Array], PartMessage, PartTrees]:
    """One client's local training under a method: one step per batch.

    A method with several phases, such as FedRep, uses the same batches in each; `ua.run` draws new ones. Dropout and the like
    draw from torch's default generator.

    Args:
        spec: Spec text, a part or a method.
        model: The module; its own values do not matter.
        params: Global parameters and buffers received.
        batches: (x, y) of each step, in order.
        lr: Learning rate.
        momentum: Momentum of SGD.
        loss: Loss in the place of the task's, as for `ua.run`.
        client_state: What the last call returned for this client; None in its first round.
        messages: `state.messages` of the server; None before its first round.
        context: Static facts of the client; computed from the batches unless given.
        num_examples: Training samples of the client. The default, the rows of all batches, counts a sample once per pass.

    Returns:
        (parameters and buffers after training, message to the server, client state).

    Raises:
        UnalikeError: There is no batch, the parameters do not fit the model, or the method brings a loss of its own.
    """
    method = _method(spec)
    work = Work(lr=lr, momentum=momentum, loss=loss)
    method.check_loss(work)
    if not batches:
        raise UnalikeError("found no batch; expected at least one (x, y)")
    data = [Batch(torch.as_tensor(x), torch.as_tensor(y)) for x, y in batches]
    all_data = Batch(torch.cat([b.x for b in data]), torch.cat([b.y for b in data]))

    # The model as a function, with what was received as its values.
    received = _tree(params)
    names = Model(model)
    misfits = sorted({*names.params, *names.buffers} ^ set(received))
    if misfits:
        raise UnalikeError(
            f"the parameters do not fit the model: {', '.join(misfits[:5])} stand in one of them only"
        )
    received_params = tree.only(received, names.params)
    received_buffers = tree.only(received, names.buffers)
    module = _frame(model, received_params, received_buffers)

    # The settings that a run would have: the task by the labels, the classes by the model's outputs.
    classes = module(received_params, data[0].x, buffers=received_buffers).logits.shape[-1]
    settings = StageSettings(module, task_for(all_data.y), work, classes=classes)
    method.check_task(settings.task)
    if work.criterion is not None:
        work.criterion.check(settings.task, classes)

    # Whatever the caller does not carry from call to call is as before the first round.
    if messages is None:
        first_state = initial_server_state(method, settings)
        messages = make_broadcast(method, settings, first_state, 1).messages
    facts = method.client_facts(all_data, settings) if context is None else context
    if client_state is None:
        client_state = initial_client_state(method, settings)
    samples = len(all_data.y) if num_examples is None else num_examples

    broadcast = Broadcast(0, received_params, received_buffers, messages, lr)
    task = ClientTask(
        method=method,
        settings=settings,
        broadcast=broadcast,
        client_state=client_state,
        data=ClientBatches([data] * len(method.phases), data),
        context=facts,
        size=torch.tensor(float(samples), dtype=tree.dtype(received_params)),
    )
    with torch.no_grad():
        client_update, client_state = train(task)
        update = decode_update(method, client_update.update, broadcast)
    message = PartMessage(
        messages=client_update.messages,
        shared=client_update.shared,
        size=client_update.size,
        steps=client_update.steps,
        weight=client_update.weight,
    )
    trained_params = {name: received_params[name] + u for name, u in update.items()}
    new = received_params | trained_params | received_buffers | client_update.buffers
    return {name: _like(new[name], given) for name, given in params.items()}, message, client_state


def _method(spec: object) -> Method:
    method = plan(spec)
    if not isinstance(method, Method):
        raise UnalikeError(f"{method!r} has stages of its own and no single round; use ua.run")
    method.check_real()
    return method


def _tree(values: Arrays) -> Tree:
    """Tensors of at least float32; integers stay."""
    tensors = {name: torch.as_tensor(value) for name, value in values.items()}
    return tree.map(lambda t: t.float() if t.dtype in HALF_PRECISION else t, tensors)


def _like(value: Tensor, given: Array) -> Array:
    if isinstance(given, Tensor):
        return value.to(given.dtype)
    return value.numpy().astype(given.dtype, copy=False)


def _is_buffer(name: str, value: Tensor, named: Sequence[str]) -> bool:
    return not value.is_floating_point() or name in named or name.rpartition(".")[2] in STATISTICS


def _frame(model: nn.Module | None, params: Tree, buffers: Tree) -> Model:
    """The module, or where there is none a stand-in, with these values as its start."""
    module = Model(model) if model is not None else _Nameless()
    module.params, module.buffers = params, buffers
    return module


class _Nameless(Model):
    """Parameters without a module. Calling it raises `UnalikeError`."""

    def __init__(self) -> None:
        super().__init__(nn.Identity())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise UnalikeError("this method computes with the model on the server; give model=")


def _check_names(start: Tree, trained: list[Tree]) -> None:
    """Raise `UnalikeError` for a client whose parameters have other names or shapes than the global ones."""
    if not trained:
        raise UnalikeError("found no client's parameters; expected at least one")
    for client, params in enumerate(trained):
        misfits = set(params) ^ set(start)
        if misfits:
            names = ", ".join(sorted(misfits)[:5])
            raise UnalikeError(
                f"client {client}: {names} stand in the global parameters or its own only"
            )
        for name, expected in start.items():
            shape = params[name].shape
            if shape != expected.shape:
                raise UnalikeError(
                    f"client {client}: {name} has shape {list(shape)}, expected {list(expected.shape)}"
                )


def _require(
    method: Method,
    proxy: Batch | None,
    model: nn.Module | None,
    messages: Sequence[PartMessage] | None,
    facts: Mapping[str, Array] | None,
    steps: Sequence[float] | None,
    work: Work | None,
) -> None:
    """Raise `UnalikeError` if a part of the method needs what `aggregate` was not given."""
    method.require(proxy)
    if proxy is not None and model is None and any(p.needs_proxy for p in method.parts):
        raise UnalikeError(f"{method!r} computes with the model on the server; give model=")
    for part in method.parts:
        for name in part.shares:
            if messages is None and name not in (facts or {}):
                raise UnalikeError(
                    f"{part.name} needs facts={{'{name}': ...}} [K, ...], or messages="
                )
        if overrides(part, "address"):
            raise UnalikeError(
                f"{part.name} sends every client something of its own, which only run can do"
            )
        if part.needs_messages and messages is None:
            raise UnalikeError(
                f"{part.name} needs messages=, the list of what every client's local_update returned"
            )
        if part.needs_steps and messages is None and steps is None:
            raise UnalikeError(
                f"{part.name} needs steps=, the optimizer steps of every client, or messages="
            )
        if part.needs_rate(method) and work is None:
            raise UnalikeError(
                f"{part.name} needs work=Work(lr=...), the learning rate that the clients trained with"
            )


def _client_updates(
    settings: StageSettings,
    before: ServerState,
    trained: list[Tree],
    num_examples: Sequence[float] | None,
    steps: Sequence[float] | None,
    messages: Sequence[PartMessage] | None,
    facts: Mapping[str, Array] | None,
) -> ClientUpdate:
    """The updates of clients with these values after training, every tensor [K, ...]."""
    count = len(trained)
    dtype = tree.dtype(before.params)
    for name, values in (("num_examples", num_examples), ("steps", steps), ("messages", messages)):
        if values is not None and len(values) != count:
            raise UnalikeError(
                f"found {len(values)} {name} and {count} clients; expected one for each"
            )

    def number(values: Sequence[float] | None, field: str) -> Tensor:
        """A number of each client [K]: as it was given, or as its message has it, or else 1."""
        if values is not None:
            return torch.as_tensor(np.asarray(values), dtype=dtype)
        if messages is not None:
            return torch.stack([getattr(message, field).to(dtype) for message in messages])
        return torch.ones(count, dtype=dtype)

    steps_made = number(steps, "steps")
    weight = settings.work.solver.weight(steps_made)
    if steps is None and messages is not None:
        weight = number(None, "weight")

    update = {}
    for name, w in before.params.items():
        if settings.model.trainable(name):  # frozen parameters are never sent
            update[name] = torch.stack([params[name] - w for params in trained])
    buffers = {}
    for name in before.buffers:
        buffers[name] = torch.stack([params[name] for params in trained])
    shared = _stacked([message.shared for message in messages or []])
    for name, fact in (facts or {}).items():
        shared[name] = {"counts": torch.as_tensor(fact)}
    return ClientUpdate(
        update=update,
        buffers=buffers,
        messages=_stacked([message.messages for message in messages or []]),
        size=number(num_examples, "size"),
        steps=steps_made,
        weight=weight,
        loss=torch.zeros(count, dtype=dtype),
        shared=shared,
    )


def _stacked(part_trees: list[PartTrees]) -> PartTrees:
    """The trees of clients along a leading [K], by part."""
    if not part_trees:
        return {}
    stacked = {}
    for name in part_trees[0]:
        stacked[name] = tree.stack([trees[name] for trees in part_trees])
    return stacked
