"""FedLAMA: layers that clients agree on are synchronized less often."""

from typing import Annotated, ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import ClientView, Cohort, ServerView, StageSettings
from unalike.methods.method import alias
from unalike.methods.part import Setup, part
from unalike.methods.parts.uploads import restore, withhold
from unalike.methods.roles import Personalizer, ServerStep, Upload
from unalike.methods.search_space import OneOf


@alias(
    "fedlama",
    "Layers on which clients agree are synchronized in every phi-th round only (Lee et al. 2023).",
)
@part
class LayerIntervals(Personalizer, Upload, ServerStep):
    """Every layer is synchronized in each round or in each phi-th (FedLAMA, Lee et al. 2023, algorithms 1 and 2).

    When a layer is synchronized its discrepancy is d_l = mean_k ||w_kl - mean_j w_jl||^2 / (tau_l dim_l), tau_l its interval in
    rounds. After every phi-th round, when all layers are in step, they are sorted by d, delta_l and lambda_l are the shares
    of sum d dim and of sum dim up to layer l, and the layers up to the first with delta_l > 1 - lambda_l, this one included,
    get interval phi, the others 1, as in the authors' code. It begins with 1 everywhere. phi = 1 is FedAvg.

    An unsynchronized layer stays on the client, which continues from it; the server's copy is unchanged. All layers of the shared
    model belong together after every phi-th round only: evaluate every phi rounds, else a run notes it. A client that missed a
    synchronization takes the shared layer. Unsynchronized layers are not sent up: `wire` lists the most bytes that a round can
    take, the history those that were sent. The whole model goes down. Layers are those of `lws`, which end at a `bias` (in the
    authors' code they are tensors, with biases synchronized in every round); a round is the paper's base interval of tau' steps;
    the authors' code waits six rounds before it first changes an interval. Buffers are averaged in every round.
    """

    needs = "updates"

    phi: Annotated[PositiveInt, OneOf(2, 4)] = 2

    rank: ClassVar[int] = Upload.WITHHOLD
    ROUND: ClassVar[str] = "interval.round"

    def server_open(self, settings: StageSettings) -> Tree:
        count = len(tree.layers(settings.model.params))
        return {
            "gap": torch.zeros(count, dtype=torch.float64),
            "interval": torch.ones(count, dtype=torch.int64),
            "since": torch.zeros(count, dtype=torch.int64),
        }

    def client_init(self, params: Tree) -> Tree:
        return params | {self.ROUND: torch.tensor(-1)}

    def broadcast(self, server: ServerView) -> Tree:
        return {"due": self._due(server), "since": server.state["since"]}

    def begin(self, client: ClientView) -> tuple[Tree, Tree]:
        """A layer starts from the client's own values if the client trained it after its last synchronization."""
        last = client.state[self.ROUND]
        params: Tree = {}
        for number, names in enumerate(tree.layers(client.model.params)):
            since = client.message["since"][number].to(last.device)
            own = tree.shared(client.state, names)
            shared = tree.only(client.params, own)
            params |= tree.where(last >= since, own, shared)
        return client.params | params, client.state

    def encode(self, client: ClientView, update: Tree) -> tuple[Tree, Tree]:
        now = torch.full_like(client.state[self.ROUND], client.round)
        state = tree.shared(client.params, client.state) | {self.ROUND: now}
        waiting = _names_in_layers(client.model.params, ~client.message["due"])
        return withhold(update, waiting), state

    def decode(self, update: Tree, params: Tree, round: int) -> Tree:
        return restore(update, params)

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        params = server.settings.model.params
        due = self._due(server)
        old = server.state

        # d_l of the layers that are synchronized in this round; the others keep theirs
        sizes = []
        gap = old["gap"].clone()
        for number, names in enumerate(tree.layers(params)):
            layer = [cohort.update[n] for n in names if n in cohort.update]
            size = sum(u[0].numel() for u in layer)
            sizes.append(size)
            if due[number] and layer:
                squares = sum(tree.exact(u - u.mean(0)).square().sum() for u in layer)
                spread = squares / len(cohort.ids)
                gap[number] = spread / (old["interval"][number] * size)

        since = torch.where(due, server.round + 1, old["since"])
        interval = old["interval"]
        if (server.round + 1) % self.phi == 0:
            interval = self.intervals(gap, torch.tensor(sizes))

        # a waiting layer stays, whatever momentum, noise or decay would make of it
        waiting = _names_in_layers(params, ~due)
        update = {n: torch.zeros_like(u) if n in waiting else u for n, u in update.items()}
        return update, {"gap": gap, "interval": interval, "since": since}

    def intervals(self, gap: Tensor, sizes: Tensor) -> Tensor:
        """[L] of rounds, from the discrepancies [L] and sizes [L] of the layers."""
        order = gap.argsort(stable=True)
        weighted = gap * sizes
        delta = weighted[order].cumsum(0) / weighted.sum().clamp_min(1e-300)
        lambda_ = sizes[order].cumsum(0) / sizes.sum().clamp_min(1)
        crossings = (delta > 1 - lambda_).cumsum(0)
        crossings_before = torch.cat([torch.zeros(1), crossings[:-1]])
        intervals = torch.ones_like(order)
        intervals[order] = torch.where(crossings_before == 0, self.phi, 1)
        return intervals

    def shortfall(self, setup: Setup) -> str:
        if 1 < self.phi >= setup.rounds:
            return f"no layer waits before round {self.phi + 1}, and the run has {setup.rounds}"
        if self.phi > 1 and len(tree.layers(setup.model.params)) == 1:
            return f"the model has one layer, so all of it is synchronized in every {self.phi}-th round alone"
        if setup.evaluate_every % self.phi:
            return f"rounds are scored in which its layers are of different rounds; evaluate_every={self.phi} leaves them out"
        return ""

    def _due(self, server: ServerView) -> Tensor:
        """Whether each layer is synchronized in this round, [L]."""
        return (server.round + 1) % server.state["interval"] == 0


def _names_in_layers(params: Tree, chosen: Tensor) -> set[str]:
    """The names of the parameters of the layers that are chosen [L]."""
    names: set[str] = set()
    for layer, is_chosen in zip(tree.layers(params), chosen.tolist(), strict=True):
        if is_chosen:
            names.update(layer)
    return names
