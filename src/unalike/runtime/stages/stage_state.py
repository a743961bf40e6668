"""The state of a stage: its groups and their models, the rounds done, the clients that take part; the same for every backend."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike.client_devices.simulated_clock import Availability, NoDevices, Turn, WorkOf
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.options import cohort_size
from unalike.core.types import Context, Tree
from unalike.core.views import Cohort, Members, ServerState, StageSettings
from unalike.data.population import Population
from unalike.methods.part import overrides
from unalike.methods.plan import Stage
from unalike.methods.sampler import Candidates, Choice, CohortOutcome
from unalike.runtime.setup.late_updates import refuse_late_updates
from unalike.runtime.setup.privacy_budget import privacy_budget
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.cohort_sampler import sampler_of
from unalike.runtime.stages.model_group import GroupRound, ModelGroup
from unalike.runtime.stages.unlike_networks import Exchange, UnlikeNetworks, separate_groups
from unalike.training.client.client_states import ClientStateStore
from unalike.training.wire import stage_wire

SAMPLER = "sampler"
"""The section of a checkpoint with the state of a stage's sampler."""
Facts = dict[str, Any]
"""Plain values of a checkpoint, beside its tensors."""
VERSIONS = "versions"
"""The folder in a checkpoint's tensors of the earlier states whose models clients still train."""
MakeStates = Callable[[Stage, StageSettings, Population], ClientStateStore]
"""Makes the client states of a group from the stage, the settings of the group and its training samples."""
Choose = Callable[["StageState", int], str]
"""Asks a client which group it chooses for a round."""


@dataclass
class RoundResult:
    """The outcome of a round, filled in by the backend and the round loop.

    `before` are the states that the round began with, `cohorts` the clients with accepted updates, both by group; `trained` are
    these clients of all groups, `train_loss` their mean task loss over all steps, weighted by training samples. `refused` says
    why an update was refused, where that is still to be recorded as an event, `faults` what went wrong with a client, as the
    table of clients shows it, `lost` why the update of a simulated device did not arrive, `chosen` why its sampler asked a
    client. `seconds` of training and aggregation; `local`, `client_seconds` and `turns` as in `RoundUpdates`.
    """

    before: dict[str, ServerState] = field(default_factory=dict)
    cohorts: dict[str, Cohort] = field(default_factory=dict)
    trained: list[int] = field(default_factory=list)
    train_loss: float = float("nan")
    refused: dict[int, str] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    chosen: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    local: dict[int, dict[str, Any]] = field(default_factory=dict)
    client_seconds: dict[int, float] = field(default_factory=dict)
    turns: Sequence[Turn] = ()

    def add(self, name: str, group_round: GroupRound) -> None:
        """Add the outcome of the round in a group: the clients with accepted updates, and what was wrong with others."""
        self.cohorts[name] = group_round.cohort
        self.trained += group_round.cohort.ids
        self.refused |= group_round.refused
        self.faults |= group_round.oversized
        for client, why in group_round.refused.items():
            self.faults[client] = f"refused: {why}"
        cohorts = self.cohorts.values()
        sizes = np.concatenate([cohort.sizes.numpy(force=True) for cohort in cohorts])
        losses = np.concatenate([cohort.stacked.loss.numpy(force=True) for cohort in cohorts])
        self.train_loss = float((sizes * losses).sum() / sizes.sum())


