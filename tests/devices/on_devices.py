"""No method, model or solver mixes devices: on one that is not the CPU everything runs, and gives the same numbers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pretended import KIND, There, here, module, pretended
from torch import nn

import unalike as ua
from unalike import teamwork
from unalike.core.errors import UnalikeError
from unalike.core.method import plan
from unalike.core.part import registry
from unalike.executors import auto

plan("fedavg")  # fills the registry
NAMES = sorted(set(registry) - {"cluster_oracle"})
"""All registered methods and plans but one that wants to know the true clusters."""
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Normed(nn.Module):
    """A convolution and a batch norm."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Linear(3 * 64, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).flatten(1))


def clients():
    g = torch.Generator().manual_seed(0)

    def some(n):
        return torch.randn(n, 1, 8, 8, generator=g), torch.randint(0, 3, (n,), generator=g)

    return [ua.ClientData(train=some(n), test=some(5)) for n in (6, 9, 12, 15)]


def train(method, device, executor="loop", model="mlp(hidden=(6,))", work=None, **more):
    """Two rounds, or more that go on from a folder."""
    proxy = clients()[0].test
    work = ua.Work(batch_size=4, lr=0.05, **({"momentum": 0.9} if work is None else work))
    options = {"rounds": 2, "seed": 1, "progress": lambda row, what="": None} | more
    return ua.run(method, clients(), model=model, work=work, proxy=proxy, executor=executor, device=device, **options)


def same(found, wanted):
    """Equal up to the order of sums, and on the device that was asked for."""
    theirs, ours = ([s.params for s in run._simulation.states.values()] for run in (found, wanted))
    for there, params in zip(theirs, ours, strict=True):
        for name, w in params.items():
            assert isinstance(there[name], There), name
            torch.testing.assert_close(here(there[name]), w, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        found.history.last["train_loss"], wanted.history.last["train_loss"], rtol=1e-3, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("name", NAMES)
def test_methods(name):
    for executor in ("loop", "batched"):
        with pretended():
            found = train(name, f"{KIND}:0", executor)
        same(found, train(name, "cpu", executor))


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize(
    "case",
    [
        {"model": Normed()},
        {"model": Normed(), "method": "fedbn", "buffers": "local", "participation": 0.5},
        {"model": Normed(), "method": "scaffold", "buffers": "first", "transform": "flip"},
        {"model": Normed(), "method": "fine_tuned", "work": {"optimiser": "adam"}},
        {"model": Normed(), "method": "fedrep", "work": {"momentum": 0.9, "keep_optimiser_state": True}},
        {"method": "scaffold", "work": {"optimiser": "adamw", "keep_optimiser_state": True}},
        {"work": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "clip": 1.0}},
        {"model": "cnn(channels=(3, 4))", "method": "conditional"},
        {"protocol": ("clients", "personal", "local")},
    ],
)
def test_models_solvers_and_going_on(executor, case, tmp_path):
    """Three rounds, of which the last goes on from a checkpoint."""
    case = {"method": "fedavg"} | case
    with pretended():
        for rounds in (2, 3):
            found = train(device=f"{KIND}:0", executor=executor, out=tmp_path, rounds=rounds, **case)
    same(found, train(device="cpu", executor=executor, rounds=3, **case))


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_rounded_steps(executor):
    """That they run: nothing is rounded on a device that is not there."""
    with pretended():
        found = train("fedprox", f"{KIND}:0", executor, Normed(), precision="bf16")
    assert all(here(w).isfinite().all() for w in found.params.values())


@pytest.mark.parametrize("long", [auto.LONG, 0.0])
def test_the_choice_of_an_executor(long, monkeypatch):
    """By rule, and by measurement."""
    monkeypatch.setattr(auto, "LONG", long)
    with pretended():
        found = train("moon", f"{KIND}:0", "auto")
    assert found._simulation.why.startswith("batched") and ("measured" in found._simulation.why) == (long == 0)
    same(found, train("moon", "cpu", "batched"))


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fine_tuned", "median", "ifca(clusters=2)"])
def test_every_process_of_a_team_has_a_device_of_its_own(method, tmp_path):
    """In a process of its own: threads that compute gradients on a device are not copied. Steps by hand: torch has no such
    threads for the second device of a kind that Python pretends."""
    script = "import sys, on_devices; on_devices.train_in_a_team(sys.argv[1], sys.argv[2])"
    paths = os.pathsep.join(sys.path)
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, method, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": paths},
        check=True,
    )


def train_in_a_team(method, folder):
    second, follow = Path(folder) / "second", teamwork._follow

    def noted(job, team):
        second.write_text(str(job.population.x.device))
        follow(job, team)

    teamwork._follow = noted
    executor = "distributed(workers=2, inner='batched')"
    with pretended():
        found = train(method, KIND, executor)
    assert second.read_text() == f"{KIND}:1"
    assert {str(w.device) for w in next(iter(found._simulation.states.values())).params.values()} == {f"{KIND}:0"}
    same(found, train(method, "cpu", executor))


def test_copies_of_a_process_cannot_use_its_device(monkeypatch):
    monkeypatch.setattr(module, "used", True)
    with pretended(), pytest.raises(UnalikeError, match="torchrun --nproc-per-node=2"):
        train("fedavg", KIND, "distributed(workers=2)")


@pytest.mark.parametrize("device", [f"{KIND}:2", "cuda:99", "meta", "anything"])
def test_devices_that_are_not_there(device):
    with pytest.raises(UnalikeError, match=f"device='{device}' cannot be used"):
        train("fedavg", device)
