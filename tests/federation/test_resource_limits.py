"""Limits on one site's use of the coordinator: bytes per minute at the gateway, waiting messages, recorded events."""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import ssl
import time
import tracemalloc
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.hashes import SHA256
from flwr.app import ConfigRecord, Message
from flwr.proto.error_pb2 import Error
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.task_identity import TaskIdentity
from in_memory_transport import InMemoryTransport
from small_federation import COORDINATOR, federation_of, make_clients

from unalike.core.codec import Malformed
from unalike.federation.coordinator.mailbox import MAX_REPORTS, REMEMBERED_REQUESTS, Mailbox
from unalike.federation.coordinator.run_control import Control
from unalike.federation.flower import flower_messages, gateway, grid_transport
from unalike.federation.flower.flower_messages import pack
from unalike.federation.flower.gateway import Gateway, Settings
from unalike.federation.flower.grid_transport import MAX_UNANSWERED, GridTransport
from unalike.federation.flower.internals import RunMessages
from unalike.federation.security import certificates

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
LIMITS = {
    "body_bytes": 600,
    "minute_bytes": 1000,
    "reply_bytes": 1000,
    "connections_per_key": 100,
}
NODE_KEYS = {name: certificates.node_key() for name in ("north", "south", "stranger")}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gate")
    key, authority = certificates.authority("test")
    mine, certificate = certificates.server(["localhost"], key, authority)
    for name, what in {"ca.pem": authority, "server.pem": certificate, "server.key": mine}.items():
        (folder / name).write_bytes(certificates.pem(what))
    return folder


def signed(name, signer=None, seconds=0.0):
    """The fields of a head with a site's public key, signed by this `signer`, or the site itself, so many seconds ago."""
    timestamp = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat().encode()
    signature = NODE_KEYS[signer or name].sign(timestamp, ECDSA(SHA256()))
    key = certificates.public_pem(NODE_KEYS[name])
    return b"flwr-public-key: %s\r\nflwr-timestamp: %s\r\nflwr-signature: %s\r\n" % (
        base64.b64encode(key),
        timestamp,
        base64.b64encode(signature),
    )


class Door:
    """A gateway in this process in front of a server that accepts everything, and has requests `waiting` for sites."""

    def __init__(self, files, names, **limits):
        self.files, self.limits, self.passed, self.behind = files, LIMITS | limits, [], 0
        self.keys = {name: certificates.public_pem(NODE_KEYS[name]).decode() for name in names}
        self.waiting = 0
        self.is_silent = False

    async def __aenter__(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.files / "server.pem", self.files / "server.key")
        self._behind = await asyncio.start_server(self._yes, "127.0.0.1", 0, ssl=context)
        names = {"certificate": "server.pem", "key": "server.key", "authority": "ca.pem"}
        paths = {what: str(self.files / name) for what, name in names.items()}
        inside = self._behind.sockets[0].getsockname()[1]
        self.gateway = Gateway(
            Settings("127.0.0.1", 0, inside, keys=self.keys, **paths, **self.limits)
        )
        self._front = await asyncio.start_server(self.gateway.serve_connection, "127.0.0.1", 0)
        self.port = self._front.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        for server in (self._front, self._behind):
            server.close()

    async def _yes(self, reader, writer):
        self.behind += 1
        while head := await reader.readuntil(b"\r\n\r\n"):
            refuses = b"/activate-node " in head
            fetches = b"/pull-messages " in head and self.waiting > 0
            self.waiting -= fetches
            length = next(
                int(f.split(b":")[1])
                for f in head.lower().split(b"\r\n")
                if f.startswith(b"content-length")
            )
            self.passed.append(len(await reader.readexactly(length)))
            if self.is_silent:
                continue
            answer = OK.replace(b"200 OK", b"412 Precondition Failed") if refuses else OK
            writer.write(
                answer.replace(b"length: 0", b"length: 7") + b"request" if fetches else answer
            )

    async def connect(self):
        trusting = ssl.create_default_context(cafile=self.files / "ca.pem")
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=trusting, server_hostname="localhost"
        )

    async def post(self, name, length, what=b"pull-messages", body=None, fields=None):
        """The response status for a request of a site with this length, over a new connection."""
        reader, writer = await self.connect()
        body = b"x" * length if body is None else body
        writer.write(head_of(what, len(body), signed(name) if fields is None else fields) + body)
        status = int((await reader.readline()).split()[1])
        writer.close()
        return status


