"""All uses of Flower's unpublished interfaces, in one place: its client of the Fleet API, and a process of ours as executor.

Flower executes the code of an app bundle (FAB) that is sent when a run is started. Here SuperLink runs with `--isolation
process`, a published option: it starts no executor. A process of ours, which has the secret (`--superexec-auth-secret-file`),
acquires the task of the run and does it with the installed code. A site speaks SuperLink's Fleet API itself. The bundle is never
unpacked.
"""

import hashlib
import ssl
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, Self, cast

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.constant import (
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    SubStatus,
)
from flwr.common.serde import message_from_proto, message_to_proto, run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest, StopRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node, NodeInfo
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushTaskOutputRequest,
)
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from unalike._utils.errors import UnalikeError
from unalike.core.codec import Malformed

if TYPE_CHECKING:
    from flwr.superlink.grid.http_grid import HttpGrid

FAILURES = (httpx.HTTPError, httpx.InvalidURL, RuntimeError, ValueError)
"""What Flower's clients raise if a call fails."""
HEARTBEAT_SECONDS = 15.0
"""SuperLink takes a site for disconnected when it has heard no heartbeat for twice these seconds."""
REFUSALS = {
    401: "the coordinator does not know this key (any more); ask for a newer bundle",
    412: "this key is connected already, from another folder or machine",
    429: "this key has sent more than its allowance of a minute",
    503: "the coordinator is not up",
}
"""Meaning of an HTTP status from the gateway or SuperLink."""
SUPERLINK = (
    "from flwr.supercore.corestate import in_memory_corestate as state; state.HEARTBEAT_PATIENCE = 100_000; "
    "from flwr.superlink.cli import flower_superlink; flower_superlink()"
)
"""The program of Flower's command `flower-superlink`.

It would end a run whose heartbeat is late by the wall clock, which may be set forward. Here it ends with its parent anyway.
"""
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
MAX_CARRIED_BYTES = 128 * 1024
"""Maximum bytes of a record that travels with the metadata of its message, if it is the only one."""
SETTLED_SECONDS = 5.0
"""Seconds after which a message that carries its record is confirmed: by then its sender has sent the object that closes it."""
MAX_ANSWER_BYTES = 8 * 2**20
"""Maximum bytes of an answer of SuperLink to a site: a piece of a message, or the ids of all its pieces."""
RETRY_SECONDS = 5.0
"""Seconds for which Flower's Grid retries a call (without end by default); then `GridTransport` handles the failure."""

APP_FILES = {
    "pyproject.toml": b"""[project]
name = "unalike-run"
version = "1.0.0"
description = "Names the coordinator that is installed; nothing in this bundle is executed."
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41"]

[tool.flwr.app]
publisher = "unalike"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "unalike.federation:nothing"
clientapp = "unalike.federation:nothing"
""",
    "LICENSE": b"Apache-2.0\n",
}


def app_bundle() -> bytes:
    """The app bundle that Flower requires to start a run: the same bytes everywhere."""
    from flwr.cli.build import build_fab_from_files

    fab, _ = build_fab_from_files(dict(APP_FILES))
    return fab


