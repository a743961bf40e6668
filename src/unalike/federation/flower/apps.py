"""The two apps that Flower knows: a relay at the site, and the coordinator behind its Grid."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from unalike.federation.flower.flower_messages import pack, unpack
from unalike.federation.operations import local_socket

SOCKET = "UNALIKE_SOCKET"
"""The environment variable that says where the site's trainer listens."""
LIMIT = "UNALIKE_MESSAGE_BYTES"

NODE = "node"
"""The file beside that socket with the number under which SuperLink knows the site, for the next start of its SuperNode."""

client_app = ClientApp()
"""The relay: hands what came to the site's trainer, a process of its own, and sends back what it says. It imports no torch."""


@client_app.train()
def relay(message: Message, context: Context) -> Message:
    """One message to the trainer, its reply back."""
    found = unpack(message)
    if found is None:
        raise ValueError("the message carries nothing for unalike's trainer")
    socket = os.environ.get(SOCKET) or str(context.node_config["socket"])
    limit = int(os.environ.get(LIMIT, 2**31))
    _remember(context)
    return Message(pack(local_socket.ask(Path(socket), found, limit)), reply_to=message)


def _remember(context: Context) -> None:
    if SOCKET not in os.environ:  # a SuperNode of the site's own
        return
    file, number = Path(os.environ[SOCKET]).with_name(NODE), str(context.node_id)
    if not file.exists() or file.read_text() != number:
        file.write_text(number)


@client_app.query()
def awake(message: Message, context: Context) -> Message:
    """Nothing to do; the next message is asked for at once."""
    _remember(context)
    return Message(RecordDict(), reply_to=message)
