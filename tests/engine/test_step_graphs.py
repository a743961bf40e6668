"""Recorded local steps: equal to plain ones for every method, and refused where a replay would differ."""

import random

import pytest
import torch
from every_method import METHODS, played
from host_graphs import HostRecorder
from simulation import Clients, Simulation
from torch import nn

import unalike as ua
from unalike.engine import step_graphs
from unalike.methods.method import Method
from unalike.methods.roles import Objective

GENERATING = {"average_generator", "ensemble_generator", "fedgen"}
"""Methods whose clients draw numbers by round and step."""
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def on_host(monkeypatch):
    monkeypatch.setattr(step_graphs, "CudaRecorder", HostRecorder)


def refusal(sim):
    return sim.executor.graphs.refused


@pytest.mark.parametrize("executor", ["loop", "by hand"])
@pytest.mark.parametrize("name", METHODS)
def test_replayed_steps_equal_plain_steps(name, executor, monkeypatch):
    """Three rounds of ragged clients: the second step of each form is recorded, later ones are replays."""
    plain, _ = played(METHODS[name], executor, 3, norm=True)
    monkeypatch.setattr(step_graphs, "CudaRecorder", HostRecorder)
    replayed, _ = played(METHODS[name], executor, 3, norm=True)
    private = METHODS[name].local_gradient is not None
    assert (refusal(replayed) is None) == (
        not private and not GENERATING & {p.name for p in METHODS[name].parts}
    )
    for n, w in plain.params.items():
        torch.testing.assert_close(replayed.params[n], w, rtol=1e-5, atol=1e-6)
    for client in plain.everyone():
        torch.testing.assert_close(
            replayed.memory(client), plain.memory(client), rtol=1e-4, atol=1e-5
        )
    for client, tuned in plain.tuned().items() if plain.method.finetuning_phase else ():
        torch.testing.assert_close(replayed.tuned()[client], tuned, rtol=1e-5, atol=1e-6)


def simulated(module, method="fedavg", **work):
    sim = Simulation(
        method,
        module,
        Clients.random((8, 8, 12)),
        **({"batch_size": 4, "lr": 0.1, "epochs": 2} | work),
    )
    for _ in range(3):
        sim.round()
    return sim


class Own(nn.Module):
    """A linear layer, with a change of its input."""

    def __init__(self, change):
        super().__init__()
        torch.manual_seed(0)
        self.change, self.head = change, nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.change(x))


@pytest.mark.parametrize(
    "work",
    [{"optimizer": "adam"}, {"schedule": 0.5}, {"momentum": 0.9, "keep_optimizer_state": True}],
)
@pytest.mark.parametrize("executor", ["loop", "by hand"])
def test_replayed_solvers_equal_plain_ones(executor, work, monkeypatch):
    plain = simulated(Own(nn.Identity()), executor=executor, **work)
    monkeypatch.setattr(step_graphs, "CudaRecorder", HostRecorder)
    replayed = simulated(Own(nn.Identity()), executor=executor, **work)
    assert refusal(replayed) is None
    for n, w in plain.params.items():
        torch.testing.assert_close(replayed.params[n], w, rtol=1e-5, atol=1e-6)


def at_random(x):
    return x if random.random() < 0.5 else -x


def by_value(x):
    return x / x.detach().abs().max().clamp_min(1).item()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (at_random, "draws random numbers on the host"),
        (nn.Dropout(0.5), "draws random numbers on the host"),
        (by_value, "waits"),
    ],
)
def test_modules_whose_replay_would_differ_are_not_recorded(change, reason, on_host):
    """Dropout draws its numbers from the device's generator, which on a CPU is the host's."""
    random.seed(0)
    with pytest.warns(UserWarning, match=f"kernel by kernel.*{reason}"):
        replayed = simulated(Own(change))
    assert reason in refusal(replayed)


@ua.part
class Reading(Objective):
    """Adds a term that depends on what differs between replays."""

    what: str = "round"

    def loss(self, client, batch):
        found = {"round": client.round, "step": client.step, "data": client.data}[self.what]
        return client.params["head.weight"].sum() * (0.1 if found == 1 else 0.2)


@pytest.mark.parametrize("what", ["round", "step", "data"])
def test_parts_that_read_what_differs_between_replays_are_not_recorded(what, monkeypatch):
    plain = simulated(Own(nn.Identity()), Method(Reading(what)))
    monkeypatch.setattr(step_graphs, "CudaRecorder", HostRecorder)
    replayed = simulated(Own(nn.Identity()), Method(Reading(what)))
    assert "reads the round" in refusal(replayed)
    for n, w in plain.params.items():
        assert torch.equal(replayed.params[n], w)


def test_errors_of_a_part_are_raised_as_without_recording(on_host):
    def wrong(x):
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        simulated(Own(wrong))


@pytest.mark.parametrize(
    ("limit", "value", "kept"), [("MAX_RECORDED_PHASES", 2, 2), ("MAX_RECORDED_BYTES", 1, 1)]
)
def test_no_more_phases_are_kept_than_the_limit(limit, value, kept, on_host, monkeypatch):
    monkeypatch.setattr(step_graphs, limit, value)
    sim = simulated(Own(nn.Identity()), schedule=0.9)
    assert len(sim.executor.graphs._phases) == kept and refusal(sim) is None


def test_memory_that_runs_out_frees_the_recorded_phases(on_host, monkeypatch):
    sim = simulated(Own(nn.Identity()), executor="by hand")
    assert sim.executor.graphs._phases

    def full(self, batch, first):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(step_graphs.RecordedPhase, "__call__", full)
    with pytest.raises(torch.OutOfMemoryError):
        sim.round([0])
    assert not sim.executor.graphs._phases and refusal(sim) is None
