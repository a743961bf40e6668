"""What the server checks before a report counts. A report that fails is refused; the round goes on without it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unalike.core.types import Report

if TYPE_CHECKING:
    from unalike.core.server import Cohort


def refusals(cohort: Cohort) -> dict[int, str]:
    """Client number -> why its report is refused; empty when all are sound."""
    return unsound(cohort.ids, cohort.report)


def unsound(ids: Sequence[int], report: Report) -> dict[int, str]:
    """The same for the stacked reports of the clients `ids`."""
    trees = [report.update, report.buffers, *report.letters.values()]
    bare = bool((report.size > 0).all() and (report.steps > 0).all())
    if bare and _sound([t for tree in trees for t in tree.values() if t.is_floating_point()]):
        return {}
    return _reasons(ids, report)


def _sound(tensors: list[Tensor]) -> bool:
    """Whether all entries are finite. NaN and infinities survive a sum, which is one cheap pass."""
    return not tensors or math.isfinite(float(torch.stack([t.sum(dtype=_wide(t)) for t in tensors]).sum()))


def _wide(t: Tensor) -> torch.dtype:
    return t.dtype if t.dtype in (torch.float32, torch.float64) else torch.float32


def _reasons(ids: Sequence[int], report: Report) -> dict[int, str]:
    stacked = {f"update of {n}": t for n, t in report.update.items()} | {
        f"buffer {n}": t for n, t in report.buffers.items()
    }
    stacked |= {f"letter {part}/{n}": t for part, letter in report.letters.items() for n, t in letter.items()}
    found: dict[int, str] = {}
    for what, tensor in stacked.items():
        for place in (~torch.isfinite(tensor).reshape(len(ids), -1).all(1)).nonzero().flatten().tolist():
            found.setdefault(ids[place], f"the {what} is not finite (a lower learning rate may help)")
    for client, size, steps in zip(ids, report.size.tolist(), report.steps.tolist(), strict=True):
        if not size > 0 or not steps > 0:
            found.setdefault(client, f"{size:g} training samples and {steps:g} steps; expected more than none of both")
    return found
