"""All uses of Flower's unpublished interfaces, in one place: processes of ours take the role of Flower's executors.

Flower executes the code of an app bundle (FAB) that is sent when a run is started. Here SuperLink and SuperNode run with
`--isolation process`, a published option: they start no executors. A process of ours, which has the secret
(`--superexec-auth-secret-file`), acquires the tasks and does them with the installed code. The bundle is never unpacked.
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
"""Meaning of an HTTP status from the gateway or SuperLink."""
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
RETRY_SECONDS = 5.0
"""Seconds for which Flower's Grid retries a call (without end by default); then `GridTransport` handles the failure."""

APP_FILES = {
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


def app_bundle() -> bytes:
    """The app bundle that Flower requires to start a run: the same bytes everywhere."""
    fab, _ = build_fab_from_files(dict(APP_FILES))
    return fab


class ControlClient:
    """Registers sites and starts the run over SuperLink's Control API on this machine."""

    def __init__(self, port: int, authority: bytes):
        self._client = ControlHttpClient.from_server_address(
            f"127.0.0.1:{port}", False, authority, [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
        )

    def ready(self) -> bool:
        """Whether SuperLink is up."""
        try:
            return bool(self._client._client.get(f"{self._client._base_url}/health").status_code < 500)
        except httpx.TransportError:
            return False

    def register(self, name: str, key: bytes) -> None:
        """Enrol a site's public key (PEM)."""
        self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def start(self) -> int:
        """Start a run of the app bundle; returns its id."""
        fab = app_bundle()
        found = self._client.StartRun(StartRunRequest(fab=Fab(hash_str=hashlib.sha256(fab).hexdigest(), content=fab)))
        return int(found.run_id)

    def stop(self, run: int) -> None:
        """End a run; does nothing if it is over."""
        with suppress(httpx.HTTPError, RuntimeError):
            self._client.StopRun(StopRunRequest(run_id=run))


def deactivate_node(address: str, authority: bytes, key: bytes, node: int) -> None:
    """Deactivate a node (OpenSSH private key, node id) at SuperLink in place of its killed SuperNode.

    Otherwise SuperLink refuses another SuperNode with this key until two heartbeats of 30 s are missing. Errors are ignored:
    SuperLink may be down, know it already, or have another id for the key by now.
    """
    with suppress(httpx.HTTPError, RuntimeError), _fleet_client(address, authority, key)[0] as client:
        client.DeactivateNode(DeactivateNodeRequest(node_id=node))


def reason_for_refusal(address: str, authority: bytes, key: bytes) -> str:
    """The reason why SuperLink refuses a node with this key, which a SuperNode does not report; "" if it accepts it."""
    client, public = _fleet_client(address, authority, key)
    try:
        with client:
            found = client.ActivateNode(
                ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
            )
            client.DeactivateNode(DeactivateNodeRequest(node_id=found.node_id))
    except httpx.HTTPStatusError as error:
        return _clock_difference(error) or REFUSALS.get(error.response.status_code, str(error))
    except (httpx.HTTPError, RuntimeError) as error:
        return f"cannot reach {address}: {error}"
    return ""


def _clock_difference(error: httpx.HTTPStatusError) -> str:
    """The message if a signed request was refused for its timestamp; "" if not.

    SuperLink answers 401 as for an unknown key, but with a date; the gateway, which rejects unknown keys itself, sends no date.
    """
    date = error.response.headers.get("date")
    if error.response.status_code != 401 or date is None:
        return ""
    ahead = datetime.fromisoformat(error.request.headers[TIMESTAMP_HEADER]) - parsedate_to_datetime(date)
    seconds = ahead.total_seconds()
    if -TIMESTAMP_TOLERANCE < seconds < SYSTEM_TIME_TOLERANCE:
        return ""
    return (
        f"this machine's clock is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} the coordinator's, which accepts "
        f"less than {SYSTEM_TIME_TOLERANCE} s ahead or {TIMESTAMP_TOLERANCE} s behind; correct the wrong clock"
    )


def _fleet_client(address: str, authority: bytes, key: bytes) -> tuple[FleetHttpClient, bytes]:
    """A client of the Fleet API with a SuperNode's identity, and its public key."""
    private = load_ssh_private_key(key, None)
    assert isinstance(private, EllipticCurvePrivateKey)
    signs = NodeAuthHttpInterceptor(private, private.public_key())
    says = RuntimeVersionHttpInterceptor(component_name="SuperNode")
    client = FleetHttpClient.from_server_address(address, False, authority, interceptors=[says, signs])
    return client, public_key_to_bytes(private.public_key())


def runtime_client(address: str, secret: bytes, authority: bytes | None) -> RuntimeHttpClient:
    """A client that acquires tasks from SuperLink, or from a SuperNode (`authority` None: this machine, without TLS)."""
    return RuntimeHttpClient.from_server_address(
        address,
        authority is None,
        authority,
        [
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[ACQUIRE]),
        ],
    )


def acquire_task(client: RuntimeHttpClient, kind: TaskType) -> str | None:
    """The token of a waiting task, or None."""
    found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
    return found.token or None


class RunGrid:
    """The Grid of a run that was just started; `close` ends the run."""

    def __init__(self, address: str, secret: bytes, authority: bytes):
        client = runtime_client(address, secret, authority)
        token = _wait_for(lambda: acquire_task(client, TaskType.SERVER_APP))
        client.close()
        self.grid = HttpGrid(address, False, authority, token=token)
        self.grid._retry_invoker.max_time = RETRY_SECONDS
        runtime = self.grid._runtime_client
        found = runtime.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = found.task_id, found.run.run_id
        TaskIdentity.node_id = found.context.node_id
        self.grid.set_run(run_from_proto(found.run))
        self._heart = HeartbeatSender(make_task_heartbeat_fn_http(runtime))
        self._heart.start()

    def close(self) -> None:
        """Report the run as completed."""
        _stop_heartbeat(self._heart)
        self.grid._retry_invoker.max_tries = 1
        with suppress(httpx.HTTPError, RuntimeError):
            request = PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details="")
            self.grid._runtime_client.PushTaskOutput(request)
        self.grid.close()


def run_task(address: str, token: str, app: ClientApp) -> None:
    """Run one task of a site with the installed `app`; the run's app bundle is not used."""
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
        except Exception as error:  # reported, not raised: the relay continues with the next message
            status, details = SubStatus.FAILED, type(error).__name__
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details), reply_to=message)
        push_message(client, reply, context)
        _stop_heartbeat(heart)
        push_task_output(client, context, status, details)
    finally:
        _stop_heartbeat(heart)
        client.close()


def _stop_heartbeat(heart: HeartbeatSender) -> None:
    """Stop heartbeats before the task ends: its token then becomes invalid, and a refused heartbeat is retried for ever."""
    with suppress(RuntimeError):  # it has stopped already
        heart.stop()


def _wait_for(look: Callable[[], str | None], seconds: float = 20.0) -> str:
    deadline = time.monotonic() + seconds
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise UnalikeError(f"Flower's SuperLink gave no task within {seconds:.0f} s; look into its log")
        time.sleep(0.05)
    return found
