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
    # Nearly always all updates are valid, which a few sums over everything show.
    values = _values(client_update)
    least_count = float(torch.minimum(client_update.size, client_update.steps).min())
    if least_count > 0 and _all_valid(values):  # the least of NaN is NaN
        return {}

    # Otherwise every client is told the first thing that is wrong with its update.
    faults: dict[int, str] = {}
    for what, tensor in values.items():
        for rule in (_finite, *_rules(what)):
            for row in (~rule(tensor)).nonzero().flatten().tolist():
                faults.setdefault(ids[row], WORDS[rule].format(what=what))
    sizes = client_update.size.tolist()
    steps = client_update.steps.tolist()
    for client, size, made in zip(ids, sizes, steps, strict=True):
        if not size > 0 or not made > 0:
            counts = f"{size:g} training samples and {made:g} steps"
            faults.setdefault(client, f"{counts}; expected more than none of both")
    return faults


OVERSIZED_MULTIPLE = 100
"""An update with a norm of so many times the median of the others is absurd, though it is finite."""
MIN_SUSPICIOUS_LOSS = 10.0
"""Mean losses below this are no sign of an absurd update."""
LARGEST_UNIT = 2.0**80
"""Unit in which norms are measured whose squares are beyond the range of float32."""


def update_norms(ids: Sequence[int], update: Tree) -> dict[int, float]:
    """Client -> the norm of its update, of updates [K, ...]."""
    if not update:
        return {}
    tensors = [t.float() for t in update.values()]
    unit = 1.0
    norms = _norms(tensors)
    if not all(map(math.isfinite, chain.from_iterable(norms))):
        unit = LARGEST_UNIT
        norms = _norms([t / unit for t in tensors])
    return {client: unit * math.hypot(*row) for client, row in zip(ids, norms, strict=True)}


def _norms(tensors: Sequence[Tensor]) -> list[list[float]]:
    """The norms of the rows of tensors [K, ...], tensor by tensor, for each row."""
    columns = []
    for tensor in tensors:
        rows = tensor if tensor.dim() > 1 else tensor[:, None]
        dimensions = tuple(range(1, rows.dim()))
        columns.append(torch.linalg.vector_norm(rows, dim=dimensions))
    return torch.stack(columns, 1).tolist()


def find_oversized(norms: Mapping[int, float]) -> dict[int, str]:
    """Client -> what is absurd about its update, by the norms of all."""
    if len(norms) < 2:
        return {}
    *others, largest = sorted(norms.values())
    usual = median(others)
    if not largest > OVERSIZED_MULTIPLE * usual > 0:
        return {}
    oversized = {}
    for client, norm in norms.items():
        if norm > OVERSIZED_MULTIPLE * usual:
            multiple = f"{norm / usual:.3g} times the median of the others"
            oversized[client] = (
                f"its update counted, with a norm of {norm:.3g}, {multiple}: look at its data"
            )
    return oversized


def has_suspicious_loss(losses: Tensor) -> bool:
    """Whether one of the clients' losses [K] is so far above the others' that their updates should be looked at one by one."""
    return bool(losses.max() > OVERSIZED_MULTIPLE * losses.median() + MIN_SUSPICIOUS_LOSS)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all values are finite, by one sum over everything: it is not finite if any value is not."""
    sums = []
    for t in tensors:
        if t.is_floating_point():
            sums.append(t.sum(dtype=torch.promote_types(t.dtype, torch.float32)))
    if not sums:
        return True
    # one sum of the sums, so that a device is waited for once
    total = torch.stack([s.to(sums[0]) for s in sums]).sum()
    return math.isfinite(float(total))


def _all_valid(values: Tree) -> bool:
    """Whether all values keep all rules; devices are waited for twice."""
    answers = [rule(t) for what, t in values.items() for rule in _rules(what)]
    if not all_finite(values.values()):
        return False
    return not answers or bool(torch.cat(answers).all())


def _values(client_update: ClientUpdate) -> Tree:
    """Description -> tensor [K, ...], for everything in the updates that clients computed from their data."""
    values = {f"update of {name}": t for name, t in client_update.update.items()}
    for name, t in client_update.buffers.items():
        values[f"buffer {name}"] = t
    for path, t in tree.pack(client_update.messages).items():
        values[f"message {path}"] = t
    for path, t in tree.pack(client_update.shared).items():
        values[f"shared fact {path}"] = t
    return values


def _finite(tensor: Tensor) -> Tensor:
    """Per row of [K, ...]: whether all entries are finite.

    NaN and infinities survive a sum, which is cheap; only where a sum is not finite are the entries themselves looked at.
    """
    rows = tree.matrix(tensor)
    finite = torch.isfinite(rows.sum(1))
    doubtful = (~finite).nonzero().flatten()
    finite[doubtful] = torch.isfinite(rows[doubtful]).all(1)
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
