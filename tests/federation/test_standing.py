"""A standing federation: several runs one after the other, their comparison, sites that come later, backups, upgrades."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from in_memory_transport import InMemoryTransport
from small_federation import WORK, make_clients
from typer.testing import CliRunner

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike._utils.journal import entries
from unalike._utils.tensor_files import read_tensors
from unalike.cli import app
from unalike.cli.finished_run import model_folder
from unalike.dashboard.state import Followed
from unalike.federation.coordinator.coordinator import run_rounds
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.coordinator.run_queue import add_runs
from unalike.federation.operations.run_coordinator import write_site
from unalike.federation.operations.run_site import wire_lines
from unalike.federation.protocol.bundle import Bundle
from unalike.federation.protocol.federation_file import Federation, Schema
from unalike.federation.site.site_policy import SitePolicy
from unalike.federation.site.site_worker import SiteWorker

CLIENTS = make_clients(((20, 8), (12, 6), (16, 6)))
TERMS = {
    "name": "test",
    "method": "fedavg",
    "model": "linear",
    "rounds": 2,
    "data": Schema((6,), 4),
    "work": WORK,
}
FEW_PER_SITE = {"least_training": 0, "least_test": 0, "least_class": 0, "digits": 0}


def made(root, count=3, **terms):
    names = {client.name: 1000 for client in CLIENTS[:count]}
    usual = {"host": "localhost", "port": 1, "deadline": 5.0, "repeat": 0.05}
    return FederationFolder.create(root / "fed", names, **usual, **TERMS | terms)


def site(folder, root, name, **policy):
    bundle, client = Bundle.read(folder.bundles[name]), next(c for c in CLIENTS if c.name == name)
    rules = SitePolicy(**FEW_PER_SITE | policy)
    return SiteWorker(bundle.federation, name, bundle.key, client, root / name, policy=rules)


def sites(folder, root):
    return {name: site(folder, root, name) for name in folder.bundles}


def model(run):
    return read_tensors(run.path / "model.safetensors")[0]


def simulated(method, seed, clients=CLIENTS):
    return ua.run(
        method, clients, model="linear", rounds=2, work=WORK, seed=seed, executor="loop"
    ).params


@pytest.mark.slow
def test_queued_methods_and_seeds_run_one_after_the_other_and_are_compared(tmp_path):
    """Sites stay: one bundle, several agreed methods and seeds, each run equal to its simulation, and one comparison."""
    folder, lines = made(tmp_path, also=("scaffold",), seeds=2), []
    workers = sites(folder, tmp_path)
    added = add_runs(folder.path, folder.federation, ["fedavg", "scaffold"], 2)
    assert [name[:14] for name in added] == [
        "fedavg-seed1-" + added[0][13],
        "scaffold-seed0",
        "scaffold-seed1",
    ]
    assert not add_runs(folder.path, folder.federation, ["scaffold"], 1)  # it is there

    def stop():
        if any(line.startswith("round 1 of 2") for line in lines) and len(
            list(folder.path.glob("runs/*/rounds.parquet"))
        ):
            raise UnalikeError("a power cut")

    with pytest.raises(UnalikeError, match="power cut"):
        run_rounds(folder, InMemoryTransport(workers), lines.append, check=stop)
    assert [run.is_over for run in folder.queue] == [True, False, False, False]
    assert not any(worker.done.is_set() for worker in workers.values())

    transport = InMemoryTransport(workers)
    assert run_rounds(FederationFolder(folder.path), transport, lines.append) is not None
    transport.close()
    assert not [
        line for line in lines if "refused" in line
    ]  # such as answers to the notice at the end of a run
    assert not folder.waiting and all(worker.done.is_set() for worker in workers.values())
    for run, (method, seed) in zip(
        folder.queue, [("fedavg", 0), ("fedavg", 1), ("scaffold", 0), ("scaffold", 1)]
    ):
        assert (run.federation.method, run.federation.seed) == (method, seed) and run.page.exists()
        wanted = simulated(method, seed)
        assert all(torch.equal(t, wanted[name]) for name, t in model(run).items()), run.path
    page = (folder.path / "comparison.html").read_text()
    assert "fedavg" in page and "scaffold" in page and "2 seeds" in page
    assert (
        Followed(folder.path).run({}) == folder.queue[-1].path
    )  # the dashboard follows the newest run
    begun = [entry for entry in entries(folder.path / "audit.jsonl") if entry["event"] == "run"]
    assert [(e["method"], e["seed"]) for e in begun].count(("scaffold", 1)) == 1


def test_the_budget_that_ended_a_run_its_epsilon_and_masked_sums_stand_in_its_report(tmp_path):
    pytest.importorskip("dp_accounting")
    terms = {
        "method": "client_dp(noise_multiplier=9, where='site')",
        "secure_aggregation": True,
        "threshold": 2,
    }
    folder, lines = made(tmp_path, budget="1 rounds", **terms), []
    run_rounds(folder, InMemoryTransport(sites(folder, tmp_path)), lines.append)
    assert lines[-2] == "ended by: budget of 1 rounds spent"
    page = (folder.path / "report.html").read_text()
    assert (
        ">budget of 1 rounds spent<" in page
        and ">masked summand<" in page
        and ">update<" not in page
    )
    assert re.search(
        r"The training of .* has epsilon [\d.]+ at delta 1e-05 for each client\.", page
    )


def test_runs_that_were_not_agreed_on_are_refused(tmp_path):
    folder = made(tmp_path, also=("scaffold",))
    with pytest.raises(
        UnalikeError, match=r"found budget='3 epsilon', and scaffold has no epsilon"
    ):
        made(
            tmp_path / "private",
            method="client_dp(noise_multiplier=9)",
            also=("scaffold",),
            budget="3 epsilon",
        )
    with pytest.raises(
        UnalikeError,
        match=r"not agreed to 'fedprox', but to fedavg, scaffold; .*init --also fedprox",
    ):
        add_runs(folder.path, folder.federation, ["fedprox"], 1)
    with pytest.raises(UnalikeError, match="2 seeds; the sites agreed to 1"):
        add_runs(folder.path, folder.federation, ["fedavg"], 2)
    with pytest.raises(UnalikeError, match=r"unknown .*'nonsense'"):
        made(tmp_path / "more", also=("nonsense",))
    workers, said = sites(folder, tmp_path), []
    file = folder.path / "federation.toml"
    file.write_text(
        file.read_text().replace("scaffold", "fedprox")
    )  # the coordinator alone changes its mind
    add_runs(folder.path, folder.federation, ["fedprox"], 1)
    for worker in workers.values():
        worker.log = said.append

    def tell(line):
        if "valid answers" in line:
            raise UnalikeError("no quorum")

    with pytest.raises(UnalikeError, match="no quorum"):
        run_rounds(folder, InMemoryTransport(workers), tell)
    assert (
        sum("the coordinator runs other terms than this site agreed to" in line for line in said)
        == 3
    )


def test_join_shows_what_leaves_for_each_agreed_method(tmp_path):
    folder = made(tmp_path, also=("scaffold",))
    write_site(tmp_path / "mine.npz", CLIENTS[0], None)
    shown = wire_lines(folder.federation, str(tmp_path / "mine.npz"), None, "site0")
    assert [line for line in shown if "2 rounds" in line] == [
        "test: fedavg, 2 rounds",
        "test: scaffold, 2 rounds",
    ]
    assert any(line.startswith("leaves ") and "control_variates" in line for line in shown)


def test_site_rules_exclude_an_agreed_method(tmp_path):
    folder, lines = made(tmp_path, also=("scaffold",), quorum=2), []
    workers = sites(folder, tmp_path)
    workers["site0"] = site(folder, tmp_path, "site0", methods=("fedavg",))
    add_runs(folder.path, folder.federation, ["scaffold"], 1)
    run_rounds(folder, InMemoryTransport(workers), lines.append)
    assert any(
        "site0 was refused: unable: its own rules (site.toml) do not allow it" in line
        for line in lines
    )
    assert set(json.loads((folder.queue[1].path / "roster.json").read_text())["sites"]) == {
        "site1",
        "site2",
    }
    assert set(json.loads((folder.queue[0].path / "roster.json").read_text())["sites"]) == {
        "site0",
        "site1",
        "site2",
    }
    done = CliRunner().invoke(app, ["report", str(folder.path), "--format", "csv"])
    assert "fedavg" in done.output and "scaffold" in done.output  # of both runs
    with pytest.raises(
        UnalikeError,
        match=r"holds 2 finished runs; name the folder of one:\n  \S+/run\n  \S+/runs/scaffold",
    ):
        model_folder(folder.path)


def test_new_site_joins_an_open_federation_while_the_others_keep_their_bundles(tmp_path):
    folder = made(tmp_path, 2, open=True)
    workers = sites(folder, tmp_path)
    terms = folder.federation.terms
    run_rounds(folder, InMemoryTransport(workers), lambda line: None)
    folder.enrol_anew("site2", samples=100)
    assert folder.federation.terms == terms
    assert add_runs(folder.path, folder.federation, [], 1, again=True)
    with pytest.raises(UnalikeError, match="two sites have one name"):
        folder.enrol_anew("site2", samples=100)
    workers["site2"] = site(folder, tmp_path, "site2")
    run_rounds(folder, InMemoryTransport(workers), lambda line: None)
    wanted = simulated("fedavg", 0)
    assert all(torch.equal(t, wanted[name]) for name, t in model(folder.queue[1]).items())
    assert not all(torch.equal(t, wanted[name]) for name, t in model(folder.queue[0]).items())
    again = f"federation run {folder.path} --method fedavg --seeds 1 --again &amp;&amp; unalike federation up {folder.path}"
    assert again in folder.queue[0].page.read_text()
    page = (folder.path / "comparison.html").read_text()
    assert (
        "your clients [A: fedavg, seed 0]" in page
        and "your clients [B: fedavg, seed 0, run 2]" in page
    )

    closed = made(tmp_path / "closed", 2)
    with pytest.raises(UnalikeError, match="the sites agreed to who takes part"):
        closed.enrol_anew("site2", samples=100)


def test_run_that_was_rolled_back_goes_on_without_a_site_that_was_enrolled_later(tmp_path):
    folder = made(tmp_path, 2, open=True, keep_every=1)
    workers = sites(folder, tmp_path)
    run_rounds(folder, InMemoryTransport(workers), lambda line: None)
    wanted = model(folder.queue[0])
    folder.enrol_anew("site2", samples=100)
    folder.roll_back(1)
    run_rounds(folder, InMemoryTransport(workers), lambda line: None)  # it need not be connected,
    folder.roll_back(1)
    workers["site2"] = site(folder, tmp_path, "site2")
    run_rounds(folder, InMemoryTransport(workers), lambda line: None)  # and may be
    assert not folder.waiting and all(
        torch.equal(t, wanted[name]) for name, t in model(folder.queue[0]).items()
    )


def test_new_site_waits_for_the_end_of_a_run(tmp_path):
    folder = made(tmp_path, 2, open=True)

    def stop():
        if (folder.run / "config.toml").exists():
            raise UnalikeError("a power cut")

    with pytest.raises(UnalikeError, match="power cut"):
        run_rounds(
            folder, InMemoryTransport(sites(folder, tmp_path)), lambda line: None, check=stop
        )
    with pytest.raises(UnalikeError, match=r"is under way, and its sites are fixed"):
        folder.enrol_anew("site2", samples=100)


def test_backup_is_restored_on_another_machine(tmp_path):
    """The folder without `run/arrived`, `logs` and the socket, copied between two rounds, goes on to the same model."""
    folder, copy = made(tmp_path, rounds=4, keep_every=1), tmp_path / "restored"
    workers, lines = sites(folder, tmp_path), []

    def stop():
        if any(line.startswith("round 2 of 4") for line in lines):
            raise UnalikeError("the machine is lost")

    with pytest.raises(UnalikeError, match="is lost"):
        run_rounds(folder, InMemoryTransport(workers), lines.append, check=stop)
    shutil.copytree(folder.path, copy, ignore=shutil.ignore_patterns("arrived", "logs", "control"))
    run_rounds(folder, InMemoryTransport(workers), lines.append)  # the original goes on to the end
    restored = FederationFolder(copy)
    assert not restored.queue[0].is_over
    restored.roll_back(
        2
    )  # the sites are at the end: they answer no request of a round that is over
    run_rounds(restored, InMemoryTransport(workers), lines.append)
    found, wanted = model(restored.queue[0]), model(folder.queue[0])
    assert all(torch.equal(found[name], t) for name, t in wanted.items())
    assert [e["event"] for e in entries(copy / "audit.jsonl")].count("rolled back") == 1


STORED_FILE = """
name = "stored"
method = "fedavg"
model = "linear"
rounds = 2
coordinator = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
protocol = ["clients"]
metric = []
participation = 1.0
quorum = 1.0

[data]
shape = [4]
classes = 3
task = "classification"
tokens = false

[[sites]]
name = "north"
key = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
samples = 10
revoked = false
"""


def test_digest_of_the_terms_of_a_federation_file_stays(tmp_path):
    """An upgrade in place: bundles that were handed out before go on, since the digest of the terms is the same."""
    (tmp_path / "federation.toml").write_text(STORED_FILE)
    federation = Federation.load(tmp_path / "federation.toml")
    assert federation.terms == "0376319f8b7b96e4785cfe21343e7738dad59fdaf1f0421c712e2159316f1fd2"
    assert (federation.also, federation.seeds, federation.open) == ((), 1, False)
    for change in ({"also": ("scaffold",)}, {"seeds": 2}, {"open": True}):
        assert replace(federation, **change).terms != federation.terms
