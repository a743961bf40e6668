"""A slow site over real sockets: rounds go on without it, and the run is what its arrivals say."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("flwr")

from echo_network import EchoNetwork
from late_updates import SLOW, ages_of_rounds, assert_equal_bits, replayed, three_sites
from small_federation import states

FAST_UPDATES = 6
"""Updates of the fast sites for which the slow site waits before it sends its first one: those of three rounds."""
PATIENCE_SECONDS = 60.0


def test_rounds_go_on_without_a_slow_site_and_are_those_of_a_simulation(tmp_path):
    fed = three_sites(tmp_path / "fed", "fedbuff(buffer=2)", rounds=6)
    of_the_others = threading.Semaphore(0)

    def count(head, facts, tensors):
        if "size" in tensors:
            of_the_others.release()

    def wait(head, facts, tensors):
        if "size" in tensors and head.round == 0:
            for _ in range(FAST_UPDATES):
                assert of_the_others.acquire(timeout=PATIENCE_SECONDS)

    for client in fed.clients:
        fed.corrupt(client.name, wait if client.name == SLOW else count)
    network = EchoNetwork(tmp_path / "network", tuple(fed.workers))
    try:
        for name, worker in fed.workers.items():
            network.handlers[name] = worker.handle
        fed.transport = network.transport
        run = fed.coordinator().run()
    finally:
        network.close()

    ages = ages_of_rounds(fed)
    slow = fed.federation.number(SLOW)
    late = min(number for number, of_round in ages.items() if slow in of_round)
    assert ages[late][slow] == late >= FAST_UPDATES // 2 - 1
    assert_equal_bits(replayed(fed), states(run))
