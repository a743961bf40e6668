"""Division by time: the later samples of each client test, at sites as in simulations, and what it is for: noise is not learned."""

import numpy as np
import pandas as pd
import pytest
import torch
from small_federation import federation_of

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.cli.data_flags import spec
from unalike.data import Dataset
from unalike.data.partitioning.hold_out import hold_out_tests, later_tests, take_test_set
from unalike.federation.protocol.federation_file import Schema
from unalike.federation.site.site_data import site_data


def visits(shuffled: bool = True) -> pd.DataFrame:
    """40 visits in the north and 20 in the south, one a day from a day of their own on; `age` counts the days."""
    days = np.concatenate([np.arange(40), np.arange(30, 50)])
    frame = pd.DataFrame(
        {
            "age": days.astype(float),
            "site": ["north"] * 40 + ["south"] * 20,
            "admitted": pd.Timestamp("2020-01-31") + pd.to_timedelta(days, "D"),
            "outcome": np.array(["ill", "well"])[np.arange(60) % 2],
        }
    )
    frame["admitted"] = frame["admitted"].dt.strftime("%d.%m.%Y")
    return frame.sample(frac=1, random_state=0) if shuffled else frame


def days_of(population: ua.Population, k: int, part: str = "test") -> list[float]:
    """The column `age` of a client's samples, in days."""
    age = population.encoding.numbers[0]
    rows = getattr(population, part)[k]
    return sorted((population.x[rows, 0] * age.scale + age.mean).round().int().tolist())


@pytest.mark.filterwarnings("ignore")
def test_windows_of_noise_are_predicted_only_if_they_are_divided_at_random():
    """Smoothed noise, of which ten windows in a row have one random label: neighbours in training give it away."""
    rng = np.random.default_rng(0)
    walk = rng.normal(size=(640, 16)).cumsum(0)
    series = (walk[20:] - walk[:-20]).astype("float32") / 20**0.5
    x = np.stack([series[start : start + 4] for start in range(600)])[:, None]
    y = np.repeat(rng.integers(0, 2, 60), 10)

    def score(split):
        run = ua.run(
            "fedavg",
            data=(x, y),
            partition="iid",
            clients=1,
            split=split,
            model="mlp(hidden=(128,))",
            rounds=3,
            evaluate_every=3,
            executor="loop",
            work=ua.Work(epochs=40, lr=0.05, momentum=0.9),
        )
        return run.history.last["accuracy"], [note for note in run.warnings if "split=" in note]

    at_random, advice = score(0.75)
    assert at_random > 0.84 and "--split later, in Python split='later'" in advice[0]
    later, advice = score("later")
    assert abs(later - 0.5) < 4 * 0.5 / 15**0.5 and not advice  # 15 labels are drawn


def test_equal_moments_and_units_are_on_one_side():
    moments = np.array([3.0, 1, 2, 2, 2, 0])
    alone = np.arange(6)
    [tests] = later_tests([alone], moments, alone, split=0.9)
    assert tests.tolist() == [True, False, False, False, False, False]
    [tests] = later_tests([alone], moments, alone, split=0.6)
    assert tests.tolist() == [True, False, True, True, True, False]
    [tests] = later_tests([alone[2:5]], moments, alone, split=0.6)
    assert not tests.any()
    # a patient counts from the first visit: the first has visits at 3 and 0
    [tests] = later_tests([alone], moments, np.array([0, 1, 1, 2, 2, 0]), split=0.7)
    assert tests.tolist() == [False, False, False, True, True, False]


def test_later_rows_of_each_client_of_a_table_test_and_validate(tmp_path):
    visits().to_csv(tmp_path / "visits.csv", index=False)
    options = {"target": "outcome", "group": "site"}
    data = ua.load(tmp_path / "visits.csv", **options, split_by="admitted")
    assert data.encoding.names == ["age"]
    for seed in (0, 1):
        clients = ua.partition(data, split=0.8, val=0.25, seed=seed)
        assert days_of(clients, 0) == list(range(32, 40))
        assert days_of(clients, 1) == list(range(46, 50))
        assert days_of(clients, 0, "val") == list(range(24, 32))
    _, (_, y) = take_test_set(data)
    assert len(y) == 12  # a fifth, of both together
    as_feature = ua.load(
        tmp_path / "visits.csv", **options, split_by="admitted", date="admitted=%d.%m.%Y"
    )
    assert as_feature.encoding.names == ["age", "admitted"]
    with pytest.raises(UnalikeError, match=r"found folds=3 for data with a time: folds are drawn"):
        ua.partition(data, folds=3)


