"""Messages between two processes of one site, over a Unix socket that only its owner can open. Standard library only.

A message is eight bytes of length and the bytes; a request has one reply. The socket lies in the site's folder.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LENGTH = struct.Struct(">Q")
PIECE = 1 << 20
SILENCE = 30.0
"""Seconds after which a half-sent request is given up."""


def serve(
    path: Path, handle: Callable[[bytes], bytes], limit: int, stopped: Callable[[], bool] = lambda: False
) -> None:
    """Answer requests, one after the other, until `stopped()`. A request that is too long or half sent is dropped.

    The socket has its name only once it listens: whoever sees it is answered.
    """
    unheard = path.with_name(f"{path.name}.new")
    with _reached(unheard) as name:
        unheard.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)
            unheard.chmod(0o600)
            server.listen()
            unheard.replace(path)
            server.settimeout(0.2)
            try:
                while not stopped():
                    try:
                        client, _ = server.accept()
                    except TimeoutError:
                        continue
                    with client:
                        _answer(client, handle, limit)
            finally:
                path.unlink(missing_ok=True)


def ask(path: Path, message: bytes, limit: int, seconds: float | None = None) -> bytes:
    """Send a request and wait for its reply. Raises `OSError` where nobody answers."""
    with _reached(path) as name, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(seconds)
        client.connect(name)
        _send(client, message)
        return _receive(client, limit)


def _answer(client: socket.socket, handle: Callable[[bytes], bytes], limit: int) -> None:
    try:
        client.settimeout(SILENCE)
        request = _receive(client, limit)
    except OSError:
        return
    reply = handle(request)
    try:
        client.settimeout(SILENCE)
        _send(client, reply)
    except OSError:  # who asked has gone; a repeated request has the same reply
        return


def _send(client: socket.socket, message: bytes) -> None:
    client.sendall(LENGTH.pack(len(message)))
    if message:  # of an empty one the other side may have taken leave already
        client.sendall(message)


def _receive(client: socket.socket, limit: int) -> bytes:
    (length,) = LENGTH.unpack(_exactly(client, LENGTH.size))
    if length > limit:
        raise OSError(f"a message of {length} bytes; at most {limit} are taken")
    return _exactly(client, length)


def _exactly(client: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        piece = client.recv(min(PIECE, count - len(found)))
        if not piece:
            raise ConnectionError("the other side closed the connection")
        found += piece
    return bytes(found)


@contextmanager
def _reached(path: Path) -> Iterator[str]:
    """A name of the socket short enough for the system, however deep its folder lies."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
