"""The coordinator's gateway: a TLS reverse proxy that passes only what sites need to Flower. Standard library only.

Flower serves three APIs on one port: Fleet for sites, Control (start and stop runs, register nodes) and Runtime (hands out
tasks). The last two have no authentication. So SuperLink listens on this machine only, and the gateway passes nothing but `POST
/v1/fleet/...`. It also keeps slow and oversized requests away from Flower: a handshake, a request's head and each piece of its
body have a deadline, a body has a maximum size, an enrolled key has an allowance of bytes per minute (other keys are rejected),
an address has a maximum number of connections. A connection that has not sent a head with an enrolled key is a stranger's: it has
no connection to Flower, and when there are too many of them the oldest is closed, so that they cannot keep a site out.

The tree of objects that a site sends with a message must be that of our messages: SuperLink would write out a tree in which objects
occur again and again, of more nodes than memory holds.

It writes one line a minute with the numbers of rejections, its own and Flower's.

Requests are parsed strictly and rewritten (one length, no chunks, no folding), so that gateway and server cannot disagree about
where a request ends. Responses are passed unchanged.

`python -I -S gateway.py <settings.json>`
"""

import asyncio
import base64
import ipaddress
import json
import re
import resource
import ssl
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REQUEST_LINE = re.compile(rb"POST (/v1/fleet/[a-z0-9/-]{1,64}) HTTP/1\.1")
FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}):[ \t]*([\x20-\x7e\t]{0,8192})")
REFUSED = re.compile(rb"HTTP/1\.1 (4[0-9]{2})[ \r]")
"""Beginning of an answer of Flower that refuses a request, such as 412 for a key that is connected already."""
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
PUSH_LINE = b"POST /v1/fleet/push-messages "
"""Beginning of a request that sends a message; the records of the message come in other requests."""
MAX_PUSH_BYTES = 256 * 1024
TREE_FIELD = 3
"""Number of the protobuf field of the trees of objects in that request."""
OBJECT_ID_FIELD = 1
"""Number of the protobuf field of an object's id in a tree."""
CHILDREN_FIELD = 2
"""Number of the protobuf field of the objects below it."""
NUMBER_TYPE = 0
"""Kind of a protobuf field: a number of variable length."""
EIGHT_BYTES = 1
"""Kind of a protobuf field: eight bytes."""
COUNTED_TYPE = 2
"""Kind of a protobuf field: bytes, with a number in front that says how many."""
FOUR_BYTES = 5
"""Kind of a protobuf field: four bytes."""


@dataclass(frozen=True)
class Settings:
    """Addresses, files and limits of the gateway; `behind` is SuperLink's port."""

    host: str
    port: int
    behind: int
    certificate: str
    key: str
    authority: str
    keys: list[str]
    body_bytes: int
    minute_bytes: int
    head_bytes: int = 16 * 1024
    head_seconds: float = 10.0
    idle_seconds: float = 120.0
    piece_seconds: float = 30.0
    connections: int = 2000
    connections_per_address: int = 256
    strangers: int = 200
    report_seconds: float = 60.0


class Rejected(Exception):
    """The request is rejected; the message is the HTTP status line."""