class StageState:
    """The groups of a stage in progress.

    A stage may bring another model than the run's. `make_states` makes what its groups keep of their clients; `choose` asks a
    client for its choice when it is first needed; None: all of them were asked at once. With `keeps_updates` each client's
    update is looked at after its round. `devices` know who can be asked: those that the run simulates, if it does, whose work
    `round_work` tells them.
    """

    def __init__(
        self,
        run_config: RunConfig,
        stage: Stage,
        index: int,
        make_states: MakeStates,
        choose: Choose | None = None,
        keeps_updates: bool = False,
        devices: Availability | None = None,
        round_work: WorkOf | None = None,
    ):
        self.stage = stage
        self.method = stage.method
        self.population = population = run_config.population
        self.settings = stage.settings(run_config.settings, index)
        self.method.require(self.settings.proxy)
        self.budget = privacy_budget(self.method, self.settings, run_config.options.budget)

        # Rounds: how many are done, and whether one waits for its row in the history.
        self.done = 0
        self.discarded = 0
        """Rounds that a federation trained and rolled back."""
        self.earlier = 0
        """Rounds of the run before the stage."""
        self.pending: RoundResult | None = None
        """A round that the groups' states contain, and that has no row in the history yet."""

        # Clients: only those with samples can take part, and a round draws a share of them.
        self.eligible: Sequence[int] = with_samples(population.sizes)
        if not len(self.eligible):
            raise UnalikeError(f"none of the {len(population)} clients has a training sample")
        self.sampler = sampler_of(self.method, run_config.sampling)
        self.sampler_state = self.sampler.choice_init(len(population))
        """What the sampler keeps of all clients of the stage, on the CPU."""
        self.choice = Choice(())
        """The last cohort that was drawn."""
        self._share = run_config.sampling.expected / run_config.sampling.units
        usual = cohort_size(run_config.options.participation, len(self.eligible))
        self.cohort_size = self.sampler.cohort_size(usual)
        """Clients in a round; the expected number where each one is drawn by itself."""
        self.devices = NoDevices() if devices is None else devices

        # Groups: each has a model of its own. Without groups all clients share one, which needs no table of a million of them.
        stage.check_groups(len(population))
        self.all_members = stage.members(len(population))
        self._group_of: dict[int, str] = {}
        if stage.groups:
            for name, ids in self.all_members.items():
                self._group_of.update(dict.fromkeys(ids, name))
        self.choices: dict[int, str] = {}
        """Client -> the group that it chose for this round, where clients choose."""
        self._choose = choose
        self.groups: dict[str, ModelGroup] = {}
        for i, (name, ids) in enumerate(self.all_members.items()):
            share_of_work = None
            sampler_sets_work = self.sampler.sets_work and not stage.pooled
            if round_work is not None and (self.devices.changes_work or sampler_sets_work):
                share_of_work = self.devices.share_of_work(name, round_work)
            # a group may have a network of its own; whoever needs a model asks its group
            settings = stage.group_settings(self.settings, i, name)
            source = self._source(ids, settings)
            self.groups[name] = ModelGroup(
                stage=stage,
                settings=settings,
                source=source,
                members=self._members_with_samples(ids),
                client_states=make_states(stage, settings, source),
                transform=run_config.options.chain,
                start=None if stage.start is None else stage.start[name],
                keeps_updates=keeps_updates or self._sampler_reads_updates,
                share_of_work=share_of_work,
            )
        self.exchange: Exchange = separate_groups
        """What crosses between groups in a round: nothing, unless clients have unlike networks."""
        if stage.models is not None:
            self.exchange = UnlikeNetworks(self.groups)

        if self.updates_may_be_late:
            refuse_late_updates(stage, keeps_updates)

    def _members_with_samples(self, ids: Sequence[int]) -> Members:
        """The clients of a group that have samples; pooled ones count as one."""
        sizes = self.population.sizes
        if len(ids) < len(self.population):
            sizes = sizes[list(ids)]
        clients = 1 if self.stage.pooled else int((sizes > 0).sum())
        return Members(clients, float(sizes.sum()))

    def _source(self, ids: Sequence[int], settings: StageSettings) -> Population:
        """The clients of a group as they train: with shared samples, or pooled into one."""
        if self.stage.shared is not None:
            return self.population.with_shared(self.stage.shared)
        # samples with facts of their client are pooled by the group
        if not self.stage.pooled or self.method.is_conditioned(settings.model):
            return self.population
        if len(ids) == len(self.population):
            return self.population.pooled()
        return Population.of([self.population[k] for k in ids]).pooled()

    @property
    def place(self) -> tuple[int, int]:
        """The step of the plan, counted from 1, and the round in it, as messages of a federation say them."""
        return self.settings.stage + 1, self.done

    @property
    def round(self) -> int:
        """The number of rounds that the models have had; they all count each round."""
        first, *_ = self.groups.values()
        return first.state.round

    # the clients that take part ---------------------------------------------------------------------------------------

    def draw(self, number: int) -> list[int]:
        """The clients that take part in a round of the stage, counted from 0.

        They depend on the round of the run alone, with simulated devices on those that are there, and on what the method's sampler
        has seen: without one of its own the same for every method of the same seed, whatever its stages.
        """
        # Clients that are still at an earlier round are of this cohort, too.
        wanted = max(0, self.cohort_size - len(self.devices.under_way))
        present = self._present(wanted, self.earlier + number)
        size = min(wanted, len(present))
        candidates = Candidates(
            ids=present,
            size=size,
            share=self._share,
            sizes=self.population.sizes,
            names=self.population.names,
            round=self.earlier + number,
            seed=self.settings.seed,
        )
        self.choice = self.sampler.choose(candidates, self.sampler_state)
        return [*self.choice.clients]

    def _present(self, wanted: int, round: int) -> Sequence[int]:
        """The clients of which a round's cohort is chosen; where chance alone decides, enough of them."""
        if self.sampler.decides_by or self.sampler.draw != "fixed":
            return self.devices.present(self.eligible)
        rng = seeds.generator(self.settings.seed, "devices looked at", round)
        return self.devices.some_present(self.eligible, wanted, rng)

    @property
    def observes_rounds(self) -> bool:
        """Whether the sampler learns from rounds."""
        return overrides(self.sampler, "observe")

    def observe(self, result: RoundResult) -> None:
        """A round has been aggregated, and is not counted yet: its record says who was asked and why, and the sampler learns."""
        result.chosen = dict(self.choice.reasons)
        if not self.observes_rounds:
            return
        sizes = []
        losses = []
        for cohort in result.cohorts.values():
            sizes.append(cohort.sizes.numpy(force=True))
            losses.append(cohort.stacked.loss.numpy(force=True))
        seconds = [result.client_seconds.get(client, np.nan) for client in result.trained]
        outcome = CohortOutcome(
            round=self.earlier + self.done,
            asked=np.array(self.choice.clients, np.int64),
            ids=np.array(result.trained, np.int64),
            sizes=np.concatenate([*sizes, np.zeros(0)]),
            losses=np.concatenate([*losses, np.zeros(0)]),
            seconds=np.array(seconds),
            shares=self.choice.shares_of(result.trained),
            updates=self._updates_of(result) if self._sampler_reads_updates else {},
        )
        self.sampler_state = self.sampler.observe(outcome, self.sampler_state)

    @property
    def _sampler_reads_updates(self) -> bool:
        return self.sampler.needs == "updates"

    def _updates_of(self, result: RoundResult) -> Tree:
        """The updates of a round as they were sent, [K, ...] each, in the order of `result.trained`."""
        updates = [cohort.stacked.update for cohort in result.cohorts.values()]
        joined: Tree = {}
        for name in updates[0] if updates else ():
            joined[name] = torch.cat([update[name] for update in updates])
        return joined

    def group_of(self, client: int) -> str | None:
        """The group of a client; where clients choose, the one that it would choose now."""
        if self.stage.groups is None:
            return next(iter(self.all_members))
        if self.stage.chooses is None:
            return self._group_of.get(client)
        if client not in self.choices and self._choose is not None:
            self.choices[client] = self._choose(self, client)
        return self.choices.get(client)

    def by_group(self, clients: list[int]) -> dict[str, list[int]]:
        """These clients by group. Clients that choose do so before any group has moved."""
        if self.stage.groups is None:
            return dict.fromkeys(self.groups, clients)  # there is one
        by_group: dict[str, list[int]] = {name: [] for name in self.groups}
        for client in clients:
            name = self.group_of(client)
            if name is not None:
                by_group[name].append(client)
        return by_group

    @property
    def members(self) -> Mapping[str, Sequence[int]]:
        """The clients of each group."""
        if self.stage.chooses is None:
            return self.all_members
        return self.by_group([*range(len(self.population))])

    def tested_by_group(self, clients: list[int]) -> dict[str, list[int]]:
        """These clients by the group whose model they are tested with: their own, and where there is one group, that.

        So a model that a part of the clients trains is scored on all of them, as those of other methods are.
        """
        if len(self.groups) == 1:
            return dict.fromkeys(self.groups, clients)
        return self.by_group(clients)

    def tested_group(self, client: int) -> str | None:
        """The group whose model a client is tested with; None where it has no model."""
        if len(self.groups) == 1:
            return next(iter(self.groups))
        return self.group_of(client)

    def network(self, client: int) -> Model:
        """The network of a client: that of the stage, unless networks differ."""
        if self.stage.models is None:
            return self.settings.model
        return self.group(client).model

    def group(self, client: int) -> ModelGroup:
        """The group whose model a client is tested with. Raises `UnalikeError` where it has none."""
        name = self.tested_group(client)
        if name is None:
            raise UnalikeError(
                f"client {self.population.names[client]!r} is in no group of stage {self.stage.name!r} and has no model there"
            )
        return self.groups[name]

    # rounds -----------------------------------------------------------------------------------------------------------

    @property
    def states(self) -> dict[str, ServerState]:
        return {name: group.state for name, group in self.groups.items()}

    def count_round(self) -> None:
        """A round has ended: clients choose anew."""
        self.done += 1
        self.choices = {}

    @property
    def updates_may_be_late(self) -> bool:
        """Whether updates count in a later round than they were asked for."""
        return self.devices.late_updates_count(self.method.updates_awaited)

    def keep_versions(self, rounds: Mapping[int, int]) -> dict[int, int]:
        """Keep the models that clients still train, of those whose update has come by client and of those under way.

        Returns the round of each client whose update is late.
        """
        still_trained = {asked.round for asked in self.devices.under_way}
        still_trained.update(rounds.values())
        for group in self.groups.values():
            group.keep_versions(still_trained)
        return {client: number for client, number in rounds.items() if number < self.round}

    @property
    def last_done(self) -> bool:
        """Whether the stage has no further round to train."""
        if self.done >= self.stage.rounds:
            return True
        return self.done > 0 and (self.stage.until(self.states) or self._have_converged)

    @property
    def _have_converged(self) -> bool:
        """Whether the models of all groups have converged."""
        states = self.states.values()
        return all(self.method.has_converged(state.part_states) for state in states)

    @property
    def over(self) -> bool:
        """Whether all rounds are done and recorded."""
        return self.pending is None and self.last_done

    @property
    def columns(self) -> dict[str, float]:
        """The columns of the history about epsilon and simulated time, after the rounds until now.

        Rounds that a federation rolled back cost epsilon: their updates have left the clients.
        """
        spent = self.budget.columns(self.states, self.done + self.discarded)
        return spent | self.devices.columns

    @property
    def why_no_next_round(self) -> str:
        """The reason why the budget of epsilon forbids the next round; empty if it does not, or there is no next round."""
        if self.last_done:
            return ""
        return self.budget.forbids(self.states, self.done + 1 + self.discarded)

    # what the method makes of the model -----------------------------------------------------------------------------------

    @property
    def has_shared_model(self) -> bool:
        """Whether clients share a model at all, in every group."""
        return all(group.has_shared_model for group in self.groups.values())

    @property
    def is_personal(self) -> bool:
        """Whether clients of any group are evaluated with something of their own."""
        return any(group.is_personal for group in self.groups.values())

    @property
    def is_conditioned(self) -> bool:
        """Whether the shared model of any group is fed facts of the client it predicts for."""
        return any(group.is_conditioned for group in self.groups.values())

    @property
    def predicts_the_same_for_all(self) -> bool:
        """Whether the shared model predicts the same for every client of its group, in every group."""
        return all(group.predicts_the_same_for_all for group in self.groups.values())

    @property
    def why_no_single_model(self) -> str:
        """The reason why no one model predicts for all clients, nor for one that never trained; empty if one does."""
        first, *_ = self.groups.values()
        return self.stage.why_no_single_model(first.model, self.settings.buffers, len(self.groups))

    # checkpoints ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> tuple[Tree, list[Facts]]:
        """Tensors, and facts by group, from which `load_state_dict` restores the groups."""
        tensors: Tree = {}
        facts: list[Facts] = []
        for i, group in enumerate(self.groups.values()):
            for path, t in _tensors_of(group.state).items():
                tensors[f"{i}/{path}"] = t
            for number in sorted({event.round for event in self.devices.under_way}):
                for path, t in _tensors_of(group.versions[number]).items():
                    tensors[f"{i}/{VERSIONS}/{number}/{path}"] = t
            facts.append(
                {
                    "done": self.done,
                    "discarded": self.discarded,
                    "round": group.state.round,
                    "accepted": list(group.accepted.items()),
                    "choices": list(self.choices.items()),
                }
                | self.devices.checkpoint
            )
        tensors |= {f"{SAMPLER}/{name}": t for name, t in self.sampler_state.items()}
        return tensors, facts

    def load_state_dict(self, tensors: Tree, facts: list[Facts]) -> None:
        """Restore the state that `state_dict` returned. Raises `UnalikeError` if the tensors are not those of this stage."""
        device = self.population.y.device
        self.devices.restore(facts[0])
        for i, group in enumerate(self.groups.values()):
            group_facts = facts[i]
            group_tensors = tree.map(lambda t: t.to(device), tree.under(tensors, f"{i}/"))
            params = tree.under(group_tensors, "params/")
            if set(params) != set(group.state.params):
                raise UnalikeError(
                    "the checkpoint holds another model's parameters; start in another folder"
                )
            begun = group.state
            group.state = _restored(group_tensors, group_facts["round"], begun)
            for number in {event.round for event in self.devices.under_way}:
                of_version = tree.under(group_tensors, f"{VERSIONS}/{number}/")
                group.versions[number] = _restored(of_version, number, begun)
            group.accepted = {int(client): int(r) for client, r in group_facts["accepted"]}
            self.done = group_facts["done"]
            self.discarded = group_facts["discarded"]
        self.sampler_state = tree.under(tensors, f"{SAMPLER}/")
        self.choices = {int(client): name for client, name in facts[0]["choices"]}
        self.pending = None

    def save_client_states(self, facts: list[Facts]) -> None:
        """Write the client states that were current when `facts` were made."""
        for group, fact in zip(self.groups.values(), facts, strict=True):
            group.client_states.save(dict(fact["accepted"]))

    def prune_client_states(self, facts: list[Facts] | None = None) -> None:
        """Delete the files of client states that are outdated now, or were when `facts` were made."""
        for i, group in enumerate(self.groups.values()):
            accepted = group.accepted if facts is None else dict(facts[i]["accepted"])
            group.client_states.drop_other_versions(accepted)

    def pin_client_states(self, facts: list[Facts]) -> None:
        """Keep the client states that were current when `facts` were made, whatever comes."""
        for group, fact in zip(self.groups.values(), facts, strict=True):
            group.client_states.pin_versions(dict(fact["accepted"]))

    def adopt_client_states(self) -> None:
        """Take over the files of an earlier process, where they belong to current client states."""
        for group in self.groups.values():
            group.client_states.use_versions(group.accepted)


