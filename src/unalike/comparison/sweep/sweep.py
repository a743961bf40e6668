"""`ua.sweep`: a comparison at every point of a grid, from one store of cells."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from unalike._utils.errors import UnalikeError, refuse_empty_path
from unalike._utils.keywords import fields_of
from unalike._utils.progress import ProgressCallback, UserProgress, progress_reporting
from unalike._utils.spec import slug
from unalike.comparison.compare import labelled_methods, prepare_experiment, taken
from unalike.comparison.experiment import Experiment
from unalike.comparison.seed_plan import SeedPlan
from unalike.comparison.sweep.grid import Arguments, Grid, label_of
from unalike.comparison.sweep.sweep_result import Sweep
from unalike.core.work import Work
from unalike.data.dataset import Dataset
from unalike.data.partitioning.given_clients import Clients, ClientsRequest
from unalike.data.partitioning.partition import check_scheme, usual_partition
from unalike.data.sources.load import load
from unalike.runtime.setup.run_options import check_inputs, named_plan
from unalike.tracking.tracker import Track
from unalike.tracking.tracking import NO_TRACKERS, Trackers, group_of

POINTS_FOLDER = "points"
"""The folder of the comparisons of a sweep."""


def sweep(
    methods: Iterable[object] | Mapping[str, object],
    grid: Grid,
    clients: Clients | int | None = None,
    *,
    out: str | Path | None = None,
    track: Track | None = None,
    jobs: int = 1,
    progress: UserProgress = None,
    **options: Any,
) -> Sweep:
    """Compare methods at every point of a grid of options and parameters.

    Every point is a comparison of its own, under the same seeds. What wins over a grid is chosen by test samples; `ua.tune`
    chooses by validation samples.

    Args:
        methods: as for `ua.compare`.
        grid: name -> values. Names are those of local training (`lr`, `epochs`, `batch_size`, ...), of runs (`model`,
            `participation`, `transform`, `precision`, `buffers`), of the clients (`data`, `partition`, `clients`, `split`, `val`),
            and of parameters of the partition (`alpha`) or of methods (`mu`; `proximal.mu` names the part, too).
        clients: as for `ua.compare`.
        out: folder that keeps the cells of all points, a comparison for each point in `points`, and the page `sweep.html`. Finished
            cells are read; values that are added to the grid run alone.
        track: as for `ua.compare`; the runs of all points are in one group.
        jobs: as for `ua.compare`.
        progress: as for `ua.compare`.
        options: the other arguments of `ua.compare`.

    Returns:
        The comparisons of all points, with their table and heat maps.

    Raises:
        UnalikeError: before any training, for an unknown name, a value that it cannot have, or a comparison that cannot be run.

    Example:
        >>> grid = {"lr": [0.01, 0.1], "alpha": [0.1, 1]}  # doctest: +SKIP
        >>> print(ua.sweep(["fedavg", "scaffold"], grid, data="digits", rounds=20))  # doctest: +SKIP
    """
    request = ClientsRequest(clients, **taken(options, fields_of(ClientsRequest)))
    seeds = SeedPlan.of(**taken(options, ("seeds", "min_seeds", "max_seeds")))
    planned = plan_sweep(methods, grid, request, seeds, **options)
    with progress_reporting(progress, planned.rounds, "sweeping") as callback:
        return planned.run(out, callback, Trackers.of(track, group_of(out)), jobs)


@dataclass(frozen=True)
class PlannedSweep:
    """The comparisons of a sweep, each prepared when it is run. `points`: values in the order of the grid -> arguments."""

    grid: Grid
    points: Mapping[tuple[Any, ...], Arguments]
    seeds: SeedPlan
    data_axes: tuple[str, ...]
    lacking: Mapping[str, tuple[str, ...]]

    @cached_property
    def rounds(self) -> int:
        """The number of rounds of all cells, where no point shares a cell with another."""
        return self.experiment(next(iter(self.points))).rounds * len(self.points)

    def experiment(self, point: tuple[Any, ...]) -> Experiment:
        """Prepare the comparison of a point."""
        asked = self.points[point]
        return prepare_experiment(
            asked.methods, asked.clients, self.seeds, work=asked.work, **asked.training
        )

    def run(
        self,
        out: str | Path | None,
        progress: ProgressCallback,
        trackers: Trackers = NO_TRACKERS,
        jobs: int = 1,
    ) -> Sweep:
        """Run the cells that the folder `out` does not hold, point by point, `jobs` at a time.

        Without a folder, a temporary one keeps them.
        """
        refuse_empty_path("out", out)
        with TemporaryDirectory() as temporary:
            folder = Path(out or temporary)
            comparisons = {}
            for point in self.points:
                values = tuple(_text(value) for value in point)
                where = ", ".join(f"{name}={text}" for name, text in zip(self.grid, values))
                comparisons[values] = self.experiment(point).run(
                    folder / POINTS_FOLDER / slug(where),
                    _named(progress, where),
                    trackers,
                    store=folder,
                    jobs=jobs,
                )
        axes = {}
        for name, grid_values in self.grid.items():
            axes[name] = [_text(value) for value in grid_values]
        result = Sweep(axes, comparisons, self.data_axes, self.lacking)
        if out is not None:
            result.save(out)
        return result


def _named(progress: ProgressCallback, where: str) -> ProgressCallback:
    """The progress of the comparison at a point."""

    def at_point(row: dict[str, Any], what: str = "") -> None:
        progress(row, f"{what} at {where}")

    return at_point


def _check_grid(grid: Grid) -> None:
    """Raise `UnalikeError` for a name without values, or with two values of one text, which would be one point."""
    if not grid or not all(grid.values()):
        raise UnalikeError(
            f"found the grid {dict(grid)}; expected names with values, such as {{'lr': [0.01, 0.1]}}"
        )
    for name, values in grid.items():
        texts = [_text(value) for value in values]
        if len(set(texts)) < len(texts):
            raise UnalikeError(
                f"found {name} with the values {', '.join(texts)}; expected values that differ: give data sets names of their "
                "own, Dataset(name, ...)"
            )


def plan_sweep(
    methods: Iterable[object] | Mapping[str, object],
    grid: Grid,
    request: ClientsRequest,
    seeds: SeedPlan,
    *,
    work: Work | Mapping[str, Work] | None = None,
    **training: Any,
) -> PlannedSweep:
    """Check a grid, and make the arguments of every point; see `sweep`. Raises `UnalikeError`."""
    _check_grid(grid)
    has_one_data_set = request.data is not None and "data" not in grid
    if has_one_data_set and "partition" not in grid and request.partition is None:
        dataset = request.data
        if isinstance(dataset, str):
            dataset = load(dataset, request.data_dir)
        request = replace(request, partition=usual_partition(dataset))

    # A method keeps its label at all points, so the label leaves the swept parameters out.
    by_label = labelled_methods(methods)
    count = len(by_label)
    if not isinstance(methods, Mapping):
        by_label = {label_of(method, grid): method for method in by_label.values()}
    if len(by_label) < count:
        raise UnalikeError("two methods differ in a swept parameter alone; list one of them")

    # Every point is checked now, so that the last one does not fail after hours of training.
    start = Arguments(by_label, request, work, training)
    points: dict[tuple[Any, ...], Arguments] = {}
    for point in product(*grid.values()):
        arguments = start
        for name, value in zip(grid, point):
            arguments = arguments.at(name, value)
        swept = {name: value for name, value in arguments.training.items() if name in grid}
        # all of them, now: a method that cannot be read must not be found after training
        plans = [named_plan(method) for method in arguments.methods.values()]
        check_inputs(plans, has_test=True, **swept)
        if arguments.clients.partition is not None:
            check_scheme(arguments.clients.partition)
        points[point] = arguments
    lacking = {}
    for label in by_label:
        lacking[label] = tuple(name for name in grid if not start.takes(label, name))
    data_axes = tuple(name for name in grid if start.is_data(name))
    prepared = PlannedSweep(grid, points, seeds, data_axes, lacking)
    # Preparing the first point, of each data set, finds what only its clients show.
    first_points: dict[str, tuple[Any, ...]] = {}
    for point in points:
        data = dict(zip(grid, point)).get("data")
        first_points.setdefault(_text(data), point)
    tasks = {prepared.experiment(point).task.name for point in first_points.values()}
    if len(tasks) > 1:
        raise UnalikeError(
            f"found data of the tasks {' and '.join(sorted(tasks))}, whose scores have no common table; sweep over data of one task"
        )
    return prepared


def _text(value: Any) -> str:
    if isinstance(value, Dataset):
        return value.name
    return f"{value:g}" if isinstance(value, float) and math.isfinite(value) else str(value)
