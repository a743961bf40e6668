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
from unalike.core.tasks import TASKS, task_for
from unalike.core.types import Batch, Broadcast, ClientUpdate, Context, PartTrees, Tree
from unalike.core.views import ClientBatches, Cohort, Members, ServerState, StageSettings
from unalike.core.work import Work
from unalike.methods.method import Method
from unalike.methods.part import overrides
from unalike.methods.plan import plan
from unalike.training.client.client_task import ClientTask
from unalike.training.client.client_update import initial_client_state, train
from unalike.training.server.aggregation import decode_update
from unalike.training.server.server_update import advance, initial_server_state, make_broadcast
from unalike.training.server.update_checks import find_faults

Array = Tensor | np.ndarray
Arrays = Mapping[str, Array]


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
    start, sent = _tree(global_params), [_tree(c) for c in client_params]
    _check_names(start, sent)
    held = {n: t for n, t in start.items() if not _is_buffer(n, t, buffers)}
    rest = {n: t for n, t in start.items() if n not in held}
    batch = None if proxy is None else Batch(torch.as_tensor(proxy[0]), torch.as_tensor(proxy[1]))
    _require(method, batch, model, messages, facts, steps, work)
    settings = StageSettings(
        _frame(model, held, rest), TASKS["classification"], work or Work(), seed, proxy=batch
    )
    opened = initial_server_state(method, settings)
    before = ServerState(
        state.round if state else 0, held, rest, state.part_states if state else opened.part_states
    )
    client_update = _client_updates(settings, before, sent, num_examples, steps, messages, facts)
    members = Members(n := population or len(sent), n * float(client_update.size.mean()))
    cohort = Cohort(tuple(range(len(sent))), client_update, members)
    if refused := find_faults(cohort.ids, cohort.stacked):
        client, why = next(iter(refused.items()))
        raise UnalikeError(f"client {client} of {len(sent)}: {why}; leave it out")
    after = advance(method, settings, before, cohort)
    outgoing = make_broadcast(method, settings, after, members.clients).messages
    new = after.params | after.buffers
    return {n: _like(new[n], given) for n, given in global_params.items()}, AggregateState(
        after.round, after.part_states, outgoing
    )


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
    method, work = _method(spec), Work(lr=lr, momentum=momentum, loss=loss)
    method.check_loss(work)
    if not batches:
        raise UnalikeError("found no batch; expected at least one (x, y)")
    data = [Batch(torch.as_tensor(x), torch.as_tensor(y)) for x, y in batches]
    received, module = _tree(params), Model(model)
    missing = sorted({*module.params, *module.buffers} ^ set(received))
    if missing:
        raise UnalikeError(
            f"the parameters do not fit the model: {', '.join(missing[:5])} stand in one of them only"
        )
    held, rest = tree.only(received, module.params), tree.only(received, module.buffers)
    module = _frame(model, held, rest)
    whole = Batch(torch.cat([b.x for b in data]), torch.cat([b.y for b in data]))
    classes = module(held, data[0].x, buffers=rest).logits.shape[-1]
    settings = StageSettings(module, task_for(whole.y), work, classes=classes)
    method.check_task(settings.task)
    if work.criterion is not None:
        work.criterion.check(settings.task, classes)
    if messages is None:
        messages = make_broadcast(
            method, settings, initial_server_state(method, settings), 1
        ).messages
    facts = method.client_facts(whole, settings) if context is None else context
    size = torch.tensor(
        float(len(whole.y) if num_examples is None else num_examples), dtype=tree.dtype(held)
    )
    broadcast = Broadcast(0, held, rest, messages, lr)
    kept = initial_client_state(method, settings) if client_state is None else client_state
    with torch.no_grad():
        drawn = ClientBatches([data] * len(method.phases), data)
        task = ClientTask(method, settings, broadcast, kept, drawn, facts, size)
        client_update, kept = train(task)
        moved = decode_update(method, client_update.update, broadcast)
    new = held | {n: held[n] + u for n, u in moved.items()} | rest | client_update.buffers
    message = PartMessage(
        client_update.messages,
        client_update.shared,
        client_update.size,
        client_update.steps,
        client_update.weight,
    )
    return {n: _like(new[n], given) for n, given in params.items()}, message, kept


