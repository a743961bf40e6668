"""The tables of a run, and what is drawn for it."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike._utils.seeds import generator
from unalike.metrics.columns import TIMES
from unalike.runtime.stages.evaluation import Evaluator
from unalike.runtime.stages.local_backend import LocalBackend
from unalike.runtime.stages.model_group import ModelGroup
from unalike.runtime.stages.stage_state import StageState

METRICS = ["loss", "accuracy", "macro_f1"]
ROUNDS = ["round", *TIMES, "participants", *METRICS, "train_loss", "bytes_down", "bytes_up"]
CLIENTS = ["round", "client", "n_train", "n_test", *METRICS, "personal_accuracy", "status"]


def columns(table, *prefixes):
    return [c for c in table if not c.startswith(prefixes)]


def test_history_tables_of_run_have_expected_columns(people, small):
    run = small("ditto", people)
    assert columns(run.history.rounds, "personal_") == [*ROUNDS, "balanced_accuracy"]
    assert columns(run.history.clients, "personal_")[:-1] == [
        c for c in CLIENTS if c != "personal_accuracy"
    ]
    assert "personal_accuracy" in run.history.rounds and "personal_accuracy" in run.history.clients
    assert list(small("fedavg", people).history.rounds) == [*ROUNDS, "balanced_accuracy"]
    assert list(small("fedavg", people).history.clients) == [*CLIENTS, "balanced_accuracy"]


def test_history_row_zero_describes_untrained_model(people, small):
    rounds = small("fedavg", people).history.rounds
    assert rounds["round"].tolist() == [0, 1, 2, 3]
    start = rounds.iloc[0]
    assert (
        start["participants"] == start["bytes_down"] == start["bytes_up"] == start["seconds"] == 0
    )
    assert math.isnan(start["train_loss"]) and not math.isnan(start["accuracy"])
    untrained = small("fedavg", people, rounds=0)
    assert untrained.history.rounds["accuracy"].tolist() == [start["accuracy"]]


def test_history_tells_seconds_of_evaluation_apart_from_training(people, small):
    seen = []
    rounds = small("fedavg", people, evaluate_every=2, progress=seen.append).history.rounds
    assert (rounds["evaluation_seconds"] > 0).tolist() == [True, False, True, True] and rounds[
        "evaluation_seconds"
    ][1] == 0
    assert rounds["seconds"][0] == 0 and (rounds["seconds"][1:] > 0).all()
    assert [row["evaluation_seconds"] for row in seen] == rounds["evaluation_seconds"].tolist()[1:]


@pytest.mark.parametrize(
    ("every", "slow", "noted"),
    [(1, "evaluated", True), (1, "trained", False), (2, "evaluated", False)],
)
def test_evaluation_longer_than_training_is_noted_once(
    people, small, monkeypatch, every, slow, noted
):
    monkeypatch.setattr("unalike.runtime.run_recorder.NOTABLE_EVALUATION_SECONDS", 0.0)
    passing, clock = {"evaluated": Evaluator.__call__, "trained": ModelGroup.train}, [0.0]

    def slowed(*given):
        clock[0] += 100
        return passing[slow](*given)

    monkeypatch.setattr(
        *{"evaluated": (Evaluator, "__call__"), "trained": (ModelGroup, "train")}[slow], slowed
    )
    monkeypatch.setattr(
        "unalike.runtime.processes.launch.LocalBackend",
        partial(LocalBackend, clock=lambda: clock[0]),
    )
    notes = small("fedavg", people, evaluate_every=every).notes
    assert sum("evaluate_every=5 (--evaluate-every 5)" in note for note in notes) == noted


def test_progress_accepts_function_or_false(people, small, capsys, monkeypatch):
    seen = []
    small("fedavg", people, progress=lambda row, what="": seen.append(row["round"]))
    assert seen == [1, 2, 3]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    small("fedavg", people, progress=False)
    assert capsys.readouterr().err == ""
    with pytest.raises(UnalikeError, match="found 'yes', expected a function of a row, or False"):
        small("fedavg", people, progress="yes")


def test_history_accuracy_is_sample_weighted_mean_of_clients(people, small):
    run = small("fedavg", people)
    table = run.history.clients.query("round == 3")
    pooled = (table["accuracy"] * table["n_test"]).sum() / table["n_test"].sum()
    assert run.history.rounds["accuracy"].iloc[-1] == pytest.approx(pooled)
    module = run.module().eval()
    right = [(module(c.test[0]).argmax(1) == c.test[1]).float().mean().item() for c in people]
    assert table["accuracy"].tolist() == pytest.approx(right)


def test_history_of_regression_reports_rmse(regression, small):
    run = small("fedavg", regression, work=ua.Work(batch_size=5, lr=0.003))
    assert columns(run.history.rounds) == [*ROUNDS[:5], "rmse", *ROUNDS[7:], "mae", "r2"]
    assert columns(run.history.clients) == [*CLIENTS[:5], "rmse", "status", "mae", "r2"]
    assert run.history.rounds["rmse"].iloc[-1] < run.history.rounds["rmse"].iloc[0]


@pytest.mark.parametrize("rounds, evaluated", [(5, [0, 2, 4, 5]), (4, [0, 2, 4])])
def test_history_metrics_of_unevaluated_rounds_are_nan(people, small, rounds, evaluated):
    run = small("fedavg", people, rounds=rounds, evaluate_every=2)
    table = run.history.rounds
    assert table["round"].tolist() == list(range(rounds + 1))
    assert table.loc[table["accuracy"].notna(), "round"].tolist() == evaluated
    assert table["train_loss"].iloc[1:].notna().all() and (table["bytes_up"].iloc[1:] > 0).all()
    assert sorted(run.history.clients["round"].unique()) == evaluated


def test_evaluation_frequency_does_not_change_model(people, small):
    often, rarely = small("ditto", people), small("ditto", people, evaluate_every=3)
    assert all(torch.equal(often.params[n], rarely.params[n]) for n in often.params)


@pytest.fixture
def cohorts(monkeypatch):
    """Run number -> round -> the clients drawn."""
    seen: list[list[list[int]]] = []
    draw, start = StageState.draw, StageState.__init__

    def opened(self, *args, **options):
        seen.append([])
        start(self, *args, **options)

    def drawn(self, number):
        seen[-1].append(draw(self, number))
        return seen[-1][-1]

    monkeypatch.setattr(StageState, "__init__", opened)
    monkeypatch.setattr(StageState, "draw", drawn)
    return seen


@pytest.mark.parametrize("participation, wanted", [(0.4, 2), (0.01, 1), (0.5, 3), (1.0, 5)])
def test_participation_fraction_gives_rounded_number_of_clients(
    people, small, cohorts, participation, wanted
):
    """max(1, round(rho N)) of the N = 5 clients that have samples, a half rounded up."""
    run = small("fedavg", people, rounds=6, participation=participation)
    for ids in cohorts[0]:
        assert len(ids) == wanted == len(set(ids)) and 3 not in ids
    assert (run.history.rounds["participants"].iloc[1:] == wanted).all()
    if wanted < 5:
        assert len({tuple(ids) for ids in cohorts[0]}) > 1
    trained = (
        run.history.clients.query("round > 0 and status == 'trained'")
        .groupby("round")["client"]
        .agg(list)
    )
    assert trained.tolist() == cohorts[0]


def test_cohorts_with_same_seed_are_equal_for_all_methods(people, small, cohorts):
    for spec in ("fedavg", "scaffold", "ditto", "fedpake", "local_only"):
        small(spec, people, rounds=6, participation=0.4, seed=7)
    small("fedavg", people, rounds=6, participation=0.4, seed=8)
    assert cohorts[0] == cohorts[1] == cohorts[2] == cohorts[3] == cohorts[4] != cohorts[5]


@pytest.mark.parametrize(
    "spec",
    [
        "clustered(eps1=100, eps2=0.0001, warmup=1)",
        "fedconcat(clusters=2, encoder_rounds=2, classifier_rounds=4)",
    ],
)
def test_cohorts_go_on_over_the_stages_of_a_plan(people, small, tmp_path, spec):
    """Round t has FedAvg's clients of round t, whichever stage it is in, and after a resumption."""
    options = {"rounds": 6, "participation": 0.4, "seed": 7}
    stop = {"stop": "round >= 4"}
    small(spec, people, out=tmp_path, **options | stop)
    runs = [small("fedavg", people, **options), small(spec, people, out=tmp_path, **options)]
    trained = [
        run.history.clients.query("round > 0 and status == 'trained'")
        .groupby("round")["client"]
        .agg(list)
        for run in runs
    ]
    assert len(runs[1].history.rounds["stage"].unique()) > 1
    assert trained[0].tolist() == trained[1].tolist()


