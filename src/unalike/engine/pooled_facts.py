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
from unalike.core.inputs import one_tensor
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
        self._parameters = module._parameters
        self._buffers = module._buffers
        self._modules = module._modules
        # no submodule: the names of the parameters stay as they are
        self.__dict__["inner"] = module
        self.shape = shape
        self.facts = [
            (part, name, tuple(t.shape)) for part, fact in facts.items() for name, t in fact.items()
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
        sample_size = math.prod(self.shape)
        sample = row[:sample_size].reshape(1, *self.shape)
        # the facts follow the sample, one after the other
        place = sample_size
        context: dict[str, dict[str, Tensor]] = {}
        for part, name, shape in self.facts:
            size = math.prod(shape)
            context.setdefault(part, {})[name] = row[place : place + size].reshape(shape)
            place += size
        output = self.__dict__["inner"](sample, context=context)
        logits: Tensor = output.logits if isinstance(output, Output) else output
        return logits[0]


def pooled_with_facts(described: ClientPool) -> ClientPool:
    """The pool that trains all clients as one, on samples with the facts of their owner.

    Raises `UnalikeError` for a transform of images, and for a model with buffers, which would see one sample at a time.
    """
    settings, population = described.settings, described.source
    assert isinstance(population, Population)
    _refuse_unsuitable(described)

    # each sample, flattened, with the facts of its owner behind it
    index = torch.from_numpy(population.train.values)
    facts = []
    for client in range(len(population)):
        trees = described.context(client).values()
        facts.append(torch.cat([t.flatten() for values in trees for t in values.values()]))
    owners = torch.from_numpy(population.train.owners)
    x = torch.cat(
        [
            one_tensor(population.x, "a model fed with facts")[index].flatten(1),
            torch.stack(facts)[owners],
        ],
        1,
    )

    # one client has them all
    pooled = replace(
        population,
        x=x,
        y=population.y[index],
        train=Ragged.of([np.arange(len(index))]),
        test=Ragged.empty(1),
        val=Ragged.empty(1),
        names=["pooled"],
        plan=None,
        clusters=None,
    )

    # the model splits the facts off again, so no part describes the client any more
    model = settings.model
    module = FactsPerSample(
        model.module(model.params, model.buffers), population.input_shape, described.some_context
    )
    others = [part for part in described.method.parts if not isinstance(part, Conditioner)]
    return ClientPool(
        Method(*others),
        replace(settings, model=Model(module).at(model.precision)),
        pooled,
        described.client_states,
    )


def _refuse_unsuitable(described: ClientPool) -> None:
    """Raise `UnalikeError` for a pool that cannot be trained so."""
    if described.transform is not None:
        found = "a transform"
    elif described.settings.model.buffers:
        found = "a model with buffers, such as batch norm"
    else:
        return
    raise UnalikeError(
        f"found {found} in training on pooled data with each client's facts; leave it out"
    )
