"""Charts of a partition, drawn with Matplotlib.

Matplotlib is imported when the first chart is drawn; pyplot and its global state are not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from unalike.data.partition_plan import PartitionPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, BUBBLE = "#333333", "#3b6ea8"


def bubbles(
    plan_or_counts: PartitionPlan | np.ndarray,
    classes: Sequence[str] | None = None,
    sizes: np.ndarray | None = None,
    title: str = "",
) -> Figure:
    """Draw clients as columns, classes as rows and the number of training samples as the area of a bubble.

    For regression the chart shows the clients' sizes as bars instead.

    >>> bubbles(clients.plan, clients.classes).savefig("plan.png")   # doctest: +SKIP

    From a plan, or from training samples per client and class [K, C] ([K, 0] and the `sizes` [K] for regression). The title is
    the plan's data set and spec unless given.
    """
    if isinstance(plan_or_counts, PartitionPlan):
        plan = plan_or_counts
        return bubbles(plan.counts, classes, plan.train.sizes, title or f"{plan.data}: {plan.spec}")
    counts = plan_or_counts
    clients, wide = counts.shape
    figure, axes = _canvas(
        width=float(np.clip(1.6 + 0.22 * clients, 4.5, 14)), height=float(np.clip(0.9 + 0.2 * wide, 3, 5.5))
    )
    axes.set_title(title, fontsize=9, loc="left", color=INK)
    axes.set_xlabel("client", fontsize=8)
    axes.set_xlim(-1, clients)
    axes.set_xticks(range(0, clients, -(-clients // 20)))
    if not wide:
        axes.bar(np.arange(clients), sizes if sizes is not None else np.zeros(clients), color=BUBBLE)
        axes.set_ylabel("training samples", fontsize=8)
        return figure
    k, c = np.nonzero(counts)
    most = max(int(counts.max()), 1)
    # A bubble of the largest count just fills its cell: s is an area in points squared.
    cell = 72 * min(figure.get_figwidth() * 0.8 / (clients + 1), figure.get_figheight() * 0.75 / (wide + 1))
    axes.scatter(k, c, s=(0.95 * cell) ** 2 * counts[k, c] / most, color=BUBBLE, alpha=0.85, linewidths=0)
    axes.set_ylabel("class", fontsize=8)
    axes.set_ylim(-1, wide)
    step = -(-wide // 20)
    names = list(classes) if classes is not None else [str(label) for label in range(wide)]
    axes.set_yticks(range(0, wide, step), names[::step])
    axes.set_xlabel(f"client (largest bubble: {most} samples)", fontsize=8)
    return figure


def _canvas(width: float, height: float) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=110)
    axes = figure.add_subplot()
    axes.tick_params(labelsize=7, colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes
