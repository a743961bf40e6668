"""Executors, methods, models and solvers on a CUDA device, against the CPU: `make gpu` runs this file.

It is not collected by `make test`. Where there is no CUDA device, every test is skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections import Counter, OrderedDict
from pathlib import Path

import pytest
import torch
from simulation import Clients, Simulation
from torch import nn

import unalike as ua
from unalike.engine import auto
from unalike.engine.step_graphs import CudaRecorder, StepGraphs
from unalike.methods.part import registry
from unalike.methods.plan import plan
from unalike.methods.privacy import Privacy
from unalike.methods.roles import Upload

plan("fedavg")  # fills the registry
NAMES = sorted(set(registry) - {"cluster_oracle"})
"""All registered methods and plans but one that needs the true clusters."""
DEVICE = "cuda:0"
DISTANCE = 1e-4
"""Largest difference between CPU and GPU after two rounds, in shares of the model's way from its start."""
COARSE = 5e-4
"""The same of methods that encode updates: where a value lies between two levels, rounding decides."""
CONVOLUTIONS = 5e-3
"""The same of convolutions with batch norms, which amplify rounding."""

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


class Normed(nn.Module):
    """A convolution and a batch norm."""

    def __init__(self):
        super().__init__()
        # a bias before a norm would have no gradient but rounding noise, whose sign is Adam's first step
        self.conv, self.norm = nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.head = nn.Linear(3 * 64, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).flatten(1))


def clients():
    g = torch.Generator().manual_seed(0)

    def samples(n):
        return torch.randn(n, 1, 8, 8, generator=g), torch.randint(0, 3, (n,), generator=g)

    return [ua.ClientData(train=samples(n), test=samples(5)) for n in (6, 9, 12, 15)]


def train(method, device, executor="loop", model="mlp(hidden=(6,))", work=None, **more):
    """Train two rounds, or resume from a folder."""
    proxy = clients()[0].test
    work = ua.Work(batch_size=4, lr=0.05, **({"momentum": 0.9} if work is None else work))
    options = {"rounds": 2, "seed": 1, "progress": lambda row, what="": None} | more
    return ua.run(
        method,
        clients(),
        model=model,
        work=work,
        proxy=proxy,
        executor=executor,
        device=device,
        **options,
    )


def models_of(run):
    return [state.params for state in run._runner.state.states.values()]


def assert_close(run, reference, limit, device=DEVICE):
    """Check that all models of both runs are `limit` apart at most, in shares of their distance from the initial model."""
    start = reference._runner.run_config.model.params
    for params, wanted in zip(models_of(run), models_of(reference), strict=True):
        assert {str(w.device) for w in params.values()} == {device}
        gap = sum(float((params[n].cpu() - w).double().square().sum()) for n, w in wanted.items())
        # methods with models of another form (`fedconcat`) do not start from the run's model
        moves = (
            w - start[n] if n in start and start[n].shape == w.shape else w
            for n, w in wanted.items()
        )
        way = sum(float(move.double().square().sum()) for move in moves)
        assert gap**0.5 <= limit * way**0.5 + 1e-7, (
            f"{gap**0.5:.2e} apart, {way**0.5:.2e} from the start"
        )


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize("name", NAMES)
def test_method_on_cuda_equals_cpu(name, executor):
    spec = (
        "dp_sgd(noise_multiplier=0)" if name == "dp_sgd" else name
    )  # each device draws other noise
    parts = getattr(plan(spec), "parts", ())
    if any(isinstance(p, Privacy) for p in parts):
        pytest.importorskip("dp_accounting")
    limit = COARSE if any(isinstance(p, Upload) for p in parts) else DISTANCE
    assert_close(train(spec, DEVICE, executor), train(spec, "cpu", executor), limit)


