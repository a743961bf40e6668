"""Distillation on samples of the server: from the ensemble of the clients (FedDF), and of models drawn between them (FedBE)."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from unalike._utils import seeds
from unalike._utils.validated import validated
from unalike.core import tree
from unalike.core.inputs import take_rows
from unalike.core.tasks.task import CLASSES
from unalike.core.types import Tree
from unalike.core.views import Cohort, ServerView
from unalike.methods.method import alias
from unalike.methods.part import part
from unalike.methods.parts.proxy_learning import model_logits, seed_of_round
from unalike.methods.roles import ServerStep
from unalike.methods.search_space import LogRange


@validated
class Distillation(ServerStep):
    """The combined model learns KL(p || softmax(z / T)), p the probabilities of an ensemble for the server's samples.

    Adam with a cosine schedule makes `steps` steps on batches of `batch_size` samples, drawn without labels. The student trains,
    and its buffers stay those of the average. steps = 0 changes nothing.
    """

    needs = "updates"

    steps: NonNegativeInt = 100
    lr: Annotated[PositiveFloat, LogRange(1e-5, 1e-2)] = 1e-3
    batch_size: PositiveInt = 128
    temperature: PositiveFloat = 1.0
    needs_of_task: ClassVar[str] = CLASSES
    needs_proxy: ClassVar[bool] = True
    rank: ClassVar[int] = ServerStep.DISTILLATION

    @abstractmethod
    def ensemble(self, server: ServerView, update: Tree, cohort: Cohort) -> Tensor:
        """log p for all the server's samples, [B, C]."""

    @property
    def averaged_steps(self) -> int:
        """The number of last steps whose students are averaged."""
        return 1

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        if not (update and self.steps):
            return update, server.state
        combined = tree.add(server.params, update)
        student = tree.map(lambda w: w.detach().clone().requires_grad_(), combined)
        # the ensemble does not change, so it predicts all samples once
        with torch.no_grad():
            log_p = self.ensemble(server, update, cohort)
        optimizer = torch.optim.Adam(student.values(), self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        x = server.proxy.x
        y = server.proxy.y
        buffers = server.settings.model.buffers
        size = min(self.batch_size, len(y))
        mean = combined
        with seeds.isolated(seed_of_round(server), y.device), torch.enable_grad():
            for number in range(self.steps):
                rows = torch.randperm(len(y))[:size].to(y.device)
                z = model_logits(server, student, take_rows(x, rows), buffers, training=True)
                log_q = _log_probabilities(z / self.temperature)
                loss = F.kl_div(log_q, log_p[rows], reduction="batchmean", log_target=True)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                students = number + 1 - (self.steps - self.averaged_steps)
                if students > 0:
                    mean = _with_one_more(mean, tree.detach(student), students)
        return tree.sub(mean, server.params), server.state


@alias(
    "feddf",
    "The average learns from the ensemble of the clients on samples of the server (Lin et al. 2020).",
)
@part
class EnsembleDistillation(Distillation):
    """The combined model learns KL(softmax(mean_k z_k / T) || softmax(z / T)), z_k the clients' logits on the server's samples.

    FedDF (Lin et al. 2020): Adam with a cosine schedule, `steps` batches of `batch_size` samples drawn without labels. The
    clients predict in evaluation mode with their own buffers; the student trains, and its buffers stay those of the average.
    The paper trains up to 10 000 steps and stops by a validation set. steps = 0 changes nothing. The authors' code by default
    takes the mean of the divergences from each client in the place of that from their mean logits (`update_student_scheme`), and
    keeps the student that was best on the validation set.
    """

    def ensemble(self, server: ServerView, update: Tree, cohort: Cohort) -> Tensor:
        logits = [_predicted(server, u, buffers) for u, buffers in _clients(cohort)]
        return _log_probabilities(torch.stack(logits).mean(0) / self.temperature)


@alias(
    "fedbe",
    "The average learns from the clients and from models drawn between them (Chen and Chao 2021).",
)
@part
class BayesianEnsemble(Distillation):
    """The combined model learns KL(mean_m softmax(z_m / T) || softmax(z / T)), m in an ensemble of drawn models (FedBE).

    The ensemble is the clients, their mean, and `samples` models that are drawn anew in each round (Chen and Chao 2021): "gaussian"
    from N(w, diag s^2), w the combined model and s^2 = sum_k p_k (w_k - mean)^2 in each entry; "dirichlet" sum_k a_k w_k with
    a ~ Dirichlet(K p); p are the clients' shares of samples. The result is the mean of the students after each of the last half
    of the steps (stochastic weight averaging, in the paper under a cyclic learning rate); the steps are those of `feddf`. Clients
    predict with their buffers, all others with the mean ones. steps = 0 changes nothing.

    The authors' code divides the update of each tensor by its length before it takes mean and variance, multiplies the draw by the
    mean length and the deviation by 0.1, draws a with equal expectations, and sharpens the ensemble to p^2.
    """

    samples: NonNegativeInt = 10
    drawn: Literal["gaussian", "dirichlet"] = "gaussian"

    @property
    def averaged_steps(self) -> int:
        return (self.steps + 1) // 2

    def ensemble(self, server: ServerView, update: Tree, cohort: Cohort) -> Tensor:
        shares = cohort.sizes / cohort.sizes.sum()
        rng = np.random.default_rng(seed_of_round(server))
        buffers = tree.map(lambda b: _mean_buffer(b, shares), cohort.stacked.buffers)
        members = [*_clients(cohort), (update, buffers)]
        for _ in range(self.samples):
            members.append((DRAWS[self.drawn](cohort.update, update, shares, rng), buffers))
        logits = [_predicted(server, u, of_member) for u, of_member in members]
        log_p = [_log_probabilities(z / self.temperature) for z in logits]
        return torch.stack(log_p).logsumexp(0) - math.log(len(members))


def _gaussian(stacked: Tree, mean: Tree, shares: Tensor, rng: np.random.Generator) -> Tree:
    """mean + s e, e standard normal, s^2 the variance of the stacked updates [K, ...] in each entry."""
    center = tree.weighted_sum(stacked, shares)
    squares = tree.map(lambda u, c: (u - c).square(), stacked, center)
    drawn = {}
    for name, variance in tree.weighted_sum(squares, shares).items():
        noise = rng.standard_normal(tuple(variance.shape), dtype=np.float32)
        drawn[name] = mean[name] + variance.sqrt() * torch.from_numpy(noise).to(variance)
    return drawn


def _dirichlet(stacked: Tree, mean: Tree, shares: Tensor, rng: np.random.Generator) -> Tree:
    """sum_k a_k u_k with weights a of sum 1 and the expectations `shares` [K]."""
    a = rng.dirichlet(len(shares) * shares.numpy(force=True)).astype(np.float32)
    return tree.weighted_sum(stacked, torch.from_numpy(a).to(shares))


DRAWS: dict[str, Callable[[Tree, Tree, Tensor, np.random.Generator], Tree]] = {
    "gaussian": _gaussian,
    "dirichlet": _dirichlet,
}
"""Name of a distribution -> a draw of one update, from the clients' updates [K, ...], the combined one, and shares [K]."""


def _clients(cohort: Cohort) -> Iterator[tuple[Tree, Tree]]:
    """Each client's update and buffers."""
    for k in range(len(cohort.ids)):
        yield tree.row(cohort.update, k), tree.row(cohort.stacked.buffers, k)


def _predicted(server: ServerView, update: Tree, buffers: Tree) -> Tensor:
    """Logits for all the server's samples, in evaluation mode."""
    params = tree.add(server.params, update)
    buffers = server.settings.model.buffers | buffers
    return model_logits(server, params, server.proxy.x, buffers, training=False)


def _mean_buffer(stacked: Tensor, shares: Tensor) -> Tensor:
    """The weighted mean of a buffer [K, ...]; the maximum of one of integers."""
    if not stacked.is_floating_point():
        return stacked.amax(0)
    return tree.combined(stacked, shares.to(stacked))


def _with_one_more(mean: Tree, student: Tree, count: int) -> Tree:
    """The mean of `count` students, the last of which is new; of one it is that one, bit by bit."""
    return tree.map(lambda m, w: torch.lerp(m, w, 1 / count), mean, student)


def _log_probabilities(logits: Tensor) -> Tensor:
    """Over the classes; a single logit is that of the second of two."""
    z = logits.reshape(len(logits), -1)
    if z.shape[1] == 1:
        z = F.pad(z, (1, 0))
    return F.log_softmax(z, dim=1)
