"""Our messages in Flower's: bytes in one array record, which Flower cuts into pieces, so that no request is large."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Message, RecordDict

RECORD, ITEM, STYPE = "unalike", "message", "bytes"

TRAIN, PING = "train", "query"
"""Flower's kinds of messages: one for ours, one for what only keeps a site awake."""


def pack(message: bytes) -> RecordDict:
    """The content of a Flower message that carries `message`."""
    return RecordDict({RECORD: ArrayRecord({ITEM: Array("uint8", (len(message),), STYPE, message)})})


def unpack(found: Message) -> bytes | None:
    """What a Flower message carries, None where it is none of ours (an error of the other side's Flower, for one)."""
    if not found.has_content():
        return None
    record = found.content.array_records.get(RECORD)
    if record is None or list(record) != [ITEM]:
        return None
    return record[ITEM].data