@pytest.fixture
def refusals(monkeypatch):
    """The reasons for which steps of runs on the device were not recorded, None where they were."""
    made, of = [], StepGraphs.of
    monkeypatch.setattr(StepGraphs, "of", lambda *args: made.append(of(*args)) or made[-1])
    return lambda: {graphs.refused for graphs in made if graphs.recorder.device.type == "cuda"}


@pytest.fixture
def float32(monkeypatch):
    """Convolutions round to float32: the rounding of TF32 depends on the kernel that is chosen."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize(
    "name",
    sorted(
        {"fedavg", "scaffold", "moon", "ditto", "fedrep", "fine_tuned", "per_fedavg"} & {*NAMES}
    ),
)
@pytest.mark.parametrize("module", ["mlp(hidden=(6,))", "cnn(channels=(3, 4))"])
def test_replayed_steps_equal_plain_ones(name, executor, module, refusals, monkeypatch, float32):
    """Four rounds, in which the learning rate falls: graphs are recorded anew."""
    work = {"momentum": 0.9, "schedule": 0.9}
    recorded = train(name, DEVICE, executor, module, work, rounds=4)
    assert refusals() == {None}
    monkeypatch.setattr(CudaRecorder, "refused", "not here")
    plain = train(name, DEVICE, executor, module, work, rounds=4)
    assert refusals() == {None, "not here"}
    for params, wanted in zip(models_of(recorded), models_of(plain), strict=True):
        for n, w in wanted.items():
            torch.testing.assert_close(params[n], w, rtol=1e-4, atol=1e-6)


class Dropped(nn.Module):
    """A linear layer after dropout."""

    def __init__(self):
        super().__init__()
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(64, 3)

    def forward(self, x):
        return self.head(self.drop(x.flatten(1)))


def test_replayed_dropout_draws_the_numbers_of_plain_steps(refusals, monkeypatch):
    module = Dropped()
    recorded = train("fedavg", DEVICE, "loop", module, rounds=3)
    assert refusals() == {None}
    monkeypatch.setattr(CudaRecorder, "refused", "not here")
    plain = train("fedavg", DEVICE, "loop", module, rounds=3)
    for params, wanted in zip(models_of(recorded), models_of(plain), strict=True):
        torch.testing.assert_close(params, wanted, rtol=1e-4, atol=1e-6)


class Scaled(nn.Module):
    """A linear layer whose output is divided by a number that Python knows: the device has to be waited for."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        x = self.head(x.flatten(1))
        return x / max(1.0, float(x.detach().abs().max()))


def test_steps_that_wait_for_the_device_are_not_recorded(refusals):
    module = Scaled()
    on_device = train("fedavg", DEVICE, "loop", module)
    assert_close(on_device, train("fedavg", "cpu", "loop", module), DISTANCE)
    [reason] = refusals()
    assert "waits for the device" in reason


class Awaited(nn.Module):
    """A linear layer after dropout, between which the host waits for the device: recording fails only when it is tried."""

    def __init__(self):
        super().__init__()
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(64, 3)

    def forward(self, x):
        x = self.drop(x.flatten(1))
        torch.cuda.synchronize()
        return self.head(x)


def test_random_numbers_are_drawn_after_failed_recording(refusals, monkeypatch):
    module = Awaited()
    attempted = train("fedavg", DEVICE, "loop", module, rounds=3)
    [reason] = refusals()
    assert "captur" in reason
    monkeypatch.setattr(CudaRecorder, "refused", "not here")
    plain = train("fedavg", DEVICE, "loop", module, rounds=3)
    for params, wanted in zip(models_of(attempted), models_of(plain), strict=True):
        torch.testing.assert_close(params, wanted, rtol=1e-4, atol=1e-6)


