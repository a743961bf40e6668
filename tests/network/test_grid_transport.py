"""Transport over Flower's real processes: delivery, rejection at the gateway, and no execution of sent code."""

from __future__ import annotations

import base64
import contextlib
import datetime
import re
import socket
import ssl
import threading
import time
import tracemalloc

import psutil
import pytest

pytest.importorskip("flwr")

import httpx
from echo_network import MESSAGE_BYTES
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient

from unalike._utils.errors import UnalikeError
from unalike._utils.system.proxies import connect_directly
from unalike._utils.system.supervisor import Supervisor
from unalike.core.codec import Malformed
from unalike.federation.flower import internals
from unalike.federation.flower.internals import FleetConnection
from unalike.federation.security import certificates


def test_transport_returns_reply(echo_network):
    assert echo_network.exchange(b"hello") == {"a": b"echo of a: hello", "b": b"echo of b: hello"}
    assert echo_network.exchange(b"to one", ["b"]) == {"b": b"echo of b: to one"}


def test_transport_large_message_arrives_whole(echo_network):
    large = bytes(range(256)) * (20 << 12)  # 20 MiB: five of Flower's pieces
    found = echo_network.exchange(large)
    assert set(found) == {"a", "b"} and all(reply.endswith(large) for reply in found.values())


def test_small_message_takes_one_call_each_way(echo_network, monkeypatch):
    """Nobody waits for more; the calls with which SuperLink closes a message, and deletes it, come behind."""
    monkeypatch.setattr(internals, "SETTLED_SECONDS", 0.5)
    calls = []
    for client in (FleetHttpClient, RuntimeHttpClient):
        for name in ("PushMessages", "PushObject", "PullObject", "ConfirmMessageReceived"):
            call = getattr(client, name)

            def noted(self, request, call=call, name=name):
                calls.append(
                    (
                        name,
                        request,
                        threading.current_thread().name.startswith("ThreadPoolExecutor"),
                    )
                )
                return call(self, request)

            monkeypatch.setattr(client, name, noted)

    def closed():
        return {request.object_id for name, request, _ in calls if name == "PushObject"}

    assert echo_network.exchange(bytes(1000), ["a"]) == {"a": b"echo of a: " + bytes(1000)}
    assert [name for name, _, behind in calls if not behind] == ["PushMessages"] * 2
    echo_network.wait(lambda: len(closed()) == 2)
    both = closed()

    def confirmed():
        time.sleep(0.6)
        echo_network.exchange(bytes(10), ["a"])
        return {
            request.message_object_id
            for name, request, _ in calls
            if name == "ConfirmMessageReceived"
        }

    echo_network.wait(lambda: both <= confirmed())


def test_transport_send_does_not_block_and_receive_keeps_timeout(echo_network):
    gate = threading.Event()
    kept, echo_network.handlers["a"] = (
        echo_network.handlers["a"],
        lambda message: gate.wait(60) and b"late",
    )
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


def test_lost_connection_is_made_again(echo_network):
    """A request that was lost with the connection is lost; the transport says that the site has connected anew."""
    kept, echo_network.handlers["a"] = echo_network.handlers["a"], broken
    echo_network.transport.connected()
    echo_network.transport.send("a", b"lost")
    assert list(echo_network.transport.receive(1.0)) == []
    echo_network.handlers["a"] = kept
    echo_network.wait(lambda: "a" in echo_network.transport.connected())
    assert not echo_network.transport._sites["a"].unanswered
    assert echo_network.exchange(b"again", ["a"]) == {"a": b"echo of a: again"}
    assert b"lost" not in echo_network.heard["a"]


def broken(message):
    raise httpx.ReadError("the connection is lost")


def test_killed_site_reconnects_at_once(echo_network):
    """After kill -9 the node is still active; the next process deactivates it first and is not refused."""
    echo_network.disconnect("a")
    echo_network.wait(lambda: set(echo_network.transport.sites()) == {"b"})  # who leaves says so
    folder = echo_network.root / "a"
    authority, key = (folder / "ca.pem").read_bytes(), (folder / "node.key").read_bytes()
    with FleetConnection(f"127.0.0.1:{echo_network.port}", authority, key) as killed:
        killed.activate(None)
    (folder / "node").write_text(str(killed.node))
    echo_network.said["a"].clear()
    echo_network.connect("a")
    echo_network.wait(lambda: echo_network.said["a"])
    assert echo_network.said["a"] == [f"connected to 127.0.0.1:{echo_network.port}"]
    assert echo_network.exchange(b"after", ["a"]) == {"a": b"echo of a: after"}