def test_dates_that_are_missing_are_counted_and_random_division_is_noted():
    frame = visits(shuffled=False)
    with pytest.warns(
        UserWarning, match=r"'admitted': dates, and rows are divided at random.*--split-by admitted"
    ):
        ua.load(frame, target="outcome", group="site", drop="admitted")
    with pytest.raises(UnalikeError, match="all rows have the same value in 'admitted'"):
        ua.load(frame.assign(admitted="2020-01-01"), target="outcome", split_by="admitted")
    frame.loc[[7, 9], "admitted"] = None
    with pytest.raises(
        UnalikeError, match=r"2 of 60 rows have no value in 'admitted' .the first is in row 7"
    ):
        ua.load(frame, target="outcome", group="site", split_by="admitted")


def test_samples_in_order_of_time_are_divided_in_memory_and_in_files(tmp_path):
    x, y = np.arange(20, dtype=np.float32)[:, None], np.arange(20) % 2
    clients = {
        "north": (x[:12], y[:12]),
        "south": {"train": (x[12:16], y[12:16]), "test": (x[16:], y[16:])},
    }
    run = ua.run("fedavg", clients, split="later", model="linear", rounds=0)
    population = run.run_config.population
    assert [c.test[0].flatten().tolist() for c in population] == [[9, 10, 11], [18, 19]]

    # the time of a file may be another than the order of its samples
    np.savez(tmp_path / "series.npz", x=x, y=y, time=-np.arange(20))
    [client] = ua.partition(ua.load(tmp_path / "series.npz"), "iid", clients=1)
    assert sorted(client.test[0].flatten().tolist()) == [0, 1, 2, 3, 4]
    with pytest.raises(UnalikeError, match=r"divide the data so: ua\.partition"):
        ua.run("fedavg", ua.partition((x, y), "iid", clients=2), split="later", rounds=0)
    with pytest.raises(UnalikeError, match="digits: its reader has set test samples apart"):
        ua.partition("digits", "iid", split="later")
    with pytest.raises(UnalikeError, match=r"found a time of float64 and shape \[20\]"):
        Dataset("gap", (x, y), time=np.where(y, np.nan, 1.0))


def test_site_divides_its_table_by_time_as_a_simulation_does(tmp_path):
    data = ua.load(visits(shuffled=False), target="outcome", group="site", split_by="admitted")
    expected = ua.partition(data, split=0.8, val=0.25)
    federation = federation_of(
        [ua.ClientData(train=client.train, name=client.name) for client in expected],
        val=0.25,
        data=Schema(shape=(1,), classes=("ill", "well"), encoding=data.encoding),
    )
    for client in expected:
        path = tmp_path / f"{client.name}.csv"
        visits(shuffled=False).query("site == @client.name").to_csv(path, index=False)
        own = site_data(federation, spec(str(path), {"split_by": "admitted"}), None, client.name)
        for part in ("train", "test", "val"):
            for ours, theirs in zip(getattr(own, part), getattr(client, part)):
                assert ours.tolist() == theirs.tolist(), part


def test_latest_samples_for_a_server_are_whole_units_and_a_share_of_them():
    """Ten patients with ten samples each: a fifth of them is two patients."""
    x = torch.arange(100.0)[:, None]
    data = Dataset(
        "visits",
        (x, torch.arange(100) % 2),
        groups={"patient": np.repeat(np.arange(10), 10)},
        unit="patient",
        time=np.arange(100.0),
    )
    rest, (tests, _) = hold_out_tests(data, 0.2)
    assert tests.ravel().tolist() == list(range(80, 100)) and len(rest.train[1]) == 80
    for share in (0, 1.5):
        with pytest.raises(UnalikeError, match=f"found a share of {share}"):
            hold_out_tests(data, share)
