"""Find models and parts of the user that would count rows of padding, by training a client with padding and without.

Start reading at `padding_problem`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from unalike._utils.errors import UnalikeError
from unalike._utils.functions import text_of_function
from unalike.core import tree
from unalike.core.inputs import Inputs
from unalike.core.model import Model
from unalike.core.model_probes import why_padding_counts
from unalike.core.types import ClientUpdate, Tree
from unalike.core.views import StageSettings
from unalike.engine.base import ClientPool, SampleSource
from unalike.engine.batched import Batched
from unalike.methods.method import Method
from unalike.methods.part import Part
from unalike.methods.roles import Upload
from unalike.training.client.client_states import ClientStates
from unalike.training.client.client_update import initial_client_state
from unalike.training.server.server_update import initial_server_state, make_broadcast

CHECKED_LENGTHS = 4, 8
"""Samples of the client that is tried, and of the client stacked with it, to whose length its batch is padded."""
ROUNDING = 1e-2
"""Relative tolerance for the order of summation; padding that counts changes an update by far more."""


@dataclass(frozen=True)
class FewClients:
    """A few clients with a few samples each, as a `SampleSource`."""

    source: SampleSource
    train: Sequence[np.ndarray]

    @property
    def x(self) -> Inputs:
        return self.source.x

    @property
    def y(self) -> Tensor:
        return self.source.y

    def __len__(self) -> int:
        return len(self.train)

    def stacked(self, method: Method, settings: StageSettings, count: int) -> ClientUpdate:
        """The updates of the first `count` clients after one round, trained stacked."""
        client_states = ClientStates(initial_client_state(method, settings))
        client_pool = ClientPool(method, settings, self, client_states)
        server_state = initial_server_state(method, settings)
        ids = range(count)
        broadcast = make_broadcast(method, settings, server_state, len(self), ids)
        return Batched(client_pool).run(broadcast, ids, {})


def padding_problem(client_pool: ClientPool) -> str | None:
    """The reason why padding would count, or None. The catalogue's parts are known to leave it out and are not tried."""
    problem = why_padding_counts(
        client_pool.settings.model, client_pool.source.x, client_pool.some_context
    )
    loss = client_pool.settings.work.loss
    # what the user wrote is tried, if there is any of it
    suspects = [p.name for p in client_pool.method.parts if not _is_in_catalogue(p)]
    if callable(loss):
        suspects.append(
            f"the loss {text_of_function(loss)}, unless it gives a loss for each sample"
        )
    if problem or not suspects or not _padding_changes_update(client_pool):
        return problem
    return (
        f"padding would count in {' or '.join(suspects)}: a mean over the samples of a batch has to be batch.mean(per_sample), "
        "which leaves it out"
    )


def _is_in_catalogue(part: Part) -> bool:
    return type(part).__module__.partition(".")[0] == __name__.partition(".")[0]


def _padding_changes_update(client_pool: ClientPool) -> bool:
    """Whether padding changes a client's update. Tensors that differ between two seeds are random and are not compared."""
    try:
        clients, method, settings = _trial(client_pool)
        other_seed = replace(settings, seed=1)
        settings = replace(settings, seed=0)
        alone = _tensors(clients.stacked(method, settings, count=1))
        again = _tensors(clients.stacked(method, other_seed, count=1))
        padded = _tensors(clients.stacked(method, settings, count=2))
    except UnalikeError:
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        # the model or a part cannot be stacked for another reason
        return False
    repeated = [name for name in alone if not _differ(alone[name], again[name])]
    return any(_differ(alone[name], padded[name]) for name in repeated)


def _trial(client_pool: ClientPool) -> tuple[FewClients, Method, StageSettings]:
    """Two clients that train one epoch in one batch; without compression, which may enlarge last bits."""
    short, long = CHECKED_LENGTHS
    parts = [p for p in client_pool.method.parts if not isinstance(p, Upload)]
    method = Method(*parts)
    work = replace(client_pool.settings.work, epochs=1, steps=None, batch_size=long)
    model = _without_dropout(client_pool.settings.model)
    settings = replace(client_pool.settings, work=work, model=model)
    # the largest client's samples, repeated if they are too few
    largest = int(client_pool.sizes.argmax())
    rows = np.resize(client_pool.source.train[largest], long)
    return FewClients(client_pool.source, [rows[:short], rows]), method, settings


def _tensors(client_update: ClientUpdate) -> Tree:
    """The update, messages and loss of the first of several stacked clients."""
    messages = {f"message of {name}": t for name, t in client_update.messages.items()}
    tensors = client_update.update | tree.pack(messages) | {"loss": client_update.loss}
    return tree.row(tensors, 0)


def _without_dropout(model: Model) -> Model:
    """The model without dropout, whose random numbers would hide the effect of padding."""
    module = model.module(model.params, model.buffers)
    for layer in module.modules():
        if isinstance(layer, _DropoutNd):
            layer.p = 0.0
    return Model(module).to(next(iter(model.params.values())).device)


def _differ(a: Tensor, b: Tensor) -> bool:
    exact = tree.exact(a)
    distance = torch.linalg.vector_norm(exact - tree.exact(b))
    return bool(distance > ROUNDING * torch.linalg.vector_norm(exact))
