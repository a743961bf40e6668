"""The site's Flower ClientApp: a relay between the SuperNode and the site worker's socket. It imports no torch."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from unalike._utils.system import local_socket
from unalike.federation.flower.flower_messages import pack, unpack

SOCKET = "UNALIKE_SOCKET"
"""Environment variable with the path of the site worker's socket."""
LIMIT = "UNALIKE_MESSAGE_BYTES"
"""Environment variable with the maximum bytes of a message."""

NODE = "node"
"""The file beside that socket with the site's node id in SuperLink, for the next start of its SuperNode."""

client_app = ClientApp()
"""Passes each message to the site worker, another process, and returns its reply."""


@client_app.train()
def relay(message: Message, context: Context) -> Message:
    """Pass one message to the site worker and return its reply."""
    found = unpack(message)
    if found is None:
        raise ValueError("the message carries nothing for unalike's site worker")
    socket = os.environ.get(SOCKET) or str(context.node_config["socket"])
    limit = int(os.environ.get(LIMIT, 2**31))
    _save_node_id(context)
    return Message(pack(local_socket.ask(Path(socket), found, limit)), reply_to=message)


def _save_node_id(context: Context) -> None:
    if SOCKET not in os.environ:  # the site starts its SuperNode itself
        return
    file, number = Path(os.environ[SOCKET]).with_name(NODE), str(context.node_id)
    if not file.exists() or file.read_text() != number:
        file.write_text(number)


@client_app.query()
def ping(message: Message, context: Context) -> Message:
    """Answer an empty message: a SuperNode that has just answered asks for the next message at once."""
    _save_node_id(context)
    return Message(RecordDict(), reply_to=message)
