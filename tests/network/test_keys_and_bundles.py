"""Certificates, bundles, the coordinator's folder, and the local socket."""

from __future__ import annotations

import errno
import json
import os
import socket
import ssl
import struct
import threading
import zipfile
from contextlib import suppress

import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from echo_network import expire

from unalike._utils.errors import UnalikeError
from unalike._utils.system import local_socket
from unalike.cli.federation import control, keys
from unalike.dashboard.state import Followed
from unalike.federation.coordinator import operator_commands as commands
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.protocol.bundle import FILES, Bundle
from unalike.federation.protocol.federation_file import Schema
from unalike.federation.security import certificates, site_keys
from unalike.federation.security.keys import public_text

PLACE = {"host": "localhost", "port": 4433}
TERMS = {
    "name": "test",
    "method": "fedavg",
    "model": "linear",
    "rounds": 1,
    "data": Schema((4,), 3),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made") / "federation"
    return FederationFolder.create(
        root, {"north": 100, "south": 50}, host="fed.example.org", port=4433, **TERMS
    )


def handshake(root, server, host, **client):
    """Whether a TLS client that trusts `root` accepts a server with the files (certificate, key) as `host`."""
    outside, inside = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*server)

    def serve():
        try:
            context.wrap_socket(inside, server_side=True).close()
        except OSError:
            inside.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        trusting = ssl.create_default_context(cafile=root)
        trusting.wrap_socket(outside, server_hostname=host).close()
        return True
    except ssl.SSLError:
        return False
    finally:
        outside.close()
        thread.join()


def test_site_accepts_server_only_by_certified_names(made, tmp_path):
    mine = made.path / "server.pem", made.path / "server.key"
    for host in ("fed.example.org", "localhost", "127.0.0.1"):
        assert handshake(made.path / "ca.pem", mine, host)
    assert not handshake(made.path / "ca.pem", mine, "other.example.org")
    other = FederationFolder.create(
        tmp_path / "other", {"north": 1}, host="fed.example.org", port=4433, **TERMS
    )
    assert not handshake(
        made.path / "ca.pem",
        (other.path / "server.pem", other.path / "server.key"),
        "fed.example.org",
    )


@pytest.mark.parametrize("whose", ["server", "authority"])
def test_expired_certificate_is_refused(whose, tmp_path):
    """FAULTS 19. One certificate expired some hours ago; the other one is valid."""
    lasting = {"authority": 1.0, "server": 1.0}

    def issued(**years):
        key, authority = certificates.authority("test", years["authority"])
        mine, certificate = certificates.server(
            ["fed.example.org"], key, authority, years["server"]
        )
        for name, what in {
            "ca.pem": authority,
            "server.pem": certificate,
            "server.key": mine,
        }.items():
            (tmp_path / name).write_bytes(certificates.pem(what))
        return handshake(
            tmp_path / "ca.pem",
            (tmp_path / "server.pem", tmp_path / "server.key"),
            "fed.example.org",
        )

    assert issued(**lasting)
    assert not issued(**(lasting | {whose: -0.001}))


def test_expired_certificate_is_renewed_by_same_authority(tmp_path):
    """Bundles stay valid: same authority, names of the old certificate and new ones."""
    folder = FederationFolder.create(
        tmp_path / "made", {"north": 1}, host="fed.example.org", port=4433, **TERMS
    )
    trusted, mine = folder.path / "ca.pem", (folder.path / "server.pem", folder.path / "server.key")
    before = trusted.read_bytes()
    expire(folder)
    assert folder.days_left < 0 and not handshake(trusted, mine, "fed.example.org")
    folder.renew(["new.example.org"])
    assert 700 < folder.days_left < 732 and trusted.read_bytes() == before
    for host in ("fed.example.org", "10.0.0.7", "new.example.org", "localhost"):
        assert handshake(trusted, mine, host)
    assert not handshake(trusted, mine, "other.example.org")
    assert mine[1].stat().st_mode & 0o777 == 0o600
    with pytest.raises(UnalikeError, match="'' is no host"):
        folder.renew([""])


