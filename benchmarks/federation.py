"""What a federation costs beyond local training, on this machine: real processes, sockets and certificates.

    python benchmarks/federation.py processes        seconds of a round of small training and memory of a site, 3 and 10 sites,
                                                     each a process of its own; optionally with other numbers of sites
    python benchmarks/federation.py flower           the same of Flower's own deployment
    python benchmarks/federation.py latency          seconds of a round of three sites at a round trip of 0 and 40 ms; optionally
                                                     with other round trips
    python benchmarks/federation.py rounds           seconds of overhead per round, 5 sites, models of 1 MB and 45 MB
    python benchmarks/federation.py largest          the largest message that comes back whole, 1 site
    python benchmarks/federation.py secure           CPU seconds and bytes of secure aggregation, 3, 10 and 30 sites, all in one
                                                     process, models of 10^4 and 10^6 parameters
    python benchmarks/federation.py memory           the coordinator's memory with 5, 50 and 200 sites, simulated by one
                                                     process; optionally with a method's name

A round's overhead is its duration minus the longest training time of a site. It includes encoding, signing, splitting,
encrypting and storing messages in both directions. The sites share the machine, so the numbers are upper bounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import DEVNULL, run
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
from clock import MARK

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

import unalike as ua
from unalike._utils.system import local_socket
from unalike._utils.system.ports import free_port
from unalike.federation.coordinator.coordinator import Coordinator
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.operations.run_coordinator import write_site
from unalike.federation.protocol.federation_file import EnrolledSite, Federation, Schema
from unalike.federation.security import certificates
from unalike.federation.security.keys import new_key, public_text
from unalike.federation.site.site_worker import SiteWorker

MAIN = [sys.executable, "-c", "from unalike.cli import main; main()"]
BIN, FLOWER_ROUNDS = Path(sys.executable).parent, 3
UNINSTALLED = "--disable-runtime-dependency-installation"
FEATURES = 512
MODELS = {
    "1 MB": "mlp(hidden=(420, 80))",
    "11 MB": "mlp(hidden=(2048, 840))",
    "45 MB": "mlp(hidden=(4096, 2240))",
}
"""Models for samples with 512 features."""


def federation_of(
    names: list[str], model: str, rounds: int, method: str = "fedavg", **more: Any
) -> tuple[Federation, Any, dict[str, Any]]:
    coordinator, keys = new_key(), {name: new_key() for name in names}
    sites = tuple(EnrolledSite(name, public_text(key), 1000) for name, key in keys.items())
    data = Schema((FEATURES,), 10)
    work = ua.Work(steps=1, batch_size=8, lr=0.01)
    made = Federation(
        name="benchmark",
        method=method,
        model=model,
        rounds=rounds,
        coordinator=public_text(coordinator),
        data=data,
        sites=sites,
        work=work,
        repeat=600.0,
        deadline=3600.0,
        **more,
    )
    return made, coordinator, keys


def person(name: str) -> ua.ClientData:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, FEATURES)).astype(np.float32), np.arange(16) % 10
    return ua.ClientData(train=(x[:8], y[:8]), test=(x[8:], y[8:]), name=name)


class Timed:
    """A site worker that records the seconds for each request, by a `clock`."""

    def __init__(self, worker: SiteWorker, clock: Callable[[], float] = time.perf_counter):
        self.worker, self.clock, self.seconds = worker, clock, list[float]()

    def handle(self, message: bytes) -> bytes:
        started = self.clock()
        reply = self.worker.handle(message)
        self.seconds.append(self.clock() - started)
        return reply


def rounds() -> None:
    from echo_network import EchoNetwork

    names = [f"site{k}" for k in range(5)]
    with tempfile.TemporaryDirectory() as root:
        network = EchoNetwork(Path(root), tuple(names))
        try:
            for title in ("1 MB", "45 MB"):
                model = MODELS[title]
                federation, key, keys = federation_of(names, model, rounds=5)
                folder = Path(root) / title.replace(" ", "")
                timed = {
                    n: Timed(SiteWorker(federation, n, keys[n], person(n), folder / n))
                    for n in names
                }
                network.handlers |= {n: t.handle for n, t in timed.items()}
                run = Coordinator(federation, key, network.transport, folder / "run").run()
                size = sum(t.numel() * t.element_size() for t in run.params.values()) / 1e6
                took = run.history.rounds["seconds"].to_numpy()[1:]
                longest = np.max([t.seconds[1:6] for t in timed.values()], axis=0)
                over = took - longest
                shown = f"{np.median(over):.2f} s (from {over.min():.2f} to {over.max():.2f})"
                print(
                    f"{title} ({size:.1f} MB): overhead per round {shown}, training {np.median(longest):.2f} s",
                    flush=True,
                )
        finally:
            network.close()


def processes() -> None:
    """Time the rounds of federations that `unalike federation up --local` starts."""
    for sites in sys.argv[2:] or ("3", "10"):
        with tempfile.TemporaryDirectory() as root:
            words = [
                "federation",
                "up",
                "--local",
                sites,
                "--data",
                "digits",
                "--rounds",
                "20",
                "--out",
                root,
            ]
            words += ["--model", "mlp(hidden=(64,))"]
            up = psutil.Popen([*MAIN, *words], stdout=DEVNULL)
            largest = 0.0
            while up.poll() is None:
                time.sleep(0.5)
                with suppress(psutil.Error):
                    joined = [
                        p.memory_info().rss
                        for p in up.children(recursive=True)
                        if "join" in p.cmdline()
                    ]
                    largest = max([largest, *joined])
            report(f"{sites} sites", seconds_of(Path(root) / "run"), site_mb=largest / 1e6)


def flower() -> None:
    """Time the rounds of Flower's own deployment with the same model, samples and training, and no evaluation at the sites.

    SuperLink and SuperNodes with TLS and without authentication of nodes; each of them starts its apps as processes, its default.
    """
    for sites in sys.argv[2:] or ("3", "10"):
        with tempfile.TemporaryDirectory() as name, ExitStack() as started:
            root, port, laps, home = (
                Path(name),
                free_port(),
                Path(name) / "laps",
                Path(name) / "flwr",
            )
            key, authority = certificates.authority("benchmark")
            server, certificate = certificates.server(["127.0.0.1"], key, authority)
            parts = {"ca.pem": authority, "server.pem": certificate, "server.key": server}
            for file, part in parts.items():
                (root / file).write_bytes(certificates.pem(part))
            home.mkdir()
            trust = f'address = "127.0.0.1:{port}"\nroot-certificates = "{root}/ca.pem"\n'
            (home / "config.toml").write_text(
                f'[superlink]\ndefault = "here"\n\n[superlink.here]\n{trust}'
            )
            quiet = {
                "FLWR_TELEMETRY_ENABLED": "0",
                "FLWR_DISABLE_UPDATE_CHECK": "1",
                "OMP_NUM_THREADS": "1",
            }
            env = (
                os.environ
                | quiet
                | {"FLWR_HOME": str(home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
            )

            def start(*words: Any, env: Any = env) -> None:
                with open(os.environ.get("FLOWER_LOG", os.devnull), "ab") as log:
                    process = psutil.Popen([str(w) for w in words], env=env, stdout=log, stderr=log)
                started.callback(end, process)

            tls = ["--ssl-certfile", root / "server.pem", "--ssl-keyfile", root / "server.key"]
            tls += ["--ssl-ca-certfile", root / "ca.pem"]
            start("flower-superlink", "--host", "127.0.0.1", "--port", port, *tls, UNINSTALLED)
            population = ua.partition(ua.load("digits"), "iid", clients=int(sites), seed=0)
            for number, client in enumerate(population):
                write_site(root / f"{number}.npz", client, population.classes)
                words = [
                    "--superlink",
                    f"127.0.0.1:{port}",
                    "--root-certificates",
                    root / "ca.pem",
                    *tls,
                ]
                words += ["--port", free_port(), "--node-config", f'data="{root}/{number}.npz"']
                start("flower-supernode", *words)
            config = f'sites={sites} rounds={FLOWER_ROUNDS} laps="{laps}"'
            app, until = Path(__file__).parent / "peers" / "flower_app", time.monotonic() + 60
            command = ["flwr", "run", str(app), "here", "--run-config", config]
            while run(command, env=env, stdout=DEVNULL).returncode and time.monotonic() < until:
                time.sleep(1.0)  # SuperLink is not up yet
            while not laps.exists() or len(laps.read_text().split()) <= FLOWER_ROUNDS:
                time.sleep(0.5)
            ends = np.array(laps.read_text().split(), dtype=float)
        report(f"Flower, {sites} sites", pd.Series(np.diff(ends)[1:]))


def end(process: psutil.Popen) -> None:
    """End a process and all that it has started."""
    family = [process, *process.children(recursive=True)]
    process.terminate()
    psutil.wait_procs(family, 10.0)
    for member in family:
        with suppress(psutil.Error):
            member.kill()
    process.wait()


def seconds_of(run: Path) -> pd.Series:
    """The seconds of all rounds of a run but the first."""
    return pd.read_parquet(run / "rounds.parquet")["seconds"].iloc[2:]


def report(what: str, seconds: pd.Series, **more: float) -> None:
    """Print the measurement for people and for `launch.watched`."""
    found = {"round": seconds.median(), "least": seconds.min(), "most": seconds.max()} | more
    spread = f"{found['round']:.2f} s a round (from {found['least']:.2f} to {found['most']:.2f})"
    print(
        ", ".join([f"{what}: {spread}", *(f"{value:.0f} {name}" for name, value in more.items())]),
        flush=True,
    )
    print(MARK + json.dumps(found), flush=True)


def latency() -> None:
    """Time the rounds of three sites whose connections pass a proxy that delays each direction by half the round trip."""
    for milliseconds in map(float, sys.argv[2:] or ("0", "40")):
        with tempfile.TemporaryDirectory() as name, Delay(milliseconds / 2000) as delay:
            root, population = Path(name), ua.partition(ua.load("digits"), "iid", clients=3, seed=0)
            port, data = free_port(), Schema((1, 8, 8), tuple(population.classes or ()))
            folder = FederationFolder.create(
                root / "federation",
                {f"site-{k}": 2000 for k in range(3)},
                host="127.0.0.1",
                port=port,
                listen="127.0.0.1",
                name="latency",
                method="fedavg",
                model="mlp(hidden=(64,))",
                rounds=20,
                data=data,
            )
            delay.target = port
            up = psutil.Popen([*MAIN, "federation", "up", str(folder.path)], stdout=DEVNULL)
            sites = []
            for (site, bundle), client in zip(folder.bundles.items(), population):
                write_site(root / site / "data.npz", client, population.classes)
                words = [
                    "join",
                    str(bundle),
                    "--data",
                    str(root / site / "data.npz"),
                    "--folder",
                    str(root / site),
                ]
                sites.append(
                    psutil.Popen(
                        [*MAIN, *words, "--address", f"127.0.0.1:{delay.port}"], stdout=DEVNULL
                    )
                )
            up.wait()
            for site in sites:
                site.terminate()
                site.wait()
            report(f"round trip {milliseconds:g} ms", seconds_of(folder.run))


class Delay:
    """A TCP proxy in a thread that delays what passes by `seconds`, without a limit of its rate."""

    def __init__(self, seconds: float):
        self.seconds, self.port, self.target = seconds, free_port(), 0
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Delay:
        self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind_reader, behind = await asyncio.open_connection("127.0.0.1", self.target)
            await asyncio.gather(self._pump(reader, behind), self._pump(behind_reader, writer))
        except OSError:
            writer.close()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def send() -> None:
            piece = b"first"
            while piece:
                due, piece = await waiting.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                target.write(piece)
            target.close()

        sender = asyncio.create_task(send())
        piece = b"first"
        while piece:
            try:
                piece = await source.read(1 << 16)
            except OSError:  # the other side is gone
                piece = b""
            waiting.put_nowait((self._loop.time() + self.seconds, piece))
        await sender


def secure() -> None:
    """CPU seconds and bytes of rounds with and without secure aggregation; sites are in this process, one after the other."""
    from in_memory_transport import InMemoryTransport

    rounds = 4
    for sites in (3, 10, 30):
        for size, model in (("10^4", "mlp(hidden=(20,))"), ("10^6", "mlp(hidden=(1600, 112))")):
            found = []
            for more in ({}, {"secure_aggregation": True}):
                names = [f"site{k:02d}" for k in range(sites)]
                federation, key, keys = federation_of(names, model, rounds, **more)
                with tempfile.TemporaryDirectory() as root:
                    workers = {
                        n: SiteWorker(federation, n, keys[n], person(n), Path(root) / n)
                        for n in names
                    }
                    timed = {n: Timed(worker, time.process_time) for n, worker in workers.items()}
                    started = time.process_time()
                    run = Coordinator(
                        federation, key, InMemoryTransport(timed), Path(root) / "run"
                    ).run()
                    took = time.process_time() - started
                    at_sites = [sum(t.seconds) / rounds for t in timed.values()]
                    table = run.history.rounds.iloc[1:]
                    first, usual = (
                        table[["bytes_up", "bytes_down"]].iloc[i] / sites / 1e6 for i in (0, -1)
                    )
                    found.append(
                        (np.mean(at_sites), took / rounds - sum(at_sites), usual, first - usual)
                    )
            (plain, plain_coordinator, _, _), (site, coordinator, usual, more_once) = found
            print(
                f"{sites} sites, {size} parameters: {site - plain:.3f} CPU s a round more at a site ({site:.3f}), "
                f"{coordinator - plain_coordinator:.2f} CPU s more at the coordinator ({coordinator:.2f}); a site sends "
                f"{usual['bytes_up']:.3f} MB a round and gets {usual['bytes_down']:.3f} MB, and once "
                f"{more_once['bytes_up']:.3f} and {more_once['bytes_down']:.3f} MB",
                flush=True,
            )


def largest() -> None:
    import echo_network

    echo_network.MESSAGE_BYTES = 2**31
    with tempfile.TemporaryDirectory() as root:
        network = echo_network.EchoNetwork(Path(root), ("site0",))
        try:
            for megabytes in (64, 128, 256, 512, 1024, 2000):
                message, started = bytes(megabytes << 20), time.perf_counter()
                found = network.exchange(message, ["site0"], seconds=240)
                whole = found.get("site0", b"").endswith(message)
                print(
                    f"{megabytes} MiB: {'whole' if whole else 'lost'}, {time.perf_counter() - started:.1f} s",
                    flush=True,
                )
                if not whole:
                    break
                network.heard["site0"].clear()
        finally:
            network.close()


def memory() -> None:
    """Measure each number of sites in a new process; one further process answers for all sites."""
    for count, title in ((5, "1 MB"), (50, "1 MB"), (200, "1 MB"), (5, "11 MB"), (50, "11 MB")):
        if not (child := os.fork()):
            torch.set_num_threads(1)
            _coordinate(count, title, *sys.argv[2:])
            os._exit(0)
        os.waitpid(child, 0)


def _coordinate(count: int, title: str, method: str = "fedavg") -> None:
    names = [f"site{k}" for k in range(count)]
    federation, key, keys = federation_of(names, MODELS[title], 2, method)
    with tempfile.TemporaryDirectory() as root:
        generator = os.fork()
        if not generator:
            _generate(federation, keys, Path(root))
        load = Load(Path(root) / "load", names)
        while not load.socket.exists():
            time.sleep(0.05)
        before, seen, over = _now(), list[float](), threading.Event()
        watcher = threading.Thread(target=_watch, args=(seen, over))
        watcher.start()
        Coordinator(federation, key, load, Path(root) / "run").run()
        over.set()
        watcher.join()
        os.kill(generator, signal.SIGKILL)
        os.waitpid(generator, 0)
        print(
            f"{method}, {count} sites, {title}: {max(seen) - before:.0f} MB above the {before:.0f} MB before the first request",
            flush=True,
        )


def _generate(federation: Federation, keys: dict[str, Any], root: Path) -> None:
    """Answer requests to all sites, one at a time; replies are queued here until they are fetched."""
    waiting: deque[bytes] = deque()

    def handle(message: bytes) -> bytes:
        if not message:
            return waiting.popleft() if waiting else b""
        name, _, request = message.partition(b"\n")
        site = name.decode()
        worker = SiteWorker(federation, site, keys[site], person(site), root / site)
        waiting.append(name + b"\n" + worker.handle(request))
        return b"ok"

    local_socket.serve(root / "load", handle, 1 << 30)


class Load:
    """The transport to the process that answers for all sites."""

    def __init__(self, socket: Path, names: list[str]):
        self.socket, self.names = socket, names

    def sites(self) -> list[str]:
        return self.names

    def connected(self) -> list[str]:
        return []

    def send(self, site: str, message: bytes) -> None:
        local_socket.ask(self.socket, site.encode() + b"\n" + message, 1 << 30)

    def receive(self, seconds: float) -> list[tuple[str, bytes]]:
        found = local_socket.ask(self.socket, b"", 1 << 30)
        if not found:
            time.sleep(min(seconds, 0.01))
            return []
        name, _, reply = found.partition(b"\n")
        return [(name.decode(), reply)]


def _now() -> float:
    return psutil.Process().memory_info().rss / 1e6


def _watch(seen: list[float], over: threading.Event) -> None:
    while not over.wait(0.02):
        seen.append(_now())


if __name__ == "__main__":
    torch.set_num_threads(1)
    benchmarks = {
        "processes": processes,
        "flower": flower,
        "latency": latency,
        "rounds": rounds,
        "largest": largest,
    }
    (benchmarks | {"secure": secure, "memory": memory})[sys.argv[1]]()
