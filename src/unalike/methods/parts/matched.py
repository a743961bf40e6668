"""Hidden units that do the same are brought to the same place before they are averaged (PFNM, FedMA)."""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor

from unalike.core import tree
from unalike.core.hidden_layers import hidden_layers
from unalike.core.traced_layers import NoSequence
from unalike.core.types import Tree
from unalike.core.views import Cohort, ServerView
from unalike.methods.part import Setup, part
from unalike.methods.screening import Screening
from unalike.methods.search_space import OneOf

ROWS = 1
COLUMNS = 2
"""Dimension of the units in a stacked tensor: of their own layer [K, C, ...], of the weight that reads them [K, C', C P, ...]."""


@part
class Matched(Screening):
    """w_k <- P_k w_k, P_k the order of its hidden units that maximizes <P_k w_k, w + sum_j P_j w_j> (PFNM, Yurochkin et al. 2019).

    w is the model that clients received, j the clients matched before k; with more `passes` each client is matched again, to all
    others. A unit is its incoming weights, its bias, and the numbers of its norm, in the last hidden layer also its outgoing
    weights. Layers follow each other from the first on, each with its inputs in the new order (FedMA, Wang et al. 2020): linear
    layers and convolutions, of which a unit is a channel. Each is an assignment problem, solved exactly. Permuted copies of one
    network give this network back, in the order nearest to w. Where every unit is nearest to its own place this is the method
    without the part, bit by bit.

    Of a Beta-Bernoulli process with one variance for all and w as prior mean it is the most probable assignment to a layer that
    keeps its size. In both papers layers grow, and clients start from weights of their own; FedMA trains the layers above anew
    after each match. Its code leaves out the outgoing weights.

    The network is a chain of layers, without shortcuts and groups of channels; any other is averaged as without the part, and the
    run says so. A layer of which something is not sent keeps its order. Client states and messages stay in the client's own order.
    """

    passes: Annotated[PositiveInt, OneOf(1, 3)] = 1

    rank: ClassVar[int] = -1
    """Before updates are shortened or joined: units in other places make them longer."""

    def screen(self, server: ServerView, cohort: Cohort, weights: Tensor) -> tuple[Cohort, Tensor]:
        try:
            layers = hidden_layers(server.settings.model)
        except NoSequence:
            return cohort, weights
        update = dict(cohort.update)
        buffers = dict(cohort.stacked.buffers)
        for layer in layers:
            dims = dict.fromkeys(layer.units, ROWS) | {layer.reader: COLUMNS}
            if not dims.keys() <= {*update, *buffers}:
                continue
            compared = {name: dim for name, dim in dims.items() if name in update}
            if layer is not layers[-1]:
                # the units that read these are matched next, and do not tell them apart yet
                del compared[layer.reader]
            models = tree.add(tree.only(update, compared), server.params)
            received = {name: server.params[name][None] for name in compared}
            orders = assignments(
                _units(models, compared), to=_units(received, compared)[0], passes=self.passes
            )
            for name, dim in dims.items():
                if name in buffers:
                    buffers[name] = _in_order(buffers[name], orders, dim)
                else:
                    update[name] = _moved(update[name], server.params[name], orders, dim)
        matched = cohort.stacked._replace(update=update, buffers=buffers)
        return replace(cohort, stacked=matched), weights

    def shortfall(self, setup: Setup) -> str:
        try:
            layers = hidden_layers(setup.model)
        except NoSequence as reason:
            return f"units cannot change places in the model: {reason}"
        return "" if layers else "the model has no hidden layer"


def assignments(own: Tensor, to: Tensor, passes: int) -> Tensor:
    """The orders [K, C] of the clients' units [K, C, D] that match them to the received ones [C, D] and to each other."""
    from scipy.optimize import linear_sum_assignment  # 31 MB that a site does not need

    own = tree.exact(own).cpu()
    total = tree.exact(to).cpu()
    placed = torch.zeros_like(own)
    orders = torch.empty(own.shape[:2], dtype=torch.int64)
    for _ in range(passes):
        for k, units in enumerate(own):
            others = total - placed[k]
            _, order = linear_sum_assignment((others @ units.T).numpy(), maximize=True)
            orders[k] = torch.from_numpy(order)
            placed[k] = units[orders[k]]
            total = others + placed[k]
    return orders


def _units(stacked: Tree, dims: dict[str, int]) -> Tensor:
    """Everything that these tensors hold of each unit, [K, C, D]; the first one has a row for each."""
    clients, count = next(iter(stacked.values())).shape[:2]
    numbers = []
    for name, dim in dims.items():
        numbers.append(stacked[name].movedim(dim, ROWS).reshape(clients, count, -1))
    return torch.cat(numbers, dim=2)


def _in_order(stacked: Tensor, orders: Tensor, dim: int) -> Tensor:
    """A stacked tensor with the units along a dimension in the orders [K, C]; each has as many entries there as all others."""
    entries = stacked.shape[dim] // orders.shape[1]
    places = entries * orders[:, :, None] + torch.arange(entries)
    rows = zip(stacked, places.flatten(1).to(stacked.device))
    return torch.stack([t.index_select(dim - 1, place) for t, place in rows])


def _moved(update: Tensor, params: Tensor, orders: Tensor, dim: int) -> Tensor:
    """P(w + u) - w, the update [K, ...] of a model in another order, from u [K, ...] and w [...]; u itself if P changes nothing."""
    there = _in_order(params.expand_as(update), orders, dim)
    return _in_order(update, orders, dim) + (there - params)
