"""Clients whose networks differ: `model=` with several by name, and a rule which client has which."""

import sys
import tomllib

import pytest
import torch
from safetensors.torch import load_file

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.runtime.processes import process_backend
from unalike.runtime.setup.client_networks import given_networks

NETWORKS = {"small": "mlp(hidden=(6, 5))", "large": "mlp(hidden=(12, 5))"}
"""Unlike bodies, and heads that read five features."""
NESTED = {"small": "mlp(hidden=(6,))", "large": "mlp(hidden=(12,))"}
PARAMETERS = {"small": 6 * 6 + 6 + 6 * 5 + 5 + 5 * 4 + 4, "large": 6 * 12 + 12 + 12 * 5 + 5 + 24}
HEAD_BYTES = 4 * (5 * 4 + 4)
RULE = "names(patterns=('site[01]', '*'))"
SPEC = f"networks(small={NETWORKS['small']!r}, large={NETWORKS['large']!r}, rule={RULE!r})"


def size(tensors):
    return sum(t.numel() for t in tensors.values())


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize("method", ["fedproto", "lg_fedavg", "fedmd", "local_only"])
def test_networks_of_a_method_train_and_each_client_predicts_with_its_own(
    crowd, small, method, executor
):
    run = small(method, crowd, model=SPEC, executor=executor, rounds=4)
    accuracy = run.history.rounds["personal_accuracy"]
    assert accuracy.iloc[-1] > accuracy.iloc[0]
    sizes = [size(run.personal(client)) for client in range(5)]
    assert sizes == [PARAMETERS["small"]] * 2 + [PARAMETERS["large"]] * 3


def test_lg_fedavg_over_networks_averages_one_head_and_counts_its_bytes(crowd, small):
    run = small("lg_fedavg", crowd, model=SPEC, rounds=2)
    heads = [run.personal(client)["head.weight"] for client in range(5)]
    assert all(torch.equal(heads[0], head) for head in heads)
    assert run.history.rounds["bytes_up"].iloc[-1] >= 5 * HEAD_BYTES
    assert run.history.rounds["bytes_up"].iloc[-1] < 5 * (HEAD_BYTES + 64)


@pytest.mark.parametrize("method", ["fedproto", "lg_fedavg", "fedmd", "heterofl"])
def test_equal_networks_by_two_names_train_as_one(crowd, small, method):
    equal = {"one": "mlp(hidden=(8,))", "other": "mlp(hidden=(8,))"}
    divided = small(method, crowd, model=equal, participation=0.6)
    together = small(method, crowd, model="mlp(hidden=(8,))", participation=0.6)
    for client in range(5):
        torch.testing.assert_close(divided.personal(client), together.personal(client))


def test_heterofl_averages_each_entry_over_the_networks_that_have_it(crowd, small, tmp_path):
    run = small("heterofl", crowd, model=NESTED, rounds=2, out=tmp_path)
    narrow = load_file(tmp_path / "model-small.safetensors")
    wide = load_file(tmp_path / "model-large.safetensors")
    torch.testing.assert_close(narrow["body.1.weight"], wide["body.1.weight"][:6])
    torch.testing.assert_close(narrow["head.weight"], wide["head.weight"][:, :6])
    assert run.has_models_of_clients


def test_run_of_networks_resumes_with_equal_bits_and_opens_from_its_folder(crowd, small, tmp_path):
    small("fedproto", crowd, model=SPEC, rounds=1, executor="loop", out=tmp_path)
    small("fedproto", crowd, model=SPEC, rounds=3, executor="loop", out=tmp_path)
    whole = small("fedproto", crowd, model=SPEC, rounds=3, executor="loop")
    opened = ua.open_run(tmp_path)
    for client in range(5):
        for name, values in whole.personal(client).items():
            assert torch.equal(opened.personal(client)[name], values)


