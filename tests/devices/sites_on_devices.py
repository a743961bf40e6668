"""A site that trains on a device sends CPU tensors, and the results equal those of the simulation."""

import pytest
import torch
from pretended import KIND, There, pretended
from small_federation import SmallFederation, key_of, states

import unalike as ua
from unalike.federation.site.site_worker import SiteWorker


class SiteOnDevice:
    """A site with a pretended device."""

    def __init__(self, *about):
        with pretended():
            self.worker = SiteWorker(*about, device=f"{KIND}:0")

    def handle(self, message):
        with pretended():
            return self.worker.handle(message)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "method",
    [
        "fedavg",
        "fednova",
        "scaffold",
        "ditto",
        "fedrep",
        "fedavg + local_finetune",
        "fedgen",
        "ifca(clusters=2)",
        "data_sharing",
        "fedconcat(clusters=2, encoder_rounds=1, classifier_rounds=1)",
        "topk(error_feedback=True)",
    ],
)
def test_site_on_device_equals_simulation(method, tmp_path):
    """Also with a restart after a round."""
    work = ua.Work(batch_size=5, lr=0.1, momentum=0.9, keep_optimizer_state=method == "scaffold")
    proxy = (torch.randn(8, 6), torch.arange(8) % 4) if method == "data_sharing" else None
    fed = SmallFederation(
        tmp_path, method=method, work=work, proxy=proxy, protocol=("clients", "personal")
    )
    client = fed.clients[0]
    for stop in (lambda history: history.last["round"] == 1, None):
        fed.workers[client.name] = SiteOnDevice(
            fed.federation, client.name, key_of(0), client, tmp_path / client.name
        )
        run = fed.run(stop=stop)
    assert len(run.history) == 1 + fed.federation.rounds
    assert isinstance(fed.workers[client.name].worker.population.x, There)
    found, wanted = states(run), states(fed.simulated())
    for group, params in wanted.items():
        for name, t in params.items():
            torch.testing.assert_close(found[group][name], t, rtol=1e-4, atol=1e-5)
