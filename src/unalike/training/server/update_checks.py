"""Checks of the numbers in client updates: finite, and not negative where they count something."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from statistics import median

import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.types import ClientUpdate, Tree


def find_faults(ids: Sequence[int], client_update: ClientUpdate) -> dict[int, str]:
    """Client -> why its update cannot count, for the updates of `ids` stacked along a leading [K]; empty if all are valid."""
    values = _values(client_update)
    if float(torch.minimum(client_update.size, client_update.steps).min()) > 0 and _all_valid(
        values
    ):  # the least of NaN is NaN
        return {}
    found: dict[int, str] = {}
    for what, tensor in values.items():
        for rule in (_finite, *_rules(what)):
            for place in (~rule(tensor)).nonzero().flatten().tolist():
                found.setdefault(ids[place], WORDS[rule].format(what=what))
    for client, size, steps in zip(
        ids, client_update.size.tolist(), client_update.steps.tolist(), strict=True
    ):
        if not size > 0 or not steps > 0:
            found.setdefault(
                client,
                f"{size:g} training samples and {steps:g} steps; expected more than none of both",
            )
    return found


OVERSIZED = 100
"""An update with a norm of so many times the median of the others is absurd, though it is finite."""
SUSPECT = 10.0
"""Mean losses below this are no sign of an absurd update."""


def update_norms(ids: Sequence[int], update: Tree) -> dict[int, float]:
    """Client -> the norm of its update, of updates [K, ...]."""
    if not update:
        return {}
    tensors, unit = [t.float() for t in update.values()], 1.0
    norms = _norms(tensors)
    if not all(
        map(math.isfinite, chain.from_iterable(norms))
    ):  # squares beyond the range of float32
        unit = 2.0**80
        norms = _norms([t / unit for t in tensors])
    return dict(zip(ids, (unit * math.hypot(*row) for row in norms), strict=True))


def _norms(tensors: Sequence[Tensor]) -> list[list[float]]:
    """The norms of the rows of tensors [K, ...], tensor by tensor, for each row."""
    rows = [t if t.dim() > 1 else t[:, None] for t in tensors]
    return torch.stack(
        [torch.linalg.vector_norm(t, dim=tuple(range(1, t.dim()))) for t in rows], 1
    ).tolist()


def find_oversized(norms: Mapping[int, float]) -> dict[int, str]:
    """Client -> what is absurd about its update, by the norms of all."""
    if len(norms) < 2:
        return {}
    largest = max(norms.values())
    usual = median(sorted(norms.values())[:-1])  # of the others
    if not largest > OVERSIZED * usual > 0:
        return {}
    text = "its update counted, with a norm of {:.3g}, {:.3g} times the median of the others: look at its data"
    return {
        k: text.format(norm, norm / usual) for k, norm in norms.items() if norm > OVERSIZED * usual
    }


def has_suspicious_loss(losses: Tensor) -> bool:
    """Whether one of the clients' losses [K] is so far above the others' that their updates should be looked at one by one."""
    return bool(losses.max() > OVERSIZED * losses.median() + SUSPECT)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all values are finite, by one sum over everything: it is not finite if any value is not."""
    sums = [
        t.sum(dtype=torch.promote_types(t.dtype, torch.float32))
        for t in tensors
        if t.is_floating_point()
    ]
    return not sums or math.isfinite(float(torch.stack([s.to(sums[0]) for s in sums]).sum()))


def _all_valid(values: Tree) -> bool:
    """Whether all values keep all rules; devices are waited for twice."""
    kept = [rule(t) for what, t in values.items() for rule in _rules(what)]
    return all_finite(values.values()) and (not kept or bool(torch.cat(kept).all()))


def _values(client_update: ClientUpdate) -> Tree:
    """Description -> tensor [K, ...], for everything in the updates that clients computed from their data."""
    found = {f"update of {n}": t for n, t in client_update.update.items()}
    found |= {f"buffer {n}": t for n, t in client_update.buffers.items()}
    found |= {
        f"message {part}/{n}": t
        for part, message in client_update.messages.items()
        for n, t in message.items()
    }
    return found | {
        f"shared fact {fact}/{n}": t
        for fact, facts in client_update.shared.items()
        for n, t in facts.items()
    }


def _finite(tensor: Tensor) -> Tensor:
    """Per row of [K, ...]: whether all entries are finite.

    NaN and infinities survive a sum, which is cheap; only where a sum is not finite are the entries themselves looked at.
    """
    flat = tree.matrix(tensor)
    finite = torch.isfinite(flat.sum(1))
    doubtful = (~finite).nonzero().flatten()
    finite[doubtful] = torch.isfinite(flat[doubtful]).all(1)
    return finite


def _not_negative(tensor: Tensor) -> Tensor:
    """Per row of [K, ...]: whether no entry is below 0."""
    return tree.matrix(tensor).ge(0).all(1)


Rule = Callable[[Tensor], Tensor]

WORDS: dict[Rule, str] = {
    _finite: "the {what} is not finite (a lower learning rate may help)",
    _not_negative: "the {what} is negative; expected 0 or more",
}

NOT_NEGATIVE = ("running_var", "num_batches_tracked", "counts")
"""Last words of the names of variances and counts."""


def _rules(what: str) -> tuple[Rule, ...]:
    """The further rules for the values under a name; an update has none."""
    return (_not_negative,) if what.endswith(NOT_NEGATIVE) and not what.startswith("update") else ()
