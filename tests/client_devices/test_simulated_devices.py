"""Simulated devices: seconds computed by hand, presence, lost connections, and runs that follow the simulated time."""

import numpy as np
import pandas as pd
import pytest
import torch

import unalike as ua
from unalike.client_devices.device_model import device_model
from unalike.client_devices.simulated_clock import (
    LATE,
    LEFT,
    LOST,
    TRAINED,
    RoundWork,
    SimulatedDevices,
)
from unalike.client_devices.traits import PresenceFile

SECONDS_IN_DAY = 86_400


@pytest.fixture(scope="module")
def clients():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 4)).astype(np.float32)
    y = (x[:, 0] + 0.3 * rng.normal(size=96) > 0).astype(np.int64)
    return [ua.ClientData((x[i::6], y[i::6]), test=(x[:12], y[:12])) for i in range(6)]


def devices(spec, clients=3, seed=0):
    return SimulatedDevices(device_model(spec), clients, seed)


def work(samples, down=1_000_000, up=500_000):
    """Ten samples a step."""
    samples = np.asarray(samples, float)

    def work_of(name, ids):
        own = samples[list(ids)]
        return RoundWork(own / 10, own, np.ones(len(own)), down, up)

    return work_of


def run(clients, method="fedavg", **options):
    return ua.run(method, clients, model="logistic", progress=False, **({"rounds": 4} | options))


def test_round_lasts_as_long_as_its_slowest_client():
    # 1 MB at 8 Mbit/s, samples at 10 a second, 0.5 MB at 4 Mbit/s: 1 s + samples / 10 s + 1 s
    simulated = devices("pace(samples_per_second=10, mbit_down=8, mbit_up=4)")
    assert simulated.train(0, {"": [0, 2]}, work([30, 900, 50])).lost == {}
    assert simulated.columns == {"simulated_seconds": pytest.approx(1 + 5 + 1)}
    simulated.train(1, {"": [1]}, work([30, 900, 50]))
    assert simulated.time == pytest.approx(7 + 1 + 90 + 1)


def test_deadline_ends_the_round_and_leaves_out_what_is_late():
    simulated = devices(
        "pace(samples_per_second=10, mbit_down=8, mbit_up=4) + deadline(seconds=10)"
    )
    assert simulated.train(0, {"": [0, 1, 2]}, work([30, 900, 50])).lost == {1: LATE}
    assert simulated.time == 10


def test_slowdown_of_computing_leaves_the_network():
    model = device_model(
        "pace(samples_per_second=10, mbit_down=8) + two_speed(slow=1, factor=5, of='computing')"
    )
    rates = model.rates(clients=4, seed=0)
    assert rates.samples_per_second.tolist() == [2.0] * 4
    assert rates.bytes_down_per_second.tolist() == [1e6] * 4


def test_named_devices_are_slow_and_no_others():
    model = device_model("pace(samples_per_second=10) + slow_clients(clients=(0, 2), factor=4)")
    rates = model.rates(clients=4, seed=0)
    assert rates.samples_per_second.tolist() == [2.5, 10, 2.5, 10]
    with pytest.raises(ua.UnalikeError, match="found client 2; expected numbers from 0 to 1"):
        model.rates(clients=2, seed=0)


@pytest.mark.parametrize(
    "spec, median",
    [("lognormal(sigma=0.7)", 1.0), ("pareto(shape=2)", 2**0.5)],
)
def test_slowdowns_have_the_median_of_their_distribution(spec, median):
    rates = device_model(f"pace(samples_per_second=1) + {spec}").rates(clients=20_001, seed=1)
    assert np.median(1 / rates.samples_per_second) == pytest.approx(median, rel=0.03)


def test_same_seed_makes_the_same_devices():
    model = device_model("lognormal + day_night(hours=6)")
    first, again, other = (model.rates(50, seed) for seed in (3, 3, 4))
    assert (first.samples_per_second == again.samples_per_second).all()
    assert (first.samples_per_second != other.samples_per_second).all()


