"""Terms of the local loss that keep a client near the received model, and a loss balanced by its class counts."""

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.tasks.task import CLASS_LOGITS, CLASSES
from unalike.core.types import Batch, Output, PartTrees, Tree
from unalike.core.views import ClientView, StageSettings
from unalike.methods.method import alias
from unalike.methods.part import Pull, Setup, part
from unalike.methods.parts.weights import label_counts
from unalike.methods.roles import Objective, TaskObjective
from unalike.methods.search_space import LinearRange, LogRange


@alias("fedprox", "A proximal term holds clients near the received model (Li et al. 2020).")
@part
class Proximal(Objective):
    """mu/2 ||v - w||^2, w being the model received (FedProx, Li et al. 2020, eq. 2). mu = 0 is FedAvg.

    Its gradient mu (v - w) passes through the normal solver, momentum included.
    """

    mu: Annotated[NonNegativeFloat, LogRange(1e-4, 1)] = 0.001
    unlike_networks = "equal shapes"

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        drift = tree.sub(client.received_params, client.params)
        return self.mu / 2 * tree.dot(drift, drift)

    def pull(self, client: ClientView) -> Pull:
        return Pull(self.mu)

    def shortfall(self, setup: Setup) -> str:
        return NO_GRADIENT if setup.steps[1] == 1 else ""


@alias(
    "moon", "Contrast of the features with the shared and the previous model's (Li et al. 2021)."
)
@part
class ModelContrast(Objective):
    """mu * mean_b -log[ e^(cos(z, z_g)/tau) / (e^(cos(z, z_g)/tau) + e^(cos(z, z_p)/tau)) ] (MOON, Li et al. 2021, eq. 3).

    z, z_g and z_p are the features of the current model, of the model received and of the client's own model after its last
    participation; the latter two are constant and in evaluation mode. There is no term at the first participation. Features are the
    input of the model's head; the authors' code adds a projection between them. mu = 0 is FedAvg.
    """

    mu: Annotated[NonNegativeFloat, LogRange(0.1, 10)] = 1.0
    tau: PositiveFloat = 0.5
    keeps_model = True
    special_group = "body"

    SEEN = "model_contrast.seen"

    def client_init(self, params: Tree) -> Tree:
        return params | {self.SEEN: torch.zeros((), dtype=tree.dtype(params))}

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        z = _features(client.out(batch))
        z_g = _features(client.teacher(batch))
        z_p = _features(client.own_output(batch))
        cosines = torch.stack([F.cosine_similarity(z, z_g), F.cosine_similarity(z, z_p)], dim=1)
        losses = -F.log_softmax(cosines / self.tau, dim=1)[:, 0]
        return self.mu * client.state[self.SEEN] * batch.mean(losses)

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        model = tree.shared(client.params, client.state)
        return model | {self.SEEN: torch.ones_like(client.state[self.SEEN])}, {}


@alias(
    "fedntd",
    "Distillation of what the shared model says of the classes that are not true (Lee et al. 2022).",
)
@part
class NotTrueDistillation(Objective):
    """beta tau^2 KL(q_g || q), q the softmax over the C-1 classes that are not true, logits / tau (FedNTD, Lee et al. 2022, eq. 6).

    q_g comes from the model received, constant and in evaluation mode; the mean is over the batch. beta = 0 is FedAvg; with two
    classes one is left and the term is 0. Models of the clients' own (`ditto`, `apfl`) and fine-tuning have no such term: they
    minimize the task's loss.
    """

    beta: Annotated[NonNegativeFloat, LogRange(0.1, 3)] = 1.0
    tau: PositiveFloat = 1.0
    needs_of_task: ClassVar[str] = CLASSES

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        z = client.out(batch).logits
        z_g = client.teacher(batch).logits
        log_q = self._log_not_true(z, batch.y)
        log_q_g = self._log_not_true(z_g, batch.y)
        divergences = F.kl_div(log_q, log_q_g, reduction="none", log_target=True).sum(1)
        return self.beta * self.tau**2 * batch.mean(divergences)

    def _log_not_true(self, logits: Tensor, y: Tensor) -> Tensor:
        """Logarithm of the softmax of logits / tau over the classes that are not true, [B, C]."""
        scaled = logits / self.tau
        scaled = scaled.reshape(len(scaled), -1)  # a binary model may give [B]
        true = y[:, None] == torch.arange(scaled.shape[1], device=scaled.device)
        return F.log_softmax(scaled.masked_fill(true, -1e9), dim=1)

    def shortfall(self, setup: Setup) -> str:
        if setup.settings.classes == 2:
            return (
                "of two classes one is not true, and the softmax over one class is 1: the term is 0"
            )
        return NO_GRADIENT if setup.steps[1] == 1 else ""


