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
from unalike.comparison import facts
from unalike.data.array_checks import Pair
from unalike.federation.coordinator.run_queue import QueuedRun, queued_runs
from unalike.federation.coordinator.terms_check import check_terms_run, message_limit
from unalike.federation.protocol.bundle import Bundle
from unalike.federation.protocol.federation_file import EnrolledSite, Federation
from unalike.federation.protocol.roster import Roster, new_run
from unalike.federation.security import certificates
from unalike.federation.security.keys import (
    PrivateKey,
    new_key,
    private_key,
    private_text,
    public_text,
)
from unalike.federation.security.site_keys import NODE, SIGNING, new_keys
from unalike.runtime.records.history import History
from unalike.runtime.records.run_directory import RunDirectory

Host = Annotated[str, Field(min_length=1)]
Port = Annotated[int, Field(strict=True, ge=1, le=65535)]

START, AUDIT = "start.safetensors", "audit.jsonl"


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
    directory, roster = RunDirectory(run), Roster.load(run / "roster.json")
    newest, discarded = 0, 0
    for event in (*directory.events, {"event": "rolled back", "to": to}):
        if event["event"] == "asked" and event.get("train"):
            newest = event["round"]
        elif event["event"] == "rolled back":
            newest, discarded = event["to"], discarded + max(0, newest - event["to"])

    def begin_anew(saved: dict[str, Any]) -> None:
        for group in (group for step in saved["stages"] for group in step):
            group |= {name: [] for name in ("accepted", "holds") if name in group} | {
                "discarded": discarded
            }

    directory.return_to(to, begin_anew)
    history = History.load(run)
    tables = history.rows, history.client_rows
    history.rows, history.client_rows = (
        [row for row in table if row["round"] <= to] for table in tables
    )
    history.save(run)
    for file in (*run.glob("model*.safetensors"), run / facts.FILE):
        file.unlink(missing_ok=True)
    directory.event("rolled back", to=to, run=roster.run or None)
    replace(roster, run=new_run()).save(run / "roster.json")


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
        samples: "test", for the protocol "server", and "proxy", for methods that train on the server. `keys` are those of sites
        that have made them; the others get theirs here, in their bundles. `start` and
        `start_partial` are initial weights, as of `ua.run`; sites get them with the first request. `terms` are the other fields of
        the federation file; None stands for the default, of `message_bytes` for the `message_limit` of the terms. Raises
        `UnalikeError` for a folder that is not empty, and for terms that cannot be run.
        """
        root = Path(path)
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise UnalikeError(
                f"{root} exists and is not an empty folder; keys are never overwritten: choose another one"
            )
        network = Network(host=host, port=port, listen=listen)
        if strangers := keys.keys() - sites.keys():
            raise unknown("site", min(strangers), sites)
        coordinator, made = (
            new_key(),
            {n: ({}, keys[n]) if n in keys else new_keys() for n in sites},
        )
        rows = [
            {"name": n, "key": made[n][1][SIGNING], "samples": samples}
            for n, samples in sites.items()
        ]
        federation = Federation.of(
            {name: value for name, value in terms.items() if value is not None}
            | {"coordinator": public_text(coordinator), "sites": rows}
        )
        methods = {
            f.method: f for f in federation.variants.values()
        }  # the seed decides nothing here
        run_configs = [
            check_terms_run(variant, own, start, start_partial) for variant in methods.values()
        ]
        run_config = run_configs[0]
        if terms.get("message_bytes") is None:
            federation = replace(federation, message_bytes=max(map(message_limit, run_configs)))
        issuer, authority = certificates.authority(federation.name)
        server, certificate = certificates.server([host, *names], issuer, authority)

        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        root.chmod(0o700)
        private = {"ca.key": certificates.pem(issuer), "server.key": certificates.pem(server)}
        private["coordinator.key"] = private_text(coordinator).encode()
        for name, content in private.items():
            certificates.write_private(root / name, content)
        write_bytes(root / "ca.pem", certificates.pem(authority))
        write_bytes(root / "server.pem", certificates.pem(certificate))
        network.save(root / "network.json")
        folder = cls(root)
        for name, samples in own.items():
            if samples is not None:
                write_tensors(folder._samples(name), {"x": samples[0], "y": samples[1]})
        if start is not None:
            write_tensors(
                root / START,
                run_config.model.state_dict(run_config.model.params | run_config.model.buffers),
            )
        for name in sites:
            folder._write_bundle(name, *made[name], federation)
        federation.save(root / "federation.toml")  # last: the folder is complete with it
        folder.audit("made", sites=[*sites], terms=federation.terms)
        return folder

    def renew(self, hosts: Sequence[str] = ()) -> None:
        """Make a new key and certificate for the server, for the names of the old one and further `hosts`."""
        issuer, authority = certificates.read(self._bytes("ca.key"), self._bytes("ca.pem"))
        if certificates.days_left(authority) < 0:
            raise UnalikeError(
                f"the authority in {self.path} has expired, and its sites trust no other; make a new federation with "
                "`unalike federation init`"
            )
        names = certificates.hosts_of(self._server[1])
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
        private, public = new_keys() if keys is None else ({}, keys)
        if samples is None:
            federation = self._changed(name, key=public[SIGNING], revoked=False)
        else:
            federation = self.federation
            if not federation.open:
                raise UnalikeError(
                    "the sites agreed to who takes part; expected a federation of `init --open`"
                )
            if begun := [run.path for run in self.waiting if RunDirectory(run.path).config]:
                raise UnalikeError(
                    f"the run in {begun[0]} is under way, and its sites are fixed; let it finish first"
                )
            federation = replace(
                federation, sites=(*federation.sites, EnrolledSite(name, public[SIGNING], samples))
            )
        self.audit("enrolled", client=name, samples=samples)
        self._write_bundle(name, private, public, federation)
        federation.save(self.path / "federation.toml")
        return self.bundles[name]

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
        for page in (
            run.pages / "report.html",
            run.pages / "diagnosis.html",
            self.path / "comparison.html",
        ):
            page.unlink(missing_ok=True)

    def _changed(self, name: str, **values: Any) -> Federation:
        federation = self.federation
        if federation.site(name) is None:
            raise unknown("site", name, [site.name for site in federation.sites])
        return replace(
            federation,
            sites=tuple(replace(s, **values) if s.name == name else s for s in federation.sites),
        )

    def _write_bundle(
        self, name: str, own: dict[str, bytes], public: dict[str, str], federation: Federation
    ) -> None:
        """Write a site's bundle, with its own private keys if they were made here, and the public key of its connection."""
        path = self.path / "bundles" / f"{name}.zip"
        path.unlink(missing_ok=True)
        Bundle.write(path, name, self.network.address, own, self._bytes("ca.pem"), federation)
        write_bytes(self.path / "nodes" / f"{name}.pem", public[NODE].encode())

    @cached_property
    def audit(self) -> Callable[..., None]:
        """Adds an entry to the audit log: the event and its facts, with the user of this process."""
        return partial(Journal(self.path / AUDIT).add, user=getpass.getuser())

    @property
    def federation(self) -> Federation:
        """The federation file. Raises `UnalikeError`."""
        return Federation.load(self._file("federation.toml"))

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
        return {
            s.name: self._bytes(f"nodes/{s.name}.pem")
            for s in self.federation.sites
            if not s.revoked
        }

    @property
    def days_left(self) -> float:
        """Days until the server's certificate expires; negative if it has expired."""
        return certificates.days_left(self._server[1])

    @property
    def expiries(self) -> list[str]:
        """Lines about certificates that expire soon, or have expired."""
        renew, anew = (
            f"`unalike federation renew {self.path}` makes a new one, sites need nothing",
            "make a new federation",
        )
        server = certificates.expiry("the server's certificate", self._bytes("server.pem"), renew)
        return server + certificates.expiry(
            "the authority in all bundles", self._bytes("ca.pem"), anew
        )

    @property
    def certificate_fault(self) -> str:
        """The reason why sites would refuse the server's certificate; "" if they accept it."""
        return certificates.why_untrusted(*self._server, self._bytes("ca.pem"))

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
        return tensors["x"], tensors["y"]

    @property
    def start(self) -> Path | None:
        """The file of initial weights, or None."""
        return self.path / START if (self.path / START).exists() else None

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
        told = "`unalike federation status` shows it, `unalike federation stop` ends it"
        with locked(self.path, f"the federation in {self.path} is {state}; {told}"):
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
