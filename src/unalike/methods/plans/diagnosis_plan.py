"""The plan that asks clients for the numbers of a diagnosis, and trains FedAvg meanwhile."""

from collections.abc import Generator, Iterable
from typing import ClassVar

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt
from torch import Tensor

from unalike._utils.seeds import generator
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.tasks.task import CLASSES, Task
from unalike.core.types import Tree
from unalike.methods.client_query import ClientQuery, QueryInputs, client_query
from unalike.methods.method import Method
from unalike.methods.plan import Answers, PlanInputs, PlanSteps, QueryStep, Stage
from unalike.methods.plans.histograms import (
    BINS,
    ClassCounts,
    Histograms,
    Magnitudes,
    Of,
    Ranges,
    magnitude_edges,
)
from unalike.methods.plans.staged_plan import StagedPlan, of_samples_alone, staged_plan

FOLDS = 4
"""Number of parts of each client's samples with a gradient each; they tell differences between clients from noise."""
MAX_SAMPLES_PER_FOLD = 128
"""Largest number of samples in such a part."""


@client_query
class Gradients(ClientQuery):
    """`parts` [4, P]: the gradients of the mean loss over four random parts of the training samples, 128 samples each at most."""

    name: ClassVar[str] = "gradients"

    seed: NonNegativeInt = 0

    def answer(self, inputs: QueryInputs) -> Tree:
        model = inputs.model
        params = inputs.params
        if not inputs.batches:
            trained = [w for n, w in params.items() if model.trainable(n)]
            return {"parts": torch.zeros(FOLDS, sum(w.numel() for w in trained))}
        x = torch.cat([b.x for b in inputs.batches])
        y = torch.cat([b.y for b in inputs.batches])
        order = generator(self.seed, "gradient parts").permutation(len(y))
        parts = [
            gradient(model, params, inputs.buffers, inputs.task, x[rows], y[rows])
            for rows in folds(order)
        ]
        return {"parts": torch.stack(parts).float().cpu()}


def folds(order: np.ndarray) -> Iterable[Tensor]:
    """Samples in a random order [n] as parts; fewer samples than parts are in several of them."""
    few = order[: FOLDS * MAX_SAMPLES_PER_FOLD]
    enough = np.resize(few, max(len(few), FOLDS))
    return [torch.from_numpy(part) for part in np.array_split(enough, FOLDS)]


def gradient(model: Model, params: Tree, buffers: Tree, task: Task, x: Tensor, y: Tensor) -> Tensor:
    """The gradient [P] of the mean loss by all parameters that train, in evaluation mode."""
    leaves = {n: w.detach().clone().requires_grad_(model.trainable(n)) for n, w in params.items()}
    trained = [w for w in leaves.values() if w.requires_grad]
    with torch.enable_grad():
        loss = task.loss(model(leaves, x, buffers=buffers).logits, y)
        grads = torch.autograd.grad(loss, trained, allow_unused=True)
    pieces = []
    for w, g in zip(trained, grads):
        pieces.append((torch.zeros_like(w) if g is None else g).flatten())
    return torch.cat(pieces)


LABEL_CLASSES = 10
"""Number of classes that the labels of a regression are cut into, with about as many samples each."""
TAIL_SHARE = 0.001
"""The share of the samples on either side that may lie beyond the ranges, where it counts in the outermost ones."""


