"""Numbers about the values of single parameters at the clients of a round: their moments over clients, and some of the values.

A network does not change when its hidden neurons are renumbered. Numbers that compare a parameter over clients therefore
depend on how the neurons correspond; `matched` renumbers each client's neurons so that it lies nearest to the received model.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Tree

SWEEPS = 20
"""Passes over the hidden layers, at most; with one hidden layer the first one is exact."""


def matched(update: Tree, params: Tree) -> tuple[Tree, Tensor] | None:
    """Renumber the hidden neurons of each client to match those of the model that it received.

    Layer by layer, the permutation of the neurons is the one with the largest sum of inner products of their weights, in and out,
    with those of the model (Ainsworth et al. 2023, section 3.2), until no layer changes.

    From updates of K clients [K, ...] and the parameters that they received. Also returns the share of hidden neurons that have
    another number, [K]. None unless the parameters are those of a chain of linear layers.
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
    return {
        name: torch.stack([own[name] for own in clients]) - params[name] for name in params
    }, torch.stack(moved)


def _chain(params: Tree) -> list[str] | None:
    """The names of the linear layers, in order, if the parameters are nothing else and there are two or more of them."""
    names = [name.removesuffix(".weight") for name in params if name.endswith(".weight")]
    widths = [params[f"{name}.weight"].shape for name in names]
    known = {f"{name}.{kind}" for name in names for kind in ("weight", "bias")}
    is_chain = all(len(shape) == 2 for shape in widths) and set(params) <= known
    return (
        names
        if is_chain and len(names) > 1 and all(a[0] == b[1] for a, b in pairwise(widths))
        else None
    )


def _places(own: Tree, params: Tree, layers: list[str]) -> list[Tensor]:
    """For each hidden layer, the client's neuron at each place of the model."""
    from scipy.optimize import linear_sum_assignment

    places = [torch.arange(len(params[f"{name}.weight"])) for name in layers[:-1]]
    for _ in range(SWEEPS):
        before = [place.clone() for place in places]
        for i, (name, after) in enumerate(pairwise(layers)):
            others = [
                place if j != i else torch.arange(len(place)) for j, place in enumerate(places)
            ]
            theirs = _renumbered(own, layers, others)
            alike = sum(
                params[key].reshape(len(places[i]), -1) @ theirs[key].reshape(len(places[i]), -1).T
                for key in (f"{name}.weight", f"{name}.bias")
                if key in params
            )
            alike = alike + params[f"{after}.weight"].T @ theirs[f"{after}.weight"]
            places[i] = torch.as_tensor(
                linear_sum_assignment(alike.double().cpu().numpy(), maximize=True)[1]
            )
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


Entry = dict[str, Any]


def moments(update: Tree, params: Tree) -> Iterator[Entry]:
    """Moments over clients of the parameters after local training, by layer and for the whole model.

    `skewness`: mean over parameters of |m3| / m2^1.5, of those that differ between clients. `cv`: median over parameters of the
    coefficient of variation sd / |mean|. `squared_deviation`: mean over parameters of m2.
    """
    every = [
        _moments([update[name] for name in names], [params[name] for name in names])
        for names in tree.layers(update)
    ]
    for names, found in zip(tree.layers(update), every):
        yield from ({"layer": names[0], **entry} for entry in _summary(*found))
    yield from _summary(*(torch.cat(columns) for columns in zip(*every)))


def matched_moments(update: Tree, params: Tree, ids: tuple[int, ...]) -> Iterator[Entry]:
    """The moments with each client's hidden neurons renumbered to match the received model: `matched_skewness`, ...

    Also `moved` of each client, the share of its hidden neurons that get another number. Nothing for networks other than chains
    of linear layers.
    """
    found = matched(update, params)
    if found is not None:
        renumbered, moved = found
        yield from (
            {**entry, "quantity": f"matched_{entry['quantity']}"}
            for entry in moments(renumbered, params)
        )
        yield from (
            {"quantity": "moved", "client": k, "value": value}
            for k, value in zip(ids, moved.tolist())
        )


def entries(
    update: Tree, before: Tree, after: Tree, ids: tuple[int, ...], layers: str, first: int
) -> Iterator[Entry]:
    """The first `first` entries of every tensor whose name contains a pattern: each client's value, and the server's new one.

    The quantity is `parameter`, the layer `NAME[i]`, the client -1 for the server.
    """
    for name in (name for name in update if re.search(layers, name)):
        start = before[name].flatten()[:first]
        theirs = (start + update[name].flatten(1)[:, :first]).tolist()
        for client, values in zip((*ids, -1), (*theirs, after[name].flatten()[:first].tolist())):
            for i, value in enumerate(values):
                yield {
                    "quantity": "parameter",
                    "layer": f"{name}[{i}]",
                    "client": client,
                    "value": value,
                }


def _moments(updates: list[Tensor], params: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and |skewness| over clients of M parameters, [M] each; the skewness of equal values is NaN."""
    found = []
    for u, w in zip(updates, params):
        rows = u.flatten(1).double()
        mean = rows.mean(0)
        apart = torch.where(rows.amax(0) > rows.amin(0), rows - mean, 0.0)
        variance = apart.square().mean(0)
        found.append(
            (w.flatten().double() + mean, variance, (apart.pow(3).mean(0) / variance**1.5).abs())
        )
    mean, variance, skewness = (torch.cat(columns).cpu() for columns in zip(*found))
    return mean, variance, skewness


def _summary(mean: Tensor, variance: Tensor, skewness: Tensor) -> Iterator[Entry]:
    yield {"quantity": "skewness", "value": float(skewness.nanmean())}
    yield {"quantity": "cv", "value": float((variance.sqrt() / mean.abs())[mean != 0].median())}
    yield {"quantity": "squared_deviation", "value": float(variance.mean())}
