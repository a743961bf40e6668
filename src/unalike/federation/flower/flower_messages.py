"""Federation messages inside Flower messages: bytes in one array record, which Flower sends in pieces of limited size."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Message, RecordDict

RECORD, ITEM, STYPE = "unalike", "message", "bytes"

TRAIN, PING = "train", "query"
"""Flower's message types: one for federation messages, one for empty messages that keep a site polling."""


def pack(message: bytes) -> RecordDict:
    """The content of a Flower message that carries `message`."""
    return RecordDict({RECORD: ArrayRecord({ITEM: Array("uint8", (len(message),), STYPE, message)})})


def unpack(found: Message) -> bytes | None:
    """The federation message in a Flower message; None if there is none (for example an error reported by Flower)."""
    if not found.has_content():
        return None
    record = found.content.array_records.get(RECORD)
    if record is None or list(record) != [ITEM]:
        return None
    return record[ITEM].data
