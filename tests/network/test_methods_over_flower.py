"""Every method and plan runs over one network of real processes: same results as in simulation.

It has two sites, or four for those that need something to cluster. A few runs are on their way at once.
"""

from __future__ import annotations

import json
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

pytest.importorskip("flwr")

from deployed_methods import FEW, FIRST_COUNT, SAMPLE_SIZES, SITES_ONLY, SPECS, agree
from echo_network import EchoNetwork
from small_federation import SmallFederation, make_clients, needs_proxy

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.federation.flower.grid_transport import MAX_UNANSWERED
from unalike.federation.protocol.envelope import MAGIC
from unalike.methods.part import registry
from unalike.methods.parts.discounted_mean import ArrivedFirst
from unalike.methods.sampler import Sampler

CROWDED = ("clustered", "fedconcat")
"""Methods that need more than two clients to form clusters."""
AT_ONCE = MAX_UNANSWERED
"""Concurrent runs; requests of further runs would be lost and repeated only later."""


def is_compared_elsewhere(name):
    """Whether a part chooses sites, or counts first updates: tests of selection and of late updates compare these."""
    builder = registry[name]
    return isinstance(builder, type) and issubclass(builder, Sampler | ArrivedFirst)


ELSEWHERE = sorted(name for name in registry if is_compared_elsewhere(name))


def distinct():
    """Methods in the catalogue that can run over a network, each value once (`fedlws` and `lws` are equal)."""
    found = {}
    for name in sorted(registry):
        if name not in (*SITES_ONLY, *FIRST_COUNT, *ELSEWHERE):
            found.setdefault(repr(ua.plan(SPECS.get(name, name))), name)
    return sorted(found.values())


def run_of(message):
    start = len(MAGIC) + 2
    head = message[start : start + int.from_bytes(message[len(MAGIC) : start], "little")]
    return json.loads(head)["run"]


class Shared:
    """The transport to a network that several coordinators share, each with its own queue."""

    def __init__(self, network):
        self.network, self.lock, self.lines, self.federations = network, threading.Lock(), {}, {}
        for name in network.names:
            network.handlers[name] = lambda message, name=name: (
                self.federations[run_of(message)].workers[name].handle(message)
            )

    def pump(self, seconds):
        with self.lock:
            for site, message in self.network.transport.receive(seconds):
                self.lines[run_of(message)].put((site, message))


class Line:
    def __init__(self, shared, fed):
        self.shared, self.fed, self.arrived = shared, fed, queue.Queue()

    def sites(self):
        return self.shared.network.names

    def connected(self):
        return ()

    def close(self):
        """Does nothing: the others use the network still."""

    def send(self, site, message):
        run = run_of(message)
        with self.shared.lock:
            self.shared.lines[run], self.shared.federations[run] = self.arrived, self.fed
            self.shared.network.transport.send(site, message)

    def receive(self, seconds):
        if self.arrived.empty():
            self.shared.pump(min(seconds, 0.05))
        found = []
        while not self.arrived.empty():
            found.append(self.arrived.get())
        return found


def compared(shared, name, folder):
    """Run a method over the network and in simulation; raise if results differ."""
    spec = SPECS.get(name, name)
    clients = make_clients(SAMPLE_SIZES if name in CROWDED else FEW)
    model = "conditional_mlp(hidden=(8,))" if "conditional" in spec else "mlp(hidden=(8,))"
    proxy = make_clients(((8, 8),))[0].test if needs_proxy(spec, clients) else None
    rounds = 3 if name in CROWDED else 2  # a plan of two stages, and a round in which clusters part
    fed = SmallFederation(
        folder, clients, spec, model=model, rounds=rounds, proxy=proxy, repeat=60.0, deadline=200.0
    )
    fed.transport = Line(shared, fed)
    agree(fed)
    assert not fed.events("refused", "absent", "late")


@contextmanager
def running(test, sites, items, folders):
    """Method -> future of its run, for the tests that were selected."""
    network = EchoNetwork(folders.mktemp("network"), tuple(f"site{k}" for k in range(sites)))
    names = [
        item.callspec.params["name"] for item in items if getattr(item, "originalname", "") == test
    ]
    shared, pool = Shared(network), ThreadPoolExecutor(AT_ONCE)
    yield {name: pool.submit(compared, shared, name, folders.mktemp("run")) for name in names}
    pool.shutdown(cancel_futures=True)
    network.close()


@pytest.fixture(scope="module")
def of_two(tmp_path_factory, request):
    with running(
        "test_method_with_two_sites_equals_simulation", 2, request.session.items, tmp_path_factory
    ) as found:
        yield found


@pytest.fixture(scope="module")
def of_four(tmp_path_factory, request):
    with running(
        "test_method_with_four_sites_equals_simulation", 4, request.session.items, tmp_path_factory
    ) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in distinct() if name not in CROWDED])
def test_method_with_two_sites_equals_simulation(name, of_two):
    of_two[name].result()


@pytest.mark.slow
@pytest.mark.parametrize("name", CROWDED)
def test_method_with_four_sites_equals_simulation(name, of_four):
    of_four[name].result()


@pytest.mark.slow
def test_unlike_networks_that_predict_public_samples_equal_simulation(tmp_path):
    network = EchoNetwork(tmp_path / "network", ("site0", "site1"))
    fed = SmallFederation(
        tmp_path / "run",
        make_clients(FEW),
        "fedmd",
        model="networks(small='mlp(hidden=(6,))', large='mlp(hidden=(12, 7))')",
        proxy=make_clients(((8, 8),))[0].test,
        repeat=60.0,
        deadline=200.0,
    )
    fed.transport = Line(Shared(network), fed)
    agree(fed)
    network.close()


def test_every_method_is_run_or_refused_with_reason(tmp_path):
    """Every catalogued method runs above or asynchronously, under its own or an equal name, or is refused with a reason."""
    runs = {repr(ua.plan(SPECS.get(name, name))) for name in distinct()}
    left = [name for name in sorted(registry) if repr(ua.plan(SPECS.get(name, name))) not in runs]
    assert left == sorted({*SITES_ONLY, *FIRST_COUNT, *ELSEWHERE})
    for name in SITES_ONLY:
        with pytest.raises(UnalikeError, match=SITES_ONLY[name]) as refused:
            SmallFederation(tmp_path / name, method=name).run()
        print(f"not over sockets: {name}: {refused.value}")