def head_of(what, length, fields):
    return b"POST /v1/fleet/%s HTTP/1.1\r\n%scontent-length: %d\r\n\r\n" % (what, fields, length)


def test_gateway_key_over_allowance_is_rejected_alone(files, monkeypatch):
    now = [600.0]
    monkeypatch.setattr(gateway, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def visits():
        async with Door(files, ["north", "south"]) as door:
            assert [await door.post("north", 500) for _ in range(3)] == [200, 200, 429]
            assert (
                await door.post("north", 0) == 429
            )  # refused requests count, too: knocking on does not help
            assert [await door.post("south", 500) for _ in range(2)] == [200, 200]
            assert await door.post("south", 601) == 413 and await door.post("stranger", 1) == 401
            now[0] += 60.0
            assert [await door.post("north", 500) for _ in range(3)] == [200, 200, 429]
            assert door.passed == [500] * 6

    asyncio.run(visits())


def test_gateway_passes_one_request_of_a_connection_at_a_time(files):
    """Requests whose answers nobody awaits filled the memory: 16 MB a second where Flower took 20 ms for each."""

    async def visits():
        async with Door(files, ["north"]) as door:
            door.is_silent = True
            _, hasty = await door.connect()
            hasty.write(20 * head_of(b"pull-messages", 0, signed("north")))
            while not door.passed:
                await asyncio.sleep(0.01)
            for _ in range(20):
                await asyncio.sleep(0.01)
            assert door.passed == [0]
            hasty.close()

            door.is_silent = False
            reader, writer = await door.connect()
            writer.write(20 * head_of(b"pull-messages", 0, signed("north")))
            for _ in range(20):
                assert await reader.readuntil(b"\r\n\r\n") == OK
            writer.close()

    asyncio.run(visits())


def test_gateway_counts_few_reasons_apart(files):
    """Reasons have addresses in them, of which a stranger may have many."""

    async def visits():
        async with Door(files, ["north"]) as door:
            for number in range(2 * gateway.MAX_REASONS):
                door.gateway.count_rejected(f"from {number}")
            assert len(door.gateway.rejected) == gateway.MAX_REASONS + 1
            assert door.gateway.rejected.total() == 2 * gateway.MAX_REASONS

    asyncio.run(visits())


def farewell_with_the_handshake(door):
    """Connect, and send the last message of the handshake and the end of TLS in one piece; the bytes that come back after it."""
    trusting = ssl.create_default_context(cafile=door.files / "ca.pem")
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trusting.wrap_bio(received, to_send, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", door.port), 10) as visitor:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                visitor.sendall(to_send.read())
                received.write(visitor.recv(65536))
        with suppress(ssl.SSLError):
            tls.unwrap()
        visitor.sendall(to_send.read())
        while visitor.recv(65536):
            pass


def test_gateway_writes_no_line_for_a_stranger(files, caplog):
    """What asyncio would log for a connection is counted: each line would go into the record of the run."""

    async def visits():
        async with Door(files, ["north"]) as door:
            await asyncio.to_thread(farewell_with_the_handshake, door)
            assert await door.post("north", 1) == 200
            assert not door.gateway.strangers

    asyncio.run(visits())
    lines = [record.getMessage() for record in caplog.records]
    assert not [line for line in lines if "eof_received" in line]

    counted = []
    message = logging.LogRecord("asyncio", logging.WARNING, "", 0, 30 * "long ", (), None)
    gateway.CountedMessages(counted.append).emit(message)
    assert counted == [(30 * "long ")[: gateway.MAX_REASON_LENGTH]]


def test_gateway_stranger_gets_no_connection_to_flower(files):
    """B12: a connection that says nothing is closed after `head_seconds`, and costs no connection behind the gateway."""

    async def visits():
        async with Door(files, ["north"], head_seconds=0.2) as door:
            started = time.monotonic()
            silent, half = await door.connect(), await door.connect()
            half[1].write(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n")
            for reader, _ in (silent, half):
                assert await reader.read() == b""
            assert (
                time.monotonic() - started < 5.0 and door.behind == 0 and not door.gateway.strangers
            )
            assert await door.post("stranger", 1) == 401 and door.behind == 0
            assert await door.post("north", 1) == 200 and door.behind == 1

    asyncio.run(visits())


def test_gateway_full_of_strangers_lets_enrolled_key_in(files):
    """B12: the oldest connection without a proven key makes room, a connection with one stays."""

    async def visits():
        async with Door(files, ["north"], strangers=3) as door:
            kept = await door.connect()
            request = head_of(b"a", 0, signed("north"))
            kept[1].write(request)
            assert await kept[0].readuntil(b"\r\n\r\n") == OK
            # many at the same moment, of which some are closed in their handshake
            many = [door.connect() for _ in range(20)]
            ends = await asyncio.gather(*many, return_exceptions=True)
            silent = [end for end in ends if not isinstance(end, OSError)]
            while len(door.gateway.strangers) < 3:
                await asyncio.sleep(0.01)
            assert await door.post("north", 1) == 200
            kept[1].write(request)
            assert await kept[0].readuntil(b"\r\n\r\n") == OK
            for _, writer in (kept, *silent):
                writer.close()

    asyncio.run(visits())


def test_gateway_counts_connections_before_their_handshake(files):
    """Connections that do not even begin with TLS took 300 kB each, without a limit. They do not displace those of others."""

    async def visits():
        async with Door(files, ["north"], strangers=3) as door:
            other = asyncio.create_task(asyncio.sleep(60.0))
            door.gateway.strangers[other] = "192.0.2.1"
            silent = [await asyncio.open_connection("127.0.0.1", door.port) for _ in range(20)]
            closed = [reader.read() for reader, _ in silent[:-2]]
            assert await asyncio.gather(*closed, return_exceptions=True)
            assert len(door.gateway.strangers) == 3 and other in door.gateway.strangers
            assert await door.post("north", 1) == 200
            assert not other.cancelled()
            other.cancel()
            for _, writer in silent:
                writer.close()

    asyncio.run(visits())


def test_gateway_reports_rejections(files, capfd):
    async def visits():
        async with Door(files, ["north"], report_seconds=0.2) as door:
            for _ in range(3):
                await door.post("stranger", 1)
            await door.post("north", 601)
            assert [
                await door.post("north", 1, what) for what in (b"activate-node", b"pull-messages")
            ] == [412, 200]
            reporting = asyncio.create_task(door.gateway.report())
            while not (said := capfd.readouterr().out):
                await asyncio.sleep(0.05)
            reporting.cancel()
            assert (
                "rejected 5: 3 x 401 Unauthorized from 127.0.0.1, 1 x 413 Content Too Large from 127.0.0.1"
                in said
            )
            assert ", 1 x 412 of Flower to north" in said, "a key that is in use already"

    asyncio.run(visits())


@pytest.mark.parametrize(
    ("address", "counts_as"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
    ],
)
def test_gateway_counts_ipv6_by_network(address, counts_as):
    assert gateway.network(address) == counts_as


NODE = 2**63 + 5


def tree(name, *children):
    return ObjectTree(object_id=name.rjust(64, "0"), children=children)


WHOLE = tree("a", tree("b", tree("0"), tree("1")))
"""The objects of a message of two records."""


def reply(**other):
    """A reply of the node `NODE` as our sites send it; `other` are other values of its metadata."""
    metadata = {
        "run_id": 7,
        "message_id": "a" * 64,
        "src_node_id": NODE,
        "dst_node_id": 1,
        "reply_to_message_id": "b" * 64,
        "ttl": 3600.0,
        "message_type": "train",
        "created_at": 1.8e9,
    }
    return ProtoMessage(metadata=Metadata(**(metadata | other)))


def push(messages=None, trees=(WHOLE,), **other):
    messages = [reply()] if messages is None else messages
    request = PushMessagesRequest(
        node=Node(node_id=NODE), messages_list=messages, message_object_trees=trees, **other
    )
    return request.SerializeToString()


@pytest.mark.parametrize(
    ("trees", "passes"),
    [
        ([], False),
        ([tree("a")], True),
        ([WHOLE], True),
        ([tree("a", tree("b", tree("0"), tree("0")))], False),
        ([tree("a", tree("b", tree("b")))], False),
        ([tree("a", tree("b"), tree("c"))], False),
        ([tree("a", tree("b", tree("0", tree("1"))))], False),
        ([tree("a"), tree("b")], False),
        ([tree("x")], False),
        ([tree("0" * 300)], False),
    ],
)
def test_gateway_passes_only_trees_of_messages(trees, passes):
    """SuperLink would write out what is listed several times, at every level again."""
    with nullcontext() if passes else pytest.raises(gateway.Rejected, match="400"):
        gateway.check_push(push(trees=trees))


@pytest.mark.parametrize(
    "body",
    [
        push([]),
        push([reply(), reply()]),
        push([reply(reply_to_message_id="")]),
        push([reply(reply_to_message_id="b" * 63)]),
        push([reply(reply_to_message_id="B" * 64)]),
        push([reply(src_node_id=1)]),
        push([reply(src_node_id=NODE + 1)]),
        push([reply(dst_node_id=NODE)]),
        push([reply(message_type="query")]),
        push([reply(message_type="x" * 200_000)]),
        push([reply(message_id="x" * 1000)]),
        push([reply(group_id="g")]),
        push([ProtoMessage(metadata=reply().metadata, error=Error(code=1, reason="x" * 1000))]),
        push(clientapp_runtime_list=[0.5]),
        push() + push(),
        push() + b"\x0a\x02\x08\x01",
        push() + b"\x7a\x03abc",
    ],
)
def test_gateway_passes_only_replies_of_the_node(body):
    """N1, N2: SuperLink stores all other messages for ever, and writes long types into its log."""
    gateway.check_push(push())
    with pytest.raises(gateway.Rejected, match="400"):
        gateway.check_push(body)


@pytest.mark.parametrize(
    "body",
    [b"\x1a", b"\x1a\x05ab", b"\x1b", b"\x1c", b"\xff" * 20, b"\x19\x00", b"\x1a\x02\x12\x09"],
)
def test_gateway_broken_message_is_rejected(body):
    with pytest.raises(gateway.Rejected, match="400"):
        gateway.check_push(body)
    with pytest.raises(gateway.Rejected, match="400"):
        gateway.check_object(body, len(body))


@pytest.mark.parametrize(
    ("other", "end", "passes"),
    [
        ({}, b"", True),
        ({"object_content": b"x" * 5000}, b"", True),
        ({"object_id": "c" * 63}, b"", False),
        ({"object_id": "c" * 5000}, b"", False),
        ({"session_id": "s" * 200}, b"", False),
        # of two fields the last one counts
        ({}, PushObjectRequest(object_id="d" * 20).SerializeToString(), False),
        ({"object_content": b"x" * 5000}, PushObjectRequest(run_id=8).SerializeToString(), False),
        ({}, PushObjectRequest(session_id="t").SerializeToString(), False),
    ],
)
def test_gateway_passes_only_records_with_short_ids(files, other, end, passes):
    usual = {
        "run_id": 7,
        "object_id": "c" * 64,
        "object_content": b"x" * 40,
        "session_id": "s" * 36,
    }
    body = PushObjectRequest(node=Node(node_id=NODE), **(usual | other)).SerializeToString() + end

    async def visit():
        room = {"body_bytes": 10_000, "minute_bytes": 10_000, "reply_bytes": 10_000}
        async with Door(files, ["north"], **room) as door:
            door.waiting = 1
            await door.post("north", 0)
            status = await door.post("north", 0, b"push-object", body=body)
            assert status == (200 if passes else 400)
            assert door.passed == ([0, len(body)] if passes else [0])

    asyncio.run(visit())


def test_gateway_public_key_without_signature_gives_nothing(files):
    """N3: heads with a site's key that another one signed neither lock the site out nor reach Flower."""

    async def visits():
        async with Door(files, ["north"]) as door:
            shown = b"flwr-public-key: %s\r\n" % base64.b64encode(door.keys["north"].encode())
            for fields in (
                shown,
                signed("north", signer="stranger"),
                signed("north", seconds=400.0),
                signed("north", seconds=-60.0),
                signed("north").replace(b"signature: ", b"signature: %"),
                shown + signed("stranger").partition(b"\r\n")[2],
                signed("north") + signed("north"),
            ):
                status = await door.post("north", 400, fields=fields)
                assert status == (400 if fields.count(b"flwr-public-key") > 1 else 401), fields
            assert door.behind == 0 and not door.gateway.strangers
            assert [await door.post("north", 500) for _ in range(2)] == [200, 200]

    asyncio.run(visits())


def test_gateway_connection_belongs_to_the_key_that_signed_its_first_head(files):
    async def visits():
        async with Door(files, ["north", "south"]) as door:
            reader, writer = await door.connect()
            writer.write(head_of(b"a", 0, signed("north")))
            assert await reader.readuntil(b"\r\n\r\n") == OK
            # Flower looks at the further signatures
            writer.write(head_of(b"a", 0, signed("north", signer="stranger")))
            assert await reader.readuntil(b"\r\n\r\n") == OK
            writer.write(head_of(b"a", 0, signed("south")))
            assert b"401" in await reader.readline()
            writer.close()

    asyncio.run(visits())


def test_gateway_new_connection_of_a_key_closes_its_oldest(files):
    """N3: a key has a few connections; a site that has lost all of them gets in at once."""

    async def visits():
        async with Door(files, ["north", "south"], connections_per_key=2) as door:
            connections = []
            for name in ("south", "north", "north", "north"):
                reader, writer = await door.connect()
                writer.write(head_of(b"a", 0, signed(name)))
                assert await reader.readuntil(b"\r\n\r\n") == OK
                connections.append((reader, writer))
            assert await connections[1][0].read() == b""
            for reader, writer in (connections[0], *connections[2:]):
                name = "south" if reader is connections[0][0] else "north"
                writer.write(head_of(b"a", 0, signed(name)))
                assert await reader.readuntil(b"\r\n\r\n") == OK
                writer.close()

    asyncio.run(visits())


def test_gateway_site_sends_as_many_bytes_as_replies_to_its_requests_may_have(files):
    """N1: nothing without a request, then once the allowance for each, whatever minute it is."""
    body = push()
    record = PushObjectRequest(
        node=Node(node_id=NODE), run_id=7, object_id="c" * 64, object_content=b"x" * 300
    ).SerializeToString()

    async def visits():
        limits = {"reply_bytes": len(body) + len(record), "minute_bytes": 10**6}
        async with Door(files, ["north", "south"], **limits) as door:

            async def send(what, content, name="north"):
                return await door.post(name, 0, what, body=content)

            assert await send(b"push-messages", body) == 429
            door.waiting = 1
            assert await door.post("north", 0) == 200
            assert await send(b"push-messages", body) == 200
            assert await send(b"push-object", record) == 200
            assert await send(b"push-object", record) == 429
            assert await door.post("north", 0) == 200, "no request was waiting"
            assert await send(b"push-object", record) == 429
            assert await send(b"push-messages", body, "south") == 429
            door.waiting = 100
            for _ in range(100):
                assert await door.post("north", 0) == 200
            records = [await send(b"push-object", record) for _ in range(20)]
            assert records.count(200) == limits["reply_bytes"] // len(record)

    asyncio.run(visits())


def test_gateway_names_the_site_of_a_message_that_is_no_reply(files):
    async def visits():
        async with Door(files, ["north"], minute_bytes=10**6) as door:
            door.waiting = 1
            assert await door.post("north", 0) == 200
            no_reply = push([reply(reply_to_message_id="")])
            assert await door.post("north", 0, b"push-messages", body=no_reply) == 400
            assert door.gateway.rejected == {
                "400 Bad Request (no reply to a request) from north at 127.0.0.1": 1
            }

    asyncio.run(visits())


def test_gateway_key_activates_a_few_times_a_minute(files):
    async def visits():
        async with Door(files, ["north"], activations_per_minute=2) as door:
            statuses = [await door.post("north", 0, b"activate-node") for _ in range(3)]
            assert statuses == [412, 412, 429]
            assert await door.post("north", 0) == 200

    asyncio.run(visits())


class RunOfTwo:
    """The messages of a Flower run with two nodes; `since` changes when the nodes restart. `arrived` are replies, with contents."""

    def __init__(self):
        self.withdrawn = []
        self.pushed, self.together, self.since, self.arrived, self.confirmed, self.pulled = (
            [],
            [],
            "1",
            {},
            [],
            [],
        )

    def nodes(self):
        return [
            SimpleNamespace(
                node_id=i, public_key=key, status="online", last_activated_at=self.since
            )
            for i, key in enumerate((b"north's", b"south's"))
        ]

    def push(self, messages):
        self.pushed += [m.metadata.dst_node_id for m in messages]
        self.together.append(len(messages))
        return [f"message {len(self.pushed) - len(messages) + i}" for i in range(len(messages))]

    def withdraw(self, number):
        self.withdrawn.append(number)

    def replies(self, numbers):
        return [
            SimpleNamespace(
                answers=number,
                pieces=tuple(records),
                message=SimpleNamespace(has_error=lambda: False),
            )
            for number, records in self.arrived.items()
            if number in numbers
        ]

    def pull(self, reply, piece):
        self.pulled.append(piece)
        return self.arrived[reply.answers][piece]

    def confirm(self, reply):
        self.confirmed.append(reply.answers)


@pytest.fixture
def run_of_two(monkeypatch):
    for name in (
        "_task_id",
        "_run_id",
        "_node_id",
    ):  # Flower's messages say which process made them
        monkeypatch.setattr(TaskIdentity, name, 1)
    return RunOfTwo()


def transport_over(run, limit=1 << 20):
    transport = GridTransport(run, {"north": b"north's", "south": b"south's"}, limit)
    assert set(transport.sites()) == set(transport.connected()) == {"north", "south"}
    return transport


def test_transport_hanging_site_gets_limited_messages(run_of_two):
    """A limited number of messages waits for a silent site; a restarted one gets new messages."""
    transport = transport_over(run_of_two)
    for _ in range(50):
        transport.send("north", b"order")
        assert list(transport.receive(0.0)) == []
    assert run_of_two.pushed.count(0) == MAX_UNANSWERED and run_of_two.pushed.count(1) == 0
    transport.send("south", b"order")
    transport.flush()
    assert run_of_two.pushed.count(1) == 1  # the other one is not held up
    run_of_two.since, transport._refreshed = "2", -100.0
    assert set(transport.connected()) == {"north", "south"} and not transport.connected()
    for _ in range(50):
        transport.send("north", b"order")
        transport.flush()
    assert run_of_two.pushed.count(0) == 2 * MAX_UNANSWERED


def test_transport_drops_replies_to_former_connections(run_of_two):
    """N1: SuperLink would keep the reply to a request that was sent before the site connected again."""
    transport = transport_over(run_of_two)
    transport.send("north", b"order")
    transport.flush()
    run_of_two.since, transport._refreshed = "2", -100.0
    assert set(transport.connected()) == {"north", "south"}
    run_of_two.arrived["message 0"] = records_of(b"late")
    assert list(transport.receive(0.0)) == []
    assert run_of_two.confirmed == ["message 0"]
    transport.receive(0.0)
    assert not transport._sites["north"].lost


def test_transport_drops_replies_whose_records_never_come(run_of_two):
    """Each of them was asked for at every look, and kept for ever."""
    transport = transport_over(run_of_two)
    for number in range(MAX_UNANSWERED + 3):
        transport.send("north", b"order")
        transport.flush()
        run_of_two.arrived[f"message {number}"] = {"record": None}
        assert list(transport.receive(0.0)) == []
    assert len(transport._incoming) == MAX_UNANSWERED
    assert run_of_two.confirmed == ["message 0", "message 1", "message 2"]


def test_transport_sends_requests_together(run_of_two, monkeypatch):
    monkeypatch.setattr(grid_transport, "COLLECTED_BYTES", 100)
    transport = transport_over(run_of_two)
    for site in ("north", "south"):
        transport.send(site, b"order")
    assert run_of_two.together == []
    assert list(transport.receive(0.0)) == []
    transport.send("north", b"x" * 100)  # large ones do not wait for each other in memory
    assert run_of_two.together == [2, 1]


def test_last_object_of_a_message_that_is_sent_is_its_last_record(run_of_two, monkeypatch):
    """A site that has all records confirms the message, and SuperLink would refuse what is sent of it later: the run ended so."""
    monkeypatch.setattr(flower_messages, "MAX_PIECE_BYTES", 10)
    trees, pushed = [], []

    def ids(tree):
        return [tree.object_id, *(i for child in tree.children for i in ids(child))]

    def take(request):
        trees.extend(request.message_object_trees)
        wanted = [i for tree in trees for i in ids(tree)]
        return SimpleNamespace(
            message_ids=["first", "second"], objects_to_push=wanted, session_id="session"
        )

    client = SimpleNamespace(
        PushMessages=take, PushObject=lambda request: pushed.append(request.object_id)
    )
    grid = SimpleNamespace(_runtime_client=client, node=Node(), run=SimpleNamespace(run_id=1))
    sent = [
        Message(pack(text), 5, "train", ttl=60.0)
        for text in (b"0123456789abcdef", b"another text of pieces")
    ]
    assert RunMessages(grid).push(sent) == ["first", "second"]
    for tree in trees:
        message, content, *records = ids(tree)
        assert len(records) > 1
        mine = [i for i in pushed if i in {message, content, *records}]
        assert {*mine[:2]} == {message, content} and mine[2:] == records
    assert len(pushed) == len({*pushed}) == 4 + 2 + 3


def records_of(message, **changes):
    records = pack(message).config_records
    return {name: ConfigRecord({**record, **changes}) for name, record in records.items()}


def received(run, records, limit=1 << 20):
    """What arrives when north answers with these records."""
    transport = transport_over(run, limit)
    transport.send("north", b"order")
    transport.flush()
    run.arrived[f"message {len(run.pushed) - 1}"] = records
    return list(transport.receive(0.0))


def test_transport_loads_reply_of_several_pieces(run_of_two, monkeypatch):
    monkeypatch.setattr(flower_messages, "MAX_PIECE_BYTES", 10)
    assert received(run_of_two, records_of(b"0123456789abcdef")) == [("north", b"0123456789abcdef")]
    assert run_of_two.pulled == ["1", "0"] and run_of_two.confirmed == ["message 0"]


def test_transport_waits_for_last_piece(run_of_two, monkeypatch):
    """Nothing is loaded before the last piece is there."""
    monkeypatch.setattr(flower_messages, "MAX_PIECE_BYTES", 10)
    whole = records_of(b"0123456789abcdef")
    transport = transport_over(run_of_two)
    transport.send("north", b"order")
    transport.flush()
    run_of_two.arrived["message 0"] = whole | {"1": None}
    assert (
        list(transport.receive(0.1)) == []
        and set(run_of_two.pulled) == {"1"}
        and not run_of_two.confirmed
    )
    run_of_two.arrived["message 0"] = whole
    assert list(transport.receive(0.0)) == [
        ("north", b"0123456789abcdef")
    ] and run_of_two.confirmed == ["message 0"]


def test_transport_repeated_piece_is_refused_before_it_is_multiplied(run_of_two):
    """B1: 3 GB of equal bytes, which go over the wire as one object. A piece holds its number, so it counts once."""
    record = ConfigRecord({"number": 0, "bytes": bytes(4 << 20)})
    many = [f"{i}" for i in range(768)]
    tracemalloc.start()
    [(site, why)] = received(run_of_two, dict.fromkeys(many, record), limit=3 << 30)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert site == "north" and isinstance(why, Malformed) and "for piece 767" in str(why)
    assert peak < 16 << 20 and run_of_two.pulled == ["767"] and run_of_two.confirmed


@pytest.mark.parametrize(
    ("records", "says"),
    [
        (records_of(bytes(3 << 20)), "more than 3145728 bytes; expected at most 1048576"),
        ({str(i): ConfigRecord({"number": i, "bytes": b""}) for i in range(2)}, "2 pieces of"),
        (records_of(b"answer", number=7), "for piece 0"),
        (records_of(b"answer", bytes="text"), "for piece 0"),
        (records_of(b"answer", more=1), "for piece 0"),
        ({"0": ConfigRecord({"other": [1, 2]})}, "for piece 0"),
    ],
)
def test_transport_reply_that_is_no_message_is_refused(run_of_two, records, says):
    [(site, why)] = received(run_of_two, records)
    assert site == "north" and isinstance(why, Malformed) and says in str(why)
    assert run_of_two.confirmed == ["message 0"]


def test_mailbox_noisy_site_makes_limited_events():
    """The numbers of recorded refusals in an exchange and of remembered requests are limited for each site."""
    transport, events = InMemoryTransport({"site0": None, "site1": None}), []
    made = federation_of(make_clients())
    post = Mailbox(
        made,
        COORDINATOR,
        transport,
        "run",
        Control(),
        lambda kind, **facts: events.append(facts["client"]),
    )
    for place in ((1, 0), (1, 1)):
        post.begin(place, {})
        events.clear()
        for i in range(5 * MAX_REPORTS):
            transport.inject("site0", b"nonsense %d" % i)
        transport.inject("site1", b"nonsense")
        assert list(post.receive(0.0, lambda site: True)) == []
        assert sorted(events) == ["site0"] * MAX_REPORTS + ["site1"]
    transport.offline.add("site0")
    for i in range(5 * REMEMBERED_REQUESTS):
        post.send("site0", ("ask", {"number": i}, {}))
    assert len(post._pending["site0"]) == REMEMBERED_REQUESTS


def test_mailbox_reports_texts_of_sites_without_control_characters():
    """A1: a head of another run, which the site has signed, holds a text of its own."""
    clients = make_clients()
    found = []
    mailbox = Mailbox(
        federation_of(clients),
        COORDINATOR,
        InMemoryTransport({}),
        "run",
        Control(),
        lambda kind, **details: found.append(details),
    )
    mailbox.report("refused", "site0", "of run \x1b[2J\nother")
    assert found[0]["why"] == "of run  [2J other"
