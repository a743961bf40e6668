"""What we use of Flower that it does not publish, in one place: how a process of ours takes the part of its executors.

Flower runs the code of a bundle (FAB) that whoever starts a run has shipped. We run SuperLink and SuperNode with
`--isolation process`, a published option: they then start nothing, and a process of ours, which knows the secret
(`--superexec-auth-secret-file`), asks for the work and does it with the code that is installed. The bundle is never unpacked.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Error, Message
from flwr.cli.build import build_fab_from_files
from flwr.clientapp import ClientApp
from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    ErrorCode,
    SubStatus,
)
from flwr.common.serde import run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest, StopRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from unalike._utils.errors import UnalikeError

REFUSALS = {
    401: "the coordinator does not know this key (any more); ask for a newer bundle",
    412: "this key is connected already, from another folder or machine",
    429: "this key has sent more than its allowance of a minute",
    503: "the coordinator is not up, or has no more room for connections",
}
"""What the door and SuperLink mean by a status."""
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
RETRY_SECONDS = 5.0
"""How long Flower's Grid tries a call again, which it would do without end; then it is our transport's turn."""

BUNDLE = {
    "pyproject.toml": b"""[project]
name = "unalike-relay"
version = "1.0.0"
description = "Names the relay that every site has installed; nothing in this bundle is executed."
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41"]

[tool.flwr.app]
publisher = "unalike"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "unalike.federation.flower:server_app"
clientapp = "unalike.federation.flower:client_app"
""",
    "LICENSE": b"Apache-2.0\n",
}


def bundle() -> bytes:
    """The bundle that a run needs a name for: the same bytes everywhere."""
    fab, _ = build_fab_from_files(dict(BUNDLE))
    return fab


class Control:
    """Registers sites and starts the run, over the Control API on the own machine."""

    def __init__(self, port: int, authority: bytes):
        self._client = ControlHttpClient.from_server_address(
            f"127.0.0.1:{port}", False, authority, [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
        )

    def ready(self) -> bool:
        """Whether SuperLink answers."""
        try:
            return bool(self._client._client.get(f"{self._client._base_url}/health").status_code < 500)
        except httpx.TransportError:
            return False

    def register(self, name: str, key: bytes) -> None:
        """Enrol a site's public key (PEM)."""
        self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def start(self) -> int:
        """Start a run of the bundle; its number."""
        fab = bundle()
        found = self._client.StartRun(StartRunRequest(fab=Fab(hash_str=hashlib.sha256(fab).hexdigest(), content=fab)))
        return int(found.run_id)

    def stop(self, run: int) -> None:
        """End a run that may be over already."""
        with suppress(httpx.HTTPError, RuntimeError):
            self._client.StopRun(StopRunRequest(run_id=run))


def leave(address: str, authority: bytes, key: bytes, node: int) -> None:
    """Tell a SuperLink that this node (its OpenSSH private key, the number that it had) is gone, where its SuperNode could not.

    Until it hears that, or misses two heartbeats of 30 s, it lets no other SuperNode of this key in. No word of a SuperLink that is
    not there, knows already, or has another number for the key by now.
    """
    with suppress(httpx.HTTPError, RuntimeError), _fleet(address, authority, key)[0] as client:
        client.DeactivateNode(DeactivateNodeRequest(node_id=node))


def knock(address: str, authority: bytes, key: bytes) -> str:
    """Why a SuperLink does not let a node of this key in, which its SuperNode leaves unsaid; empty where it does."""
    client, public = _fleet(address, authority, key)
    try:
        with client:
            found = client.ActivateNode(
                ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
            )
            client.DeactivateNode(DeactivateNodeRequest(node_id=found.node_id))
    except httpx.HTTPStatusError as error:
        return _clocks(error) or REFUSALS.get(error.response.status_code, str(error))
    except (httpx.HTTPError, RuntimeError) as error:
        return f"cannot reach {address}: {error}"
    return ""