class ControlClient:
    """Registers sites and starts the run over SuperLink's Control API on this machine."""

    def __init__(self, port: int, authority: bytes):
        self._client = ControlHttpClient.from_server_address(
            f"127.0.0.1:{port}",
            False,
            authority,
            [RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def ready(self) -> bool:
        """Whether SuperLink is up."""
        try:
            answer = self._client._client.get(f"{self._client._base_url}/health")
            return bool(answer.status_code < 500)
        except httpx.TransportError:
            return False

    def register(self, name: str, key: bytes) -> None:
        """Enrol a site's public key (PEM)."""
        self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def start(self) -> int:
        """Start a run of the app bundle; returns its id."""
        fab = app_bundle()
        content = Fab(hash_str=hashlib.sha256(fab).hexdigest(), content=fab)
        started = self._client.StartRun(StartRunRequest(fab=content))
        return int(started.run_id)

    def stop(self, run: int) -> None:
        """End a run; does nothing if it is over."""
        with suppress(httpx.HTTPError, RuntimeError):
            self._client.StopRun(StopRunRequest(run_id=run))


def reason_of(error: Exception, address: str) -> str:
    """The reason why there is no connection to `address`, from the error of the attempt."""
    if isinstance(error, httpx.HTTPStatusError):
        return _clock_difference(error) or REFUSALS.get(error.response.status_code, str(error))
    if isinstance(error, OSError):  # a file of the site: a full disk, for example
        return str(error)
    return f"cannot reach {address}: {error or type(error).__name__}"


def _clock_difference(error: httpx.HTTPStatusError) -> str:
    """The message if a signed request was refused for its timestamp; "" if not.

    The status is that for an unknown key; the date in the answer tells the two apart.
    """
    date = error.response.headers.get("date")
    if error.response.status_code != 401 or date is None:
        return ""
    own_time = datetime.fromisoformat(error.request.headers[TIMESTAMP_HEADER])
    seconds = (own_time - parsedate_to_datetime(date)).total_seconds()
    if -TIMESTAMP_TOLERANCE < seconds < SYSTEM_TIME_TOLERANCE:
        return ""
    where = "ahead of" if seconds > 0 else "behind"
    return (
        f"this machine's clock is {abs(seconds):.0f} s {where} the coordinator's, which accepts "
        f"less than {SYSTEM_TIME_TOLERANCE} s ahead or {TIMESTAMP_TOLERANCE} s behind; correct the wrong clock"
    )


@dataclass(frozen=True)
class Incoming:
    """A message as SuperLink sends it: metadata, and either its small record or the object ids of its records, to be pulled."""

    message: Message
    number: str
    answers: str
    """The id of the message that this one answers."""
    run: int
    carried: Mapping[str, ConfigRecord]
    """The records that came with the metadata, by name."""
    pieces: tuple[str, ...]
    """Names of the carried records, or object ids of the others."""

    @classmethod
    def of(cls, sent: ProtoMessage, tree: ObjectTree) -> Self:
        """From what SuperLink sends. A message without content, such as a report of an error, has no pieces."""
        message = message_from_proto(sent)
        carried = dict(message.content.config_records) if message.has_content() else {}
        records = tree.children[0].children if len(tree.children) == 1 else ()
        return cls(
            message=message,
            number=sent.metadata.message_id,
            answers=sent.metadata.reply_to_message_id,
            run=sent.metadata.run_id,
            carried=carried,
            pieces=tuple(carried) or tuple(record.object_id for record in records),
        )


class Messenger:
    """Sends messages to SuperLink and fetches their content, as `_node`, over one of Flower's clients.

    A small message takes one call to send and none to fetch: its record travels with its metadata. A thread makes the calls that
    SuperLink needs for its bookkeeping, while the other side goes on; one that fails is left out.
    """

    _client: FleetHttpClient | RuntimeHttpClient
    _node: Node

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._received: deque[tuple[float, Incoming]] = deque()
        """Messages that are not confirmed yet, and when they may be."""

    def _later(self, call: Callable[[], None]) -> None:
        def without_failures() -> None:
            with suppress(*FAILURES):
                call()

        self._thread.submit(without_failures)

    def pull(self, message: Incoming, piece: str) -> ConfigRecord | None:
        """A record of a message; None if it has not arrived. Raises `Malformed` if it is none, or its sender gave up."""
        if piece in message.carried:
            return message.carried[piece]
        found = self._client.PullObject(
            PullObjectRequest(node=self._node, run_id=message.run, object_id=piece)
        )
        if not found.object_found:
            raise Malformed("only a part of the message was sent")
        if not found.object_available:
            return None
        try:
            return ConfigRecord.inflate(found.object_content)
        except Exception as error:  # whatever Flower's decoder raises for bytes of a stranger
            raise Malformed(f"no part of a message: {str(error)[:200]}") from None

    def confirm(self, message: Incoming) -> None:
        """Report a message as received, so that SuperLink deletes it."""
        if message.carried:
            self._received.append((time.monotonic() + SETTLED_SECONDS, message))
        else:
            self._received.appendleft((0.0, message))
        self._later(self._confirm_received)

    def _confirm_received(self) -> None:
        while self._received and self._received[0][0] <= time.monotonic():
            _, message = self._received.popleft()
            asked = ConfirmMessageReceivedRequest(
                node=self._node, run_id=message.run, message_object_id=message.number
            )
            self._client.ConfirmMessageReceived(asked)

    def send(self, messages: Sequence[Message], run: int, request: Callable[..., Any]) -> list[str]:
        """Send messages of a run, their metadata in one `request`, then their objects; returns their ids, "" for one not taken.

        The records of a message come last, in their order: with them it is complete and confirmed; SuperLink takes no more of it.
        SuperLink expects one object of a message that carries its record, that of the message itself.
        """
        metadata = []
        trees = []
        objects: dict[str, InflatableObject] = {}
        closing: dict[str, InflatableObject] = {}
        with no_object_id_recompute():
            for message in messages:
                nested = get_all_nested_objects(message)
                # in the order in which Flower lists the objects of a message
                *records, content, whole = nested
                message.metadata.__dict__["_message_id"] = whole
                is_small = (
                    len(records) == 1 and len(nested[records[0]].deflate()) <= MAX_CARRIED_BYTES
                )
                if is_small:
                    metadata.append(message_to_proto(message))
                    trees.append(ObjectTree(object_id=whole))
                    closing[whole] = message
                else:
                    metadata.append(message_to_proto(remove_content_from_message(message)))
                    trees.append(get_object_tree(message))
                    objects |= {number: nested[number] for number in (content, whole, *records)}
        answer = self._client.PushMessages(
            request(messages_list=metadata, message_object_trees=trees)
        )
        wanted = set(answer.objects_to_push)

        def push(objects: Mapping[str, InflatableObject]) -> None:
            for number, content in objects.items():
                if number not in wanted:
                    continue
                pushed = PushObjectRequest(
                    node=self._node,
                    run_id=run,
                    session_id=answer.session_id,
                    object_id=number,
                    object_content=content.deflate(),
                )
                self._client.PushObject(pushed)

        push(objects)
        self._later(partial(push, closing))
        return list(getattr(answer, "message_ids", ()))


def check_answer(answer: httpx.Response) -> None:
    """Refuse a compressed answer, or one of unknown or too great length, before its body is read.

    Raises `httpx.RemoteProtocolError`.
    """
    length = answer.headers.get("content-length", "")
    is_short = length.isdecimal() and int(length) <= MAX_ANSWER_BYTES
    if not is_short or "content-encoding" in answer.headers:
        raise httpx.RemoteProtocolError(
            f"an answer of {length[:20]!a} bytes, or a compressed one; expected at most {MAX_ANSWER_BYTES}"
        )


class FleetConnection(Messenger):
    """A site's connection to SuperLink's Fleet API: `key` (OpenSSH) signs, the server's certificate is of `authority` (PEM).

    Its methods raise one of `FAILURES` if a call fails.
    """

    _client: FleetHttpClient

    def __init__(self, address: str, authority: bytes, key: bytes):
        super().__init__()
        private = cast(EllipticCurvePrivateKey, load_ssh_private_key(key, None))
        signs = NodeAuthHttpInterceptor(private, private.public_key())
        says = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        self._key = public_key_to_bytes(private.public_key())
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.minimum_version = ssl.TLSVersion.TLSv1_3
        trusting.load_verify_locations(cadata=authority.decode("ascii"))
        self._client = FleetHttpClient(
            f"https://{address}", interceptors=[says, signs], verify=trusting
        )
        # The site connects to the coordinator and to nobody else, and takes in no more than a piece of a message at a time.
        http: httpx.Client = self._client._client
        http.follow_redirects = False
        http.event_hooks = {"response": [check_answer]}
        self._node = Node()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._client.close()

    @property
    def node(self) -> int:
        """The number of this key's node, which changes when SuperLink is started again."""
        return int(self._node.node_id)

    def activate(self, former: int | None) -> None:
        """Make this connection the key's node, in place of `former` if that is still active."""
        if former is not None:
            # SuperLink knows that it has left, or has another number for the key by now
            with suppress(httpx.HTTPStatusError):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=former))
        request = ActivateNodeRequest(public_key=self._key, heartbeat_interval=HEARTBEAT_SECONDS)
        self._node = Node(node_id=self._client.ActivateNode(request).node_id)

    def deactivate(self) -> None:
        """Say that the site has left."""
        self._client.DeactivateNode(DeactivateNodeRequest(node_id=self.node))

    def beat(self, ended: Event) -> None:
        """Send heartbeats until `ended` is set; one that fails is left to the next."""
        while not ended.wait(HEARTBEAT_SECONDS / 2):
            with suppress(*FAILURES):
                self._client.SendNodeHeartbeat(
                    SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_SECONDS)
                )

    def receive(self) -> Incoming | None:
        """The next request, if there is one."""
        found = self._client.PullMessages(PullMessagesRequest(node=self._node))
        try:
            return next(map(Incoming.of, found.messages_list, found.message_object_trees), None)
        except Exception as error:
            # whatever Flower's decoder raises; a `ValueError` is one of `FAILURES`
            raise ValueError(f"no message of SuperLink: {error}") from None

    def reply(self, request: Incoming, content: RecordDict) -> None:
        """Send the reply to a request."""
        reply = Message(content, reply_to=request.message)
        self.send([reply], request.run, partial(PushMessagesRequest, node=self._node))


