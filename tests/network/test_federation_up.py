"""The commands as processes: a new federation, killed coordinators and sites, the operator's commands."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial

import psutil
import pytest

from unalike.metrics.columns import TIMES

pytest.importorskip("flwr")

import pandas as pd
import torch
from echo_network import expire
from in_memory_transport import InMemoryTransport

import unalike as ua
from unalike._utils.system.ports import free_port
from unalike._utils.tensor_files import read_tensors
from unalike.data import Population
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.coordinator.operator_commands import command
from unalike.federation.operations.run_coordinator import OWN_MACHINE, write_site
from unalike.federation.protocol.federation_file import Schema
from unalike.federation.site.site_policy import SitePolicy
from unalike.federation.site.site_worker import SiteWorker

UNALIKE = [sys.executable, "-c", "from unalike.cli import main; main()"]


def start(*words, log):
    with open(log, "ab") as file:
        return subprocess.Popen([*UNALIKE, *map(str, words)], stdout=file, stderr=subprocess.STDOUT)


def ran(*words, seconds=300):
    return subprocess.run(
        [*UNALIKE, *map(str, words)], capture_output=True, text=True, timeout=seconds
    )


def processes_of(folder):
    """Living processes with a path below the folder in their command."""
    commands = {
        process.pid: " ".join(process.info["cmdline"] or ())
        for process in psutil.process_iter(["cmdline"])
    }
    return [
        (pid, text[:200])
        for pid, text in commands.items()
        if str(folder) in text and pid != os.getpid()
    ]


def awaited(ready, seconds=180):
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.1)


def parts(folder):
    """The sites' samples as in their files."""
    found = []
    for name in FederationFolder(folder).bundles:
        data = ua.load(folder / "sites" / name / "data.npz")
        found.append(ua.ClientData(train=data.train, test=data.test, name=name))
    return Population.of(found, data.classes)


def simulated(folder, federation):
    return ua.run(
        federation.method,
        parts(folder),
        model=federation.model,
        rounds=federation.rounds,
        work=federation.work,
        seed=federation.seed,
        executor="loop",
    )


