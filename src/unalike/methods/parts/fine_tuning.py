"""Local work and its phases: fine-tuning before evaluation, the head and the body one after the other, one full-batch step."""

from typing import Annotated, Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor
from torch.func import grad

from unalike.core import tree
from unalike.core.inputs import first_rows, map_inputs
from unalike.core.model import Group, Model
from unalike.core.nests import join_nests
from unalike.core.types import Batch
from unalike.core.views import ClientView
from unalike.core.work import Work
from unalike.methods.method import alias
from unalike.methods.part import InnerLoop, Setup, part
from unalike.methods.roles import LocalWork, Personalizer, Phase, TaskObjective, passes
from unalike.methods.search_space import LogRange, OneOf

TUNED: dict[str, Group] = {"full": "all", "head": "head"}
"""FedBABU's word for fine-tuning -> group of parameters that it trains."""


@alias(
    "local_finetune",
    "FedAvg with fine-tuning of the shared model on each client before evaluation.",
)
@part
class FineTuned(Personalizer):
    """A client is evaluated with the shared model after `epochs` more passes over its training data, of which nothing is kept.

    The shared model is that of the method it is added to. `moves` is what is tuned: all of the model, its head or its body.
    """

    epochs: Annotated[PositiveInt, OneOf(1, 2, 5)] = 1
    moves: Group = "all"

    def tune(self) -> Phase:
        return Phase(self.moves, passes(self.epochs))


@part
class FrozenHead(Personalizer):
    """The head stays at its common initial value: bodies are trained and averaged, heads are never sent (FedBABU, Oh et al. 2022).

    A client is evaluated with the shared body and the initial head after `epochs` passes over its training data, in which the
    whole model moves, or its head alone.
    """

    special_group = "head"
    epochs: Annotated[PositiveInt, OneOf(1, 5, 10)] = 10
    tuned: Literal["full", "head"] = "full"

    def shared(self, name: str, model: Model) -> bool:
        return not model.in_head(name)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("body"),)

    def tune(self) -> Phase:
        return Phase(TUNED[self.tuned], passes(self.epochs))


@part
class HeadFirst(Personalizer):
    """First the head alone, in `epochs` passes over the client's data, then the body alone, in the round's work (FedRep).

    Collins et al. 2021, algorithm 1. The paper takes 10 and 1 epochs, and the plain mean of the bodies: add `uniform`, as clients
    count by their sizes here. Each phase has batches and a solver of its own. With a private head the client update counts the
    body's steps only.
    """

    epochs: Annotated[PositiveInt, OneOf(1, 5, 10)] = 10
    unlike_networks = "equal shapes"

    def phases(self) -> tuple[Phase, ...]:
        return Phase("head", passes(self.epochs)), Phase("body")


@alias(
    "perfedavg",
    "The shared model is trained to be good after one step of adaptation (Fallah et al. 2020).",
)
@part
class AdaptedLoss(TaskObjective, Personalizer):
    """F(w - alpha g(w; B'); B''): the loss after one step of adaptation, B' and B'' being halves of the batch (Per-FedAvg).

    Fallah et al. 2020, eq. 3. The gradient is that at the adapted parameters (first order, FO-MAML); with `second_order` it is
    differentiated through the step as well, (I - alpha H) g. B' are the rows of even place, B'' those of odd place; a batch of one
    row is both. A client is evaluated after one full-batch step of size alpha on its training data. alpha -> 0 is FedAvg on half of
    each batch. Clients count by their sizes; in algorithm 1 all count the same (add `uniform`). The paper draws three batches a
    step, one of them for H; public code uses two successive batches.
    """

    alpha: Annotated[PositiveFloat, LogRange(1e-3, 0.1)] = 0.01
    second_order: bool = False

    takes_loss = True

    @property
    def inner_loop(self) -> InnerLoop | None:
        return None if self.second_order else InnerLoop(1, self.alpha)

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        first, second = halves(batch)
        slope = grad(lambda w: client.task_loss(client.at(first, w), first))
        g = slope(client.params)
        if not self.second_order:
            g = tree.detach(g)
        g = tree.only(g, client.received_params)
        adapted = client.params | tree.map(lambda g, w: w - self.alpha * g, g, client.params)
        return client.task_loss(client.at(second, adapted), second)

    def tune(self) -> Phase:
        return Phase("all", lambda work: Work(steps=1, batch_size=None, lr=self.alpha))

    def shortfall(self, setup: Setup) -> str:
        if setup.settings.work.batch_size == 1:
            return "a batch of one row is both halves, B' and B''"
        return ""


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """The rows of even and of odd place; a batch of one row, with or without padding, is both halves."""
    first = _every_second_row(batch, start=0)
    second = _every_second_row(batch, start=1)
    if not len(second.y):
        return first, first
    if second.weight is None or first.weight is None:
        return first, second

    # the second half may be padding alone; no Python control flow on values here, which vmap could not follow
    filled = second.weight.sum() > 0
    rows = len(second.y)
    return first, batch._replace(
        x=join_nests(
            [second.x, first_rows(first.x, rows)],
            lambda pair: torch.where(filled, pair[0], pair[1]),
        ),
        y=torch.where(filled, second.y, first.y[:rows]),
        weight=torch.where(filled, second.weight, first.weight[:rows]),
    )


def _every_second_row(batch: Batch, start: int) -> Batch:
    weight = None if batch.weight is None else batch.weight[start::2]
    x = map_inputs(lambda t: t[start::2], batch.x)
    return batch._replace(x=x, y=batch.y[start::2], weight=weight)


@alias("fedsgd", "One full-batch gradient step per round (McMahan et al. 2017).")
@part
class FullBatchStep(LocalWork):
    """One plain gradient step on the client's whole data: w+ = w - lr sum_k p_k grad F_k(w) (FedSGD, McMahan et al. 2017)."""

    def work(self, work: Work) -> Work:
        return Work(batch_size=None, lr=work.lr, schedule=work.schedule, loss=work.loss)