def test_batches_and_initial_weights_with_same_seed_equal_for_all_methods(
    people, small, monkeypatch
):
    """A neutral method takes the very steps of FedAvg: same start, same batches, whatever part is beside it."""
    from unalike.engine.base import ClientPool

    seen: list[dict] = []
    schedules = ClientPool.schedules

    def spied(self, ids, round, kind):
        found = schedules(self, ids, round, kind)
        for client, *phases in zip(ids, *found, strict=True):
            seen[-1][round, client] = [b.tolist() for phase in phases for b in phase]
        return found

    monkeypatch.setattr(ClientPool, "schedules", spied)
    runs = []
    for spec in ("fedavg", "fedprox(mu=0)", "scaffold"):
        seen.append({})
        runs.append(small(spec, people, executor="loop"))
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][0, 0] != seen[0][1, 0]
    assert all(torch.equal(runs[0].params[n], runs[1].params[n]) for n in runs[0].params)
    starts = [r.history.rounds.iloc[0]["loss"] for r in runs]
    assert starts[0] == starts[1] == starts[2]
    other = small("fedavg", people, seed=1).history.rounds.iloc[0]["loss"]
    assert other != starts[0]


def test_work_batches_use_every_sample_once_per_epoch(people, small):
    work = ua.Work(epochs=2, batch_size=5)
    order = work.batches(12, generator(0, "batches", 0, 0))
    assert [len(b) for b in order] == [5, 5, 2] * 2
    assert sorted(np.concatenate(order[:3])) == list(range(12)) == sorted(np.concatenate(order[3:]))


