"""FedAS: the received body is brought near the client's own features before it trains, and bodies count by what they learned."""

from typing import Annotated, ClassVar

import torch
from pydantic import NonNegativeFloat, NonNegativeInt
from torch import Tensor
from torch.func import grad

from unalike.core import tree
from unalike.core.model import Model
from unalike.core.tasks.task import CLASS_LOGITS
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView, Cohort, ServerView
from unalike.methods.part import part
from unalike.methods.parts.class_means import class_features, membership
from unalike.methods.parts.curvature import information
from unalike.methods.parts.personalizers import OwnParameters
from unalike.methods.roles import Aggregator
from unalike.methods.search_space import LogRange

STARTED = "started"
"""Name in the client state, beside those of parameters: 1 once the client took part."""
FISHER = "fisher"
"""Name in a client's message: the trace of its Fisher information."""


@part
class AlignedStart(OwnParameters):
    """theta <- theta - lr grad sum_c mean_(b in c) ||z_b(theta) - p_c||^2 / D before training (FedAS, Yang et al. 2024).

    theta is the body received, p_c the mean of the features of class c [D] that the client's own last model gives; the sum is
    over the classes in a batch, in `epochs` passes over all local samples. Then the client trains all of its model as always, from
    theta and its own head. The body is sent; the head stays, and the client is evaluated with the whole model that it trained last.
    At its first participation nothing is aligned. epochs = 0 or lr = 0 is `fedper`, but for the body that is evaluated.

    In the authors' code the clients of a round align one model in place, each starting from what those before it made of it; here
    each starts from the model received.
    """

    lr: Annotated[NonNegativeFloat, LogRange(1e-3, 0.1)] = 0.01
    epochs: NonNegativeInt = 1

    needs_of_task: ClassVar[str] = CLASS_LOGITS
    needs_data: ClassVar[bool] = True
    special_group = "head"

    def client_init(self, params: Tree) -> Tree:
        return params | {STARTED: torch.zeros((), dtype=tree.dtype(params))}

    def shared(self, name: str, model: Model) -> bool:
        return not model.in_head(name)

    def begin(self, client: ClientView) -> tuple[Tree, Tree]:
        own = tree.shared(client.state, client.params)
        features = class_features(client, client.params | own)
        body = {n: w for n, w in client.params.items() if n in own and not client.model.in_head(n)}

        def distance(body: Tree, batch: Batch) -> Tensor:
            z = client.model.features(
                client.params | body, batch.x, buffers=client.buffers, context=client.context
            )
            member = membership(batch, len(features.means)).to(z.dtype)
            gaps = (z - member @ features.means).square().mean(1)
            return ((member.T @ gaps) / member.sum(0).clamp_min(1)).sum()

        # a client that never trained has no features of its own
        rate = self.lr * client.state[STARTED]
        slope = grad(distance)
        for _ in range(self.epochs):
            for batch in client.data.whole:
                body = tree.map(lambda w, g: w - rate * g, body, slope(body, batch))
        return client.params | own | body, client.state

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        own = tree.shared(client.params, client.state)
        return own | {STARTED: torch.ones_like(client.state[STARTED])}, {}

    def personal(self, model: Model, params: Tree, state: Tree) -> Tree:
        return params | tree.shared(state, params)


@part
class FisherMean(Aggregator):
    """w+ = w + sum_k c_k u_k, c_k ~ tr I_k, I_k the Fisher information of client k's trained model (FedAS, Yang et al. 2024).

    tr I_k is the mean over its samples of the squared length of the gradient of a sample's loss, in the parameters that it sends:
    those who fit their samples badly count more. Neither sizes nor base weights matter; where all c_k are 0 clients count alike.
    Float buffers have the weights c_k. The authors' code squares the gradient of the mean loss of each batch, and adds these
    up, so that clients with many batches count more; it includes the head. Clients send the trace, and the server believes them.
    """

    needs_data: ClassVar[bool] = True

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        traces = [squares.sum() for squares in information(client).values()]
        # a model without a body sends no parameters
        trace = torch.stack(traces).sum() if traces else torch.zeros(())
        return client.state, {FISHER: trace}

    def why_impossible(self, message: Tree, samples: int) -> str:
        return "a trace of squares below 0" if message[FISHER] < 0 else ""

    def final_weights(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        traces = cohort.message[FISHER].to(weights)
        return torch.where(traces.sum() > 0, traces / traces.sum(), 1 / len(traces))

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        return tree.weighted_sum(cohort.update, weights)
