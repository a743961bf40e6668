"""Draw the figure of `benchmarks.md` from `benchmarks/results.json` into `images/benchmarks.png`: python docs/make_benchmarks.py"""

import json
import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results.json"
MACHINE = "Intel(R) Xeon(R) Processor"
TASKS = {
    "2nn": "2NN, 100 clients x 100, batch 10",
    "logistic": "logistic, 300 clients x 100, batch 10",
    "cnn": "SimpleCNN, 20 clients x 250, batch 50",
    "resnet20": "ResNet-20, 10 clients x 200, batch 50",
}
CONTENDERS = {
    "ours, auto": "unalike",
    "bare loop, t1": "PyTorch loop, 1 thread",
    "bare loop, t2": "PyTorch loop, 2 threads",
    "FedJAX": "FedJAX",
    "pfl-research": "pfl-research",
    "fluke": "fluke",
    "Flower's simulation, one core a client": "Flower's simulation",
}
INK, OURS, OTHERS = "#333333", "#3b6ea8", "#b8c4d0"


def bars(axes: Any, title: str, data: dict[str, list[dict[str, Any]]]) -> None:
    """Draw the median seconds of a round of each contender that was measured, the fastest at the top."""
    found = {
        CONTENDERS[n]: [r["round"] for r in runs if "round" in r]
        for n, runs in data.items()
        if n in CONTENDERS
    }
    seconds = sorted((statistics.median(values), name) for name, values in found.items() if values)[
        ::-1
    ]
    names = [name for _, name in seconds]
    drawn = axes.barh(
        names, [s for s, _ in seconds], color=[OURS if n == "unalike" else OTHERS for n in names]
    )
    labels = [
        f"{1e3 * s:.1f} ms" if s < 0.01 else f"{1e3 * s:.0f} ms" if s < 1 else f"{s:.1f} s"
        for s, _ in seconds
    ]
    axes.bar_label(drawn, labels, padding=3, fontsize=8, color=INK)
    axes.set_title(title, fontsize=9, loc="left", color=INK)
    axes.tick_params(axis="y", labelsize=8, colors=INK, length=0)
    axes.set_xticks([])
    axes.set_xlim(0, 1.2 * seconds[0][0])
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def main() -> None:
    sections = json.loads(RESULTS.read_text())[MACHINE]["sections"]
    figure = Figure(figsize=(9, 4.4), layout="constrained", dpi=130)
    figure.suptitle(
        "Time of a round of FedAvg on two cores, one local epoch", fontsize=10, color=INK
    )
    for axes, (name, title) in zip(figure.subplots(2, 2).flat, TASKS.items(), strict=True):
        bars(axes, title, sections[name]["data"])
    figure.savefig(DOCS / "images" / "benchmarks.png")


if __name__ == "__main__":
    main()