def test_client_without_training_data_is_listed_and_never_trained(people, small):
    rows = small("ditto", people).history.clients.query("client == 3")
    assert rows["status"].unique().tolist() == ["no training data"]
    assert rows["n_train"].eq(0).all() and rows["accuracy"].notna().all()


def test_client_with_one_sample_is_trained(people, small):
    run = small("local_only", people, rounds=1)
    start = small("local_only", people, rounds=0)
    assert any(
        not torch.equal(run.personal("site2")[n], start.personal("site2")[n])
        for n in run.personal(2)
    )
    assert run.history.clients.query("client == 2 and round == 1")["status"].item() == "trained"


def test_run_without_training_samples_is_refused(people, small):
    with pytest.raises(ua.UnalikeError, match="none of the 1 clients has a training sample"):
        small("fedavg", [people[3]])


def test_history_metrics_without_test_samples_are_nan(people, small):
    run = small("ditto", [ua.ClientData(train=c.train) for c in people])
    assert (
        run.history.rounds["accuracy"].isna().all()
        and run.history.rounds["train_loss"].iloc[1:].notna().all()
    )
    assert run.history.clients["n_test"].eq(0).all()


# --- bytes ---------------------------------------------------------------------------------------------------------

FLOATS = 6 * 8 + 8 + 8 * 4 + 4
"""Parameters of mlp(hidden=(8,)) on six features and four classes."""
REPORT = 16
"""Samples, steps, the solver's weight and the loss of a report."""


@pytest.mark.parametrize(
    "spec, down, up",
    [
        ("fedavg", 4 * FLOATS, 4 * FLOATS + REPORT),
        ("ditto", 4 * FLOATS, 4 * FLOATS + REPORT),
        ("scaffold", 8 * FLOATS, 8 * FLOATS + REPORT),
        ("fedavgm", 4 * FLOATS, 4 * FLOATS + REPORT),
        ("local_only", 0, 0),
        ("centralised", 0, 0),
    ],
)
def test_history_bytes_per_round_match_method_messages(people, small, spec, down, up):
    rounds = small(spec, people, participation=0.4).history.rounds.iloc[1:]
    many = 2
    assert rounds["bytes_down"].tolist() == [many * down] * 3
    assert rounds["bytes_up"].tolist() == [many * up] * 3


def test_history_bytes_with_batch_norm_include_buffers(people, small):
    """Two float vectors of 6 and one int64 counter each way."""
    module = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4))
    rounds = small("fedavg", people, model=module, participation=0.4).history.rounds
    one = 4 * (12 + 28) + 4 * 12 + 8
    assert rounds["bytes_down"].iloc[1] == 2 * one and rounds["bytes_up"].iloc[1] == 2 * (
        one + REPORT
    )


