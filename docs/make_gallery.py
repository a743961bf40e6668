"""Draw the figures of `partitions.md` and `how_to/slow_clients.md` into `images/`: python docs/make_gallery.py"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch.nn.functional import pad

from unalike.client_devices.device_model import device_model
from unalike.data import Dataset, PartitionPlan, Population, load, partition

IMAGES_FOLDER = Path(__file__).parent / "images"
FOLDER = IMAGES_FOLDER / "partitions"
DEVICES_FOLDER = IMAGES_FOLDER / "devices"
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
SPEEDS = {
    "lognormal": "lognormal(sigma=1)",
    "pareto": "pareto(shape=1.5)",
    "two_speed": "two_speed(slow=0.3, factor=10)",
}
PRESENCES = {"day_night": "day_night(hours=10)"}
DEVICES, LISTED_DEVICES, SHOWN_HOURS = 2000, 24, 48
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


def small_figure(spec: str) -> tuple[Figure, Any]:
    """A figure of a trait of devices, and its axes."""
    figure = Figure(figsize=(4.2, 2.1), layout="constrained")
    axes: Any = figure.add_subplot()
    axes.tick_params(labelsize=7, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(spec, fontsize=9, loc="left", color=INK)
    return figure, axes


def speeds(spec: str) -> Figure:
    """Draw how many times as slow as usual devices are, on an axis of powers."""
    rates = device_model(f"pace(samples_per_second=1) + {spec}").rates(DEVICES, seed=0)
    slower = 1 / rates.samples_per_second
    figure, axes = small_figure(spec)
    axes.hist(slower, np.geomspace(0.03, 300, 49), color=BUBBLE)
    axes.set_xscale("log")
    axes.set_xlim(0.03, 300)
    axes.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes.set_xlabel("times as slow as usual", fontsize=8)
    axes.set_ylabel(f"of {DEVICES} devices", fontsize=8)
    return figure


def presences(spec: str) -> Figure:
    """Draw when devices are there: one row for each device."""
    is_there = device_model(spec).presence(LISTED_DEVICES, seed=0)
    assert is_there is not None
    ids = np.arange(LISTED_DEVICES)
    hours = np.arange(0, SHOWN_HOURS, 0.1)
    there = [is_there(ids, np.full(LISTED_DEVICES, 3600 * hour)) for hour in hours]
    figure, axes = small_figure(spec)
    extent = (0, SHOWN_HOURS, LISTED_DEVICES - 0.5, -0.5)
    shown = {"aspect": "auto", "interpolation": "nearest", "vmax": 1.4}
    axes.imshow(np.array(there).T, "Blues", extent=extent, **shown)
    axes.set_xticks(range(0, SHOWN_HOURS + 1, 12))
    axes.set_xlabel("hours of simulated time (blue: there)", fontsize=8)
    axes.set_ylabel("device", fontsize=8)
    return figure


def save(name: str, figure: Figure, folder: Path = FOLDER) -> None:
    figure.savefig(folder / f"{name}.png", dpi=90)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    DEVICES_FOLDER.mkdir(parents=True, exist_ok=True)
    for name, spec in SPEEDS.items():
        save(name, speeds(spec), DEVICES_FOLDER)
    for name, spec in PRESENCES.items():
        save(name, presences(spec), DEVICES_FOLDER)
    for name, (data, spec, clients) in BUBBLES.items():
        save(name, bubbles(partition(data, spec, clients).plan))
    for name, spec in IMAGES.items():
        save(name, sample_images(partition(DIGITS, spec, clients=8)))
