"""CCVR: the server trains the head again, on features that it draws from the classes' statistics."""

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from torch.func import grad

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.solvers import Adam
from unalike.core.tasks.task import CLASS_LOGITS
from unalike.core.types import Tree
from unalike.methods.method import Method
from unalike.methods.plan import PlanInputs, PlanSteps, QueryStep, Stage
from unalike.methods.plans.queries import FeatureStatistics
from unalike.methods.plans.staged_plan import MethodText, StagedPlan, of_samples_alone, staged_plan
from unalike.methods.search_space import LogRange, OneOf


@staged_plan
class Ccvr(StagedPlan):
    """Classifier calibration with virtual representations (CCVR, Luo et al. 2021) after `method`.

    When the other rounds are done, every client sends, once and for each class, the number, mean and covariance of its
    features. From them the server has the mean mu_c and covariance S_c of all features of class c (eqs. 3, 4), draws `samples`
    from N(mu_c, S_c) for each class that occurs, and trains the head on them: `steps` full-batch Adam steps of size `lr`
    from the current head. The client query takes the place of the last of the `rounds`. steps = 0 is `method` with one round less.

    The paper draws in proportion to the classes or as many for each; here as many for each. The covariances are C D^2 numbers
    of each client.
    """

    name: ClassVar[str] = "ccvr"
    needs_of_task: ClassVar[str] = CLASS_LOGITS

    samples: Annotated[PositiveInt, OneOf(100, 500, 1000)] = 100
    steps: NonNegativeInt = 100
    lr: Annotated[PositiveFloat, LogRange(1e-3, 0.1)] = 0.01
    method: MethodText = "fedavg"

    def stages(self, plan_inputs: PlanInputs) -> PlanSteps:
        model = plan_inputs.model
        method = Method.parse(self.method)
        self._check(method, plan_inputs)

        # the client query takes the place of the last round
        states = yield Stage("train", method, max(plan_inputs.rounds - 1, 0))
        if not plan_inputs.rounds:
            return
        [state] = states.values()
        answers = yield QueryStep("features", FeatureStatistics(), state)

        generator = torch.Generator().manual_seed(seeds.number(plan_inputs.seed, "ccvr"))
        z, y = self.draw(answers.tree, generator)
        device = next(iter(state.params.values())).device
        head = self.calibrate(model, state.params, z.to(device), y.to(device))
        start = {"all": state._replace(params=state.params | head)}
        yield Stage("calibrated", method, 1, trained=False, start=start)

    def _check(self, method: Method, plan_inputs: PlanInputs) -> None:
        model = plan_inputs.model
        plan_inputs.task.require(self.needs_of_task, asker=self.name)
        of_samples_alone(self, model)
        trained = [n for n in model.params if model.trainable(n)]
        if not all(method.shares(n, model) for n in trained):
            raise UnalikeError(
                f"ccvr calibrates the shared head and {self.method} keeps parameters private; choose another method"
            )
        if method.personalizer is not None and method.finetuning_phase is None:
            raise UnalikeError(
                f"ccvr ends with a model that the server made, and {self.method} has models of the clients' own beside the shared "
                "one, which do not see it; choose another method"
            )

    def draw(self, answers: Tree, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Virtual features [n, D] and their labels [n]."""
        counts, means, covariances = pooled(answers)
        features = [torch.zeros(0, means.shape[1])]
        labels: list[int] = []
        for c in (counts > 0).nonzero().flatten().tolist():
            # the covariance is semidefinite: a Cholesky factor need not exist
            values, vectors = torch.linalg.eigh(covariances[c])
            root = vectors * values.clamp_min(0).sqrt()
            noise = torch.randn(self.samples, len(root), generator=generator, dtype=root.dtype)
            features.append((means[c] + noise @ root.T).float())
            labels += [c] * self.samples
        return torch.cat(features), torch.tensor(labels, dtype=torch.int64)

    def calibrate(self, model: Model, params: Tree, z: Tensor, y: Tensor) -> Tree:
        """The head's parameters after training on the features alone."""
        head = {n: w for n, w in params.items() if model.in_head(n) and model.trainable(n)}
        if not (head and len(y)):
            return head

        def loss(w: Tree) -> Tensor:
            return F.cross_entropy(model.head(w, z.to(tree.dtype(w))), y)

        solver = Adam()
        state = solver.init(head)
        for _ in range(self.steps):
            head, state = solver.step(head, grad(loss)(head), state, self.lr)
        return tree.detach(head)


def pooled(answers: Tree) -> tuple[Tensor, Tensor, Tensor]:
    """The moments of all samples: counts [C], means [C, D], covariances [C, D, D] of each class, from those of the clients
    [K, ...].

    (N - 1) S = sum_k (n_k - 1) S_k + sum_k n_k mu_k mu_k^T - N mu mu^T, the last two as deviations from mu.
    """
    n_k = tree.exact(answers["counts"])
    mu_k = tree.exact(answers["mean"])
    n = n_k.sum(0)
    mu = (n_k[..., None] * mu_k).sum(0) / n.clamp_min(1)[:, None]

    gap = mu_k - mu
    squares = torch.einsum("kc,kci,kcj->cij", n_k, gap, gap)
    # one client at a time, as covariances are large
    for degrees, covariance in zip((n_k - 1).clamp_min(0), answers["covariance"], strict=True):
        squares += degrees[:, None, None] * covariance
    return n, mu, squares / (n - 1).clamp_min(1)[:, None, None]
