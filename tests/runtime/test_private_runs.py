"""Runs of private methods: the column epsilon, budgets, resumption, Poisson cohorts, and what is refused."""

import json
import math

import numpy as np
import pytest

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.cli.terminal_tables import run_json, run_table
from unalike.core.privacy import ReleaseSampling, epsilon_of, noise_multiplier_of
from unalike.runtime.setup.run_config import configure_run

pytest.importorskip("dp_accounting")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
PRIVATE = "client_dp(noise_multiplier=2)"


@pytest.fixture(scope="module")
def clients():
    return _clients(10)


def _clients(count, **options):
    return ua.partition(ua.load("digits"), "iid", clients=count, seed=0, **options)


def trained(spec, clients, **options):
    options = {
        "model": "linear",
        "rounds": 3,
        "work": ua.Work(lr=0.1),
        "progress": None,
        "executor": "loop",
    } | options
    return ua.run(spec, clients, **options)


@pytest.mark.parametrize(
    "options, sampling",
    [
        ({}, ReleaseSampling(10, 10)),
        ({"participation": 0.3}, ReleaseSampling(10, 3, "fixed")),
        ({"participation": 0.3, "sampling": "poisson"}, ReleaseSampling(10, 3, "poisson")),
    ],
)
def test_epsilon_is_a_column_of_the_history(clients, options, sampling):
    run = trained(PRIVATE, clients, **options)
    rounds = run.history.rounds
    assert rounds["epsilon"].tolist() == [epsilon_of(2.0, sampling, t, 1e-5) for t in range(4)]
    assert (
        rounds["train_loss"].isna().all()
        and f"epsilon {rounds['epsilon'].iloc[-1]:.3g}" in run.history.headline
    )
    assert "epsilon" not in trained("fedavg", clients).history.rounds


def test_budget_of_the_part_is_spent_at_the_planned_rounds_and_a_longer_run_stops_there(
    clients, tmp_path
):
    spec = "client_dp(epsilon=3)"
    run = trained(spec, clients, out=tmp_path)
    assert 2.95 < run.history.last["epsilon"] <= 3 and run.ended == "all rounds done"
    longer = trained(spec, clients, out=tmp_path, rounds=6)
    assert longer.history.last["round"] == 3 and longer.ended == "budget of epsilon=3 spent"


@pytest.mark.parametrize(
    "spec",
    [
        "client_dp(noise_multiplier=2, quantile=0.5)",
        "dp_sgd(noise_multiplier=2, batches='poisson')",
    ],
)
def test_resumed_run_goes_on_counting_with_its_noise(clients, tmp_path, spec):
    """A round that is made again from an earlier checkpoint has the same draws and noise: it is the same release."""
    trained(spec, clients, out=tmp_path, rounds=2)
    resumed, whole = (
        trained(spec, clients, out=tmp_path, rounds=4),
        trained(spec, clients, rounds=4),
    )
    assert resumed.history.rounds["epsilon"].tolist() == whole.history.rounds["epsilon"].tolist()
    assert resumed.history.last["accuracy"] == whole.history.last["accuracy"]


def test_stop_rule_and_budget_read_epsilon(clients, capsys):
    costs = trained(PRIVATE, clients, rounds=6).history.rounds["epsilon"].tolist()
    run = trained(PRIVATE, clients, rounds=6, stop=f"epsilon >= {costs[2]}")
    assert run.history.last["round"] == 2
    for rounds in (1, 4):  # the first round costs most: each next one is known, and made if it fits
        run = trained(
            PRIVATE, clients, rounds=6, budget=f"{costs[rounds]} epsilon", evaluate_every=6
        )
        assert (
            run.history.last["epsilon"] == costs[rounds]
            and run.ended == f"budget of epsilon={costs[rounds]:g} spent"
        )
        assert math.isfinite(run.history.last["accuracy"])
    run_table(run)
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        f"epsilon {costs[4]:.3g} at delta 1e-05 for each client;" in shown
        and f"ended by: {run.ended} " in shown
    )
    assert json.loads(run_json(run))["ended"] == run.ended
    noised, rare = "client_dp(noise_multiplier=1e4)", {"model": "linear", "rounds": 40}
    assert ua.estimate([noised], clients, budget="0.005 epsilon", **rare).costs[0].rounds == 40
    with pytest.raises(UnalikeError, match=r"found budget='3 epsilon', and fedavg has no epsilon"):
        trained("fedavg", clients, budget="3 epsilon")
    with pytest.raises(UnalikeError, match=r"found stop='epsilon >= 3', and fedavg has no epsilon"):
        trained("fedavg", clients, stop="epsilon >= 3")
    with pytest.raises(UnalikeError, match=r"the first round costs epsilon .* give more noise"):
        trained(PRIVATE, clients, budget=f"{costs[1] / 2} epsilon")


