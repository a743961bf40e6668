"""Transport over Flower's real processes: delivery, rejection at the gateway, and no execution of sent code."""

from __future__ import annotations

import base64
import datetime
import re
import socket
import ssl
import subprocess
import sys
import threading
import time

import psutil
import pytest

pytest.importorskip("flwr")

import httpx
from flwr.supercore.task_identity import TaskIdentity

from unalike._utils.errors import UnalikeError
from unalike._utils.system.supervisor import Supervisor
from unalike.federation.security import certificates


def test_transport_returns_reply(echo_network):
    assert echo_network.exchange(b"hello") == {"a": b"echo of a: hello", "b": b"echo of b: hello"}
    assert echo_network.exchange(b"to one", ["b"]) == {"b": b"echo of b: to one"}


def test_transport_large_message_arrives_whole(echo_network):
    large = bytes(range(256)) * (20 << 12)  # 20 MiB: five of Flower's pieces
    found = echo_network.exchange(large)
    assert set(found) == {"a", "b"} and all(reply.endswith(large) for reply in found.values())


def test_transport_send_does_not_block_and_receive_keeps_timeout(echo_network):
    gate = threading.Event()
    kept, echo_network.handlers["a"] = echo_network.handlers["a"], lambda message: gate.wait(60) and b"late"
    try:
        started = time.monotonic()
        echo_network.transport.send("a", b"slow")
        assert list(echo_network.transport.receive(0.5)) == []
        assert time.monotonic() - started < 10  # nobody waited for the site
        gate.set()
        found = []
        echo_network.wait(lambda: found.extend(echo_network.transport.receive(0.5)) or found)
        assert found == [("a", b"late")]
    finally:
        echo_network.handlers["a"] = kept


def test_offline_site_worker_loses_one_message(echo_network):
    listens = echo_network.root / "a" / "trainer"
    listens.rename(listens.with_name("away"))
    try:
        echo_network.transport.send("a", b"lost")
        assert echo_network.exchange(b"other", ["b"]) == {"b": b"echo of b: other"}
        echo_network.wait(
            lambda: not list(echo_network.transport.receive(0.2)) and not echo_network.transport._sites["a"].sent
        )
        assert b"lost" not in echo_network.heard["a"]
    finally:
        listens.with_name("away").rename(listens)
    assert echo_network.exchange(b"again", ["a"]) == {"a": b"echo of a: again"}


def test_heartbeats_stop_before_task_ends(monkeypatch):
    """A heartbeat after the task's end would be refused and retried without end, which blocks the site."""
    from unalike.federation.flower import internals

    steps = []

    class Heart:
        def __init__(self, _):
            self.beats = False

        def start(self):
            self.beats = True

        def stop(self):
            if not self.beats:
                raise RuntimeError("Heartbeat sender is not running.")
            self.beats = False
            steps.append("silence")

    monkeypatch.setattr(internals, "HeartbeatSender", Heart)
    monkeypatch.setattr(internals, "pull_task_input", lambda client: ("message", "context", None, None))
    monkeypatch.setattr(internals, "push_message", lambda client, reply, context: steps.append(reply))
    monkeypatch.setattr(internals, "push_task_output", lambda *_: steps.append("over"))
    internals.run_task("127.0.0.1:9", "token", lambda message, context: "reply")
    assert steps == ["reply", "silence", "over"]


def test_killed_site_reconnects_at_once(echo_network):
    """After kill -9 the node is still active; the next SuperNode deactivates it first and is not refused."""
    assert echo_network.exchange(b"before", ["a"]) == {"a": b"echo of a: before"}
    node = echo_network.nodes["a"]
    supernode = node._children["supernode"]
    for child in psutil.Process(supernode.pid).children():
        child.kill()
    echo_network.wait(lambda: not supernode.alive)
    assert [name for name, _ in node.restart_ended()] == ["supernode"]  # once: whoever is refused stays away
    echo_network.wait(lambda: echo_network.exchange(b"after", ["a"], seconds=2))
    assert node._children["supernode"].alive
    # it was asked more than once: what else it answers is no other test's affair
    echo_network.wait(
        lambda: not list(echo_network.transport.receive(0.5)) and not echo_network.transport._sites["a"].sent
    )


