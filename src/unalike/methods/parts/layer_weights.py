"""pFedLA: for each client a network on the server makes the weights with which all clients' models are mixed, layer by layer."""

from itertools import pairwise
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.func import grad

from unalike._utils import seeds
from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import Cohort, ServerView
from unalike.methods.part import part
from unalike.methods.parts.attentive_models import INITIAL, MODEL, ClientModels
from unalike.methods.search_space import LogRange

NETWORK = "network of "
"""Prefix of a client's number in the server state: its vector and its hidden layers."""
OUTPUTS = "outputs of "
"""Prefix of two numbers: the weight [L, W] and the bias [L] with which the first client's network weighs the second's layers."""
HIDDEN_LAYERS = 3
TINY = 1e-12
"""Least sum by which weights are divided."""


class Mixing(NamedTuple):
    """The models of J clients, and a network that mixes them for one of these, the client in row `own`.

    The network has a vector [E], hidden layers, and outputs for all J clients, weight [J, L, W] and bias [J, L]. Models are
    [J, *shape] each, layers are names of parameters.
    """

    network: Tree
    outputs: Tree
    models: Tree
    layers: list[list[str]]
    own: int

    def mixture(self) -> Tree:
        """sum_j a_j w_j in each layer."""
        features = self.network["vector"]
        for number in range(HIDDEN_LAYERS):
            weight = self.network[f"hidden.{number}.weight"]
            features = F.relu(F.linear(features, weight, self.network[f"hidden.{number}.bias"]))
        scores = F.relu(self.outputs["weight"] @ features + self.outputs["bias"])
        total = scores.sum(0)
        own = torch.zeros_like(scores)
        own[self.own] = 1
        weights = torch.where(total > 0, scores / total.clamp_min(TINY), own)
        mixed = {}
        for number, names in enumerate(self.layers):
            for name in names:
                mixed[name] = torch.tensordot(weights[:, number], self.models[name], 1)
        return mixed


@part
class LayerWeights(ClientModels):
    """Client k starts at w_k = sum_j a_kj w_j, a_kj [L] a weight for each layer (pFedLA, Ma et al. 2022, algorithm 1).

    w_j is the model that client j sent last. The weights are a_kj = relu(O_kj f_k + b_kj), divided by their sum over j, f_k the
    output of k's own network of three hidden layers of `width` units with ReLU, for a vector of `size` numbers. After training to
    w~_k, vector, hidden layers and outputs phi_k of this client move: phi_k <- phi_k + lr (d w_k / d phi_k)^T (w~_k - w_k).
    Clients keep their models (`private(select='all')`, as in `pfedla`) and are evaluated with them. Where all weights of a layer
    are 0, it is the client's own. A client alone is `local_only`; lr = 0 keeps the weights as drawn, about equal for all.

    Layers are those of `lws`, which end at a `bias`. As in the code of FL-bench, O_kj is uniform in [0, 1] and b_kj = 0 at first;
    that code weighs each tensor by itself, and adds the change w~_k - w_k to the model that k sent before, so that what it stores
    is no model that was trained. HeurpFedLA, which leaves the layers with the largest own weights at the client, is not here.
    """

    lr: Annotated[NonNegativeFloat, LogRange(1e-4, 1)] = 5e-3
    size: PositiveInt = 100
    width: PositiveInt = 100

    def address(self, server: ServerView, client: int) -> Tree:
        return self._mixing(server, client).mixture()

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        sent = tree.under(cohort.message, MODEL)
        moved: dict[str, Tree] = {}
        for row, client in enumerate(cohort.ids):
            before = self._mixing(server, client)
            change = tree.sub(tree.row(sent, row), before.mixture())

            def product(
                network: Tree, outputs: Tree, before: Mixing = before, change: Tree = change
            ) -> Tensor:
                mixing = before._replace(network=network, outputs=outputs)
                return tree.dot(mixing.mixture(), change)

            slopes = grad(product, argnums=(0, 1))
            of_network, of_outputs = slopes(before.network, before.outputs)
            moved[NETWORK + str(client)] = self._step(before.network, of_network)
            outputs = self._step(before.outputs, of_outputs)
            for place, other in enumerate(self._known(server, client)):
                moved[f"{OUTPUTS}{client} {other}"] = tree.row(outputs, place)
        update, models = super().step(server, update, cohort)
        return update, models | tree.pack(moved)

    def _step(self, values: Tree, slopes: Tree) -> Tree:
        return tree.map(lambda t, g: t + self.lr * g, values, slopes)

    def _known(self, server: ServerView, client: int) -> list[int]:
        """The clients that sent a model, and this one."""
        senders = {int(name) for name in tree.unpack(server.state) if name.isdigit()}
        return sorted(senders | {client})

    def _mixing(self, server: ServerView, client: int) -> Mixing:
        groups = tree.unpack(server.state)
        initial = groups[INITIAL]
        layers = tree.layers(initial)
        known = self._known(server, client)
        outputs = []
        for other in known:
            drawn = groups.get(f"{OUTPUTS}{client} {other}")
            outputs.append(drawn or self._drawn_outputs(server, client, other, len(layers)))
        return Mixing(
            network=groups.get(NETWORK + str(client)) or self._drawn_network(server, client),
            outputs=tree.stack(outputs),
            models=tree.stack([groups.get(str(other), initial) for other in known]),
            layers=layers,
            own=known.index(client),
        )

    def _drawn_network(self, server: ServerView, client: int) -> Tree:
        like = next(iter(server.state.values()))
        sizes = [self.size] + [self.width] * HIDDEN_LAYERS
        network = {}
        with seeds.isolated(seeds.number(server.settings.seed, self.name, client)):
            network["vector"] = torch.randn(self.size).to(like)
            for number, (before, after) in enumerate(pairwise(sizes)):
                layer = nn.Linear(before, after)
                network[f"hidden.{number}.weight"] = layer.weight.detach().to(like)
                network[f"hidden.{number}.bias"] = layer.bias.detach().to(like)
        return network

    def _drawn_outputs(self, server: ServerView, client: int, other: int, layers: int) -> Tree:
        like = next(iter(server.state.values()))
        number = seeds.number(server.settings.seed, self.name, client, other)
        generator = torch.Generator().manual_seed(number)
        weight = torch.rand(layers, self.width, generator=generator).to(like)
        return {"weight": weight, "bias": weight.new_zeros(layers)}
