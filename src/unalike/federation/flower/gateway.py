"""The coordinator's gateway: a TLS reverse proxy that passes only what sites need to Flower.

Flower serves three APIs on one port: Fleet for sites, Control (start and stop runs, register nodes) and Runtime (hands out
tasks). The last two have no authentication. So SuperLink listens on this machine only, and the gateway passes nothing but `POST
/v1/fleet/...`. It also keeps slow and oversized requests away from Flower: a handshake, a request's head and each piece of its
body have a deadline, a body has a maximum size.

A public key is no secret, so it gives nothing: a connection is a stranger's, from its first byte on, until it has sent a head that
an enrolled key has signed. A stranger has no connection to Flower, and when there are too many of them the oldest one of the
address with the most is closed, so that they cannot keep a site out. A key has a few connections, of which a new one closes the
oldest, and an allowance of bytes and activations a minute.

Of messages only replies are passed, one at a time, of the node that the request names, which Flower compares with the key:
SuperLink would store every other message for ever. Once a site has fetched a request it may send as many bytes as a message may
have, until it fetches the next. Ids and types have a maximum length, and the tree of objects of a message must be that of our
messages: SuperLink would write out a tree in which objects occur again and again, of more nodes than memory holds.

It writes one line a minute with the numbers of rejections, its own and Flower's.

Requests are parsed strictly and rewritten (one length, no chunks, no folding), so that gateway and server cannot disagree about
where a request ends. Answers are passed unchanged. Of one connection a request is passed when the one before is answered.

Of other packages it imports `cryptography` alone: `python -I gateway.py <settings.json>`
"""

import asyncio
import base64
import ipaddress
import json
import logging
import random
import re
import resource
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

REQUEST_LINE = re.compile(rb"POST (/v1/fleet/[a-z0-9/-]{1,64}) HTTP/1\.1")
FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}):[ \t]*([\x20-\x7e\t]{0,8192})")
ANSWER = re.compile(
    rb"HTTP/1\.1 ([0-9]{3})[ \r].*?\r\ncontent-length: *([0-9]{1,12})\r\n", re.S | re.I
)
"""The status of an answer of Flower (412 is that of a key that is connected already), and the length of its body."""
PUBLIC_KEY, TIMESTAMP, SIGNATURE = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
"""Fields of a head: the key, a time, and the signature of that time."""
AHEAD_SECONDS = 5.0
"""Flower accepts times that are less than so many seconds ahead of its own."""
BEHIND_SECONDS = 305.0
"""Flower accepts times that are less than so many seconds behind its own."""
HOP_BY_HOP = {
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"upgrade",
    b"expect",
    b"host",
}
PIECE_BYTES = 256 * 1024
"""Bytes that are passed on at a time."""
PUSH_MESSAGES = "/v1/fleet/push-messages"
"""Path of a request that sends a message; the records of the message come in other requests."""
PUSH_OBJECT = "/v1/fleet/push-object"
"""Path of a request that sends a record of a message."""
PULL_MESSAGES = "/v1/fleet/pull-messages"
"""Path of a request for the next message to a site."""
ACTIVATE_NODE = "/v1/fleet/activate-node"
"""Path of a request to make a connection the key's node."""
MAX_PUSH_BYTES = 256 * 1024
MAX_SMALL_BYTES = 4096
"""Maximum bytes of the body of a request that sends nothing."""
MAX_REASONS = 1000
"""Reasons of rejections in a minute that are counted apart: with addresses in them there may be many."""
MAX_REASON_LENGTH = 80
"""Characters of a reason that asyncio gives."""
REPORTED = " rejected "
"""Stands in the lines that count rejections, between their time and their number."""
OBJECT_HEAD_BYTES = 512
"""Bytes in front of a record, in a request that sends it, are fewer."""
MAX_OBJECT_END_BYTES = 128
"""Maximum bytes behind a record."""
OBJECT_HASH = re.compile(rb"[0-9a-f]{64}")
"""The form of all ids of messages and objects."""
TYPE = b"train"
"""The type of all messages."""
SUPERLINK = 1
"""The number of the node to which replies are sent."""
NUMBER = 0
"""Kind of a protobuf field: a number of variable length."""
EIGHT_BYTES = 1
"""Kind of a protobuf field: eight bytes."""
COUNTED = 2
"""Kind of a protobuf field: bytes, with a number in front that says how many."""
FOUR_BYTES = 5
"""Kind of a protobuf field: four bytes."""
PUSH_FIELDS = {"node": (1, COUNTED), "message": (2, COUNTED), "tree": (3, COUNTED)}
"""Fields of a request that sends a message, with number and kind."""
NODE_FIELDS = {"id": (1, NUMBER)}
MESSAGE_FIELDS = {"metadata": (1, COUNTED), "content": (2, COUNTED)}
METADATA_FIELDS = {
    "run": (1, NUMBER),
    "id": (2, COUNTED),
    "source": (3, NUMBER),
    "destination": (4, NUMBER),
    "reply_to": (5, COUNTED),
    "group": (6, COUNTED),
    "seconds": (7, EIGHT_BYTES),
    "type": (8, COUNTED),
    "created": (9, EIGHT_BYTES),
    "source_task": (10, NUMBER),
    "destination_task": (11, NUMBER),
}
TREE_ID = (1, COUNTED)
"""Number and kind of the field with an object's id, in a tree of objects."""
TREE_CHILD = (2, COUNTED)
"""Number and kind of the field of an object below it."""
OBJECT_FIELDS = {"node": (1, COUNTED), "run": (2, NUMBER), "id": (3, COUNTED)}
"""Fields in front of the record in a request that sends it."""
OBJECT_CONTENT = 4
"""Number of the field of the record."""
OBJECT_END_FIELDS = {"session": (5, COUNTED)}
"""Fields behind the record."""


