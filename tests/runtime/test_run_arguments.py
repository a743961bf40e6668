"""Arguments of `ua.run` and `ua.compare`: their defaults, data instead of clients, and mistakes that are found at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

import unalike as ua
from unalike.core.options import cohort_size
from unalike.data.partitioning import given_clients
from unalike.runtime.processes import worker_process

REFUSED = """
import warnings
import unalike as ua
try:
    ua.run("fedavg", data="digits", model="linear", protocol="servr", executor="distributed(workers=2)")
except ua.UnalikeError as error:
    print(error)
"""


@pytest.fixture
def unread(monkeypatch):
    """Data that nobody may read."""
    monkeypatch.setattr(
        given_clients,
        "load",
        lambda *a: pytest.fail("data was read before the arguments were checked"),
    )


def test_run_with_data_has_the_defaults_of_compare():
    run = ua.run("fedavg", data="digits", rounds=2, progress=False)
    table = ua.compare(["fedavg"], data="digits", rounds=2, seeds=1, progress=False)
    assert run.run_config.model_name == "mlp" and len(run.run_config.population) == 10
    mine, theirs = run.history.rounds, table.rounds
    assert mine["accuracy"].tolist() == theirs["accuracy"].tolist()


def test_run_and_compare_have_the_same_default_model_rounds_and_clients():
    from inspect import signature

    run, compare = (signature(f).parameters for f in (ua.run, ua.compare))
    for name in (
        "clients",
        "data",
        "data_dir",
        "partition",
        "val",
        "model",
        "rounds",
        "work",
        "test",
        "proxy",
        "metrics",
    ):
        assert run[name].default == compare[name].default, name


def test_run_seed_draws_the_partition_of_data():
    first, second = (
        ua.run("fedavg", data="digits", rounds=1, seed=seed, progress=False) for seed in (0, 1)
    )
    assert (
        first.run_config.population.plan.seed == 0 and second.run_config.population.plan.seed == 1
    )
    assert first.run_config.population.sizes.tolist() != second.run_config.population.sizes.tolist()


def test_server_protocol_with_data_tests_on_the_published_test_set():
    run = ua.run("fedavg", data="digits", rounds=1, protocol="server", progress=False)
    table = ua.compare(
        ["fedavg"], data="digits", rounds=1, seeds=1, protocol="server", progress=False
    )
    _, y = ua.load("digits").test
    assert len(run.run_config.test[1]) == len(y) == 355
    assert run.history.last["accuracy"] == table.rounds["accuracy"].iloc[-1]
    # what is set apart at clients is scored by nobody there
    idle = len(run.run_config.population.test.values)
    [note] = [text for text in run.warnings if "--split 1" in text]
    assert idle > 300 and f"none of the {idle} test samples of the clients" in note
    whole = ua.run("fedavg", data="digits", rounds=0, protocol="server", split=1.0, progress=False)
    assert whole.run_config.population.sizes.sum() == len(ua.load("digits").train[1])
    assert not any("--split 1" in text for text in whole.warnings)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "found no data; give clients"),
        ({"clients": 5}, "found no data; give clients"),
        (
            {"data": "digits", "partition": "dirichlt"},
            "unknown partition 'dirichlt'; did you mean 'dirichlet'",
        ),
        (
            {"data": "digits", "model": "resnet2"},
            r"unknown model 'resnet2'; did you mean 'resnet20'",
        ),
        (
            {"data": "digits", "model": "nets:Net"},
            "model 'nets:Net': found a module and a class.* model=Net",
        ),
        (
            {"data": "digits", "protocol": "servr"},
            "unknown protocol 'servr'; did you mean 'server'",
        ),
        (
            {"data": "digits", "executor": "bached"},
            "unknown executor 'bached'; did you mean 'batched'",
        ),
        ({"data": "digits", "executor": "distributed(inner='bached')"}, "did you mean 'batched'"),
        ({"data": "digits", "budget": "3 apples"}, "budget='3 apples'"),
        ({"data": "digits", "transform": "flp"}, "flp"),
        ({"data": "digits", "work": 3}, "work=3: expected ua.Work"),
        ({"data": "digits", "rounds": -1}, "rounds=-1"),
    ],
)
def test_run_and_compare_mistakes_are_found_before_data_is_read(unread, arguments, message):
    for call in (
        lambda: ua.run("fedavg", **arguments),
        lambda: ua.compare(["fedavg"], **arguments),
    ):
        with pytest.raises(ua.UnalikeError, match=message):
            call()


def test_compare_unknown_second_method_is_found_before_data_is_read(unread):
    with pytest.raises(ua.UnalikeError, match="did you mean 'fedprox'"):
        ua.compare(["fedavg", "fedprx"], data="digits")


def test_run_clients_beside_data_are_refused(people):
    with pytest.raises(ua.UnalikeError, match="both data= and clients"):
        ua.run("fedavg", people, data="digits")


@pytest.mark.parametrize(("clients", "expected"), [(5, 3), (7, 4), (6, 3)])
def test_half_of_the_clients_is_rounded_up_wherever_a_cohort_is_counted(clients, expected):
    """Rounding to the even number would train 3 of 5 clients where the estimate and the choice of the executor count 2."""
    crowd = ua.partition(ua.load("digits"), "iid", clients=clients)
    run = ua.run("fedavg", crowd, model="linear", rounds=1, participation=0.5)
    assert run.history.rounds["participants"].tolist()[-1] == expected == cohort_size(0.5, clients)


def test_run_zero_rounds_says_that_nothing_is_trained(people):
    with pytest.warns(UserWarning, match="rounds=0 trains nothing"):
        run = ua.run("fedavg", people, rounds=0, progress=False)
    assert any("rounds=0 trains nothing" in note for note in run.notes)
    with pytest.raises(ua.UnalikeError, match="rounds=0"):
        ua.compare(["fedavg"], people, rounds=0)


def test_run_without_test_samples_says_that_it_has_no_score():
    everyone = ua.partition(ua.load("digits"), "iid", clients=4, split=1.0)
    with pytest.warns(UserWarning, match="the run has no score"):
        run = ua.run("fedavg", everyone, model="linear", rounds=1, progress=False)
    assert "accuracy" not in run.history.rounds or run.history.rounds["accuracy"].isna().all()


@pytest.mark.parametrize(
    "keyword, meant",
    [
        ("batch", r"write work=ua.Work\(batch_size=...\)"),
        ("learning_rate", r"write work=ua.Work\(lr=...\)"),
        ("lr", r"write work=ua.Work\(lr=...\)"),
        ("epoch", r"write work=ua.Work\(epochs=...\)"),
        ("optimiser", r"write work=ua.Work\(optimizer=...\)"),
        ("round", "did you mean 'rounds'"),
        ("particpation", "did you mean 'participation'"),
        (
            "target",
            r"name the columns of a table where it is read: data=ua.load\(table, target='outcome'",
        ),
    ],
)
def test_run_and_compare_foreign_keyword_gets_a_suggestion(unread, keyword, meant):
    for name, call in (
        ("ua.run", lambda **k: ua.run("fedavg", **k)),
        ("ua.compare", lambda **k: ua.compare(["fedavg"], **k)),
    ):
        with pytest.raises(ua.UnalikeError, match=f"{name} takes no keyword '{keyword}'; {meant}"):
            call(data="digits", **{keyword: 1})


@pytest.mark.parametrize("call, meant", [(ua.run, "seed"), (ua.compare, "seeds")])
def test_seed_and_seeds_are_told_apart(call, meant):
    wrong = {"seed": "seeds", "seeds": "seed"}[meant]
    with pytest.raises(
        ua.UnalikeError, match=f"takes no keyword '{wrong}'; did you mean '{meant}'"
    ):
        call("fedavg", data="digits", **{wrong: 1})


@pytest.mark.parametrize(
    "keyword, meant",
    [
        ("batch", "batch_size"),
        ("learning_rate", "lr"),
        ("epoch", "epochs"),
        ("optimiser", "optimizer"),
        ("momentun", "momentum"),
    ],
)
def test_work_foreign_keyword_gets_a_suggestion(keyword, meant):
    with pytest.raises(
        ua.UnalikeError, match=f"ua.Work takes no keyword '{keyword}'; did you mean '{meant}'"
    ):
        ua.Work(**{keyword: 1})


def test_spec_option_misspelt_gets_a_suggestion(people):
    with pytest.raises(ua.UnalikeError, match=r"'muu'; did you mean 'mu'; it takes fedprox\(mu="):
        ua.run("fedprox(muu=1)", people)


def test_refusal_of_a_run_with_worker_processes_is_one_message():
    done = subprocess.run(
        [sys.executable, "-c", REFUSED], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "unknown protocol 'servr'; did you mean 'server'?"
    assert "Traceback" not in done.stderr and "connectFullMesh" not in done.stderr


def test_refusal_in_a_worker_process_arrives_as_its_message(people, monkeypatch, capfd):
    """A worker process that cannot begin says why, and does not tear the connections of the others."""

    class Refusing(worker_process.Worker):
        def __init__(self, *arguments):
            raise ua.UnalikeError("found no room for the samples; give fewer")

    monkeypatch.setattr(worker_process, "Worker", Refusing)
    with pytest.raises(
        ua.UnalikeError, match=r"process [12] of 3: found no room for the samples; give fewer"
    ):
        ua.run(
            "fedavg",
            people,
            model="linear",
            rounds=2,
            executor="distributed(workers=3)",
            progress=False,
        )
    told = capfd.readouterr().err
    assert "Traceback" not in told and "connectFullMesh" not in told
