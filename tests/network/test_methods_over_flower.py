"""One federation of two sites stays up, and every method and plan runs over it: the numbers are those of the simulation.

A SuperNode needs half a second for a message, so a few runs are on their way at once.
"""

from __future__ import annotations

import json
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("flwr")

from sockets import Echoing
from test_every_method_deployed import NAMES, SPECS, agree
from worlds import World, needs_proxy, people

import unalike as ua
from unalike.deploy.envelope import MAGIC

FEW = ((20, 8), (12, 6))
CROWDED = ("clustered", "fedconcat")
"""These need more clients than two to have something to cluster."""
AT_ONCE = 8


def distinct():
    """Names with what they stand for, each value once (`fedlws` and `lws` are one)."""
    found = {}
    for name in NAMES:
        if name not in CROWDED:
            found.setdefault(repr(_plan(SPECS.get(name, name))), name)
    return sorted(found.values())


def _plan(spec):
    try:
        return ua.plan(spec)
    except TypeError:  # a part whose fields have no defaults
        return spec


def run_of(message):
    start = len(MAGIC) + 2
    head = message[start : start + int.from_bytes(message[len(MAGIC) : start], "little")]
    return json.loads(head)["run"]


class Shared:
    """The transport to a network that several coordinators use at once, each over a line of its own."""

    def __init__(self, network):
        self.network, self.lock, self.lines, self.worlds = network, threading.Lock(), {}, {}
        for name in network.names:
            network.handlers[name] = lambda message, name=name: (
                self.worlds[run_of(message)].trainers[name].handle(message)
            )

    def pump(self, seconds):
        with self.lock:
            for site, message in self.network.transport.receive(seconds):
                self.lines[run_of(message)].put((site, message))


class Line:
    def __init__(self, shared, world):
        self.shared, self.world, self.arrived = shared, world, queue.Queue()

    def sites(self):
        return self.shared.network.names

    def send(self, site, message):
        run = run_of(message)
        with self.shared.lock:
            self.shared.lines[run], self.shared.worlds[run] = self.arrived, self.world
            self.shared.network.transport.send(site, message)

    def receive(self, seconds):
        if self.arrived.empty():
            self.shared.pump(min(seconds, 0.05))
        found = []
        while not self.arrived.empty():
            found.append(self.arrived.get())
        return found


def compared(shared, name, folder):
    """Run a method over the network and in simulation; raises where they differ."""
    spec = SPECS.get(name, name)
    clients = people(FEW)
    model = "conditional_mlp(hidden=(8,))" if "conditional" in spec else "mlp(hidden=(8,))"
    proxy = people(((8, 8),))[0].test if needs_proxy(spec, clients) else None
    world = World(folder, clients, spec, model=model, proxy=proxy, repeat=60.0, deadline=200.0)
    world.transport = Line(shared, world)
    agree(world)
    assert not world.events("refused", "absent", "late")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, request):
    """Method -> its run's future."""
    network = Echoing(tmp_path_factory.mktemp("network"), ("site0", "site1"))
    network.transport.pings = 1
    chosen = [i.callspec.params["name"] for i in request.session.items if i.module.__name__ == __name__]
    shared, pool = Shared(network), ThreadPoolExecutor(AT_ONCE)
    yield {name: pool.submit(compared, shared, name, tmp_path_factory.mktemp("run")) for name in chosen}
    pool.shutdown(cancel_futures=True)
    network.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", distinct())
def test_two_rounds_over_real_sockets_agree_with_the_simulation(name, outcomes):
    try:
        outcomes[name].result()
    except TypeError as error:  # a part whose fields have no defaults
        pytest.skip(f"needs settings: {error}")
