"""pFedHN: a network on the server makes each client's model from a vector that describes the client."""

from itertools import pairwise
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.func import grad

from unalike._utils import seeds
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.types import Tree
from unalike.core.views import ClientView, Cohort, ServerView, StageSettings
from unalike.methods.method import alias
from unalike.methods.part import part
from unalike.methods.roles import Personalizer, ServerStep
from unalike.methods.search_space import LogRange

CHANGE = "change of "
"""Prefix of the names of a client's parameters in its message."""
VECTOR = "vector of "
WEIGHT = "weight of "
BIAS = "bias of "
"""Prefixes in the server state: of a client's number, and of the parameter that the last layer makes."""


@alias(
    "pfedhn",
    "A network on the server makes each client's model from a vector of the client (Shamsian et al. 2021).",
)
@part
class Hypernetwork(Personalizer, ServerStep):
    """phi <- phi + lr sum_k J_k^T (theta~_k - theta_k), theta_k = h(e_k; phi), theta~_k after local training (pFedHN).

    Shamsian et al. 2021, algorithm 1, which asks one client a round. J_k is the derivative of theta_k in phi, and the client's
    vector e_k, of `size` numbers, moves by the same rule. h has `layers` hidden layers of `width` units with ReLU, and for each
    parameter of the model a linear layer W f + b. Clients receive theta_k, train it, and are evaluated with what the server would
    send them now; they keep nothing but buffers. The server keeps `width` + 1 times the model.

    W starts at 0 and b at the initial model, so that all clients begin with that; the authors draw both at random. In the first
    round b moves as the model of `uniform` would with K lr times the update. The authors' code has vectors of 1 + N/4 numbers, and
    steps by SGD with lr = 0.01, momentum 0.9 (which makes 0.1 in the long run, the default here), weight decay 1e-3, and gradients
    clipped to the norm 50.
    """

    needs = "updates"
    rank: ClassVar[int] = ServerStep.DYNAMIC
    predicts_as_received = True

    lr: Annotated[PositiveFloat, LogRange(1e-3, 1)] = 0.1
    size: PositiveInt = 8
    width: PositiveInt = 100
    layers: PositiveInt = 3

    def server_init(self, params: Tree) -> Tree:
        last_layer = {}
        for name, w in params.items():
            last_layer[WEIGHT + name] = w.new_zeros(*w.shape, self.width)
            last_layer[BIAS + name] = w
        return last_layer

    def server_open(self, settings: StageSettings) -> Tree:
        like = next(iter(settings.model.params.values()))
        hidden = {}
        sizes = [self.size] + [self.width] * self.layers
        with seeds.isolated(seeds.number(settings.seed, self.name)):
            for number, (before, after) in enumerate(pairwise(sizes)):
                layer = nn.Linear(before, after)
                hidden[f"hidden.{number}.weight"] = layer.weight.detach().to(like)
                hidden[f"hidden.{number}.bias"] = layer.bias.detach().to(like)
        return hidden

    def address(self, server: ServerView, client: int) -> Tree:
        vector = self._vector(server, client)
        return tree.row(self._models(server.state, vector[None]), 0)

    def shared(self, name: str, model: Model) -> bool:
        return False

    def begin(self, client: ClientView) -> tuple[Tree, Tree]:
        return client.params | client.message, client.state

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        return client.state, {CHANGE + n: client.params[n] - w for n, w in client.message.items()}

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        changes = tree.under(cohort.message, CHANGE)
        phi = {n: t for n, t in server.state.items() if not n.startswith(VECTOR)}
        vectors = torch.stack([self._vector(server, client) for client in cohort.ids])

        def products(phi: Tree, vectors: Tensor) -> Tensor:
            return tree.dot(self._models(phi, vectors), changes)

        along_phi, along_vectors = grad(products, argnums=(0, 1))(phi, vectors)
        state = tree.map(lambda t, g: t + self.lr * g, phi, along_phi)
        moved = vectors + self.lr * along_vectors
        return update, server.state | state | {
            VECTOR + str(client): vector for client, vector in zip(cohort.ids, moved)
        }

    def personal(self, model: Model, params: Tree, state: Tree) -> Tree:
        return params | tree.shared(state, params)

    def _vector(self, server: ServerView, client: int) -> Tensor:
        """e_k of a client, [E]; before its first participation a random one."""
        if VECTOR + str(client) in server.state:
            return server.state[VECTOR + str(client)]
        seed = seeds.number(server.settings.seed, self.name, client)
        vector = torch.randn(self.size, generator=torch.Generator().manual_seed(seed))
        return vector.to(next(iter(server.state.values())))

    def _models(self, phi: Tree, vectors: Tensor) -> Tree:
        """The models that h makes of vectors [K, E], [K, *shape] each."""
        features = vectors
        for number in range(self.layers):
            weight = phi[f"hidden.{number}.weight"]
            features = F.relu(F.linear(features, weight, phi[f"hidden.{number}.bias"]))
        models = {}
        for name, weights in tree.under(phi, WEIGHT).items():
            made = torch.tensordot(features, weights, dims=([1], [weights.dim() - 1]))
            models[name] = made + phi[BIAS + name]
        return models