def test_clients_whose_training_diverges_send_noise_alone(clients):
    """Whether an update is finite would be an answer about samples, so nothing says that training diverged but the scores."""
    run = trained(PRIVATE, clients, work=ua.Work(lr=1e38, momentum=0.9))
    assert all(t.isfinite().all() for t in run.params.values())
    assert all(math.isfinite(value) for value in run.history.rounds["epsilon"])


def test_poisson_cohorts_have_binomial_sizes_and_an_empty_one_adds_noise(clients):
    run = trained(
        "client_dp(noise_multiplier=2)", clients, rounds=40, participation=0.1, sampling="poisson"
    )
    sizes = run.history.rounds["participants"].to_numpy()[1:]
    assert 0 in sizes and sizes.max() > 1 and abs(sizes.mean() - 1) < 4 * math.sqrt(0.9 / 40)
    empty = 1 + int(np.flatnonzero(sizes == 0)[0])
    scores = run.history.rounds["loss"].to_numpy()
    assert scores[empty] != scores[empty - 1]
    plain = trained(
        "fedavg", clients, rounds=40, participation=0.1, sampling="poisson"
    ).history.rounds
    assert plain["participants"].to_numpy()[1:].tolist() == sizes.tolist()
    assert plain["loss"].iloc[empty] == plain["loss"].iloc[empty - 1]


def test_noise_of_sites_in_poisson_cohorts_is_not_amplified(clients):
    """A cohort may have one client, which then has the whole noise; the server knows the draw."""
    spec, options = (
        "client_dp(noise_multiplier=2, where='site')",
        {"participation": 0.3, "sampling": "poisson"},
    )
    rounds = trained(spec, clients, **options).history.rounds
    assert rounds["epsilon"].tolist() == [
        epsilon_of(2.0, ReleaseSampling(10, 10), t, 1e-5) for t in range(4)
    ]
    assert np.isfinite(rounds["loss"]).all()


@pytest.mark.parametrize(
    "options, why",
    [
        ({"select": "best"}, "select='best' chooses a round by the clients' validation samples"),
        ({"stop": "accuracy >= 0.9"}, "the stop rule reads accuracy of the clients' samples"),
        ({"stop": "train_loss <= 0.1 or round >= 2"}, "the stop rule reads train_loss"),
        ({"stop": "patience(rounds=3)"}, "the stop rule reads patience"),
    ],
)
def test_decisions_by_the_clients_samples_are_refused(options, why):
    validated = _clients(5, val=0.2)
    with pytest.raises(UnalikeError, match=why):
        trained(PRIVATE, validated, **options)


def test_stop_rule_on_the_samples_of_the_server_is_accepted(clients):
    test = clients[0].test
    run = trained(PRIVATE, clients, stop="accuracy >= 0", protocol="server", test=test)
    assert run.history.last["round"] == 1


@pytest.mark.parametrize(
    "spec, why",
    [
        ("ccvr(method='client_dp')", "the answers to the query feature_statistics have no noise"),
        ("ifca(method='client_dp')", "choose a model"),
    ],
)
def test_plans_that_group_clients_are_refused(clients, spec, why):
    with pytest.raises(UnalikeError, match=why):
        trained(spec, clients)


def test_federation_names_the_noise_multiplier_that_its_sites_agree_to(clients):
    arguments = {"model": "linear", "rounds": 3, "federated": 10}
    with pytest.raises(
        UnalikeError,
        match=r"expected noise_multiplier, which its sites agree to: [\d.]+ for 3 rounds$",
    ):
        configure_run("client_dp(epsilon=3)", clients, **arguments)
    z = [
        noise_multiplier_of(3, ReleaseSampling(n, 1, "poisson" if n > 1 else "all", 3 * n), 1e-5)
        for n in (100, 10, 1)
    ]
    of_batches = "{:.4g} where every site has 100 batches or more in a pass, {:.4g} where every site has 10 .*, {:.4g} for 3 rounds"
    with pytest.raises(UnalikeError, match=of_batches.format(*z)):
        configure_run("dp_sgd(epsilon=3, batches='poisson')", clients, **arguments)
    run_config = configure_run(PRIVATE, clients, participation=0.5, **arguments)
    # sites know the seed, by which cohorts are drawn: nothing is amplified
    sizes = tuple({len(c.train[1]) for c in clients})
    assert (
        run_config.settings.sampling == ReleaseSampling(10, 5, "all", 3, 10, sizes)
        and run_config.settings.secret_noise
    )


def test_tuning_of_a_private_method_is_refused(clients):
    pytest.importorskip("optuna")
    with pytest.raises(UnalikeError, match="validation samples, which epsilon does not cover"):
        ua.tune([PRIVATE], clients, trials=1, rounds=1, progress=None)


def test_delta_that_protects_nobody_is_noted(clients):
    assert any(
        "delta=0.5 is not below 1 / 10 clients" in n
        for n in trained("client_dp(delta=0.5)", clients).notes
    )
