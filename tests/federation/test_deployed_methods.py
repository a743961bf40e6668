"""Every registered method and plan gives the same results in a federation as in simulation."""

from __future__ import annotations

import inspect

import pytest
from deployed_methods import FEW, FIRST_COUNT, SAMPLE_SIZES, SITES_ONLY, SPECS, agree
from every_method import PLANS
from small_federation import SmallFederation, make_clients, needs_proxy

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.federation.protocol.federation_file import Schema
from unalike.methods.plan import steps_of

VARIANTS = [
    "topk(error_feedback=True)",
    "fedavg + local_finetune",
    "scaffold + ditto + fedavgm",
    "fedbn",
    "fedpac(scored='combined')",
    "ifca(clusters=2, method='ditto')",
]
NAMES = [n for n in PLANS if n not in SITES_ONLY and n not in FIRST_COUNT]


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_deployed_method_equals_simulation(name, tmp_path):
    spec = SPECS.get(name, str(PLANS.get(name, name)))
    crowded = spec.startswith(("clustered", "fedconcat"))
    clients = make_clients(SAMPLE_SIZES if crowded else FEW)
    model = "conditional_mlp(hidden=(8,))" if "conditional" in spec else "mlp(hidden=(8,))"
    proxy = make_clients(((8, 8),))[0].test if needs_proxy(spec, clients) else None
    plan = ua.plan(spec)
    rounds = 3 if crowded else 2
    fed = SmallFederation(
        tmp_path,
        clients,
        spec,
        model=model,
        rounds=rounds,
        proxy=proxy,
        protocol=("clients", "local"),
    )
    agree(fed)
    assert inspect.isgenerator(steps_of(plan, fed.coordinator() and _scene(fed)))
    assert not fed.events("refused", "absent", "late")


def _scene(fed):
    from unalike.federation.protocol.roster import Roster, placeholders, run_config_of

    roster = Roster.load(fed.out / "roster.json")
    return run_config_of(
        fed.federation, placeholders(fed.federation, roster), fed.test, fed.proxy
    ).plan_inputs


@pytest.mark.parametrize("name", sorted(SITES_ONLY))
def test_method_needing_all_data_is_refused(name, tmp_path):
    with pytest.raises(UnalikeError, match=SITES_ONLY[name]):
        SmallFederation(tmp_path, method=name).run()


def test_partial_participation_and_server_test_equal_simulation(tmp_path):
    clients = make_clients(SAMPLE_SIZES)
    fed = SmallFederation(
        tmp_path,
        clients,
        "scaffold + local_finetune",
        rounds=5,
        participation=0.5,
        evaluate_every=2,
        protocol=("server", "clients", "personal"),
        test=clients[0].test,
    )
    run = agree(fed)
    assert (run.history.rounds["participants"][1:] == 2).all()


def test_server_test_samples_get_same_transform_as_sites(tmp_path):
    clients = make_clients(FEW, (1, 4, 4))
    agree(
        SmallFederation(
            tmp_path,
            clients,
            model="cnn(channels=(4,))",
            transform="normalize(mean=0.5, std=0.25) + flip",
            protocol=("server", "clients"),
            test=clients[0].test,
        )
    )


def test_plan_with_group_models_has_no_server_model(tmp_path):
    clients = [
        ua.ClientData(train=c.train, test=c.test, val=other.test, name=c.name)
        for c, other in zip(make_clients(), make_clients(((5, 7), (5, 4))))
    ]
    fed = SmallFederation(
        tmp_path, clients, "ifca(clusters=2)", protocol=("server", "clients"), test=clients[0].test
    )
    table = agree(fed).history.rounds
    assert (
        table[["accuracy", "val_accuracy"]].isna().all(axis=None)
        and table["clients_val_accuracy"].notna().all()
    )


def test_local_buffers_equal_simulation(tmp_path):
    for buffers in ("average", "local", "first"):
        clients = make_clients(FEW, (1, 4, 4))
        fed = SmallFederation(
            tmp_path / buffers,
            clients,
            "ditto",
            model="cnn(channels=(4,), norm='batch')",
            buffers=buffers,
        )
        agree(fed)


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_frozen_encoder_keeps_batch_norm_statistics(buffers, tmp_path):
    spec, model = SPECS["fedconcat"], "cnn(channels=(4,), norm='batch')"
    agree(
        SmallFederation(
            tmp_path,
            make_clients(SAMPLE_SIZES, (1, 4, 4)),
            spec,
            model=model,
            rounds=3,
            buffers=buffers,
        )
    )


@pytest.mark.parametrize("spec", ["fedavg + local_finetune", "fedbabu", "ditto"])
def test_site_without_training_samples_is_evaluated(spec, tmp_path):
    clients = list(make_clients())
    x, y = clients[1].train
    clients[1] = ua.ClientData(train=(x[:0], y[:0]), test=clients[1].test, name="site1")
    table = agree(SmallFederation(tmp_path, clients, spec)).history.clients
    assert table["personal_accuracy"][table["client"] == 1].notna().all()


def test_validation_samples_equal_simulation(tmp_path):
    clients = [
        ua.ClientData(train=c.train, test=c.test, val=other.test, name=c.name)
        for c, other in zip(make_clients(), make_clients(((5, 7), (5, 4))))
    ]
    run = agree(SmallFederation(tmp_path, clients, "ditto"))
    assert {"val_accuracy", "personal_val_accuracy"} <= set(run.history.rounds.columns)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_binary_and_regression_equal_simulation(task, tmp_path):
    made = []
    for c in make_clients():
        x, y = (c.train[0], c.test[0]), (c.train[1], c.test[1])
        y = [v > 1 if task == "binary" else v.float() for v in y]
        made.append(ua.ClientData(train=(x[0], y[0]), test=(x[1], y[1]), name=c.name))
    run = agree(
        SmallFederation(
            tmp_path,
            made,
            "scaffold",
            data=Schema(shape=(6,), task=task),
            protocol=("clients", "local"),
        )
    )
    assert any("roc_auc" in note for note in run.notes) == (task == "binary")
    if task == "binary":
        assert (
            run.history.clients["roc_auc"].notna().any()
            and run.history.clients["local_average_precision"].notna().any()
        )


def test_chosen_metric_that_sites_cannot_pool_leaves_the_decision_to_the_next(tmp_path):
    """Sites send what sums need; the area under a ROC curve needs all scores, a mean such as log_loss does not."""
    made = [
        ua.ClientData(
            train=(c.train[0], c.train[1] > 1), test=(c.test[0], c.test[1] > 1), name=c.name
        )
        for c in make_clients()
    ]
    schema = Schema(shape=(6,), task="binary")
    chosen = SmallFederation(tmp_path, made, data=schema, metric=("roc_auc", "log_loss"))
    run, alone = chosen.run(), chosen.simulated(metric=("roc_auc", "log_loss"))
    rounds, clients = run.history.rounds, run.history.clients
    assert alone.history.columns.metric.name == "roc_auc"
    assert run.history.columns.metric.name == "log_loss"
    assert [
        next(c for c in table if run.history.columns.named(c)) for table in (rounds, clients)
    ] == ["log_loss"] * 2
    assert rounds["roc_auc"].isna().all() and clients["roc_auc"].notna().any()
    assert rounds["log_loss"].to_numpy() == pytest.approx(
        alone.history.rounds["log_loss"].to_numpy()
    )
    assert any("roc_auc" in note and "decides" in note for note in run.notes)