def _method(spec: object) -> Method:
    found = plan(spec)
    if not isinstance(found, Method):
        raise UnalikeError(f"{found!r} has stages of its own and no single round; use ua.run")
    if found.attack is not None:
        raise UnalikeError(
            f"{found.attack.name} is an attack on a run with malicious clients; use ua.run"
        )
    return found


def _tree(values: Arrays) -> Tree:
    """Tensors of at least float32; integers stay."""
    tensors = {n: torch.as_tensor(v) for n, v in values.items()}
    return {
        n: t.float() if t.dtype in (torch.float16, torch.bfloat16) else t
        for n, t in tensors.items()
    }


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


def _check_names(start: Tree, sent: list[Tree]) -> None:
    if not sent:
        raise UnalikeError("found no client's parameters; expected at least one")
    for k, params in enumerate(sent):
        if different := set(params) ^ set(start):
            raise UnalikeError(
                f"client {k}: {', '.join(sorted(different)[:5])} stand in the global parameters or its own only"
            )
        wrong = [n for n in start if params[n].shape != start[n].shape]
        if wrong:
            found, wanted = list(params[wrong[0]].shape), list(start[wrong[0]].shape)
            raise UnalikeError(f"client {k}: {wrong[0]} has shape {found}, expected {wanted}")


def _require(
    method: Method,
    proxy: Batch | None,
    model: nn.Module | None,
    messages: Sequence[PartMessage] | None,
    facts: Mapping[str, Array] | None,
    steps: Sequence[float] | None,
    work: Work | None,
) -> None:
    method.require(proxy)
    if proxy is not None and model is None and any(p.needs_proxy for p in method.parts):
        raise UnalikeError(f"{method!r} computes with the model on the server; give model=")
    for part in method.parts:
        if lacking := [
            name for name in part.shares if messages is None and name not in (facts or {})
        ]:
            raise UnalikeError(
                f"{part.name} needs facts={{'{lacking[0]}': ...}} [K, ...], or messages="
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
    sent: list[Tree],
    num_examples: Sequence[float] | None,
    steps: Sequence[float] | None,
    messages: Sequence[PartMessage] | None,
    facts: Mapping[str, Array] | None,
) -> ClientUpdate:
    count, kind = len(sent), tree.dtype(before.params)
    for name, given in (("num_examples", num_examples), ("steps", steps), ("messages", messages)):
        if given is not None and len(given) != count:
            raise UnalikeError(
                f"found {len(given)} {name} and {count} clients; expected one for each"
            )
    trainable = {
        n: w for n, w in before.params.items() if settings.model.trainable(n)
    }  # frozen parameters are never sent
    update = {n: torch.stack([c[n] - w for c in sent]) for n, w in trainable.items()}
    buffers = {n: torch.stack([c[n] for c in sent]) for n in before.buffers}

    def counted(given: Sequence[float] | None, field: str) -> Tensor:
        if given is not None:
            return torch.as_tensor(np.asarray(given), dtype=kind)
        if messages is not None:
            return torch.stack([getattr(message, field).to(kind) for message in messages])
        return torch.ones(count, dtype=kind)

    made = counted(steps, "steps")
    weight = (
        settings.work.solver.weight(made)
        if steps is not None or messages is None
        else counted(None, "weight")
    )
    shared: PartTrees = {
        name: {"counts": torch.as_tensor(value)} for name, value in (facts or {}).items()
    }
    size, loss = counted(num_examples, "size"), torch.zeros(count, dtype=kind)
    return ClientUpdate(
        update,
        buffers,
        _stacked([message.messages for message in messages or []]),
        size,
        made,
        weight,
        loss,
        _stacked([message.shared for message in messages or []]) | shared,
    )


def _stacked(part_trees: list[PartTrees]) -> PartTrees:
    return {
        name: tree.stack([d[name] for d in part_trees])
        for name in (part_trees[0] if part_trees else {})
    }
