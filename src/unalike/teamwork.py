"""A run of several processes: who is in it, and what those that do not lead do all day."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from unalike.core import spec
from unalike.core.errors import UnalikeError
from unalike.core.plan import Answers, Results, Stage
from unalike.executors.distributed import attend, states_in
from unalike.executors.team import Team, joined, started
from unalike.job import Job
from unalike.simulation import Simulation


@contextmanager
def team_for(job: Job) -> Iterator[Team | None]:
    """The processes that work for a run, None where it has but one; let go when the run ends.

    A process that `torchrun` started and that does not lead works here until the run is over, and then leaves.
    """
    team = joined() or _started(job)
    if team is None:
        yield None
        return
    if team.rank:
        serve(job, team)
        raise SystemExit(0)
    try:
        yield team
    finally:
        team.close()


def inner(executor: str) -> str:
    """The executor inside each process."""
    call = spec.parse_one(executor)
    return str(call.parameters.get("inner", "auto")) if call.name == "distributed" else executor


def simulation_of(
    job: Job, stage: Stage, index: int, executor: str, folder: Path | None, team: Team | None
) -> Simulation:
    """A stage of the job's plan; `folder` is that of the clients' memories."""
    return Simulation(
        stage,
        job.setting,
        job.population,
        executor=executor,
        participation=job.options.participation,
        folder=None if folder is None else folder / f"stage-{index}",
        transform=job.options.chain,
        single="local" in job.options.protocols,
        team=team,
    )


def announce(team: Team | None, simulation: Simulation, folder: Path | None) -> None:
    """Tell the team what stage begins."""
    if team is not None:
        team.tell({"do": "stage", "executor": simulation.executor, "folder": None if folder is None else str(folder)})


def report(team: Team | None, outcome: Results | Answers) -> None:
    """Tell the team what a step of the plan came to, so that it knows the next one."""
    if team is None:
        return
    if isinstance(outcome, Results):
        states = {name: state._asdict() for name, state in outcome.items()}
        team.tell({"do": "next", "states": states, "rounds": outcome.rounds})
    else:
        team.tell({"do": "next", "answers": [list(outcome.clients), outcome.tree]})


def serve(job: Job, team: Team) -> None:
    """Follow the plan as the leader carries it out, and do this process's share of it."""
    steps = job.plan.stages(job.scene)
    step, index, simulation = next(steps, None), 0, None
    while (message := team.hear())["do"] != "end":
        try:
            if message["do"] == "stage":
                folder = None if message["folder"] is None else Path(message["folder"])
                assert isinstance(step, Stage)
                simulation = simulation_of(job, step, index, message["executor"], folder, team)
            elif message["do"] == "next":
                outcome = (
                    Results(states_in(message["states"]), message["rounds"])
                    if "states" in message
                    else Answers(tuple(message["answers"][0]), message["answers"][1])
                )
                step, index = _next(steps, outcome), index + 1
            else:
                assert simulation is not None
                answer = attend(team, simulation, message)
                if answer is not None:
                    team.reply(answer)
        except UnalikeError as error:
            team.reply({"error": str(error)})
        except Exception as error:  # whatever it is, the leader must not wait for an answer that never comes
            team.reply({"error": f"{type(error).__name__}: {error}"})


def _next(steps, outcome):  # type: ignore[no-untyped-def]
    try:
        return steps.send(outcome)
    except StopIteration:
        return None


def _started(job: Job) -> Team | None:
    call = spec.parse_one(job.options.executor)
    if call.name != "distributed":
        return None
    strange = sorted(set(call.parameters) - {"workers", "inner"})
    workers = call.parameters.get(
        "workers", len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
    if strange or not isinstance(workers, int) or workers < 1:
        raise UnalikeError(
            f"executor {call}: expected 'distributed(workers=2)', or with inner='loop' or 'batched' in each of them"
        )
    if workers == 1:
        return None
    return started(workers, partial(serve, job))