@pytest.mark.slow
def test_local_federation_runs_to_the_end(tmp_path):
    """Four real hospitals; two of them measured next to nothing of some columns."""
    out = tmp_path / "fed"
    words = [
        "federation",
        "up",
        "--local",
        4,
        "--data",
        "heart_disease",
        "--method",
        "fedmix",
        "--rounds",
        2,
        "--model",
        "linear",
    ]
    done = ran(*words, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "round 2 of 2: 4 sites" in done.stdout and "done: history and model" in done.stdout
    assert not processes_of(out)
    found, _ = read_tensors(out / "run" / "model.safetensors")
    run = simulated(out, FederationFolder(out).federation)
    for name, t in run.params.items():
        torch.testing.assert_close(
            found[name], t, rtol=0, atol=1e-5
        )  # the sites may use another number of threads
    rounds = pd.read_parquet(out / "run" / "rounds.parquet")
    assert len(rounds) == 3 and rounds["accuracy"].iloc[-1] == pytest.approx(
        run.history.rounds["accuracy"].iloc[-1], abs=1e-3
    )
    page = (out / "report.html").read_text()
    assert "fedmix" in page and "Traceback" not in page
    site = out / "sites" / FederationFolder(out).federation.sites[0].name
    kept = [*(site / "state").rglob("*")]  # replies, the model, the journal: for the owner alone
    assert len(kept) > 5 and not [file for file in kept if file.stat().st_mode & 0o077]
    done = ran("predict", site, "--data", site / "data.npz", "--out", tmp_path / "predictions.csv")
    assert done.returncode == 0 and (tmp_path / "predictions.csv").exists(), done.stderr
    assert "these scores are too good" in ran("evaluate", site, "--data", site / "data.npz").stderr

    before = (out / "run" / "model.safetensors").read_bytes()
    again = ran(*words, "--out", out)  # the same command: nothing is left to do
    assert again.returncode == 0 and (out / "run" / "model.safetensors").read_bytes() == before
    other = ran(*words, "--out", out, "--lr", 0.7)
    assert other.returncode == 2 and "another federation" in other.stderr


@pytest.mark.slow
def test_interrupt_ends_all_processes(tmp_path):
    out = tmp_path / "fed"
    words = [
        "federation",
        "up",
        "--local",
        2,
        "--data",
        "digits",
        "--rounds",
        500,
        "--model",
        "linear",
        "--out",
        out,
    ]
    for kind, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        up = start(*words, log=tmp_path / "up.log")
        try:
            awaited(lambda: " round " in (tmp_path / "up.log").read_text())
            up.send_signal(kind)
            assert up.wait(60) == status
            awaited(lambda: not processes_of(out), 30)
        finally:
            up.kill()
        (tmp_path / "up.log").write_text("")


class Real:
    """A federation of sites in separate processes, which a test may kill."""

    def __init__(self, root, method, rounds, names=("north", "south"), **terms):
        self.root, self.port, self.names = root, free_port(), names
        dataset = ua.load("digits")
        self.people = ua.partition(dataset, "iid", clients=len(names), seed=1)
        data = Schema((1, 8, 8), tuple(dataset.classes))
        self.folder = FederationFolder.create(
            root / "fed",
            dict.fromkeys(names, 1000),
            host="127.0.0.1",
            port=self.port,
            listen="127.0.0.1",
            name="real",
            method=method,
            model="linear",
            rounds=rounds,
            work=ua.Work(batch_size=64, lr=0.1, steps=2 if terms.get("threshold") else None),
            data=data,
            repeat=5.0,
            deadline=120.0,
            **terms,
        )
        for name, person in zip(names, self.people):
            write_site(root / "sites" / name / "data.npz", person, self.people.classes)
            SitePolicy.of(root / "sites" / name / "site.toml", **OWN_MACHINE)
        self.processes = {}

    def site(self, name):
        home = self.root / "sites" / name
        words = ["join", self.folder.bundles[name], "--data", home / "data.npz", "--folder", home]
        self.processes[name] = start(*words, log=self.root / f"{name}.log")

    def up(self, *more):
        self.processes["up"] = start(
            "federation", "up", self.folder.path, *more, log=self.root / "up.log"
        )
        return self.processes["up"]

    def kill(self, name):
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def done(self):
        file = self.folder.run / "events.jsonl"
        lines = (
            [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        )
        return max((e["round"] for e in lines if e["event"] == "asked"), default=0)

    def close(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()

    def undisturbed(self, out):
        """The same federation in one process."""
        from unalike.federation.coordinator.coordinator import Coordinator
        from unalike.federation.protocol.bundle import Bundle

        workers = {}
        for name, path in self.folder.bundles.items():
            bundle = Bundle.read(path)
            data = ua.load(self.root / "sites" / name / "data.npz")
            person = ua.ClientData(train=data.train, test=data.test, name=name)
            workers[name] = SiteWorker(bundle.federation, name, bundle.key, person, out / name)
        return Coordinator(
            self.folder.federation, self.folder.key, InMemoryTransport(workers), out / "run"
        ).run()


SECURE = {"names": ("north", "south", "west"), "secure_aggregation": True, "threshold": 3}


@pytest.mark.slow
@pytest.mark.parametrize("terms", [{}, SECURE], ids=["plain", "secure aggregation"])
def test_killed_coordinators_and_site_give_same_model(tmp_path, terms):
    """FAULTS 20 and 21 over real sockets: kill -9 of the coordinator three times and of a site once, then resume."""
    real, rng = Real(tmp_path, "scaffold", rounds=6, **terms), random.Random(7)
    try:
        for name in real.names:
            real.site(name)
        real.up()
        for number, victim in enumerate(("up", "south", "up", "up"), start=1):
            awaited(lambda number=number: real.done() >= number)
            time.sleep(rng.uniform(0.0, 1.5))
            real.kill(victim)
            if victim == "up":
                awaited(lambda: not processes_of(real.folder.path / "superlink.secret"), 30)
                up = real.up()
            else:
                awaited(lambda: not processes_of(tmp_path / "sites" / "south"), 30)
                real.site("south")
        assert up.wait(240) == 0, (tmp_path / "up.log").read_text()
    finally:
        real.close()
    assert not processes_of(tmp_path)
    expected = real.undisturbed(tmp_path / "undisturbed")
    found, _ = read_tensors(real.folder.run / "model.safetensors")
    # in sums each folder's sites have other noise below rounding
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if terms else {"rtol": 0, "atol": 0}
    for name, t in expected.params.items():
        torch.testing.assert_close(found[name], t, **tolerance)
    tables = [pd.read_parquet(real.folder.run / "rounds.parquet"), expected.history.rounds]
    anew = ["bytes_down", "bytes_up"] if terms else []  # keys are exchanged anew after each kill
    ours, theirs = (t.drop(columns=[*TIMES, *anew]) for t in tables)
    pd.testing.assert_frame_equal(ours, theirs, check_dtype=False, rtol=1e-4 if terms else 1e-9)


@pytest.mark.slow
def test_renewed_certificate_connects_and_old_bundle_is_refused(tmp_path):
    real = Real(tmp_path, "scaffold", rounds=3)
    folder, old = real.folder.path, tmp_path / "old.zip"
    shutil.copy(real.folder.bundles["south"], old)
    expire(real.folder)
    up = ran("federation", "up", folder)
    assert up.returncode == 2 and "has expired" in up.stderr
    done = ran("federation", "renew", folder, "--site", "south")
    assert done.returncode == 0 and "hand over to south alone" in done.stdout, done.stderr
    try:
        up = real.up()
        data = tmp_path / "sites" / "south" / "data.npz"
        words = [
            "join",
            old,
            "--data",
            data,
            "--folder",
            tmp_path / "thief",
            "--address",
            f"127.0.0.1:{real.port}",
        ]
        real.processes["thief"] = start(*words, log=tmp_path / "thief.log")
        awaited(lambda: "does not know this key" in (tmp_path / "thief.log").read_text())
        for name in ("north", "south"):
            real.site(name)
        assert up.wait(240) == 0, (tmp_path / "up.log").read_text()
    finally:
        real.close()
    assert real.done() == 3


@pytest.mark.slow
def test_operator_commands_control_run(tmp_path):
    real = Real(tmp_path, "fedavg", rounds=300)
    folder = real.folder.path
    try:
        assert "not up; 0 of 300 rounds are done" in ran("federation", "status", folder).stdout
        real.site("north")
        up = real.up("--wait")
        awaited(lambda: "1 of 2 sites are connected" in (tmp_path / "up.log").read_text())
        seen = ran("federation", "status", folder).stdout
        assert "waiting, 0 of 300 rounds" in seen and "north  yes" in seen and "south  no" in seen
        assert "up already" in ran("federation", "up", folder).stderr
        real.site("south")
        assert ran("federation", "run", folder).returncode == 0
        awaited(lambda: real.done() >= 2)
        assert ran("federation", "pause", folder).stdout == "paused\n"
        time.sleep(4.0)
        before = real.done()
        time.sleep(4.0)
        assert (
            real.done() == before
            and "paused (asked for)" in ran("federation", "status", folder).stdout
        )
        assert ran("federation", "resume", folder).stdout == "running\n"
        awaited(lambda: real.done() > before)
        assert ran("federation", "stop", folder).returncode == 0
        assert up.wait(60) == 0 and "stopped after round" in (tmp_path / "up.log").read_text()
        assert not processes_of(folder / "superlink.secret")
        assert (folder / "run" / "rounds.parquet").exists()
    finally:
        real.close()


def test_join_show_lists_values_that_leave_site(tmp_path):
    real = Real(tmp_path, "feddisco", rounds=2)
    done = ran(
        "join",
        real.folder.bundles["north"],
        "--data",
        tmp_path / "sites" / "north" / "data.npz",
        "--show",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(
        line.startswith("leaves  update") and "2,600 bytes" in line for line in lines
    )  # (64 + 1) * 10 floats
    assert lines[-1].startswith("fingerprint of the federation: ")
    assert any("label_histogram" in line for line in lines) and "number of training" in lines[-2]


def test_join_table_with_target(tmp_path):
    table = pd.DataFrame({"a": [n / 2 for n in range(20)], "b": 1.5, "sick": ["no", "yes"] * 10})
    table.to_csv(tmp_path / "sample.csv", index=False)
    words = [
        "federation",
        "init",
        tmp_path / "made",
        "--sites",
        1,
        "--like",
        tmp_path / "sample.csv",
        "--target",
        "sick",
    ]
    done = ran(*words, "--protocol", "server", "--test", tmp_path / "sample.csv")
    assert done.returncode == 0 and "join BUNDLE --data FILE`" in done.stdout, done.stderr
    made = FederationFolder(tmp_path / "made")
    data = made.federation.data
    assert (data.shape, data.classes) == ((2,), ("no", "yes")) and len(
        made.samples("test")[1]
    ) == 20
    assert [number.name for number in data.encoding.numbers] == [
        "a",
        "b",
    ]  # every site's table is read as the sample's
    table[table["sick"] == "yes"].to_csv(tmp_path / "mine.csv", index=False)
    shown = ran("join", made.bundles["site-1"], "--data", tmp_path / "mine.csv", "--show")
    assert shown.returncode == 0 and "leaves  update" in shown.stdout, shown.stderr


@pytest.mark.slow
def test_init_refuses_columns_that_tell_people_apart(tmp_path):
    table = pd.DataFrame(
        {
            "a": range(0, 180, 3),
            "born": ["03.04.1950", "25.12.1961", "17.08.1970"] * 20,
            "sick": ["no", "yes"] * 30,
        }
    )
    table.to_csv(tmp_path / "sample.csv", index=False)
    words = [
        "federation",
        "init",
        tmp_path / "made",
        "--like",
        tmp_path / "sample.csv",
        "--target",
        "sick",
    ]
    assert "'a': numbers that look like identifiers" in ran(*words).stderr
    assert "'born': dates, read as categories" in ran(*words, "--drop", "a").stderr
    assert not (tmp_path / "made").exists()
    assert ran(*words, "--accept").returncode == 0


def test_join_wrong_schema_and_too_many_samples_are_refused(tmp_path):
    real = Real(tmp_path, "fedavg", rounds=1)
    bundle = real.folder.bundles["north"]
    whole = ran("join", bundle, "--data", "digits", "--folder", tmp_path / "x")
    assert whole.returncode == 2 and "enrolled for 1000" in whole.stderr
    other = ran("join", bundle, "--data", "emnist_sample", "--folder", tmp_path / "x")
    assert other.returncode == 2 and "expected" in other.stderr


@pytest.mark.slow
def test_init_makes_folder_and_refuses_mistakes(tmp_path):
    words = [
        "federation",
        "init",
        tmp_path / "made",
        "--sites",
        "north,south",
        "--shape",
        "1,8,8",
        "--classes",
        "a,b",
    ]
    done = ran(
        *words, "--host", "fed.example.org", "--method", "fedprox(mu=0.1) + lws", "--quorum", 2
    )
    assert done.returncode == 0, done.stderr
    federation = FederationFolder(tmp_path / "made").federation
    assert [s.name for s in federation.sites] == ["north", "south"] and federation.quorum == 2
    assert federation.data.names == ["a", "b"]
    assert "not an empty folder" in ran(*words).stderr
    assert "left: south" in ran("federation", "revoke", tmp_path / "made", "north").stdout
    assert list(FederationFolder(tmp_path / "made").nodes) == ["south"]
    assert "found no federation.toml" in ran("federation", "renew", tmp_path).stderr
    assert "--like FILE" in ran("federation", "init", tmp_path / "other").stderr
    assert "found no federation.toml" in ran("federation", "up", tmp_path).stderr
    assert "give either a folder" in ran("federation", "up").stderr


def test_missing_extra_is_named():
    code = (
        "import sys, importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'flwr' else real(n, *a)\n"
        "sys.argv = ['unalike', 'federation', 'up', 'x']\n"
        "from unalike.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (
        done.returncode == 2
        and "pip install 'unalike[flower]'" in done.stderr
        and "Traceback" not in done.stderr
    )


@pytest.mark.slow
def test_thirty_rounds_survive_kills_a_departed_site_a_late_site_and_a_rollback(tmp_path):
    """Issue 51: kill -9 of a site and of the coordinator, a site that leaves, one that comes late, and a rollback, in one run."""
    names = ("north", "south", "west", "east")
    real = Real(tmp_path, "scaffold", 30, names, quorum=2, grace=3.0)
    folder, up_log = real.folder.path, tmp_path / "up.log"

    within_minutes = partial(awaited, seconds=600)

    def told(what="status"):
        return command(real.folder.socket, what)

    def events():
        file = real.folder.run / "events.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def seen(name):
        [found] = [(s["connected"], s["in_run"]) for s in told()["sites"] if s["name"] == name]
        return found

    try:
        for name in names[:3]:
            real.site(name)
        real.up()
        within_minutes(lambda: real.done() >= 3)
        told("pause")
        real.site("east")
        within_minutes(lambda: seen("east") == (True, False))
        told("resume")
        within_minutes(lambda: seen("east") == (True, True))

        within_minutes(lambda: real.done() >= 11)
        real.kill("north")
        real.site("north")
        before = real.done()
        within_minutes(lambda: real.done() >= before + 2)
        real.kill("up")
        within_minutes(lambda: not processes_of(folder / "superlink.secret"))
        real.up()
        within_minutes(lambda: real.done() >= before + 4)

        told("pause")
        real.processes.pop("west").send_signal(signal.SIGTERM)
        within_minutes(lambda: seen("west") == (False, True))
        told("resume")
        within_minutes(
            lambda: any(e["event"] == "absent" and e["client"] == "west" for e in events())
        )
        within_minutes(lambda: real.done() >= 22)

        assert told("stop") and real.processes["up"].wait(120) == 0
        assert "round 10; then" in ran("federation", "rollback", folder, "--to", 10).stdout
        told_before = len(up_log.read_text())
        up = real.up()
        assert up.wait(900) == 0, up_log.read_text()[-3000:]
    finally:
        real.close()
    rounds = pd.read_parquet(real.folder.run / "rounds.parquet")
    assert rounds["round"].tolist() == list(range(31)) and rounds["accuracy"].iloc[-1] > 0.8
    found = events()
    [joined] = [e for e in found if e["event"] == "joined"]
    assert joined["client"] == "east" and rounds["participants"].iloc[joined["round"]] >= 3
    assert [e["to"] for e in found if e["event"] == "rolled back"] == [10]
    made = Counter(e["round"] for e in found if e["event"] == "asked")
    assert all(made[number] >= 2 for number in range(11, 23)), (
        "the rounds of both kills are made again"
    )
    after = up_log.read_text()[told_before:]
    assert not re.search("[23] of 4 sites are connected, waiting for [^;]*west", after)
    assert "not waiting for west" in after
    assert not [e for e in found if e["event"] in ("refused", "diverged model")]
    journal = ran("federation", "audit", tmp_path / "sites" / "north").stdout
    assert journal.count("answered") >= 30
    assert ran("federation", "audit", folder).stdout.count("rolled back") == 1