@staged_plan
class DiagnosisPlan(StagedPlan):
    """Measure how clients differ from what they count, then train FedAvg for the `rounds` of the run.

    Every client counts its training samples by class, and by class and range along 16 random directions of its inputs; the server
    chooses the ranges from coarser counts. With rounds it also sends the gradients of four parts of its samples at the first and at
    the last model. The server records the inner products of the updates. The diagnosis follows from these numbers alone
    (docs/how_to/diagnose.md).

    `noise` is the standard deviation of normal noise on every count, drawn at the client; updates and gradients carry none. With
    noise = 0 the model is that of FedAvg. Source: an addition of this library.
    """

    name: ClassVar[str] = "diagnosis"
    needs_products: ClassVar[bool] = True
    useful_untrained: ClassVar[bool] = True

    noise: NonNegativeFloat = 0.0

    def stages(self, plan_inputs: PlanInputs) -> PlanSteps:
        of_samples_alone(self, plan_inputs.model)
        seed = plan_inputs.seed
        noise = self.noise
        classes = _classes(plan_inputs)

        # labels that are numbers become classes: tenths of the samples of all clients
        edges = torch.zeros(0)
        if not plan_inputs.task.offers(CLASSES):
            low, high = yield from self._agree_on_ranges("labels", plan_inputs)
            query = Histograms("labels", classes=1, seed=seed, noise=noise)
            labels = yield _step("label-ranges", query, Ranges(low, high, edges))
            edges = quantiles(_sum_of(labels, noise)[0], _edges(low, high)[0])

        low, high = yield from self._agree_on_ranges("features", plan_inputs)
        ranges = Ranges(low, high, edges)
        yield _step("classes", ClassCounts(classes, noise), ranges)
        query = Histograms("features", classes=classes, seed=seed, noise=noise)
        yield _step("features", query, ranges)
        if not plan_inputs.rounds:
            yield Stage("train", Method(), 0)
            return
        yield QueryStep("first-gradients", Gradients(seed))
        states = yield Stage("train", Method(), plan_inputs.rounds)
        yield QueryStep("last-gradients", Gradients(seed), states["all"])

    def _agree_on_ranges(
        self, of: Of, plan_inputs: PlanInputs
    ) -> Generator[QueryStep, Answers, tuple[Tensor, Tensor]]:
        """The ends of ranges that hold nearly all samples, [R] each: from magnitudes, then once more from ranges within them."""
        seed = plan_inputs.seed
        noise = self.noise
        coarse = yield QueryStep(f"{of}-magnitudes", Magnitudes(of, seed, noise))
        low, high = spanned(_sum_of(coarse, noise), magnitude_edges())
        query = Histograms(of, classes=1, seed=seed, noise=noise)
        finer = yield _step(f"{of}-spans", query, Ranges(low, high, edges=torch.zeros(0)))
        return spanned(_sum_of(finer, noise), _edges(low, high))


def _step(name: str, query: ClassCounts | Histograms, ranges: Ranges) -> QueryStep:
    return QueryStep(name, query, model=Model(ranges))


def _classes(plan_inputs: PlanInputs) -> int:
    """The number of classes that are counted: the outputs of the model, true and false, or tenths of the labels."""
    task = plan_inputs.task
    if not task.offers(CLASSES):
        return LABEL_CLASSES
    if task.class_names:
        return len(task.class_names)
    _, classes = plan_inputs.model.head_size
    return classes


def _edges(low: Tensor, high: Tensor) -> Tensor:
    """The ends of the ranges of each direction, [R, B + 1]."""
    shares = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)
    return low[:, None] + (high - low)[:, None] * shares


def _sum_of(answers: Answers, noise: float) -> Tensor:
    """The histograms of all clients together, [R, B]; with noise, counts that noise alone could give are 0."""
    total = tree.exact(answers.tree["histograms"]).sum(0)
    total = total.reshape(len(total), -1)
    four_deviations = 4 * noise * len(answers.clients) ** 0.5
    return torch.where(total > four_deviations, total, 0)


def spanned(counts: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of the ranges that hold all samples but a share `TAIL_SHARE` on either side.

    `counts` are the histograms of all clients [R, B], `edges` the ends of their ranges [B + 1] or [R, B + 1]. Returns the lower
    and the upper ends, [R].
    """
    edges = edges.expand(len(counts), -1)
    below = counts.cumsum(1) / counts.sum(1, keepdim=True).clamp_min(1)
    first = (below > TAIL_SHARE).double().argmax(1)
    last = (below >= 1 - TAIL_SHARE).double().argmax(1).maximum(first)
    low = edges.gather(1, first[:, None])[:, 0]
    high = edges.gather(1, last[:, None] + 1)[:, 0]
    return low, high


def quantiles(counts: Tensor, edges: Tensor) -> Tensor:
    """The ends of tenths of the samples [9], from a histogram [B] with the ends of its ranges [B + 1]."""
    below = np.concatenate([[0.0], np.cumsum(counts.numpy())])
    tenths = np.linspace(0, 1, LABEL_CLASSES + 1)[1:-1] * below[-1]
    return torch.from_numpy(np.interp(tenths, below, edges.numpy()))
