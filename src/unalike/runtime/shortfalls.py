"""Shortfalls of a method in a stage, on its model, clients and local work: sentences for the notes of a run."""

import dataclasses
from math import inf

import numpy as np
import torch
from torch import Tensor

from unalike._utils.seeds import isolated
from unalike.core import tree
from unalike.core.inputs import first_rows
from unalike.core.nests import map_tensors
from unalike.core.types import Batch
from unalike.core.views import ClientBatches
from unalike.core.work import Work
from unalike.data.sanity import listed
from unalike.methods.method import DEFAULTS, Method
from unalike.methods.part import Part, Setup, overrides, spec_text
from unalike.methods.roles import Aggregator, Upload
from unalike.methods.screening import Screening
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.stage_state import StageState
from unalike.training.client.client_task import ClientTask
from unalike.training.client.client_update import initial_client_state
from unalike.training.server.server_update import initial_server_state, make_broadcast

PROBE_ERRORS = (
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
)
"""Errors of a loss that is tried before training, where they say what is wrong with it in its place."""


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
    found += _untested(state, run_config)
    found += _without_gradient(state, run_config)
    if not state.stage.pooled:
        found += _alone(method, setup)
        found += _hardly_repeated(method, setup)
        found += _untrained(state)
        found += _without_updates(state)
        found += _awaited_by_all(state, run_config)

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
    # groups of unlike networks average with each other
    is_divided = state.stage.groups is not None and state.stage.models is None
    if is_divided and state.stage.chooses is None:
        with_samples = [(sizes[list(ids)] > 0).sum() for ids in state.all_members.values()]
        smallest_group = int(min(with_samples))
    share = state.cohort_size / clients
    samples = sizes[sizes > 0]
    work = state.settings.work
    least = work.steps_for(int(samples.min()))
    if state.devices.changes_work or state.sampler.sets_work:
        least = 1
    return Setup(
        settings=state.settings,
        participants=max(1, round(share * smallest_group)),
        clients=clients,
        rounds=run_config.options.rounds,
        steps=(least, work.steps_for(int(samples.max()))),
        evaluate_every=run_config.options.evaluate_every,
        one_class=_clients_of_one_class(state),
        networks=1 if state.stage.models is None else len(state.stage.models),
        updates_may_be_late=state.updates_may_be_late,
        sends_updates=_sends_updates(state),
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


def _awaited_by_all(state: StageState, run_config: RunConfig) -> list[str]:
    """A sentence where devices end rounds with the first updates, and a round asks no more clients than that."""
    model = run_config.options.device_model
    awaited = inf if model is None else model.updates_awaited
    if awaited == inf or min(awaited, state.method.updates_awaited) < state.cohort_size:
        return []
    return [
        f"a round awaits the first {awaited:g} updates and asks {state.cohort_size} clients, so that it awaits all; "
        "lower first(updates=...), or raise participation"
    ]


def _without_updates(state: StageState) -> list[str]:
    """A sentence where clients send no update, for the parts that act on nothing else."""
    idle = [spec_text(part) for part in state.method.parts if _acts_on_updates(part)]
    if not idle or _sends_updates(state):
        return []
    return [f"clients send no update here, so that {listed(idle)} changes nothing"]


def _sends_updates(state: StageState) -> bool:
    model = state.settings.model
    return bool(state.method.shared_names(model.params, model))


def _acts_on_updates(part: Part) -> bool:
    """Whether a part changes or combines what clients send of their parameters, and nothing else."""
    if isinstance(part, Aggregator):
        return part not in DEFAULTS.values() and not overrides(part, "finish")
    return isinstance(part, Upload | Screening)


def _without_gradient(state: StageState, run_config: RunConfig) -> list[str]:
    """A sentence for each term of the local loss that depends on no parameter, tried on two samples of the first round."""
    method, population = state.method, state.population
    terms = [p for p in method.losses if p not in DEFAULTS.values()]
    samples = population.example_samples
    if not terms or samples is None or run_config.federated:
        return []
    settings = state.settings
    server_state = initial_server_state(method, settings)
    broadcast = make_broadcast(method, settings, server_state, len(population), [0]).to(0)
    batch = Batch(first_rows(samples.x, 2), samples.y[:2])
    task = ClientTask(
        method=method,
        settings=settings,
        broadcast=broadcast,
        client_state=map_tensors(_leaf, initial_client_state(method, settings)),
        data=ClientBatches([[batch]], [batch]),
        context=method.client_facts(samples, settings),
        size=samples.y.new_ones(()),
        begun=settings.model.params,
    )
    params = tree.map(_leaf, settings.model.params)
    idle = []
    with isolated(0), torch.enable_grad():
        for part in terms:
            view = task.view_of(part, params, settings.model.buffers, task.client_state)
            try:
                term = part.loss(view, batch)
            except PROBE_ERRORS:
                continue  # training says what is wrong with it
            if isinstance(term, Tensor) and not term.requires_grad:
                idle.append(part)
    return [
        f"the loss of {spec_text(part)} has no gradient, so that it changes nothing; compute it from client.params or "
        "client.out(batch) with operations of torch, without .item(), .detach() or argmax"
        for part in idle
    ]


def _leaf(t: Tensor) -> Tensor:
    """A copy of which gradients can be asked for, where it has amounts."""
    return t.detach().clone().requires_grad_(t.is_floating_point())


def _untested(state: StageState, run_config: RunConfig) -> list[str]:
    """A sentence where scores leave out clients that are in no group, so that no model is theirs."""
    has_one_model = len(state.groups) == 1 and not run_config.federated
    if state.stage.groups is None or state.stage.chooses is not None or has_one_model:
        return []
    population = state.population
    is_left_out = population.test.sizes > 0
    for ids in state.all_members.values():
        is_left_out[list(ids)] = False
    if not is_left_out.any():
        return []
    names = listed([population.names[int(k)] for k in np.flatnonzero(is_left_out)])
    return [
        f"stage {state.stage.name!r} has no group with {names}, so its scores leave them out and cannot be compared with those of "
        "methods that are scored on all clients; put every client into a group"
    ]


def _alone(method: Method, setup: Setup) -> list[str]:
    """A sentence where there is nobody to be averaged with."""
    if setup.participants > 1 or not method.has_shared_model(setup.model):
        return []
    parts = [p.name for p in method.parts if _compares_clients(p)]
    idle = f", and {' and '.join(parts)} cannot compare it with others" if parts else ""
    return [
        f"one client takes part in a round: no models are averaged{idle}; let more clients take part"
    ]


def _compares_clients(part: Part) -> bool:
    """Whether a part weighs or compares the updates of a round."""
    combines = isinstance(part, Aggregator | Screening) or part.needs == "spread"
    return combines and part not in DEFAULTS.values()


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
