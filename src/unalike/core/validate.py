"""What the server checks before a report counts. A report that fails is refused; the round goes on without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from unalike.core import seed, tree
from unalike.core.client import Data, Setting, open_memory, train
from unalike.core.errors import UnalikeError
from unalike.core.server import Cohort
from unalike.core.sound import unsound
from unalike.core.stepping import autograd
from unalike.core.types import Batch, Context, Order, Report, Tree

if TYPE_CHECKING:
    from unalike.core.method import Method


class Refused(UnalikeError):
    """What a client sent cannot count: what was found, what was expected."""


def refusals(cohort: Cohort) -> dict[int, str]:
    """Client number -> why its report is refused; empty when all are sound."""
    return unsound(cohort.ids, cohort.report)


def expected(method: Method, setting: Setting, order: Order, context: Context, sample: Batch) -> Report:
    """A report as this order would have it: its names, shapes and types, from a client whose batches are all padding.

    `context` are the facts of any client, `sample` is one of any data [1, ...].
    """
    padding = sample._replace(weight=torch.zeros(len(sample.y)))
    data = Data([[padding] for _ in method.phases])
    size = torch.ones((), dtype=tree.dtype(setting.model.params))
    with seed.isolated(0), torch.no_grad():
        return train(method, setting, order, open_memory(method, setting), size, data, context, autograd)[0]


def steps_of(method: Method, setting: Setting, samples: int) -> int:
    """The steps that a client with this many samples must report: those that move what is sent, all where nothing is."""
    model, total = setting.model, 0
    sent = {*method.sent(model.params, model)}
    for phase in method.phases:
        moves = {n for n in model.params if method.trains(n, model) and model.within(phase.moves, n)}
        if not sent or moves & sent:
            total += phase.work(setting.work).steps_for(samples)
    return total


def check_report(found: Tree, like: Report, setting: Setting, samples: int, steps: int) -> Report:
    """The report in a client's tensors `found`, if it is one that its order asks for. Raises `Refused`.

    `samples` and `steps` are those that the client must have: no weight can be had by claiming others.
    """
    wanted = flat(like)
    check_tree(found, wanted)
    size, made = (torch.tensor(n, dtype=like.size.dtype) for n in (samples, steps))
    for what, must in (("size", size), ("steps", made), ("weight", setting.work.solver.weight(made))):
        if not torch.equal(found[what].to(must.dtype), must):
            raise Refused(f"{what} {found[what].item():g}; expected {must.item():g}")
    if not bool(found["loss"].isfinite()):
        raise Refused(f"loss {found['loss'].item()}; expected a finite number")
    report = nested(found)
    refused = refusals(Cohort((0,), report.map(lambda t: t[None]), 1))
    if refused:
        raise Refused(refused[0])
    for fact, facts in report.shared.items():
        _check_counts(f"shared fact {fact}", facts, samples)
    return report


def check_answer(found: Tree, like: Tree, samples: int) -> None:
    """Whether an answer has the names, shapes and types of `like`, and finite numbers. Raises `Refused`."""
    check_tree(found, like)
    for name, t in found.items():
        if not bool(torch.isfinite(t).all()):
            raise Refused(f"the answer's {name} is not finite")
    _check_counts("answer", found, samples)


def check_tree(found: Tree, wanted: Tree) -> None:
    """Whether a tree has exactly these names, shapes and types; nothing is broadcast or cast. Raises `Refused`."""
    missing, more = [n for n in wanted if n not in found], [n for n in found if n not in wanted]
    if missing or more:
        said = [f"{what} {', '.join(names[:5])}" for what, names in (("lacks", missing), ("has", more)) if names]
        raise Refused(f"the report {' and '.join(said)}; expected {len(wanted)} tensors by name")
    for name, like in wanted.items():
        t = found[name]
        if t.shape != like.shape:
            raise Refused(f"{name} has shape {list(t.shape)}; expected {list(like.shape)}")
        if t.dtype != like.dtype:
            raise Refused(f"{name} is {t.dtype}; expected {like.dtype}")


def _check_counts(what: str, facts: Tree, samples: int) -> None:
    counts = facts.get("counts")
    if counts is None:
        return
    whole = counts.double()
    if bool((whole < 0).any()) or not torch.equal(whole, whole.round()) or whole.sum().item() != samples:
        raise Refused(f"{what}: counts that sum to {whole.sum().item():g}; expected whole numbers, {samples} in all")


SCALARS = ("size", "steps", "weight", "loss")


def flat(report: Report) -> Tree:
    """A report as one tree, as it travels."""
    drawers = {f"letters.{name}": t for name, t in report.letters.items()}
    drawers |= {f"shared.{name}": t for name, t in report.shared.items()}
    return tree.pack({"update": report.update, "buffers": report.buffers} | drawers) | {
        name: getattr(report, name) for name in SCALARS
    }


def nested(found: Tree) -> Report:
    """The inverse of `flat`."""
    drawers = tree.unpack({name: t for name, t in found.items() if name not in SCALARS})
    letters, shared = (
        {name.removeprefix(kind): t for name, t in drawers.items() if name.startswith(kind)}
        for kind in ("letters.", "shared.")
    )
    size, steps, weight, loss = (found[name] for name in SCALARS)
    return Report(drawers.get("update", {}), drawers.get("buffers", {}), letters, size, steps, weight, loss, shared)
