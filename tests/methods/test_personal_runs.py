"""Runs of personalized methods: what is recorded, and that evaluation and interruption change nothing."""

import numpy as np
import pytest
import torch
from simulation import mlp, same
from torch import nn

import unalike as ua
from unalike.core.views import Cohort
from unalike.training.server.kept_updates import KeptUpdates

METHODS = [
    "fedbabu(epochs=2)",
    "fedrep(epochs=2)",
    "fedala(threshold=0.5)",
    "perfedavg",
    "pfedme",
    "local_finetune",
    "fedbn",
]
WORK = ua.Work(batch_size=8, lr=0.05)


def clients():
    rng = np.random.default_rng(0)
    made = []
    for n in (12, 20, 9):
        x = rng.normal(size=(n + 10, 4)) + rng.normal(size=4)
        y = (x @ rng.normal(size=(4, 3))).argmax(1)
        made.append(ua.ClientData(train=(x[:n], y[:n]), test=(x[n:], y[n:])))
    return made


def run(spec, rounds=4, model=None, **more):
    def quiet(row, what=""):
        pass

    made = model or mlp(norm="fedbn" in spec)
    return ua.run(spec, clients(), model=made, rounds=rounds, work=WORK, progress=quiet, **more)


def predictions(run, k):
    module = run.run_config.model.module(
        {n: run.personal(k)[n] for n in run.run_config.model.params}, _buffers(run, k)
    ).eval()
    x, y = run.run_config.population[k].test
    with torch.no_grad():
        return nn.functional.cross_entropy(module(x), y).item()


def _buffers(run, k):
    return {n: run.personal(k)[n] for n in run.run_config.model.buffers}


@pytest.mark.parametrize("spec", METHODS)
def test_history_personal_loss_equals_loss_of_personal_models(spec):
    done = run(spec)
    last = done.history.clients.query("round == 4")
    common = not spec.startswith(
        ("fedrep", "fedbn")
    )  # whose heads or norms are trained and never sent
    assert np.isfinite(done.history.rounds["personal_loss"]).all()
    assert (np.isfinite(done.history.rounds["loss"]) == common).all()
    for k in range(3):
        assert last["personal_loss"].iloc[k] == pytest.approx(predictions(done, k), rel=1e-5)
    assert list(done.personal(0)) == list(done.module().state_dict())


@pytest.mark.parametrize("spec", METHODS)
def test_run_evaluated_more_often_gives_same_models(spec):
    often, seldom = run(spec), run(spec, evaluate_every=4)
    assert same(often.params, seldom.params)
    assert (
        often.history.rounds["personal_loss"].iloc[-1]
        == seldom.history.rounds["personal_loss"].iloc[-1]
    )


@pytest.mark.parametrize("spec", METHODS)
def test_run_interrupted_and_resumed_equals_whole_run(spec, tmp_path):
    """Stopped after two rounds in a folder, then resumed: shared and personal models as in one go."""

    def stop(row, what=""):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ua.run(
            spec,
            clients(),
            model=mlp(norm="fedbn" in spec),
            rounds=4,
            work=WORK,
            out=tmp_path,
            progress=stop,
        )
    resumed, whole = run(spec, out=tmp_path), run(spec)
    assert same(resumed.params, whole.params)
    assert all(same(resumed.personal(k), whole.personal(k)) for k in range(3))


def kept(run):
    """The models that the clients of a round sent and kept, in a run of two rounds: the first one's end, trained on."""
    group, sim = run._runner.state.groups["all"], run._runner
    before = group.state
    order = group.broadcast([0, 1, 2])
    cohort = Cohort((0, 1, 2), group.executor.run(order, [0, 1, 2], group.accepted), group.members)
    group.move(group.gather(KeptUpdates.in_memory(cohort.ids, cohort.stacked)))
    for k in cohort.ids:
        learnt = {n: before.params[n] + u[k] for n, u in cohort.update.items()}
        yield k, {n: learnt.get(n, sim.personal(k)[n]) for n in run.run_config.model.params}


@pytest.mark.parametrize("spec", ["fedper", "fedrep(epochs=2)", "fedbn", "local_only"])
def test_local_protocol_evaluates_models_before_averaging(spec):
    """What is shared, too, and not as it was averaged."""
    short, done = run(spec, rounds=2), run(spec, rounds=3, protocol=("clients", "local"))
    found = done.history.clients.query("round == 3")["local_loss"].tolist()
    for k, params in kept(short):
        model, (x, y) = short.run_config.model, short.run_config.population[k].test
        with torch.no_grad():
            logits = model(params, x, buffers=_buffers(short, k)).logits
        assert found[k] == pytest.approx(nn.functional.cross_entropy(logits, y).item(), rel=1e-4)


@pytest.mark.parametrize("executor", ["loop", "distributed(workers=2)"])
def test_local_buffers_are_used_in_evaluation_of_each_client(executor):
    """The shared parameters with each client's batch-norm statistics; no model is everybody's."""
    more = {"model": mlp(norm=True), "buffers": "local"}
    done = run("fedavg", executor=executor, **more)
    last = done.history.clients.query("round == 4")
    for k in range(3):
        assert last["loss"].iloc[k] == pytest.approx(predictions(done, k), rel=1e-5)
        assert any(not torch.equal(b, done.params[n]) for n, b in _buffers(done, k).items())
    with pytest.raises(
        ua.UnalikeError, match="this run leaves each client its own batch-norm statistics"
    ):
        run("fedavg", protocol="server", test=clients()[0].test, **more)
    pooled = run("centralised", rounds=2, **more)
    assert same(pooled.params, run("centralised", rounds=2, model=mlp(norm=True)).params)


