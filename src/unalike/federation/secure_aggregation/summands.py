"""Methods whose server half reads sums alone, and what one site adds to these sums."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.nests import map_tensors
from unalike.core.types import ClientUpdate, Tree
from unalike.core.views import Members, StageSettings
from unalike.methods.method import Method
from unalike.methods.part import overrides
from unalike.methods.plan import QueryStep, Step
from unalike.methods.roles import Upload
from unalike.runtime.stages.model_group import ModelGroup
from unalike.training.server.server_round import SumWeights
from unalike.training.server.summed_updates import StreamingSum

WEIGHT, LOSS = "weight", "loss"
"""The sums of the weights, and of the training losses times the numbers of samples."""


def check_summed(step: Step, settings: StageSettings) -> None:
    """Raise `UnalikeError` for a step of a plan whose server half reads more than sums over the sites."""
    if reason := _reads(step, settings):
        raise UnalikeError(
            f"secure aggregation shows sums over the sites alone, and {reason}; choose another method"
        )


def _reads(step: Step, settings: StageSettings) -> str:
    if isinstance(step, QueryStep):
        return f"step {step.name!r} reads the answer of each site to {step.query!r}"
    method, model = step.method, step.model or settings.model
    if step.groups is not None:
        return f"stage {step.name!r} divides the sites into groups, each with a sum of its own"
    for p in method.parts:
        if p.needs != "sums" or (p is method.aggregator and not method.combines_by_weighted_sum):
            return f"{p.name} reads {'how far apart the updates are' if p.needs == 'spread' else 'each update'}"
        if p.shares:
            return f"{p.name} reads {' and '.join(p.shares)} of each site"
        if overrides(p, "address"):
            return f"{p.name} sends messages of its own to each site"
    if model.buffers and settings.buffers == "first":
        return "buffers='first' reads the buffers of one site"
    whole = method.shared_names(
        [n for n, b in model.buffers.items() if not b.is_floating_point()], model
    )
    return (
        f"the largest {whole[0]} is no sum: use buffers='local'"
        if whole and settings.buffers == "average"
        else ""
    )


def own_weights(group: ModelGroup, ids: Sequence[int], members: Members) -> SumWeights:
    """Factors of the updates of clients, up to a common factor: each from the client's own number of samples.

    It is the ratio to the factor of a client with one sample; so nobody can have a site take a larger one than the others. The
    importance is exact.
    """
    weights, coefficients, importance = [], [], []
    expected, server = group.client_pool.expected, group.server_round
    for client, samples in zip(ids, group.client_pool.counts(ids), strict=True):
        alone = server.sum_weights(expected([client], members))
        # client -1 is the one with one sample
        beside = server.sum_weights(expected([client, -1], members, [samples, 1]))
        weights.append(beside.weights[0] / beside.weights[1])
        coefficients.append(beside.coefficients[0] / beside.coefficients[1])
        importance.append(alone.importance[0])
    return SumWeights(
        ids=tuple(ids),
        weights=torch.stack(weights),
        coefficients=torch.stack(coefficients),
        importance=torch.stack(importance),
    )


def summand(group: ModelGroup, client_update: ClientUpdate, weights: SumWeights) -> Tree:
    """The terms of one client: update, buffers and folds times its weights; its weight, and its loss times its samples.

    Raises `UnalikeError` for an update that is not finite.
    """
    total = StreamingSum(
        group.method,
        group.state,
        weights,
        group.settings.buffers,
        encoded=sums_encoded(group.method),
    )
    total.add(weights.ids, map_tensors(lambda t: t[None], client_update))
    sums = total.updates
    for why in sums.refused.values():
        raise UnalikeError(why)
    folded = {f"folded.{part}": t for part, t in sums.folded.items()}
    terms = tree.pack({"update": sums.update, "buffers": sums.buffers} | folded)
    return terms | {
        WEIGHT: weights.weights[0].double(),
        LOSS: (client_update.loss * client_update.size).double(),
    }


def sums_encoded(method: Method) -> bool:
    """Whether updates are added up as they are encoded, and their sum is decoded; else each site decodes its own."""
    return all(upload.additive for upload in method.role(Upload))


def empty_summand(group: ModelGroup, expected: ClientUpdate) -> Tree:
    """Terms of 0 with the names, shapes and types of those of an `expected` client update."""
    one = torch.ones(1, dtype=expected.size.dtype)
    zero = map_tensors(torch.zeros_like, expected)._replace(size=one[0], steps=one[0])
    return tree.zeros(summand(group, zero, SumWeights((0,), one, one, one)))


def vector(terms: Tree) -> NDArray[np.float64]:
    """The terms one after the other, [length]."""
    return np.concatenate([t.double().numpy(force=True).ravel() for t in terms.values()])


def terms_of(total: NDArray[np.float64], like: Tree) -> Tree:
    """The inverse of `vector`; names, shapes and types are those of `like`."""
    return tree.map(lambda term, t: term.to(t), tree.unflatten(torch.from_numpy(total), like), like)
