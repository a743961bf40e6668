"""Clustered federated learning: clients with similar data share a model; the clusters are found during training."""

from typing import Annotated, ClassVar

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike.core.model import Model
from unalike.core.views import ServerState
from unalike.methods.method import Method
from unalike.methods.parts.bipartition import Bipartition, halves
from unalike.methods.plan import PlanInputs, PlanSteps, Stage, States
from unalike.methods.plans.queries import MeanLoss
from unalike.methods.plans.staged_plan import (
    Groups,
    MethodText,
    StagedPlan,
    of_samples_alone,
    staged_plan,
)
from unalike.methods.search_space import LogRange, OneOf


@staged_plan
class Ifca(StagedPlan):
    """Iterative cluster identities (IFCA, Ghosh et al. 2020, algorithm 1, model averaging): `clusters` models, k.

    In every round each client receives all k models, chooses argmin_j F_i(w_j), its mean training loss, and trains the one
    chosen; the server averages within each choice, by the clients' sizes (in algorithm 1 all count the same:
    method="uniform"). One update and the choice come up. A client is evaluated with the model it would choose now. k = 1 is
    `method`.

    Model 0 starts at the run's model, the others at values drawn anew (algorithm 1 asks for k different starts; its theory, for
    good ones). Like k-means it can end in a bad place: clusters may share a model.

    With k > 1, `scaffold`, `feddyn`, `feddc` and `fedlama` are refused as `method`: what a client keeps belongs to the server
    state of one model, and a client that changed its choice would leave its share there for good.
    """

    divides: ClassVar[bool] = True
    grouped: ClassVar[bool] = True
    clusters: Annotated[PositiveInt, OneOf(2, 3, 4)] = 3
    method: MethodText = "fedavg"

    def stages(self, plan_inputs: PlanInputs) -> PlanSteps:
        model = plan_inputs.model
        method = Method.parse(self.method)
        self._check(method, model)

        groups: Groups = {}
        start: dict[str, ServerState] = {}
        for j in range(self.clusters):
            params = model.params
            if j:
                params = model.redrawn(seeds.number(plan_inputs.seed, "clusters", j))
            # a client chooses among all models in every round
            groups[f"cluster-{j}"] = tuple(range(plan_inputs.clients))
            start[f"cluster-{j}"] = ServerState(0, params, model.buffers, {})
        yield Stage("train", method, plan_inputs.rounds, groups, start=start, chooses=MeanLoss())

    def _check(self, method: Method, model: Model) -> None:
        of_samples_alone(self, model)
        if not method.has_shared_model(model):
            raise UnalikeError(
                f"ifca has clients choose by the loss of the shared models and {self.method} keeps parameters private, without "
                "which these say nothing; choose another method"
            )
        if self.clusters > 1 and method.parts_with_linked_states:
            linked = " and ".join(p.name for p in method.parts_with_linked_states)
            raise UnalikeError(
                f"found ifca(clusters={self.clusters}, method={self.method!r}): what a client keeps for "
                f"{linked} belongs to one model, and here clients change theirs; choose a "
                "method without it, such as fedprox, or clustered, in which all start anew after a split"
            )


@staged_plan
class Clustered(StagedPlan):
    """Recursive bipartition (CFL, Sattler et al. 2019, algorithm 1; 2021): one model, split in two where clients disagree.

    A group is at a stationary point of its mean objective, but not of its clients', when ||mean_k d_k|| < eps1 and
    max_k ||d_k|| > eps2, d_k being the updates. Then it splits into the two halves with the smallest maximal cosine
    similarity between them, and both go on from its model with `method`. Never before `warmup` rounds of the run. Choose eps2 well
    above the updates of an IID group near its optimum, or a group whose clients agree may split, too. eps1 = 0 is `method`.

    When a group splits, the client states of all groups start anew (SCAFFOLD's variates), and with them the server states that
    belong to them; other server states stay (momentum). Clients that did not take part in the deciding round go with the larger
    half.
    """

    divides: ClassVar[bool] = True
    grouped: ClassVar[bool] = True
    eps1: Annotated[NonNegativeFloat, LogRange(0.05, 1)] = 0.4
    eps2: Annotated[PositiveFloat, LogRange(0.5, 5)] = 1.6
    warmup: NonNegativeInt = 20
    method: MethodText = "fedavg"

    ROOT: ClassVar[str] = "all"

    def stages(self, plan_inputs: PlanInputs) -> PlanSteps:
        split = Bipartition(eps1=self.eps1, eps2=self.eps2, warmup=self.warmup)
        method = Method.parse(self.method) + split
        groups: Groups = {self.ROOT: tuple(range(plan_inputs.clients))}
        start: States | None = None
        rounds_left = plan_inputs.rounds
        splits = 0
        while rounds_left or not splits:
            states = yield Stage(
                f"split-{splits}", method, rounds_left, groups, start=start, until=_any_splits
            )
            rounds_left -= states.rounds
            splits += 1
            groups, start = _split(groups, states)


def _any_splits(states: States) -> bool:
    return any(halves(state) for state in states.values())


def _split(groups: Groups, states: States) -> tuple[Groups, States]:
    """The groups with those that decided to split in halves, named `all.0` and `all.1`, and the states they go on from."""
    after: Groups = {}
    start: dict[str, ServerState] = {}
    for name, clients in groups.items():
        state = states[name]
        two = halves(state)
        if two is None:
            members = {name: clients}
        else:
            # clients that did not take part in the deciding round go with the larger half
            smaller = min(two, key=len)
            larger = tuple(k for k in clients if k not in smaller)
            members = {f"{name}.0": larger, f"{name}.1": smaller}
        after |= members

        # the halves are not handed on, as the next stage finds its own
        part_states = {part: s for part, s in state.part_states.items() if part != Bipartition.name}
        start |= dict.fromkeys(members, state._replace(part_states=part_states))
    return after, start
