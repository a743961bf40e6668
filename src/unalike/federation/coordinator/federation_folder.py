"""The coordinator's folder of a federation: the federation file, authority and keys, the sites' bundles, and the run.

federation.toml  network.json  ca.pem ca.key server.pem server.key coordinator.key  nodes/<site>.pem  bundles/<site>.zip
test.safetensors proxy.safetensors (the coordinator's own samples, if any)  start.safetensors (initial weights, if any)
run/ (the run directory)  runs.json runs/ (further runs)  logs/  audit.jsonl  control (the socket for commands, while it is up)
"""

import getpass
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import Field

from unalike._utils.errors import UnalikeError, unknown
from unalike._utils.journal import Journal
from unalike._utils.system.locks import locked
from unalike._utils.tensor_files import read_tensors, write_bytes, write_tensors
from unalike._utils.validated import validated
from unalike.comparison import comparison_json
from unalike.core import tree
from unalike.data.array_checks import Pair
from unalike.federation.coordinator.run_queue import QueuedRun, queued_runs
from unalike.federation.coordinator.terms_check import (
    check_terms_run,
    message_limit,
    usual_noise_shares,
)
from unalike.federation.protocol.bundle import Bundle, check_room_for_public
from unalike.federation.protocol.federation_file import EnrolledSite, Federation
from unalike.federation.protocol.public_samples import (
    PublicSamples,
    samples_of_tensors,
    tensors_of_samples,
)
from unalike.federation.protocol.roster import Roster, new_run
from unalike.federation.security import certificates
from unalike.federation.security.keys import (
    PrivateKey,
    new_key,
    private_key,
    private_text,
    public_text,
)
from unalike.federation.security.site_keys import (
    NODE,
    SIGNING,
    check_connection_keys,
    new_keys,
)
from unalike.methods.plan import method_of, plan
from unalike.runtime.records.history import History
from unalike.runtime.records.run_directory import RunDirectory

Host = Annotated[str, Field(min_length=1)]
Port = Annotated[int, Field(strict=True, ge=1, le=65535)]

START_FILE = "start.safetensors"
AUDIT_FILE = "audit.jsonl"


