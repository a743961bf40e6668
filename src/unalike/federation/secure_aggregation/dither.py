"""Random numbers below rounding, which a site adds to its summand: a sum of numbers on a coarse grid would come apart.

A parameter of 2^20 moves in steps of 1/8: updates are whole multiples of that, and weighted by known numbers of samples few of them
make the same sum. With a random number between -1/2 and 1/2 of a step beside each, a sum tells no more than one of real numbers. It
changes a mean by less than training itself is rounded.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from unalike.core.types import Tree
from unalike.federation.secure_aggregation.masks import context, mask
from unalike.training.server.server_round import SumWeights

UPDATE = "update"
"""The kind of the terms that are differences of parameters."""


def step_sizes(terms: Tree, params: Tree, sent: Tree, weights: SumWeights) -> Tree:
    """The distance between neighbouring values of each number of a summand, with names and shapes of the `terms`.

    Args:
        terms: those of one site: `update/*`, `buffers/*`, `folded.<part>/*`.
        params: the parameters that the site was sent; an update is on the grid of the largest one of its tensor.
        sent: the update as the site encoded it, whose type may have fewer digits.
        weights: the factors of the site's update.
    """
    factor = float(weights.coefficients[0].abs())
    spacings = {name: _spacing(param) for name, param in params.items()}
    coarsest = max(spacings.values(), default=0.0)
    steps: Tree = {}
    for path, t in terms.items():
        kind, _, name = path.partition("/")
        if kind == UPDATE:
            # the step of a type with few digits is that of its smallest numbers, at least
            digits = torch.finfo(sent[name].dtype)
            own_step = (t.double().abs() + factor * digits.tiny) * digits.eps
            # what an upload sends may be taken from several parameters
            steps[path] = own_step + factor * spacings.get(name, coarsest)
        else:
            steps[path] = t.double().abs() * torch.finfo(t.dtype).eps

    # A part's message may be made of an update, as a control variate is: then its grid is that of the update, multiplied.
    for path, t in terms.items():
        kind, _, name = path.partition("/")
        update = f"{UPDATE}/{name}"
        if kind in (UPDATE, "buffers") or update not in terms:
            continue
        largest = float(terms[update].abs().max())
        if largest > 0:
            steps[path] = steps[path] + steps[update].max() * float(t.abs().max()) / largest
    return steps


def dithered(
    values: NDArray[np.float64], steps: NDArray[np.float64], random: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """v + s (r / 2^64 - 1/2) for values v, step sizes s and random words r."""
    return values + steps * (random / 2.0**64 - 0.5)


def random_words(secret: bytes, model: str, length: int) -> NDArray[np.uint64]:
    """Words that only the site can know. For one model they are always the same: those of many sums would average out."""
    return mask(secret, context("dither", model), length)


def _spacing(param: torch.Tensor) -> float:
    """The distance from the largest size in a parameter to the next number of its type."""
    largest = param.detach().abs().max()
    return float(torch.nextafter(largest, largest.new_tensor(torch.inf)) - largest)
