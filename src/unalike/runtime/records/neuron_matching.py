"""Weight matching of the hidden neurons of dense networks: which neuron of a client corresponds to which one of the model.

A network does not change when its hidden neurons are renumbered. Numbers that compare a parameter over clients therefore
depend on how the neurons correspond; `matched` renumbers each client's neurons so that it lies nearest to the received model.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from unalike.core.types import Tree

SWEEPS = 20
"""Passes over the hidden layers, at most; with one hidden layer the first one is exact."""


def matched(update: Tree, params: Tree) -> tuple[Tree, Tensor] | None:
    """Renumber the hidden neurons of each client to match those of the model that it received.

    Layer by layer, the permutation of the neurons is the one with the largest sum of inner products of their weights, in and out,
    with those of the model (Ainsworth et al. 2023, section 3.2), until no layer changes.

    Args:
        update: updates of K clients, [K, ...] each.
        params: the parameters that they received.

    Returns:
        The updates of the renumbered clients, and the share of hidden neurons that have another number, [K]; None unless the
        parameters are those of a chain of linear layers.
    """
    layers = _chain(params)
    if layers is None:
        return None
    clients, moved = [], []
    for k in range(len(next(iter(update.values())))):
        own = {name: params[name] + update[name][k] for name in params}
        places = _places(own, params, layers)
        clients.append(_renumbered(own, layers, places))
        changed = [(place != torch.arange(len(place))).double().mean() for place in places]
        moved.append(torch.stack(changed).mean())
    return {name: torch.stack([own[name] for own in clients]) - params[name] for name in params}, torch.stack(moved)


def _chain(params: Tree) -> list[str] | None:
    """The names of the linear layers, in order, if the parameters are nothing else and there are two or more of them."""
    names = [name.removesuffix(".weight") for name in params if name.endswith(".weight")]
    widths = [params[f"{name}.weight"].shape for name in names]
    known = {f"{name}.{kind}" for name in names for kind in ("weight", "bias")}
    is_chain = all(len(shape) == 2 for shape in widths) and set(params) <= known
    return names if is_chain and len(names) > 1 and all(a[0] == b[1] for a, b in pairwise(widths)) else None


def _places(own: Tree, params: Tree, layers: list[str]) -> list[Tensor]:
    """For each hidden layer, the client's neuron at each place of the model."""
    from scipy.optimize import linear_sum_assignment

    places = [torch.arange(len(params[f"{name}.weight"])) for name in layers[:-1]]
    for _ in range(SWEEPS):
        before = [place.clone() for place in places]
        for i, (name, after) in enumerate(pairwise(layers)):
            others = [place if j != i else torch.arange(len(place)) for j, place in enumerate(places)]
            theirs = _renumbered(own, layers, others)
            alike = sum(
                params[key].reshape(len(places[i]), -1) @ theirs[key].reshape(len(places[i]), -1).T
                for key in (f"{name}.weight", f"{name}.bias")
                if key in params
            )
            alike = alike + params[f"{after}.weight"].T @ theirs[f"{after}.weight"]
            places[i] = torch.as_tensor(linear_sum_assignment(alike.double().cpu().numpy(), maximize=True)[1])
        if all(torch.equal(a, b) for a, b in zip(before, places)):
            break
    return places


def _renumbered(own: Tree, layers: list[str], places: list[Tensor]) -> Tree:
    found = dict(own)
    for name, after, place in zip(layers, layers[1:], places):
        for key in (f"{name}.weight", f"{name}.bias"):
            if key in found:
                found[key] = found[key][place]
        found[f"{after}.weight"] = found[f"{after}.weight"][:, place]
    return found
