"""Draw the figures of `partitions.md` into `images/partitions/`: python docs/make_gallery.py"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch.nn.functional import pad

from unalike.data import Dataset, PartitionPlan, Population, load, partition

FOLDER = Path(__file__).parent / "images" / "partitions"
INK, BUBBLE = "#333333", "#3b6ea8"


def balanced(classes: int, each: int) -> Dataset:
    """Make `each` samples of `classes` classes with zero inputs and the groups "ward" and "domain"."""
    y = np.repeat(np.arange(classes), each)
    rng = np.random.default_rng(0)
    ward = np.array(
        [rng.choice(12, p=rng.dirichlet(np.full(12, 0.4))) for _ in range(len(y) // 25)]
    ).repeat(25)
    columns = {"ward": ward, "domain": np.tile(["books", "dvd", "kitchen"], len(y))[: len(y)]}
    return Dataset("labels", (np.zeros((len(y), 1), np.float32), y), groups=columns)


TEN, LETTERS, DIGITS = balanced(10, 600), balanced(62, 3000), load("digits")

BUBBLES: dict[str, tuple[Dataset, str, int | None]] = {
    "iid": (TEN, "iid", 20),
    "dirichlet": (TEN, "dirichlet(alpha=0.1)", 20),
    "dirichlet_plain": (TEN, "dirichlet(alpha=0.1, balance=False)", 20),
    "pathological": (TEN, "pathological(classes=2)", 20),
    "shards": (TEN, "shards(per_client=2)", 20),
    "classes": (TEN, "classes(k=2)", 20),
    "quantity": (TEN, "quantity(beta=0.5)", 20),
    "zipf": (TEN, "zipf(size=600)", 20),
    "even": (TEN, "even(size=600)", 20),
    "mixture": (
        balanced(10, 6000),
        "mixture(zipf_more=5, zipf_less=5, even_more=5, even_less=5)",
        None,
    ),
    "clusters": (LETTERS, "clusters(groups=(10, 26, 26), size=2500)", 20),
    "halves": (TEN, "halves", 12),
    "natural": (TEN, "natural(column='ward')", None),
    "domains": (TEN, "domains(column='domain')", 12),
    "synthetic": (load("synthetic(alpha=1.0, beta=1.0)"), "natural", None),
}
IMAGES = {"noise": "noise(level=0.1)", "rotation": "rotation(degrees=90)"}


def bubbles(plan: PartitionPlan) -> Figure:
    """Draw clients as columns, classes as rows and the number of training samples as the area of a bubble."""
    counts = plan.counts
    clients, wide = counts.shape
    figure = Figure(
        figsize=(
            float(np.clip(1.6 + 0.22 * clients, 4.5, 14)),
            float(np.clip(0.9 + 0.2 * wide, 3, 5.5)),
        ),
        layout="constrained",
        dpi=110,
    )
    axes: Any = figure.add_subplot()
    axes.tick_params(labelsize=7, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{plan.data}: {plan.spec}", fontsize=9, loc="left", color=INK)
    axes.set_xlim(-1, clients)
    axes.set_xticks(range(0, clients, -(-clients // 20)))
    k, c = np.nonzero(counts)
    most = max(int(counts.max()), 1)
    # A bubble of the largest count just fills its cell: s is an area in points squared.
    cell = 72 * min(
        figure.get_figwidth() * 0.8 / (clients + 1), figure.get_figheight() * 0.75 / (wide + 1)
    )
    axes.scatter(
        k, c, s=(0.95 * cell) ** 2 * counts[k, c] / most, color=BUBBLE, alpha=0.85, linewidths=0
    )
    axes.set_ylabel("class", fontsize=8)
    axes.set_ylim(-1, wide)
    step = -(-wide // 20)
    axes.set_yticks(range(0, wide, step), [str(label) for label in range(wide)][::step])
    axes.set_xlabel(f"client (largest bubble: {most} samples)", fontsize=8)
    return figure


def sample_images(population: Population, columns: int = 8) -> Figure:
    """Draw the first training images of each client, one row per client."""
    shown = [
        [population.x[int(row)] for row in population.train[k][:columns]]
        for k in range(len(population))
    ]
    framed = torch.stack(
        [
            torch.stack([pad(image[0], (0, 1, 0, 1), value=1) for image in images])
            for images in shown
        ]
    )
    rows, _, height, width = framed.shape
    figure = Figure(figsize=(0.55 * columns + 1.2, 0.55 * rows + 0.5), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(
        framed.permute(0, 2, 1, 3).reshape(rows * height, columns * width), "gray", vmin=0, vmax=1
    )
    axes.spines[:].set_visible(False)
    axes.set_title(population.plan.spec, fontsize=9, loc="left")
    axes.tick_params(labelsize=7)
    axes.set_xticks([])
    axes.set_yticks([(k + 0.5) * height for k in range(rows)], population.names)
    return figure


def save(name: str, figure: Figure) -> None:
    figure.savefig(FOLDER / f"{name}.png", dpi=90)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (data, spec, clients) in BUBBLES.items():
        save(name, bubbles(partition(data, spec, clients).plan))
    for name, spec in IMAGES.items():
        save(name, sample_images(partition(DIGITS, spec, clients=8)))