@pytest.mark.parametrize("numbers", [1000, 20000])  # with the metadata, and as an object
def test_bomb_of_equal_chunks_is_refused_before_it_is_inflated(echo_network, numbers):
    """B1: an array of equal bytes, which Flower sends as one object of 5 MiB and would inflate to all of them.

    The gateway rejects its tree; a record that is none of a message is not inflated by the coordinator.
    """
    echo_network.disconnect("a")
    folder, size = echo_network.root / "a", 200 << 20
    authority, key = (folder / "ca.pem").read_bytes(), (folder / "node.key").read_bytes()
    with FleetConnection(f"127.0.0.1:{echo_network.port}", authority, key) as hostile:
        hostile.activate(None)
        echo_network.wait(lambda: "a" in echo_network.transport.connected())
        echo_network.transport.send("a", b"order")
        echo_network.transport.flush()
        bomb = Array("uint8", (size,), "bytes", bytes(size))
        request = hostile.receive()
        with pytest.raises(httpx.HTTPStatusError, match="400"):
            hostile.reply(request, RecordDict({"unalike": ArrayRecord({"message": bomb})}))
        hostile.reply(request, RecordDict({"unalike": MetricRecord({"message": [0.0] * numbers})}))
        tracemalloc.start()
        [(site, why)] = echo_network.transport.receive(30.0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        hostile.deactivate()
    assert site == "a" and isinstance(why, Malformed) and "no part of a message" in str(why)
    assert peak < 16 << 20
    echo_network.connect("a")
    assert echo_network.exchange(b"hello", ["b"]) == {"b": b"echo of b: hello"}
    echo_network.wait(lambda: "a" in echo_network.transport.sites())


def test_tree_that_doubles_at_each_level_is_rejected(echo_network):
    """Two kilobytes, of which SuperLink would make a tree of 2^30 objects for the coordinator."""
    echo_network.disconnect("a")
    folder = echo_network.root / "a"
    authority, key = (folder / "ca.pem").read_bytes(), (folder / "node.key").read_bytes()
    tree = ObjectTree(object_id="0" * 64)
    for level in range(1, 30):
        tree = ObjectTree(
            object_id=f"{level:064}", children=[tree, ObjectTree(object_id=tree.object_id)]
        )
    with FleetConnection(f"127.0.0.1:{echo_network.port}", authority, key) as hostile:
        hostile.activate(None)
        echo_network.wait(lambda: "a" in echo_network.transport.connected())
        echo_network.transport.send("a", b"order")
        echo_network.transport.flush()
        reply = message_to_proto(Message(RecordDict(), reply_to=hostile.receive().message))
        with pytest.raises(httpx.HTTPStatusError, match="400"):
            hostile._client.PushMessages(
                PushMessagesRequest(
                    node=hostile._node, messages_list=[reply], message_object_trees=[tree]
                )
            )
        hostile.deactivate()
    echo_network.connect("a")
    assert echo_network.exchange(b"hello", ["b"]) == {"b": b"echo of b: hello"}
    echo_network.wait(lambda: "a" in echo_network.transport.sites())


def instruction(node, destination, size):
    """A message that a node says is SuperLink's, with so many bytes."""
    content = RecordDict({"0": ConfigRecord({"number": 0, "bytes": b"x" * size})})
    message = Message(content, dst_node_id=destination, message_type="train")
    sent = message_to_proto(message)
    sent.metadata.src_node_id = 1
    sent.metadata.run_id = 1
    sent.metadata.message_id = f"{node:064x}"
    return sent


def test_messages_that_are_no_replies_do_not_reach_superlink(echo_network):
    """N1: SuperLink would store an instruction that a site sends, to itself or to SuperLink, for ever."""
    echo_network.disconnect("a")
    folder = echo_network.root / "a"
    authority, key = (folder / "ca.pem").read_bytes(), (folder / "node.key").read_bytes()
    with FleetConnection(f"127.0.0.1:{echo_network.port}", authority, key) as hostile:
        hostile.activate(None)
        echo_network.wait(lambda: "a" in echo_network.transport.connected())
        # a request to answer, so that it may send something
        echo_network.transport.send("a", b"order")
        echo_network.transport.flush()
        request = hostile.receive()
        assert request is not None
        # to ask for a request where there is none allows nothing
        assert [hostile.receive() for _ in range(4)] == [None] * 4
        tree = ObjectTree(object_id="0" * 64)
        for destination in (hostile.node, 1):
            push = PushMessagesRequest(
                node=hostile._node,
                messages_list=[instruction(hostile.node, destination, 1000)],
                message_object_trees=[tree],
            )
            with pytest.raises(httpx.HTTPStatusError, match="400"):
                hostile._client.PushMessages(push)
        # a record of more bytes than the reply to one request may have
        for _ in range(MESSAGE_BYTES // (4 << 20) + 4):
            record = PushObjectRequest(
                node=hostile._node,
                run_id=request.run,
                object_id="0" * 64,
                object_content=b"x" * (4 << 20),
            )
            try:
                hostile._client.PushObject(record)
            except httpx.HTTPStatusError as error:
                assert error.response.status_code == 429
                break
        else:
            pytest.fail("it may send as much as it likes")
        hostile.deactivate()
    echo_network.connect("a")
    # what is sent to the connection of before is lost
    echo_network.wait(lambda: "a" in echo_network.transport.connected())
    assert echo_network.exchange(b"hello", ["a"]) == {"a": b"echo of a: hello"}


def test_killed_superlink_is_detected(tmp_path, monkeypatch):
    """Flower's Grid would retry for ever, and neither Ctrl-C nor a command would have an effect."""
    from echo_network import EchoNetwork

    for name in (
        "_task_id",
        "_run_id",
        "_node_id",
    ):  # a process has one identity, with which the others here go on
        monkeypatch.setattr(TaskIdentity, name, getattr(TaskIdentity, name))
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    connect_directly()
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


def first_line(echo_network, folder, **other):
    """What a node in another folder, with site a's identity or that in `other`, says first."""
    over, said = threading.Event(), []
    node = echo_network.node(
        "a", folder=folder, log=lambda line: (said.append(line), over.set()), **other
    )
    node.serve(over)
    return said[0]


def test_refused_site_gets_reason(echo_network, tmp_path):
    assert "connected already" in first_line(echo_network, tmp_path)
    stranger = certificates.openssh(certificates.node_key())
    assert "does not know this key" in first_line(echo_network, tmp_path, key=stranger)
    told = first_line(echo_network, tmp_path, address="127.0.0.1:1")
    assert "cannot reach 127.0.0.1:1" in told and "refused" in told
    told = first_line(echo_network, tmp_path, address="fed.example.invalid:8443")
    assert (
        "cannot reach fed.example.invalid:8443" in told and "ame" in told
    )  # the name is not known
    assert echo_network.exchange(b"hello", ["a"]) == {"a": b"echo of a: hello"}


def test_reason_is_told_once_and_connection_is_told_after_it(echo_network, tmp_path):
    """A node that knocks while another has its key says so once, and connects when the other has left."""
    over, said = threading.Event(), []
    node = echo_network.node("a", folder=tmp_path, log=said.append)
    thread = threading.Thread(target=node.serve, args=(over,), daemon=True)
    thread.start()
    echo_network.wait(lambda: said)
    time.sleep(2.0)  # three further attempts
    assert len(said) == 1 and "connected already" in said[0]
    echo_network.disconnect("a")
    echo_network.wait(lambda: len(said) == 2)
    assert said[1].startswith("connected to")
    over.set()
    thread.join(30)
    echo_network.connect("a")
    echo_network.wait(lambda: "a" in echo_network.transport.sites())


@pytest.mark.parametrize(
    ("seconds", "says"), [(7204, r"7(199|20\d) s ahead of"), (-7204, r"7(199|20\d) s behind")]
)
def test_site_with_wrong_clock_gets_reason(seconds, says, echo_network, tmp_path, monkeypatch):
    """SuperLink's status is the same as for an unknown key."""
    from flwr.supernode import node_auth_http_interceptor as signing

    for name in ("a", "b"):  # they have this process's clock
        echo_network.disconnect(name)
    # the coordinator's date has whole seconds, and its server looks at the clock once a second
    right, wrong = signing.now, datetime.timedelta(seconds=seconds)
    with monkeypatch.context() as clock:
        clock.setattr(signing, "now", lambda: right() + wrong)
        assert re.search(says, first_line(echo_network, tmp_path))
    for name in ("a", "b"):
        echo_network.connect(name)
    echo_network.wait(lambda: set(echo_network.transport.sites()) == {"a", "b"})


class Proxy:
    """An HTTP proxy that connects every name to this machine. `asked` are the first lines of the requests."""

    def __init__(self):
        self.asked, self.door = [], socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.door.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                visitor, _ = self.door.accept()
            except OSError:
                return
            head = b""
            while b"\r\n\r\n" not in head:
                head += visitor.recv(4096)
            self.asked.append(head.split(b"\r\n")[0].decode())
            behind = socket.create_connection(
                ("127.0.0.1", int(self.asked[-1].split()[1].rpartition(":")[2]))
            )
            visitor.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for one, other in ((visitor, behind), (behind, visitor)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one, other):
        with contextlib.suppress(OSError):
            while piece := one.recv(1 << 16):
                other.sendall(piece)


@pytest.fixture
def proxy(monkeypatch):
    made = Proxy()
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, made.url)
    for name in ("NO_PROXY", "no_proxy"):  # restored after the test
        monkeypatch.setenv(name, "127.0.0.1,localhost")
    yield made
    made.door.close()


def test_site_connects_through_proxy(echo_network, tmp_path, proxy):
    """A5: the one connection to the coordinator goes through the proxy of the environment, which sees TLS alone."""
    echo_network.disconnect("a")
    address = f"fed.example.invalid:{echo_network.port}"
    assert first_line(echo_network, tmp_path, address=address) == f"connected to {address}"
    assert set(proxy.asked) == {f"CONNECT {address} HTTP/1.1"}
    echo_network.connect("a")
    echo_network.wait(lambda: "a" in echo_network.transport.sites())


def test_connections_within_machine_take_no_proxy(tmp_path, proxy, monkeypatch):
    """A5: a whole federation starts and answers while the environment has a proxy, which is not asked once."""
    from echo_network import EchoNetwork

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, getattr(TaskIdentity, name))
    made = EchoNetwork(tmp_path, names=("a",))
    try:
        assert made.exchange(b"hello", ["a"]) == {"a": b"echo of a: hello"}
    finally:
        made.close()
    assert not proxy.asked