@validated
class Network:
    """The `host` and `port` that sites connect to, and the local address to listen at."""

    host: Host
    port: Port
    listen: Host = "0.0.0.0"

    @property
    def address(self) -> str:
        """host:port; IPv6 addresses in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read it. Raises `UnalikeError` for an invalid file."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise UnalikeError(
                f'cannot read {path}: {error}; expected {{"host": "fed.example.org", "port": 8443, "listen": "0.0.0.0"}}'
            ) from None

    def save(self, path: Path) -> None:
        write_bytes(path, json.dumps(asdict(self)).encode())


def roll_back(run: Path, to: int) -> None:
    """Go back to the models after round `to`, under the name of a new run, which sites begin without client states.

    The tables end with this round, and the models and facts of the end of the run are removed.

    Sites answer no request of a round that is over, so the run that was cannot go on from an earlier round. The rounds that sites
    were asked to train stay accounted: going back gives no privacy back.
    """
    directory = RunDirectory(run)
    roster = Roster.load(run / "roster.json")
    discarded = _discarded_rounds(directory, to)

    # The models after this round, without the client states: sites have those of the run that was.
    def begin_anew(saved: dict[str, Any]) -> None:
        for step in saved["stages"]:
            for group in step:
                for name in ("accepted", "holds"):
                    if name in group:
                        group[name] = []
                group["discarded"] = discarded

    directory.return_to(to, begin_anew)

    history = History.load(run)
    history.rows = [row for row in history.rows if row["round"] <= to]
    history.client_rows = [row for row in history.client_rows if row["round"] <= to]
    history.timeline_rows = [row for row in history.timeline_rows if row["round"] <= to]
    history.save(run)

    for file in (*run.glob("model*.safetensors"), run / comparison_json.COMPARISON_FILE):
        file.unlink(missing_ok=True)
    directory.event("rolled back", to=to, run=roster.run or None)

    # The new name comes last: with it sites answer requests of these rounds again.
    replace(roster, run=new_run(after=roster.run)).save(run / "roster.json")


def _discarded_rounds(directory: RunDirectory, to: int) -> int:
    """Rounds that sites were asked to train and that do not count, by this and earlier returns."""
    newest = 0
    discarded = 0
    for event in (*directory.events, {"event": "rolled back", "to": to}):
        if event["event"] == "asked" and event.get("train"):
            newest = event["round"]
        elif event["event"] == "rolled back":
            discarded += max(0, newest - event["to"])
            newest = event["to"]
    return discarded


class FederationFolder:
    """A federation's folder on the coordinator's machine."""

    def __init__(self, path: Path | str):
        self.path = Path(path)

    @classmethod
    def create(
        cls,
        path: Path | str,
        sites: Mapping[str, int],
        *,
        host: str,
        port: int,
        listen: str = "0.0.0.0",
        names: Sequence[str] = (),
        own: Mapping[str, Pair | None] = MappingProxyType({}),
        keys: Mapping[str, dict[str, str]] = MappingProxyType({}),
        start: Path | None = None,
        start_partial: bool = False,
        **terms: Any,
    ) -> Self:
        """Make a federation of `sites` (name -> maximum number of training samples).

        They will connect to host:port; `names` are further names and addresses of the server. `own` are the coordinator's
        samples: "test", for the protocol "server", and "proxy", for methods that learn from them; where sites read these, they are
        in every bundle, and named in the terms. `keys` are those of sites
        that have made them; the others get theirs here, in their bundles. `start` and
        `start_partial` are initial weights, as of `ua.run`; sites get them with the first request. `terms` are the other fields of
        the federation file; None stands for the default, of `message_bytes` for the `message_limit` of the terms, of
        `noise_shares` for the fewest updates of a round. Raises `UnalikeError` for a folder that is not empty, and for terms that
        cannot be run.
        """
        root = Path(path)
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise UnalikeError(
                f"{root} exists and is not an empty folder; keys are never overwritten: choose another one"
            )
        network = Network(host=host, port=port, listen=listen)
        strangers = keys.keys() - sites.keys()
        if strangers:
            raise unknown("site", min(strangers), sites)

        # 1. Keys: those of the coordinator, and of the sites that have not made their own.
        coordinator = new_key()
        private_keys: dict[str, dict[str, bytes]] = {}
        public_keys: dict[str, dict[str, str]] = {}
        for name in sites:
            if name in keys:
                private_keys[name], public_keys[name] = {}, keys[name]
            else:
                private_keys[name], public_keys[name] = new_keys()
        check_connection_keys({name: public[NODE] for name, public in public_keys.items()})

        # 2. The federation file, and whether it can be run: nothing is written for terms that cannot.
        values = {name: value for name, value in terms.items() if value is not None}
        values["coordinator"] = public_text(coordinator)
        values["sites"] = [
            {"name": name, "key": public_keys[name][SIGNING], "samples": samples}
            for name, samples in sites.items()
        ]
        federation = Federation.of(values)
        proxy = own.get("proxy")
        methods = (federation.method, *federation.also)
        if proxy is not None and any(method_of(plan(text)).clients_read_proxy for text in methods):
            check_room_for_public(tree.nbytes(tensors_of_samples(proxy)))
            federation = replace(federation, public=PublicSamples.of(proxy))
        if terms.get("noise_shares") is None:
            federation = replace(federation, noise_shares=usual_noise_shares(federation))
        # One variant of each method is checked: the seed decides nothing here.
        by_method = {variant.method: variant for variant in federation.variants.values()}
        run_configs = [
            check_terms_run(variant, own, start, start_partial) for variant in by_method.values()
        ]
        if terms.get("message_bytes") is None:
            federation = replace(federation, message_bytes=max(map(message_limit, run_configs)))

        # 3. The certificate authority that sites will trust, and the server's certificate.
        issuer, authority = certificates.authority(federation.name)
        server, certificate = certificates.server([host, *names], issuer, authority)

        # 4. The files. The federation file comes last: the folder is complete with it.
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        root.chmod(0o700)
        certificates.write_private(root / "ca.key", certificates.pem(issuer))
        certificates.write_private(root / "server.key", certificates.pem(server))
        certificates.write_private(root / "coordinator.key", private_text(coordinator).encode())
        write_bytes(root / "ca.pem", certificates.pem(authority))
        write_bytes(root / "server.pem", certificates.pem(certificate))
        network.save(root / "network.json")
        folder = cls(root)
        for name, pair in own.items():
            if pair is not None:
                write_tensors(folder._samples(name), tensors_of_samples(pair))
        if start is not None:
            model = run_configs[0].model
            write_tensors(root / START_FILE, model.state_dict(model.params | model.buffers))
        for name in sites:
            folder._write_bundle(name, private_keys[name], public_keys[name], federation)
        federation.save(root / "federation.toml")
        folder.audit("made", sites=list(sites), terms=federation.terms)
        return folder

    def renew(self, hosts: Sequence[str] = ()) -> None:
        """Make a new key and certificate for the server, for the names of the old one and further `hosts`."""
        issuer, authority = certificates.read(self._bytes("ca.key"), self._bytes("ca.pem"))
        if certificates.days_left(authority) < 0:
            raise UnalikeError(
                f"the authority in {self.path} has expired, and its sites trust no other; make a new federation with "
                "`unalike federation init`"
            )
        _, old_certificate = self._server
        names = certificates.hosts_of(old_certificate)
        server, certificate = certificates.server([*names, *hosts], issuer, authority)
        self.audit("renewed", hosts=[*hosts])
        certificates.replace_private(self.path / "server.key", certificates.pem(server))
        write_bytes(self.path / "server.pem", certificates.pem(certificate))

    def enrol_anew(
        self, name: str, keys: dict[str, str] | None = None, samples: int | None = None
    ) -> Path:
        """Enrol new `keys` of a site, or make them, which invalidates the old ones. Returns the path of its new bundle.

        With `samples`: a new site, from the next run on; only if the federation is open and no run is under way.
        """
        if keys is None:
            private, public = new_keys()
        else:
            private, public = {}, keys
        others = {other: key.decode() for other, key in self.nodes.items() if other != name}
        check_connection_keys(others | {name: public[NODE]})
        if samples is None:
            federation = self._changed(name, key=public[SIGNING], revoked=False)
        else:
            self._check_may_grow()
            federation = self.federation
            new_site = EnrolledSite(name, public[SIGNING], samples)
            federation = replace(federation, sites=(*federation.sites, new_site))
        self.audit("enrolled", client=name, samples=samples)
        self._write_bundle(name, private, public, federation)
        federation.save(self.path / "federation.toml")
        return self.bundles[name]

    def _check_may_grow(self) -> None:
        """Raise `UnalikeError` where no site may be added now."""
        if not self.federation.open:
            raise UnalikeError(
                "the sites agreed to who takes part; expected a federation of `init --open`"
            )
        begun = [run.path for run in self.waiting if RunDirectory(run.path).config]
        if begun:
            raise UnalikeError(
                f"the run in {begun[0]} is under way, and its sites are fixed; let it finish first"
            )

    def revoke(self, name: str) -> None:
        """Exclude a site from the federation."""
        changed = self._changed(name, revoked=True)
        self.audit("revoked", client=name)
        changed.save(self.path / "federation.toml")

    def roll_back(self, to: int) -> None:
        """Go back to the models after round `to` of the run that is under way, else of the last one."""
        run = next(iter(self.waiting), self.queue[-1])
        roll_back(run.path, to)
        self.audit("rolled back", to=to)
        # pages of rounds that are no more
        for page in (
            run.pages / "report.html",
            run.pages / "diagnosis.html",
            self.path / "comparison.html",
        ):
            page.unlink(missing_ok=True)

    def _changed(self, name: str, **values: Any) -> Federation:
        """The federation with other values of one site. Raises `UnalikeError` for a site that is not enrolled."""
        federation = self.federation
        if federation.site(name) is None:
            raise unknown("site", name, [site.name for site in federation.sites])
        sites = []
        for site in federation.sites:
            sites.append(replace(site, **values) if site.name == name else site)
        return replace(federation, sites=tuple(sites))

    def _write_bundle(
        self, name: str, own: dict[str, bytes], public: dict[str, str], federation: Federation
    ) -> None:
        """Write a site's bundle, with its own private keys if they were made here, and the public key of its connection."""
        path = self.path / "bundles" / f"{name}.zip"
        path.unlink(missing_ok=True)
        Bundle.write(
            path,
            site=name,
            address=self.network.address,
            keys=own,
            authority=self._bytes("ca.pem"),
            agreed=federation,
            public=b"" if federation.public is None else self._samples("proxy").read_bytes(),
        )
        write_bytes(self.path / "nodes" / f"{name}.pem", public[NODE].encode())

    @cached_property
    def audit(self) -> Callable[..., None]:
        """Adds an entry to the audit log: the event and its details, with the user of this process."""
        return partial(Journal(self.path / AUDIT_FILE).add, user=getpass.getuser())

    @property
    def federation(self) -> Federation:
        """The federation file. Raises `UnalikeError`."""
        return Federation.load(self._file("federation.toml"))

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the federation, which the sites compare with that of their bundles."""
        return self.federation.fingerprint(self._bytes("ca.pem"))

    @property
    def queue(self) -> list[QueuedRun]:
        """All runs in their order."""
        return queued_runs(self.path, self.federation)

    @property
    def waiting(self) -> list[QueuedRun]:
        """The runs that are not over."""
        return [run for run in self.queue if not run.is_over]

    @property
    def progress(self) -> str:
        """A line about the first run that is not over, else the last one, while the federation is not up."""
        run = next(iter(self.waiting), self.queue[-1])
        rounds = f"{RunDirectory(run.path).round} of {run.federation.rounds} rounds"
        if self.waiting:
            return f"not up; {rounds} are done, `unalike federation up {self.path}` continues"
        return f"finished, {rounds}"

    @property
    def key(self) -> PrivateKey:
        return private_key(self._file("coordinator.key").read_text().strip())

    @property
    def nodes(self) -> dict[str, bytes]:
        """Public keys (PEM) of the sites' connections by name, without revoked sites."""
        keys = {}
        for site in self.federation.sites:
            if not site.revoked:
                keys[site.name] = self._bytes(f"nodes/{site.name}.pem")
        return keys

    @property
    def days_left(self) -> float:
        """Days until the server's certificate expires; negative if it has expired."""
        _, certificate = self._server
        return certificates.days_left(certificate)

    @property
    def expiries(self) -> list[str]:
        """Lines about certificates that expire soon, or have expired."""
        server = certificates.expiry(
            "the server's certificate",
            self._bytes("server.pem"),
            remedy=f"`unalike federation renew {self.path}` makes a new one, sites need nothing",
        )
        authority = certificates.expiry(
            "the authority in all bundles", self._bytes("ca.pem"), remedy="make a new federation"
        )
        return server + authority

    @property
    def certificate_fault(self) -> str:
        """The reason why sites would refuse the server's certificate; "" if they accept it."""
        key, certificate = self._server
        return certificates.why_untrusted(key, certificate, authority=self._bytes("ca.pem"))

    @property
    def network(self) -> Network:
        """The network address. Raises `UnalikeError`."""
        return Network.load(self._file("network.json"))

    @property
    def bundles(self) -> dict[str, Path]:
        """The bundle of each site."""
        return {s.name: self.path / "bundles" / f"{s.name}.zip" for s in self.federation.sites}

    def samples(self, name: str) -> Pair | None:
        """The coordinator's "test" or "proxy" samples, or None. Raises `UnalikeError` for a damaged file."""
        file = self._samples(name)
        if not file.exists():
            return None
        tensors, _ = read_tensors(file)
        return samples_of_tensors(tensors, like=self.federation.data.placeholder)

    @property
    def start(self) -> Path | None:
        """The file of initial weights, or None."""
        return self.path / START_FILE if (self.path / START_FILE).exists() else None

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def socket(self) -> Path:
        """The socket for commands, while the federation is up."""
        return self.path / "control"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder, so that no other process starts the same federation. Raises `UnalikeError` if it is up."""
        self._file("federation.toml")
        state = "up already" if self.socket.exists() else "starting or ending"
        remedy = "`unalike federation status` shows it, `unalike federation stop` ends it"
        with locked(self.path, f"the federation in {self.path} is {state}; {remedy}"):
            yield

    def _samples(self, name: str) -> Path:
        return self.path / f"{name}.safetensors"

    @property
    def _server(self) -> tuple[Any, Any]:
        return certificates.read(self._bytes("server.key"), self._bytes("server.pem"))

    def _bytes(self, name: str) -> bytes:
        return self._file(name).read_bytes()

    def _file(self, name: str) -> Path:
        file = self.path / name
        if not file.is_file():
            raise UnalikeError(
                f"found no {name} in {self.path}; expected a folder that `unalike federation init` made"
            )
        return file