def test_killed_superlink_is_detected(tmp_path, monkeypatch):
    """Flower's Grid would retry for ever, and neither Ctrl-C nor a command would have an effect."""
    from echo_network import EchoNetwork

    for name in ("_task_id", "_run_id", "_node_id"):  # a process has one identity, with which the others here go on
        monkeypatch.setattr(TaskIdentity, name, getattr(TaskIdentity, name))
    made = EchoNetwork(tmp_path, names=("a",))
    try:
        superlink = made.supervisor.children[0]
        for child in psutil.Process(superlink.pid).children():
            child.kill()
        made.wait(lambda: not superlink.alive)
        made.transport._refreshed = 0.0
        looking = threading.Thread(target=made.transport.sites, daemon=True)
        looking.start()
        looking.join(60)
        assert not looking.is_alive()
        with pytest.raises(UnalikeError, match="superlink ended unexpectedly"):
            list(made.transport.receive(1.0))
    finally:
        made.close()


def test_refused_site_gets_reason(echo_network, tmp_path):
    """Its SuperNode ends without a message."""
    from unalike.federation.flower.internals import reason_for_refusal

    address, authority = f"127.0.0.1:{echo_network.port}", (echo_network.root / "ca.pem").read_bytes()
    assert "connected already" in reason_for_refusal(
        address, authority, (echo_network.root / "a" / "node.key").read_bytes()
    )
    stranger = certificates.openssh(certificates.node_key())
    assert "does not know this key" in reason_for_refusal(address, authority, stranger)
    _, other = certificates.authority("other")
    assert "CERTIFICATE_VERIFY_FAILED" in reason_for_refusal(address, certificates.pem(other), stranger)
    assert "cannot reach" in reason_for_refusal("127.0.0.1:1", authority, stranger)
    assert echo_network.exchange(b"hello", ["a"]) == {"a": b"echo of a: hello"}


@pytest.mark.parametrize(("seconds", "says"), [(7204, r"7(199|20\d) s ahead of"), (-7204, r"7(199|20\d) s behind")])
def test_site_with_wrong_clock_gets_reason(seconds, says, echo_network, monkeypatch):
    """SuperLink's status is the same as for an unknown key."""
    from flwr.supernode import node_auth_http_interceptor as signing

    from unalike.federation.flower.internals import reason_for_refusal

    # the coordinator's date has whole seconds, and its server looks at the clock once a second
    right, wrong = signing.now, datetime.timedelta(seconds=seconds)
    monkeypatch.setattr(signing, "now", lambda: right() + wrong)
    key = (echo_network.root / "a" / "node.key").read_bytes()
    told = reason_for_refusal(f"127.0.0.1:{echo_network.port}", (echo_network.root / "ca.pem").read_bytes(), key)
    assert re.search(says, told)


def client(echo_network, **options):
    context = ssl.create_default_context(cafile=str(echo_network.root / "ca.pem"))
    return httpx.Client(base_url=f"https://127.0.0.1:{echo_network.port}", verify=context, **options)


def headers(key):
    return {"flwr-public-key": base64.b64encode(key).decode(), "content-type": "application/protobuf"}


CLOSED = ("control/start-run", "control/register-node", "runtime/acquire-task", "../docs", "../", "fleet/../control/x")


@pytest.mark.parametrize("closed", CLOSED)
def test_gateway_passes_only_fleet_api(echo_network, closed):
    path = f"/v1/{closed}"
    with client(echo_network, headers=headers(echo_network.keys["a"])) as visitor:
        assert (
            visitor.post(
                httpx.URL(f"https://127.0.0.1:{echo_network.port}", raw_path=path.encode()), content=b""
            ).status_code
            == 404
        )


def test_gateway_rejects_unknown_keys(echo_network):
    """FAULTS 9, 14, 19: a key that is not enrolled, and no key."""
    stranger = certificates.public_pem(certificates.node_key())
    with client(echo_network) as visitor:
        assert visitor.post("/v1/fleet/activate-node", content=b"x").status_code == 401
        assert visitor.post("/v1/fleet/activate-node", content=b"x", headers=headers(stranger)).status_code == 401
        # an enrolled key without its signature: Flower refuses it
        assert (
            visitor.post("/v1/fleet/activate-node", content=b"", headers=headers(echo_network.keys["a"])).status_code
            >= 400
        )