def test_shares_are_drawn_by_the_seed_and_clusters_choose(crowd, small):
    shares = "networks(small='linear', large='mlp', rule='shares(of=(0.4, 0.6))')"
    runs = [small("local_only", crowd, model=shares, rounds=1, seed=seed) for seed in range(4)]
    groups = [run.run_config.groups["small"] for run in runs]
    assert {len(ids) for ids in groups} == {2}
    assert len({*groups}) > 1


def test_the_slowest_devices_have_the_first_network(crowd, small):
    slow = "networks(small='linear', large='mlp', rule='devices(of=(0.4, 0.6))')"
    run = small("local_only", crowd, model=slow, rounds=1, devices="lognormal(sigma=1)")
    speeds = run.run_config.options.device_model.rates(5, seed=0).samples_per_second
    assert sorted(run.run_config.groups["small"]) == sorted(speeds.argsort()[:2].tolist())
    with pytest.raises(UnalikeError, match="no simulated devices"):
        small("local_only", crowd, model=slow)


def test_methods_are_compared_on_networks_that_differ(crowd, tmp_path):
    methods = ["lg_fedavg", "local_only"]
    comparison = ua.compare(
        methods, crowd, model=NETWORKS, rounds=1, seeds=1, progress=False, out=tmp_path
    )
    assert set(comparison.rounds["method"]) == set(methods)
    # the settings in the report name all networks, and make the same ones again
    model = tomllib.loads(comparison.facts.config)["model"]
    assert dict(given_networks(model).models) == NETWORKS


@pytest.mark.parametrize(
    ("method", "model", "message"),
    [
        ("fedavg", NETWORKS, "averages body.1.weight, which has the shape"),
        ("scaffold", NETWORKS, "control_variates: found networks that differ"),
        ("fedproto", NESTED, "heads read equally many features"),
        (
            "fedmd",
            {"small": torch.nn.Linear(6, 4), "large": torch.nn.Linear(6, 5)},
            "equally many outputs",
        ),
        ("clustered", NETWORKS, "a plan with stages of its own"),
        ("fedproto", {"small": "mlp"}, "expected two or more by name"),
        ("fedproto", {"small": "mlp", "large": "mpl"}, "unknown model 'mpl'"),
        ("fedproto", SPEC.replace("'*'", "'nobody'"), "gives no network to site2"),
        ("fedproto", SPEC.replace("site[01]", "nobody"), "to no client with training samples"),
        ("fedproto", "networks(small=3, large='mlp')", "expected the text of a model"),
        ("fedproto", SPEC.replace(RULE, "shares(of=3)"), "found of=3, expected"),
        ("fedproto", SPEC.replace(RULE, "clusters(of=(0, 1))"), "found of=(0, 1), expected"),
    ],
)
def test_networks_that_cannot_be_trained_are_refused(crowd, small, method, model, message):
    with pytest.raises(UnalikeError) as error:
        small(method, crowd, model=model)
    assert message in str(error.value)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are started on Linux only")
@pytest.mark.parametrize(
    ("method", "model", "score"),
    [("heterofl", NESTED, "accuracy"), ("fedproto", SPEC, "personal_accuracy")],
)
def test_networks_train_in_several_processes_as_in_one(
    crowd, small, monkeypatch, method, model, score
):
    # each process scores a part of the samples of each network, however few there are
    monkeypatch.setattr(process_backend, "MIN_SHARED_SAMPLES", 1)
    alone = small(method, crowd, model=model, executor="loop")
    shared = small(method, crowd, model=model, executor="distributed(workers=2, inner='loop')")
    for client in range(5):
        torch.testing.assert_close(shared.personal(client), alone.personal(client))
    assert shared.history.rounds[score].tolist() == alone.history.rounds[score].tolist()


def test_networks_are_refused_where_one_model_of_all_is_evaluated(crowd, small):
    with pytest.raises(UnalikeError, match="the protocol 'server'"):
        small("heterofl", crowd, model=NETWORKS, protocol="server", test=crowd[0].train)