# --- references and protocols --------------------------------------------------------------------------------------


def test_history_of_local_only_has_only_personal_metrics(people, small):
    run = small("local_only", people)
    shared = METRICS
    assert run.history.rounds[shared].isna().all(axis=None) and run.history.clients[
        shared
    ].isna().all(axis=None)
    assert run.history.rounds["personal_accuracy"].notna().all()
    assert (
        run.history.rounds["personal_loss"].iloc[-1] < run.history.rounds["personal_loss"].iloc[0]
    )


def test_centralised_equals_plain_sgd_on_pooled_data(people, small):
    run = small("centralised", people, executor="loop")
    start = small("centralised", people, rounds=0).module()
    optimizer = torch.optim.SGD(start.parameters(), lr=0.1)
    work = ua.Work(batch_size=5, lr=0.1)
    population = run.run_config.population.pooled()
    own = population.train[0]
    assert len(own) == sum(len(c.train[0]) for c in people)
    for number in range(3):
        for batch in work.batches(len(own), generator(0, "batches", number, 0)):
            rows = torch.from_numpy(own[batch])
            optimizer.zero_grad()
            nn.functional.cross_entropy(start(population.x[rows]), population.y[rows]).backward()
            optimizer.step()
    for name, value in start.state_dict().items():
        torch.testing.assert_close(run.params[name], value, rtol=1e-5, atol=1e-6)
    assert run.history.rounds["participants"].tolist() == [0, 1, 1, 1]


def test_history_with_several_protocols_has_columns_of_each(people, small, crowd):
    test = tuple(torch.cat([c.test[i] for c in people]) for i in (0, 1))
    run = small("fedavg", people, protocol=["clients", "server", "local", "personal"], test=test)
    rounds = run.history.rounds
    # the same samples in one heap
    assert rounds["server_accuracy"].tolist() == pytest.approx(rounds["accuracy"].tolist())
    assert rounds["personal_accuracy"].isna().all()  # FedAvg has no personal model
    assert (
        math.isnan(rounds["local_accuracy"].iloc[0])
        and rounds["local_accuracy"].iloc[1:].notna().all()
    )
    assert "server_accuracy" not in run.history.clients
    idle = run.history.clients.query("client == 3 and round == 1")
    assert math.isnan(idle["local_accuracy"].item())


def test_history_plain_columns_come_from_first_protocol(people, small):
    one, other = small("ditto", people), small("ditto", people, protocol="personal")
    assert (
        other.history.rounds["accuracy"].tolist()
        == one.history.rounds["personal_accuracy"].tolist()
    )
    assert "personal_accuracy" not in other.history.rounds
    test = people[0].test
    server = small("fedavg", people, protocol="server", test=test)
    assert server.history.rounds["accuracy"].notna().all()
    assert (
        server.history.clients["accuracy"].isna().all()
        and list(server.history.clients)[:-1] == CLIENTS
    )


def test_local_protocol_of_single_client_equals_model_after_round(people, small):
    """One client alone: FedAvg's model after the round is its own after local training."""
    run = small("fedavg", [people[0]], protocol=["clients", "local"])
    rounds = run.history.rounds.iloc[1:]
    assert rounds["local_loss"].tolist() == pytest.approx(rounds["loss"].tolist(), rel=1e-5)