def test_key_has_one_node(echo_network):
    """FAULTS 9 and 10: an enrolled key cannot register a second node."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    before = {node.node_id for node in echo_network.transport.grid.get_nodes()}
    key = load_ssh_private_key((echo_network.root / "a" / "node.key").read_bytes(), None)
    interceptor = NodeAuthHttpInterceptor(key, key.public_key())
    with FleetHttpClient.from_server_address(
        f"127.0.0.1:{echo_network.port}", False, (echo_network.root / "ca.pem").read_bytes(), interceptors=[interceptor]
    ) as impostor:
        for _ in range(3):
            with pytest.raises(httpx.HTTPStatusError):
                impostor.RegisterNode(RegisterNodeFleetRequest(public_key=echo_network.keys["a"]))
    assert {node.node_id for node in echo_network.transport.grid.get_nodes()} == before and len(before) == 2


def test_other_sites_node_id_without_key_is_rejected(echo_network):
    """FAULTS 19: a node that signs with its own key and claims to be another."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    thief = certificates.node_key()
    victim = next(iter(echo_network.transport.grid.get_nodes()))

    class Claims(NodeAuthHttpInterceptor):
        def intercept(self, context, call_next):
            self._public_key_bytes = victim.public_key
            return super().intercept(context, call_next)

    with (
        FleetHttpClient.from_server_address(
            f"127.0.0.1:{echo_network.port}",
            False,
            (echo_network.root / "ca.pem").read_bytes(),
            interceptors=[Claims(thief, thief.public_key())],
        ) as impostor,
        pytest.raises(httpx.HTTPStatusError, match="401"),
    ):
        impostor.PullMessages(PullMessagesRequest(node=Node(node_id=victim.node_id)))


def test_gateway_old_tls_and_plain_http_are_refused(echo_network):
    """FAULTS 19."""
    context = ssl.create_default_context(cafile=str(echo_network.root / "ca.pem"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", echo_network.port), 10) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain, server_hostname="127.0.0.1")
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"http://127.0.0.1:{echo_network.port}/v1/fleet/activate-node", content=b"x", timeout=10)


def test_site_refuses_server_of_other_authority(echo_network, tmp_path):
    """FAULTS 19: a SuperNode that trusts another authority does not connect."""
    _, other = certificates.authority("other")
    assert_refused(echo_network, tmp_path, other)


def test_site_refuses_expired_authority(echo_network, tmp_path, monkeypatch):
    """FAULTS 19: the same authority key with a certificate that expired some hours ago."""
    monkeypatch.setattr(certificates, "node_key", lambda: echo_network.issuer)
    _, expired = certificates.authority("test", years=-0.001)
    assert expired.public_key() == echo_network.authority.public_key()
    assert_refused(echo_network, tmp_path, expired)


def assert_refused(echo_network, folder, authority):
    """Check that a node with the key of site a that trusts this authority does not connect."""
    from unalike.federation.flower.flower_processes import SuperNode

    certificates.write_private(folder / "ca.pem", certificates.pem(authority))
    certificates.write_private(folder / "node.key", (echo_network.root / "a" / "node.key").read_bytes())
    with Supervisor(folder / "logs") as supervisor:
        SuperNode(folder, supervisor, f"127.0.0.1:{echo_network.port}", folder / "trainer", 1 << 20)
        log = folder / "logs" / "supernode.log"
        echo_network.wait(lambda: "CERTIFICATE_VERIFY_FAILED" in log.read_text() or not supervisor.children[0].alive)
        assert "SuperNode ID" not in log.read_text()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/fleet/activate-node HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
        b"POST /v1/fleet/a HTTP/1.0\r\ncontent-length: 0\r\n\r\n",
        b"POST /v1/fleet/a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/fleet/a HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST /v1/fleet/a HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/fleet/a HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/fleet/a HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n",
        b"POST /v1/fleet/a HTTP/1.1\r\nfolded: a\r\n b\r\ncontent-length: 0\r\n\r\n",
        b"POST /v1/fleet/a HTTP/1.1\r\nbare: a\nb: c\r\ncontent-length: 0\r\n\r\n",
        b"POST /v1/fleet/a HTTP/1.1\r\nlong: " + b"a" * 20000 + b"\r\n\r\n",
    ],
)
def test_gateway_unusual_request_is_rejected(echo_network, head):
    """FAULTS 15: wrong lengths, smuggled requests, long heads."""
    context = ssl.create_default_context(cafile=str(echo_network.root / "ca.pem"))
    plain = socket.create_connection(("127.0.0.1", echo_network.port), 10)
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as visitor:
        visitor.settimeout(20)
        visitor.sendall(head)
        assert visitor.recv(1000).split()[1].startswith(b"4")


