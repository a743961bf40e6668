"""Methods, models and solvers run on a device other than the CPU, with the same results and without mixing devices."""

import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pandas as pd
import pytest
import torch
from every_method import PLANS
from pretended import KIND, There, Wires, here, module, pretended
from torch import nn

import unalike as ua
from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike.engine import auto
from unalike.engine.multiprocess import worker_pool
from unalike.engine.multiprocess.channel import BACKENDS, Channel
from unalike.metrics.columns import TIMES
from unalike.runtime.processes import worker_process

NAMES = sorted(PLANS.keys() - {"cluster_oracle"})
"""All methods and plans but one that needs the true clusters."""
PATHS = os.pathsep.join([str(Path(__file__).parent), *sys.path])
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Normed(nn.Module):
    """A convolution and a batch norm."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = (
            nn.Conv2d(1, 3, 3, padding=1),
            nn.BatchNorm2d(3),
            nn.Linear(3 * 64, 3),
        )

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).flatten(1))


def clients(shape=(1, 8, 8)):
    g = torch.Generator().manual_seed(0)

    def some(n):
        return torch.randn(n, *shape, generator=g), torch.randint(0, 3, (n,), generator=g)

    return [ua.ClientData(train=some(n), test=some(5)) for n in (2, 5, 6, 8)]


def train(method, device, executor="loop", model="mlp(hidden=(6,))", work=None, **more):
    """Train two rounds, or resume from a folder."""
    # combat corrects rows, not images
    shape = (64,) if method == PLANS["combat"] else (1, 8, 8)
    owners = clients(shape)
    proxy = owners[0].test
    work = ua.Work(batch_size=4, lr=0.05, **({"momentum": 0.9} if work is None else work))
    options = {"rounds": 2, "seed": 1, "progress": lambda row, what="": None} | more
    return ua.run(
        method,
        owners,
        model=model,
        work=work,
        proxy=proxy,
        executor=executor,
        device=device,
        **options,
    )


def same(found, wanted):
    """Check that results are equal up to the order of summation, and on the requested device."""
    theirs, ours = (
        [s.params for s in run._runner.state.states.values()] for run in (found, wanted)
    )
    for there, params in zip(theirs, ours, strict=True):
        for name, w in params.items():
            assert isinstance(there[name], There), name
            torch.testing.assert_close(here(there[name]), w, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        found.history.last["train_loss"],
        wanted.history.last["train_loss"],
        rtol=1e-3,
        atol=0,
        equal_nan=True,
    )


@pytest.mark.parametrize("name", NAMES)
def test_method_on_device_equals_cpu(name):
    wanted = train(PLANS[name], "cpu", "batched")
    for executor in ("loop", "batched"):
        with pretended():
            found = train(PLANS[name], f"{KIND}:0", executor)
        same(found, wanted)


def test_isolated_seeds_device_generator_and_restores_it():
    before = [g.get_state() for g in module.generators]
    with pretended(), pytest.raises(KeyError), seeds.isolated(7, f"{KIND}:1"):
        seeded = torch.Generator().manual_seed(7).get_state()
        assert torch.equal(module.generators[1].get_state(), seeded) and torch.equal(
            torch.get_rng_state(), seeded
        )
        assert torch.equal(module.generators[0].get_state(), before[0])
        raise KeyError
    assert all(
        torch.equal(g.get_state(), state)
        for g, state in zip(module.generators, before, strict=True)
    )


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize(
    "case",
    [
        {"model": Normed()},
        {"model": Normed(), "method": "fedbn", "buffers": "local", "participation": 0.5},
        {"model": Normed(), "method": "scaffold", "buffers": "first", "transform": "flip"},
        {
            "model": Normed(),
            "method": "fine_tuned",
            "work": {"optimizer": "adam"},
            "transform": "crop(padding=1) + flip",
        },
        {
            "model": Normed(),
            "method": "fedrep",
            "work": {"momentum": 0.9, "keep_optimizer_state": True},
        },
        {"method": "scaffold", "work": {"optimizer": "adamw", "keep_optimizer_state": True}},
        {"work": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "clip": 1.0}},
        {"model": "cnn(channels=(3, 4))", "method": "conditional"},
        {"protocol": ("clients", "personal", "local")},
    ],
)
def test_model_and_solver_on_device_equal_cpu_after_resuming(executor, case, tmp_path):
    """Three rounds, the last one resumed from a checkpoint."""
    case = {"method": "fedavg"} | case
    with pretended():
        for rounds in (2, 3):
            found = train(
                device=f"{KIND}:0", executor=executor, out=tmp_path, rounds=rounds, **case
            )
    same(found, train(device="cpu", executor=executor, rounds=3, **case))


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_bf16_on_device_runs(executor):
    """Only that it runs: pretended devices do not round."""
    with pretended():
        found = train("fedprox", f"{KIND}:0", executor, Normed(), precision="bf16")
    assert all(here(w).isfinite().all() for w in found.params.values())


def test_auto_executor_on_device_trains_large_steps_one_after_the_other(monkeypatch):
    monkeypatch.setattr(auto, "MIN_CLIENTS_PER_STEP", 2.0)
    monkeypatch.setattr(auto, "MAX_STACKED_FLOPS_ON_DEVICE", 1.0)
    with pretended():
        found = train("fedavg", f"{KIND}:0", "auto")
    assert "loop: a step is work enough" in str(found._runner.executor)


@pytest.mark.parametrize("long", [auto.MEASURE_FROM_SECONDS, 0.0])
def test_auto_executor_on_device_is_chosen(long, monkeypatch):
    """By rule, and by measurement."""
    monkeypatch.setattr(auto, "MEASURE_FROM_SECONDS", long)
    monkeypatch.setattr(auto, "MIN_CLIENTS_PER_STEP", 2.0)  # four clients are enough to be stacked
    with pretended():
        found = train("moon", f"{KIND}:0", "auto")
    why = found._runner.executor
    assert ("measured" in why) == (long == 0)
    assert (
        "batched(chunk=" in why if long == 0 else why.startswith("batched")
    )  # what is faster here, a clock decides
    same(found, train("moon", "cpu", "batched"))


def alone(function, *arguments):
    """Run a function of this module in a new process: autograd's device threads do not survive a fork."""
    script = f"import sys, on_devices; on_devices.{function}(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


