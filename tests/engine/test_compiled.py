"""Compiled steps are those of `torch.vmap`; where nothing can be compiled, everything else stays as it is."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from simulation import Clients, Simulation, distance, same
from torch import nn

import unalike as ua
from unalike.engine import auto, compiled_step
from unalike.engine.batched import Batched
from unalike.methods.plan import steps_of
from unalike.runtime.run_config import prepare_run
from unalike.runtime.stage_runner import StageRunner as Stage

pytestmark = pytest.mark.filterwarnings("ignore")
SIZES = (7, 3, 1, 5)


def dense():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3))


def played(method, compile, module=dense, sizes=SIZES, **more):
    work = {"epochs": 2, "batch_size": 4, "lr": 0.1, "momentum": 0.9} | more
    sim = Simulation(method, module(), Clients.random(sizes), executor="batched", **work)
    sim.executor = Batched(sim.executor.client_pool, compile=compile)
    sim.round(), sim.round([0, 1, 3])
    return sim


def gap(method, **more):
    plain, stepwise = (played(method, compile, **more) for compile in (False, True))
    assert "compiled in" in stepwise.executor.remark and not plain.executor.remark, stepwise.executor.remark
    for k in range(len(SIZES)):
        torch.testing.assert_close(plain.memory(k), stepwise.memory(k), rtol=1e-4, atol=1e-6)  # float32
    return distance(plain.params, stepwise.params, plain.settings.model.params)


@pytest.fixture
def traced(monkeypatch):
    """The whole way but for the compiler itself: the traced graph runs as it is."""
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="there is no C++ compiler")
def test_a_compiled_step_is_the_step():
    """Ragged clients, one with a single sample; momentum, and corrections that look at memories."""
    assert gap("fedprox(mu=0.1) + scaffold") < 1e-6  # of the update
    again, more = (played("fedprox(mu=0.1) + scaffold", True) for _ in range(2))
    assert same(again.params, more.params)


class Skip(nn.Module):
    """Batch norm and a connection around a layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.norm, self.head = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x + self.norm(self.one(x)).relu())


OTHERS = {
    "a solver that counts": ("fedavg", {"optimizer": "adam", "momentum": 0.0}),
    "a solver that is kept": ("scaffold", {"keep_optimizer_state": True, "weight_decay": 0.01, "clip": 1.0}),
    "a second model": ("ditto", {}),
    "two phases": ("fedrep", {}),
    "remembered models": ("moon", {}),
    "buffers": ("fedavg", {"module": Skip}),
    "all samples": ("scaffold(option=1)", {}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_steps(name, traced):
    method, more = OTHERS[name]
    assert gap(method, **more) < 1e-6


def test_what_is_traced_draws_no_numbers_of_the_run(traced):
    """Else a run that goes on, and traces again, would not be the run that went through."""
    module = lambda: nn.Sequential(dense(), nn.Dropout(0.5), nn.Linear(3, 3))  # noqa: E731
    one, two = played("fedavg", True, module), played("fedavg", True, module)
    two.executor = Batched(two.executor.client_pool, compile=True)
    one.round(), two.round()
    assert same(one.params, two.params)


STRANGE = {
    "a part that goes by the number of the step": ("apfl", {}, "value out of a tracing tensor"),
    "a learning rate that changes": ("fedavg", {"schedule": 0.9}, "changes from round to round"),
    "many kinds of steps": ("fedavg", {"batch_size": None, "sizes": (7, 3, 1, 5)}, "more than 1 kinds of steps"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_what_cannot_be_compiled_is_trained_as_before(name, traced, monkeypatch):
    method, more, why = STRANGE[name]
    monkeypatch.setattr(compiled_step, "LIMIT", 1)
    plain, stepwise = (played(method, compile, **more) for compile in (False, True))
    assert stepwise.executor.remark.startswith("not compiled: ") and why in stepwise.executor.remark
    assert distance(stepwise.params, plain.params, plain.settings.model.params) < 1e-6


def test_a_compiler_that_fails_is_a_remark(monkeypatch):
    def refuse(graph, **_):
        raise NotImplementedError("no such instruction\nat line 1")

    monkeypatch.setattr(torch, "compile", refuse)
    sim = played("fedavg", True)
    assert sim.executor.remark == "not compiled: NotImplementedError: no such instruction"
    assert same(sim.params, played("fedavg", False).params)


SCRIPT = """
import sys, torch, unalike as ua
torch.set_num_threads(1)
data = ua.partition(ua.load("digits"), "iid", clients=4, seed=0)
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4), torch.nn.GELU(), torch.nn.Linear(4, 10))
run = ua.run("fedavg", data, model=net, rounds=1, executor="batched(compile=True)", out=sys.argv[1])
print(run.executor)
"""


@pytest.mark.slow
def test_without_a_compiler(tmp_path):
    """The run goes on, and says so."""
    places = {
        "CXX": "/nonexistent",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(ua.__file__).parents[1]),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "out")],
        env=os.environ | places,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "batched(compile=True): asked for; not compiled: " in done.stdout
    events = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    [said] = [e for e in events if e["event"] == "executor"]
    assert said["round"] == 1 and "not compiled" in said["executor"]


def stage(rounds, samples=(20,) * 12, **work):
    g = torch.Generator().manual_seed(0)
    people = [ua.ClientData(train=(torch.randn(n, 4, generator=g), torch.arange(n) % 3)) for n in samples]
    run_config = prepare_run("fedavg", people, model=dense(), rounds=rounds, work=ua.Work(**{"batch_size": 5} | work))
    return Stage(next(steps_of(run_config.plan, run_config.plan_inputs)), run_config.settings, run_config.population)


def test_long_runs_of_few_kinds_of_steps_are_compiled(monkeypatch):
    monkeypatch.setattr(auto, "_trial", lambda site, make, clients: 1e-3 if clients == 12 else 1.0)
    assert "compile" not in stage(5 * 10**4).choice.executor  # ten minutes
    long = stage(10**6).choice
    assert long.executor == "batched(chunk=12, compile=True)" and "200 minutes of steps are worth compiling" in long.why
    assert "compile" not in stage(10**6, samples=(3,) + (20,) * 11).choice.executor  # smaller batches are another kind
    assert "compile" not in stage(10**6, schedule=0.99).choice.executor
