"""Training on pooled data with each sample's own facts: the samples of all clients as those of one, with the facts of their owner.

The facts are appended to the flattened sample, so that any executor can train on them. A module that splits them off again, and
calls the model for each sample with its facts, stands in for the model during training; both have the same parameters by name.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from unalike._utils.errors import UnalikeError
from unalike.core.model import Model
from unalike.core.types import Context, Output
from unalike.data.population import Population
from unalike.data.ragged import Ragged
from unalike.engine.base import ClientPool
from unalike.methods.method import Method
from unalike.methods.roles import Conditioner


class FactsPerSample(nn.Module):
    """`module` for samples [B, numbers] that end with the facts of their owner.

    `module` takes `context`; its parameters are those of this module, under the same names. `shape` is that of one sample;
    `facts` are one client's, for names and shapes.
    """

    def __init__(self, module: nn.Module, shape: tuple[int, ...], facts: Context):
        super().__init__()
        self._parameters, self._buffers, self._modules = (
            module._parameters,
            module._buffers,
            module._modules,
        )
        self.__dict__["inner"] = (
            module  # no submodule: the names of the parameters stay as they are
        )
        self.shape = shape
        self.facts = [
            (part, name, tuple(t.shape))
            for part, found in facts.items()
            for name, t in found.items()
        ]

    def train(self, mode: bool = True) -> FactsPerSample:
        """Set the mode, also of the module."""
        self.__dict__["inner"].training = mode
        super().train(mode)
        return self

    def forward(self, x: Tensor) -> Output:
        """Logits [B, C] of samples with facts, [B, numbers]."""
        return Output(torch.vmap(self._one, randomness="different")(x))

    def _one(self, row: Tensor) -> Tensor:
        place = math.prod(self.shape)
        context: dict[str, dict[str, Tensor]] = {}
        for part, name, shape in self.facts:
            size = math.prod(shape)
            context.setdefault(part, {})[name] = row[place : place + size].reshape(shape)
            place += size
        found = self.__dict__["inner"](
            row[: math.prod(self.shape)].reshape(1, *self.shape), context=context
        )
        return (found.logits if isinstance(found, Output) else found)[0]


def pooled_with_facts(described: ClientPool) -> ClientPool:
    """The pool that trains all clients as one, on samples with the facts of their owner.

    Raises `UnalikeError` for a transform of images, and for a model with buffers, which would see one sample at a time.
    """
    settings, population = described.settings, described.source
    assert isinstance(population, Population)
    if described.transform is not None or settings.model.buffers:
        found = (
            "a transform"
            if described.transform is not None
            else "a model with buffers, such as batch norm"
        )
        raise UnalikeError(
            f"found {found} in training on pooled data with each client's facts; leave it out"
        )
    index = torch.from_numpy(population.train.values)
    facts = [
        torch.cat([t.flatten() for p in described.context(k).values() for t in p.values()])
        for k in range(len(population))
    ]
    x = torch.cat(
        [
            population.x[index].flatten(1),
            torch.stack(facts)[torch.from_numpy(population.train.owners)],
        ],
        1,
    )
    samples = Ragged.of([np.arange(len(index))])
    pooled = replace(
        population,
        x=x,
        y=population.y[index],
        train=samples,
        test=Ragged.empty(1),
        val=Ragged.empty(1),
        names=["pooled"],
        plan=None,
        clusters=None,
    )
    module = FactsPerSample(
        settings.model.module(settings.model.params, settings.model.buffers),
        population.input_shape,
        described.some_context,
    )
    method = Method(*(part for part in described.method.parts if not isinstance(part, Conditioner)))
    return ClientPool(
        method,
        replace(settings, model=Model(module).at(settings.model.precision)),
        pooled,
        described.client_states,
    )