def test_devices_are_there_for_their_hours_of_a_day():
    there = device_model("day_night(hours=6)").presence(4000, seed=0)
    ids = np.arange(4000)
    now = there(ids, np.zeros(4000))
    assert now.mean() == pytest.approx(6 / 24, abs=0.02)
    assert (there(ids, np.full(4000, SECONDS_IN_DAY)) == now).all()
    # six hours later all have gone
    assert not (now & there(ids, np.full(4000, 6.0 * 3600))).any()


def test_of_very_many_devices_a_random_part_is_looked_at():
    clients, wanted = 200_000, 500
    simulated = SimulatedDevices(device_model("day_night(hours=12)"), clients, seed=0)
    rng = np.random.default_rng(0)
    there = np.array(simulated.present(range(clients)))
    found = [np.array(simulated.some_present(range(clients), wanted, rng)) for _ in range(20)]
    for part in found:
        assert wanted <= len(part) < clients / 100 and (np.diff(part) > 0).all()
        assert np.isin(part, there).all()
    # each of those that are there has the same chance: all tenths of their line are found as often
    tenths = np.histogram(np.concatenate(found), there[:: len(there) // 10])[0]
    assert tenths == pytest.approx(np.full(10, tenths.mean()), rel=0.1)
    # where too few of a part are there, all are looked at, and so they are of few clients
    rare = SimulatedDevices(device_model("day_night(hours=0.01)"), clients, seed=0)
    assert rare.some_present(range(clients), wanted, rng) == rare.present(range(clients))
    assert simulated.some_present(range(100), 5, rng) == simulated.present(range(100))


def test_server_waits_until_a_device_comes(tmp_path):
    file = tmp_path / "presence.csv"
    file.write_text(
        "client,from,until\n0,0,10\n0,600,700\n1,0,10\n1,900,2000\n2,0,10\n2,3000,4000\n"
    )
    simulated = devices(f"pace(samples_per_second=10) + presence_file(path={str(file)!r})")
    simulated.time = 20.0
    assert simulated.present(range(3)) == [0]
    # it is asked when the server looks again, 10 minutes after 20 s, and leaves at 700 s
    assert simulated.train(0, {"": [0]}, work([1000, 0, 0], 0, 0)).lost == {0: LEFT}
    assert simulated.time == pytest.approx(620 + 100)


def test_rounds_that_ask_nobody_take_time_where_devices_come_and_go(clients, tmp_path):
    """A sampler that asks certain clients asks nobody while these are away; without time they would never come."""
    file = tmp_path / "presence.csv"
    rows = [f"{k},0,1000" for k in range(6) if k != 1]
    file.write_text("\n".join(["client,from,until", *rows, "1,100,1000"]))
    method = "fedavg + named_clients(clients=('client-1',))"
    history = run(
        clients, method=method, devices=f"pace + presence_file(path={str(file)!r})"
    ).history
    # it is there after 100 s: the server looks at 0, 60 and 120 s
    assert history.rounds["participants"].tolist()[1:] == [0, 0, 1, 1]
    assert history.rounds["simulated_seconds"].tolist()[1:3] == [60, 120]


def test_nobody_who_ever_comes_is_an_error(tmp_path):
    file = tmp_path / "presence.csv"
    file.write_text("client,from,until\n0,0,10\n1,0,10\n2,0,10\n")
    simulated = devices(f"presence_file(path={str(file)!r})")
    simulated.time = 20.0
    with pytest.raises(ua.UnalikeError, match="all devices are away"):
        simulated.present(range(3))


def test_lost_connections_have_the_rate_and_end_early():
    model = device_model("drop_out(rate=0.3)")
    done = model.shares_done(20_000, seed=0, round=5)
    assert (done < 1).mean() == pytest.approx(0.3, abs=0.01)
    assert done[done < 1].mean() == pytest.approx(0.5, abs=0.01)
    assert (done != model.shares_done(20_000, seed=0, round=6)).any()


def test_lost_updates_do_not_take_part(clients):
    trace = device_model("drop_out(rate=0.5)")
    lost_in_round = [np.flatnonzero(trace.shares_done(6, 0, r) < 1) for r in range(4)]
    result = run(clients, devices="drop_out(rate=0.5)")
    rows = result.history.clients
    for number, lost in enumerate(lost_in_round, start=1):
        of_round = rows[rows["round"] == number].set_index("client")["status"]
        assert sorted(of_round.index[of_round == LOST]) == lost.tolist()
        assert (of_round.drop(lost) == "trained").all()
    participants = result.history.rounds["participants"].tolist()
    assert participants == [0, *(6 - len(lost) for lost in lost_in_round)]


def test_equal_devices_change_no_model(clients):
    plain = run(clients)
    simulated = run(clients, devices="lognormal(sigma=1)")
    for name, value in plain.params.items():
        assert (value == simulated.params[name]).all()
    seconds = simulated.history.rounds["simulated_seconds"]
    assert seconds.is_monotonic_increasing and seconds.iloc[0] == 0
    assert "simulated_seconds" not in plain.history.rounds


def test_budget_of_simulated_time(clients):
    full = run(clients, devices="pareto(shape=1.5)").history.rounds["simulated_seconds"]
    limit = full.iloc[2] * 1.01
    within = run(clients, devices="pareto(shape=1.5)", budget=f"{limit:.6f} s simulated")
    assert len(within.history.rounds) == 3


def test_resumed_run_has_the_same_times(clients, tmp_path):
    options = {"devices": "lognormal + day_night(hours=8) + drop_out(rate=0.2)", "rounds": 6}
    whole = run(clients, **options)

    def interrupt(row):
        if row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ua.run(
            "fedavg", clients, model="logistic", progress=interrupt, out=tmp_path / "r", **options
        )
    resumed = run(clients, out=tmp_path / "r", **options)
    for column in ("simulated_seconds", "participants", "accuracy"):
        assert resumed.history.rounds[column].tolist() == whole.history.rounds[column].tolist()


@pytest.mark.parametrize(
    "spec, message",
    [
        ("lognorm", "did you mean 'lognormal'"),
        ("lognormal(sigma=-1)", "greater than or equal to 0"),
        ("pace(mbit_up=0)", "greater than 0"),
        ("pace(samples_per_second=-1)", "greater than 0"),
        ("deadline(seconds=0)", "greater than 0"),
        ("first(updates=0)", "greater than 0"),
        ("slow_clients(clients=(-1,))", "greater than or equal to 0"),
        ("slow_clients(clients=(6,))", "numbers from 0 to 5"),
        ("presence_file(path='nowhere.csv')", "cannot read"),
        ("lognormal(sigma=1e4)", "which would never be done"),
    ],
)
def test_bad_devices_are_refused(clients, spec, message):
    with pytest.raises(ua.UnalikeError, match=message):
        run(clients, devices=spec)


def test_presence_file_of_a_spreadsheet_is_read_and_one_without_rows_refused(clients, tmp_path):
    file = tmp_path / "presence.csv"
    file.write_text("client,from,until\n0,70,90\n", encoding="utf-8-sig")
    presence = PresenceFile(path=str(file)).presence(len(clients), np.random.default_rng(0))
    assert presence(np.array([0, 0, 1]), np.array([69.0, 70.0, 0.0])).tolist() == [
        False,
        True,
        True,
    ]
    file.write_text("client,from,until\n")
    with pytest.raises(ua.UnalikeError, match="has no row"):
        run(clients, devices=f"presence_file(path={str(file)!r})")


def test_run_says_where_no_update_ever_arrives(clients):
    notes = run(clients, devices="drop_out(rate=1)").notes
    assert any("no update has arrived in any round" in note for note in notes)
    assert not any("nothing was learned" in note for note in notes)


def test_times_of_a_presence_file_may_have_gaps_overlap_and_stand_in_any_order(tmp_path):
    file = tmp_path / "presence.csv"
    file.write_text("client,from,until\n0,500,900\n1,0,5\n0,40,60\n0,50,70\n")
    presence = PresenceFile(path=str(file)).presence(2, np.random.default_rng(0))
    moments = np.array([39.0, 40.0, 65.0, 70.0, 499.0, 500.0])
    there = presence(np.zeros(6, int), moments)
    assert there.tolist() == [False, True, True, False, False, True]


def test_rounds_before_all_devices_have_gone_are_kept(clients, tmp_path):
    file = tmp_path / "presence.csv"
    file.write_text("client,from,until\n" + "".join(f"{k},0,5\n" for k in range(6)))
    spec = f"pace(samples_per_second=10) + presence_file(path={str(file)!r})"
    # a round of 16 samples takes 1.6 s: the fourth begins at 4.8 s and ends after all have left
    with pytest.raises(ua.UnalikeError, match="all devices are away at 6 s"):
        run(clients, devices=spec, rounds=9, out=tmp_path / "r")
    rounds = ua.open_run(tmp_path / "r").history.rounds
    assert rounds["participants"].tolist() == [0, 6, 6, 6, 0]


def test_run_says_where_a_round_that_awaits_the_first_awaits_all(clients):
    few, all_of_them = (run(clients, devices=f"first(updates={k})", rounds=1) for k in (5, 6))
    assert any("awaits the first 6 updates and asks 6 clients" in w for w in all_of_them.warnings)
    assert not any("awaits the first" in w for w in few.warnings)


@pytest.mark.parametrize("devices, is_average", [("pace", True), ("pace + partial_work", False)])
def test_division_by_steps_is_the_plain_mean_unless_work_differs(clients, devices, is_average):
    work = ua.Work(batch_size=4)
    notes = run(clients, "fednova", devices=devices, rounds=1, work=work).warnings
    assert any("it is the plain mean" in note for note in notes) == is_average


@pytest.mark.parametrize("row", ["0,10,5", "7,0,10", "0,zero,10", "0,nan,10", "0,10", "0;0;10"])
def test_bad_rows_of_a_presence_file_are_named(clients, tmp_path, row):
    file = tmp_path / "presence.csv"
    file.write_text(f"client,from,until\n{row}\n")
    with pytest.raises(ua.UnalikeError, match="line 2"):
        run(clients, devices=f"presence_file(path={str(file)!r})")


def test_simulated_time_needs_devices(clients):
    with pytest.raises(ua.UnalikeError, match="no time is simulated"):
        run(clients, budget="2 h simulated")


def test_privacy_refuses_devices_that_choose(clients):
    private = "fedavg + client_dp(clip=1, noise_multiplier=1)"
    with pytest.raises(ua.UnalikeError, match="decide whose updates count"):
        ua.run(private, clients, model="logistic", rounds=1, devices="drop_out", progress=False)
    speeds = ua.run(private, clients, model="logistic", rounds=1, devices="pareto", progress=False)
    assert speeds.history.last["simulated_seconds"] > 0


def test_clients_who_know_the_deadline_send_what_they_have():
    # 1 s to receive and 1 s to send leave 8 s: 80 samples, 8 of 9 steps; 20 s of training for one step do not fit
    simulated = devices(
        "pace(samples_per_second=10, mbit_down=8, mbit_up=4) + deadline(seconds=10, partial=True)"
    )
    done = work([30, 90, 50])
    assert simulated.shares_of_steps(0, [0, 1, 2], done("", [0, 1, 2])).tolist() == pytest.approx(
        [1, 8 / 9, 1]
    )
    assert simulated.train(0, {"": [0, 1, 2]}, done).lost == {}
    assert simulated.time == pytest.approx(10)
    slow = devices(
        "pace(samples_per_second=0.5, mbit_down=8, mbit_up=4) + deadline(seconds=10, partial=True)"
    )
    assert slow.train(0, {"": [0]}, done).lost == {0: LATE}


def test_share_of_steps_depends_on_client_and_round_alone():
    model = device_model("partial_work(rate=0.6)")
    together = model.shares_of_steps(np.arange(400), seed=0, round=2)
    assert model.shares_of_steps(np.array([7]), seed=0, round=2) == together[7]
    assert (together < 1).mean() == pytest.approx(0.6, abs=0.06)
    assert together[together < 1].mean() == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("method", ["fedavg", "fednova", "scaffold"])
def test_partial_work_is_the_same_in_every_executor(clients, method):
    options = {
        "model": "logistic",
        "rounds": 3,
        "work": ua.Work(epochs=2, batch_size=3),
        "devices": "partial_work(rate=0.7)",
        "progress": False,
    }
    one_by_one, stacked = (
        ua.run(method, clients, executor=executor, **options) for executor in ("loop", "batched")
    )
    for name, value in one_by_one.params.items():
        assert torch.allclose(value, stacked.params[name], atol=1e-6)
    full = ua.run(method, clients, **options | {"devices": None})
    assert any(
        not torch.allclose(value, one_by_one.params[name], atol=1e-4)
        for name, value in full.params.items()
    )


def test_partial_work_makes_the_first_steps_of_the_round(clients):
    """One client, whose share of its four steps is known, trains as many full rounds' first steps."""
    one = clients[:1]
    share = device_model("partial_work(rate=1)").shares_of_steps(np.arange(1), seed=0, round=0)[0]
    steps = max(1, int(share * 4))
    options = {"model": "logistic", "rounds": 1, "progress": False}
    partial = ua.run(
        "fedavg", one, devices="partial_work(rate=1)", work=ua.Work(batch_size=4), **options
    )
    first = ua.run("fedavg", one, work=ua.Work(batch_size=4, steps=steps), **options)
    for name, value in first.params.items():
        assert torch.equal(value, partial.params[name])


def test_timeline_says_who_trained_when_and_who_was_late(clients, tmp_path):
    spec = "pace(samples_per_second=10) + two_speed(slow=0.3, factor=10) + deadline(seconds=4)"
    options = {"devices": f"{spec} + drop_out(rate=0.2)", "rounds": 6}
    whole = run(clients, **options).history.timeline
    assert len(whole) == 6 * 6
    assert set(whole["fate"]) == {TRAINED, LATE, LOST}
    # each row lies within its round
    ends = run(clients, **options).history.rounds["simulated_seconds"]
    assert (whole["begun"] == whole["round"].map(ends.shift(1))).all()
    assert (whole["ended"] <= whole["round"].map(ends)).all()
    assert ((whole["ended"] - whole["begun"])[whole["fate"] == LATE] == 4).all()

    def interrupt(row):
        if row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ua.run("fedavg", clients, model="logistic", progress=interrupt, out=tmp_path, **options)
    resumed = run(clients, out=tmp_path, **options)
    pd.testing.assert_frame_equal(resumed.history.timeline, whole)
    pd.testing.assert_frame_equal(ua.open_run(tmp_path).history.timeline, whole)


def test_timeline_has_the_bytes_of_each_client(clients):
    # 8 weights and 2 biases of float32 each way; up also size, steps, loss and weight
    options = {"devices": "drop_out(rate=0.3)", "participation": 0.5, "rounds": 5}
    history = run(clients, **options).history
    turns, rounds = history.timeline, history.rounds
    one_down, one_up = 40, 56
    arrived = turns["fate"] == TRAINED
    assert 0 < arrived.sum() < len(turns) == 5 * 3
    assert set(turns["bytes_down"]) == {one_down}
    assert (
        set(turns.loc[arrived, "bytes_up"]) == {one_up}
        and not turns.loc[~arrived, "bytes_up"].any()
    )
    assert turns["bytes_down"].sum() == rounds["bytes_down"].sum()
    assert turns["bytes_up"].sum() == rounds["bytes_up"].sum()
