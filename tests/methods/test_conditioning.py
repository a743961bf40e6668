"""Statistics of clients' data: their numbers, that they stay where they are, and what models make of them."""

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, same
from torch import nn

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core.types import Batch
from unalike.methods.method import Method
from unalike.methods.parts.conditioning import STATISTICS, Conditional
from unalike.models.registry import model
from unalike.training.wire import wire


def quiet(row, what=""):
    pass


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(9, 2, 2)), rng.integers(0, 3, 9)


def describe(data, outputs=3, **fields):
    x, y = data
    return (
        Conditional(**fields)
        .describe(Batch(torch.as_tensor(x), torch.as_tensor(y)), outputs)["statistic"]
        .numpy()
    )


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_conditional_statistics_equal_numpy(data):
    """float64, 1e-10."""
    x, y = data[0].reshape(9, 4), np.eye(3)[data[1]]
    both = np.concatenate([x, y], 1)
    covariance = np.cov(both.T)[:4, 4:]
    ones = np.concatenate([x, np.ones((9, 1))], 1)
    values, vectors = np.linalg.eigh(np.cov(both.T))
    components = vectors.T[np.argsort(-values)[:2]]
    components *= np.sign([c[np.abs(c).argmax()] for c in components])[:, None]
    centred = x - x.mean(0)
    expected = {
        "covariance": covariance,
        "ols": np.linalg.lstsq(ones, y, rcond=None)[0],
        "mean": x.mean(0),
        "moments": [x.mean(0), (centred**2).mean(0), (centred**3).mean(0)],
        "pca": components,
        "pooled_pca": components,
        "label_histogram": y.mean(0),
        "zeros": np.zeros((5, 3)),
    }
    assert set(expected) == set(STATISTICS)
    for name, value in expected.items():
        found = describe(data, statistic=name, order=3, components=2)
        np.testing.assert_allclose(found, np.ravel(value), rtol=1e-10, atol=1e-10, err_msg=name)


def test_regression_and_binary_labels_count_as_one_number(data):
    x = data[0].reshape(9, 4)
    ones = np.concatenate([x, np.ones((9, 1))], 1)
    for y in (data[0][:, 0, 0] * 2 + 1, data[1] > 0):
        y = y.astype(float)
        covariance = np.cov(np.concatenate([x, y[:, None]], 1).T)[:4, 4]
        np.testing.assert_allclose(
            describe((data[0], y), None, statistic="covariance"), covariance, rtol=1e-10
        )
        solution = np.linalg.lstsq(ones, y, rcond=None)[0]
        np.testing.assert_allclose(describe((data[0], y), None), solution, rtol=1e-10, atol=1e-12)


def test_zeros_statistic_like_another_has_its_length(data):
    for like in STATISTICS:
        found = describe(data, statistic="zeros", like=like, components=2)
        assert not found.any()
        assert like == "zeros" or found.shape == describe(data, statistic=like, components=2).shape


@pytest.mark.parametrize("rows", [0, 1, 2])
@pytest.mark.parametrize("name", STATISTICS)
def test_conditional_statistics_few_samples_are_finite(data, rows, name):
    found = describe((data[0][:rows], data[1][:rows]), statistic=name, components=3)
    assert (
        np.isfinite(found).all()
        and found.shape == describe(data, statistic=name, components=3).shape
    )
    if rows == 0:
        assert not found.any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ols_of_repeated_and_constant_columns_is_the_solution_of_least_norm(data, dtype):
    """Copies of a column share its coefficient, a constant 2 and the intercept share theirs as 2 : 1; predictions are those
    of the columns that differ, in both types of numbers."""
    x, y = data[0].reshape(9, 4)[:, :3].astype(dtype), data[1].astype(dtype)
    plain = describe((x, y), None)
    rows = np.concatenate([x, x[:, :1], np.full((9, 1), 2, dtype)], 1)
    first, second, third, copy, constant, intercept = describe((rows, y), None)
    tolerance = {"rel": 1e-4, "abs": 1e-5} if dtype is np.float32 else {"rel": 1e-10, "abs": 1e-10}
    assert [first + copy, second, third, 2 * constant + intercept] == pytest.approx(
        plain, **tolerance
    )
    assert first == pytest.approx(copy, **tolerance) and constant == pytest.approx(
        2 * intercept, **tolerance
    )


