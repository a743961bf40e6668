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

HEAD = re.compile(rb"POST (/v1/fleet/[a-z0-9/-]{1,64}) HTTP/1\.1")
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
PIECE = 256 * 1024
PUSH, PUSH_BYTES = b"POST /v1/fleet/push-messages ", 256 * 1024
"""Beginning of a request that sends a message, and its maximum bytes; the records of the message come in other requests."""
TREE, OBJECT_ID, CHILDREN = 3, 1, 2
"""Numbers of protobuf fields: of the trees in that request, and of an object's id and the objects below it."""


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
        self.sent: Counter[bytes] = Counter()
        self.minute = 0
        self.upstream = ssl.create_default_context(cafile=settings.authority)

    async def serve(self) -> None:
        s = self.settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(s.certificate, s.key)
        server = await asyncio.start_server(
            self.serve_connection,
            s.host,
            s.port,
            ssl=context,
            ssl_handshake_timeout=s.head_seconds,
            limit=s.head_bytes,
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
                most = ", ".join(
                    f"{count} x {what}" for what, count in self.rejected.most_common(10)
                )
                print(
                    f"{time.strftime('%Y-%m-%d %H:%M:%S%z')} rejected {self.rejected.total()}: {most}",
                    flush=True,
                )
                self.rejected.clear()

    async def serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one connection: its requests one after the other, over one connection to Flower."""
        address = network(writer.get_extra_info("peername")[0])
        self.open[address] += 1
        answers = behind = None
        try:
            if (
                self.open[address] > self.settings.connections_per_address
                or self.open.total() > self.settings.connections
            ):
                raise Rejected("503 Service Unavailable")
            head = await self._first_head(reader)
            if head is None:
                return
            behind_reader, behind = await asyncio.open_connection(
                "127.0.0.1", self.settings.behind, ssl=self.upstream, server_hostname="127.0.0.1"
            )
            answers = asyncio.create_task(self._pump(behind_reader, writer, address))
            while head is not None and not answers.done():
                await self._forward(head, reader, behind)
                head = await self._head(reader, self.settings.idle_seconds)
        except Rejected as rejected:
            self.rejected[f"{rejected} from {address}"] += 1
            writer.write(
                f"HTTP/1.1 {rejected}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
            )
        except (asyncio.CancelledError, TimeoutError, OSError, EOFError, ssl.SSLError) as error:
            writer.transport.abort()  # without a farewell, for which TLS would keep its buffers
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
        s = self.settings
        try:
            first = await asyncio.wait_for(reader.read(1), seconds)
            if not first:
                return None
            raw = first + await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), s.head_seconds)
        except asyncio.LimitOverrunError:
            raise Rejected("431 Request Header Fields Too Large") from None
        request, *lines = raw[:-4].split(b"\r\n")
        found = HEAD.fullmatch(request)
        if found is None:
            raise Rejected("404 Not Found")
        fields = [FIELD.fullmatch(line) for line in lines]
        if not all(fields):
            raise Rejected("400 Bad Request")
        pairs = [(f[1].lower(), f[2].strip()) for f in fields if f is not None]
        lengths = [value for name, value in pairs if name == b"content-length"]
        if len(lengths) != 1 or not re.fullmatch(rb"[0-9]{1,12}", lengths[0]):
            raise Rejected("411 Length Required")
        if any(name in (b"transfer-encoding", b"content-encoding") for name, _ in pairs):
            raise Rejected("400 Bad Request")
        if int(lengths[0]) > (PUSH_BYTES if request.startswith(PUSH) else s.body_bytes):
            raise Rejected("413 Content Too Large")
        self._charge(dict(pairs).get(b"flwr-public-key"), int(lengths[0]))
        kept = [(name, value) for name, value in pairs if name not in HOP_BY_HOP]
        lines = [request, b"host: 127.0.0.1", *(name + b": " + value for name, value in kept)]
        return b"\r\n".join(lines) + b"\r\n\r\n", int(lengths[0])

    def _charge(self, key: bytes | None, length: int) -> None:
        """Count the bytes that an enrolled key sends in this minute. (Flower checks that the request is signed with it.)"""
        if key not in self.keys or key is None:
            raise Rejected("401 Unauthorized")
        minute = int(time.monotonic() // 60)
        if minute != self.minute:
            self.minute = minute
            self.sent.clear()
        self.sent[key] += length
        if self.sent[key] > self.settings.minute_bytes:
            raise Rejected("429 Too Many Requests")

    async def _forward(
        self, head: tuple[bytes, int], reader: asyncio.StreamReader, behind: asyncio.StreamWriter
    ) -> None:
        text, left = head
        if text.startswith(PUSH):
            body = await asyncio.wait_for(reader.readexactly(left), self.settings.piece_seconds)
            check_tree(body)
            text, left = text + body, 0
        behind.write(text)
        while left:
            piece = await asyncio.wait_for(
                reader.read(min(PIECE, left)), self.settings.piece_seconds
            )
            if not piece:
                raise EOFError
            behind.write(piece)
            await behind.drain()
            left -= len(piece)

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, address: str
    ) -> None:
        while piece := await source.read(PIECE):
            if refused := REFUSED.match(piece):
                self.rejected[f"{refused[1].decode()} of Flower to {address}"] += 1
            target.write(piece)
            await asyncio.wait_for(target.drain(), self.settings.piece_seconds)
        target.close()


def check_tree(body: bytes) -> None:
    """Raise `Rejected` for another tree than: a message, its record dictionary, and the records, no two the same."""
    ids: list[bytes] = []
    level = [value for number, value in protobuf_fields(body) if number == TREE]
    for most in (1, 1, len(body), 0):
        if len(level) > most:
            raise Rejected("400 Bad Request")
        found = [field for tree in level for field in protobuf_fields(tree)]
        ids += [value for number, value in found if number == OBJECT_ID]
        level = [value for number, value in found if number == CHILDREN]
    if len(set(ids)) < len(ids):
        raise Rejected("400 Bad Request")


def protobuf_fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The numbers and values of the fields of a protobuf message that have a length; the others are numbers."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        size = {0: 0, 1: 8, 5: 4}.get(tag & 7)
        if tag & 7 in (0, 2):
            number, at = varint(data, at)
            size = number if tag & 7 == 2 else 0
        if size is None or at + size > len(data):
            raise Rejected("400 Bad Request")
        if tag & 7 == 2:
            yield tag >> 3, data[at : at + size]
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