TEAMS = [
    ("scaffold", False),
    ("scaffold", True),
    ("fine_tuned", True),
    ("median", True),
    ("ifca(clusters=2)", False),
]
"""Methods for two processes, and whether these send tensors directly."""


def test_worker_processes_have_own_devices(tmp_path):
    alone("train_in_teams", tmp_path)


def train_in_teams(folder):
    """One team after the other, each led by a fork of this process, which computes no gradient itself."""
    for method, nccl in TEAMS:
        leader = os.fork()
        if not leader:
            try:
                train_in_a_team(method, nccl, Path(tempfile.mkdtemp(dir=folder)))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        assert os.waitpid(leader, 0)[1] == 0, (method, nccl)


def train_in_a_team(method, nccl, folder):
    second, follow = folder / "second", worker_process.serve_leader

    def noted(worker_pool, make):
        worker = make()
        second.write_text(str(worker.run_config.population.x.device))
        follow(worker_pool, lambda: worker)

    worker_process.serve_leader, BACKENDS[KIND] = noted, Wires
    with pretended():
        found = train(method, KIND, f"distributed(workers=2, inner='batched', nccl={nccl})")
    assert second.read_text() == f"{KIND}:1"
    models = [state.params for state in found._runner.state.states.values()]
    assert {str(w.device) for w in models[0].values()} == {f"{KIND}:0"}
    same(found, train(method, "cpu", "distributed(workers=2, inner='batched')"))
    line = found._runner.worker_pool._channel
    if nccl:  # to the other process, or back from it, in each of the two rounds
        assert line.direct.group.bytes > 2 * sum(
            w.nbytes for params in models for w in params.values()
        )
    else:
        assert line.direct is None


def test_comparison_under_torchrun_uses_nccl_in_every_run(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"import on_devices; on_devices.compare_between_devices({str(tmp_path)!r})")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            script,
        ],
        env=os.environ | {"PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "bytes").read_text().count("True") == 2, (
        "one of the runs sent nothing directly"
    )
    compared("loop", "cpu", tmp_path / "alone")
    found, wanted = (
        pd.read_parquet(tmp_path / name / "rounds.parquet") for name in ("joined", "alone")
    )
    pd.testing.assert_frame_equal(
        found.drop(columns=[*TIMES]), wanted.drop(columns=[*TIMES]), rtol=1e-3, atol=1e-4
    )


