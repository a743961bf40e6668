"""`centralised + conditional`: pooled training, in which each sample comes with the statistic of its client."""

import pytest
import torch

import unalike as ua
from unalike import UnalikeError


@pytest.fixture(scope="module")
def clusters():
    data = ua.load("linear_clusters(clusters=2, clients=3, points=20, features=4)")
    return ua.partition(data, "natural(cluster='cluster')")


def trained(spec, clients, model="conditional_ensemble(experts=3)", **options):
    work = options.pop("work", ua.Work(batch_size=None, lr=0.01))
    return ua.run(spec, clients, model=model, rounds=3, work=work, progress=False, **options)


@pytest.mark.parametrize(
    "model", ["conditional_linear", "conditional_ensemble(experts=3)", "conditional_mlp(hidden=8)"]
)
def test_centralised_conditional_with_full_batches_equals_fedsgd_conditional(clusters, model):
    """Clients of equal size: the mean of their full-batch gradients is the gradient of the pooled samples."""
    pooled = trained("centralised + conditional", clusters, model)
    federated = trained("fedsgd + conditional", clusters, model, executor="loop")
    for name, value in federated.params.items():
        torch.testing.assert_close(pooled.params[name], value, rtol=1e-5, atol=1e-6)
    assert pooled.history.last["rmse"] == pytest.approx(federated.history.last["rmse"], rel=1e-5)
    assert pooled.history.last["bytes_up"] == 0


def test_centralised_conditional_of_images_equals_fedsgd_conditional():
    clients = ua.partition(ua.load("digits"), "classes(k=3)", clients=10)
    clients = [ua.ClientData(tuple(t[:40] for t in c.train), c.test) for c in clients]
    spec = "conditional(statistic='pca')"
    model = "conditional_cnn(channels=(4, 4), hidden=8)"
    pooled, federated = (
        trained(f"{m} + {spec}", clients, model, executor="loop") for m in ("centralised", "fedsgd")
    )
    for name, value in federated.params.items():
        torch.testing.assert_close(pooled.params[name], value, rtol=1e-4, atol=1e-5)


def test_centralised_conditional_resumes_bit_for_bit(clusters, tmp_path):
    options = {
        "work": ua.Work(batch_size=7, lr=0.01),
        "model": "conditional_linear",
        "progress": False,
    }
    whole = ua.run("centralised + conditional", clusters, rounds=4, **options)
    ua.run("centralised + conditional", clusters, rounds=2, out=tmp_path, **options)
    resumed = ua.run("centralised + conditional", clusters, rounds=4, out=tmp_path, **options)
    assert all(torch.equal(resumed.params[name], value) for name, value in whole.params.items())


def test_centralised_with_another_part_is_refused(clusters):
    with pytest.raises(UnalikeError, match="pooled data"):
        trained("centralised + proximal(mu=1)", clusters, "linear")


def test_conditioner_added_to_centralised_joins_its_method():
    added = ua.plan("centralised + conditional(statistic='mean')")
    assert ua.Method.parse(added.method) == ua.Method.parse("conditional(statistic='mean')")
    assert ua.plan(repr(added)) == added


def test_transform_with_facts_of_pooled_samples_is_refused():
    clients = ua.partition(ua.load("digits"), "iid", clients=3)
    with pytest.raises(UnalikeError, match="transform"):
        trained(
            "centralised + conditional(statistic='pca')",
            clients,
            "conditional_cnn(channels=(4, 4))",
            transform="normalize(mean=0.5, std=0.5)",
        )
