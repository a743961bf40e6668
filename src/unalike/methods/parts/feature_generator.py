"""FedGen: the server trains a generator of features with the clients' heads and sends it to all clients."""

from typing import Annotated, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from torch.func import grad_and_value

from unalike._utils import seeds
from unalike._utils.validated import validated
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.solvers import Adam
from unalike.core.tasks.task import CLASS_LOGITS
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView, Cohort, ServerView, StageSettings
from unalike.methods.part import part
from unalike.methods.parts.class_means import membership
from unalike.methods.roles import Objective, ServerStep
from unalike.methods.search_space import LogRange

BATCH_ROWS = 32
"""Batch size of generated features, on the server and on the clients."""
EPS = 1e-4
"""eps of the generator's Adam. Gradients far below it are rounding noise, which the usual 1e-8 would turn into full steps."""
MOMENTUM = 0.1
"""Momentum of the running statistics of the generator's batch norm."""


@validated
class FeatureGenerator(Objective, ServerStep):
    """G(eps, y) -> z: noise and a class, one hidden layer with batch norm and ReLU, a feature (FedGen, Zhu et al. 2021).

    On a client, local loss + ready decay^r (alpha CE(head(G(eps, y~)), y~) + beta KL(softmax head(G(eps_y, y)) || softmax f(x))),
    r being the round, y~ drawn by the server's label distribution, one eps for each class in the second term, its target
    constant. On the server, `steps` Adam steps of G per round on the loss of its teachers, the clients' heads.
    There is no term before G was trained (ready = 0). Steps = 0 or alpha = beta = 0 is FedAvg.

    G goes down, the counts of a client's labels come up. All clients draw the same numbers in the same step of a round; norms
    of G are in evaluation mode on clients. Its Adam is fresh in every round and has eps 1e-4 (1e-8 in public code). Where
    heads are private, G stays out of the loss.
    """

    needs = "updates"

    noise: PositiveInt = 512
    hidden: PositiveInt = 512
    lr: PositiveFloat = 0.005
    steps: NonNegativeInt = 20
    alpha: Annotated[NonNegativeFloat, LogRange(0.1, 100)] = 10.0
    beta: Annotated[NonNegativeFloat, LogRange(0.1, 100)] = 10.0
    needs_of_task: ClassVar[str] = CLASS_LOGITS
    decay: ClassVar[float]

    COUNTS: ClassVar[str] = "generator.counts"

    @property
    def needs_data(self) -> bool:
        return True

    def teach(self, logits: Tensor, y: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
        """The teachers' loss, from logits [K, B, C] of their heads, classes [B], label counts [K, C] and weights n_k / n [K]."""
        raise NotImplementedError

    def spread(self, eps: Tensor, z: Tensor) -> Tensor:
        """A term against features that do not depend on the noise; scalar."""
        return z.new_zeros(())

    def chances(self, counts: Tensor) -> Tensor:
        """The chance of each class to be drawn, up to a factor, from all counts [C]."""
        raise NotImplementedError

    def sample(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        """Noise [rows, noise]."""
        raise NotImplementedError

    def server_open(self, settings: StageSettings) -> Tree:
        features, classes = settings.model.head_size
        rng = seeds.generator(settings.seed, "generator.start")
        state = {
            "hidden.weight": _uniform(rng, self.hidden, self.noise + classes),
            "norm.weight": torch.ones(self.hidden),
            "norm.bias": torch.zeros(self.hidden),
            "out.weight": _uniform(rng, features, self.hidden),
            "out.bias": torch.zeros(features),
            "norm.mean": torch.zeros(self.hidden),
            "norm.var": torch.ones(self.hidden),
            "chances": torch.ones(classes),
            "ready": torch.zeros(()),
        }
        like = next(iter(settings.model.params.values()))
        return tree.map(lambda t: t.to(like), state)

    def broadcast(self, server: ServerView) -> Tree:
        return server.state

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        g = client.message
        model = client.model
        rng = seeds.generator(client.settings.seed, "generator.local", client.round, client.step)

        # the head learns features of classes that the client may not have
        y = self._classes(rng, g["chances"])
        z, _ = generate(g, self._noise(rng, BATCH_ROWS, g), y)
        cross_entropy = F.cross_entropy(model.head(client.params, z), y)

        # the model agrees with what the head says of a generated feature of the sample's class
        classes = torch.arange(len(g["chances"]), device=y.device)
        z, _ = generate(g, self._noise(rng, len(classes), g), classes)
        log_q = F.log_softmax(model.head(client.params, z), dim=1).detach()
        log_q = (batch.y[:, None] == classes).to(log_q.dtype) @ log_q
        log_p = F.log_softmax(client.out(batch).logits, dim=1)
        divergence = batch.mean((log_q.exp() * (log_q - log_p)).sum(1))

        fade = g["ready"] * self.decay**client.round
        return fade * (self.alpha * cross_entropy + self.beta * divergence)

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        _, classes = client.model.head_size
        counts = next(iter(client.params.values())).new_zeros(classes)
        for b in client.data.whole:
            counts = counts + membership(b, classes).to(counts.dtype).sum(0)
        return client.state, {self.COUNTS: counts}

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        heads = self._heads(server, cohort)
        if not (heads and self.steps):
            return update, server.state
        counts = cohort.message[self.COUNTS]
        state = server.state | {"chances": self.chances(counts.sum(0))}
        # float64, as Adam makes steps of equal size of gradients of any size, rounding noise included
        trained = self._train(
            tree.map(tree.exact, state),
            heads=tree.map(tree.exact, heads),
            model=server.settings.model,
            counts=tree.exact(counts),
            weights=tree.exact(cohort.sizes / cohort.sizes.sum()),
            rng=seeds.generator(server.settings.seed, "generator.server", server.round),
        )
        ready = {"ready": torch.ones_like(state["ready"])}
        return update, tree.map(lambda t, old: t.to(old), trained, state) | ready

    def _heads(self, server: ServerView, cohort: Cohort) -> Tree:
        """The clients' heads after training, [K, ...] each; empty where a parameter of the head is private."""
        model = server.settings.model
        head = {n: w for n, w in model.params.items() if model.in_head(n)}
        heads: Tree = {}
        for n, w in head.items():
            if not model.trainable(n):
                heads[n] = w.expand(len(cohort.ids), *w.shape)
        for n, u in cohort.update.items():
            if n in head:
                heads[n] = server.params[n] + u
        return heads if len(heads) == len(head) else {}

    def _train(
        self,
        state: Tree,
        heads: Tree,
        model: Model,
        counts: Tensor,
        weights: Tensor,
        rng: np.random.Generator,
    ) -> Tree:
        """The generator's state after its steps, from that before, as float64."""
        trained = {n: t for n, t in state.items() if n in TRAINED}
        solver = Adam(eps=EPS)
        solver_state = solver.init(trained)

        def objective(g: Tree, eps: Tensor, y: Tensor) -> tuple[Tensor, Tree]:
            z, norm = generate(state | g, eps, y, training=True)
            logits = torch.vmap(lambda head: model.head(head, z))(heads)
            return self.teach(logits, y, counts, weights) + self.spread(eps, z), norm

        # the norm's statistics move with every step, beside what the solver moves
        for _ in range(self.steps):
            y = self._classes(rng, state["chances"])
            eps = self._noise(rng, BATCH_ROWS, state)
            grads, (_, norm) = grad_and_value(objective, has_aux=True)(trained, eps, y)
            trained, solver_state = solver.step(trained, grads, solver_state, self.lr)
            state = state | tree.detach(norm)
        return state | tree.detach(trained)

    def _classes(self, rng: np.random.Generator, chances: Tensor) -> Tensor:
        """Classes [ROWS] with these chances."""
        edges = (chances / chances.sum()).cumsum(0)[:-1].contiguous()
        return torch.searchsorted(
            edges, torch.from_numpy(rng.random(BATCH_ROWS)).to(edges), right=True
        )

    def _noise(self, rng: np.random.Generator, rows: int, g: Tree) -> Tensor:
        return torch.from_numpy(self.sample(rng, rows)).to(g["out.bias"])


TRAINED = ("hidden.weight", "norm.weight", "norm.bias", "out.weight", "out.bias")


@part
class EnsembleGenerator(FeatureGenerator):
    """sum_k mean_b n_k(y) / n(y) CE(head_k(z), y) + exp(-mean_ij ||eps_i - eps_j||^2 |z_i - z_j|): FedGen as published.

    Distances are means over the dimensions, as in the authors' code; noise is Gaussian, classes that any client has are
    drawn alike, and the clients' terms fade by 0.98 a round (Zhu et al. 2021, eqs. 3 and 4).
    """

    decay: ClassVar[float] = 0.98

    def teach(self, logits: Tensor, y: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
        share = (counts / counts.sum(0).clamp_min(1))[:, y]
        labels = y.expand(len(logits), -1)[..., None]
        losses = -F.log_softmax(logits, dim=2).gather(2, labels)[..., 0]
        return (share * losses).mean(1).sum()

    def spread(self, eps: Tensor, z: Tensor) -> Tensor:
        eps_distances = (eps[:, None] - eps[None]).square().mean(2)
        z_distances = (z[:, None] - z[None]).abs().mean(2)
        return torch.exp(-(eps_distances * z_distances).mean())

    def chances(self, counts: Tensor) -> Tensor:
        return (counts > 0).to(counts.dtype)

    def sample(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        return rng.standard_normal((rows, self.noise))


@part
class AverageGenerator(FeatureGenerator):
    """CE(sum_k p_k head_k(z), y): FedGen as PFLlib has it, and as the FedSA and FedPake papers ran it.

    Uniform noise, classes drawn as often as they occur, no agreement of logits on real samples, no fading. PFLlib makes
    1000 steps a round: so does `fedgen(preset="pfllib")`.
    """

    alpha: Annotated[NonNegativeFloat, LogRange(0.1, 10)] = 1.0
    beta: NonNegativeFloat = 0.0
    decay: ClassVar[float] = 1.0

    def teach(self, logits: Tensor, y: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
        return F.cross_entropy(torch.tensordot(weights.to(logits.dtype), logits, dims=1), y)

    def chances(self, counts: Tensor) -> Tensor:
        return counts

    def sample(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        return rng.random((rows, self.noise))


def generate(g: Tree, eps: Tensor, y: Tensor, training: bool = False) -> tuple[Tensor, Tree]:
    """Features [B, D] of noise [B, noise] and classes [B], and the statistics of the norm after it."""
    one_hot = (y[:, None] == torch.arange(len(g["chances"]), device=y.device)).to(eps.dtype)
    # no bias in front of the norm: its gradient would be rounding noise, which Adam takes for a slope
    h = F.linear(torch.cat([eps, one_hot], dim=1), g["hidden.weight"])
    mean = h.mean(0) if training else g["norm.mean"]
    var = h.var(0, unbiased=False) if training else g["norm.var"]
    normal = (h - mean) * (var + 1e-5).rsqrt() * g["norm.weight"] + g["norm.bias"]
    z = F.linear(torch.relu(normal), g["out.weight"], g["out.bias"])
    if not training:
        return z, {}
    statistics = {"norm.mean": mean, "norm.var": var * len(h) / max(len(h) - 1, 1)}
    running = {n: g[n] + MOMENTUM * (t - g[n]) for n, t in statistics.items()}
    return z, running


def _uniform(rng: np.random.Generator, rows: int, columns: int) -> Tensor:
    """U(-1/sqrt(fan in), 1/sqrt(fan in)), as linear layers start."""
    weights = rng.uniform(-1, 1, (rows, columns)) / columns**0.5
    return torch.from_numpy(weights)
