"""FedConcat: models of clusters of clients become one, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike.core.model import Model
from unalike.core.tasks.task import CLASS_LOGITS
from unalike.core.types import Output
from unalike.core.views import ServerState
from unalike.methods.method import Method
from unalike.methods.parts.personalizers import Fixed
from unalike.methods.parts.weights import Uniform
from unalike.methods.plan import Answers, PlanInputs, PlanSteps, QueryStep, Stage
from unalike.methods.plans.queries import LabelCounts
from unalike.methods.plans.staged_plan import (
    MethodText,
    StagedPlan,
    grouped,
    of_samples_alone,
    staged_plan,
)


class Concatenated(nn.Module):
    """[encoder_1(x), ..., encoder_C(x)] [B, sum D] -> head. The encoders always run in evaluation mode."""

    def __init__(self, encoders: Sequence[nn.Module], head: nn.Linear):
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        self.head = head

    def train(self, mode: bool = True) -> Concatenated:
        """Training mode is for the head: norms of the encoders keep their statistics, dropout in them is off."""
        super().train(mode)
        self.encoders.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, C] of `x` [B, ...]."""
        features = [_features(encoder(x)) for encoder in self.encoders]
        return self.head(torch.cat(features, dim=1))


def _features(output: Tensor | Output) -> Tensor:
    return output.logits if isinstance(output, Output) else output


@staged_plan
class Fedconcat(StagedPlan):
    """FedConcat (Diao et al. 2024): clusters by label distribution, one encoder each, one head over all of them.

    1. clients send their label counts; k-means (seeded) puts their distributions into `clusters`, empty ones dropped;
    2. `method` in each cluster;
    3. the clusters' encoders are sent to everybody once, stay fixed and stand side by side; a linear head of random start on
       their joint features is trained by FedAvg with equal weights.
    `rounds` are split between 2 and 3 as `encoder_rounds` to `classifier_rounds`, at least one round each; a schedule of the
    learning rate begins anew with 3. One cluster is FedAvg, then a new head. The public code starts the later clusters of step 2
    from the first client's trained weights; here all start at the run's model. In step 3 it makes 3 local steps a round, here a
    round has the full local work. On data of 100 classes or more it caps the clusters' sizes and starts the head from the clusters'
    heads; neither is done here.
    """

    name: ClassVar[str] = "fedconcat"

    divides: ClassVar[bool] = True
    needs_of_task: ClassVar[str] = CLASS_LOGITS
    clusters: PositiveInt = 5
    encoder_rounds: PositiveInt = 50
    classifier_rounds: PositiveInt = 1000
    method: MethodText = "fedavg"

    def stages(self, plan_inputs: PlanInputs) -> PlanSteps:
        method = Method.parse(self.method)
        self._check(method, plan_inputs)

        # 1. clusters by the clients' label distributions
        answers = yield QueryStep("labels", LabelCounts())
        clusters = self._clusters(answers, plan_inputs)

        # 2. an encoder for each cluster
        encoder_rounds = self.split(plan_inputs.rounds)
        states = yield Stage("encoders", method, encoder_rounds, grouped(clusters))

        # 3. one head over all encoders
        number = seeds.number(plan_inputs.seed, "fedconcat.head")
        model = concatenated(plan_inputs.model, list(states.values()), number)
        start = {"all": ServerState(0, model.params, model.buffers, {})}
        head_alone = Method(Fixed("body"), Uniform())
        head_rounds = plan_inputs.rounds - encoder_rounds
        yield Stage("classifier", head_alone, head_rounds, model=model, start=start)

    def _check(self, method: Method, plan_inputs: PlanInputs) -> None:
        plan_inputs.task.require(self.needs_of_task, asker=self.name)
        of_samples_alone(self, plan_inputs.model)
        if any(_stays(method, plan_inputs.model, n) for n in plan_inputs.model.params):
            raise UnalikeError(
                f"fedconcat joins the clusters' encoders and {self.method} keeps parameters of theirs private; choose a method "
                "that shares the body"
            )

    def _clusters(self, answers: Answers, plan_inputs: PlanInputs) -> np.ndarray:
        """The cluster of each client, [K]; clients without labels join the largest one."""
        counts = answers.tree["counts"].double().numpy()
        distributions = counts / counts.sum(1, keepdims=True)
        rng = seeds.generator(plan_inputs.seed, "fedconcat")
        of_answers = kmeans(distributions, self.clusters, rng)
        largest = np.bincount(of_answers).argmax()
        clusters = np.full(plan_inputs.clients, largest)
        clusters[list(answers.clients)] = of_answers
        return clusters

    def split(self, rounds: int) -> int:
        """The rounds of the encoders out of all of them."""
        share = self.encoder_rounds / (self.encoder_rounds + self.classifier_rounds)
        return min(max(round(rounds * share), 1), max(rounds - 1, 0))


def concatenated(model: Model, states: Sequence[ServerState], number: int) -> Model:
    """The encoders of the states under one head, drawn from the seed `number`."""
    features, classes = model.head_size
    encoders = [model.encoder(s.params, s.buffers) for s in states]
    with seeds.isolated(number):
        head = nn.Linear(features * len(encoders), classes)
    like = next(iter(model.params.values()))
    return Model(Concatenated(encoders, head).to(like))


def _stays(method: Method, model: Model, name: str) -> bool:
    """Whether a parameter of the encoder trains on the clients and is not averaged."""
    if model.in_head(name) or method.shares(name, model):
        return False
    return method.trains(name, model)


def kmeans(
    points: np.ndarray, clusters: int, rng: np.random.Generator, steps: int = 100
) -> np.ndarray:
    """The cluster [K] of each of the points [K, D]: Lloyd's steps from a k-means++ start; clusters may come out empty."""
    # k-means++: points far from all centres become centres with a greater chance
    centres = points[rng.integers(len(points))][None]
    while len(centres) < min(clusters, len(points)):
        gaps = _squared_distances(points, centres).min(1)
        if not gaps.any():
            break  # fewer different points than clusters
        next_one = rng.choice(len(points), p=gaps / gaps.sum())
        centres = np.vstack([centres, points[next_one]])

    # Lloyd's steps; `nearest` counts the clusters that are not empty
    nearest = _squared_distances(points, centres).argmin(1)
    for _ in range(steps):
        filled = np.unique(nearest)
        centres = np.stack([points[nearest == c].mean(0) for c in filled])
        now_nearest = _squared_distances(points, centres).argmin(1)
        if np.array_equal(filled[now_nearest], nearest):
            break
        nearest = now_nearest
    return nearest


def _squared_distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Squared distances [K, C]."""
    return ((points[:, None] - centres[None]) ** 2).sum(-1)
