"""Numbers about the values of single parameters at the clients of a round: their moments over clients, and some of the values.

A network does not change when its hidden neurons are renumbered. Numbers that compare a parameter over clients therefore
depend on how the neurons correspond; `matched` renumbers each client's neurons so that it lies nearest to the received model.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Tree

MAX_SWEEPS = 20
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
    clients = []
    moved = []
    for k in range(len(next(iter(update.values())))):
        trained = {name: params[name] + update[name][k] for name in params}
        places = _places(trained, params, layers)
        clients.append(_renumbered(trained, layers, places))
        changed = [(place != torch.arange(len(place))).double().mean() for place in places]
        moved.append(torch.stack(changed).mean())
    renumbered = {}
    for name, received in params.items():
        renumbered[name] = torch.stack([client[name] for client in clients]) - received
    return renumbered, torch.stack(moved)


def _chain(params: Tree) -> list[str] | None:
    """The names of the linear layers, in order, if the parameters are nothing else and there are two or more of them."""
    layers = [name.removesuffix(".weight") for name in params if name.endswith(".weight")]
    shapes = [params[f"{layer}.weight"].shape for layer in layers]
    of_layers = {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
    are_linear = all(len(shape) == 2 for shape in shapes) and set(params) <= of_layers
    if not are_linear or len(layers) < 2:
        return None
    are_joined = all(before[0] == after[1] for before, after in pairwise(shapes))
    return layers if are_joined else None


def _places(own: Tree, params: Tree, layers: list[str]) -> list[Tensor]:
    """For each hidden layer, the client's neuron at each place of the model."""
    from scipy.optimize import linear_sum_assignment

    places = [torch.arange(len(params[f"{name}.weight"])) for name in layers[:-1]]
    for _ in range(MAX_SWEEPS):
        before = [place.clone() for place in places]
        for i, (name, after) in enumerate(pairwise(layers)):
            # the other layers as they are numbered by now, this one as the client has it
            neurons = len(places[i])
            others = [*places]
            others[i] = torch.arange(neurons)
            theirs = _renumbered(own, layers, others)
            alike: Tensor | int = 0
            for key in (f"{name}.weight", f"{name}.bias"):
                if key in params:
                    model_rows = params[key].reshape(neurons, -1)
                    alike = alike + model_rows @ theirs[key].reshape(neurons, -1).T
            alike = alike + params[f"{after}.weight"].T @ theirs[f"{after}.weight"]
            _, best = linear_sum_assignment(alike.double().cpu().numpy(), maximize=True)
            places[i] = torch.as_tensor(best)
        if all(torch.equal(a, b) for a, b in zip(before, places)):
            break
    return places


def _renumbered(own: Tree, layers: list[str], places: list[Tensor]) -> Tree:
    """The parameters with the neurons of each hidden layer at other places: rows of a layer, columns of the next."""
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
    coefficient of variation sd / |mean|. `squared_deviation`: mean over parameters of m2, `squared_deviation_range` the
    largest m2 less the smallest.
    """
    of_layers = []
    for names in tree.layers(update):
        of_layer = _moments([update[name] for name in names], [params[name] for name in names])
        of_layers.append(of_layer)
        for entry in _summary(of_layer):
            yield {"layer": names[0], **entry}
    yield from _summary(_joined(of_layers))


def matched_moments(update: Tree, params: Tree, ids: tuple[int, ...]) -> Iterator[Entry]:
    """The moments with each client's hidden neurons renumbered to match the received model: `matched_skewness`, ...

    Also `moved` of each client, the share of its hidden neurons that get another number. Nothing for networks other than chains
    of linear layers.
    """
    found = matched(update, params)
    if found is not None:
        renumbered, moved = found
        for entry in moments(renumbered, params):
            yield {**entry, "quantity": f"matched_{entry['quantity']}"}
        for client, share in zip(ids, moved.tolist()):
            yield {"quantity": "moved", "client": client, "value": share}


def entries(
    update: Tree, before: Tree, after: Tree, ids: tuple[int, ...], layers: str, first: int
) -> Iterator[Entry]:
    """The first `first` entries of every tensor whose name contains a pattern: each client's value, and the server's new one.

    The quantity is `parameter`, the layer `NAME[i]`, the client -1 for the server.
    """
    for name in update:
        if not re.search(layers, name):
            continue
        start = before[name].flatten()[:first]
        of_clients = (start + update[name].flatten(1)[:, :first]).tolist()
        of_server = after[name].flatten()[:first].tolist()
        for client, values in zip((*ids, -1), (*of_clients, of_server)):
            for i, value in enumerate(values):
                yield {
                    "quantity": "parameter",
                    "layer": f"{name}[{i}]",
                    "client": client,
                    "value": value,
                }


class _Moments(NamedTuple):
    """Moments over clients of M parameters, [M] each; the skewness of equal values is NaN."""

    mean: Tensor
    variance: Tensor
    skewness: Tensor


def _moments(updates: list[Tensor], params: list[Tensor]) -> _Moments:
    """The moments of the parameters of one layer, as clients have them after local training."""
    found = []
    for update, received in zip(updates, params):
        rows = update.flatten(1).double()
        mean = rows.mean(0)
        # exactly 0 where all are equal, which rounding of the mean would hide
        deviation = torch.where(rows.amax(0) > rows.amin(0), rows - mean, 0.0)
        variance = deviation.square().mean(0)
        skewness = (deviation.pow(3).mean(0) / variance**1.5).abs()
        found.append(_Moments(received.flatten().double() + mean, variance, skewness))
    mean, variance, skewness = _joined(found)
    return _Moments(mean.cpu(), variance.cpu(), skewness.cpu())


def _joined(moments: list[_Moments]) -> _Moments:
    return _Moments(
        mean=torch.cat([one.mean for one in moments]),
        variance=torch.cat([one.variance for one in moments]),
        skewness=torch.cat([one.skewness for one in moments]),
    )


def _summary(moments: _Moments) -> Iterator[Entry]:
    """The numbers that stand for the moments of all parameters."""
    mean, variance, skewness = moments
    coefficients = variance.sqrt() / mean.abs()
    yield {"quantity": "skewness", "value": float(skewness.nanmean())}
    yield {"quantity": "cv", "value": float(coefficients[mean != 0].median())}
    yield {"quantity": "squared_deviation", "value": float(variance.mean())}
    yield {
        "quantity": "squared_deviation_range",
        "value": float(variance.max() - variance.min()),
    }
