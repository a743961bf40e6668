"""A few rounds by hand: the two procedures and an executor, with nothing of `federation` around them."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unalike.core.model import Model
from unalike.core.tasks.registry import find_task
from unalike.core.types import Batch, ClientUpdate, Tree
from unalike.core.views import Cohort, Members, ServerState, StageSettings
from unalike.core.work import Work
from unalike.engine.base import ClientPool
from unalike.engine.batched import Batched
from unalike.engine.loop import Loop
from unalike.methods.method import Method
from unalike.methods.plan import plan
from unalike.runtime.setup.attackers import malicious_clients
from unalike.training.client.client_states import ClientStates
from unalike.training.client.client_update import initial_client_state
from unalike.training.functional import _frame
from unalike.training.server import server_update
from unalike.training.server.kept_updates import KeptUpdates
from unalike.training.server.server_update import initial_server_state, make_broadcast

DEVICE = os.environ.get("UNALIKE_TEST_DEVICE", "cpu")
"""The device of all simulations: `make gpu` runs the contract suite on CUDA."""


def advance(
    method: Method, settings: StageSettings, state: ServerState, cohort: Cohort
) -> ServerState:
    """The state after a round with the updates of a cohort."""
    updates = KeptUpdates.in_memory(cohort.ids, cohort.stacked)
    return server_update.advance(method, settings, state, updates, cohort.members)


@dataclass
class Clients:
    """Clients' training data as index arrays into common tensors."""

    x: Tensor
    y: Tensor
    train: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.train)

    def to(self, device: str) -> Clients:
        """The same clients with their samples on a device."""
        return Clients(self.x.to(device), self.y.to(device), self.train)

    @classmethod
    def of(cls, *data: tuple[Any, Any], dtype: torch.dtype = torch.float32) -> Clients:
        """One (x, y) for each client; row 0 of the common tensors belongs to nobody."""
        x = torch.cat(
            [torch.zeros_like(torch.as_tensor(data[0][0][:1], dtype=dtype))]
            + [_tensor(x, dtype) for x, _ in data]
        )
        y = torch.cat([torch.as_tensor(data[0][1][:1])] + [_tensor(y, dtype) for _, y in data])
        ends = 1 + np.cumsum([0] + [len(x) for x, _ in data])
        return cls(x, y, [np.arange(a, b) for a, b in pairwise(ends)])

    @classmethod
    def random(
        cls,
        sizes: Sequence[int],
        dim: int = 4,
        classes: int = 3,
        seed: int = 0,
        dtype: Any = torch.float32,
    ) -> Clients:
        """Rows of normal numbers with random labels; every client has a mean of its own."""
        rng = np.random.default_rng(seed)
        return cls.of(
            *(
                (rng.normal(size=(n, dim)) + rng.normal(size=dim), rng.integers(0, classes, n))
                for n in sizes
            ),
            dtype=dtype,
        )


def _tensor(values: Any, dtype: torch.dtype) -> Tensor:
    tensor = torch.as_tensor(np.asarray(values))
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


class Simulation:
    """Rounds of one method: `round(ids)` trains, accepts all reports and advances the state."""

    def __init__(
        self,
        method: Method | str,
        module: nn.Module,
        clients: Clients,
        *,
        executor: str = "loop",
        task: str = "classification",
        seed: int = 3,
        buffers: str = "average",
        chunk: int | None = None,
        proxy: Batch | None = None,
        **work: Any,
    ):
        self.method = method if isinstance(method, Method) else plan(method)
        asked = self.method.local_work(Work(**work))
        self.method.check(asked)
        self.clients = clients = clients.to(DEVICE)
        module = module.to(DEVICE)
        if proxy is not None:
            proxy = Batch(*(t if t is None else t.to(DEVICE) for t in (proxy.x, proxy.y)))
        self.method.require(proxy)
        classes = None if clients.y.is_floating_point() else int(clients.y.max()) + 1
        malicious = malicious_clients(
            self.method, np.array([len(rows) for rows in clients.train]), seed
        )
        given = Model(module), find_task(task), asked, seed, buffers, proxy, classes
        self.settings = StageSettings(*given, malicious=malicious)
        site = ClientPool(
            self.method,
            self.settings,
            clients,
            ClientStates(initial_client_state(self.method, self.settings)),
        )
        self.executor = (
            Loop(site)
            if executor == "loop"
            else Batched(site, chunk, compiled_loops=executor != "by hand")
        )
        self.state: ServerState = initial_server_state(self.method, self.settings)
        self.accepted: dict[int, int] = {}

    @property
    def params(self) -> Tree:
        return self.state.params

    @property
    def members(self) -> Members:
        return Members(len(self.clients), float(sum(map(len, self.clients.train))))

    def everyone(self) -> list[int]:
        return list(range(len(self.clients)))

    def run(self, ids: Sequence[int] | None = None) -> Cohort:
        """The reports to the present order; neither accepted nor applied."""
        asked = list(self.everyone() if ids is None else ids)
        order = make_broadcast(self.method, self.settings, self.state, len(self.clients), asked)
        return Cohort(tuple(asked), self.executor.run(order, asked, self.accepted), self.members)

    def round(self, ids: Sequence[int] | None = None) -> Cohort:
        cohort = self.run(ids)
        self.accepted |= dict.fromkeys(cohort.ids, self.state.round)
        self.state = advance(self.method, self.settings, self.state, cohort)
        return cohort

    def tuned(self, ids: Sequence[int] | None = None) -> dict[int, Tree]:
        """Client -> its parameters and buffers after the method's fine-tuning."""
        asked = list(self.everyone() if ids is None else ids)
        order = make_broadcast(self.method, self.settings, self.state, len(self.clients), asked)
        return dict(self.executor.finetune(order, asked, self.accepted))

    def memory(self, client: int) -> dict[str, Tree]:
        return self.executor.client_pool.client_states.get(client, self.accepted.get(client))

    def batches(self, client: int, round: int) -> list[np.ndarray]:
        return self.executor.client_pool.schedules([client], round)[0][0]