NO_GRADIENT = "clients make one local step, at the model received, where the term has no gradient"


def _features(output: Output) -> Tensor:
    if output.features is None:
        raise UnalikeError(
            "model_contrast needs features and the model shows none: give the module an attribute `head` (its last layer, "
            "whose input is the features), or return unalike's Output(logits, features)"
        )
    return output.features.flatten(1)


@part
class BalancedSoftmax(TaskObjective):
    """-log [n_y^gamma e^(u_y) / sum_c n_c^gamma e^(u_c)] in the place of cross-entropy (Ren et al. 2020; FedETF).

    u are the logits and n_c the client's training samples of class c, which stay there. Classes that a client does not have get no
    gradient, and a client with one class has loss 0 and learns nothing, which a run notes. FedETF's code takes max(n_c, 1), so that
    absent classes count as rare ones. Models of the clients' own (`ditto`, `apfl`) and fine-tuning go on with cross-entropy: they
    are for the client's own share of the classes. gamma = 0 is cross-entropy, and FedAvg.
    """

    has_own_name: ClassVar[bool] = True

    gamma: Annotated[NonNegativeFloat, LinearRange(0, 2)] = 1.0
    needs_of_task: ClassVar[str] = CLASS_LOGITS
    ABSENT: ClassVar[float] = -1e9
    """Used for log 0: rows of padding may have a class that the client does not have."""

    def facts(self, data: Batch, settings: StageSettings) -> PartTrees:
        return {"label_histogram": {"counts": label_counts(data, settings)}}

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        logits = client.out(batch).logits
        counts = client.context["label_histogram"]["counts"].to(logits.dtype)
        log_n = torch.where(counts > 0, counts.clamp_min(1).log(), self.ABSENT)
        losses = F.cross_entropy(logits + self.gamma * log_n, batch.y, reduction="none")
        return batch.mean(losses)

    def shortfall(self, setup: Setup) -> str:
        if not (setup.one_class and self.gamma):
            return ""
        who = "client has" if setup.one_class == 1 else "clients have"
        return f"{setup.one_class} of {setup.clients} {who} one class alone; their loss is 0 and they learn nothing"


@alias("fedlc", "Logits of a client's rare classes are lowered in its loss (Zhang et al. 2022).")
@part
class CalibratedLogits(TaskObjective):
    """-log [e^(u_y - tau n_y^(-1/4)) / sum_c e^(u_c - tau n_c^(-1/4))] in the place of cross-entropy (FedLC, Zhang et al. 2022).

    u are the logits and n_c the client's training samples of class c, which stay there: rare classes keep a margin to the others.
    As the paper prints it the sum leaves out c = y and has no lower bound; public code takes the softmax, as here. A class that
    the client lacks counts 1e-8 samples, as in FL-bench; fluke leaves it out of the sum, and PFLlib takes the counts of all clients
    together, which then correct no client's skew. Fine-tuning and models of the clients' own go on with cross-entropy. tau = 0 is
    FedAvg.
    """

    tau: Annotated[NonNegativeFloat, LinearRange(0, 2)] = 1.0
    needs_of_task: ClassVar[str] = CLASS_LOGITS
    LEAST_COUNT: ClassVar[float] = 1e-8
    """In place of 0, whose power is infinite."""

    def facts(self, data: Batch, settings: StageSettings) -> PartTrees:
        return {"label_histogram": {"counts": label_counts(data, settings)}}

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        logits = client.out(batch).logits
        counts = client.context["label_histogram"]["counts"].to(logits.dtype)
        margins = counts.clamp_min(self.LEAST_COUNT) ** -0.25
        losses = F.cross_entropy(logits - self.tau * margins, batch.y, reduction="none")
        return batch.mean(losses)