def client(echo_network, **options):
    context = ssl.create_default_context(cafile=str(echo_network.root / "ca.pem"))
    return httpx.Client(
        base_url=f"https://127.0.0.1:{echo_network.port}", verify=context, **options
    )


def headers(key):
    return {
        "flwr-public-key": base64.b64encode(key).decode(),
        "content-type": "application/protobuf",
    }


CLOSED = (
    "control/start-run",
    "control/register-node",
    "runtime/acquire-task",
    "../docs",
    "../",
    "fleet/../control/x",
)


@pytest.mark.parametrize("closed", CLOSED)
def test_gateway_passes_only_fleet_api(echo_network, closed):
    path = f"/v1/{closed}"
    with client(echo_network, headers=headers(echo_network.keys["a"])) as visitor:
        assert (
            visitor.post(
                httpx.URL(f"https://127.0.0.1:{echo_network.port}", raw_path=path.encode()),
                content=b"",
            ).status_code
            == 404
        )


def test_gateway_rejects_unknown_keys(echo_network):
    """FAULTS 9, 14, 19: a key that is not enrolled, and no key."""
    stranger = certificates.public_pem(certificates.node_key())
    with client(echo_network) as visitor:
        assert visitor.post("/v1/fleet/activate-node", content=b"x").status_code == 401
        assert (
            visitor.post(
                "/v1/fleet/activate-node", content=b"x", headers=headers(stranger)
            ).status_code
            == 401
        )
        # an enrolled key without its signature: Flower refuses it
        assert (
            visitor.post(
                "/v1/fleet/activate-node", content=b"", headers=headers(echo_network.keys["a"])
            ).status_code
            >= 400
        )