class Gateway:
    def __init__(self, settings: Settings):
        self.settings = settings
        self.open: Counter[str] = Counter()
        self.strangers: dict[asyncio.Task[None], None] = {}
        self.rejected: Counter[str] = Counter()
        self.keys = {base64.b64encode(key.encode()) for key in settings.keys}
        self.minute = 0
        self.minute_bytes: Counter[bytes] = Counter()
        """Key -> the bytes that it has sent in this minute."""
        self.upstream = ssl.create_default_context(cafile=settings.authority)

    async def serve(self) -> None:
        settings = self.settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(settings.certificate, settings.key)
        server = await asyncio.start_server(
            self.serve_connection,
            settings.host,
            settings.port,
            ssl=context,
            ssl_handshake_timeout=settings.head_seconds,
            limit=settings.head_bytes,
            backlog=512,
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
                print(f"{now} rejected {self.rejected.total()}: {', '.join(reasons)}", flush=True)
                self.rejected.clear()

    async def serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one connection: its requests one after the other, over one connection to Flower."""
        address = network(writer.get_extra_info("peername")[0])
        self.open[address] += 1
        answers = behind = None
        try:
            has_too_many = self.open[address] > self.settings.connections_per_address
            if has_too_many or self.open.total() > self.settings.connections:
                raise Rejected("503 Service Unavailable")

            # Flower hears of a connection only when an enrolled key has sent a head.
            head = await self._first_head(reader)
            if head is None:
                return
            behind_reader, behind = await asyncio.open_connection(
                "127.0.0.1", self.settings.behind, ssl=self.upstream, server_hostname="127.0.0.1"
            )

            # Answers are passed back while further requests come in.
            answers = asyncio.create_task(self._pump(behind_reader, writer, address))
            while head is not None and not answers.done():
                await self._forward(head, reader, behind)
                head = await self._head(reader, self.settings.idle_seconds)
        except Rejected as rejected:
            self.rejected[f"{rejected} from {address}"] += 1
            answer = f"HTTP/1.1 {rejected}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            writer.write(answer.encode())
        except (asyncio.CancelledError, TimeoutError, OSError, EOFError, ssl.SSLError) as error:
            # without a farewell, for which TLS would keep its buffers
            writer.transport.abort()
            if behind is None:
                self.rejected[f"{type(error).__name__} without a request from {address}"] += 1
        finally:
            if answers is not None:
                answers.cancel()
            for side in (behind, writer):
                if side is not None:
                    side.close()
            self.open[address] -= 1
            if not self.open[address]:
                del self.open[address]

    async def _first_head(self, reader: asyncio.StreamReader) -> tuple[bytes, int] | None:
        """The first head of a connection, which is a stranger's until it comes."""
        if len(self.strangers) >= self.settings.strangers:
            oldest = next(iter(self.strangers))
            del self.strangers[oldest]
            oldest.cancel()
        me = asyncio.current_task()
        assert me is not None
        self.strangers[me] = None
        try:
            async with asyncio.timeout(self.settings.head_seconds):
                return await self._head(reader, self.settings.head_seconds)
        finally:
            self.strangers.pop(me, None)

    async def _head(self, reader: asyncio.StreamReader, seconds: float) -> tuple[bytes, int] | None:
        """The head of the next request, which begins within `seconds`, rewritten, and the length of its body; None at the end."""
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
        if REQUEST_LINE.fullmatch(request) is None:
            raise Rejected("404 Not Found")
        pairs = []
        for line in lines:
            field = FIELD.fullmatch(line)
            if field is None:
                raise Rejected("400 Bad Request")
            pairs.append((field[1].lower(), field[2].strip()))

        # 3. There is one length, so that gateway and server agree where the body ends.
        lengths = [value for name, value in pairs if name == b"content-length"]
        if len(lengths) != 1 or not re.fullmatch(rb"[0-9]{1,12}", lengths[0]):
            raise Rejected("411 Length Required")
        if any(name in (b"transfer-encoding", b"content-encoding") for name, _ in pairs):
            raise Rejected("400 Bad Request")
        length = int(lengths[0])
        most = MAX_PUSH_BYTES if request.startswith(PUSH_LINE) else self.settings.body_bytes
        if length > most:
            raise Rejected("413 Content Too Large")

        # 4. The key is enrolled and has not sent too much.
        self._charge(dict(pairs).get(b"flwr-public-key"), length)

        # 5. It is written anew: what goes to Flower is what was read here.
        head = [request, b"host: 127.0.0.1"]
        for name, value in pairs:
            if name not in HOP_BY_HOP:
                head.append(name + b": " + value)
        return b"\r\n".join(head) + b"\r\n\r\n", length

    def _charge(self, key: bytes | None, length: int) -> None:
        """Count the bytes that an enrolled key sends in this minute. (Flower checks that the request is signed with it.)"""
        if key not in self.keys or key is None:
            raise Rejected("401 Unauthorized")
        minute = int(time.monotonic() // 60)
        if minute != self.minute:
            self.minute = minute
            self.minute_bytes.clear()
        self.minute_bytes[key] += length
        if self.minute_bytes[key] > self.settings.minute_bytes:
            raise Rejected("429 Too Many Requests")

    async def _forward(
        self, head: tuple[bytes, int], reader: asyncio.StreamReader, behind: asyncio.StreamWriter
    ) -> None:
        """Pass a request to Flower, a piece of its body at a time."""
        text, left = head
        # The tree of a message is read as a whole before any of it reaches Flower.
        if text.startswith(PUSH_LINE):
            body = await asyncio.wait_for(reader.readexactly(left), self.settings.piece_seconds)
            check_tree(body)
            text += body
            left = 0
        behind.write(text)
        while left:
            next_piece = reader.read(min(PIECE_BYTES, left))
            piece = await asyncio.wait_for(next_piece, self.settings.piece_seconds)
            if not piece:
                raise EOFError
            behind.write(piece)
            await behind.drain()
            left -= len(piece)

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, address: str
    ) -> None:
        """Pass Flower's answers back, and count those that refuse a request."""
        while piece := await source.read(PIECE_BYTES):
            refused = REFUSED.match(piece)
            if refused:
                self.rejected[f"{refused[1].decode()} of Flower to {address}"] += 1
            target.write(piece)
            await asyncio.wait_for(target.drain(), self.settings.piece_seconds)
        target.close()


def check_tree(body: bytes) -> None:
    """Raise `Rejected` for another tree than: a message, its record dictionary, and the records, no two the same."""
    ids: list[bytes] = []
    level = [value for number, value in protobuf_fields(body) if number == TREE_FIELD]
    # level by level: one message, one dictionary, any number of records, and nothing below these
    for most in (1, 1, len(body), 0):
        if len(level) > most:
            raise Rejected("400 Bad Request")
        children = []
        for tree in level:
            for number, value in protobuf_fields(tree):
                if number == OBJECT_ID_FIELD:
                    ids.append(value)
                elif number == CHILDREN_FIELD:
                    children.append(value)
        level = children
    if len(set(ids)) < len(ids):
        raise Rejected("400 Bad Request")


def protobuf_fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The numbers and values of the fields of a protobuf message that have a length; the others are numbers."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        field, kind = tag >> 3, tag & 7
        if kind == NUMBER_TYPE:
            _, at = varint(data, at)
            size = 0
        elif kind == COUNTED_TYPE:
            size, at = varint(data, at)
        elif kind == EIGHT_BYTES:
            size = 8
        elif kind == FOUR_BYTES:
            size = 4
        else:
            raise Rejected("400 Bad Request")
        if at + size > len(data):
            raise Rejected("400 Bad Request")
        if kind == COUNTED_TYPE:
            yield field, data[at : at + size]
        at += size


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of at most ten bytes of seven bits, and where it ends."""
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, at + place + 1
    raise Rejected("400 Bad Request")


def network(address: str) -> str:
    """The address by which connections are counted: the /64 of IPv6, since one machine may have all of it."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address) or found.ipv4_mapped:
        return str(getattr(found, "ipv4_mapped", None) or found)
    return str(ipaddress.ip_network((found, 64), strict=False))


def main(path: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    asyncio.run(Gateway(Settings(**json.loads(Path(path).read_text()))).serve())


if __name__ == "__main__":
    main(sys.argv[1])