def _clocks(error: httpx.HTTPStatusError) -> str:
    """Whether a signed request was refused for its time, which SuperLink says no more than that of a key; empty if not.

    The door refuses keys by itself and, unlike SuperLink, gives no date.
    """
    date = error.response.headers.get("date")
    if error.response.status_code != 401 or date is None:
        return ""
    ahead = datetime.fromisoformat(error.request.headers[TIMESTAMP_HEADER]) - parsedate_to_datetime(date)
    seconds = ahead.total_seconds()
    if -TIMESTAMP_TOLERANCE < seconds < SYSTEM_TIME_TOLERANCE:
        return ""
    return (
        f"this machine's clock is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} the coordinator's, which lets in "
        f"who is less than {SYSTEM_TIME_TOLERANCE} s ahead or {TIMESTAMP_TOLERANCE} s behind; set the clock that is wrong"
    )


def _fleet(address: str, authority: bytes, key: bytes) -> tuple[FleetHttpClient, bytes]:
    """What speaks for a site's SuperNode, and its public key."""
    private = load_ssh_private_key(key, None)
    assert isinstance(private, EllipticCurvePrivateKey)
    signs = NodeAuthHttpInterceptor(private, private.public_key())
    says = RuntimeVersionHttpInterceptor(component_name="SuperNode")
    client = FleetHttpClient.from_server_address(address, False, authority, interceptors=[says, signs])
    return client, public_key_to_bytes(private.public_key())


def executor(address: str, secret: bytes, authority: bytes | None) -> RuntimeHttpClient:
    """What asks a SuperLink or SuperNode (`authority` None: on the own machine, without TLS) for work."""
    return RuntimeHttpClient.from_server_address(
        address,
        authority is None,
        authority,
        [
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[ACQUIRE]),
        ],
    )


def acquire(client: RuntimeHttpClient, kind: TaskType) -> str | None:
    """The token of a piece of work that waits, None where nothing does."""
    found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
    return found.token or None


class OpenGrid:
    """The Grid of a run that has just been started; `close` ends the run for Flower."""

    def __init__(self, address: str, secret: bytes, authority: bytes):
        client = executor(address, secret, authority)
        token = _awaited(lambda: acquire(client, TaskType.SERVER_APP))
        client.close()
        self.grid = HttpGrid(address, False, authority, token=token)
        self.grid._retry_invoker.max_time = RETRY_SECONDS
        runtime = self.grid._runtime_client
        found = runtime.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = (
            found.task_id,
            found.run.run_id,
            found.context.node_id,
        )
        self.grid.set_run(run_from_proto(found.run))
        self._heart = HeartbeatSender(make_task_heartbeat_fn_http(runtime))
        self._heart.start()

    def close(self) -> None:
        """Say that the run is over."""
        _silence(self._heart)
        self.grid._retry_invoker.max_tries = 1
        with suppress(httpx.HTTPError, RuntimeError):
            request = PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details="")
            self.grid._runtime_client.PushTaskOutput(request)
        self.grid.close()


def work(address: str, token: str, app: ClientApp) -> None:
    """Do one piece of a site's work with `app`, which is installed; the run's bundle is left alone."""
    client = RuntimeHttpClient.from_server_address(
        address,
        True,
        None,
        [RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), RuntimeTokenHttpInterceptor(token)],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    heart = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heart.start()
    try:
        message, context, _, _ = pull_task_input(client)
        status, details = SubStatus.COMPLETED, ""
        try:
            reply = app(message=message, context=context)
        except Exception as error:  # whatever went wrong is said, not raised: the next message may be better
            status, details = SubStatus.FAILED, type(error).__name__
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details), reply_to=message)
        push_message(client, reply, context)
        _silence(heart)
        push_task_output(client, context, status, details)
    finally:
        _silence(heart)
        client.close()


def _silence(heart: HeartbeatSender) -> None:
    """No further heartbeats. Before a task is over: its token ends with it, and one that is refused is repeated for ever."""
    with suppress(RuntimeError):  # it has stopped
        heart.stop()


def _awaited(look: Callable[[], str | None], seconds: float = 20.0) -> str:
    deadline = time.monotonic() + seconds
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise UnalikeError(f"Flower's SuperLink handed out no work within {seconds:.0f} s; look into its log")
        time.sleep(0.05)
    return found
