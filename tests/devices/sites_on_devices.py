"""A site may train on a device of its own: what it sends lies on the CPU, and the numbers are those of the simulation."""

import pytest
import torch
from pretended import KIND, There, pretended
from small_federation import SmallFederation, key_of, states

import unalike as ua
from unalike.federation.site.site_worker import SiteWorker


class Afar:
    """A site that has one."""

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
def test_one_site_on_a_device(method, tmp_path):
    """Killed after a round, too."""
    work = ua.Work(batch_size=5, lr=0.1, momentum=0.9, keep_optimizer_state=method == "scaffold")
    proxy = (torch.randn(8, 6), torch.arange(8) % 4) if method == "data_sharing" else None
    world = SmallFederation(tmp_path, method=method, work=work, proxy=proxy, protocol=("clients", "personal"))
    client = world.clients[0]
    for stop in (lambda row: row["round"] == 1, None):
        world.workers[client.name] = Afar(world.federation, client.name, key_of(0), client, tmp_path / client.name)
        run = world.run(stop=stop)
    assert len(run.history) == 1 + world.federation.rounds
    assert isinstance(world.workers[client.name].worker.population.x, There)
    found, wanted = states(run), states(world.simulated())
    for group, params in wanted.items():
        for name, t in params.items():
            torch.testing.assert_close(found[group][name], t, rtol=1e-4, atol=1e-5)