@dataclass(frozen=True)
class Settings:
    """Addresses, files and limits of the gateway.

    `behind` is SuperLink's port, `keys` the public keys (PEM) by site, `reply_bytes` what a site may send for each request.
    """

    host: str
    port: int
    behind: int
    certificate: str
    key: str
    authority: str
    keys: Mapping[str, str]
    body_bytes: int
    minute_bytes: int
    reply_bytes: int
    head_bytes: int = 16 * 1024
    head_seconds: float = 10.0
    farewell_seconds: float = 1.0
    idle_seconds: float = 120.0
    piece_seconds: float = 30.0
    connections_per_key: int = 3
    activations_per_minute: int = 30
    strangers: int = 200
    report_seconds: float = 60.0


class Rejected(Exception):
    """The request is rejected with this HTTP status line; `why` is for the gateway's log."""

    def __init__(self, status: str, why: str = ""):
        super().__init__(f"{status} ({why})" if why else status)
        self.status = status


@dataclass(eq=False)
class Site:
    """An enrolled site: what it has sent in this minute, its connections, and the bytes that it may still send in replies."""

    name: str
    key: EllipticCurvePublicKey
    minute: int = 0
    minute_bytes: int = 0
    activations: int = 0
    reply_bytes: int = 0
    connections: dict[asyncio.Task[None], None] = field(default_factory=dict)

    def charge(self, path: str, length: int, settings: Settings) -> None:
        """Count a request. Raises `Rejected` where the site has sent too much."""
        minute = int(time.monotonic() // 60)
        if minute != self.minute:
            self.minute = minute
            self.minute_bytes = 0
            self.activations = 0
        self.minute_bytes += length
        if self.minute_bytes > settings.minute_bytes:
            raise Rejected("429 Too Many Requests")
        if path == ACTIVATE_NODE:
            self.activations += 1
            if self.activations > settings.activations_per_minute:
                raise Rejected("429 Too Many Requests", "activations")
        if path in (PUSH_MESSAGES, PUSH_OBJECT):
            if length > self.reply_bytes:
                raise Rejected("429 Too Many Requests", "more bytes than a reply may have")
            self.reply_bytes -= length

    def add_connection(self, task: asyncio.Task[None], most: int) -> None:
        """Count a connection. With too many the oldest is closed: a site that lost its connection must get in again."""
        self.connections[task] = None
        if len(self.connections) > most:
            oldest = next(iter(self.connections))
            del self.connections[oldest]
            oldest.cancel()


@dataclass(frozen=True)
class Head:
    """The head of a request: who sent it, what it asks for, its `text` as it is written anew, and the length of its body."""

    site: Site
    path: str
    text: bytes
    length: int


class Gateway:
    def __init__(self, settings: Settings):
        self.settings = settings
        self.strangers: dict[asyncio.Task[None], str] = {}
        """Connections without a signed head, the oldest first, and their addresses."""
        self.rejected: Counter[str] = Counter()
        self.sites: dict[bytes, Site] = {}
        """Key, as heads show it -> site."""
        for name, text in settings.keys.items():
            pem = text.encode()
            key = load_pem_public_key(pem)
            assert isinstance(key, EllipticCurvePublicKey), "Flower's keys are of an elliptic curve"
            self.sites[base64.b64encode(pem)] = Site(name, key)
        self.upstream = ssl.create_default_context(cafile=settings.authority)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.minimum_version = ssl.TLSVersion.TLSv1_3
        self.tls.load_cert_chain(settings.certificate, settings.key)

    async def serve(self) -> None:
        # Without TLS, whose handshake comes when a connection is counted: before it, each takes 300 kB.
        server = await asyncio.start_server(
            self.serve_connection, self.settings.host, self.settings.port, backlog=512
        )
        async with server, asyncio.TaskGroup() as tasks:
            tasks.create_task(self.report())
            tasks.create_task(server.serve_forever())

    async def report(self) -> None:
        """Write a line a minute with the most frequent reasons of rejections, if there were any."""
        while True:
            await asyncio.sleep(self.settings.report_seconds)
            if self.rejected:
                reasons = [f"{count} x {what}" for what, count in self.rejected.most_common(10)]
                now = time.strftime("%Y-%m-%d %H:%M:%S%z")
                # a full disk must not end the gateway
                with suppress(OSError):
                    print(
                        f"{now}{REPORTED}{self.rejected.total()}: {', '.join(reasons)}", flush=True
                    )
                self.rejected.clear()

    def count_rejected(self, reason: str) -> None:
        """Count a rejection for the next line."""
        is_listed = reason in self.rejected or len(self.rejected) < MAX_REASONS
        self.rejected[reason if is_listed else "for other reasons"] += 1

    async def serve_connection(self, _: asyncio.StreamReader, plain: asyncio.StreamWriter) -> None:
        """Serve one connection: its requests one after the other, over one connection to Flower."""
        writer = plain
        address = network(plain.get_extra_info("peername")[0])
        task = asyncio.current_task()
        assert task is not None
        answers = behind = site = None
        forwarded: asyncio.Queue[Head] = asyncio.Queue(maxsize=1)
        try:
            # Flower hears of a connection only when an enrolled key has signed a head.
            with self._as_stranger(task, address):
                async with asyncio.timeout(self.settings.head_seconds):
                    reader, writer = await self._encrypted(plain)
                    head = await self._head(reader, self.settings.head_seconds, None)
            if head is None:
                return
            site = head.site
            site.add_connection(task, self.settings.connections_per_key)
            behind_reader, behind = await asyncio.open_connection(
                "127.0.0.1", self.settings.behind, ssl=self.upstream, server_hostname="127.0.0.1"
            )

            # Answers are passed back while further requests come in.
            answers = asyncio.create_task(self._pass_answers(behind_reader, writer, forwarded))
            while head is not None and not answers.done():
                # Flower has one request of a connection at a time: more of them would wait in memory, without end.
                await asyncio.wait_for(forwarded.put(head), self.settings.idle_seconds)
                await self._forward(head, reader, behind)
                # the time until the next request counts from the end of this answer, which may be long on a slow link
                answered = asyncio.ensure_future(forwarded.join())
                await asyncio.wait({answers, answered}, return_when=asyncio.FIRST_COMPLETED)
                answered.cancel()
                head = await self._head(reader, self.settings.idle_seconds, site)
        except Rejected as rejected:
            who = address if site is None else f"{site.name} at {address}"
            self.count_rejected(f"{rejected} from {who}")
            # The date says to a site with a wrong clock what is wrong.
            answer = f"HTTP/1.1 {rejected.status}\r\nDate: {formatdate(usegmt=True)}\r\n"
            answer += "Content-Length: 0\r\nConnection: close\r\n\r\n"
            writer.write(answer.encode())
        except (asyncio.CancelledError, TimeoutError, OSError, EOFError, ssl.SSLError) as error:
            # without a farewell, for which TLS would keep its buffers
            writer.transport.abort()
            if behind is None:
                self.count_rejected(f"{type(error).__name__} without a request from {address}")
        finally:
            if site is not None:
                site.connections.pop(task, None)
            if answers is not None:
                answers.cancel()
            for side in (behind, writer):
                if side is not None:
                    side.close()

    @contextmanager
    def _as_stranger(self, task: asyncio.Task[None], address: str) -> Iterator[None]:
        """Count a connection as a stranger's. Of too many the oldest one is closed, of the address that has the most."""
        if len(self.strangers) >= self.settings.strangers:
            # by chance among equals: who connects from many addresses must not cut each of the others with certainty
            counts = Counter(self.strangers.values())
            most = max(counts.values())
            busiest = random.choice([place for place, count in counts.items() if count == most])
            oldest = next(task for task, place in self.strangers.items() if place == busiest)
            del self.strangers[oldest]
            oldest.cancel()
        self.strangers[task] = address
        try:
            yield
        finally:
            self.strangers.pop(task, None)

    async def _encrypted(
        self, plain: asyncio.StreamWriter
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The streams of a connection after the handshake of TLS."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=self.settings.head_bytes)
        protocol = EncryptedStream(reader)
        transport = await loop.start_tls(
            plain.transport,
            protocol,
            self.tls,
            server_side=True,
            ssl_handshake_timeout=self.settings.head_seconds,
            ssl_shutdown_timeout=self.settings.farewell_seconds,
        )
        assert transport is not None
        # `start_tls` leaves this out
        protocol.connection_made(transport)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _head(
        self, reader: asyncio.StreamReader, seconds: float, site: Site | None
    ) -> Head | None:
        """The head of the next request, which begins within `seconds`; None at the end. `site` is known from earlier ones."""
        # 1. It arrives in time, and is not too large.
        try:
            first = await asyncio.wait_for(reader.read(1), seconds)
            if not first:
                return None
            rest = reader.readuntil(b"\r\n\r\n")
            raw = first + await asyncio.wait_for(rest, self.settings.head_seconds)
        except asyncio.LimitOverrunError:
            raise Rejected("431 Request Header Fields Too Large") from None

        # 2. It asks for the Fleet API, and each of its fields has the strict form.
        request, *lines = raw[:-4].split(b"\r\n")
        asked = REQUEST_LINE.fullmatch(request)
        if asked is None:
            raise Rejected("404 Not Found")
        path = asked[1].decode()
        pairs = []
        for line in lines:
            pair = FIELD.fullmatch(line)
            if pair is None:
                raise Rejected("400 Bad Request")
            pairs.append((pair[1].lower(), pair[2].strip()))

        # 3. There is one length, so that gateway and server agree where the body ends.
        lengths = [value for name, value in pairs if name == b"content-length"]
        if len(lengths) != 1 or not re.fullmatch(rb"[0-9]{1,12}", lengths[0]):
            raise Rejected("411 Length Required")
        if any(name in (b"transfer-encoding", b"content-encoding") for name, _ in pairs):
            raise Rejected("400 Bad Request")
        length = int(lengths[0])
        if length > self._most_bytes(path):
            raise Rejected("413 Content Too Large")

        # 4. An enrolled key has signed it, or an earlier one of the connection, and has not sent too much.
        fields = dict(pairs)
        if len(fields) < len(pairs):
            raise Rejected("400 Bad Request")
        signer = self._signer(fields, site)
        signer.charge(path, length, self.settings)

        # 5. It is written anew: what goes to Flower is what was read here.
        head = [request, b"host: 127.0.0.1"]
        for name, value in pairs:
            if name not in HOP_BY_HOP:
                head.append(name + b": " + value)
        text = b"\r\n".join(head) + b"\r\n\r\n"
        return Head(site=signer, path=path, text=text, length=length)

    def _most_bytes(self, path: str) -> int:
        """The maximum bytes of the body of a request."""
        if path == PUSH_MESSAGES:
            return MAX_PUSH_BYTES
        if path == PUSH_OBJECT:
            return self.settings.body_bytes
        return min(MAX_SMALL_BYTES, self.settings.body_bytes)

    def _signer(self, fields: Mapping[bytes, bytes], known: Site | None) -> Site:
        """The site that has signed a head. Raises `Rejected` if none has, or another one than the connection's.

        One signature for a connection is enough: nobody else can write to it. (Flower checks each of them.)
        """
        site = self.sites.get(fields.get(PUBLIC_KEY, b""))
        if site is None or known not in (None, site):
            raise Rejected("401 Unauthorized")
        if known is None:
            timestamp = fields.get(TIMESTAMP, b"")
            check_signature(site.key, timestamp, fields.get(SIGNATURE, b""))
            check_time(timestamp)
        return site

    async def _forward(
        self, head: Head, reader: asyncio.StreamReader, behind: asyncio.StreamWriter
    ) -> None:
        """Pass a request to Flower, a piece of its body at a time."""
        # What Flower stores is read before it reaches Flower: all of a message, the beginning and the end of a record.
        start = b""
        end_bytes = 0
        if head.path == PUSH_MESSAGES:
            start = await self._read(reader, head.length)
            check_push(start)
        elif head.path == PUSH_OBJECT:
            start = await self._read(reader, min(head.length, OBJECT_HEAD_BYTES))
            end_bytes = check_object(start, head.length)

        # The record itself is passed on as it comes.
        end_at = head.length - end_bytes
        behind.write(head.text + start[:end_at])
        left = end_at - len(start)
        while left > 0:
            next_piece = reader.read(min(PIECE_BYTES, left))
            piece = await asyncio.wait_for(next_piece, self.settings.piece_seconds)
            if not piece:
                raise EOFError
            behind.write(piece)
            await behind.drain()
            left -= len(piece)

        # Of a small record the end was read with the beginning.
        end = start[end_at:]
        end += await self._read(reader, end_bytes - len(end))
        check_object_end(end)
        behind.write(end)

    async def _read(self, reader: asyncio.StreamReader, size: int) -> bytes:
        """So many bytes of a body, all of them in the time of a piece."""
        return await asyncio.wait_for(reader.readexactly(size), self.settings.piece_seconds)

    async def _pass_answers(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        forwarded: asyncio.Queue[Head],
    ) -> None:
        """Pass Flower's answers back, count those that refuse a request, and note which sites have fetched a request."""
        try:
            while True:
                text = await source.readuntil(b"\r\n\r\n")
                answer = ANSWER.match(text)
                if answer is None or forwarded.empty():
                    return
                head = forwarded.get_nowait()
                status = answer[1].decode()
                left = int(answer[2])
                if status.startswith("4"):
                    self.count_rejected(f"{status} of Flower to {head.site.name}")
                # The answer is empty where there is no request. A site answers one before it fetches the next.
                if status == "200" and head.path == PULL_MESSAGES and left:
                    head.site.reply_bytes = self.settings.reply_bytes
                target.write(text)
                # a site that reads no answers, of which most are empty, would fill this buffer
                await asyncio.wait_for(target.drain(), self.settings.piece_seconds)
                while left:
                    piece = await source.read(min(PIECE_BYTES, left))
                    if not piece:
                        return
                    target.write(piece)
                    await asyncio.wait_for(target.drain(), self.settings.piece_seconds)
                    left -= len(piece)
                forwarded.task_done()
        except asyncio.IncompleteReadError:
            # Flower has closed the connection
            return
        finally:
            target.close()


def check_signature(key: EllipticCurvePublicKey, timestamp: bytes, signature: bytes) -> None:
    """Raise `Rejected` unless this key has signed the time."""
    try:
        key.verify(base64.b64decode(signature, validate=True), timestamp, ECDSA(SHA256()))
    except (InvalidSignature, ValueError):
        raise Rejected("401 Unauthorized", "not signed with its key") from None


def check_time(timestamp: bytes) -> None:
    """Raise `Rejected` for a time that is not about now."""
    try:
        signed_at = datetime.fromisoformat(timestamp.decode("ascii"))
        seconds = (datetime.now(UTC) - signed_at).total_seconds()
    except (ValueError, TypeError):
        raise Rejected("401 Unauthorized", "signed no time") from None
    if not -AHEAD_SECONDS < seconds < BEHIND_SECONDS:
        raise Rejected("401 Unauthorized", "another clock")


def check_push(body: bytes) -> None:
    """Raise `Rejected` for anything but one reply: of the node of the request, to SuperLink, with ids and type of our messages."""
    push = single_fields(body, PUSH_FIELDS)
    node = single_fields(push["node"], NODE_FIELDS)
    message = single_fields(push["message"], MESSAGE_FIELDS)
    metadata = single_fields(message["metadata"], METADATA_FIELDS)

    is_reply = OBJECT_HASH.fullmatch(metadata["reply_to"]) is not None
    ids_are_sound = OBJECT_HASH.fullmatch(metadata["id"]) and not metadata["group"]
    if not is_reply or not ids_are_sound or metadata["type"] != TYPE:
        raise Rejected("400 Bad Request", "no reply to a request")
    source = metadata.get("source")
    if source != node.get("id") or metadata.get("destination") != SUPERLINK:
        raise Rejected("400 Bad Request", "a message of another node, or to one")
    check_tree(push["tree"])


def check_object(start: bytes, length: int) -> int:
    """Raise `Rejected` for another record than one with a short id, by the beginning of its request of `length` bytes.

    Returns the number of bytes behind the record.
    """
    at = 0
    found = []
    while True:
        tag, at = varint(start, at)
        number = tag >> 3
        kind = tag & 7
        if number == OBJECT_CONTENT and kind == COUNTED:
            break
        value, at = protobuf_value(start, at, kind)
        found.append((number, kind, value))
    fields = named_fields(found, OBJECT_FIELDS)
    size, at = varint(start, at)
    end_bytes = length - at - size
    if not OBJECT_HASH.fullmatch(fields["id"]) or not 0 <= end_bytes <= MAX_OBJECT_END_BYTES:
        raise Rejected("400 Bad Request", "no record of a message")
    return end_bytes


def check_object_end(end: bytes) -> None:
    """Raise `Rejected` for more behind a record than one id of a session: of two ids or records the last one would count."""
    single_fields(end, OBJECT_END_FIELDS)


def check_tree(message: bytes) -> None:
    """Raise `Rejected` for another tree than: a message, its record dictionary, and the records, no two the same."""
    ids: list[bytes] = []
    level = [message]
    # level by level: one message, one dictionary, any number of records, and nothing below these
    for most in (1, 1, len(message), 0):
        if len(level) > most:
            raise Rejected("400 Bad Request", "no tree of a message")
        children = []
        for tree in level:
            for number, kind, value in protobuf_fields(tree):
                if (number, kind) == TREE_ID:
                    ids.append(value)
                elif (number, kind) == TREE_CHILD:
                    children.append(value)
        level = children
    if not ids or len(set(ids)) < len(ids) or not all(map(OBJECT_HASH.fullmatch, ids)):
        raise Rejected("400 Bad Request", "no tree of a message")


Fields = Mapping[str, tuple[int, int]]
"""The name of a protobuf field -> its number and kind."""


def single_fields(data: bytes, fields: Fields) -> dict[str, Any]:
    """The values of a protobuf message by name. Raises `Rejected` for other fields than these, and for one that occurs twice."""
    return named_fields(protobuf_fields(data), fields)


def named_fields(found: Iterable[tuple[int, int, Any]], fields: Fields) -> dict[str, Any]:
    """The same of fields that were read; those that hold messages are there, though they may be empty."""
    names = {number_and_kind: name for name, number_and_kind in fields.items()}
    values: dict[str, Any] = {}
    for number, kind, value in found:
        name = names.get((number, kind))
        if name is None or name in values:
            raise Rejected("400 Bad Request", "another message than those of sites")
        values[name] = value
    for name, (_, kind) in fields.items():
        if kind == COUNTED:
            values.setdefault(name, b"")
    return values


def protobuf_fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """The number, kind and value of each field of a protobuf message."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        kind = tag & 7
        value, at = protobuf_value(data, at, kind)
        yield tag >> 3, kind, value


def protobuf_value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    """A value, a number or bytes, and where it ends. Raises `Rejected` for one that is cut off."""
    if kind == NUMBER:
        return varint(data, at)
    if kind == COUNTED:
        size, at = varint(data, at)
    elif kind == EIGHT_BYTES:
        size = 8
    elif kind == FOUR_BYTES:
        size = 4
    else:
        raise Rejected("400 Bad Request", "no protobuf")
    if at + size > len(data):
        raise Rejected("400 Bad Request", "no protobuf")
    return data[at : at + size], at + size


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of at most ten bytes of seven bits, and where it ends."""
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, at + place + 1
    raise Rejected("400 Bad Request", "no protobuf")


def network(address: str) -> str:
    """The address by which connections are counted: the /64 of IPv6, since one machine may have all of it."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address) or found.ipv4_mapped:
        return str(getattr(found, "ipv4_mapped", None) or found)
    return str(ipaddress.ip_network((found, 64), strict=False))


class EncryptedStream(asyncio.StreamReaderProtocol):
    """The protocol of a stream over TLS: its end ends the connection, also before `connection_made` says that it is one of TLS."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


class CountedMessages(logging.Handler):
    """Counts what asyncio would log: a stranger who causes it writes no line of its own."""

    def __init__(self, count: Callable[[str], None]):
        super().__init__()
        self.count = count

    def emit(self, record: logging.LogRecord) -> None:
        self.count(record.getMessage().partition("\n")[0][:MAX_REASON_LENGTH])


def main(path: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    gateway = Gateway(Settings(**json.loads(Path(path).read_text())))
    log = logging.getLogger("asyncio")
    log.addHandler(CountedMessages(gateway.count_rejected))
    log.propagate = False
    asyncio.run(gateway.serve())


if __name__ == "__main__":
    main(sys.argv[1])
