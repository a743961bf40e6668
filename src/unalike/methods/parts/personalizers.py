"""Personal models trained beside the shared one, and parameters that stay on the client."""

from typing import Annotated, ClassVar

import torch
from pydantic import AfterValidator, Field, NonNegativeFloat
from torch import Tensor

from unalike._utils.validated import validated
from unalike.core import tree
from unalike.core.model import GROUPS, Model
from unalike.core.types import Batch, Context, Output, Tree
from unalike.core.views import ClientView
from unalike.methods.method import alias
from unalike.methods.part import Pull, Setup, part
from unalike.methods.roles import Personalizer, PersonalModel
from unalike.methods.search_space import LinearRange, LogRange


def _group_or_pattern(select: str) -> str:
    """The text, if it names a group of parameters or is a pattern of their names. Raises `ValueError` otherwise."""
    if select in GROUPS or any(mark in select for mark in "*?[."):
        return select
    raise ValueError(
        f"expected {', '.join(GROUPS)}, or a pattern of names of parameters, such as 'encoder.*'"
    )


Selection = Annotated[str, AfterValidator(_group_or_pattern)]
"""A group of parameters ("head"), or a pattern of names as of files: "encoder.*", "*.bias", "layer[34].*"."""


class OwnParameters(Personalizer):
    """The client state holds parameters of the client's own, which start at the model's: it is evaluated with them."""

    def client_init(self, params: Tree) -> Tree:
        return params

    def personal(self, model: Model, params: Tree, state: Tree) -> Tree:
        return params | state


@alias("ditto", "A personal model held near the shared one (Li et al. 2021).")
@part
class ProximalModel(OwnParameters, PersonalModel):
    """v_k <- v_k - lr (g(v_k) + lam (v_k - w)), w being the model received (Ditto, Li et al. 2021, algorithm 1).

    The shared model is FedAvg's. v_k makes the same steps on the same batches, and starts at the initial model. lam = 0 is local
    training, lam -> infinity the shared model. The default is that of the experiments with FedSA and FedPake and is close to local
    training; the authors of Ditto choose among 0.1, 1 and 2.
    """

    lam: Annotated[NonNegativeFloat, LogRange(1e-4, 2)] = 0.001

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        task = client.task_loss(client.out(batch, client.own), batch)
        # what the server alone moves is no part of the own model
        received = tree.only(client.received_params, client.state)
        drift = tree.sub(received, client.state)
        return task + self.lam / 2 * tree.dot(drift, drift)

    def pull(self, client: ClientView) -> Pull:
        return Pull(self.lam)


@validated
class Mixture(PersonalModel):
    """A personal model mixed of an own one, v, and the shared one, w, with weight a in [0, 1] (APFL, Deng et al. 2020).

    v <- v - lr * d loss / d v and, in the first step of a round when `adaptive`, a <- clip(a - lr <v - w, grad f(v_bar)>, 0,
    1), both at the old v and w. The shared model is the mean of w by the clients' sizes; in algorithm 1 all count the same (add
    `uniform`). The public code moves a after the steps, and adds 0.02 a to its gradient. a = 0 is FedAvg's model, a = 1 local
    training.
    """

    ALPHA = "mixture.alpha"

    alpha: Annotated[float, LinearRange(0, 1)] = Field(default=0.5, ge=0, le=1)
    adaptive: bool = True

    def client_init(self, params: Tree) -> Tree:
        return params | {self.ALPHA: torch.tensor(self.alpha, dtype=tree.dtype(params))}

    def project(self, client: ClientView, grads: Tree, stepped: Tree) -> Tree:
        a = client.state[self.ALPHA]
        if self.adaptive and client.step == 0:
            a = (a - client.lr * grads[self.ALPHA]).clamp(0, 1)
        return stepped | {self.ALPHA: a}


@part
class ParameterMixture(Mixture):
    """v_bar = a v + (1 - a) w: the personal model has mixed parameters (APFL, eq. 2 and algorithm 1).

    A batch norm's running statistics are its own: those of the passes at v_bar, in all rounds of the client.
    """

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        mixed = self.personal(client.model, tree.detach(client.params), client.state)
        return client.task_loss(client.out(batch, mixed), batch)

    def personal(self, model: Model, params: Tree, state: Tree) -> Tree:
        a = state[self.ALPHA]
        mixed = {n: a * v + (1 - a) * params[n] for n, v in state.items() if n in params}
        return params | mixed