CASES = [
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
]


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize("case", CASES)
def test_model_and_solver_on_cuda_equal_cpu_after_resuming(executor, case, tmp_path, float32):
    """Three rounds, the last one resumed from a checkpoint."""
    case = {"method": "fedavg"} | case
    for rounds in (2, 3):
        run = train(device=DEVICE, executor=executor, out=tmp_path, rounds=rounds, **case)
    assert_close(run, train(device="cpu", executor=executor, rounds=3, **case), CONVOLUTIONS)


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_bf16_on_cuda_is_near_float32(executor):
    module = Normed()
    rounded = train("fedprox", DEVICE, executor, module, precision="bf16")
    assert_close(rounded, train("fedprox", "cpu", executor, module), 0.1)


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_run_on_cuda_repeats_bit_for_bit(executor):
    first, second = (
        models_of(train("scaffold", DEVICE, executor, "cnn(channels=(3, 4))")) for _ in range(2)
    )
    assert all(torch.equal(a[n], b[n]) for a, b in zip(first, second, strict=True) for n in a)


@pytest.mark.parametrize("long", [auto.MEASURE_FROM_SECONDS, 0.0])
def test_auto_on_cuda_is_chosen(long, monkeypatch):
    """By rule, and by measurement."""
    monkeypatch.setattr(auto, "MEASURE_FROM_SECONDS", long)
    monkeypatch.setattr(auto, "MIN_CLIENTS_PER_STEP", 2.0)  # four clients are enough to be stacked
    assert_close(train("moon", DEVICE, "auto"), train("moon", "cpu", "batched"), DISTANCE)


# --- data, copies and synchronization ---------------------------------------------------------------------------------


def synchronizations(method, executor, module, epochs):
    """The operations in the training of a cohort that made the host wait for the device: where, and how often."""
    sizes = (20, 20, 17, 9)
    g = torch.Generator().manual_seed(0)
    samples = Clients.of(
        *(
            (torch.randn(n, 1, 8, 8, generator=g), torch.randint(0, 3, (n,), generator=g))
            for n in sizes
        )
    )
    torch.manual_seed(1)
    sim = Simulation(
        method,
        module(),
        samples,
        executor=executor,
        batch_size=5,
        lr=0.05,
        momentum=0.9,
        epochs=epochs,
    )
    assert {
        sim.clients.x.device.type,
        sim.clients.y.device.type,
        sim.settings.model.params["head.bias"].device.type,
    } == {"cuda"}
    for _ in range(2):
        sim.round()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            sim.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [f"{Path(w.filename).name}:{w.lineno}" for w in raised if "synchroniz" in str(w.message)]


def dense():
    return nn.Sequential(
        OrderedDict(flat=nn.Flatten(), body=nn.Linear(64, 6), act=nn.ReLU(), head=nn.Linear(6, 3))
    )


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold", "moon", "ditto"])
@pytest.mark.parametrize("module", [dense, Normed])
def test_local_epochs_never_wait_for_the_device(module, method, executor):
    few, many = (synchronizations(method, executor, module, epochs) for epochs in (1, 4))
    places = Counter(many)
    places.subtract(few)
    assert len(few) == len(many), f"in three more epochs: {+places}; in one epoch: {Counter(few)}"


# --- several processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "median", "fine_tuned"])
def test_two_processes_on_one_device_agree_with_cpu(method):
    """In a new process: workers are copies of a process that has not used the device."""
    done = in_new_process(f"on_cuda.two_processes({method!r})")
    assert done.returncode == 0, done.stdout + done.stderr


def in_new_process(code, **environment):
    """Run code in a process that has not used the device: even `torch.cuda.is_available()` does, unless it asks NVML."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import on_cuda; {code}"],
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        }
        | environment,
        capture_output=True,
        text=True,
        timeout=180,
    )


def test_copies_of_a_process_that_asked_for_the_device_are_refused():
    done = in_new_process("on_cuda.two_processes('fedavg')", PYTORCH_NVML_BASED_CUDA_CHECK="0")
    assert (
        "UnalikeError: workers would be copies of this process, which has used cuda:0"
        in done.stderr
    )


def two_processes(method):
    run = train(method, DEVICE, "distributed(workers=2, inner='batched')")
    assert_close(run, train(method, "cpu", "distributed(workers=2, inner='batched')"), DISTANCE)
