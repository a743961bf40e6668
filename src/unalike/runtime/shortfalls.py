"""Shortfalls of a method in a stage, on its model, clients and local work: sentences for the notes of a run."""

import dataclasses

import numpy as np

from unalike.core.work import Work
from unalike.data.sanity import listed
from unalike.methods.method import DEFAULTS, Method
from unalike.methods.part import Setup, overrides, spec_text
from unalike.methods.screening import Screening
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.stage_state import StageState


def shortfalls(state: StageState, run_config: RunConfig) -> list[str]:
    """The sentences about a stage of the run."""
    if not state.stage.trained:
        return []
    if not state.stage.rounds and run_config.options.rounds:
        rounds = run_config.options.rounds
        return [
            f"stage {state.stage.name!r} has no round to train: rounds={rounds} is too few for the stages of this plan"
        ]
    method = state.method
    setup = setup_of(state, run_config)
    found = _unused_work(run_config.work, setup.settings.work)
    if not state.stage.pooled:
        found += _alone(method, setup)
        found += _hardly_repeated(method, setup)
        found += _untrained(state)

    # What aggregates the updates meets those that screening leaves over.
    screened = setup
    for screening in method.role(Screening):
        screened = screened._replace(participants=screening.rows(screened.participants))
    for part in method.parts:
        why = part.shortfall(screened if part is method.aggregator else setup)
        if why:
            found.append(f"{spec_text(part)} cannot do here what it is named for: {why}")
    return found


def lost_buffers(state: StageState) -> list[str]:
    """A sentence where the stage starts from models of the server, which never had the clients' own buffers."""
    stage = state.stage
    has_buffers = any(group.model.buffers for group in state.groups.values())
    if stage.start is None or state.settings.buffers != "local" or not has_buffers:
        return []
    return [
        f"stage {stage.name!r} starts from models of the server, whose buffers are those that the run began "
        "with (buffers='local'): what clients made of their own before is lost there, and questions about these models do not "
        "see it; buffers='average' carries it on"
    ]


def setup_of(state: StageState, run_config: RunConfig) -> Setup:
    """The model, work and clients that the parts meet in a stage."""
    sizes = state.population.sizes
    clients = len(state.eligible)
    smallest_group = clients
    if state.stage.groups is not None and state.stage.chooses is None:
        with_samples = [(sizes[list(ids)] > 0).sum() for ids in state.all_members.values()]
        smallest_group = int(min(with_samples))
    share = state.cohort_size / clients
    samples = sizes[sizes > 0]
    work = state.settings.work
    return Setup(
        settings=state.settings,
        participants=max(1, round(share * smallest_group)),
        clients=clients,
        rounds=run_config.options.rounds,
        steps=(work.steps_for(int(samples.min())), work.steps_for(int(samples.max()))),
        evaluate_every=run_config.options.evaluate_every,
        one_class=_clients_of_one_class(state),
    )


def _clients_of_one_class(state: StageState) -> int:
    """The number of clients whose training samples have one class; 0 where nobody needs to know, or labels are elsewhere."""
    population = state.population
    needed = state.method.has_facts(state.settings.work)
    if not needed or not population.is_here or population.classes is None:
        return 0
    classes = np.count_nonzero(population.label_counts(), axis=1)
    return int((classes == 1).sum())


def _untrained(state: StageState) -> list[str]:
    """A sentence where clients are tested whose own part of the model no round trains."""
    if state.has_shared_model:
        return []
    population = state.population
    idle = np.flatnonzero((population.test.sizes > 0) & (population.sizes == 0)).tolist()
    if not idle:
        return []
    names = listed([population.names[k] for k in idle])
    return [
        f"the scores count {names} with a part of the model that nobody trains, as each client keeps and trains its own"
    ]


def _alone(method: Method, setup: Setup) -> list[str]:
    """A sentence where there is nobody to be averaged with."""
    if setup.participants > 1 or not method.has_shared_model(setup.model):
        return []
    parts = [p.name for p in method.parts if p not in DEFAULTS.values()]
    idle = f", and {' and '.join(parts)} cannot compare it with others" if parts else ""
    return [
        f"one client takes part in a round: no models are averaged{idle}; let more clients take part"
    ]


def _hardly_repeated(method: Method, setup: Setup) -> list[str]:
    """A sentence where parts keep something between rounds that hardly ever comes to use."""
    times = setup.rounds * setup.participants / setup.clients
    if times >= 2:
        return []
    names = [p.name for p in method.parts if overrides(p, "client_init")]
    if setup.rounds == 1:
        # what the server keeps is used in the next round, whoever takes part
        at_server = [
            p for p in method.parts if overrides(p, "server_init") or overrides(p, "server_open")
        ]
        names += [p.name for p in at_server]
    if not names:
        return []
    listed_names = " and ".join(dict.fromkeys(names))
    return [
        f"a client takes part in {times:.2g} round{'s' * (times != 1)} on average, so that what {listed_names} "
        "keep from one to the next is hardly used; make more rounds, or let more clients take part"
    ]


def _unused_work(wanted: Work, actual: Work) -> list[str]:
    """A sentence where the method replaces local work that the user asked for (`fedsgd`)."""
    usual = Work()
    unused = []
    for field in dataclasses.fields(Work):
        value = getattr(wanted, field.name)
        if value not in (getattr(usual, field.name), getattr(actual, field.name)):
            unused.append(f"{field.name}={value!r}")
    if not unused:
        return []
    return [f"the method has local work of its own, so that {', '.join(unused)} has no effect"]
