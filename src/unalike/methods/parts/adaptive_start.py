"""FedALA: training starts between the client's own and the shared model, at learned weights for each entry."""

from itertools import chain
from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat
from torch import Tensor
from torch.func import grad_and_value

from unalike.core import tree
from unalike.core.inputs import first_rows
from unalike.core.model import Model
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView
from unalike.methods.method import alias
from unalike.methods.part import Setup, part
from unalike.methods.roles import Personalizer
from unalike.methods.search_space import LinearRange, LogRange

WINDOW_LOSSES = 10
"""Number of last losses whose standard deviation is small at convergence."""
MAX_PASSES = 100
"""Largest number of passes in which the weights are learned for the first time."""


@alias(
    "fedala",
    "Training starts between the own and the shared model, learned entry by entry (Zhang et al. 2023).",
)
@part
class AdaptiveStart(Personalizer):
    """theta = theta_k + (w - theta_k) * W in the upper layers, w below: adaptive local aggregation (FedALA, Zhang et al. 2023).

    theta_k is the client's model after its last participation, w the model received and W in [0, 1], of their shape, starts
    at 1 and is learned before local training on a random share `sample` of the client's data, batch by batch (eq. 4):

        W <- clip(W - eta grad F(theta) * (w - theta_k), 0, 1).

    One pass a round; at the client's second participation, passes go on until the last 10 losses (of the last batch of each) have a
    standard deviation below `threshold`, 100 passes at most (the code has no limit). `modules` counts the upper layers, 0 is all of
    them; the code counts tensors, and its share of the data is a window of neighboring samples. W = 1, which eta -> 0 keeps, starts
    where FedAvg starts.

    A client is evaluated with theta of its last model, the present shared one and its last W; the public code learns W once more
    before it evaluates. The client state holds the upper layers of its model, and W.
    """

    eta: Annotated[PositiveFloat, LogRange(0.1, 10)] = 1.0
    sample: Annotated[float, LinearRange(0.05, 1)] = Field(default=0.8, gt=0, le=1)
    modules: NonNegativeInt = 1
    threshold: PositiveFloat = 0.1

    vmappable = False
    needs_data = True

    WEIGHT = "weight of "
    TIMES = "participations"

    def keeps(self, name: str, model: Model) -> bool:
        layers = tree.layers(model.params)
        return name in chain.from_iterable(layers[-self.modules :])

    def client_init(self, params: Tree) -> Tree:
        weights = {self.WEIGHT + n: torch.ones_like(w) for n, w in params.items()}
        return params | weights | {self.TIMES: torch.zeros((), dtype=tree.dtype(params))}

    def begin(self, client: ClientView) -> tuple[Tree, Tree]:
        if not client.state[self.TIMES]:
            return client.params, client.state
        state = client.state | self._learn_weights(client)
        return self.personal(client.model, client.params, state), state

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        model = {n: client.params[n] for n in client.state if n in client.params}
        return client.state | model | {self.TIMES: client.state[self.TIMES] + 1}, {}

    def personal(self, model: Model, params: Tree, state: Tree) -> Tree:
        theta_k = {n: t for n, t in state.items() if n in params}
        return params | self._mix(theta_k, params, self._weights(theta_k, state))

    def shortfall(self, setup: Setup) -> str:
        layers = len(tree.layers(setup.model.params))
        if layers > self.modules:
            return ""
        return f"no layer is below the {self.modules} upper ones of {layers}"

    def _mix(self, theta_k: Tree, params: Tree, weights: Tree) -> Tree:
        """theta, written from w so that W = 1 is exact."""
        return tree.map(lambda t, w, a: w + (t - w) * (1 - a), theta_k, params, weights)

    def _weights(self, names: Tree, state: Tree) -> Tree:
        return {n: state[self.WEIGHT + n] for n in names}

    def _learn_weights(self, client: ClientView) -> Tree:
        """The new W, under its names in the client state."""
        theta_k = {n: t for n, t in client.state.items() if n in client.params}
        weights = self._weights(theta_k, client.state)
        gap = tree.sub(tree.only(client.params, theta_k), theta_k)  # w - theta_k
        batches = self._sample(client)
        losses = torch.zeros(0)

        # W is learned until it settles when the client takes part for the second time, and in one pass from then on
        settles = client.state[self.TIMES] == 1
        for _ in range(MAX_PASSES if settles else 1):
            for batch in batches:
                theta = self._mix(theta_k, client.params, weights)
                grads, loss = grad_and_value(self._loss)(theta, client, batch)
                weights = tree.map(
                    lambda a, g, d: (a - self.eta * g * d).clamp(0, 1), weights, grads, gap
                )
            losses = torch.cat([losses, loss.detach().cpu().float()[None]])
            if (
                len(losses) > WINDOW_LOSSES
                and losses[-WINDOW_LOSSES:].std(correction=0) < self.threshold
            ):
                break
        return {self.WEIGHT + n: a for n, a in weights.items()}

    def _loss(self, theta: Tree, client: ClientView, batch: Batch) -> Tensor:
        return client.task_loss(client.at(batch, client.params | theta), batch)

    def _sample(self, client: ClientView) -> list[Batch]:
        """The batches of a random share of the local data, at least one row: `client.data.whole` is in random order."""
        total = sum(len(b.y) for b in client.data.whole)
        missing = max(1, round(self.sample * total))
        batches = []
        for batch in client.data.whole:
            batches.append(Batch(first_rows(batch.x, missing), batch.y[:missing]))
            missing -= len(batch.y)
            if missing <= 0:
                break
        return batches
