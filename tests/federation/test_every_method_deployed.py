"""Every registered method and plan as a federation of messages: the numbers are those of the simulation."""

from __future__ import annotations

import inspect

import pandas as pd
import pytest
import torch
from small_federation import SmallFederation, make_clients, needs_proxy, states

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.federation.protocol.federation_file import Schema
from unalike.methods.part import registry
from unalike.methods.plan import steps_of
from unalike.metrics.metric_sums import AREAS

SITES_ONLY = {
    "centralised": "pools the clients' data",
    "cluster_oracle": "true clusters",
}
"""What cannot be had where data stay on their sites, and what the refusal says."""
FEW = ((20, 8), (12, 6))
SAMPLE_SIZES = ((20, 8), (12, 6), (6, 3), (16, 6))

SPECS = {
    "ccvr": "ccvr",
    "clustered": "clustered(eps1=100, eps2=0.001, warmup=1)",
    "conditional": "fedavg + conditional",
    "fedconcat": "fedconcat(clusters=2, encoder_rounds=1, classifier_rounds=1)",
    "ifca": "ifca(clusters=2)",
}
VARIANTS = [
    "topk(error_feedback=True)",
    "fedavg + local_finetune",
    "scaffold + ditto + fedavgm",
    "fedbn",
    "ifca(clusters=2, method='ditto')",
]
NAMES = [n for n in sorted(registry) if n not in SITES_ONLY]


def same(a, b):
    """Bitwise: sites compute what the loop of a simulation computes, on the same samples in the same order."""
    assert list(a) == list(b)
    for group in a:
        assert list(a[group]) == list(b[group])
        for name, t in a[group].items():
            assert torch.equal(t, b[group][name]), f"{group}: {name}"


def close(a: pd.DataFrame, b: pd.DataFrame):
    """The simulation may put many clients into one batch: 1e-5. Areas under curves of all sites follow from no sums and counts."""
    assert list(a.columns) == list(b.columns)
    curves = [name for name in a.columns if name.endswith(AREAS)] if "client" not in a else []
    assert a[curves].isna().all(axis=None)
    a, b = (t.drop(columns=["seconds", *curves], errors="ignore") for t in (a, b))
    pd.testing.assert_frame_equal(a, b, check_exact=False, rtol=1e-5, atol=1e-6, check_dtype=False)


def agree(world: SmallFederation):
    ours, theirs = world.run(), world.simulated()
    same(states(ours), states(theirs))
    close(ours.history.rounds, theirs.history.rounds)
    close(ours.history.clients, theirs.history.clients)
    return ours


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_two_sites_and_two_rounds_agree_with_the_simulation(name, tmp_path):
    spec = SPECS.get(name, name)
    crowded = spec.startswith(("clustered", "fedconcat"))
    clients = make_clients(SAMPLE_SIZES if crowded else FEW)
    model = "conditional_mlp(hidden=(8,))" if "conditional" in spec else "mlp(hidden=(8,))"
    proxy = make_clients(((8, 8),))[0].test if needs_proxy(spec, clients) else None
    plan = ua.plan(spec)
    rounds = 3 if crowded else 2
    world = SmallFederation(
        tmp_path, clients, spec, model=model, rounds=rounds, proxy=proxy, protocol=("clients", "local")
    )
    agree(world)
    assert inspect.isgenerator(steps_of(plan, world.coordinator() and _scene(world)))
    assert not world.events("refused", "absent", "late")


def _scene(world):
    from unalike.federation.protocol.roster import Roster, placeholders, run_config_of

    roster = Roster.load(world.out / "roster.json")
    return run_config_of(world.federation, placeholders(world.federation, roster), world.test, world.proxy).plan_inputs


@pytest.mark.parametrize("name", sorted(SITES_ONLY))
def test_what_needs_all_data_in_one_place_is_refused(name, tmp_path):
    with pytest.raises(UnalikeError, match=SITES_ONLY[name]):
        SmallFederation(tmp_path, method=name).run()


def test_participation_evaluation_every_other_round_and_a_held_out_test(tmp_path):
    clients = make_clients(SAMPLE_SIZES)
    world = SmallFederation(
        tmp_path,
        clients,
        "scaffold + local_finetune",
        rounds=5,
        participation=0.5,
        evaluate_every=2,
        protocol=("server", "clients", "personal"),
        test=clients[0].test,
    )
    run = agree(world)
    assert (run.history.rounds["participants"][1:] == 2).all()


def test_the_coordinators_test_samples_are_prepared_as_the_sites_are(tmp_path):
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


def test_a_plan_with_a_model_for_each_group_has_none_for_the_server(tmp_path):
    clients = [
        ua.ClientData(train=c.train, test=c.test, val=other.test, name=c.name)
        for c, other in zip(make_clients(), make_clients(((5, 7), (5, 4))))
    ]
    world = SmallFederation(tmp_path, clients, "ifca(clusters=2)", protocol=("server", "clients"), test=clients[0].test)
    table = agree(world).history.rounds
    assert table[["accuracy", "val_accuracy"]].isna().all(axis=None) and table["clients_val_accuracy"].notna().all()


def test_batch_norm_and_local_buffers(tmp_path):
    for buffers in ("average", "local", "first"):
        clients = make_clients(FEW, (1, 4, 4))
        world = SmallFederation(
            tmp_path / buffers, clients, "ditto", model="cnn(channels=(4,), norm='batch')", buffers=buffers
        )
        agree(world)


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_encoders_that_stay_as_they_are_keep_their_statistics(buffers, tmp_path):
    spec, model = SPECS["fedconcat"], "cnn(channels=(4,), norm='batch')"
    agree(
        SmallFederation(tmp_path, make_clients(SAMPLE_SIZES, (1, 4, 4)), spec, model=model, rounds=3, buffers=buffers)
    )


@pytest.mark.parametrize("spec", ["fedavg + local_finetune", "fedbabu", "ditto"])
def test_a_site_that_only_tests_is_evaluated(spec, tmp_path):
    clients = list(make_clients())
    x, y = clients[1].train
    clients[1] = ua.ClientData(train=(x[:0], y[:0]), test=clients[1].test, name="site1")
    table = agree(SmallFederation(tmp_path, clients, spec)).history.clients
    assert table["personal_accuracy"][table["client"] == 1].notna().all()


def test_validation_samples_of_the_sites(tmp_path):
    clients = [
        ua.ClientData(train=c.train, test=c.test, val=other.test, name=c.name)
        for c, other in zip(make_clients(), make_clients(((5, 7), (5, 4))))
    ]
    run = agree(SmallFederation(tmp_path, clients, "ditto"))
    assert {"val_accuracy", "personal_val_accuracy"} <= set(run.history.rounds.columns)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_other_tasks(task, tmp_path):
    made = []
    for c in make_clients():
        x, y = (c.train[0], c.test[0]), (c.train[1], c.test[1])
        y = [v > 1 if task == "binary" else v.float() for v in y]
        made.append(ua.ClientData(train=(x[0], y[0]), test=(x[1], y[1]), name=c.name))
    run = agree(
        SmallFederation(tmp_path, made, "scaffold", data=Schema(shape=(6,), task=task), protocol=("clients", "local"))
    )
    assert any("auroc" in note for note in run.notes) == (task == "binary")
    if task == "binary":
        assert run.history.clients["auroc"].notna().any() and run.history.clients["local_auprc"].notna().any()
