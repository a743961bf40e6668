"""The operator's commands to a running federation, over a socket in its folder: status, run, pause, resume, stop."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unalike._utils.errors import UnalikeError
from unalike._utils.system import local_socket
from unalike._utils.system.locks import is_locked

MAX_BYTES = 1 << 20
"""Maximum bytes of a command and of its answer."""
ANSWER_SECONDS = 10.0
"""Seconds to wait for an answer."""

Answer = dict[str, Any]
"""The status of a federation, or the text of an error."""


@contextmanager
def listening(
    path: Path,
    commands: Mapping[str, Callable[[], object]],
    status: Callable[[], Answer],
    audit: Callable[..., None] = lambda event, **details: None,
) -> Iterator[None]:
    """Carry out commands at the socket `path` while the `with` block runs; each is answered by the status after it.

    `audit` gets those that change something.
    """
    over = threading.Event()

    def handle(message: bytes) -> bytes:
        try:
            name = str(json.loads(message)["do"])
            if name not in commands:
                raise UnalikeError(f"unknown command {name!r}; expected {', '.join(commands)}")
            if name != "status":
                audit("command", command=name)
            commands[name]()
            return json.dumps(status()).encode()
        except UnalikeError as error:
            return json.dumps({"error": str(error)}).encode()
        except (ValueError, KeyError, TypeError):
            return json.dumps({"error": "not a valid command"}).encode()

    thread = threading.Thread(
        target=local_socket.serve, args=(path, handle, MAX_BYTES, over.is_set), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class NotUp(UnalikeError):
    """No process listens at the socket."""


class Starting(UnalikeError):
    """A process has the folder but does not listen at the socket: it starts, or ends."""


class NoAnswer(UnalikeError):
    """A process listens at the socket but has not answered in time."""


def command(path: Path, name: str) -> Answer:
    """Send a command. Raises `NotUp`, `Starting`, after a timeout `NoAnswer`, and `UnalikeError` if the command is refused."""
    message = json.dumps({"do": name}).encode()
    try:
        answer = json.loads(local_socket.ask(path, message, MAX_BYTES, ANSWER_SECONDS))
    except TimeoutError:
        raise NoAnswer(
            f"the federation in {path.parent} is up but has not answered for {ANSWER_SECONDS:.0f} s, and may still do it; "
            f"look at `unalike federation status {path.parent}`"
        ) from None
    except OSError:
        # The socket is there only while commands are carried out; the lock lasts from the first step to the last.
        if is_locked(path.parent):
            raise Starting(
                f"{path.parent} is starting or ending; try again in some seconds"
            ) from None
        raise NotUp(
            f"nothing is up in {path.parent}; start it with `unalike federation up {path.parent}`"
        ) from None
    if "error" in answer:
        raise UnalikeError(answer["error"])
    return dict(answer)
