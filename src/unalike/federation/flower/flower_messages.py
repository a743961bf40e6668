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
MAX_PIECE_BYTES = 4 << 20
"""Maximum bytes of a piece."""
NUMBER, BYTES = "number", "bytes"
"""Keys of a record: the number of the piece, and its bytes."""
SHORTEST_POLL_SECONDS = 0.03
"""Minimum seconds between two looks for messages."""
POLL_SHARE = 0.1
"""Seconds until the next look, as a share of those since the last message."""


def pack(message: bytes) -> RecordDict:
    """The content of a Flower message that carries `message`."""
    records = RecordDict()
    # an empty message has one empty piece
    for number, start in enumerate(range(0, max(1, len(message)), MAX_PIECE_BYTES)):
        piece = message[start : start + MAX_PIECE_BYTES]
        records[str(number)] = ConfigRecord({NUMBER: number, BYTES: piece})
    return records


def unpack(
    pieces: Sequence[str], pull: Callable[[str], ConfigRecord | None], limit: int
) -> bytes | None:
    """The message whose records have these object ids; None if one has not arrived.

    `pull` gives a record, or None if it has not arrived. The last one is sent last and pulled first, so nothing is loaded before
    all of it is there. Raises `Malformed` for anything but the pieces of a message of at most `limit` bytes; not more than these
    and one piece are loaded.
    """
    if len(pieces) > limit // MAX_PIECE_BYTES + 1:
        raise Malformed(
            f"{len(pieces)} pieces of {MAX_PIECE_BYTES} bytes; expected at most {limit} bytes"
        )
    if not pieces:
        raise Malformed("no part of a message: no configuration record")
    # From the last piece to the first: the last one is there only when all are.
    backwards: list[bytes] = []
    size = 0
    for number in reversed(range(len(pieces))):
        record = pull(pieces[number])
        if record is None:
            return None
        piece = record.get(BYTES)
        has_other_fields = set(record) != {NUMBER, BYTES} or record[NUMBER] != number
        if has_other_fields or not isinstance(piece, bytes):
            raise Malformed(f"{str(list(record))[:80]!a} for piece {number} of a message")
        backwards.append(piece)
        size += len(piece)
        if size > limit:
            raise Malformed(f"more than {size} bytes; expected at most {limit}")
    return b"".join(reversed(backwards))


def poll_after(since: float, longest: float) -> float:
    """Seconds until the next look for messages: a tenth of those since the last one, so that a message waits little for its age."""
    seconds = POLL_SHARE * (time.monotonic() - since)
    return min(max(SHORTEST_POLL_SECONDS, seconds), longest)