def test_key_has_one_node(echo_network):
    """FAULTS 9 and 10: an enrolled key cannot register a second node."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    before = {node.node_id for node in echo_network.transport.messages.nodes()}
    key = load_ssh_private_key((echo_network.root / "a" / "node.key").read_bytes(), None)
    interceptor = NodeAuthHttpInterceptor(key, key.public_key())
    with FleetHttpClient.from_server_address(
        f"127.0.0.1:{echo_network.port}",
        False,
        (echo_network.root / "ca.pem").read_bytes(),
        interceptors=[interceptor],
    ) as impostor:
        for _ in range(3):
            with pytest.raises(httpx.HTTPStatusError):
                impostor.RegisterNode(RegisterNodeFleetRequest(public_key=echo_network.keys["a"]))
    assert {node.node_id for node in echo_network.transport.messages.nodes()} == before and len(
        before
    ) == 2


def test_other_sites_node_id_without_key_is_rejected(echo_network):
    """FAULTS 19: a node that signs with its own key and claims to be another."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    thief = certificates.node_key()
    victim = next(iter(echo_network.transport.messages.nodes()))

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
    with (
        socket.create_connection(("127.0.0.1", echo_network.port), 10) as plain,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(plain, server_hostname="127.0.0.1")
    with pytest.raises(httpx.HTTPError):
        httpx.post(
            f"http://127.0.0.1:{echo_network.port}/v1/fleet/activate-node", content=b"x", timeout=10
        )


def test_site_refuses_server_of_other_authority(echo_network, tmp_path):
    """FAULTS 19: a site that trusts another authority does not connect."""
    _, other = certificates.authority("other")
    assert "CERTIFICATE_VERIFY_FAILED" in first_line(
        echo_network, tmp_path, authority=certificates.pem(other)
    )


def test_site_refuses_expired_authority(echo_network, tmp_path, monkeypatch):
    """FAULTS 19: the same authority key with a certificate that expired some hours ago."""
    monkeypatch.setattr(certificates, "node_key", lambda: echo_network.issuer)
    _, expired = certificates.authority("test", years=-0.001)
    assert expired.public_key() == echo_network.authority.public_key()
    assert "CERTIFICATE_VERIFY_FAILED" in first_line(
        echo_network, tmp_path, authority=certificates.pem(expired)
    )


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
            socket.create_connection(("127.0.0.1", echo_network.port), 10),
            server_hostname="127.0.0.1",
        )
        half.sendall(b"POST /v1/fleet/activate-node HTTP/1.1\r\ncontent-le")
        halves.append(half)
    over, statuses = threading.Event(), []

    def flood():
        while not over.is_set() and len(statuses) < 2000:
            stranger = headers(certificates.public_pem(certificates.node_key()))
            try:
                with client(echo_network, headers=stranger) as visitor:
                    statuses.append(
                        visitor.post("/v1/fleet/register-node", content=b"x" * 100).status_code
                    )
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
    assert len(list(echo_network.transport.messages.nodes())) == 2


