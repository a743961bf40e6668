"""Federation messages inside Flower messages: one configuration record for each piece.

Flower sends the records of a large message one by one, and equal records only once. A piece holds its number, so that no two are
equal and the bytes that are pulled are the bytes of the message.
"""

import time
from collections.abc import Callable, Sequence

from flwr.app import ConfigRecord, RecordDict

from unalike.core.codec import Malformed

TRAIN = "train"
"""Flower's message type of federation messages."""
PIECE = 4 << 20
"""Maximum bytes of a piece."""
NUMBER, BYTES = "number", "bytes"
SHORTEST_POLL, SHARE = 0.03, 0.1


def pack(message: bytes) -> RecordDict:
    """The content of a Flower message that carries `message`."""
    starts = range(0, max(1, len(message)), PIECE)
    return RecordDict(
        {
            str(i): ConfigRecord({NUMBER: i, BYTES: message[start : start + PIECE]})
            for i, start in enumerate(starts)
        }
    )


def unpack(
    pieces: Sequence[str], pull: Callable[[str], ConfigRecord | None], limit: int
) -> bytes | None:
    """The message whose records have these object ids; None if one has not arrived.

    `pull` gives a record, or None if it has not arrived. The last one is sent last and pulled first, so nothing is loaded before
    all of it is there. Raises `Malformed` for anything but the pieces of a message of at most `limit` bytes; not more than these
    and one piece are loaded.
    """
    if len(pieces) > limit // PIECE + 1:
        raise Malformed(f"{len(pieces)} pieces of {PIECE} bytes; expected at most {limit} bytes")
    if not pieces:
        raise Malformed("no part of a message: no configuration record")
    found: list[bytes] = []
    size = 0
    for number in reversed(range(len(pieces))):
        record = pull(pieces[number])
        if record is None:
            return None
        piece = record.get(BYTES)
        if (
            set(record) != {NUMBER, BYTES}
            or record[NUMBER] != number
            or not isinstance(piece, bytes)
        ):
            raise Malformed(f"{str(list(record))[:80]!a} for piece {number} of a message")
        found.append(piece)
        size += len(piece)
        if size > limit:
            raise Malformed(f"more than {size} bytes; expected at most {limit}")
    return b"".join(reversed(found))


def poll_after(since: float, longest: float) -> float:
    """Seconds until the next look for messages: a tenth of those since the last one, so that a message waits little for its age."""
    return min(max(SHORTEST_POLL, SHARE * (time.monotonic() - since)), longest)
