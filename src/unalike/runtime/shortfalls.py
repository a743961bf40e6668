"""Shortfalls of a method in a stage, on its model, clients and local work: sentences for the notes of a run."""

import dataclasses

import numpy as np

from unalike.core.work import Work
from unalike.data.sanity import listed
from unalike.methods.method import DEFAULTS, Method
from unalike.methods.part import Part, Setup, overrides, spec_text
from unalike.methods.screening import Screening
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.stage_state import StageState


def shortfalls(state: StageState, run_config: RunConfig) -> list[str]:
    """The sentences about a stage of the run."""
    method, setup, rounds = state.method, setup_of(state, run_config), run_config.options.rounds
    if not state.stage.trained:
        return []
    if not state.stage.rounds and rounds:
        return [
            f"stage {state.stage.name!r} has no round to train: rounds={rounds} is too few for the stages of this plan"
        ]
    found = [*_unused_work(run_config.work, setup.settings.work)]
    if not state.stage.pooled:
        found += [*_alone(method, setup), *_never_again(method, setup), *_untrained(state)]
    seen = setup
    for screening in method.role(Screening):
        seen = seen._replace(participants=screening.rows(seen.participants))
    parts = ((p, p.shortfall(seen if p is method.aggregator else setup)) for p in method.parts)
    return found + [
        f"{spec_text(p)} cannot do here what it is named for: {why}" for p, why in parts if why
    ]


def setup_of(state: StageState, run_config: RunConfig) -> Setup:
    """The model, work and clients that the parts meet in a stage."""
    population, sizes = state.population, state.population.sizes
    fewest = len(state.eligible)
    if state.stage.groups is not None and state.stage.chooses is None:
        fewest = min(int((sizes[list(ids)] > 0).sum()) for ids in state.all_members.values())
    share = state.cohort_size / len(state.eligible)
    samples = sizes[sizes > 0]
    steps = (
        state.settings.work.steps_for(int(samples.min())),
        state.settings.work.steps_for(int(samples.max())),
    )
    needed = state.method.has_facts(state.settings.work)
    counted = needed and population.is_here and population.classes is not None
    one_class = (
        int((np.count_nonzero(population.label_counts(), axis=1) == 1).sum()) if counted else 0
    )
    options, participants = run_config.options, max(1, round(share * fewest))
    numbers = (
        participants,
        len(state.eligible),
        options.rounds,
        steps,
        options.evaluate_every,
        one_class,
    )
    return Setup(state.settings, *numbers)


def _untrained(state: StageState) -> list[str]:
    """A sentence where clients are tested whose own part of the model no round trains."""
    population, tested = state.population, state.population.test.sizes > 0
    idle = np.flatnonzero(tested & (population.sizes == 0) & (not state.has_shared_model)).tolist()
    text = "with a part of the model that nobody trains, as each client keeps and trains its own"
    return (
        [f"the scores count {listed([population.names[k] for k in idle])} {text}"] if idle else []
    )


def _alone(method: Method, setup: Setup) -> list[str]:
    if setup.participants > 1 or not method.has_shared_model(setup.model):
        return []
    parts = [p.name for p in method.parts if p not in DEFAULTS.values()]
    idle = f", and {' and '.join(parts)} cannot compare it with others" if parts else ""
    return [
        f"one client takes part in a round: no models are averaged{idle}; let more clients take part"
    ]


def _never_again(method: Method, setup: Setup) -> list[str]:
    """A sentence where parts keep something between rounds that hardly ever comes to use."""
    times = setup.rounds * setup.participants / setup.clients
    clients = [p.name for p in method.parts if overrides(p, "client_init")]
    server = (Part.server_init, Part.server_open)
    kept = [p.name for p in method.parts if (type(p).server_init, type(p).server_open) != server]
    names = [
        n for n in dict.fromkeys([*clients, *(kept if setup.rounds == 1 else [])]) if times < 2
    ]
    if not names:
        return []
    return [
        f"a client takes part in {times:.2g} round{'s' * (times != 1)} on average, so that what {' and '.join(names)} "
        "keep from one to the next is hardly used; make more rounds, or let more clients take part"
    ]


def _unused_work(asked: Work, work: Work) -> list[str]:
    """A sentence where the method replaces local work that the user asked for (`fedsgd`)."""
    names = [f.name for f in dataclasses.fields(Work)]
    usual = Work()
    unused = [
        f"{n}={getattr(asked, n)!r}"
        for n in names
        if getattr(asked, n) not in (getattr(usual, n), getattr(work, n))
    ]
    return (
        [f"the method has local work of its own, so that {', '.join(unused)} has no effect"]
        if unused
        else []
    )
