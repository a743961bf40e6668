"""Measure attacks of hostile sites on a federation, with and without the norm guard and robust aggregators.

    python benchmarks/attacks.py

Ten sites with digits, three of them hostile in the same way, in one process with all checks of a real federation. Prints the
accuracy on held-out digits after the last round, for backdoors the share of digits with the trigger that are classified as the
attacker's class, and the number of refused updates.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import unalike as ua
from unalike.federation.coordinator.coordinator import Coordinator
from unalike.federation.protocol.envelope import Head, seal, unseal
from unalike.federation.protocol.federation_file import EnrolledSite, Federation, Schema
from unalike.federation.security.keys import new_key, public_text
from unalike.federation.site.site_worker import SiteWorker

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
from in_memory_transport import InMemoryTransport

SITES, HOSTILE, ROUNDS = 10, 3, 30
WORK = ua.Work(epochs=2, batch_size=16, lr=0.1)
MODEL = "mlp(hidden=(32,))"
TARGET = 0
Change = Callable[[dict[str, torch.Tensor], int], dict[str, torch.Tensor]]


def updates(change: Callable[[torch.Tensor, int], torch.Tensor]) -> Change:
    return lambda tensors, round: {
        n: change(t, round) if n.startswith("update/") else t for n, t in tensors.items()
    }


def colluding(t: torch.Tensor, round: int) -> torch.Tensor:
    """The same noise from all hostile sites, with the norm of an update."""
    noise = torch.randn(t.shape, generator=torch.Generator().manual_seed(round))
    return noise * t.norm() / noise.norm().clamp_min(1e-9)


ATTACKS: dict[str, Change | None] = {
    "none": None,
    "scaled by 100": updates(lambda t, r: 100 * t),
    "sign flip": updates(lambda t, r: -t),
    "sign flip, scaled by 10": updates(lambda t, r: -10 * t),
    "colluding noise": updates(colluding),
    "free rider": updates(lambda t, r: 0 * t),
    "label flip": None,
    "backdoor": None,
    "backdoor, scaled by 10": updates(lambda t, r: 10 * t),
}
DEFENCES: dict[str, tuple[str, float]] = {
    "mean": ("fedavg", 0.0),
    "mean, guard 3": ("fedavg", 3.0),
    "median": ("median", 0.0),
    "trimmed mean 0.3": ("trimmed_mean(beta=0.3)", 0.0),
    "multikrum": ("multikrum(byzantine=3)", 0.0),
    "geometric median": ("geometric_median", 0.0),
}


def poisoned(client: ua.ClientData, attack: str) -> ua.ClientData:
    """The training data of a hostile site."""
    x, y = (torch.as_tensor(t).clone() for t in client.train)
    if attack == "label flip":
        y = 9 - y
    if attack.startswith("backdoor"):
        half = torch.arange(len(y)) % 2 == 0
        x[half], y[half] = triggered(x[half]), TARGET
    return ua.ClientData(train=(x, y), test=client.test, name=client.name)


def triggered(x: torch.Tensor) -> torch.Tensor:
    """Add the trigger, a bright corner."""
    x = x.clone()
    x[..., :2, :2] = x.max()
    return x


class Hostile:
    """A site that changes its updates before it signs them."""

    def __init__(self, worker: SiteWorker, change: Change):
        self.worker, self.change = worker, change

    def handle(self, message: bytes) -> bytes:
        reply = self.worker.handle(message)
        answer = unseal(reply, self.worker.key.public_key())
        facts, tensors = answer.open()
        head: Head = answer.head
        return (
            seal(head, facts, self.change(tensors, head.round), self.worker.key)
            if "size" in tensors
            else reply
        )


def federation(
    attack: str, method: str, guard: float, data: Any, folder: Path
) -> tuple[float, float, int]:
    """Run a federation; returns accuracy, success rate of the backdoor and number of refused updates."""
    clients, (x, y) = data
    hostile = range(SITES - HOSTILE, SITES) if attack != "none" else ()
    clients = [poisoned(c, attack) if k in hostile else c for k, c in enumerate(clients)]
    keys, coordinator = [new_key() for _ in clients], new_key()
    made = Federation(
        name="attacked",
        method=method,
        model=MODEL,
        rounds=ROUNDS,
        coordinator=public_text(coordinator),
        data=Schema(shape=tuple(x.shape[1:]), classes=10),
        sites=tuple(EnrolledSite(c.name, public_text(k), 1000) for c, k in zip(clients, keys)),
        work=WORK,
        quorum=SITES - HOSTILE,
        guard=guard,
        protocol=("server",),
    )
    sites: dict[str, Any] = {
        c.name: SiteWorker(made, c.name, k, c, folder / c.name) for c, k in zip(clients, keys)
    }
    for k in hostile:
        change = ATTACKS[attack]
        if change is not None:
            sites[clients[k].name] = Hostile(sites[clients[k].name], change)
    run = Coordinator(
        made, coordinator, InMemoryTransport(sites), folder / "out", test=(x, y)
    ).run()
    module = run.module()
    with torch.no_grad():
        others = x[y != TARGET]
        fooled = float((module(triggered(others)).argmax(-1) == TARGET).double().mean())
    refused = (folder / "out" / "events.jsonl").read_text().count('"event": "refused"')
    return float(run.history.rounds["accuracy"].iloc[-1]), fooled, refused


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    digits = ua.load("digits")
    people = ua.partition(digits, "dirichlet(alpha=1)", clients=SITES + 2, seed=0)
    clients = [
        ua.ClientData(train=c.train, test=c.test, name=f"site{k}")
        for k, c in enumerate(people[:SITES])
    ]
    held = [people[k].train for k in (SITES, SITES + 1)] + [c.test for c in clients if c.test]
    test = tuple(torch.cat([torch.as_tensor(pair[i]) for pair in held]) for i in (0, 1))
    print(
        f"{SITES} sites, {HOSTILE} hostile, {ROUNDS} rounds; accuracy on {len(test[1])} held-out digits"
    )
    print(
        "(backdoor: share of other digits with the trigger that are classified as the attacker's; updates refused)\n"
    )
    print(f"{'attack':26}" + "".join(f"{name:>20}" for name in DEFENCES))
    for attack in ATTACKS:
        row = f"{attack:26}"
        for method, guard in DEFENCES.values():
            with tempfile.TemporaryDirectory() as folder:
                accuracy, fooled, refused = federation(
                    attack, method, guard, (clients, test), Path(folder)
                )
            more = f" b{fooled:.2f}" if attack.startswith("backdoor") else ""
            more += f" r{refused}" if refused else ""
            row += f"{f'{accuracy:.3f}{more}':>20}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
