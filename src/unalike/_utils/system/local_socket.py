"""Requests and replies between processes of one machine, over a Unix socket that only its owner can open. Standard library only.

A message is eight bytes of length and the bytes; a request has one reply. The socket is in the folder of the site or federation.
"""

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LENGTH_FORMAT = struct.Struct(">Q")
PIECE_BYTES = 1 << 20
"""Bytes that are read at a time."""
SILENCE_SECONDS = 30.0
"""Time without data after which a partly sent request or reply is dropped."""
STOP_CHECK_SECONDS = 0.2
"""Time between two looks whether the server is to stop."""


def serve(
    path: Path,
    handle: Callable[[bytes], bytes],
    limit: int,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Answer requests one after the other until `stopped()`. Requests that are too long or incomplete are dropped.

    The socket is renamed to `path` only when it listens, so a process that finds it gets an answer.
    """
    unpublished = path.with_name(f"{path.name}.new")
    with _short_name(unpublished) as name:
        unpublished.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)
            unpublished.chmod(0o600)
            server.listen()
            unpublished.replace(path)
            server.settimeout(STOP_CHECK_SECONDS)
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
    """Send a request and wait for its reply. Raises `OSError` if nothing answers."""
    with _short_name(path) as name, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(seconds)
        client.connect(name)
        _send(client, message)
        return _receive(client, limit)


def _answer(client: socket.socket, handle: Callable[[bytes], bytes], limit: int) -> None:
    """Read one request and send its reply. A client that sends or reads nothing for too long is left alone."""
    try:
        client.settimeout(SILENCE_SECONDS)
        request = _receive(client, limit)
    except OSError:
        return
    reply = handle(request)
    try:
        client.settimeout(SILENCE_SECONDS)
        _send(client, reply)
    except OSError:
        # the client is gone; if it repeats the request it gets the same reply
        return


def _send(client: socket.socket, message: bytes) -> None:
    client.sendall(LENGTH_FORMAT.pack(len(message)))
    # the other side may already have closed the connection after the length of an empty one
    if message:
        client.sendall(message)


def _receive(client: socket.socket, limit: int) -> bytes:
    (length,) = LENGTH_FORMAT.unpack(_exactly(client, LENGTH_FORMAT.size))
    if length > limit:
        raise OSError(f"a message of {length} bytes; at most {limit} are taken")
    return _exactly(client, length)


def _exactly(client: socket.socket, count: int) -> bytes:
    """Read so many bytes. Raises `ConnectionError` if the other side closes the connection before."""
    data = bytearray()
    while len(data) < count:
        missing = count - len(data)
        piece = client.recv(min(PIECE_BYTES, missing))
        if not piece:
            raise ConnectionError("the other side closed the connection")
        data += piece
    return bytes(data)


@contextmanager
def _short_name(path: Path) -> Iterator[str]:
    """A path of the socket within the system's length limit, however deep its folder is."""
    # the folder is named by the number of its open file, which is short
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
