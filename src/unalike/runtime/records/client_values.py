"""Numbers about the values of single parameters at the clients of a round: their moments over clients, and some of the values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Tree
from unalike.runtime.records.neuron_matching import matched

Entry = dict[str, Any]


def moments(update: Tree, params: Tree) -> Iterator[Entry]:
    """Moments over clients of the parameters after local training, by layer and for the whole model.

    `skewness`: mean over parameters of |m3| / m2^1.5, of those that differ between clients. `cv`: median over parameters of the
    coefficient of variation sd / |mean|. `squared_deviation`: mean over parameters of m2.

    Args:
        update: updates of K clients, [K, ...] each.
        params: the parameters that they received.
    """
    every = [
        _moments([update[name] for name in names], [params[name] for name in names]) for names in tree.layers(update)
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
        yield from ({**entry, "quantity": f"matched_{entry['quantity']}"} for entry in moments(renumbered, params))
        yield from ({"quantity": "moved", "client": k, "value": value} for k, value in zip(ids, moved.tolist()))


def entries(update: Tree, before: Tree, after: Tree, ids: tuple[int, ...], layers: str, first: int) -> Iterator[Entry]:
    """The first `first` entries of every tensor whose name contains a pattern: each client's value, and the server's new one.

    The quantity is `parameter`, the layer `NAME[i]`, the client -1 for the server.
    """
    for name in (name for name in update if re.search(layers, name)):
        start = before[name].flatten()[:first]
        theirs = (start + update[name].flatten(1)[:, :first]).tolist()
        for client, values in zip((*ids, -1), (*theirs, after[name].flatten()[:first].tolist())):
            for i, value in enumerate(values):
                yield {"quantity": "parameter", "layer": f"{name}[{i}]", "client": client, "value": value}


def _moments(updates: list[Tensor], params: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and |skewness| over clients of M parameters, [M] each; the skewness of equal values is NaN."""
    found = []
    for u, w in zip(updates, params):
        rows = u.flatten(1).double()
        mean = rows.mean(0)
        apart = torch.where(rows.amax(0) > rows.amin(0), rows - mean, 0.0)
        variance = apart.square().mean(0)
        found.append((w.flatten().double() + mean, variance, (apart.pow(3).mean(0) / variance**1.5).abs()))
    mean, variance, skewness = (torch.cat(columns).cpu() for columns in zip(*found))
    return mean, variance, skewness


def _summary(mean: Tensor, variance: Tensor, skewness: Tensor) -> Iterator[Entry]:
    yield {"quantity": "skewness", "value": float(skewness.nanmean())}
    yield {"quantity": "cv", "value": float((variance.sqrt() / mean.abs())[mean != 0].median())}
    yield {"quantity": "squared_deviation", "value": float(variance.mean())}
