"""Test helper: small federations in one process, with site workers, a transport and a coordinator's folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from in_memory_transport import InMemoryTransport, NetworkFaults

import unalike as ua
from unalike.data.array_checks import pair
from unalike.federation.coordinator.coordinator import Coordinator
from unalike.federation.coordinator.run_control import Control
from unalike.federation.protocol.envelope import seal, unseal
from unalike.federation.protocol.federation_file import EnrolledSite, Federation, Schema
from unalike.federation.protocol.public_samples import PublicSamples
from unalike.federation.security.keys import PrivateKey, private_key, public_text
from unalike.federation.site.site_worker import SiteWorker
from unalike.methods.plan import method_of

SIZES = [(20, 8), (12, 6)]
WORK = ua.Work(batch_size=5, lr=0.1)
MODEL = "mlp(hidden=(8,))"


def key_of(number: int) -> PrivateKey:
    """A deterministic key: the same in every process of a test."""
    return private_key(f"{number:064x}")


COORDINATOR = key_of(1000)


@cache
def make_clients(
    sizes: tuple[tuple[int, int], ...] = tuple(SIZES), shape: tuple[int, ...] = (6,)
) -> list[ua.ClientData]:
    """Clients with samples of four classes that have different means."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(4, *shape)) * 2
    found = []
    for k, (n, m) in enumerate(sizes):
        y = rng.integers(0, 4, n + m)
        x = (means[y] + rng.normal(size=(n + m, *shape))).astype(np.float32)
        found.append(ua.ClientData(train=(x[:n], y[:n]), test=(x[n:], y[n:]), name=f"site{k}"))
    return found


def federation_of(
    clients: Sequence[ua.ClientData], method: str = "fedavg", **more: Any
) -> Federation:
    sites = tuple(EnrolledSite(c.name, public_text(key_of(k)), 1000) for k, c in enumerate(clients))
    usual = {
        "name": "test",
        "method": method,
        "model": MODEL,
        "rounds": 2,
        "coordinator": public_text(COORDINATOR),
        "data": more.get("data") or Schema(shape=tuple(clients[0].train[0].shape[1:]), classes=4),
        "sites": sites,
        "work": WORK,
        "deadline": 5.0,
        "repeat": 0.05,
    }
    return Federation(**(usual | more))


class TamperingSite:
    """A site that changes its replies before it signs them: `change(head, facts, tensors)` returns the new reply, or None."""

    def __init__(self, worker: SiteWorker, change: Callable[..., Any]):
        self.worker, self.change = worker, change

    def handle(self, message: bytes) -> bytes:
        reply = self.worker.handle(message)
        answer = unseal(reply, self.worker.key.public_key())
        facts, tensors = answer.open()
        changed = self.change(answer.head, facts, dict(tensors))
        return (
            reply
            if changed is None
            else changed
            if isinstance(changed, bytes)
            else seal(*changed, self.worker.key)
        )


class StopInsteadOfPause(Control):
    """A control that stops the run where it would pause, so that tests without a quorum do not hang."""

    def pause(self, why: str = "asked for") -> None:
        self.stop()


class SmallFederation:
    """A federation in a folder. Site workers and coordinator can be created again at any time, as after a kill."""

    def __init__(
        self,
        folder: Path,
        clients: Sequence[ua.ClientData] | None = None,
        method: str = "fedavg",
        **more: Any,
    ):
        self.folder = folder
        self.clients = clients or make_clients()
        self.test, proxy = (more.pop(name, None) for name in ("test", "proxy"))
        self.proxy = None if proxy is None else pair(proxy, "proxy")
        self.faults, self.seed = more.pop("faults", NetworkFaults()), more.pop("transport_seed", 0)
        agreed = federation_of(self.clients, method, **more)
        if method_of(ua.plan(method)).clients_read_proxy and self.proxy is not None:
            agreed = replace(agreed, public=PublicSamples.of(self.proxy))
        self.federation = agreed
        self.workers: dict[str, Any] = {}
        self.restart_sites()
        self.transport = InMemoryTransport(self.workers, self.faults, self.seed)

    def restart_sites(self, *names: str) -> None:
        """Create the site workers again, as in new processes: state that is not on disk is lost."""
        for k, client in enumerate(self.clients):
            if not names or client.name in names:
                self.workers[client.name] = SiteWorker(
                    self.federation,
                    client.name,
                    key_of(k),
                    client,
                    self.folder / client.name,
                    public=self.proxy,
                )

    def tapped(self, tap: Callable[[Any], Any]) -> dict[str, Any]:
        """The site workers, each inside a `tap` of its own from now on."""
        self.workers.update({name: tap(worker) for name, worker in self.workers.items()})
        return dict(self.workers)

    def corrupt(self, name: str, change: Callable[..., Any]) -> None:
        """Let `change` tamper with a site's replies."""
        self.workers[name] = TamperingSite(self.workers[name], change)

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def coordinator(self, **more: Any) -> Coordinator:
        samples = {"test": self.test, "proxy": self.proxy, "control": StopInsteadOfPause()}
        return Coordinator(
            self.federation, COORDINATOR, self.transport, self.out, **(samples | more)
        )

    def run(self, **more: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = self.coordinator().run(**more)
        self.transport.close()
        return run

    def simulated(self, **more: Any) -> Any:
        """The same run in simulation."""
        f = self.federation
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ua.run(
                f.method,
                self.clients,
                **{
                    "model": f.model,
                    "rounds": f.rounds,
                    "work": f.work,
                    "seed": f.seed,
                    "executor": "loop",
                    "protocol": f.protocol,
                    "buffers": f.buffers,
                    "transform": f.transform,
                    "test": self.test,
                    "proxy": self.proxy,
                    "evaluate_every": f.evaluate_every,
                    "participation": f.participation,
                }
                | more,
            )

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """The recorded events, all or of these kinds."""
        lines = (self.out / "events.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return [e for e in found if not kinds or e["event"] in kinds]


def needs_proxy(method: str, clients: Sequence[ua.ClientData]) -> bool:
    """Whether a method or plan trains on samples of the server."""
    plan = ua.plan(method)
    return method.startswith("data_sharing") or any(
        p.needs_proxy for p in getattr(plan, "parts", ())
    )


def states(run: Any) -> dict[str, Any]:
    """The server states at the end: group -> name -> tensor."""
    found = {}
    for name, state in run._runner.state.states.items():
        memory = {
            f"{part}/{n}": t for part, tree in state.part_states.items() for n, t in tree.items()
        }
        found[name] = state.params | state.buffers | memory
    return found


__all__ = [
    "COORDINATOR",
    "NetworkFaults",
    "SmallFederation",
    "federation_of",
    "key_of",
    "make_clients",
    "needs_proxy",
    "states",
]
