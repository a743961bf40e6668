"""Find models and parts of the user that would count rows of padding, by training a client with padding and without.

Start reading at `padding_problem`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

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
from unalike.engine.training_kind import TrainingKind
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
NOISY_DRAWS = 8
"""Trials with padding, and without, of a part that draws noise."""
SURE_DEVIATIONS = 6
"""The difference of their means, in standard deviations, that noise does not make."""


@dataclass(frozen=True, eq=False)
class TrialPool(ClientPool):
    """The clients of a trial. Each `draw` trains with random numbers of its own on the same batches."""

    draw: int = 0

    @cached_property
    def round_training(self) -> TrainingKind:
        """The training of a round, by this draw."""
        training = TrainingKind.round_of(self.method)
        return replace(training, chunk_dropout=f"draw {self.draw} of a trial")


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

    def stacked(
        self, method: Method, settings: StageSettings, count: int, draw: int = 0
    ) -> ClientUpdate:
        """The updates of the first `count` clients after one round, trained stacked; each `draw` has random numbers of its own."""
        client_states = ClientStates(initial_client_state(method, settings))
        client_pool = TrialPool(method, settings, self, client_states, draw=draw)
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
    """Whether padding changes a client's update, beyond what other random numbers change."""
    try:
        clients, method, settings = _trial(client_pool)

        def trained(count: int, draw: int) -> Tree:
            return _tensors(clients.stacked(method, settings, count, draw))

        alone = [trained(count=1, draw=draw) for draw in range(2)]
        padded = [trained(count=2, draw=0)]
        first, again = alone
        is_noisy = any(not torch.equal(t, again[name]) for name, t in first.items())
        if is_noisy:
            # A part draws noise: the mean of some draws shows whether padding counts, and their variance how sure that is.
            alone = [trained(count=1, draw=draw) for draw in range(NOISY_DRAWS)]
            padded = [trained(count=2, draw=draw) for draw in range(NOISY_DRAWS)]
    except UnalikeError:
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        # the model or a part cannot be stacked for another reason
        return False
    if len(padded) == 1:
        [once] = padded
        return any(_differ(t, once[name]) for name, t in alone[0].items())
    return any(_means_differ(_stacked(name, alone), _stacked(name, padded)) for name in alone[0])


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


def _stacked(name: str, draws: Sequence[Tree]) -> Tensor:
    """The tensor of this name in all draws, [draws, numbers]."""
    return torch.stack([tree.exact(draw[name]).flatten() for draw in draws])


def _differ(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ by more than rounding."""
    exact = tree.exact(one)
    distance = torch.linalg.vector_norm(exact - tree.exact(other))
    return bool(distance > ROUNDING * torch.linalg.vector_norm(exact))


def _means_differ(one: Tensor, other: Tensor) -> bool:
    """Whether the means of two sets of draws [draws, numbers] differ by more than rounding and more than noise would make them."""
    mean = one.mean(0)
    distance = torch.linalg.vector_norm(mean - other.mean(0))
    variance = one.var(0) / len(one) + other.var(0) / len(other)
    noise = variance.sum().sqrt()
    is_beyond_rounding = distance > ROUNDING * torch.linalg.vector_norm(mean)
    return bool(is_beyond_rounding and distance > SURE_DEVIATIONS * noise)