@pytest.fixture(scope="module")
def very_many():
    """So many clients that not everybody has a row; each with one sample to train on and one to test with."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(10_001, 2, 3)).astype(np.float32), rng.integers(0, 2, (10_001, 2))
    return [
        ua.ClientData(train=(x[k, :1], y[k, :1]), test=(x[k, 1:], y[k, 1:])) for k in range(len(x))
    ]


@pytest.mark.parametrize("spec", ["ditto", "local_finetune", "local_only"])
def test_history_many_clients_evaluates_participants_with_personal_models(very_many, small, spec):
    run = small(spec, very_many, model="linear", rounds=2, participation=0.0004)
    table = run.history.clients
    assert table.groupby("round").size().to_dict() == {1: 4, 2: 4} and set(table["status"]) == {
        "trained"
    }
    pooled = table.groupby("round")["personal_accuracy"].mean().tolist()
    assert run.history.rounds["personal_accuracy"].tolist() == pytest.approx(
        [math.nan, *pooled], nan_ok=True
    )


@pytest.mark.parametrize("spec", ["centralised", "ccvr"])
def test_history_many_clients_pooled_shows_drawn_cohort(very_many, small, spec):
    """Where clients do not train: as in the same rounds of a method with which they do."""
    options = {"model": "linear", "participation": 0.0004}
    table, drawn = (small(s, very_many, **options).history.clients for s in (spec, "fedavg"))
    assert sorted(table["round"].unique()) == [1, 2, 3]
    assert (
        table.query("round == 1")["client"].tolist() == drawn.query("round == 1")["client"].tolist()
    )
    assert not table.query("round == 3")["accuracy"].isna().any()


@pytest.mark.parametrize(
    "protocol, message",
    [([], "no protocol"), ("sever", "did you mean 'server'"), ("server", "test=")],
)
def test_run_invalid_protocol_is_refused(people, small, protocol, message):
    with pytest.raises(ua.UnalikeError, match=message):
        small("fedavg", people, protocol=protocol)


def test_compare_unknown_option_is_refused(people):
    with pytest.raises(ua.UnalikeError, match="particpation"):
        ua.compare(["fedavg"], people, model="linear", rounds=1, seeds=1, particpation=0.5)


class Odd(nn.Module):
    """Does what a training step of many clients cannot bear."""

    def __init__(self, what):
        super().__init__()
        self.what, self.calls, self.head = what, 0, nn.Linear(6, 4)
        if what == "hooked":
            self.head.weight.register_hook(lambda g: 0 * g)
        if what == "kept":
            self.twice = 2 * self.head.weight

    def forward(self, x):
        self.calls += 1
        w = self.head.weight
        if self.what == "data clamped" and self.training:
            w.data.clamp_(-0.01, 0.01)
        if self.what == "clamped" and self.training:
            with torch.no_grad():
                w.clamp_(-9, 9)
        if self.what == "3d":
            return self.head(x).unsqueeze(2)
        if self.what == "detached":
            return self.head(x).detach()
        return self.head(x) * (self.calls if self.what == "counting" else 1)


class Words(nn.Module):
    """An embedding whose rows are cut to a norm whenever somebody looks at them."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4, max_norm=0.1), nn.Linear(4, 4)

    def forward(self, x):
        return self.head(self.table(x.long().clamp(0, 8)).mean(1))


def with_phase():
    """A model with a buffer of complex numbers."""
    module = nn.Linear(6, 4)
    module.register_buffer("phase", torch.ones(2, dtype=torch.complex64))
    return module


@pytest.mark.parametrize(
    "options, message",
    [
        ({"participation": 0}, "participation"),
        ({"rounds": -1}, "rounds"),
        ({"seed": -1}, "seed"),
        ({"buffers": "mine"}, "buffers"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"executor": "bached"}, "did you mean 'batched'"),
        ({"device": "cuda:99"}, "device"),
        ({"model": "mpl"}, "did you mean 'mlp'"),
        ({"model": nn.Linear(5, 4)}, r"cannot take samples of shape \[6\]"),
        (
            {"model": nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 4))},
            "writes over the samples",
        ),
        ({"model": Odd("detached")}, "outputs of the model have no gradient.*no_grad"),
        ({"model": with_phase()}, "the model's phase holds complex numbers.*view_as_real"),
        ({"model": nn.Linear(6, 4).half()}, r"parameter weight is float16.* give module.float\(\)"),
        ({"model": nn.Flatten()}, "no parameter that trains"),
        ({"model": nn.LazyLinear(4)}, "lazy layers.*call it once"),
        ({"model": Words()}, "writes over its parameter table.weight.*max_norm"),
        ({"model": Odd("clamped")}, r"writes over its parameter head.weight.*clamp\(-1, 1\)"),
        ({"model": Odd("data clamped")}, "writes over its parameter head.weight"),
        (
            {"model": Odd("counting")},
            "other values for its outputs when the same samples.*register_buffer",
        ),
        ({"model": Odd("hooked")}, "parameter head.weight has a hook on its gradient.*detach"),
        ({"model": Odd("kept")}, "cannot be copied.*compute it in forward"),
        ({"model": lambda: Odd("kept")}, "cannot be copied.*compute it in forward"),
        ({"model": Odd("3d")}, r"outputs of shape \[2, 4, 1\]"),
        (
            {"model": lambda size: nn.Linear(size, 4)},
            "missing 1 required positional argument.*of nothing",
        ),
        ({"model": nn.Linear(6, 3)}, "outputs of shape"),
        ({"model": 3}, "expected a name such as 'mlp'"),
        ({"work": {"lr": 1}}, "ua.Work"),
        ({"stop": 3}, "stop=3: expected a rule such as 'accuracy >= 0.9', or a function"),
        ({"metrics": [max]}, r"metrics=.*: expected names with functions"),
        ({"metrics": {"cost": 3}}, r"metrics=\{'cost': 3\}: expected names with functions"),
        ({"metrics": {"word": lambda *_: "good"}}, "metrics: word gives 'good'; expected a number"),
        (
            {"metrics": {"few": lambda y, *_: 1.0 if len(y) > 3 else "bad"}},
            "metrics: few gives 'bad'; expected a number",
        ),
        ({"test": 3}, "test: found int"),
        ({"test": (np.zeros((0, 6)), np.zeros(0, int))}, "test: found no sample"),
        ({"test": ([[1.0] * 6], [9])}, r"test: labels lie in 9..9, expected 0..3"),
        ({"proxy": ([[math.nan] * 6], [1])}, "proxy: x holds 6 NaN"),
        ({"test": ([[1.0] * 5], [1])}, "expected samples of shape"),
    ],
)
def test_run_invalid_options_are_refused(people, small, options, message):
    with pytest.raises(ua.UnalikeError, match=message):
        small("fedavg", people, **options)