@pytest.mark.parametrize("rows", [1, 2, 4, 5])
def test_ols_of_no_more_samples_than_coefficients_fits_them_with_least_norm(data, rows):
    x, y = data[0].reshape(9, 4)[:rows], data[1][:rows].astype(float)
    ones = np.concatenate([x, np.ones((rows, 1))], 1)
    found = describe((x, y), None)
    np.testing.assert_allclose(ones @ found, y, atol=1e-10)
    np.testing.assert_allclose(found, np.linalg.lstsq(ones, y, rcond=None)[0], atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pca_directions_without_variance_give_zero_components(data, dtype):
    """Five equal samples have none, samples on a line of one class have one."""
    x = data[0].reshape(9, 4).astype(dtype)
    assert not describe((x[[0] * 5], np.zeros(5, int)), statistic="pca", components=2).any()
    line = x[0] + np.arange(7, dtype=dtype)[:, None] * x[1]
    first, *others = describe((line, np.zeros(7, int)), statistic="pca", components=3).reshape(3, 7)
    assert abs(first[:4] @ x[1]) == pytest.approx(np.linalg.norm(x[1]), rel=1e-5) and not np.any(
        others
    )


def test_pca_alike_clients_get_components_of_same_sign():
    """Shuffled samples of one law with a dominating direction: one sign, whatever the solver returns."""
    rng = np.random.default_rng(1)
    direction = np.array([3.0, -1, 0.5, 1])
    clients = [
        rng.normal(size=(200, 1)) * direction + 0.1 * rng.normal(size=(200, 4)) for _ in range(10)
    ]
    found = [describe((x, np.zeros(200, int)), 1, statistic="pca") for x in clients]
    assert all(f[0] > 0.8 for f in found) and np.std(found, 0).max() < 0.05


@pytest.mark.parametrize(
    "text, hint", [("order=0", "order"), ("statistic='median'", "statistic"), ("like='x'", "like")]
)
def test_conditional_wrong_fields_are_refused(text, hint):
    with pytest.raises(UnalikeError, match=hint):
        Method.parse(f"conditional({text})")


def test_conditional_statistics_of_tokens_are_refused():
    with pytest.raises(UnalikeError, match="tokens"):
        describe((np.ones((4, 3), np.int64), np.zeros(4, int)))


# --- who sees what ----------------------------------------------------------------------------------------------------


def leaves(nest):
    if isinstance(nest, torch.Tensor):
        yield nest
    elif isinstance(nest, dict):
        for value in nest.values():
            yield from leaves(value)
    elif isinstance(nest, tuple):
        for value in nest:
            yield from leaves(value)


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize("statistic", ["covariance", "mean", "pca", "label_histogram"])
def test_conditional_statistics_never_leave_client(statistic, executor):
    """No tensor of a report has a statistic's shape or holds its numbers; the wire and the memories hold nothing of it."""
    clients = Clients.random((7, 3, 5), dim=4, classes=3)
    method = f"fedprox + conditional(statistic={statistic!r})"
    length = {"covariance": 12, "mean": 4, "pca": 7, "label_histogram": 3}[statistic]
    sim = Simulation(
        method,
        model(f"conditional_mlp(hidden=(6,), statistic={length})", (4,), 3),
        clients,
        executor=executor,
        lr=0.1,
    )
    cohort = sim.round()
    facts = [sim.executor.client_pool.context(k)["conditional"]["statistic"] for k in range(3)]
    assert not same(facts[0], facts[1]) and facts[0].shape == (length,)
    assert cohort.stacked.shared == {} and cohort.stacked.messages == {} and sim.memory(0) == {}
    assert set(cohort.update) == set(sim.params)
    numbers = np.concatenate([t.numpy().ravel() for t in leaves(tuple(cohort.stacked))])
    assert not np.isin(
        np.concatenate([f.numpy() for f in facts])[np.concatenate(facts) != 0], numbers
    ).any()
    plain, conditioned = (wire(Method.parse(m), sim.settings.model) for m in ("fedprox", method))
    assert plain == conditioned and all("conditional" not in item.what for item in conditioned)


def test_conditional_statistics_other_test_data_change_nothing():
    x, y = np.random.default_rng(0).normal(size=(8, 3)), np.zeros(8)
    for extra in (0.0, 100.0):
        clients = [ua.ClientData(train=(x, y), test=(x + extra, y + extra))]
        run = ua.run(
            "conditional(statistic='mean')",
            clients,
            model="conditional_linear",
            rounds=0,
            progress=quiet,
        )
        found = run._runner.state.groups["all"].context(0)["conditional"]["statistic"]
        np.testing.assert_allclose(found.numpy(), x.mean(0), rtol=1e-6, atol=1e-7)  # float32


def test_pooled_pca_all_clients_get_same_components():
    clients = Clients.random((7, 3, 5), dim=4, classes=3)
    sims = [
        Simulation(
            f"conditional(statistic={s!r})", model("conditional_mlp(statistic=7)", (4,), 3), clients
        )
        for s in ("pooled_pca", "pca")
    ]
    pooled, own = (
        [s.executor.client_pool.context(k)["conditional"]["statistic"] for k in range(3)]
        for s in sims
    )
    assert same(pooled[0], pooled[1]) and same(pooled[0], pooled[2]) and not same(own[0], own[1])
    expected = describe((clients.x[1:], clients.y[1:]), statistic="pca")
    np.testing.assert_allclose(pooled[0].numpy(), expected, rtol=1e-5, atol=1e-6)  # float32
    assert [p.pooled for s in sims for p in s.method.conditioners] == [True, False]


def test_batched_executor_conditional_models_equal_loop():
    """1e-5 of the update; ragged clients, one of a single sample."""
    clients = Clients.random((7, 1, 5), dim=4, classes=3)
    for name in (
        "conditional_linear",
        "conditional_ensemble(experts=3)",
        "conditional_mlp(hidden=(6,))",
    ):
        sims = [
            Simulation(
                "conditional",
                model(name, (4,), 3),
                clients,
                executor=e,
                epochs=2,
                batch_size=2,
                lr=0.1,
            )
            for e in ("loop", "batched")
        ]
        for sim in sims:
            sim.round(), sim.round()
        for n, w in sims[0].params.items():
            torch.testing.assert_close(sims[1].params[n], w, rtol=1e-4, atol=1e-6)


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clusters():
    return ua.partition(
        ua.load("linear_clusters(clusters=3, clients=15, points=100)"),
        "natural(cluster='cluster')",
        clients=45,
    )


def test_conditional_ensemble_linear_clusters_beats_shared_model(clusters):
    """SEMANTICS of the Local Statistics paper: one model for all stays near sqrt(10 100/3 (1 - 1/3)) = 14.9 (this draw of
    clusters: 15.1); least squares on a client reach 0.106, and so does local training; an ensemble that sees the least-squares
    solution reaches 0.6 after 60 rounds (0.8 and 0.7 with two other seeds; with the covariance 0.9, 0.8 and, stuck, 10.8)."""
    work = ua.Work(epochs=5, batch_size=20, lr=0.02, optimizer="adamw", weight_decay=1e-3)
    alone = ua.Work(epochs=20, batch_size=None, lr=0.1)

    def last(spec, model, rounds, work, column):
        run = ua.run(
            spec,
            clusters,
            model=model,
            rounds=rounds,
            work=work,
            evaluate_every=rounds,
            progress=quiet,
        )
        return run.history.rounds[column].iloc[-1]

    shared = last("fedavg", "linear", 20, ua.Work(lr=0.05, batch_size=None), "rmse")
    assert 13 < shared < 17
    assert last("local_only", "linear", 10, alone, "personal_rmse") == pytest.approx(
        0.106, abs=0.004
    )
    zeros = last("conditional(statistic='zeros')", "conditional_ensemble", 5, work, "rmse")
    assert zeros > 0.9 * shared
    ensemble = last("conditional", "conditional_ensemble", 60, work, "rmse")
    assert ensemble < 0.1 * shared


def test_evaluation_conditional_model_uses_own_statistic_of_each_client(clusters):
    """`clients` and `personal` agree client by client with the shared parameters and the client's own facts."""
    run = ua.run(
        "conditional(statistic='ols')",
        clusters,
        model="conditional_linear",
        rounds=2,
        work=ua.Work(lr=0.001),
        progress=quiet,
        protocol=("clients", "local"),
    )
    assert run.config["model"]["name"] == "conditional_linear(statistic=11)"
    assert run.run_config.model_name == "conditional_linear"
    table = run.history.clients
    module, last = run.module(), table[table["round"] == 2].set_index("client")
    part = Conditional(statistic="ols")
    for k in (0, 20, 44):
        data = run.run_config.population[k]
        facts = part.describe(Batch(*data.train), None)
        with torch.no_grad():
            found = module(data.test[0], {"conditional": facts})[:, 0]
        rmse = float(((found - data.test[1]) ** 2).mean() ** 0.5)
        row = last.iloc[k] if k in last.index else last.loc[run.run_config.population.names[k]]
        assert row["rmse"] == pytest.approx(rmse, rel=1e-5)
        assert row["personal_rmse"] == pytest.approx(row["rmse"], rel=1e-5)
    assert np.isfinite(run.history.rounds["local_rmse"].iloc[-1])


def test_conditional_model_without_conditioner_is_refused(clusters):
    with pytest.raises(UnalikeError, match=r"found none.*conditional\(statistic="):
        ua.run("fedavg", clusters, model="conditional_linear", rounds=1, progress=quiet)


def test_conditional_model_statistic_of_wrong_length_is_refused(clusters):
    with pytest.raises(UnalikeError, match=r"shape \(11,\), expected \(5,\)"):
        ua.run(
            "conditional(statistic='ols')",
            clusters,
            model="conditional_mlp(statistic=5)",
            rounds=1,
            progress=quiet,
        )


def test_conditional_model_server_protocol_is_refused(clusters):
    x, y = clusters[0].test
    with pytest.raises(
        UnalikeError, match="feeds its model facts of each client's own samples; use 'clients'"
    ):
        ua.run(
            "conditional",
            clusters,
            model="conditional_linear",
            rounds=1,
            protocol="server",
            test=(x, y),
            progress=quiet,
        )


def test_conditional_with_plain_model_equals_fedavg(clusters):
    """A plain model is not fed anything: the same path as FedAvg, and nothing personal to record."""
    a, b = (
        ua.run(s, clusters, model="linear", rounds=1, progress=quiet)
        for s in ("fedavg + conditional", "fedavg")
    )
    assert same(a.params, b.params) and list(a.history.rounds) == list(b.history.rounds)


def test_conditional_cnn_pca_of_images_runs_with_finite_loss():
    """[pixels, labels] of digits; the model takes pixels as a channel, labels beside the features."""
    digits = ua.partition(ua.load("digits"), "pathological(classes=2)", clients=5)
    run = ua.run(
        "fedprox + conditional(statistic='pca')",
        digits,
        model="conditional_cnn(channels=(4, 4), hidden=8)",
        rounds=1,
        progress=quiet,
    )
    assert run._runner.state.groups["all"].context(0)["conditional"]["statistic"].shape == (
        64 + 10,
    )
    assert (
        np.isfinite(run.history.rounds["loss"]).all() and "personal_accuracy" in run.history.rounds
    )


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_conditional_mlp_run_equals_numpy_also_on_clients_that_never_trained(executor):
    """MLP([x, mu]) with mu as it is (nothing is standardized), float32: one of three clients a round, two rounds."""
    rng = np.random.default_rng(2)
    samples = [
        (rng.normal(size=(n, 2)) + rng.normal(size=2), rng.integers(0, 2, n)) for n in (9, 12, 10)
    ]
    people, ids = [ua.ClientData(train=(x[3:], y[3:]), test=(x[:3], y[:3])) for x, y in samples], []

    def cohort(number, cohorts, before, after):
        ids.extend(k for c in cohorts.values() for k in c.ids)
        return []

    options = {"participation": 0.34, "executor": executor, "record": cohort, "progress": False}
    work = ua.Work(batch_size=None, lr=0.5)
    run = ua.run(
        "conditional", people, model="conditional_mlp(hidden=4)", rounds=2, work=work, **options
    )
    assert len(ids) == 2
    first, second, third, fourth = run.run_config.model.params
    w = {n: t.double().numpy() for n, t in run.run_config.model.params.items()}

    def outputs(x, k):
        ones = np.concatenate([samples[k][0][3:], np.ones((len(samples[k][0]) - 3, 1))], 1)
        mu = np.linalg.lstsq(ones, np.eye(2)[samples[k][1][3:]], rcond=None)[0].ravel()
        rows = np.concatenate([x, np.tile(mu, (len(x), 1))], 1)
        h = np.maximum(rows @ w[first].T + w[second], 0)
        return rows, h, h @ w[third].T + w[fourth]

    for k in ids:
        x, y = samples[k][0][3:], samples[k][1][3:]
        rows, h, z = outputs(x, k)
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        d = (p - np.eye(2)[y]) / len(y)
        a = (d @ w[third]) * (h > 0)
        steps = {first: a.T @ rows, second: a.sum(0), third: d.T @ h, fourth: d.sum(0)}
        w = {n: value - 0.5 * steps[n] for n, value in w.items()}
    for n, value in w.items():
        np.testing.assert_allclose(run.params[n].numpy(), value, rtol=1e-5, atol=1e-6, err_msg=n)
    losses = run.history.clients.query("round == 2")["loss"].to_numpy()
    for k, (x, y) in enumerate(samples):
        z = outputs(x[:3], k)[2]
        expected = np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(3), y[:3]])
        assert losses[k] == pytest.approx(expected, rel=1e-5)


def test_custom_module_with_context_receives_statistic(clusters):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(11, 1)

        def forward(self, x, context):
            mean = context["conditional"]["statistic"].mean()
            return self.head(torch.cat([x, mean.expand(len(x), 1)], 1))

    run = ua.run("conditional(statistic='mean')", clusters, model=Own, rounds=1, progress=quiet)
    assert np.isfinite(run.history.rounds["personal_rmse"]).all()


def test_stored_run_keeps_its_statistic_whatever_the_default(clusters, tmp_path):
    """A run folder names every field: one of the covariance is read back with it, and goes on with it."""
    run = ua.run(
        "conditional(statistic='covariance')",
        clusters,
        model="conditional_linear",
        rounds=1,
        out=tmp_path,
        progress=quiet,
    )
    stored = ua.open_run(tmp_path)
    assert "statistic='covariance'" in stored.config["method"]
    assert stored.config["model"]["name"] == "conditional_linear(statistic=10)"
    assert same(stored.params, run.params)
    with pytest.raises(UnalikeError, match="covariance"):
        ua.run(
            "conditional",
            clusters,
            model="conditional_linear",
            rounds=2,
            out=tmp_path,
            progress=quiet,
        )
