"""Micro-classes and macro-classes of parameter-skew aggregation: `parameter_skew.py` says what they are."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from unalike.core import tree

CLASS_DTYPE = torch.int16
"""Data type of micro-classes."""
TIE_TOLERANCE = 1e-12
"""Similarities closer than this are equal."""


@dataclass(frozen=True)
class SkewDecision:
    """The decision of the rule on one tensor: on its high parameters, since all others take the mean.

    `high` [H] are the places of the high parameters in the flat tensor, `micro` [K, H] the micro-class of each client at each
    of them, 0 for none (None where no parameter is high), `macro` the clients of each macro-class, and `alpha` [S, H] the
    weight of each at each high parameter (None where there is no macro-class).
    """

    high: Tensor
    micro: Tensor | None = None
    macro: list[list[int]] = field(default_factory=list)
    alpha: Tensor | None = None

    def applied(self, w: Tensor, u: Tensor, mean: Tensor, weights: Tensor) -> Tensor:
        """The update [M]: `mean`, and at the high parameters sum_s alpha_s * (mean of macro-class s) - w, from u [K, M]."""
        if self.alpha is None:
            return mean
        old = w[self.high]
        values = old + u.index_select(1, self.high)
        means = []
        for members in self.macro:
            shares = shares_of(weights[members]).to(values.dtype)
            means.append(shares @ values[members])
        new = (self.alpha.to(values.dtype) * torch.stack(means)).sum(0)
        return mean.index_copy(0, self.high, new - old)


def classes_in_range(d: Tensor, low: Tensor, top: Tensor, micro: int) -> Tensor:
    """Micro-classes 1..C of equal width between `low` and `top`, for squared deviations d."""
    scaled = (d - low) / (top - low) if top > low else torch.zeros_like(d)
    return (micro * scaled).ceil().clamp(1, micro).to(CLASS_DTYPE)


def modal_class(classes: Tensor, micro: int) -> Tensor:
    """Most frequent micro-class of each column of [k, H]; the smallest among equals."""
    highest = (classes == 0).sum(0, dtype=CLASS_DTYPE)
    mode = torch.zeros_like(classes[0])
    for c in range(1, micro + 1):
        count = (classes == c).sum(0, dtype=CLASS_DTYPE)
        mode = mode.masked_fill_(count > highest, c)
        highest = torch.maximum(highest, count)
    return mode.long()


def agreements(classes: Tensor, micro: int) -> Tensor:
    """The number of parameters at which clients a and b have the same micro-class, [K, K], from [K, M]."""
    agree = torch.zeros(len(classes), len(classes), dtype=torch.int64, device=classes.device)
    for block in tree.blocks(classes):
        for c in range(micro + 1):
            members = (classes[:, block] == c).float()
            agree += (members @ members.T).long()
    return agree


def cluster(
    similarity: np.ndarray, most: int, least_similarity: float, pairs_first: bool
) -> list[list[int]]:
    """The macro-classes as lists of clients, from the similarity [K, K]: greedy clustering with average linkage.

    Each turn takes the most similar of two moves: a client joins a macro-class (similarity: mean over its members), or two
    single clients form a new one. With `most` classes, clients join while their similarity exceeds `least_similarity`.
    Clients that are left over count in no macro-class. On a tie two clients form a new class if `pairs_first`, else one joins.
    """
    classes: list[list[int]] = []
    sums = np.empty((len(similarity), 0))  # [K, S]: similarity to the members of each class
    pairs = np.where(np.tri(len(similarity), dtype=bool), -np.inf, similarity)
    while True:
        has_room = len(classes) < most
        join, (client, place) = _highest(sums / [len(members) for members in classes])
        pair, both = _highest(pairs if has_room else pairs[:0])
        if pair > join + (-TIE_TOLERANCE if pairs_first else TIE_TOLERANCE):
            classes.append([*both])
            sums = np.column_stack((sums, similarity[:, both].sum(1)))
        elif join > -np.inf and (has_room or join > least_similarity):
            classes[place].append(client)
            sums[:, place] += similarity[:, client]
        else:
            return classes
        # who is in a class makes no further move
        clustered = [k for members in classes for k in members]
        sums[clustered] = -np.inf
        pairs[clustered] = -np.inf
        pairs[:, clustered] = -np.inf


def random_macro_classes(clients: int, macro: int, generator: torch.Generator) -> list[list[int]]:
    """At most `macro` macro-classes; each client is put into one of them at random."""
    places = torch.randint(macro, (clients,), generator=generator).tolist()
    classes: list[list[int]] = [[] for _ in range(macro)]
    for client, place in enumerate(places):
        classes[place].append(client)
    return [members for members in classes if members]


def places_of(macro: list[list[int]], clients: int) -> Tensor:
    """The macro-class of each client, [K]; -1 for a client in none."""
    places = torch.full((clients,), -1)
    for s, members in enumerate(macro):
        places[members] = s
    return places


def weights_by_client(alpha: Tensor, macro: list[list[int]], weights: Tensor) -> Tensor:
    """The weight of each client, [K]: its share in its macro-class times the alpha of that; 0 for a client in none."""
    result = torch.zeros_like(weights)
    for s, members in enumerate(macro):
        result[members] = alpha[s].to(weights) * shares_of(weights[members])
    return result


def shares_of(weights: Tensor) -> Tensor:
    """The weights over their sum; equal weights if all are 0 (clients that FedDisco leaves out)."""
    total = weights.sum()
    return weights / total if total else torch.full_like(weights, 1 / len(weights))


def _highest(similarity: np.ndarray) -> tuple[float, tuple[int, int]]:
    """The highest similarity and its place in a matrix, the first one among equals; -inf if the matrix is empty."""
    if not similarity.size:
        return -np.inf, (0, 0)
    place = int((similarity > similarity.max() - TIE_TOLERANCE).argmax())
    return float(similarity.flat[place]), divmod(place, similarity.shape[1])