def _tensors_of(state: ServerState) -> Tree:
    """The tensors of a server state, as a checkpoint holds them."""
    sections = {
        "params": state.params,
        "buffers": state.buffers,
        "part_states": tree.pack(state.part_states),
    }
    return tree.pack(sections)


def _restored(tensors: Tree, round: int, like: ServerState) -> ServerState:
    """The server state of a round from its tensors, with the names of `like` in their order."""
    sections = tree.unpack(tensors)
    return ServerState(
        round=round,
        params=tree.only(sections.get("params", {}), like.params),
        buffers=tree.only(sections.get("buffers", {}), like.buffers),
        part_states=tree.unpack(sections.get("part_states", {})),
    )


def wire_bytes(
    stage: Stage, settings: StageSettings, context: Context, clients: int
) -> dict[str, int]:
    """Bytes that each of so many clients receives ("down") and sends ("up", and as "update" its update) in a round.

    Updates are weighed as they are sent, since an upload may leave something out in some rounds: "update" is expected beforehand.
    """
    total = {"down": 0, "up": 0, "update": 0}
    for item in stage_wire(stage, settings, context, clients):
        kind = "update" if item.what == "update" else item.direction
        if not item.once:
            total[kind] += item.bytes
    return total


def with_samples(sizes: np.ndarray) -> Sequence[int]:
    """The clients with samples; where all have some, a million of them take no memory."""
    clients = np.flatnonzero(sizes)
    if len(clients) == len(sizes):
        return range(len(sizes))
    return array("i", clients.astype(np.int32).tobytes())
