"""What simulated devices cost, and what a slow site costs a federation.

    python benchmarks/devices.py million         rounds a second of a million devices that come and go, beside rounds without
    python benchmarks/devices.py asynchronous    memory of 10,000 clients that are all under way, as the rounds go on
    python benchmarks/devices.py slow_site       updates a second of the fast sites beside a site that is ten times as slow
    python benchmarks/devices.py score [SEED]    seconds until federations with such a site reach a score, by method

CPU seconds are counted for simulations, whose rounds with and without devices take turns. The sites of a federation are threads;
training lasts as long as a site sleeps, so that they do not wait for each other's processor. `scale.py` has the populations.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import scale
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from small_federation import COORDINATOR, SmallFederation

import unalike as ua
from unalike.federation.protocol.envelope import unseal
from unalike.federation.protocol.federation_file import Schema
from unalike.methods.plan import steps_of
from unalike.runtime.records.history import History
from unalike.runtime.round_loop import run_round
from unalike.runtime.setup.run_config import configure_run
from unalike.runtime.stages.local_backend import LocalBackend, LocalStage

MANY, COHORT = 10**6, 1000
AVAILABLE = "lognormal(sigma=1) + day_night(hours=10)"
ROUNDS = 60
ASYNCHRONOUS_CLIENTS = 10_000
ASYNCHRONOUS_ROUNDS = (100, 200, 400)
FAST_SECONDS = 1.0
"""The seconds in which a fast site trains."""
TIMES_SLOWER = 10
"""The times that the slow site takes as long."""


def stage_of(method: str, clients: int, participation: float, devices: str | None) -> LocalStage:
    """A stage of softmax regression, ready for its first round."""
    run_config = configure_run(
        method,
        scale.population(clients),
        model="linear",
        rounds=100_000,
        work=ua.Work(batch_size=scale.EACH, lr=0.05),
        executor="batched",
        participation=participation,
        devices=devices,
    )
    step = next(steps_of(run_config.plan, run_config.plan_inputs))
    stage = LocalBackend(run_config).stage(step, 0, None)
    stage.start()
    return stage


def print_million() -> None:
    """The share of the rounds a second that is left with devices."""
    print("| method | ms of a round without devices | with | rounds a second that are left |")
    for method in ("fedavg", "scaffold"):
        stages = [stage_of(method, MANY, COHORT / MANY, of) for of in (None, AVAILABLE)]
        seconds: list[list[float]] = [[], []]
        for _ in range(ROUNDS):
            for stage, times in zip(stages, seconds, strict=True):
                started = time.process_time()
                run_round(stage)
                times.append(time.process_time() - started)
        without, with_devices = (1000 * statistics.median(times[2:]) for times in seconds)
        print(f"| {method} | {without:.2f} | {with_devices:.2f} | {without / with_devices:.0%} |")


def print_asynchronous() -> None:
    """The memory of the process as asynchronous rounds go on, all clients being under way."""
    stage = stage_of("fedbuff(buffer=100)", ASYNCHRONOUS_CLIENTS, 1.0, "pareto(shape=1.5)")
    done = 0
    for rounds in ASYNCHRONOUS_ROUNDS:
        while done < rounds:
            run_round(stage)
            done += 1
        megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        [group] = stage.state.groups.values()
        print(f"{done} rounds: {megabytes:.0f} MB, {len(group.versions)} models", flush=True)


class SleepingSites:
    """A transport to sites that are threads, each of which sleeps while it trains."""

    def __init__(self, workers: dict[str, Any], seconds: dict[str, float]) -> None:
        self._inboxes: dict[str, Queue[bytes]] = {name: Queue() for name in workers}
        self._answers: Queue[tuple[str, bytes]] = Queue()
        self._new = set(workers)
        for name, worker in workers.items():
            arguments = (name, worker, seconds[name])
            threading.Thread(target=self._serve, args=arguments, daemon=True).start()

    def _serve(self, name: str, worker: Any, seconds: float) -> None:
        while True:
            message = self._inboxes[name].get()
            trains = unseal(message, COORDINATOR.public_key()).open()[0].get("train")
            answer = worker.handle(message)
            if trains:
                time.sleep(seconds)
            self._answers.put((name, answer))

    def sites(self) -> Collection[str]:
        return self._inboxes

    def connected(self) -> Collection[str]:
        new, self._new = self._new, set()
        return new

    def send(self, site: str, message: bytes) -> None:
        self._inboxes[site].put(message)

    def receive(self, seconds: float) -> Iterable[tuple[str, bytes]]:
        try:
            return [self._answers.get(timeout=max(seconds, 0.001))]
        except Empty:
            return []


def federation_of(method: str, slow: bool, seed: int = 0, **terms: Any) -> SmallFederation:
    """A federation on digits, whose first site is slow if one is."""
    clients = [
        *ua.partition("digits", "dirichlet(alpha=0.3)", clients=terms.pop("sites"), seed=seed)
    ]
    clients = [replace(client, name=f"site{k}") for k, client in enumerate(clients)]
    folder = Path(tempfile.mkdtemp())
    usual = {
        "model": "linear",
        "work": ua.Work(lr=0.05),
        "repeat": 600.0,
        "deadline": 600.0,
        "seed": seed,
    }
    schema = {"data": schema_of(clients)}
    fed = SmallFederation(folder, clients, method, **(usual | schema | terms))
    seconds = {client.name: FAST_SECONDS for client in clients}
    if slow:
        seconds["site0"] = TIMES_SLOWER * FAST_SECONDS
    fed.transport = SleepingSites(fed.workers, seconds)
    return fed


def schema_of(clients: list[ua.ClientData]) -> Schema:
    """The schema of digits."""
    return Schema(shape=tuple(clients[0].train[0].shape[1:]), classes=10)


def print_slow_site() -> None:
    """The updates a second of two fast sites, beside a third one that is as fast, or ten times as slow."""
    rates = {}
    cases = {
        "three fast sites": ("fedavg", False, {}),
        "one slow, the first two end a round": ("fedavg", True, {"first": 2}),
        "one slow, fedbuff(buffer=2)": ("fedbuff(buffer=2)", True, {}),
        "one slow, all are awaited": ("fedavg", True, {}),
    }
    for name, (method, slow, terms) in cases.items():
        rounds = 3 if name.endswith("awaited") else 12
        run = federation_of(method, slow, sites=3, rounds=rounds, **terms).coordinator().run()
        turns = run.history.timeline
        fast = turns[turns["client"] > 0]
        rates[name] = len(fast) / (fast["ended"].max() - fast["begun"].min())
        share = rates[name] / rates["three fast sites"]
        print(f"| {name} | {rates[name]:.2f} updates a second | {share:.0%} |", flush=True)


@dataclass(frozen=True)
class Entry:
    """A row of the table: a method, and the terms that go with it."""

    name: str
    method: str
    terms: dict[str, Any]


SCORE = 0.88
LONGEST_SECONDS = 120.0
"""Seconds after which a federation that has not reached the score ends."""
ENTRIES = (
    Entry("FedAvg", "fedavg", {}),
    Entry("FedAvg, late ones dropped", "fedavg", {"deadline": 3.0, "quorum": 3}),
    Entry("FedProx, late ones dropped", "fedprox(mu=0.01)", {"deadline": 3.0, "quorum": 3}),
    Entry("FedAvg, rounds end with the first 4", "fedavg", {"first": 4}),
    Entry("FedBuff, 3 updates a step", "fedbuff(buffer=3)", {}),
    Entry("FedAsync", "fedasync(mixing=0.3)", {}),
)


def is_over(started: float, history: History) -> bool:
    """Whether the newest model has the score, or the time is over."""
    return bool(history.last["accuracy"] >= SCORE) or time.monotonic() - started > LONGEST_SECONDS


def print_score(seed: int) -> None:
    """The seconds until each method reaches the score with five sites, one of them slow."""
    for entry in ENTRIES:
        fed = federation_of(entry.method, True, seed, sites=5, rounds=200, **entry.terms)

        started = time.monotonic()
        run = fed.coordinator().run(stop=partial(is_over, started))
        seconds = time.monotonic() - started
        counted = run.history.timeline.query("client == 0")["fate"].str.startswith("trained").sum()
        last = run.history.last
        print(
            f"{seed} | {entry.name} | {seconds:.1f} s | {last['round']} rounds | {last['accuracy']:.3f} | {counted} of the slow",
            flush=True,
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    what, *rest = sys.argv[1:] or ["million"]
    if what == "million":
        print_million()
    elif what == "asynchronous":
        print_asynchronous()
    elif what == "slow_site":
        print_slow_site()
    else:
        print_score(int(*rest or ["0"]))
