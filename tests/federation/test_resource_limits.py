"""Limits on one site's use of the coordinator: bytes per minute at the gateway, waiting messages, recorded events."""

from __future__ import annotations

import asyncio
import base64
import ssl
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from flwr.supercore.task_identity import TaskIdentity
from in_memory_transport import InMemoryTransport
from small_federation import COORDINATOR, federation_of, make_clients

from unalike.federation.coordinator.mailbox import NOTED, REQUESTS_PER_SITE, Mailbox
from unalike.federation.coordinator.run_control import Control
from unalike.federation.flower import gateway
from unalike.federation.flower.gateway import Gateway, Settings
from unalike.federation.flower.grid_transport import MAX_UNANSWERED, GridTransport
from unalike.federation.security import certificates

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
LIMITS = {"body_bytes": 600, "minute_bytes": 1000, "connections_per_address": 3}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gate")
    key, authority = certificates.authority("test")
    mine, certificate = certificates.server(["localhost"], key, authority)
    for name, what in {"ca.pem": authority, "server.pem": certificate, "server.key": mine}.items():
        (folder / name).write_bytes(certificates.pem(what))
    return folder


class Door:
    """A gateway in this process in front of a server that accepts everything."""

    def __init__(self, files, keys):
        self.files, self.keys, self.passed = files, keys, []

    async def __aenter__(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.files / "server.pem", self.files / "server.key")
        self._behind = await asyncio.start_server(self._yes, "127.0.0.1", 0, ssl=context)
        names = {"certificate": "server.pem", "key": "server.key", "authority": "ca.pem"}
        paths = {what: str(self.files / name) for what, name in names.items()}
        inside = self._behind.sockets[0].getsockname()[1]
        self.gateway = Gateway(Settings("127.0.0.1", 0, inside, keys=self.keys, **paths, **LIMITS))
        self._front = await asyncio.start_server(self.gateway.serve_connection, "127.0.0.1", 0, ssl=context)
        self.port = self._front.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        for server in (self._front, self._behind):
            server.close()

    async def _yes(self, reader, writer):
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(int(f.split(b":")[1]) for f in head.lower().split(b"\r\n") if f.startswith(b"content-length"))
            self.passed.append(len(await reader.readexactly(length)))
            writer.write(OK)

    async def connect(self):
        trusting = ssl.create_default_context(cafile=self.files / "ca.pem")
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=trusting, server_hostname="localhost")

    async def post(self, key, length):
        """The response status for a request with this key and length, over a new connection."""
        reader, writer = await self.connect()
        shown = base64.b64encode(key.encode())
        head = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nflwr-public-key: " + shown
        writer.write(head + b"\r\ncontent-length: %d\r\n\r\n" % length + b"x" * length)
        status = int((await reader.readline()).split()[1])
        writer.close()
        return status


def test_gateway_key_over_allowance_is_rejected_alone(files, monkeypatch):
    now = [600.0]
    monkeypatch.setattr(gateway, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def visits():
        async with Door(files, ["north", "south"]) as door:
            assert [await door.post("north", 500) for _ in range(3)] == [200, 200, 429]
            assert await door.post("north", 0) == 429  # refused requests count, too: knocking on does not help
            assert [await door.post("south", 500) for _ in range(2)] == [200, 200]
            assert await door.post("south", 601) == 413 and await door.post("stranger", 1) == 401
            now[0] += 60.0
            assert [await door.post("north", 500) for _ in range(3)] == [200, 200, 429]
            assert door.passed == [500] * 6

    asyncio.run(visits())


def test_gateway_address_over_connection_limit_is_rejected(files):
    async def visits():
        async with Door(files, ["north"]) as door:
            idle = [await door.connect() for _ in range(3)]
            while door.gateway.open.total() < 3:
                await asyncio.sleep(0.01)
            assert await door.post("north", 1) == 503
            idle[0][1].close()
            while door.gateway.open.total() > 2:
                await asyncio.sleep(0.01)
            assert await door.post("north", 1) == 200
            for _, writer in idle:
                writer.close()

    asyncio.run(visits())


class Grid:
    """Flower's Grid with two nodes that never answer; `since` changes when the nodes restart."""

    def __init__(self):
        self.pushed, self.since = [], "1"

    def get_nodes(self):
        return [
            SimpleNamespace(node_id=i, public_key=key, status="online", last_activated_at=self.since)
            for i, key in enumerate((b"north's", b"south's"))
        ]

    def push_messages(self, messages):
        self.pushed += [m.metadata.dst_node_id for m in messages]
        return [f"message {len(self.pushed)}"]

    def pull_messages(self, numbers):
        return []


def test_transport_hanging_site_gets_limited_messages(monkeypatch):
    """A limited number of messages waits for a silent site; a restarted one gets new messages."""
    for name in ("_task_id", "_run_id", "_node_id"):  # Flower's messages say which process made them
        monkeypatch.setattr(TaskIdentity, name, 1)
    grid = Grid()
    transport = GridTransport(grid, {"north": b"north's", "south": b"south's"}, pings=2)
    assert set(transport.sites()) == {"north", "south"}
    for _ in range(50):
        transport.send("north", b"order")
        assert list(transport.receive(0.0)) == []
    assert grid.pushed.count(0) == MAX_UNANSWERED + 2 and grid.pushed.count(1) == 2  # orders and pings
    transport.send("south", b"order")
    assert grid.pushed.count(1) == 3  # the other one is not held up
    grid.since, transport._refreshed = "2", -100.0
    for _ in range(50):
        transport.sites()
        transport.send("north", b"order")
    assert grid.pushed.count(0) == 2 * MAX_UNANSWERED + 2


def test_mailbox_noisy_site_makes_limited_events():
    """The numbers of recorded refusals in an exchange and of remembered requests are limited for each site."""
    transport, events = InMemoryTransport({"site0": None, "site1": None}), []
    made = federation_of(make_clients())
    post = Mailbox(made, COORDINATOR, transport, "run", Control(), lambda kind, **facts: events.append(facts["client"]))
    for place in ((1, 0), (1, 1)):
        post.begin(place)
        events.clear()
        for i in range(5 * NOTED):
            transport.inject("site0", b"nonsense %d" % i)
        transport.inject("site1", b"nonsense")
        assert list(post.receive(0.0)) == []
        assert sorted(events) == ["site0"] * NOTED + ["site1"]
    transport.offline.add("site0")
    for i in range(5 * REQUESTS_PER_SITE):
        post.send("site0", ("ask", {"number": i}, {}))
    assert len(post._sent["site0"]) == REQUESTS_PER_SITE