@pytest.mark.parametrize("executor", ["loop", "batched", "distributed(workers=2)"])
@pytest.mark.parametrize("spec", ["fedavg", "fedprox(mu=0.1) + server_momentum"])
def test_own_statistics_score_three_protocols_in_one_run(spec, executor):
    """Averaged statistics and own ones on the same shared parameters: the plain run, and that with local buffers."""
    more = {
        "model": mlp(norm=True),
        "executor": executor,
        "participation": 0.7,
        "protocol": ("clients", "local"),
    }
    done, plain = run(f"{spec} + own_statistics", **more), run(spec, **more)
    local = run(spec, buffers="local", **more)
    for name, other in (("clients", plain), ("personal", local)):
        for column in ("loss", "accuracy"):
            found = done.history.rounds[column if name == "clients" else f"personal_{column}"]
            assert found.tolist() == pytest.approx(
                other.history.rounds[column].tolist(), rel=1e-6, abs=1e-7
            )
    assert done.history.rounds["local_loss"].tolist() == pytest.approx(
        plain.history.rounds["local_loss"].tolist(), rel=1e-6, nan_ok=True
    )
    assert (done.history.rounds["loss"] != done.history.rounds["personal_loss"]).iloc[1:].all()
    for k in range(3):
        own, others = done.personal(k), local.personal(k)
        assert all(torch.allclose(t, others[n], rtol=1e-5, atol=1e-6) for n, t in own.items())
        assert any(not torch.equal(own[n], done.params[n]) for n in done.run_config.model.buffers)
    assert ua.wire(f"{spec} + own_statistics", mlp(norm=True)) == ua.wire(spec, mlp(norm=True))


def test_own_statistics_need_a_momentum_and_are_the_shared_model_without_batch_norm():
    averaging = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 3))
    with pytest.raises(
        ua.UnalikeError, match="batch norm '1' has momentum=None; expected a number"
    ):
        run("own_statistics", rounds=1, model=averaging)
    bare = run("own_statistics", rounds=2).history.rounds
    assert bare["loss"].tolist() == pytest.approx(bare["personal_loss"].tolist(), rel=1e-5)


@pytest.mark.parametrize("spec", METHODS)
def test_local_protocol_every_method_records_local_loss(spec):
    done = run(spec, rounds=1, protocol=("clients", "local"))
    assert np.isfinite(done.history.rounds["local_loss"].iloc[-1])
    if spec.startswith("fedbabu"):  # the trained body under the initial head, not fine-tuned
        assert (
            done.history.rounds["local_loss"].iloc[-1]
            != done.history.rounds["personal_loss"].iloc[-1]
        )


def test_compare_personal_methods_records_personal_columns(tmp_path):
    table = ua.compare(
        [
            "fedavg",
            "fedbabu(epochs=1)",
            "conditional(statistic='mean')",
            "conditional(statistic='ols')",
        ],
        clients(),
        model="mlp(hidden=(5,))",
        rounds=2,
        seeds=1,
        work=WORK,
        progress=lambda row, what="": None,
    )
    assert "personal_accuracy" in table.rounds
    conditional = ua.compare(
        ["conditional(statistic='mean')", "conditional(statistic='ols')"],
        clients(),
        model="conditional_mlp(hidden=(5,))",
        rounds=2,
        seeds=1,
        work=WORK,
        out=tmp_path,
        progress=lambda row, what="": None,
    )
    assert np.isfinite(conditional.rounds["personal_loss"]).all()
    assert 'model = "conditional_mlp(hidden=(5,))"' in (tmp_path / "config.toml").read_text()


@pytest.mark.parametrize(
    "spec", ["fedrep(epochs=2)", "fedala(threshold=0.5)", "pfedme", "fedbabu(epochs=2)"]
)
def test_transform_in_every_phase_equals_data_transformed_beforehand(spec):
    """Normalized images: as training, fine-tuning and FedALA's weights on samples that are normalized beforehand. The executors
    agree with flips drawn as well; 1e-5 (float32)."""
    rng = np.random.default_rng(0)
    raw = [
        (rng.normal(5, 2, size=(n, 1, 4, 4)).astype(np.float32), rng.integers(0, 3, n))
        for n in (12, 20, 9)
    ]

    def done(images, executor="loop", **more):
        made = [ua.ClientData(train=(x, y), test=(x, y)) for x, y in images]
        quiet = {"progress": lambda row, what="": None}
        return ua.run(
            spec,
            made,
            model="mlp(hidden=(6,))",
            rounds=3,
            work=WORK,
            executor=executor,
            **quiet,
            **more,
        )

    a = done(raw, transform="normalize(mean=(5,), std=(2,))")
    b = done([((x - 5) / 2, y) for x, y in raw])
    for one, other in (
        (a, b),
        [
            done(raw, e, transform="normalize(mean=(5,), std=(2,)) + flip")
            for e in ("loop", "batched")
        ],
    ):
        for k in range(3):
            for n, w in one.personal(k).items():
                torch.testing.assert_close(other.personal(k)[n], w, rtol=1e-4, atol=1e-5)
        columns = [c for c in one.history.rounds if "loss" in c]
        np.testing.assert_allclose(
            other.history.rounds[columns], one.history.rounds[columns], rtol=1e-4
        )
