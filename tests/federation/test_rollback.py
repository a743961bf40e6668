"""Going back to an earlier round, and the weights of sites at admission."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from small_federation import SmallFederation, make_clients, states

from unalike._utils.errors import UnalikeError
from unalike.cli.finished_run import load_model
from unalike.comparison.open_comparison import open_comparison
from unalike.core.privacy import ReleaseSampling, epsilon_of
from unalike.dashboard.state import Followed
from unalike.federation.coordinator.federation_folder import roll_back
from unalike.federation.protocol import roster
from unalike.metrics.columns import TIMES
from unalike.runtime.records.run_directory import RunDirectory

SAMPLE_SIZES = ((20, 8), (12, 6), (16, 6))


def test_rollback_goes_on_from_a_kept_round_to_the_same_model(tmp_path, monkeypatch):
    fed = SmallFederation(tmp_path, make_clients(SAMPLE_SIZES), rounds=6, keep_every=2)
    before = fed.run()
    table = before.history.rounds.drop(columns=[*TIMES])
    # the coordinator's clock has gone back meanwhile
    monkeypatch.setattr(roster, "time", SimpleNamespace(time_ns=lambda: 0))
    roll_back(fed.out, 2)
    assert [f.stem for f in sorted((fed.out / "kept").iterdir())] == ["round-000002"]
    assert RunDirectory(fed.out).round == Followed(fed.out).state()["done"] == 2
    assert open_comparison(fed.out).facts.unfinished == "2 of 6 rounds"
    with pytest.raises(UnalikeError, match="is unfinished, 2 of 6 rounds are done"):
        load_model(fed.out)
    after = fed.run()
    assert after.history.rounds["round"].tolist() == list(range(7)) and not fed.events(
        "refused", "absent"
    )
    assert after.history.rounds.drop(columns=[*TIMES]).equals(table)
    assert after.history.timeline["round"].tolist() == sorted(3 * [1, 2, 3, 4, 5, 6])
    for group, tensors in states(before).items():
        for name, t in tensors.items():
            assert torch.equal(states(after)[group][name], t), name
    assert len({e["run"] for e in fed.events("rolled back")}) == 1


def test_rollback_begins_client_states_anew(tmp_path):
    fed = SmallFederation(
        tmp_path, make_clients(SAMPLE_SIZES), "scaffold + ditto", rounds=5, keep_every=2
    )
    fed.run()
    roll_back(fed.out, 4)
    fed.restart_sites()
    run = fed.run()
    assert run.history.rounds["participants"].tolist() == [0, 3, 3, 3, 3, 3] and not fed.events(
        "refused", "absent"
    )


def test_rollback_over_more_rounds_than_sites_keep_replies_of(tmp_path):
    """What a backup older than three rounds needs, too: sites answer, because the run has a new name."""
    fed = SmallFederation(
        tmp_path, make_clients(SAMPLE_SIZES), rounds=6, keep_every=1, guard=0, quorum=2
    )
    fed.run()
    copy = SmallFederation(tmp_path, make_clients(SAMPLE_SIZES), rounds=6, guard=0, quorum=2)
    roll_back(copy.out, 1)
    assert copy.run().history.rounds["participants"].tolist() == [0, 3, 3, 3, 3, 3, 3]


def test_rollback_names_the_rounds_that_are_kept(tmp_path):
    fed = SmallFederation(tmp_path, make_clients(SAMPLE_SIZES), rounds=3, keep_every=2)
    fed.run()
    with pytest.raises(UnalikeError, match=r"no checkpoint of round 3 is kept.*expected one of 2$"):
        roll_back(fed.out, 3)


def test_site_with_most_of_the_weight_is_named_and_refused_above_the_largest_share(tmp_path):
    sizes, told = ((40, 8), (12, 6)), []
    fed = SmallFederation(tmp_path / "told", make_clients(sizes))
    fed.coordinator(tell=told.append).run()
    assert "round 0: site0 has 77 % of all training samples, and as much of the weight" in told
    fed = SmallFederation(tmp_path / "refused", make_clients(sizes), max_weight=0.6)
    with pytest.raises(
        UnalikeError,
        match="site0 has 40 of 52 training samples, 77% of the weight; expected at most 60%",
    ):
        fed.run()


def test_site_gains_no_majority_by_its_word_alone(tmp_path):
    """B9: a claim of most samples needs a number that a person has written down."""
    from unalike.core.options import MAX_SAMPLES

    sizes = ((40, 8), (12, 6), (14, 6))
    fed = SmallFederation(tmp_path, make_clients(sizes))
    known = fed.federation
    sites = tuple(replace(site, samples=MAX_SAMPLES) for site in known.sites)
    fed.federation = replace(known, sites=sites)
    with pytest.raises(
        UnalikeError, match=r"site0 claims 40 of 66 training samples.*samples in fed"
    ):
        fed.run()
    fed.federation = known
    assert fed.run().history.rounds["participants"].tolist() == [0, 3, 3]


@pytest.mark.parametrize(("split", "word"), [("test", "test"), ("val", "validation")])
def test_site_gains_no_majority_of_scores_by_its_word_alone(split, word, tmp_path):
    """A claim of millions of validation samples chose the best round alone, and its counts were all of the accuracy."""
    from unalike.core.options import MAX_SAMPLES

    clients = make_clients(SAMPLE_SIZES)

    def claims(count):
        def claim(head, facts, tensors):
            return (head, facts | {split: count}, tensors) if "train" in facts else None

        return claim

    fed = SmallFederation(tmp_path / "known", clients, quorum=2)
    fed.corrupt("site2", claims(10**9))
    assert fed.run().history.rounds["participants"].tolist() == [0, 2, 2]
    assert f"1000000000 {word} samples; enrolled for" in fed.events("refused")[0]["why"]

    sites = tuple(replace(site, samples=MAX_SAMPLES) for site in fed.federation.sites)
    unknown = SmallFederation(tmp_path / "unknown", clients, sites=sites)
    unknown.corrupt("site2", claims(MAX_SAMPLES))
    with pytest.raises(UnalikeError, match=rf"site2 claims 1000000 of \d+ {word} samples"):
        unknown.run()

    # a number that a person wrote down covers no more than that; of validation samples more are refused one by one
    if split == "val":
        return
    sites = tuple(replace(site, samples=1000) for site in fed.federation.sites)
    above = SmallFederation(tmp_path / "above", clients, sites=sites)
    above.corrupt("site2", claims(10**6))
    with pytest.raises(UnalikeError, match=rf"1000000 of \d+ {word} samples.*enrolled for 1000"):
        above.run()


def test_sample_caps_of_sites_are_given_by_name_or_follow_from_summaries(tmp_path):
    from unalike.cli.federation.control import MAX_SAMPLES, _row
    from unalike.cli.federation.init import sample_caps
    from unalike.data.sources.table_summary import TableSummary, TargetNames

    assert sample_caps("2", None, []) == {"site-1": MAX_SAMPLES, "site-2": MAX_SAMPLES}
    unbounded = {
        "revoked": False,
        "in_run": None,
        "last_answer": None,
        "late": 0,
        "samples": MAX_SAMPLES,
    }
    assert _row({"name": "site-1", "connected": True} | unbounded)[-1] == "not set"
    assert sample_caps("north:120, south", 50, []) == {"north": 120, "south": 50}
    for text in ("north:many", "north:0"):
        with pytest.raises(UnalikeError, match=f"--sites {text}: .*north:120,south:95"):
            sample_caps(text, None, [])
    files = [tmp_path / "north.json", tmp_path / "south.json"]
    for file, rows in zip(files, (101, 1000)):
        TableSummary(rows, 5, (), TargetNames("y", "binary", ())).save(file)
    assert sample_caps("north,south", None, files) == {"north": 140, "south": 1375}
    with pytest.raises(
        UnalikeError,
        match="found summaries of north; expected one of every site, also of south, west;",
    ):
        sample_caps("north,south,west", None, files[:1])


def test_audit_log_holds_commands_starts_refusals_and_keys(tmp_path, monkeypatch):
    from threading import Thread

    from in_memory_transport import InMemoryTransport
    from small_federation import MODEL, WORK, TamperingSite
    from typer.testing import CliRunner

    from unalike._utils.journal import entries
    from unalike.cli.federation import app
    from unalike.federation.coordinator.coordinator import run_rounds
    from unalike.federation.coordinator.federation_folder import FederationFolder
    from unalike.federation.coordinator.operator_commands import command
    from unalike.federation.protocol.bundle import Bundle
    from unalike.federation.protocol.federation_file import Schema
    from unalike.federation.site.site_worker import SiteWorker

    clients = make_clients(SAMPLE_SIZES)
    terms = {
        "model": MODEL,
        "work": WORK,
        "method": "fedavg",
        "rounds": 2,
        "name": "audited",
        "deadline": 5.0,
    }
    schema = Schema(shape=(6,), classes=4)
    sites = {client.name: 100 for client in clients}
    folder = FederationFolder.create(
        tmp_path / "fed", sites, host="localhost", port=1, data=schema, **terms
    )
    workers = {}
    for client in clients:
        bundle = Bundle.read(folder.bundles[client.name])
        workers[client.name] = SiteWorker(
            folder.federation, client.name, bundle.key, client, tmp_path / client.name
        )
    workers["site2"] = TamperingSite(
        workers["site2"],
        lambda head, facts, tensors: (head, facts, {}) if "size" in tensors else None,
    )
    thread = Thread(
        target=run_rounds,
        args=(folder, InMemoryTransport(workers), lambda line: None),
        kwargs={"wait": True},
    )
    thread.start()
    while not folder.socket.exists():
        assert thread.is_alive()
    command(folder.socket, "status")
    command(folder.socket, "run")
    thread.join(60)
    folder.revoke("site2")
    found = list(entries(folder.path / "audit.jsonl"))
    events = [entry["event"] for entry in found]
    assert events[:3] == ["made", "started", "command"] and events[-2:] == ["finished", "revoked"]
    assert events.count("admitted") == 3 and events.count("refused") == 2
    assert found[2]["command"] == "run" and found[1]["versions"]["protocol"]
    assert all(entry["user"] for entry in found)
    # A1: what a site sends neither forges a line nor a value, nor acts on the terminal
    folder.audit("refused", client="site2", why="\x1b[2J x\n2026-11-29 07:00:00 revoked client=x")
    shown = CliRunner().invoke(app, ["audit", str(folder.path)])
    assert "\x1b" not in shown.output and "\n2026-11-29 07:00:00" not in shown.output
    assert 'why=" [2J x 2026-11-29 07:00:00 revoked client=x"' in shown.output
    shown = CliRunner().invoke(app, ["audit", str(folder.path)])
    assert (
        shown.exit_code == 0 and "revoked user=" in shown.output and "client=site2" in shown.output
    )
    shown = CliRunner().invoke(app, ["audit", str(tmp_path / "site0")])
    assert shown.exit_code != 0
    (tmp_path / "site0").rename(tmp_path / "state")
    shown = CliRunner().invoke(app, ["audit", str(tmp_path)])
    assert shown.exit_code == 0 and "answered" in shown.output and "kind=admit" in shown.output


def test_rounds_that_were_rolled_back_stay_accounted(tmp_path):
    """Their updates have left the sites, whatever becomes of the model."""
    pytest.importorskip("dp_accounting")
    method = "client_dp(noise_multiplier=2, where='site')"
    fed = SmallFederation(tmp_path, make_clients(SAMPLE_SIZES), method, rounds=4, keep_every=1)

    def spent(*releases):
        return [epsilon_of(2.0, ReleaseSampling(3, 3), count, 1e-5) for count in releases]

    def interrupt(row, what=""):
        if row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fed.coordinator().run(progress=interrupt)
    roll_back(fed.out, 2)
    run = fed.run()
    assert any("epsilon is about training" in note for note in run.notes)
    assert run.history.rounds["epsilon"].tolist() == spent(
        0, 1, 2 + 1, 3 + 1, 4 + 1
    )  # row 2 is made again
    assert RunDirectory(fed.out).finished
    roll_back(fed.out, 1)
    assert not RunDirectory(
        fed.out
    ).finished  # `up` goes on, also where a report was written in between
    assert fed.run().history.rounds["epsilon"].tolist() == spent(
        0, *(r + 1 + 3 for r in (1, 2, 3, 4))
    )
    assert fed.run().history.rounds["epsilon"].tolist() == spent(
        0, 5, 6, 7, 8
    )  # read from the folder


def test_a_private_round_that_the_budget_forbids_is_not_trained(tmp_path):
    pytest.importorskip("dp_accounting")
    method, limit = (
        "client_dp(noise_multiplier=2, where='site')",
        epsilon_of(2.0, ReleaseSampling(3, 3), 4, 1e-5),
    )
    fed = SmallFederation(
        tmp_path, make_clients(SAMPLE_SIZES), method, rounds=9, budget=f"{limit:.3f} epsilon"
    )
    history = fed.run().history
    trained = [event["round"] for event in fed.events("asked") if event["train"]]
    assert 1 < history.last["round"] < 9 and history.last["epsilon"] <= limit
    assert trained == [*range(1, history.last["round"] + 1)]