def test_expired_authority_cannot_renew(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates.authority, "__defaults__", (-0.001,))
    folder = FederationFolder.create(
        tmp_path / "made", {"north": 1}, host="localhost", port=4433, **TERMS
    )
    with pytest.raises(UnalikeError, match=r"authority .* has expired"):
        folder.renew()


def test_up_warns_of_certificate_expiry(tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    from unalike._utils.system.ports import free_port
    from unalike.federation.operations.run_coordinator import coordinate

    folder = FederationFolder.create(tmp_path / "made", {"north": 1}, **PLACE, **TERMS)
    assert not folder.expiries
    expire(folder, 30.5 / 365)
    [said] = folder.expiries
    assert "server's certificate expires in 30 days" in said and "unalike federation renew" in said
    expire(folder)
    with pytest.raises(UnalikeError, match="has expired, no site would connect"):
        coordinate(folder, print, port=free_port())
    assert "certificate has expired; " in folder.expiries[0]  # while it is up
    monkeypatch.setattr(certificates.authority, "__defaults__", (0.1,))
    old = FederationFolder.create(tmp_path / "old", {"north": 1}, **PLACE, **TERMS)
    assert [line.split(";")[0] for line in old.expiries] == [
        "the authority in all bundles expires in 36 days"
    ]


def test_up_untrusted_certificate_is_refused(tmp_path, monkeypatch):
    """For example after a `renew` that a full disk interrupted between key and certificate."""
    pytest.importorskip("flwr")
    from unalike._utils.system.ports import free_port
    from unalike.federation.operations.run_coordinator import coordinate

    folder = FederationFolder.create(
        tmp_path / "made", {"north": 1}, host="localhost", port=4433, **TERMS
    )

    def full(path, content):
        raise UnalikeError(f"cannot write {path}: No space left on device")

    with monkeypatch.context() as disk, pytest.raises(UnalikeError, match="No space left"):
        disk.setattr("unalike.federation.coordinator.federation_folder.write_bytes", full)
        folder.renew()
    with pytest.raises(UnalikeError, match=r"is not that of the key beside it.* federation renew"):
        coordinate(folder, print, port=free_port())
    folder.renew()
    assert not folder.certificate_fault
    key, certificate = certificates.server(["localhost"], *certificates.authority("test"))
    (folder.path / "server.key").write_bytes(certificates.pem(key))
    (folder.path / "server.pem").write_bytes(certificates.pem(certificate))
    with pytest.raises(UnalikeError, match="is of another authority"):
        coordinate(folder, print, port=free_port())


def test_renew_site_replaces_keys(tmp_path):
    folder = FederationFolder.create(
        tmp_path / "made", {"north": 100, "south": 50}, host="::1", port=4433, **TERMS
    )
    old, terms, home = (
        Bundle.read(folder.bundles["north"]),
        folder.federation.terms,
        tmp_path / "home",
    )
    old.claim(home)
    folder.revoke("north")
    assert list(folder.nodes) == ["south"] and folder.federation.site("north").revoked
    new = Bundle.read(folder.enrol_anew("north"))
    assert (new.site, new.address) == (old.site, old.address) == ("north", "[::1]:4433")
    assert new.node_key != old.node_key and new.federation.site("north") != old.federation.site(
        "north"
    )
    assert new.federation == folder.federation and set(folder.nodes) == {"north", "south"}
    assert folder.federation.terms == terms  # the others go on with their copies of the file
    new.claim(home)  # its own folder, with its memory
    with pytest.raises(UnalikeError, match="belongs to another site"):
        Bundle.read(folder.bundles["south"]).claim(home)
    for change in (folder.revoke, folder.enrol_anew):
        with pytest.raises(UnalikeError, match="unknown site 'nort'; did you mean 'north'"):
            change("nort")


def test_server_certificate_cannot_sign(made, tmp_path):
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    certificate = x509.load_pem_x509_certificate((made.path / "server.pem").read_bytes())
    key = load_pem_private_key((made.path / "server.key").read_bytes(), None)
    forged_key, forged = certificates.server(["evil.example.org"], key, certificate)
    (tmp_path / "chain.pem").write_bytes(certificates.pem(forged) + certificates.pem(certificate))
    (tmp_path / "key.pem").write_bytes(certificates.pem(forged_key))
    assert not handshake(
        made.path / "ca.pem", (tmp_path / "chain.pem", tmp_path / "key.pem"), "evil.example.org"
    )


def test_private_files_are_readable_by_owner_only(made):
    files = [
        *made.bundles.values(),
        *(made.path / n for n in ("ca.key", "server.key", "coordinator.key")),
    ]
    assert {oct(f.stat().st_mode & 0o777) for f in files} == {"0o600"}
    assert made.path.stat().st_mode & 0o077 == 0


def test_bundle_read_returns_written_contents(made, tmp_path):
    found = Bundle.read(made.bundles["south"])
    assert (found.site, found.address) == ("south", "fed.example.org:4433")
    assert found.federation == made.federation and found.federation.site("south").samples == 50
    found.claim(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"site", "ca.pem"}
    assert made.nodes["south"].startswith(b"-----BEGIN PUBLIC KEY-----")
    found.claim(tmp_path)  # again: the same
    with pytest.raises(UnalikeError, match="belongs to another site"):
        Bundle.read(made.bundles["north"]).claim(tmp_path)


def test_full_disk_leaves_no_partial_private_file(made, tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bundle, folder = Bundle.read(made.bundles["south"]), tmp_path / "south"
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        UnalikeError, match=r"cannot write .*south.*No space left on device; free space"
    ):
        bundle.claim(folder)
    with pytest.raises(UnalikeError, match=r"cannot write .*ca\.key"):
        certificates.write_private(tmp_path / "ca.key", b"key")
    monkeypatch.undo()
    assert not list(folder.iterdir()) and not (tmp_path / "ca.key").exists()
    bundle.claim(folder)
    assert (folder / "site").read_bytes() == b"south" and (
        folder / "ca.pem"
    ).stat().st_mode & 0o777 == 0o600


def test_invalid_bundle_is_refused(made, tmp_path):
    with zipfile.ZipFile(made.bundles["north"]) as archive:
        contents = {name: archive.read(name) for name in FILES}
    cases = {
        "more": contents | {"../evil": b"x"},
        "less": {n: c for n, c in contents.items() if n != "ca.pem"},
        "key": contents | {"site.key": b"00" * 32},
        "json": contents | {"site.json": b"{"},
        "name": contents | {"site.json": b'{"site": "south", "address": "a:1"}'},
        "toml": contents | {"federation.toml": b"rounds = "},
        "bomb": contents | {"ca.pem": b"\0" * (5 << 20)},
    }
    for case, files in cases.items():
        path = tmp_path / f"{case}.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        with pytest.raises(UnalikeError, match=case):
            Bundle.read(path)
    (tmp_path / "text.zip").write_text("no archive")
    with pytest.raises(UnalikeError, match="ask for it again"):
        Bundle.read(tmp_path / "text.zip")


@pytest.mark.parametrize("packed", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_damaged_bundle_is_refused_with_message(made, tmp_path, packed):
    path = tmp_path / "north.zip"
    with (
        zipfile.ZipFile(made.bundles["north"]) as whole,
        zipfile.ZipFile(path, "w", packed) as archive,
    ):
        for name in FILES:
            archive.writestr(name, whole.read(name))
    whole_bytes = path.read_bytes()
    for place in range(0, len(whole_bytes), 5):
        path.write_bytes(
            whole_bytes[:place] + bytes([whole_bytes[place] ^ 255]) + whole_bytes[place + 1 :]
        )
        with suppress(UnalikeError):
            Bundle.read(path)


def test_existing_keys_are_never_overwritten(made):
    with pytest.raises(UnalikeError, match="not an empty folder"):
        FederationFolder.create(made.path, {"north": 1}, host="localhost", port=1, **TERMS)


def test_second_up_is_refused(made, capsys):
    with made.held():  # as in the seconds before its SuperLink listens
        with pytest.raises(UnalikeError, match="is starting or ending"), made.held():
            pass
        with pytest.raises(UnalikeError, match="is starting or ending; try again"):
            control.run(made.path, again=True)
        control.status(made.path)
        assert (
            "is starting or ending" in capsys.readouterr().out
            and not (made.path / "runs.json").exists()
        )
        assert Followed(made.path).state()["state"] == "starting or ending"
        made.socket.touch()
        with pytest.raises(UnalikeError, match="is up already"), made.held():
            pass
    made.socket.unlink()
    with made.held():
        pass


def test_slow_federation_raises_no_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "ANSWER_SECONDS", 0.2)
    busy = threading.Event()
    with commands.listening(tmp_path / "control", {"pause": lambda: busy.wait(60)}, dict):
        while not (tmp_path / "control").exists():
            pass
        with pytest.raises(UnalikeError, match="is up but has not answered"):
            commands.command(tmp_path / "control", "pause")
        (tmp_path / "federation.toml").write_text("")
        assert Followed(tmp_path).state()["state"] == "up, but slow to answer"
        busy.set()


def test_local_socket_drops_invalid_requests(tmp_path):
    deep = tmp_path / ("d" * 100)  # longer than a socket's name may be
    deep.mkdir()
    over = threading.Event()
    arguments = (deep / "s", lambda m: m[::-1], 1 << 20, over.is_set)
    thread = threading.Thread(target=local_socket.serve, args=arguments)
    thread.start()
    while not (deep / "s").exists():
        pass
    assert (deep / "s").stat().st_mode & 0o777 == 0o600
    big = bytes(range(256)) * 4096
    assert local_socket.ask(deep / "s", big, 1 << 20) == big[::-1]
    with pytest.raises(OSError):
        local_socket.ask(deep / "s", big + b"x", 1 << 20, 10.0)  # too long for the other side
    with local_socket._short_name(deep / "s") as name, socket.socket(socket.AF_UNIX) as client:
        client.connect(name)
        client.sendall(struct.pack(">Q", 100) + b"half")
    assert local_socket.ask(deep / "s", b"abc", 1 << 20, 60.0) == b"cba"
    over.set()
    thread.join()


def test_site_made_keys_leave_no_secret_with_the_coordinator(tmp_path, capsys):
    """Finding 15: the coordinator enrols the public keys that the site shows; private ones are nowhere in its folder."""
    keys.keys(tmp_path / "north")
    shown = capsys.readouterr().out
    public, fingerprint = (
        site_keys.read_public(tmp_path / "north.keys"),
        shown.split("fingerprint: ")[1].strip(),
    )
    assert fingerprint == site_keys.fingerprint(public) and len(fingerprint.replace(" ", "")) == 32
    assert {oct(f.stat().st_mode & 0o777) for f in (tmp_path / "north").iterdir()} == {"0o600"}
    given = {"host": "localhost", "port": 4433, "keys": {"north": public}, **TERMS}
    folder = FederationFolder.create(tmp_path / "made", {"north": 1, "south": 1}, **given)
    with zipfile.ZipFile(folder.bundles["north"]) as archive:
        assert sorted(archive.namelist()) == ["ca.pem", "federation.toml", "site.json"]
    secrets = [
        (tmp_path / "north" / name).read_bytes() for name in (site_keys.SIGNING, site_keys.NODE)
    ]
    for file in (f for f in folder.path.rglob("*") if f.is_file()):
        assert not any(secret in file.read_bytes() for secret in secrets), file
    assert folder.nodes["north"].decode() == public["node.key"]

    found = Bundle.read(folder.bundles["north"], tmp_path / "north")
    assert public_text(found.key) == public["site.key"] == folder.federation.site("north").key
    assert found.node_key == (tmp_path / "north" / "node.key").read_bytes()
    with pytest.raises(UnalikeError, match=r"holds no keys.*--folder"):
        Bundle.read(folder.bundles["north"], tmp_path / "other")
    with pytest.raises(UnalikeError, match="does not know site 'north' with this key"):
        keys.keys(tmp_path / "other")
        Bundle.read(folder.bundles["north"], tmp_path / "other")
    with pytest.raises(UnalikeError, match="keys are never overwritten"):
        keys.keys(tmp_path / "north")

    folder.enrol_anew("north", made_anew := site_keys.read_public(tmp_path / "other.keys"))
    assert (
        public_text(Bundle.read(folder.bundles["north"], tmp_path / "other").key)
        == made_anew["site.key"]
    )
    with pytest.raises(UnalikeError, match="unknown site 'west'"):
        FederationFolder.create(
            tmp_path / "strange", {"north": 1}, **given | {"keys": {"west": public}}
        )
    (tmp_path / "west.keys").write_text('{"site.key": "00", "node.key": ""}')
    with pytest.raises(UnalikeError, match=r"west\.keys: .*expected the file that"):
        site_keys.read_public(tmp_path / "west.keys")


def test_two_sites_have_two_connection_keys_in_one_form(tmp_path):
    """A public key is mailed: who enrolled another site's with a signing key of his own took that site's place."""
    shown = {}
    for name in ("north", "mallory"):
        keys.keys(tmp_path / name)
        shown[name] = site_keys.read_public(tmp_path / f"{name}.keys")
    copied = shown["mallory"] | {"node.key": shown["north"]["node.key"]}
    (tmp_path / "mallory.keys").write_text(
        json.dumps(copied | {"node.key": f"\n\n{copied['node.key']}\n"})
    )
    assert site_keys.read_public(tmp_path / "mallory.keys") == copied
    given = {"host": "localhost", "port": 4433, **TERMS}
    both = {"keys": {"north": shown["north"], "mallory": copied}}
    with pytest.raises(UnalikeError, match="mallory and north have one connection key"):
        FederationFolder.create(tmp_path / "made", {"north": 1, "mallory": 1}, **given | both)
    apart = {"keys": shown}
    folder = FederationFolder.create(tmp_path / "made", {"north": 1, "mallory": 1}, **given | apart)
    with pytest.raises(UnalikeError, match="have one connection key"):
        folder.enrol_anew("mallory", copied)
    rsa_key = rsa.generate_private_key(65537, 2048).public_key()
    pem = rsa_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    (tmp_path / "rsa.keys").write_text(json.dumps(copied | {"node.key": pem}))
    with pytest.raises(UnalikeError, match="no key of the curve P-384"):
        site_keys.read_public(tmp_path / "rsa.keys")


def test_bundles_of_one_federation_have_its_fingerprint_and_others_have_another(tmp_path):
    """Who sees north.keys on its way can send north a bundle of a federation of his own around it."""
    keys.keys(tmp_path / "north")
    public = {"north": site_keys.read_public(tmp_path / "north.keys")}
    given = {"host": "localhost", "port": 4433, "keys": public, **TERMS}
    made = FederationFolder.create(tmp_path / "made", {"north": 1, "south": 1}, **given)
    other = FederationFolder.create(tmp_path / "other", {"north": 1, "south": 1}, **given)
    found = {
        Bundle.read(made.bundles[name], tmp_path / "north").fingerprint
        for name in ("north", "south")
    }
    assert found == {made.fingerprint}
    false = Bundle.read(other.bundles["north"], tmp_path / "north").fingerprint
    assert false == other.fingerprint != made.fingerprint