@pytest.mark.slow
def test_half_open_connections_and_registration_flood_do_not_block_sites(echo_network):
    """FAULTS 18: 400 silent or slow connections and 2,000 registrations by strangers, while sites work."""
    took = {}
    for _ in range(2):
        started = time.monotonic()
        assert len(echo_network.exchange(b"quiet")) == 2
        took["quiet"] = time.monotonic() - started
    silent = [socket.create_connection(("127.0.0.1", echo_network.port), 10) for _ in range(300)]
    context = ssl.create_default_context(cafile=str(echo_network.root / "ca.pem"))
    halves = []
    for _ in range(40):
        half = context.wrap_socket(
            socket.create_connection(("127.0.0.1", echo_network.port), 10), server_hostname="127.0.0.1"
        )
        half.sendall(b"POST /v1/fleet/activate-node HTTP/1.1\r\ncontent-le")
        halves.append(half)
    over, statuses = threading.Event(), []

    def flood():
        while not over.is_set() and len(statuses) < 2000:
            stranger = headers(certificates.public_pem(certificates.node_key()))
            try:
                with client(echo_network, headers=stranger) as visitor:
                    statuses.append(visitor.post("/v1/fleet/register-node", content=b"x" * 100).status_code)
            except httpx.HTTPError:
                statuses.append(0)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        for _ in range(3):
            started = time.monotonic()
            assert len(echo_network.exchange(b"under attack")) == 2
            took["attacked"] = time.monotonic() - started
    finally:
        over.set()
        thread.join()
        for connection in (*silent, *halves):
            connection.close()
    print(took, len(statuses))
    assert set(statuses) <= {0, 401, 503} and 401 in statuses
    assert len(list(echo_network.transport.grid.get_nodes())) == 2


def test_relay_imports_no_torch():
    code = "import sys, unalike.federation.flower.relay_process; print('torch' in sys.modules, 'unalike.core.tree' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_app_bundle_of_server_is_not_executed(echo_network, tmp_path, monkeypatch):
    """A run whose app bundle would write a file when imported: the sites answer with the installed relay.

    Flower's own ServerApp and ClientApp processes would unpack the bundle and import it.
    """
    from unalike.federation.flower import flower_processes, internals

    trap = tmp_path / "executed"
    code = f"open({str(trap)!r}, 'w').write('x')\n".encode()
    config = internals.APP_FILES["pyproject.toml"].replace(b"unalike.federation.flower:", b"evil.app:")
    evil = {**internals.APP_FILES, "pyproject.toml": config, "evil/__init__.py": code, "evil/app.py": code}
    monkeypatch.setattr(internals, "APP_FILES", evil)
    assert b"evil/app.py" in internals.app_bundle()

    root = tmp_path / "evil"
    for name in ("ca.pem", "server.pem", "server.key"):
        certificates.write_private(root / name, (echo_network.root / name).read_bytes())
    port = flower_processes.free_port()
    site = tmp_path / "site"
    for name in ("ca.pem", "node.key"):
        certificates.write_private(site / name, (echo_network.root / "a" / name).read_bytes())
    from unalike._utils.system import local_socket

    over = threading.Event()
    arguments = (site / "trainer", lambda message: b"by the relay: " + message, 1 << 20, over.is_set)
    thread = threading.Thread(target=local_socket.serve, args=arguments)
    thread.start()
    with (
        Supervisor(root / "logs") as supervisor,
        Supervisor(site / "logs") as beside,
        flower_processes.superlink(
            root, supervisor, "127.0.0.1", port, {"a": echo_network.keys["a"]}, 1 << 20
        ) as transport,
    ):
        flower_processes.SuperNode(site, beside, f"127.0.0.1:{port}", site / "trainer", 1 << 20)
        echo_network.wait(lambda: transport.sites())
        transport.send("a", b"run me")
        found = []
        echo_network.wait(lambda: found.extend(transport.receive(1.0)) or found)
    over.set()
    thread.join()
    assert found == [("a", b"by the relay: run me")]
    assert not trap.exists()
    assert not list(site.rglob("*.py")) and not list(root.rglob("*.py")), "a bundle was unpacked"
