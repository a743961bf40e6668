"""Methods whose server half reads sums alone, and what one site adds to these sums."""

import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from unalike._utils.errors import UnalikeError
from unalike._utils.limits import Limit
from unalike.core import tree
from unalike.core.inputs import first_rows, map_inputs
from unalike.core.nests import map_tensors
from unalike.core.types import Batch, Broadcast, ClientUpdate, Tree
from unalike.core.views import Members, StageSettings
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.secure_aggregation.arithmetic import Words, bound, encode, is_encodable
from unalike.federation.secure_aggregation.dither import dithered, step_sizes
from unalike.methods.method import Method
from unalike.methods.part import Part, overrides
from unalike.methods.plan import QueryStep, Stage, Step, method_of, plan
from unalike.methods.plans.data_sharing import DataSharing
from unalike.methods.roles import Aggregator, BaseWeights, Upload, Weighting
from unalike.runtime.stages.model_group import ModelGroup
from unalike.training.client.client_update import initial_client_state
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
            f"secure aggregation shows sums over the sites alone, and {reason}; choose another method ({Limit.FEDERATION})"
        )


def check_threshold(step: Step, federation: Federation, settings: StageSettings) -> None:
    """Raise `UnalikeError` for a step of a plan of which sums over fewer sites than all would show single ones."""
    sites = len(federation.sites)
    if not isinstance(step, Stage) or federation.least_sum == sites:
        return
    why = ""
    if step.method.sums_stay_alike:
        why = "sends nearly the same in every round, so that two sums show a site that is in one of them"
    elif keeps_client_states(step.method, step.settings(settings)):
        why = "keeps client states, by which rounds without one site could silence all others in a later sum"
    if why:
        raise UnalikeError(
            f"{step.method!r} {why}: found a threshold of {federation.least_sum}; expected one of all sites, --threshold {sites}"
        )


def check_one_weighing(federation: Federation) -> None:
    """Raise `UnalikeError` for agreed methods that weigh sites differently: as many sums over one model as sites show all sites."""
    weighings = {}
    for spec_text in (federation.method, *federation.also):
        agreed = plan(spec_text)
        parts = [
            repr(part)
            for part in method_of(agreed).parts
            if isinstance(part, BaseWeights | Weighting | Aggregator)
        ]
        # shared samples count with a site's own
        shared = repr(agreed) if isinstance(agreed, DataSharing) else ""
        weighings[(*parts, shared)] = spec_text
    if len(weighings) > 1:
        raise UnalikeError(
            f"{' and '.join(weighings.values())} weigh sites differently, and their sums over one model would together show single "
            "sites: make a federation with secure aggregation for each"
        )


def keeps_client_states(method: Method, settings: StageSettings) -> bool:
    """Whether a site's update follows from what it keeps of earlier rounds, too.

    Then all sites of a sum must have the same earlier rounds. With other models a coordinator could have driven the states of all
    sites but one to where their updates are 0, or known: private parameters to where the shared ones have no gradient, control
    variates to where only a site without any follows them.
    """
    return bool(initial_client_state(method, settings))


def _why_not_summed(step: Step, settings: StageSettings) -> str:
    """The reason why sums are not enough for a step; empty if they are."""
    if isinstance(step, QueryStep):
        return f"step {step.name!r} reads the answer of each site to {step.query!r}"
    if step.groups is not None:
        return f"stage {step.name!r} divides the sites into groups, each with a sum of its own"

    method = step.method
    model = step.model or settings.model
    for part in method.parts:
        reason = _why_part_not_summed(part, method)
        if reason:
            return reason
    reason = _why_two_sums_show_updates(method, settings)
    if reason:
        return reason

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


def _why_two_sums_show_updates(method: Method, settings: StageSettings) -> str:
    """The reason why the sums of one round show updates of single sites; empty if they do not.

    Two sums of the same updates with other factors cancel all sites whose factors have the same ratio.
    """
    if method.local_work(settings.work).steps is not None:
        return ""
    by_steps = method.aggregator.needs_steps
    for part in method.parts:
        is_other_factor = part.update_again == ("as it is" if by_steps else "by steps")
        if part.update_again and is_other_factor:
            return (
                f"{part.name} has each update in two sums, of which one divides by its local steps: they show a site whose steps "
                "differ from the others'; have all make the same number (--steps)"
            )
    return ""


def _why_part_not_summed(part: Part, method: Method) -> str:
    """The reason why sums are not enough for a part; empty if they are."""
    is_other_rule = part is method.aggregator and not method.combines_by_weighted_sum
    if part.needs != "sums" or is_other_rule:
        what = "how far apart the updates are" if part.needs == "spread" else "each update"
        return f"{part.name} reads {what}"
    if part.sums_show_clients:
        return f"{part.name} sends {part.sums_show_clients}"
    if part.shares:
        return f"{part.name} reads {' and '.join(part.shares)} of each site"
    if isinstance(part, Upload) and not part.additive:
        return (
            f"{part.name} has each site send numbers of a grid, or at places, of its own, by which a sum comes apart: "
            "random_mask and half_precision send fewer bytes that add up"
        )
    if overrides(part, "address"):
        return f"{part.name} sends messages of its own to each site"
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
        encoded=True,
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
    group: ModelGroup,
    broadcast: Broadcast,
    client: int,
    weights: SumWeights,
    sites: int,
    random_words: Callable[[int], Words],
) -> Summand:
    """Train a client; returns what it adds to the sum of so many `sites`. `random_words` gives as many as it is asked for.

    Whether training fails, or gives what a sum cannot hold, tells about the samples. So it is no error: the summand is idle then,
    and the client keeps the state that it had. Raises `UnalikeError` where that state cannot be read, `OSError` for a full disk.
    """
    accepted = group.accepted.get(client)
    state_before = group.client_state(client)
    try:
        stacked = group.executor.run(broadcast, [client], group.accepted)
        client_update = map_tensors(lambda t: t[0], stacked)
        terms = summand(group, client_update, weights)
        steps = step_sizes(terms, broadcast.params, client_update.update, weights)
        values = vector(terms)
        values = dithered(values, vector(steps), random_words(len(values)))
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
