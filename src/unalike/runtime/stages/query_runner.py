"""Client queries on this machine."""

from dataclasses import replace

import numpy as np
import torch

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.inputs import first_rows, take_rows
from unalike.core.types import Batch, Tree
from unalike.core.views import ServerState, StageSettings
from unalike.data.population import Population
from unalike.data.transforms import TransformChain
from unalike.methods.client_query import ClientQuery, QueryInputs
from unalike.methods.plan import Answers, QueryStep
from unalike.metrics.scoring import rows_at_once


def ask_client(
    query: ClientQuery,
    settings: StageSettings,
    state: ServerState,
    population: Population,
    client: int,
    transform: TransformChain | None = None,
    secret: bytes = b"",
) -> Tree:
    """One client's answer, on its samples as evaluation would prepare them; noise is drawn from its `secret`."""
    index = torch.from_numpy(population.train[client]).to(population.y.device)
    some_inputs = first_rows(population.x, 2)
    batches = []
    for rows in index.split(rows_at_once(some_inputs)) if len(index) else ():
        x = take_rows(population.x, rows)
        if transform is not None:
            no_random_numbers = x.new_zeros(len(x), 0)
            x = transform.fixed(x, no_random_numbers)
        batches.append(Batch(x, population.y[rows]))
    with torch.no_grad():
        model = settings.model.channels_last(some_inputs)
        inputs = QueryInputs(model, settings.task, state.params, state.buffers, batches, secret)
        return query.answer(inputs)


def ask_clients(
    step: QueryStep,
    settings: StageSettings,
    population: Population,
    transform: TransformChain | None = None,
) -> Answers:
    """The answers of all clients with training samples. Answers that are not finite are refused, as updates are."""
    model = step.model or settings.model
    state = step.state or ServerState(0, model.params, model.buffers, {})
    settings = replace(settings, model=model)
    answers: dict[int, Tree] = {}
    for client in np.flatnonzero(population.sizes > 0).tolist():
        secret = seeds.number(settings.seed, "secret of a client", client).to_bytes(8)
        answer = ask_client(step.query, settings, state, population, client, transform, secret)
        if all(bool(t.isfinite().all()) for t in answer.values()):
            answers[client] = answer
    if not answers:
        raise UnalikeError(
            f"no client has a usable answer to {step.query!r}; training diverged: try a smaller learning rate"
        )
    return Answers(tuple(answers), tree.stack(list(answers.values())))
