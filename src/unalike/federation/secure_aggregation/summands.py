"""Methods whose server half reads sums alone, and what one site adds to these sums."""

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.inputs import first_rows, map_inputs
from unalike.core.nests import map_tensors
from unalike.core.types import Batch, Broadcast, ClientUpdate, Tree
from unalike.core.views import Members, StageSettings
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.secure_aggregation.arithmetic import Words, bound, encode, is_encodable
from unalike.methods.method import Method
from unalike.methods.part import overrides
from unalike.methods.plan import QueryStep, Stage, Step
from unalike.methods.roles import Upload
from unalike.runtime.stages.model_group import ModelGroup
from unalike.training.server.server_round import SumWeights
from unalike.training.server.summed_updates import StreamingSum
from unalike.training.validation import expected_update

WEIGHT = "weight"
"""The term whose sum is that of the weights."""
IDLE = "idle"
"""The term whose sum is the number of idle summands."""
LOSS = "loss"
"""The term whose sum is that of the training losses times the numbers of samples."""
TOLD = (WEIGHT, IDLE)
"""The terms that a sum with an idle summand tells."""


class Summand(NamedTuple):
    """The addend of a site in a sum, and its client update. It is idle where `why_idle` says so.

    Of an idle one all words are random but the weight and the number of idle summands: a sum with it says that, and nothing else.
    With zeros in their place a server could have all sites but one be idle, and the sum would be that one's.
    """

    words: Words
    client_update: ClientUpdate
    why_idle: str = ""


def check_summed(step: Step, settings: StageSettings) -> None:
    """Raise `UnalikeError` for a step of a plan whose server half reads more than sums over the sites."""
    reason = _why_not_summed(step, settings)
    if reason:
        raise UnalikeError(
            f"secure aggregation shows sums over the sites alone, and {reason}; choose another method"
        )


def check_threshold(step: Step, federation: Federation) -> None:
    """Raise `UnalikeError` for a step of a plan of which sums over fewer sites than all would show single ones."""
    sites = len(federation.sites)
    if isinstance(step, Stage) and step.method.sums_stay_alike and federation.least_sum < sites:
        raise UnalikeError(
            f"{step.method!r} sends nearly the same in every round, so that two sums show a site that is in one of them: found a "
            f"threshold of {federation.least_sum}; expected one of all sites, --threshold {sites}"
        )


def _why_not_summed(step: Step, settings: StageSettings) -> str:
    """The reason why sums are not enough for a step; empty if they are."""
    if isinstance(step, QueryStep):
        return f"step {step.name!r} reads the answer of each site to {step.query!r}"
    if step.groups is not None:
        return f"stage {step.name!r} divides the sites into groups, each with a sum of its own"

    method = step.method
    model = step.model or settings.model
    for part in method.parts:
        is_other_rule = part is method.aggregator and not method.combines_by_weighted_sum
        if part.needs != "sums" or is_other_rule:
            what = "how far apart the updates are" if part.needs == "spread" else "each update"
            return f"{part.name} reads {what}"
        if part.sums_show_clients:
            return f"{part.name} sends {part.sums_show_clients}"
        if part.shares:
            return f"{part.name} reads {' and '.join(part.shares)} of each site"
        if overrides(part, "address"):
            return f"{part.name} sends messages of its own to each site"

    if method.sampler is not None and method.sampler.reads_losses:
        return f"{method.sampler.name} asks sites by {method.sampler.decides_by}"
    for part in method.conditioners:
        return f"{part.name} feeds the model facts of each site's samples, which show in its scores"
    if model.buffers and settings.buffers == "first":
        return "buffers='first' reads the buffers of one site"
    # Buffers of whole numbers, such as counts of batches, are not averaged: the largest one counts.
    whole_buffers = [name for name, b in model.buffers.items() if not b.is_floating_point()]
    largest = method.shared_names(whole_buffers, model)
    if largest and settings.buffers == "average":
        return f"the largest {largest[0]} is no sum: use buffers='local'"
    return ""


def own_weights(group: ModelGroup, ids: Sequence[int], members: Members) -> SumWeights:
    """Factors of the updates of clients, up to a common factor: each from the client's own number of samples.

    It is the ratio to the factor of a client with one sample; so nobody can have a site take a larger one than the others. The
    importance is exact.
    """
    weights, coefficients, importance = [], [], []
    expected = group.client_pool.expected
    server = group.server_round
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
    # A site refuses its own update where a server would: behind a mask nobody else can.
    for why in sums.refused.values():
        raise UnalikeError(why)
    folded = {f"folded.{part}": t for part, t in sums.folded.items()}
    terms = tree.pack({"update": sums.update, "buffers": sums.buffers} | folded)
    return terms | {
        IDLE: torch.zeros((), dtype=torch.float64),
        WEIGHT: weights.weights[0].double(),
        LOSS: (client_update.loss * client_update.size).double(),
    }


def trained_summand(
    group: ModelGroup, broadcast: Broadcast, client: int, weights: SumWeights, sites: int
) -> Summand:
    """Train a client; returns what it adds to the sum of so many `sites`.

    Whether training fails, or gives what a sum cannot hold, tells about the samples. So it is no error: the summand is idle then,
    and the client keeps the state that it had. Raises `UnalikeError` where that state cannot be read, `OSError` for a full disk.
    """
    accepted = group.accepted.get(client)
    state_before = group.client_state(client)
    try:
        stacked = group.executor.run(broadcast, [client], group.accepted)
        client_update = map_tensors(lambda t: t[0], stacked)
        values = vector(summand(group, client_update, weights))
        if is_encodable(values, sites):
            return Summand(encode(values, sites), client_update)
        why_idle = (
            f"a value of {np.abs(values).max():.3g}; a sum holds less than {bound(sites):.3g}"
        )
    except OSError:
        raise
    except Exception as error:
        why_idle = f"{type(error).__name__}: {error}"
    group.client_states.put(client, broadcast.round, state_before, accepted)
    return _idle_summand(group, broadcast, client, weights, sites, why_idle)


def _idle_summand(
    group: ModelGroup,
    broadcast: Broadcast,
    client: int,
    weights: SumWeights,
    sites: int,
    why_idle: str,
) -> Summand:
    """The summand of a client whose training fails."""
    # Its form is that of an update from a model of zeros: with the model that was sent, this might fail as well.
    source = group.source
    own = broadcast.to(client)
    zeros = own._replace(
        params=tree.zeros(own.params),
        buffers=tree.zeros(own.buffers),
        messages=map_tensors(torch.zeros_like, own.messages),
    )
    zero_inputs = map_inputs(torch.zeros_like, first_rows(source.x, 1))
    form = expected_update(
        method=group.method,
        settings=group.settings,
        broadcast=zeros,
        context=group.context(client),
        sample=Batch(zero_inputs, torch.zeros_like(source.y[:1])),
    )
    terms = empty_summand(group, form)
    terms[IDLE] = torch.ones_like(terms[IDLE])
    terms[WEIGHT] = weights.weights[0].double()
    words = encode(vector(terms), sites)

    # The other words are random, and so are those of the sum.
    is_told = vector({name: torch.full_like(t, name in TOLD) for name, t in terms.items()})
    random = np.frombuffer(secrets.token_bytes(words.nbytes), np.uint64)
    return Summand(np.where(is_told, words, random), form, why_idle)


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
