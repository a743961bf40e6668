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

from unalike_studies.recommendation.judgement import JUDGEMENT_FILE
from unalike_studies.recommendation.natural_tasks import natural_runs
from unalike_studies.recommendation.regret import write
from unalike_studies.recommendation.stored_runs import RUNS_FILE, StoredRuns
from unalike_studies.recommendation.stored_tasks import grid
from unalike_studies.recommendation.task_runs import collect, replace_natural


def run(path: Path, jobs: int) -> None:
    """Run the tasks that the file lacks."""
    started = time.perf_counter()
    tasks = grid()
    for name in collect(tasks, path, jobs):
        stored = len(StoredRuns.read(path).tasks)
        seconds = time.perf_counter() - started
        print(f"{stored}/{len(tasks)} {seconds:.0f} s: {name}", flush=True)
    replace_natural(path, natural_runs())
    natural = len(StoredRuns.read(path).natural.tasks)
    print(f"{natural} tasks with real owners", flush=True)


def judge(path: Path, to: Path) -> None:
    """Judge the ways to choose, and print the mean regrets in points."""
    for judgement in write(StoredRuns.read(path), to):
        judged = f"{judgement.objective}, {judgement.candidates} methods"
        tasks = f"{judgement.tasks} and {judgement.owners} tasks"
        print(f"{judged}, {tasks}: {judgement.policy(False)}")
        for by, regret in judgement.regret.items():
            points = []
            for policy, interval in regret.items():
                ends = f"{100 * interval.low:.1f} to {100 * interval.high:.1f}"
                points.append(f"{policy} {100 * interval.mean:.1f} ({ends})")
            print(f"  held out by {by}: {', '.join(points)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1, help="tasks that run at a time")
    parser.add_argument("--judge", action="store_true", help="judge the runs that are there")
    parser.add_argument("--runs", type=Path, default=RUNS_FILE, help="the file of runs")
    parser.add_argument(
        "--out", type=Path, default=JUDGEMENT_FILE, help="the file of the judgement"
    )
    arguments = parser.parse_args()
    if not arguments.judge:
        run(arguments.runs, arguments.jobs)
    judge(arguments.runs, arguments.out)
