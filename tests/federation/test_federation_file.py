"""The federation file: save and load, and detection of mistakes."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import replace
from threading import Event, Thread, Timer
from types import SimpleNamespace

import numpy as np
import pytest
from in_memory_transport import InMemoryTransport
from small_federation import SmallFederation, federation_of, key_of, make_clients
from typer.testing import CliRunner

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike._utils.system.locks import locked
from unalike._utils.system.ports import check_port
from unalike.cli import app
from unalike.dashboard.state import Followed
from unalike.federation.coordinator import run_control as control
from unalike.federation.coordinator.coordinator import run_rounds
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.coordinator.operator_commands import listening
from unalike.federation.coordinator.run_control import OperatorCommands, Stopped
from unalike.federation.coordinator.run_queue import QueuedRun, add_runs
from unalike.federation.operations.run_coordinator import PORT_TAKEN, write_site
from unalike.federation.protocol.bundle import Bundle
from unalike.federation.protocol.federation_file import EnrolledSite, Federation, Schema
from unalike.federation.protocol.roster import Roster, SampleCounts
from unalike.federation.security.keys import public_text
from unalike.runtime.records.run_directory import RunDirectory


def test_federation_file_load_returns_saved_federation(tmp_path):
    for more in (
        {},
        {
            "guard": 3.0,
            "participation": 2,
            "quorum": 0.5,
            "work": ua.Work(batch_size=None, steps=3),
        },
    ):
        made = federation_of(make_clients(), **more)
        made.save(tmp_path / "federation.toml")
        assert Federation.load(tmp_path / "federation.toml") == made
    assert Federation.load(tmp_path / "federation.toml").terms == made.terms


def test_participation_and_quorum_accept_shares_and_numbers():
    made = federation_of(make_clients(), participation=0.5, quorum=2)
    assert [made.cohort_size(n) for n in (1, 2, 3, 5, 10)] == [
        1,
        1,
        2,
        3,
        5,
    ]  # as a simulation rounds
    assert [made.answers_needed(n) for n in (1, 2, 5)] == [1, 2, 2]
    made = replace(made, participation=3, quorum=0.6)
    assert [made.cohort_size(n) for n in (1, 3, 10)] == [1, 3, 3]
    assert [made.answers_needed(n) for n in (1, 3, 5)] == [1, 2, 3]


def test_run_config_records_participation_as_share(tmp_path):
    crowd = make_clients(((20, 8), (12, 6), (6, 3), (0, 6), (8, 4)))
    assert (
        SmallFederation(tmp_path / "two", crowd, participation=2, rounds=1)
        .run()
        .config["participation"]
        == 0.5
    )
    assert (
        SmallFederation(tmp_path / "half", crowd, participation=0.5, rounds=1)
        .run()
        .config["participation"]
        == 0.5
    )
    with pytest.raises(UnalikeError, match=r"participation is 0\.5 there and 0\.75 here"):
        SmallFederation(tmp_path / "two", crowd, participation=3, rounds=1).run()


def test_terms_change_only_with_agreed_fields():
    made = federation_of(make_clients())
    for change in (
        {"method": "scaffold"},
        {"seed": 1},
        {"work": ua.Work(lr=1.0)},
        {"protocol": ("local",)},
    ):
        assert replace(made, **change).terms != made.terms
    revoked = tuple(replace(s, revoked=True) for s in made.sites)
    for change in ({"rounds": 9}, {"quorum": 1}, {"deadline": 1.0}, {"sites": revoked}):
        assert replace(made, **change).terms == made.terms


def test_federation_file_mistakes_are_refused(tmp_path):
    made = federation_of(make_clients())
    twice = (
        EnrolledSite("a", public_text(key_of(1)), 5),
        EnrolledSite("b", public_text(key_of(1)), 5),
    )
    for change, word in (
        ({"sites": twice}, "two sites have one key"),
        (
            {"sites": (twice[0], replace(twice[0], key=public_text(key_of(2))))},
            "two sites have one name",
        ),
        ({"coordinator": made.sites[0].key}, "a site has the coordinator's key"),
        ({"coordinator": "abc"}, "64 hexadecimal digits"),
        ({"participation": 0.0}, "participation"),
        ({"quorum": True}, "quorum"),
        ({"quorum": 9}, "a quorum of 9 cannot be met by"),
        ({"max_weight": 0.1}, "less than the mean share"),
        ({"sites": ()}, "sites"),
    ):
        with pytest.raises(UnalikeError, match=word):
            replace(made, **change)
    with pytest.raises(UnalikeError, match="cannot read"):
        Federation.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(UnalikeError, match="expected a federation file"):
        Federation.load(tmp_path / "bad.toml")


def made_by_command(folder, *flags):
    shape = [
        "--shape",
        "6",
        *([] if "--task" in flags else ["--classes", "3"]),
        "--model",
        "linear",
    ]
    return CliRunner().invoke(app, ["federation", "init", str(folder), *shape, *map(str, flags)])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--method", "nope"], "unknown method or part 'nope'"),
        (["--model", "nope"], "unknown model 'nope'"),
        (["--transform", "foo"], "foo"),
        (["--protocol", "foo"], "unknown protocol 'foo'"),
        (["--protocol", "server"], "protocol 'server' needs a held-out test set"),
        (["--method", "centralised"], "pools the clients' data, which stay where they are"),
        (["--method", "fedlaw"], "learned_mean: found no samples on the server to learn from"),
        (["--select", "best"], "--val 0.1"),
        (
            ["--method", "ditto", "--select", "best", "--val", 0.2],
            "models of their own, which they keep of the last",
        ),
        (["--task", "binary", "--classes", 2], "classes mean nothing for the task binary"),
        (["--like", "digits"], "leave out --shape, --classes and --tokens"),
        (["--classes", "a,a"], "two classes have one name"),
        (["--sites", "a, b,a"], "no site, or two of one name"),
        (["--sites", "0"], "--sites 0: no site"),
        (["--participation", "0"], "--participation 0: expected a share of sites above 0"),
        (["--participation", "inf"], "--participation inf: expected a share of sites above 0 and"),
        (["--participation", "nan"], "--participation nan: expected"),
        (
            ["--participation", 7],
            "found --participation 7 and 3 sites; expected at most 3, or a share",
        ),
        (["--quorum", "inf"], "--quorum inf: expected"),
        (["--quorum", 1.7], "--quorum 1.7: expected"),
        (["--host", ""], "host="),
        (["--host", "https://fed.example.org:8443/"], "without scheme, port, path"),
        (["--host", "256.1.1.1"], "'256.1.1.1' is no host"),
        (["--host", "fed.example.org:8443"], "is no host; expected a name such as fed.example.org"),
        (
            ["--host", "fed.example.org", "--host", "*.example.org"],
            "'*.example.org' is no host",
        ),
        (["--port", 99999], "port=99999"),
        *(
            (["--method", method], "nothing of the model moves")
            for method in ("fedbabu", "fedrep", "fedpac", "clustered(method='fedrep')")
        ),
        (["--message-bytes", 10], "the model has 84 bytes and a message may have 10"),
        *(
            (
                ["--task", task, "--method", method],
                "needs classes (integer labels); found a task of " + task,
            )
            for method, tasks in {
                "fedgen fedgh fedpac feature_alignment fedlc fedproto creff balanced_softmax fedconcat ccvr": (
                    "binary",
                    "regression",
                ),
                "fedntd feddisco": ("regression",),
            }.items()
            for method in method.split()
            for task in tasks
        ),
    ],
)
def test_init_terms_that_cannot_run_are_refused_before_keys_are_made(flags, message, tmp_path):
    done = made_by_command(tmp_path / "fed", *flags)
    assert isinstance(done.exception, UnalikeError) and message in str(done.exception)
    assert not (tmp_path / "fed").exists()


def test_init_terms_that_can_run_are_accepted(tmp_path):
    for k, flags in enumerate(
        (
            ["--method", "ditto", "--quorum", 2.0, "--participation", 0.5],
            ["--select", "best", "--val", 0.2],
            ["--method", "ifca(clusters=2)", "--sites", "north, south"],
            ["--method", "local_only", "--message-bytes", 10],  # nothing of the model is sent
        )
    ):
        done = made_by_command(tmp_path / f"fed{k}", *flags)
        assert done.exit_code == 0, done.exception
    warned = "note: --val 0.2 leaves fewer than 20 validation samples at north: there they train"
    assert (
        warned
        in made_by_command(tmp_path / "few", "--val", 0.2, "--sites", "north:70, south:90").output
    )
    assert [site.name for site in FederationFolder(tmp_path / "fed2").federation.sites] == [
        "north",
        "south",
    ]
    assert (
        FederationFolder(tmp_path / "fed0").federation.quorum,
        FederationFolder(tmp_path / "fed0").federation.participation,
    ) == (2, 0.5)


def test_init_message_limit_is_that_of_method_and_model(tmp_path):
    """B1: four times what is sent in a round, and 1 MiB; the file says it, so that sites know it, too."""
    limits = {}
    for k, flags in enumerate(([], ["--method", "ifca(clusters=3)"], ["--message-bytes", 10_000])):
        assert made_by_command(tmp_path / f"fed{k}", *flags).exit_code == 0
        folder = FederationFolder(tmp_path / f"fed{k}")
        limits[k] = folder.federation.message_bytes
        assert (
            Bundle.read(next(iter(folder.bundles.values()))).federation.message_bytes == limits[k]
        )
    assert limits[0] - (1 << 20) == 4 * (84 + 16)  # the update, and the counts and loss
    assert limits[1] - (1 << 20) == 4 * 3 * 84 and limits[2] == 10_000  # three models go to a site


def test_schema_classification_without_classes_is_refused():
    with pytest.raises(UnalikeError, match="expected classes for the task classification"):
        Schema(shape=(6,))
    assert Schema(shape=(6,), task="regression").names is None


def test_network_file_mistakes_are_refused(tmp_path):
    terms = {
        "name": "test",
        "method": "fedavg",
        "model": "linear",
        "rounds": 1,
        "data": Schema((6,), 3),
    }
    made = FederationFolder.create(
        tmp_path / "fed", {"a": 5}, host="::1", port=18534, listen="127.0.0.1", **terms
    )
    assert (made.network.address, made.network.listen) == ("[::1]:18534", "127.0.0.1")
    good = {"host": "h", "port": 18534, "listen": "0.0.0.0"}
    for found in (
        {"port": "18534"},
        {"port": 0},
        {"port": 65536},
        {"host": ""},
        {"listen": ""},
        {"prot": 1},
    ):
        (made.path / "network.json").write_text(json.dumps(good | found))
        mistake = rf"({next(iter(found))}=|Network takes no keyword '{next(iter(found))}').*"
        with pytest.raises(UnalikeError, match=rf"network.json: {mistake}; expected \{{\"host\""):
            _ = made.network
    for text in ("{", "[1]"):
        (made.path / "network.json").write_text(text)
        with pytest.raises(UnalikeError, match=r"cannot read .*network.json"):
            _ = made.network
    (made.path / "network.json").write_text('{"host": "h", "port": 1}')
    assert made.network.listen == "0.0.0.0"


def up_locally(folder, *flags):
    usual = ["--data", "digits", "--model", "linear", "--partition", "iid"]
    words = ["federation", "up", "--local", "2", "--out", str(folder), *usual, *map(str, flags)]
    return CliRunner().invoke(app, words)


def test_local_federation_with_other_flags_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "unalike.federation.operations.run_coordinator.coordinate", lambda *a, **more: None
    )
    out = tmp_path / "fed"
    for _ in range(2):
        done = up_locally(out)
        assert done.exit_code == 0, done.exception
    digits = ua.load("digits")
    np.savez(
        tmp_path / "other.npz",
        **{f"train_{k}": v for k, v in zip("xy", (1 - digits.train[0], digits.train[1]))},
        test_x=digits.test[0],
        test_y=digits.test[1],
    )
    for flags in (
        ["--data", "emnist_sample"],
        ["--data", tmp_path / "other.npz"],
        ["--partition", "dirichlet(alpha=1.0)"],
        ["--seed", 1],
        ["--quorum", 0.5],
        ["--deadline", 5],
        ["--participation", 0.5],
        ["--evaluate-every", 2],
        ["--lr", 0.7],
        ["--rounds", 9],
        ["--local", 3],
    ):
        done = up_locally(out, *flags)
        assert "holds another federation; repeat its flags" in str(done.exception), flags


def test_local_federation_names_sites_by_owners_and_says_which_get_none(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "unalike.federation.operations.run_coordinator.coordinate", lambda *a, **more: None
    )
    rng = np.random.default_rng(0)
    lines = [f"{rng.normal()},{i % 2},{'abcd'[i % 4]}" for i in range(80)]
    (tmp_path / "wards.csv").write_text("age,ill,ward\n" + "\n".join(lines))
    words = [
        "--data",
        str(tmp_path / "wards.csv"),
        "--target",
        "ill",
        "--group",
        "ward",
        "--model",
        "linear",
    ]
    for sites, said in ((3, True), (4, False)):
        out = tmp_path / str(sites)
        done = CliRunner().invoke(
            app, ["federation", "up", "--local", str(sites), "--out", str(out), *words]
        )
        assert done.exit_code == 0, done.exception
        assert (
            f"note: {sites} of 4 owners get a site (--local {sites}); left out: " in done.output
        ) == said
        names = [site.name for site in FederationFolder(out).federation.sites]
        assert len(names) == sites and {*names} <= {*"abcd"}


def test_local_federation_missing_sample_files_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "unalike.federation.operations.run_coordinator.coordinate", lambda *a, **more: None
    )
    up_locally(tmp_path / "fed")
    file = tmp_path / "fed" / "sites" / "site-2" / "data.npz"
    before = file.read_bytes()
    file.unlink()
    up_locally(tmp_path / "fed")
    assert file.read_bytes() == before


@pytest.mark.parametrize("again", [None, "unalike federation up --local 2 --out fed"])
def test_stop_logs_command_that_continues(again, tmp_path):
    def stop():
        raise Stopped

    terms = {
        "name": "test",
        "method": "fedavg",
        "model": "linear",
        "rounds": 1,
        "data": Schema((6,), 3),
    }
    made, said = (
        FederationFolder.create(tmp_path / "fed", {"a": 5}, host="localhost", port=1, **terms),
        [],
    )
    assert run_rounds(made, InMemoryTransport({}), said.append, check=stop, again=again) is None
    assert said == [
        f"stopped after round 0; `{again or f'unalike federation up {made.path}'}` goes on"
    ]


def test_stop_waits_until_the_coordinator_has_ended(tmp_path, monkeypatch):
    stopped, over, state = Event(), Event(), {"state": "stopped"}

    def up():
        with (
            locked(tmp_path, "busy"),
            listening(tmp_path / "control", {"stop": stopped.set}, lambda: state),
        ):
            over.wait(60)

    thread = Thread(target=up)
    thread.start()
    while not (tmp_path / "control").exists():
        assert thread.is_alive()
    words = ["federation", "stop", str(tmp_path)]
    monkeypatch.setattr("unalike.cli.federation.control.STOP_SECONDS", 0.2)
    late = CliRunner().invoke(app, words)
    assert stopped.is_set() and "was asked to stop, and has not ended within 0 s" in str(
        late.exception
    )
    monkeypatch.setattr("unalike.cli.federation.control.STOP_SECONDS", 60.0)
    Timer(0.3, over.set).start()
    assert CliRunner().invoke(app, words).output == "stopped\n" and over.is_set()
    thread.join(60)


def test_local_federation_is_continued_by_the_same_command(tmp_path, monkeypatch):
    told = {}
    monkeypatch.setattr(
        "unalike.federation.operations.run_coordinator.coordinate",
        lambda *a, **more: told.update(more),
    )
    words = ["federation", "up", "--local", "2", "--method", "fedprox + fednova", "--out", "fed"]
    monkeypatch.setattr("sys.argv", ["/bin/unalike", *words])
    up_locally(tmp_path / "fed")
    assert told["again"] == "unalike federation up --local 2 --method 'fedprox + fednova' --out fed"


@pytest.mark.parametrize("flags", [[], ["--wait"]])
def test_local_federation_wait_flag_is_passed(flags, tmp_path, monkeypatch):
    told = {}
    monkeypatch.setattr(
        "unalike.federation.operations.run_coordinator.coordinate",
        lambda *a, **more: told.update(more),
    )
    up_locally(tmp_path / "fed", *flags)
    assert told["wait"] == bool(flags)


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_check_port_in_use_names_network_file(family, host):
    with socket.create_server((host, 0), family=family) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UnalikeError, match=rf"at {host}:{port}: Address already in use; .*network\.json"
        ):
            check_port(host, port, PORT_TAKEN)
    check_port(host, port, PORT_TAKEN)


def test_join_folder_that_cannot_be_made_is_refused(tmp_path):
    x, y = make_clients()[0].train
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    (tmp_path / "afile").write_text("")
    data = Schema((6,), 4)
    terms = {"name": "test", "method": "fedavg", "model": "linear", "rounds": 1, "data": data}
    made = FederationFolder.create(tmp_path / "fed", {"a": 50}, host="localhost", port=1, **terms)
    words = [
        "join",
        made.bundles["a"],
        "--data",
        tmp_path / "mine.npz",
        "--folder",
        tmp_path / "afile" / "x",
    ]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert "cannot make the folder" in str(done.exception) and "choose another --folder" in str(
        done.exception
    )
    with pytest.raises(UnalikeError, match=r"cannot write .*afile/data.npz"):
        write_site(tmp_path / "afile" / "data.npz", make_clients()[0], None)


def test_status_without_sites_is_waiting(tmp_path):
    """After a kill and restart the requested round is no longer in progress."""
    terms = {
        "name": "test",
        "method": "fedavg",
        "model": "linear",
        "rounds": 4,
        "data": Schema((6,), 3),
    }
    made = FederationFolder.create(tmp_path / "fed", {"a": 5}, host="localhost", port=1, **terms)
    RunDirectory(made.run).event("asked", round=3, train=["a"], quorum=1, evaluate=[])
    absent = InMemoryTransport({"a": None}, offline={"a"})
    desk = OperatorCommands(made.federation, absent, wait=False)

    def seen():
        state = Followed(made.path).state()
        return state["state"], state["running"] and state["running"]["round"]

    with listening(made.socket, desk.commands, desk.status):
        while not made.socket.exists():
            time.sleep(0.01)
        assert seen() == ("waiting", None)
        desk.control.pause()
        assert seen()[0] == "paused: asked for"
        desk.control.resume()
        absent.offline.clear()
        desk.wait_for_sites(lambda line: None, lambda: None)
        assert seen() == ("running", 3)
        (made.run / "config.toml").touch()
        add_runs(made.path, made.federation, [], 1, again=True)
        desk.enter(made.queue[1])
        absent.offline.add("a")
        assert (
            seen() == ("waiting", None) and not Followed(made.path).state()["log"]
        )  # that of the earlier run


def test_coordinator_log_counts_sites_until_all_are_connected(monkeypatch):
    monkeypatch.setattr(control, "POLL_SECONDS", 0.0)
    federation = federation_of(make_clients(((20, 8), (12, 6), (6, 3))))
    names, log = [site.name for site in federation.sites], []
    seen = iter([[], [], names[:1], names[:2], names])
    growing = SimpleNamespace(sites=lambda: next(seen))
    OperatorCommands(federation, growing, wait=False).wait_for_sites(log.append, lambda: None)
    assert [line.split(",")[0] for line in log] == [
        f"{n} of 3 sites are connected" for n in range(4)
    ]
    assert log[1] == f"1 of 3 sites are connected, waiting for {names[1]}, {names[2]}"


def test_first_round_waits_for_latecomers_as_long_as_was_declared(monkeypatch):
    federation = federation_of(make_clients(((20, 8), (12, 6))), quorum=1, latecomers=1000.0)
    first, second = (site.name for site in federation.sites)
    now = 0.0
    log = []

    def sites():
        nonlocal now
        now += 100.0
        return [first]

    monkeypatch.setattr(
        control, "time", SimpleNamespace(monotonic=lambda: now, sleep=lambda seconds: None)
    )
    desk = OperatorCommands(federation, SimpleNamespace(sites=sites), wait=False)
    desk.wait_for_sites(log.append, lambda: None)
    assert 1000 < now <= 1200
    assert f"waiting for {second}; the run begins without them after 1000 s" in log[0]
    assert "who comes later joins it" in log[0]


def test_coordinator_log_repeats_how_many_sites_are_connected_less_and_less_often(monkeypatch):
    federation = federation_of(make_clients(((20, 8), (12, 6))))
    names, logged, now = [site.name for site in federation.sites], [], 0.0

    def sites():
        nonlocal now
        now += 10.0
        return names if now > 120 else []

    monkeypatch.setattr(
        control, "time", SimpleNamespace(monotonic=lambda: now, sleep=lambda seconds: None)
    )
    desk = OperatorCommands(federation, SimpleNamespace(sites=sites), wait=False)
    desk.wait_for_sites(lambda line: logged.append((now, line[:6])), lambda: None)
    assert logged == [
        (10, "0 of 2"),
        (30, "0 of 2"),
        (60, "0 of 2"),
        (110, "0 of 2"),
        (130, "2 of 2"),
    ]


def test_run_that_goes_on_waits_for_no_site_that_departed_or_is_not_in_it(tmp_path, monkeypatch):
    monkeypatch.setattr(control, "POLL_SECONDS", 0.0)
    federation = federation_of(make_clients(((20, 8), (12, 6), (16, 6), (6, 3))), quorum=1)
    first, second, third, fourth = [site.name for site in federation.sites]
    counts, directory = SampleCounts(5, 5, 0), RunDirectory(tmp_path)

    def logged(*seen):
        desk, log, steps = (
            OperatorCommands(federation, SimpleNamespace(sites=lambda: next(steps)), False),
            [],
            iter(seen),
        )
        desk.enter(QueuedRun(federation, tmp_path, tmp_path))
        desk.wait_for_sites(log.append, lambda: None)
        return log

    Roster("run", {}).save(tmp_path / "roster.json")
    everyone = [first, second, third, fourth]
    assert (
        "waiting for" in logged([first], everyone)[0]
    )  # the run has not begun: all are waited for
    Roster("run", dict.fromkeys((first, second, third), counts)).save(tmp_path / "roster.json")
    assert (
        logged([first], [first, second, third])[1]
        == f"3 of 4 sites are connected, not waiting for {fourth}"
    )
    directory.event("absent", round=3, client=second, why="offline")
    directory.event("absent", round=4, client=third, why="offline")
    directory.event("connected", round=4, client=third, why="a new connection")
    assert (
        logged([], [first], [first, third])
        == [
            f"0 of 4 sites are connected, waiting for {first}, {second}, {third}, {fourth}",  # no quorum: any of them
            f"1 of 4 sites are connected, waiting for {third}",
            f"2 of 4 sites are connected, not waiting for {second}, {fourth}",
        ]
    )
