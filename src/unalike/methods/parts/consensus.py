"""FedMD: clients learn from the mean of what all of them predict for public samples."""

from typing import Annotated, ClassVar

import torch
from pydantic import NonNegativeInt, PositiveFloat
from torch import Tensor
from torch.func import grad

from unalike.core import tree
from unalike.core.tasks.task import CLASS_LOGITS
from unalike.core.types import Tree
from unalike.core.views import ClientView, ServerView, StageSettings
from unalike.methods.part import Setup, part
from unalike.methods.roles import Personalizer
from unalike.methods.search_space import LogRange

LOGITS = "public.logits"
CLIENTS = "public.clients"
"""Names in a client's message: its logits for the public samples, and 1."""
KNOWN = "public.known"
"""Name in the server state: 1 once there is a consensus."""


@part
class Consensus(Personalizer):
    """`steps` times v <- v - lr grad mean_b |f_v(x_b) - f(x_b)|, f = mean_k f_k ("digest", FedMD, Li and Wang 2019, algorithm 1).

    x_b are the samples at the server (`proxy`), which every client has, too. Local training follows ("revisit"). Then a client
    sends its logits f_k for them [M, C]; the server takes their mean over the clients of the round, which the next round begins
    with. In the first round there is nothing to digest. steps = 0 is the method without this part.

    A step takes all public samples, in evaluation mode; the paper takes batches of a subset that is drawn anew. Its training on
    the public labels before the first round is left out. With `private` parameters, as in `fedmd`, clients may have unlike
    networks.
    """

    has_own_name: ClassVar[bool] = True

    steps: NonNegativeInt = 5
    lr: Annotated[PositiveFloat, LogRange(1e-3, 1)] = 0.1
    rank: ClassVar[int] = 1
    """After `private` has put the client's own parameters in place."""
    needs_of_task: ClassVar[str] = CLASS_LOGITS
    needs_proxy: ClassVar[bool] = True
    clients_read_proxy: ClassVar[bool] = True
    sums_stay_alike: ClassVar[bool] = True
    unlike_networks = "equal shapes"

    def server_open(self, settings: StageSettings) -> Tree:
        if settings.proxy is None:
            return {}
        _, classes = settings.model.head_size
        like = next(iter(settings.model.params.values()))
        return {LOGITS: like.new_zeros(len(settings.proxy.y), classes), KNOWN: like.new_zeros(1)}

    def broadcast(self, server: ServerView) -> Tree:
        return server.state

    def begin(self, client: ClientView) -> tuple[Tree, Tree]:
        public = client.settings.proxy
        if public is None:
            return client.params, client.state
        trained = {n: w for n, w in client.params.items() if client.model.trainable(n)}

        def distance(params: Tree) -> Tensor:
            gap = self._logits(client, client.params | params) - client.message[LOGITS]
            return client.message[KNOWN].squeeze() * gap.abs().mean()

        slope = grad(distance)
        for _ in range(self.steps):
            trained = tree.map(lambda w, g: w - self.lr * g, trained, slope(trained))
        return client.params | trained, client.state

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        if client.settings.proxy is None:
            return client.state, {}
        logits = self._logits(client, client.initial_params | client.params)
        return client.state, {LOGITS: logits, CLIENTS: logits.new_ones(1)}

    def _logits(self, client: ClientView, params: Tree) -> Tensor:
        """The client's logits for the public samples, [M, C]."""
        public = client.settings.proxy
        assert public is not None
        output = client.model(params, public.x, buffers=client.buffers, context=client.context)
        return output.logits

    def why_impossible(self, message: Tree, samples: int) -> str:
        clients = message[CLIENTS].item()
        return "" if clients == 1 else f"logits of {clients:g} clients; expected those of 1"

    def fold(self, update: Tree, message: Tree, importance: Tensor) -> Tree:
        return message

    def shortfall(self, setup: Setup) -> str:
        return (
            ""
            if setup.participants > 1
            else "one client takes part in a round, and agrees with itself"
        )

    def absorb(self, server: ServerView, folded: Tree) -> Tree:
        if not folded:
            return server.state
        clients = folded[CLIENTS]
        mean = folded[LOGITS] / clients.clamp_min(1)
        return {
            LOGITS: torch.where(clients > 0, mean, server.state[LOGITS]),
            KNOWN: torch.maximum(server.state[KNOWN], clients.clamp_max(1)),
        }
