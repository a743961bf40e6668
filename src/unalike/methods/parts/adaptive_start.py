"""FedALA: where a client's training starts is learned, entry by entry, between its own model and the shared one."""

from __future__ import annotations

from itertools import chain

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat
from torch import Tensor
from torch.func import grad_and_value

from unalike.core import tree
from unalike.core.model import Model
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView
from unalike.methods.part import Personalizer, part

WINDOW, MOST = 10, 100
"""Losses whose spread tells that the weights have settled, and the passes after which they count as settled."""


@part
class AdaptiveStart(Personalizer):
    """theta = theta_k + (w - theta_k) * W in the upper layers, w below: adaptive local aggregation (FedALA, Zhang et al. 2023).

    theta_k is the client's model after its last participation, w the model received and W in [0, 1], of their shape, starts
    at 1 and is learned before local training on a random share `sample` of the client's data, batch by batch (eq. 4):

        W <- clip(W - eta grad F(theta) * (w - theta_k), 0, 1).

    One pass a round; in its first, at the client's second participation, passes go on until the last 10 losses (of the last
    batch of each) have a standard deviation below `threshold`, 100 passes at most (the code has no limit). `modules` counts
    the upper layers, 0 is all of them. W = 1, which eta -> 0 keeps, starts where FedAvg starts.

    A client is evaluated with theta between its last model and the present shared one by its last W; the public code learns W
    once more before it evaluates. A client remembers the upper layers of its model, and W.
    """

    eta: PositiveFloat = 1.0
    sample: float = Field(default=0.8, gt=0, le=1)
    modules: NonNegativeInt = 1
    threshold: PositiveFloat = 0.1

    vmappable = False
    needs_data = True

    WEIGHT, TIMES = "weight of ", "participations"

    def keeps(self, name: str, model: Model) -> bool:
        layers = tree.layers(model.params)
        return name in chain.from_iterable(layers[-self.modules :])

    def client_init(self, params: Tree) -> Tree:
        weights = {self.WEIGHT + n: torch.ones_like(w) for n, w in params.items()}
        return params | weights | {self.TIMES: torch.zeros((), dtype=tree.dtype(params))}

    def begin(self, local: ClientView) -> tuple[Tree, Tree]:
        if not local.memory[self.TIMES]:
            return local.params, local.memory
        memory = local.memory | self._learned(local)
        return self.personal(local.model, local.params, memory), memory

    def finish(self, local: ClientView) -> tuple[Tree, Tree]:
        own = {n: local.params[n] for n in local.memory if n in local.params}
        return local.memory | own | {self.TIMES: local.memory[self.TIMES] + 1}, {}

    def personal(self, model: Model, params: Tree, memory: Tree) -> Tree:
        own = {n: t for n, t in memory.items() if n in params}
        return params | self._mixed(own, params, self._weights(own, memory))

    def _mixed(self, own: Tree, params: Tree, weights: Tree) -> Tree:
        """theta, written from w so that W = 1 is exact."""
        return tree.map(lambda t, w, a: w + (t - w) * (1 - a), own, params, weights)

    def _weights(self, own: Tree, memory: Tree) -> Tree:
        return {n: memory[self.WEIGHT + n] for n in own}

    def _learned(self, local: ClientView) -> Tree:
        """The new W, under its names in the memory."""
        own = {n: t for n, t in local.memory.items() if n in local.params}
        weights, gap = self._weights(own, local.memory), tree.sub(tree.only(local.params, own), own)
        batches, losses = self._sampled(local), torch.zeros(0)
        settles = local.memory[self.TIMES] == 1
        for _ in range(MOST if settles else 1):
            for batch in batches:
                theta = self._mixed(own, local.params, weights)
                grads, loss = grad_and_value(self._loss)(theta, local, batch)
                weights = tree.map(lambda a, d, g: (a - self.eta * d * g).clamp(0, 1), weights, grads, gap)
            losses = torch.cat([losses, loss.detach().cpu().float()[None]])
            if len(losses) > WINDOW and losses[-WINDOW:].std(correction=0) < self.threshold:
                break
        return {self.WEIGHT + n: a for n, a in weights.items()}

    def _loss(self, theta: Tree, local: ClientView, batch: Batch) -> Tensor:
        return local.task_loss(local.at(batch, local.params | theta), batch)

    def _sampled(self, local: ClientView) -> list[Batch]:
        """The batches of a random share of the local data, at least one row."""
        left, found = max(1, round(self.sample * sum(len(b.y) for b in local.data.whole))), []
        for batch in local.data.whole:
            found.append(Batch(batch.x[:left], batch.y[:left]))
            left -= len(batch.y)
            if left <= 0:
                break
        return found