def compared(executor, device, out):
    more = {"proxy": clients()[0].test, "rounds": 2, "seeds": [1]}
    work = ua.Work(batch_size=4, lr=0.05)
    return ua.compare(
        ["fedavg", "scaffold"],
        clients(),
        model="mlp(hidden=(6,))",
        work=work,
        executor=executor,
        device=device,
        out=out,
        **more,
    )


def compare_between_devices(folder):
    close = worker_pool.WorkerPool.close

    def noted(self):
        if not self.rank:
            with (Path(folder) / "bytes").open("a") as file:
                file.write(f"{self._channel.direct.group.bytes > 1000}\n")
        close(self)

    worker_pool.WorkerPool.close, BACKENDS[KIND] = noted, Wires
    with pretended():
        compared("distributed(inner='batched', nccl=True)", KIND, Path(folder) / "joined")


@pytest.mark.parametrize("side", ["worker", "leader"])
def test_dead_process_during_device_transfer_is_detected(side, tmp_path):
    """The process dies before its part of a transfer, for which the other device would wait for ever."""
    alone(f"lose_a_{side}", tmp_path)
    if side == "worker":
        alone("resume_after_loss", tmp_path)


def lose_a_worker(folder):
    send = Channel._send

    def dies(self, part, rank):
        if isinstance(part, There):
            os._exit(7)
        send(self, part, rank)

    Channel._send, BACKENDS[KIND] = dies, Wires
    executor = "distributed(workers=2, inner='batched', nccl=True)"
    with pretended(), pytest.raises(UnalikeError, match=r"number 1 \(exit code 7\) is gone"):
        train("fedavg", KIND, executor, out=folder)
    with pretended():  # its own device still does what it is asked
        assert torch.ones(3, device=KIND).sum().item() == 3


def resume_after_loss(folder):
    """The run is complete in another process: torch does not start processes after it has computed gradients on a device."""
    BACKENDS[KIND] = Wires
    with pretended():
        found = train(
            "fedavg", KIND, "distributed(workers=2, inner='batched', nccl=True)", out=folder
        )
    same(found, train("fedavg", "cpu", "distributed(workers=2, inner='batched')"))


def lose_a_leader(folder):
    """The worker leaves, rather than wait: so this ends."""
    broadcast, gone = Channel._broadcast, Path(folder) / "gone"
    work = worker_pool._work

    def dies(self, part):
        if isinstance(part, There) and not self.rank:
            os._exit(0)
        broadcast(self, part)

    def noted(*arguments):
        exits, os._exit = os._exit, lambda code: (gone.write_text("gone"), exits(code))
        work(*arguments)

    Channel._broadcast, worker_pool._work, BACKENDS[KIND] = dies, noted, Wires
    child = os.fork()
    if not child:
        with pretended():
            train("fedavg", KIND, "distributed(workers=2, inner='batched', nccl=True)")
    os.waitpid(child, 0)
    for _ in range(300):
        if gone.exists():
            return
        time.sleep(0.1)
    raise AssertionError("the worker still waits")


@pytest.mark.parametrize(
    ("device", "workers", "message"),
    [
        ("cpu", 2, "expected GPUs and a torch with NCCL"),
        (f"{KIND}:0", 2, f"expected device='{KIND}' and a device for each process"),
        (KIND, 3, "3 processes and 2 devices"),
    ],
)
def test_nccl_without_device_per_process_is_refused(device, workers, message, monkeypatch):
    monkeypatch.setitem(BACKENDS, KIND, Wires)
    monkeypatch.setattr(module, "used", False)
    with pretended(), pytest.raises(UnalikeError, match=message):
        train("fedavg", device, f"distributed(workers={workers}, nccl=True)")


def test_forked_process_on_device_is_refused(monkeypatch):
    monkeypatch.setattr(module, "used", True)
    with pretended(), pytest.raises(UnalikeError, match="torchrun --nproc-per-node=2"):
        train("fedavg", KIND, "distributed(workers=2)")


@pytest.mark.parametrize("device", [f"{KIND}:2", "cuda:99", "meta", "anything"])
def test_missing_device_is_refused(device):
    with pytest.raises(UnalikeError, match=f"device='{device}' cannot be used"):
        train("fedavg", device)
