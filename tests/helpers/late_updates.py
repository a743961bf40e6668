"""Test helper: federations with a slow site, and simulations in which updates arrive as they did in a federation."""

from __future__ import annotations

import torch
from in_memory_transport import InMemoryTransport
from small_federation import SmallFederation, make_clients, states

from unalike.client_devices.simulated_clock import Arrivals, NoDevices, UnderWay
from unalike.runtime.round_loop import execute
from unalike.runtime.stages.local_backend import LocalBackend

SAMPLE_SIZES = ((20, 8), (12, 6), (16, 6))
SLOW = "site1"


class SlowSite(InMemoryTransport):
    """A network on which the answers of `SLOW` take ten times as long as those of the others."""

    def _schedule(self, back, site, message, delay):
        super()._schedule(back, site, message, 9 if back and site == SLOW else 0)


class RecordedArrivals(NoDevices):
    """Devices of a simulation whose updates arrive as they did in a federation.

    `ages` are those of each round, by client, `refused` the clients whose update did not count. Clients take part `since` a round.
    """

    under_way = ()
    next_round = 0

    def __init__(self, ages, refused, since):
        self.ages = ages
        self.refused = refused
        self.since = since

    def late_updates_count(self, awaited):
        return True

    def present(self, eligible):
        busy = {event.client for event in self.under_way}
        away = {client for client, first in self.since.items() if self.next_round < first}
        return [client for client in eligible if client not in busy | away]

    def train(self, round, asked, work_of, awaited=float("inf")):
        self.next_round = round + 1
        for clients in asked.values():
            new = [UnderWay(0.0, client, round, "", 0.0) for client in clients]
            self.under_way = (*self.under_way, *new)
        rounds = {client: round - age for client, age in sorted(self.ages[round].items())}
        came = {(event.client, event.round) for event in self.under_way} & rounds.items()
        assert came == set(rounds.items())
        lost = dict.fromkeys(self.refused.get(round, ()), "refused")
        left = rounds.keys() | lost.keys()
        self.under_way = tuple(event for event in self.under_way if event.client not in left)
        return Arrivals(rounds, lost)


def three_sites(folder, method, **more):
    """A federation of three sites, whose requests are not repeated within a test."""
    usual = {"rounds": 8, "repeat": 60.0}
    return SmallFederation(folder, make_clients(SAMPLE_SIZES), method, **(usual | more))


def slow_federation(folder, method, **more):
    """A federation of three sites, the second of which is slow."""
    fed = three_sites(folder, method, **more)
    fed.transport = SlowSite(fed.workers)
    return fed


def client_of(fed, site):
    return fed.federation.number(site)


def ages_of_rounds(fed):
    """For each round, counted from 0, client -> age of its update; of a round that was made again those that counted."""
    by_round = {}
    for event in fed.events("arrived"):
        ages = {client_of(fed, site): age for site, age in event["ages"].items()}
        by_round[event["round"] - 1] = ages
    return by_round


def refused_in_rounds(fed):
    return {e["round"] - 1: [client_of(fed, e["client"])] for e in fed.events("refused")}


def joined_since(fed):
    """Client -> the round, counted from 0, since which a site that came late takes part."""
    return {client_of(fed, e["client"]): e["round"] - 1 for e in fed.events("joined")}


def replayed(fed):
    """The server states of a simulation with the arrivals of a federation."""
    run_config = fed.simulated(rounds=fed.federation.rounds).run_config
    backend = LocalBackend(run_config)
    backend.devices = RecordedArrivals(
        ages_of_rounds(fed), refused_in_rounds(fed), joined_since(fed)
    )
    return states(execute(run_config, backend=backend))


def assert_equal_bits(found, expected):
    [found], [expected] = found.values(), expected.values()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
