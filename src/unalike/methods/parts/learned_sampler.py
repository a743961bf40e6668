"""A sampler that learns from rewards whom to ask: a double deep Q-network on compressed models of the clients."""

from typing import Annotated, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Tree
from unalike.methods.part import part
from unalike.methods.sampler import Candidates, Choice, CohortOutcome, Sampler
from unalike.methods.search_space import LinearRange, LogRange

LARGEST_SENT = 1e18
"""The largest number in an update from which is learned: its square is a float32."""
BASIS = "basis"
"""State [C, P]: the directions to which updates are compressed; it is missing before the first round with two updates."""
MODELS = "models"
"""State [N + 1, C]: the compressed model of each client after its last round, and that of the server."""
LOSS = "loss"
"""State [N]: a client's mean training loss in its last round; NaN before its first one."""
SIZES = "sizes"
"""State [N]: the training samples of the clients of which an update has come."""
ONLINE, TARGET = "online/", "target/"
"""Prefixes in the state of the two networks: that which learns, and the copy of it that judges."""
BEFORE, AFTER, ASKED, REWARD = "memory/before", "memory/after", "memory/asked", "memory/reward"
"""State [M, ...]: what the network learns from, the newest round last."""


@part
class Favor(Sampler):
    """A network learns which clients to ask from how the loss falls (FAVOR, Wang et al. 2020, section IV).

    State s: the models of all N clients and of the server, each compressed to C numbers by the principal components of the first
    round's updates. Q(s, k), a network with one hidden layer, is the expected return of asking client k. A round asks those with
    the largest Q; each place goes to a client drawn by chance with probability max(least_exploration, exploration * decay^r). The
    first round asks all clients that are there, as in the paper. Afterwards, for every client k that was asked,

        r = 64^(w - target) - 1,   w = exp(-sum_k n_k F_k / sum_k n_k)
        y = r + discount * Q'(s', argmax_a Q(s', a))          (double DQN, van Hasselt et al. 2016)

    and `updates` steps of gradient descent make the Huber loss of Q(s, k) - y over the last `memory` rounds smaller. Q' is a copy
    of Q, renewed in every tenth round.

    Biased towards the clients that it prefers. exploration = least_exploration = 1 is `uniform_cohort` after the first round.
    Clients that lie about their losses or models steer it. The server keeps C numbers for each parameter of the model.

    In the paper w is the accuracy on samples of the server, which a sampler does not have: here it is the geometric mean of the
    probability of the right label, by the last training losses F_k of all clients, with n_k samples. Where the paper is silent, or
    trains beforehand: the network learns in the run itself, from the whole memory; the clients of a round share its reward; Q
    starts at 0, with the same hidden weights in every run. The server's compressed model is the sum of the mean updates, by size:
    exact where this mean is the method's server step.
    """

    components: PositiveInt = 10
    hidden: PositiveInt = 64
    target: Annotated[float, Field(gt=0, le=1)] = 0.99
    discount: Annotated[float, Field(ge=0, lt=1)] = 0.9
    exploration: Annotated[float, Field(ge=0, le=1)] = 0.9
    decay: Annotated[float, Field(gt=0, le=1), LinearRange(0.8, 1)] = 0.95
    least_exploration: Annotated[float, Field(ge=0, le=1)] = 0.1
    memory: PositiveInt = 32
    updates: PositiveInt = 5
    lr: Annotated[PositiveFloat, LogRange(1e-3, 0.1)] = 0.01

    needs = "updates"
    decides_by: ClassVar[str] = "their models and losses"
    reads_losses: ClassVar[bool] = True
    REWARD_BASE: ClassVar[float] = 64.0
    ROUNDS_OF_TARGET: ClassVar[int] = 10

    def choice_init(self, clients: int) -> Tree:
        models = torch.zeros(clients + 1, self.components)
        network = new_network(models.numel(), self.hidden, clients)
        state = {
            MODELS: models,
            LOSS: torch.full((clients,), torch.nan),
            SIZES: torch.zeros(clients),
        }
        state |= {
            BEFORE: torch.zeros(0, *models.shape),
            AFTER: torch.zeros(0, *models.shape),
            ASKED: torch.zeros(0, clients),
            REWARD: torch.zeros(0),
        }
        return state | tree.prefixed(ONLINE, network) | tree.prefixed(TARGET, network)

    def choose(self, candidates: Candidates, state: Tree) -> Choice:
        if BASIS not in state:
            clients = [*candidates.ids]
            return Choice(clients, dict.fromkeys(clients, "first round"))
        ids = candidates.numbers
        rng = candidates.generator

        # Chance decides for each place of the cohort whether it goes to the network's choice.
        share = max(self.least_exploration, self.exploration * self.decay**candidates.round)
        by_chance = rng.binomial(candidates.size, share)

        # A shuffle before the stable sort breaks ties by chance; those who are left are in random order.
        values = values_of(tree.under(state, ONLINE), state[MODELS]).numpy(force=True)[ids]
        shuffled = rng.permutation(len(ids))
        ranked = shuffled[np.argsort(-values[shuffled], kind="stable")]
        best, others = np.split(ranked, [candidates.size - by_chance])
        explored = rng.permutation(others)[:by_chance]

        reasons = dict.fromkeys(ids[explored].tolist(), "by chance")
        for place in best.tolist():
            reasons[int(ids[place])] = f"value {values[place]:.3g}"
        return Choice(sorted(reasons), reasons)

    def observe(self, outcome: CohortOutcome, state: Tree) -> Tree:
        if not len(outcome.ids):
            return state
        rows = [tree.matrix(update).float().cpu() for update in outcome.updates.values()]
        updates = torch.cat(rows, dim=1)
        # what compression sends may be as large as numbers go, and its decoded update small
        if not updates.abs().max() <= LARGEST_SENT:
            return state
        is_first = BASIS not in state
        if is_first:
            basis = principal_directions(updates, self.components)
            if not len(basis):
                return state
            state = state | {BASIS: basis}

        ids = torch.from_numpy(outcome.ids)
        before = state[MODELS]
        state = state | {
            MODELS: moved(before, ids, updates @ state[BASIS].T, torch.from_numpy(outcome.sizes)),
            LOSS: state[LOSS].index_copy(0, ids, torch.from_numpy(outcome.losses).float()),
            SIZES: state[SIZES].index_copy(0, ids, torch.from_numpy(outcome.sizes).float()),
        }
        # the network did not choose the first cohort, and its state before it says nothing
        if is_first:
            return state
        state = self._remembered(before, ids, state)
        return self._taught(outcome.round, state)

    def reward(self, losses: Tensor, sizes: Tensor) -> Tensor:
        """64^(w - target) - 1 from the last losses and the samples of all clients of which an update has come."""
        known = losses.isfinite()
        mean = (sizes * losses)[known].sum() / sizes[known].sum()
        return self.REWARD_BASE ** ((-mean.clamp(min=0)).exp() - self.target) - 1

    def _remembered(self, before: Tensor, ids: Tensor, state: Tree) -> Tree:
        """The state with this round in its memory."""
        asked = torch.zeros(len(state[LOSS])).index_fill(0, ids, 1.0)
        newest = {
            BEFORE: before,
            AFTER: state[MODELS],
            ASKED: asked,
            REWARD: self.reward(state[LOSS], state[SIZES]),
        }
        memory = {}
        for name, value in newest.items():
            memory[name] = torch.cat([state[name], value[None]])[-self.memory :]
        return state | memory

    def _taught(self, round: int, state: Tree) -> Tree:
        """The state after the network has learned from its memory."""
        network = tree.under(state, ONLINE)
        target = tree.under(state, TARGET)
        for _ in range(self.updates):
            returns = self.returns(network, target, state)
            network = descended(network, state[BEFORE], state[ASKED], returns, self.lr)
        if (round + 1) % self.ROUNDS_OF_TARGET == 0:
            target = network
        return state | tree.prefixed(ONLINE, network) | tree.prefixed(TARGET, target)

    def returns(self, network: Tree, target: Tree, state: Tree) -> Tensor:
        """y of each round in the memory, [M]: the network that learns chooses the next client, its copy says its value."""
        best = values_of(network, state[AFTER]).argmax(1, keepdim=True)
        of_best = values_of(target, state[AFTER]).gather(1, best)
        return state[REWARD] + self.discount * of_best[:, 0]


