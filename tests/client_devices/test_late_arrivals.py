"""Updates that count when they arrive: the queue by hand, FedBuff and FedAsync, rounds that end with the first k, resumption."""

import numpy as np
import pytest
import torch

import unalike as ua
from unalike.client_devices.device_model import device_model
from unalike.client_devices.simulated_clock import LATE, RoundWork, SimulatedDevices
from unalike.methods.plan import steps_of
from unalike.runtime.round_loop import run_round
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.local_backend import LocalBackend, LocalStage

# a client trains for so many seconds, and its messages take next to none
ONE_SAMPLE_A_SECOND = "pace(samples_per_second=1, mbit_down=1e6, mbit_up=1e6)"


def of_sizes(*sizes):
    rng = np.random.default_rng(0)
    clients = []
    for size in sizes:
        x = rng.normal(size=(size, 4)).astype(np.float32)
        y = (x[:, 0] > 0).astype(np.int64)
        clients.append(ua.ClientData((x, y), test=(x, y)))
    return clients


def run(method, sizes=(3, 5, 20, 7), **options):
    defaults = {"model": "logistic", "rounds": 6, "progress": False, "work": ua.Work(epochs=1)}
    return ua.run(method, of_sizes(*sizes), **(defaults | options))


def opened(run_config: RunConfig) -> LocalStage:
    """The first stage of a run, before its first round."""
    step = next(steps_of(run_config.plan, run_config.plan_inputs))
    stage = LocalBackend(run_config).stage(step, 0, None)
    stage.start()
    return stage


def assert_equal_bits(a, b):
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_queue_by_hand():
    simulated = SimulatedDevices(device_model("pace(samples_per_second=1)"), clients=3, seed=0)

    def work(name, ids):
        samples = np.array([3.0, 5.0, 9.0])[list(ids)]
        all_steps = np.ones(len(ids))
        return RoundWork(samples, samples, all_steps, bytes_down=0, bytes_up=0)

    moments, heard, ages = [], [], []
    for number in range(5):
        idle = simulated.present(range(3))
        asked = {"": idle} if len(idle) else {}
        arrivals = simulated.train(number, asked, work, awaited=1)
        [(client, _)] = arrivals.rounds.items()
        moments.append(simulated.time)
        heard.append(client)
        ages.append(simulated.columns["age_max"])
    # client 0 is done at 3, 6, 9 and asked again each time; client 1 at 5 and 10; of the two at 9 the one with the least number
    assert moments == [3, 5, 6, 9, 9]
    assert heard == [0, 1, 0, 0, 2]
    assert ages == [0, 1, 1, 0, 4]


@pytest.mark.parametrize("method", ["fedbuff(buffer=4, weighted=True)", "fedavg"])
def test_server_that_awaits_all_makes_the_rounds_of_fedavg(method):
    usual = run("fedavg")
    devices = "lognormal(sigma=1)" if "fedbuff" in method else "lognormal + first(updates=4)"
    late = run(method, devices=devices)
    assert_equal_bits(usual.params, late.params)
    assert (late.history.rounds["age_max"].dropna() == 0).all()


@pytest.mark.parametrize(
    "method", ["fedbuff(buffer=1, server_lr=0.5)", "fedasync(mixing=0.5, mu=0)"]
)
def test_late_update_counts_by_its_age(method):
    # client 0 answers at 6 s, client 1 at 10 s, before client 0 does again
    stage = opened(run(method, sizes=(6, 10), rounds=2, devices=ONE_SAMPLE_A_SECOND).run_config)
    [group] = stage.state.groups.values()
    start = group.state.params
    of_0 = group.train([0]).numbers
    of_1 = group.train([1])
    trained_by_1 = {name: u / 0.5 for name, u in of_1.update.items()}
    assert of_0.size.tolist() == [6]

    run_round(stage)
    before = group.state.params
    assert set(group.versions) == {0}
    result = run_round(stage)
    assert result.trained == [1]
    factor = 0.5 / 2**0.5
    for name, value in group.state.params.items():
        moved = trained_by_1[name]
        if "fedasync" in method:
            moved = start[name] + trained_by_1[name] - before[name]
        torch.testing.assert_close(value, before[name] + factor * moved)
        assert not torch.equal(value, before[name])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rounds": 1}, "no update counts late without simulated devices"),
        ({"rounds": 1, "participation": 0.5, "devices": "pace"}, "no more clients than"),
        ({"rounds": 1, "devices": "pace"}, ""),
    ],
)
def test_run_says_where_no_update_can_be_late(options, why):
    notes = [note for note in run("fedbuff(buffer=2)", **options).warnings if "late" in note]
    assert bool(notes) == bool(why)
    assert all(why in note for note in notes)


def test_only_models_in_flight_are_kept():
    stage = opened(run("fedasync", rounds=1, devices=ONE_SAMPLE_A_SECOND).run_config)
    [group] = stage.state.groups.values()
    for _ in range(12):
        run_round(stage)
        in_flight = {event.round for event in stage.state.devices.under_way}
        assert len(group.versions) <= len(in_flight) + 1 <= 4
    assert stage.state.columns["age_max"] > 0


@pytest.mark.parametrize("method", ["fedasync", "scaffold"])
def test_resumed_run_has_equal_bits(method, tmp_path):
    options = {"devices": "lognormal + drop_out(rate=0.2) + first(updates=2)", "rounds": 8}
    whole = run(method, **options)

    def interrupt(row):
        if row["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(method, out=tmp_path / "run", **(options | {"progress": interrupt}))
    resumed = run(method, out=tmp_path / "run", **options)
    assert_equal_bits(whole.params, resumed.params)
    for column in ("simulated_seconds", "age_mean", "age_max", "participants"):
        assert resumed.history.rounds[column].equals(whole.history.rounds[column])
    assert whole.history.rounds["age_max"].max() > 0


def test_late_updates_are_dropped_if_asked_for():
    devices = f"{ONE_SAMPLE_A_SECOND} + first(updates=2, drop=True)"
    result = run("fedavg", devices=devices, rounds=2)
    # of 3, 5, 20 and 7 s
    assert result.history.rounds["simulated_seconds"].tolist() == pytest.approx([0, 5, 10], abs=0.1)
    last = result.history.clients.query("round == 2").set_index("client")["status"]
    assert (last == LATE).tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    "method, options, why",
    [
        ("fedavg + quantize", {}, "decodes an update by the round"),
        ("median", {}, "compares single updates"),
        ("ifca(clusters=2)", {}, "divided into groups"),
        ("fedavg", {"protocol": "local"}, "began from another"),
    ],
)
def test_methods_without_use_for_late_updates_are_refused(method, options, why):
    with pytest.raises(ua.UnalikeError, match=why):
        run(method, devices="lognormal + first(updates=2)", **options)


def test_private_method_refuses_arrival_as_a_choice():
    private = "fedbuff(buffer=2) + dp_sgd(clip=1, noise_multiplier=1)"
    with pytest.raises(ua.UnalikeError, match="arrive first"):
        run(private, devices="lognormal")
