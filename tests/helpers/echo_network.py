"""Test helper: Flower's processes for a few sites on this machine, with TLS; the sites echo each message."""

from __future__ import annotations

import threading
import time

MESSAGE_BYTES = 64 << 20


def expire(folder, years=-0.001):
    """Replace the server's certificate by one of the same authority that is valid for `years`."""
    from unalike.federation.security import certificates

    issuer, authority = certificates.read(
        (folder.path / "ca.key").read_bytes(), (folder.path / "ca.pem").read_bytes()
    )
    key, certificate = certificates.server(
        ["fed.example.org", "10.0.0.7"], issuer, authority, years
    )
    (folder.path / "server.key").write_bytes(certificates.pem(key))
    (folder.path / "server.pem").write_bytes(certificates.pem(certificate))


class EchoNetwork:
    """SuperLink, gateway and the nodes of some sites. Tests may replace `handlers`; `heard`: messages, `said`: log lines."""

    def __init__(self, root, names=("a", "b")):
        from unalike._utils.system.ports import free_port
        from unalike._utils.system.supervisor import Supervisor
        from unalike.federation.flower.flower_processes import superlink
        from unalike.federation.security import certificates

        self.root, self.port = root, free_port()
        self.issuer, self.authority = certificates.authority("test")
        key, certificate = certificates.server(
            ["localhost", "fed.example.invalid"], self.issuer, self.authority
        )
        files = {"server.key": certificates.pem(key), "server.pem": certificates.pem(certificate)}
        for name, content in (files | {"ca.pem": certificates.pem(self.authority)}).items():
            certificates.write_private(root / name, content)
        self.names, self.heard = names, {name: [] for name in names}
        self.handlers = {name: self._echo(name) for name in self.heard}
        self.keys, self.said, self.nodes = {}, {name: [] for name in names}, {}
        for name in self.heard:
            folder = root / name
            node = certificates.node_key()
            self.keys[name] = certificates.public_pem(node)
            certificates.write_private(folder / "node.key", certificates.openssh(node))
            certificates.write_private(folder / "ca.pem", certificates.pem(self.authority))
        self.supervisor = Supervisor(root / "logs").__enter__()
        self._link = superlink(
            root, self.supervisor, "127.0.0.1", self.port, self.keys, MESSAGE_BYTES
        )
        self.transport = self._link.__enter__()
        for name in self.heard:
            self.connect(name)
        self.wait(lambda: set(self.transport.sites()) == set(names))

    def _echo(self, name):
        def handle(message):
            self.heard[name].append(message)
            return b"echo of " + name.encode() + b": " + message

        return handle

    def node(self, name, **other):
        """A node of the site; `other` are other values of its identity."""
        from unalike.federation.flower.site_node import SiteNode

        folder = self.root / name
        identity = {
            "folder": folder,
            "address": f"127.0.0.1:{self.port}",
            "authority": (folder / "ca.pem").read_bytes(),
        }
        identity |= {
            "key": (folder / "node.key").read_bytes(),
            "limit": MESSAGE_BYTES,
            "log": self.said[name].append,
        }
        return SiteNode(handle=lambda message: self.handlers[name](message), **(identity | other))

    def connect(self, name):
        """Start the site's node, in a thread."""
        over = threading.Event()
        thread = threading.Thread(target=self.node(name).serve, args=(over,), daemon=True)
        self.nodes[name] = over, thread
        thread.start()

    def disconnect(self, name):
        """End the site's node as an operator does."""
        over, thread = self.nodes[name]
        over.set()
        thread.join(30)

    def wait(self, ready, seconds=60):
        deadline = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < deadline, "took too long"
            time.sleep(0.1)

    def exchange(self, message, sites=("a", "b"), seconds=60):
        """Send a message to the sites and return their replies."""
        for name in sites:
            self.transport.send(name, message)
        found = {}
        deadline = time.monotonic() + seconds
        while len(found) < len(sites) and time.monotonic() < deadline:
            found |= dict(self.transport.receive(1.0))
        return found

    def close(self):
        for name in self.nodes:
            self.disconnect(name)
        self._link.__exit__(None, None, None)
        self.supervisor.__exit__(None, None, None)