class Server:
    """The server half alone, fed with clients' models made by hand."""

    def __init__(
        self,
        method: Method | str,
        params: dict[str, Any],
        dtype: torch.dtype = torch.float64,
        malicious: Sequence[int] = (),
        **work: Any,
    ):
        self.method = method if isinstance(method, Method) else plan(method)
        start = {n: torch.as_tensor(np.asarray(v), dtype=dtype) for n, v in params.items()}
        frame = _frame(None, start, {})
        self.settings = StageSettings(frame, None, Work(**work), malicious=frozenset(malicious))  # type: ignore[arg-type]
        memory = {p.name: m for p in self.method.parts if (m := p.server_init(start))}
        self.state = ServerState(0, start, {}, memory)

    def advance(
        self,
        clients: Sequence[dict[str, Any]],
        sizes: Sequence[float] | None = None,
        steps: Sequence[float] | None = None,
        weight: Sequence[float] | None = None,
        population: int | None = None,
        samples: float | None = None,
        shared: dict[str, Tree] | None = None,
        buffers: Tree | None = None,
    ):
        """The new parameters, as arrays, from the clients' models."""
        one = [1.0] * len(clients)
        size, steps, weight = (
            torch.tensor([float(v) for v in (one if s is None else s)])
            for s in (sizes, steps, steps if weight is None else weight)
        )
        update = {
            n: torch.stack([torch.as_tensor(np.asarray(c[n]), dtype=w.dtype) - w for c in clients])
            for n, w in self.state.params.items()
        }
        report = ClientUpdate(
            update, buffers or {}, {}, size, steps, weight, torch.zeros(len(clients)), shared or {}
        )
        everyone = population or len(clients)
        members = Members(everyone, everyone * float(size.mean()) if samples is None else samples)
        cohort = Cohort(tuple(range(len(clients))), report, members)
        self.state = advance(self.method, self.settings, self.state, cohort)
        return {n: t.numpy() for n, t in self.state.params.items()}


def mlp(
    dim: int = 4,
    hidden: int = 5,
    classes: int = 3,
    seed: int = 1,
    norm: bool = False,
    dropout: float = 0.0,
) -> nn.Module:
    """body -> tanh -> head; the features are the head's input.

    A bias before a norm would have no gradient but rounding noise, which rules without a scale of their own blow up.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers: dict[str, nn.Module] = {"body": nn.Linear(dim, hidden, bias=not norm)}
        if norm:
            layers["norm"] = nn.BatchNorm1d(hidden)
        layers["act"] = nn.Tanh()
        if dropout:
            layers["drop"] = nn.Dropout(dropout)
        return nn.Sequential(OrderedDict(layers, head=nn.Linear(hidden, classes)))


def plane(w1: float, w2: float) -> nn.Module:
    """y = w1 x1 + w2 x2: a model of two parameters."""
    module = nn.Sequential(OrderedDict(head=nn.Linear(2, 1, bias=False)))
    with torch.no_grad():
        module.head.weight.copy_(torch.tensor([[w1, w2]]))
    return module


def same(a: Any, b: Any) -> bool:
    """Whether two nests of tensors are bitwise equal, with the same names."""
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[n], b[n]) for n in a)
    return len(a) == len(b) and all(map(same, a, b))


def distance(a: Tree, b: Tree, start: Tree) -> float:
    """||a - b|| / ||b - start|| over all entries."""
    gap = sum(float((a[n] - b[n]).double().square().sum()) for n in b)
    way = sum(float((b[n] - start[n]).double().square().sum()) for n in b)
    return (gap / way) ** 0.5 if way else gap**0.5