class RunMessages(Messenger):
    """The messages of a Flower run, from its Grid. Its methods raise one of `FAILURES` if a call fails."""

    _client: RuntimeHttpClient

    def __init__(self, grid: Grid):
        super().__init__()
        grid = cast("HttpGrid", grid)
        self._grid = grid
        self._client = grid._runtime_client
        self._node = grid.node

    def nodes(self) -> list[NodeInfo]:
        """The connected nodes."""
        return list(self._grid.get_nodes())

    def push(self, messages: Sequence[Message]) -> list[str]:
        """Send messages; returns their ids, "" for one that was not taken."""
        return self.send(messages, self._grid.run.run_id, PushAppMessagesRequest)

    def withdraw(self, number: str) -> None:
        """Have SuperLink delete the content of a message that was sent and is lost."""
        self._client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self._node, run_id=self._grid.run.run_id, message_object_id=number
            )
        )

    def replies(self, numbers: Collection[str]) -> list[Incoming]:
        """New replies to the messages with these ids, without their content; Flower's reports of errors among them."""
        found = self._client.PullMessages(PullAppMessagesRequest(message_ids=list(numbers)))
        return list(map(Incoming.of, found.messages_list, found.message_object_trees))


class RunGrid:
    """The Grid of a run that was just started; `close` ends the run."""

    def __init__(self, address: str, secret: bytes, authority: bytes):
        from flwr.superlink.grid.http_grid import HttpGrid  # 33 MB that a site does not need

        says = RuntimeVersionHttpInterceptor(component_name="SuperExec")
        signs = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[ACQUIRE])
        with RuntimeHttpClient.from_server_address(
            address, False, authority, [says, signs]
        ) as client:
            request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
            token = _wait_for(lambda: client.AcquireTask(request).token)
        self.grid = HttpGrid(address, False, authority, token=token)
        self.grid._retry_invoker.max_time = RETRY_SECONDS
        runtime = self.grid._runtime_client
        found = runtime.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id = found.task_id
        TaskIdentity.run_id = found.run.run_id
        TaskIdentity.node_id = found.context.node_id
        self.grid.set_run(run_from_proto(found.run))
        self._heart = HeartbeatSender(make_task_heartbeat_fn_http(runtime))
        self._heart.start()

    def close(self) -> None:
        """Report the run as completed."""
        # it may have stopped already
        with suppress(RuntimeError):
            self._heart.stop()
        self.grid._retry_invoker.max_tries = 1
        with suppress(httpx.HTTPError, RuntimeError):
            request = PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details="")
            self.grid._runtime_client.PushTaskOutput(request)
        self.grid.close()


def _wait_for(look: Callable[[], str], seconds: float = 20.0) -> str:
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise UnalikeError(
                f"Flower's SuperLink gave no task within {seconds:.0f} s; look into its log"
            )
        time.sleep(0.05)
