"""Checks of a client update on the server. An update that fails is refused, and the round goes on without it."""

import torch

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.nests import map_tensors
from unalike.core.types import Batch, Broadcast, ClientUpdate, Context, Tree
from unalike.core.views import ClientBatches, StageSettings
from unalike.methods.method import Method
from unalike.training.client.client_task import ClientTask
from unalike.training.client.client_update import initial_client_state, train
from unalike.training.server.update_checks import find_faults


class RefusedUpdate(UnalikeError):
    """A client sent something that cannot count: what was found, what was expected."""


def expected_update(
    method: Method, settings: StageSettings, broadcast: Broadcast, context: Context, sample: Batch
) -> ClientUpdate:
    """A client update with the names, shapes and types that this broadcast asks for, from a client with padding only.

    `context` are the facts of any client, `sample` is one of any data [1, ...].
    """
    padding = sample._replace(weight=torch.zeros(len(sample.y)))
    data = ClientBatches([[padding] for _ in method.phases])
    size = torch.ones((), dtype=tree.dtype(settings.model.params))
    with seeds.isolated(0), torch.no_grad():
        state = initial_client_state(method, settings)
        return train(ClientTask(method, settings, broadcast, state, data, context, size))[0]


def expected_steps(method: Method, settings: StageSettings, samples: int) -> int:
    """The number of steps that a client with this many samples must send: those of phases that train shared parameters."""
    model, total = settings.model, 0
    sent = {*method.shared_names(model.params, model)}
    for phase in method.phases:
        moves = {
            n for n in model.params if method.trains(n, model) and model.within(phase.moves, n)
        }
        if not sent or moves & sent:
            total += phase.work(settings.work).steps_for(samples)
    return total


def check_update(
    found: Tree, like: ClientUpdate, settings: StageSettings, samples: int, steps: int
) -> ClientUpdate:
    """The client update in the tensors `found`, if its broadcast asks for it. Raises `RefusedUpdate`.

    `samples` and `steps` are those that the client must have: no weight can be had by claiming others.
    """
    wanted = flat(like)
    check_tree(found, wanted)
    size, made = (torch.tensor(n, dtype=like.size.dtype) for n in (samples, steps))
    for what, must in (
        ("size", size),
        ("steps", made),
        ("weight", settings.work.solver.weight(made)),
    ):
        if not torch.equal(found[what].to(must.dtype), must):
            raise RefusedUpdate(f"{what} {found[what].item():g}; expected {must.item():g}")
    if not bool(found["loss"].isfinite()):
        raise RefusedUpdate(f"loss {found['loss'].item()}; expected a finite number")
    client_update = nested(found)
    if faults := find_faults([0], map_tensors(lambda t: t[None], client_update)):
        raise RefusedUpdate(faults[0])
    for fact, facts in client_update.shared.items():
        _check_counts(f"shared fact {fact}", facts, samples)
    return client_update


def check_answer(found: Tree, like: Tree, samples: int) -> None:
    """Whether an answer has the names, shapes and types of `like`, and finite numbers. Raises `RefusedUpdate`."""
    check_tree(found, like)
    for name, t in found.items():
        if not bool(torch.isfinite(t).all()):
            raise RefusedUpdate(f"the answer's {name} is not finite")
    _check_counts("answer", found, samples)


def check_tree(found: Tree, wanted: Tree) -> None:
    """Whether a tree has exactly these names, shapes and types; nothing is broadcast or cast. Raises `RefusedUpdate`."""
    missing, more = [n for n in wanted if n not in found], [n for n in found if n not in wanted]
    if missing or more:
        said = [
            f"{what} {', '.join(names[:5])}"
            for what, names in (("lacks", missing), ("has", more))
            if names
        ]
        raise RefusedUpdate(
            f"the client update {' and '.join(said)}; expected {len(wanted)} tensors by name"
        )
    for name, like in wanted.items():
        t = found[name]
        if t.shape != like.shape:
            raise RefusedUpdate(f"{name} has shape {list(t.shape)}; expected {list(like.shape)}")
        if t.dtype != like.dtype:
            raise RefusedUpdate(f"{name} is {t.dtype}; expected {like.dtype}")


def _check_counts(what: str, facts: Tree, samples: int) -> None:
    counts = facts.get("counts")
    if counts is None:
        return
    whole = counts.double()
    if (
        bool((whole < 0).any())
        or not torch.equal(whole, whole.round())
        or whole.sum().item() != samples
    ):
        raise RefusedUpdate(
            f"{what}: counts that sum to {whole.sum().item():g}; expected whole numbers, {samples} in all"
        )


SCALARS = ("size", "steps", "weight", "loss")


def flat(client_update: ClientUpdate) -> Tree:
    """A client update as one flat tree, as it is sent."""
    part_trees = {f"messages.{name}": t for name, t in client_update.messages.items()}
    part_trees |= {f"shared.{name}": t for name, t in client_update.shared.items()}
    return tree.pack(
        {"update": client_update.update, "buffers": client_update.buffers} | part_trees
    ) | {name: getattr(client_update, name) for name in SCALARS}


def nested(found: Tree) -> ClientUpdate:
    """The inverse of `flat`."""
    part_trees = tree.unpack({name: t for name, t in found.items() if name not in SCALARS})
    messages, shared = (
        {name.removeprefix(kind): t for name, t in part_trees.items() if name.startswith(kind)}
        for kind in ("messages.", "shared.")
    )
    size, steps, weight, loss = (found[name] for name in SCALARS)
    return ClientUpdate(
        part_trees.get("update", {}),
        part_trees.get("buffers", {}),
        messages,
        size,
        steps,
        weight,
        loss,
        shared,
    )
