"""Run the tasks that recommendations are learned from, and judge the ways to choose a method on them.

    UNALIKE_DATA=data python studies/collect_tasks.py --jobs 2

The runs and the judgement go to the files of the package `unalike_studies.recommendation`. An interrupted collection goes on
where it stopped. The tasks with real owners of data are made anew from the stored results of the study `natural`. With `--judge`,
no tasks are run or made.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from unalike_studies.recommendation import judgement
from unalike_studies.recommendation.natural_tasks import natural_runs
from unalike_studies.recommendation.regret import write
from unalike_studies.recommendation.stored_runs import FILE, StoredRuns
from unalike_studies.recommendation.stored_tasks import grid
from unalike_studies.recommendation.task_runs import collect, replace_natural


def run(path: Path, jobs: int) -> None:
    """Run the tasks that the file lacks."""
    started, tasks = time.perf_counter(), grid()
    for name in collect(tasks, path, jobs):
        print(
            f"{len(StoredRuns.read(path).tasks)}/{len(tasks)} {time.perf_counter() - started:.0f} s: {name}",
            flush=True,
        )
    replace_natural(path, natural_runs())
    print(f"{len(StoredRuns.read(path).natural.tasks)} tasks with real owners", flush=True)


def judge(path: Path, to: Path) -> None:
    """Judge the ways to choose, and print the mean regrets in points."""
    for found in write(StoredRuns.read(path), to):
        print(
            f"{found.objective}, {found.candidates} methods, {found.tasks} and {found.owners} tasks: {found.policy(False)}"
        )
        for by, regret in found.regret.items():
            points = ", ".join(
                f"{p} {100 * e.mean:.1f} ({100 * e.low:.1f} to {100 * e.high:.1f})"
                for p, e in regret.items()
            )
            print(f"  held out by {by}: {points}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1, help="tasks that run at a time")
    parser.add_argument("--judge", action="store_true", help="judge the runs that are there")
    parser.add_argument("--runs", type=Path, default=FILE, help="the file of runs")
    parser.add_argument(
        "--out", type=Path, default=judgement.FILE, help="the file of the judgement"
    )
    given = parser.parse_args()
    if not given.judge:
        run(given.runs, given.jobs)
    judge(given.runs, given.out)
