"""Checks of a client update on the server. An update that fails is refused, and the round goes on without it."""

import torch

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.nests import map_tensors
from unalike.core.types import Batch, Broadcast, ClientUpdate, Context, Tree
from unalike.core.views import ClientBatches, StageSettings
from unalike.core.work import share_of_steps
from unalike.methods.method import Method
from unalike.training.client.client_task import ClientTask
from unalike.training.client.client_update import initial_client_state, train
from unalike.training.flat_update import flatten_update, restore_update
from unalike.training.server.update_checks import find_faults

MAX_LISTED_NAMES = 5
"""Names in an error message that are missing, or that nobody asked for."""
MAX_PASSES = 100
"""Forward passes of a local step, at most: a model may count them in a buffer."""
COUNTS = "counts"
"""The name of a client's numbers of samples by class."""


class RefusedUpdate(UnalikeError):
    """A client sent something that cannot count: what was found, what was expected."""


def expected_update(
    method: Method, settings: StageSettings, broadcast: Broadcast, context: Context, sample: Batch
) -> ClientUpdate:
    """A client update with the names, shapes and types that this broadcast asks for, from a client with padding only.

    `context` are the facts of any client, `sample` is one of any data [1, ...].
    """
    padding = sample._replace(weight=torch.zeros(len(sample.y), device=sample.y.device))
    data = ClientBatches([[padding] for _ in method.phases])
    size = torch.ones((), dtype=tree.dtype(settings.model.params))
    with seeds.isolated(0), torch.no_grad():
        state = initial_client_state(method, settings)
        task = ClientTask(method, settings, broadcast, state, data, context, size)
        client_update, _ = train(task)
    return client_update


def expected_steps(
    method: Method, settings: StageSettings, samples: int, share: float = 1.0
) -> int:
    """The number of steps that a client with this many samples must send: those of phases that train shared parameters.

    `share`: the share of its steps that the client makes in each phase.
    """
    model = settings.model
    sent = {*method.shared_names(model.params, model)}
    trained = [name for name in model.params if method.trains(name, model)]
    total = 0
    for phase in method.phases:
        moved = {name for name in trained if model.within(phase.moves, name)}
        if not sent or moved & sent:
            total += share_of_steps(phase.work(settings.work).steps_for(samples), share)
    return total


def check_update(
    flat: Tree, like: ClientUpdate, settings: StageSettings, samples: int, steps: int
) -> ClientUpdate:
    """The client update in the tensors `flat`, if its broadcast asks for it. Raises `RefusedUpdate`.

    `samples` and `steps` are those that the client must have: no weight can be had by claiming others.
    """
    check_tree(flat, flatten_update(like))
    expected_size = torch.tensor(samples, dtype=like.size.dtype)
    expected_steps = torch.tensor(steps, dtype=like.size.dtype)
    numbers = {
        "size": expected_size,
        "steps": expected_steps,
        "weight": settings.work.solver.weight(expected_steps),
    }
    for name, expected in numbers.items():
        if not torch.equal(flat[name].to(expected.dtype), expected):
            raise RefusedUpdate(f"{name} {flat[name].item():g}; expected {expected.item():g}")
    if not bool(flat["loss"].isfinite()):
        raise RefusedUpdate(f"loss {flat['loss'].item()}; expected a finite number")

    client_update = restore_update(flat)
    faults = find_faults([0], map_tensors(lambda t: t[None], client_update))
    if faults:
        raise RefusedUpdate(faults[0])
    for name, sent in like.buffers.items():
        if sent.is_floating_point():
            continue
        # the largest count of all clients is kept: one that is too large would overflow at all of them
        most = sent + MAX_PASSES * steps
        if bool((client_update.buffers[name] > most).any()):
            found = client_update.buffers[name].max().item()
            raise RefusedUpdate(
                f"buffer {name} is {found}; expected at most {most.max().item()} after {steps} steps"
            )
    for name, fact in client_update.shared.items():
        _check_counts(f"shared fact {name}", fact, samples)
    for part, message in client_update.messages.items():
        _check_counts(f"message of {part}", message, samples)
    return client_update


def check_answer(answer: Tree, like: Tree, samples: int) -> None:
    """Whether an answer has the names, shapes and types of `like`, and finite numbers. Raises `RefusedUpdate`."""
    check_tree(answer, like)
    for name, t in answer.items():
        if not bool(torch.isfinite(t).all()):
            raise RefusedUpdate(f"the answer's {name} is not finite")
    _check_counts("answer", answer, samples)


def check_tree(values: Tree, like: Tree, what: str = "the client update") -> None:
    """Whether a tree has exactly these names, shapes and types; nothing is broadcast or cast. Raises `RefusedUpdate`.

    `what` the tree is, for the message.
    """
    faults = []
    missing = [name for name in like if name not in values]
    if missing:
        faults.append(f"lacks {', '.join(missing[:MAX_LISTED_NAMES])}")
    unexpected = [name for name in values if name not in like]
    if unexpected:
        faults.append(f"has {', '.join(unexpected[:MAX_LISTED_NAMES])}")
    if faults:
        raise RefusedUpdate(f"{what} {' and '.join(faults)}; expected {len(like)} tensors by name")
    for name, expected in like.items():
        t = values[name]
        if t.shape != expected.shape:
            shapes = f"{list(t.shape)}; expected {list(expected.shape)}"
            raise RefusedUpdate(f"{name} has shape {shapes}")
        if t.dtype != expected.dtype:
            raise RefusedUpdate(f"{name} is {t.dtype}; expected {expected.dtype}")


def _check_counts(what: str, values: Tree, samples: int) -> None:
    """Raise `RefusedUpdate` for counts that are no whole numbers, or do not add up to the client's samples.

    Counts are called `counts`, in a message after the name of what they belong to (`class.counts`).
    """
    for name, t in values.items():
        if name.rpartition(".")[2] != COUNTS:
            continue
        counts = t.double()
        total = counts.sum().item()
        is_negative = bool((counts < 0).any())
        is_whole = torch.equal(counts, counts.round())
        if is_negative or not is_whole or total != samples:
            raise RefusedUpdate(
                f"{what}: counts that sum to {total:g}; expected whole numbers, {samples} in all"
            )