@part
class OutputMixture(Mixture):
    """a f(v) + (1 - a) f(w): the personal model has mixed outputs, as in APFL's public code; equal for linear models."""

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        shared = client.out(batch).logits.detach()
        own = client.out(batch, client.own)
        return client.task_loss(self._mix(shared, own, client.state), batch)

    def personal(self, model: Model, params: Tree, state: Tree) -> Tree:
        """v alone: mixed outputs have no parameters of their own; `predict` mixes."""
        return params | tree.shared(state, params)

    def predict(
        self, model: Model, shared: Tree, state: Tree, own: Tree, x: Tensor, context: Context
    ) -> Output:
        shared_buffers = tree.only(shared, model.buffers)
        of_shared = model(shared, x, buffers=shared_buffers, context=context)
        of_own = model(shared | state, x, buffers=own, context=context)
        return self._mix(of_shared.logits, of_own, state)

    def _mix(self, shared: Tensor, own: Output, state: Tree) -> Output:
        a = state[self.ALPHA]
        return own._replace(logits=a * own.logits + (1 - a) * shared)


@alias(
    "local_only",
    "Trained alone by rounds: every client trains by itself, without communication.",
    select="all",
)
@alias(
    "fedbn",
    "Normalization layers stay on the client with their statistics (Li et al. 2021).",
    select="norm",
)
@alias(
    "fedper",
    "The head stays on the client, the body is averaged (Arivazhagan et al. 2019).",
    select="head",
)
@alias(
    "flop",
    "A part of the network is shared, by default all but the head (Yang et al. 2021).",
    select="head",
)
@alias(
    "lg_fedavg",
    "The body stays on the client, the head is averaged (Liang et al. 2020).",
    select="body",
)
@alias(
    "fedsa_lora",
    "Of low-rank adapters, A is averaged and B stays on the client (Guo et al. 2025).",
    select="*lora_B.*",
)
@part
class Private(OwnParameters):
    """Parameters that stay on the client with their buffers: trained as always, never sent, evaluated as its own.

    select = "all" is local training without communication; "head" shares the body only (FedPer, Arivazhagan et al. 2019; FLOP);
    "body" shares the head only (LG-FedAvg, Liang et al. 2020); "norm" keeps normalization layers with their running statistics
    (FedBN, Li et al. 2021), and is FedAvg for a model without them; "bias" keeps the biases of all layers, and a pattern such as
    "encoder.*" what has a name like it. "*lora_B.*" is FedSA-LoRA (Guo et al. 2025), for adapters of `ua.low_rank` or peft. The
    client state holds the private parameters only.
    """

    select: Selection = "all"
    unlike_networks = "equal shapes"

    @property
    def special_group(self) -> str:
        return self.select

    def begin(self, client: ClientView) -> tuple[Tree, Tree]:
        return client.params | client.state, client.state

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        return {n: client.params[n] for n in client.state}, {}

    def keeps(self, name: str, model: Model) -> bool:
        return model.within(self.select, name)

    def shared(self, name: str, model: Model) -> bool:
        return not model.within(self.select, name)


@part
class OwnStatistics(Personalizer):
    """The shared model with the client's own running statistics of batch normalization (SiloBN, Andreux et al. 2020).

    Training is that of the method without this part: the protocol `clients` scores the shared model with averaged statistics,
    `personal` the same model with each client's own. These are what the client would have with buffers="local": they start at the
    model's and take up the batches of all its rounds. Without batch normalization it is the shared model.
    """

    has_own_name: ClassVar[bool] = True
    keeps_model: ClassVar[bool] = True

    def kept_buffers(self, client: ClientView, own: Tree) -> Tree:
        return client.model.moved_statistics(own, client.initial_buffers, client.buffers)

    def shortfall(self, setup: Setup) -> str:
        if any(n.endswith("running_mean") for n in setup.model.buffers):
            return ""
        return "the model has no running statistics of batch normalization"


@alias(
    "ffa_lora",
    "Of low-rank adapters, A never moves and B is averaged (Sun et al. 2024).",
    select="*lora_A.*",
)
@part
class Fixed(Personalizer):
    """The `select`ed part of the model neither trains nor is sent; its buffers are not averaged either.

    `select` is "head", "body", "norm", "bias", or a pattern of names such as "encoder.*" (see `private`). Unlike a private part
    it is the same on all clients: what the run, or a stage of a plan, started with. "*lora_A.*" is FFA-LoRA (Sun et al. 2024): with
    one A for all, the mean of the clients' B A is the product of the mean B with A.
    """

    has_own_name: ClassVar[bool] = True

    select: Selection = "head"

    @property
    def special_group(self) -> str:
        return self.select

    def trainable(self, name: str, model: Model) -> bool:
        return not model.within(self.select, name)

    def shared(self, name: str, model: Model) -> bool:
        return self.trainable(name, model)