@pytest.mark.parametrize("kind", [ua.Method, type(ua.plan("ifca"))])
def test_run_class_given_as_method_is_refused(people, small, kind):
    with pytest.raises(ua.UnalikeError, match="cannot be part of a method; expected a part"):
        ua.run(kind, people, model="linear", rounds=1)


def test_run_integer_features_for_float_model_error_suggests_float32(small):
    ages = [[31, 7], [64, 2], [45, 9]]
    with pytest.raises(
        ua.UnalikeError, match=r"whole numbers: words need --model textcnn.*astype\('float32'\)"
    ):
        small("fedavg", [ua.ClientData((ages, [0, 1, 0]))])
    with pytest.raises(
        ua.UnalikeError,
        match="largest number of a word is 64, which needs a vocabulary of 65 or more",
    ):
        small(
            "fedavg",
            [ua.ClientData((ages[::-1] + ages, [0, 1, 0] * 2))],
            model="textcnn(vocabulary=50)",
        )


@pytest.mark.parametrize("executor", ["auto", "loop", "batched"])
@pytest.mark.parametrize("label", [float, bool])
def test_run_non_integer_labels_with_two_outputs_are_refused(small, label, executor):
    """Also where there is no test sample that would show it."""
    x, y = torch.randn(12, 6), torch.arange(12) % 2
    clients = [ua.ClientData(train=(x, y.numpy().astype(label)))]
    with pytest.raises(
        ua.UnalikeError, match=r"\[2, 2\].*expected \[2, 1\].*integer labels make classes"
    ):
        small("fedavg", clients, model=nn.Linear(6, 2), executor=executor)
    small("fedavg", clients, model=nn.Linear(6, 1), executor=executor)


def test_progress_modified_row_leaves_history_unchanged(people, small):
    """The history is not what a person's functions are given."""

    def spoil(row, what=""):
        row.clear()
        return False

    watched = small("fedavg", people, progress=spoil, stop=spoil)
    assert (
        watched.history.rounds["round"].tolist()
        == small("fedavg", people).history.rounds["round"].tolist()
    )


def test_stop_function_returning_true_ends_the_run(people, small):
    seen = []
    run = small(
        "fedavg", people, rounds=9, stop=lambda row: seen.append(row["round"]) or row["round"] == 4
    )
    assert seen == [1, 2, 3, 4] and run.history.rounds["round"].iloc[-1] == 4


def test_progress_without_terminal_prints_nothing(people, small, capsys):
    small("fedavg", people)
    assert capsys.readouterr() == ("", "")


def test_progress_after_resume_receives_only_new_rows(people, small, tmp_path):
    seen = []
    for rounds in (2, 4, 4):
        small(
            "fedavg",
            people,
            rounds=rounds,
            out=tmp_path,
            progress=lambda row, what="": seen.append(row["round"]),
        )
    assert seen == [1, 2, 3, 4]