def new_network(inputs: int, hidden: int, outputs: int) -> Tree:
    """Weights of a network with one hidden layer, whose outputs are 0 for every input."""
    normal = torch.randn(hidden, inputs, generator=torch.Generator().manual_seed(0))
    return {
        "hidden": normal / inputs**0.5,
        "hidden_bias": torch.zeros(hidden),
        "output": torch.zeros(outputs, hidden),
        "output_bias": torch.zeros(outputs),
    }


def values_of(network: Tree, models: Tensor) -> Tensor:
    """Q(s, k) of every client, [..., N], from the compressed models [..., N + 1, C]."""
    hidden = F.linear(models.flatten(-2), network["hidden"], network["hidden_bias"]).relu()
    return F.linear(hidden, network["output"], network["output_bias"])


def descended(network: Tree, models: Tensor, asked: Tensor, returns: Tensor, lr: float) -> Tree:
    """The network after a step of gradient descent on the mean Huber loss of Q(s, k) - y over the clients that were asked."""
    with torch.enable_grad():
        leaves = {name: weight.detach().requires_grad_() for name, weight in network.items()}
        errors = F.smooth_l1_loss(
            values_of(leaves, models), returns[:, None].expand_as(asked), reduction="none"
        )
        loss = (asked * errors).sum() / asked.sum()
        grads = torch.autograd.grad(loss, [*leaves.values()])
    steps = dict(zip(network, grads))
    return {name: weight - lr * steps[name] for name, weight in network.items()}


def principal_directions(updates: Tensor, count: int) -> Tensor:
    """The first principal directions of updates [K, P] over their standard deviation along the first one, [C, P].

    Rows of zeros stand for those beyond the K - 1 that there are. None, [0, P], where the updates do not differ.
    """
    centered = updates - updates.mean(0)
    _, sizes, directions = torch.linalg.svd(centered, full_matrices=False)
    if len(updates) < 2 or not sizes[0]:
        return updates[:0]
    directions = directions[:count][sizes[:count] > sizes[0] * torch.finfo(sizes.dtype).eps]
    # the sign of a direction is free: the largest entry of each is positive
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    directions = directions * largest.sign() * len(updates) ** 0.5 / sizes[0]
    return F.pad(directions, (0, 0, 0, count - len(directions)))


def moved(models: Tensor, ids: Tensor, updates: Tensor, sizes: Tensor) -> Tensor:
    """The compressed models [N + 1, C] after a round with these compressed updates [K, C]."""
    server = models[-1]
    weights = (sizes / sizes.sum()).to(updates)
    moved_models = models.index_copy(0, ids, server + updates)
    moved_models[-1] = server + weights @ updates
    return moved_models