def test_app_bundle_of_server_is_not_executed(echo_network, tmp_path, monkeypatch):
    """A run whose app bundle would write a file when imported: the sites answer with the installed code.

    Flower's own ServerApp and ClientApp processes would unpack the bundle and import it.
    """
    from unalike.federation.flower import flower_processes, internals

    trap = tmp_path / "executed"
    code = f"open({str(trap)!r}, 'w').write('x')\n".encode()
    config = internals.APP_FILES["pyproject.toml"].replace(b"unalike.federation:", b"evil.app:")
    evil = {
        **internals.APP_FILES,
        "pyproject.toml": config,
        "evil/__init__.py": code,
        "evil/app.py": code,
    }
    monkeypatch.setattr(internals, "APP_FILES", evil)
    assert b"evil/app.py" in internals.app_bundle()

    root = tmp_path / "evil"
    for name in ("ca.pem", "server.pem", "server.key"):
        certificates.write_private(root / name, (echo_network.root / name).read_bytes())
    port = flower_processes.free_port()
    over, site = threading.Event(), tmp_path / "site"
    site.mkdir()
    with (
        Supervisor(root / "logs") as supervisor,
        flower_processes.superlink(
            root, supervisor, "127.0.0.1", port, {"a": echo_network.keys["a"]}, 1 << 20
        ) as transport,
    ):
        node = echo_network.node("a", folder=site, address=f"127.0.0.1:{port}")
        thread = threading.Thread(target=node.serve, args=(over,))
        thread.start()
        echo_network.wait(lambda: transport.sites())
        transport.send("a", b"run me")
        found = []
        echo_network.wait(lambda: found.extend(transport.receive(1.0)) or found)
        over.set()
        thread.join(30)
    assert found == [("a", b"echo of a: run me")]
    assert not trap.exists()
    assert not list(site.rglob("*.py")) and not list(root.rglob("*.py")), "a bundle was unpacked"
