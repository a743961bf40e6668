"""What a part sees on a client, and what stays the same during a stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor
from torch.func import grad_and_value

from unalike.core import tree
from unalike.core.model import Model
from unalike.core.task import Task
from unalike.core.types import Batch, Context, Output, Tree
from unalike.core.work import Work


@dataclass(frozen=True)
class Setting:
    """What stays the same during a stage; `work` is the method's own, `buffers` is "average", "local" or "first".

    `proxy` are samples on the server, `classes` counts the classes of the labels (None: regression), `stage` is the
    step of the plan, `group` numbers those who share the model among the groups of the stage.
    """

    model: Model
    task: Task
    work: Work
    seed: int = 0
    buffers: str = "average"
    proxy: Batch | None = None
    classes: int | None = None
    stage: int = 0
    group: int = 0


class Data(NamedTuple):
    """A client's samples in a round: the batches of each phase in order, and all of them once where a part asks for that."""

    batches: Sequence[Sequence[Batch]]
    whole: Sequence[Batch] = ()


class Local(NamedTuple):
    """What a part sees on a client.

    `start` are the shared parameters as received, `origin` all of them where training starts, `params` the current ones,
    `mail` and `memory` the part's own; `step` counts the steps of a phase from 0 while training, `steps` [] those made; `data` are
    the round's batches, `whole` all local samples once (for parts that say `needs_data`), `context` the client's static facts.
    """

    setting: Setting
    part: str
    start: Tree
    origin: Tree
    received: Tree
    params: Tree
    buffers: Tree
    mail: Tree
    memory: Tree
    context: Context
    lr: float
    data: Data
    cache: dict[str, Any]
    step: int = 0
    steps: Tensor | float = 0.0
    output: Output | None = None

    @property
    def model(self) -> Model:
        return self.setting.model

    def out(self, batch: Batch, params: Tree | None = None) -> Output:
        """The model in training mode: at the current parameters, or at others with the part's own buffers."""
        if params is None and self.output is not None:
            return self.output
        output = self.at(batch, self.params if params is None else params)
        self.cache[self.part] = output.buffers
        return output

    def teacher(self, batch: Batch) -> Output:
        """The received model, with what is private where training starts, in evaluation mode, constant; computed once a step."""
        if "teacher" not in self.cache:
            self.cache["teacher"] = self._frozen(self.origin | self.start, self.received, batch)
        return self.cache["teacher"]

    def remembered(self, batch: Batch) -> Output:
        """The model in the part's memory in evaluation mode, constant."""
        return self._frozen(self.memory, self.buffers, batch)

    def at(self, batch: Batch, params: Tree) -> Output:
        """The model in training mode at any parameters, leaving no trace."""
        return self.model(
            params, batch.x, buffers=self.buffers, context=self.context, training=True, weight=batch.weight
        )

    def _frozen(self, params: Tree, buffers: Tree, batch: Batch) -> Output:
        out = self.model(tree.detach(params), batch.x, buffers=buffers, context=self.context)
        return Output(out.logits.detach(), None if out.features is None else out.features.detach(), buffers)

    def task_loss(self, output: Output, batch: Batch) -> Tensor:
        """The mean task loss of an output, a scalar."""
        if batch.weight is None:
            return self.setting.task.loss(output.logits, batch.y)
        return batch.mean(self.setting.task.losses(output.logits, batch.y))

    def full_gradient(self, params: Tree) -> Tree:
        """The gradient of the mean task loss over all local samples, at `params`; its part must say `needs_data`.

        Zeros where there are no samples, as when `wire` asks what would be sent.
        """
        total = tree.zeros(params)
        if not self.data.whole:
            return total
        count: Tensor | float = 0.0
        for batch in self.data.whole:
            rows = batch.rows
            grads, _ = grad_and_value(lambda w, b: self.task_loss(self.at(b, w), b))(params, batch)
            total, count = tree.map(lambda t, g, n=rows: t + n * g, total, grads), count + rows
        return tree.scale(total, 1 / count)
