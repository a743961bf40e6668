"""Compiled loops agree with torch, share work among threads, and leave to torch everything that they do not support."""

import copy
import os
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from simulation import Clients, Simulation, distance, mlp
from torch import nn

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core.model import Model
from unalike.engine.compiled import compiled_training
from unalike.engine.compiled.layer_chain import chain_of
from unalike.engine.compiled.layout import layout_of
from unalike.engine.threads import threads_for
from unalike.loops import crew as compiled_loops
from unalike.methods.method import Method
from unalike.methods.parts.moreau_envelope import MoreauEnvelope
from unalike.methods.parts.objectives import Proximal
from unalike.methods.plan import steps_of
from unalike.methods.roles import Personalizer, Phase
from unalike.runtime.round_loop import run_round
from unalike.runtime.setup.run_config import configure_run
from unalike.runtime.stages import local_backend
from unalike.training.server.summed_updates import StreamingSum

pytest.importorskip("numba")

MODULES_OF_LOOPS = (
    "unalike.loops.kernels",
    "unalike.loops.shuffle_loops",
    "unalike.loops.column_loops",
)
TASKS = {
    "classification": (3, lambda n: torch.randint(0, 3, (n,))),
    "binary": (1, lambda n: torch.rand(n) > 0.5),
    "regression": (1, torch.randn),
}
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


def network(widths, activation, bias, out):
    torch.manual_seed(1)
    layers = [nn.Flatten()]
    for wide, after in zip((4, *widths), (*widths, out)):
        layers += [nn.Linear(wide, after, bias=bias), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


def both(method, module, clients, **more):
    """Two rounds in the loop and in compiled loops; fails if compiled loops were not used."""
    called, plain = [], compiled_training.CompiledTrainer.phase
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            compiled_training.CompiledTrainer, "phase", lambda *a: called.append(1) or plain(*a)
        )
        sims = [
            Simulation(method, copy.deepcopy(module), clients, executor=e, **more)
            for e in ("loop", "batched")
        ]
        reports = [[sim.round(), sim.round()] for sim in sims]
    assert called
    return sims, reports


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    widths=st.lists(st.integers(1, 20), max_size=3),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    bias=st.booleans(),
    task=st.sampled_from(sorted(TASKS)),
    batch=st.one_of(st.none(), st.integers(1, 17)),
    epochs=st.integers(1, 2),
    solver=st.sampled_from(
        [
            {},
            {"momentum": 0.9},
            {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
            {"weight_decay": 0.1},
        ]
    ),
)
def test_compiled_loops_any_network_equals_loop(
    sizes, widths, activation, bias, task, batch, epochs, solver
):
    """1e-3 of the update, which may be small beside the parameters that it was rounded with; another test measures precision."""
    out, labels = TASKS[task]
    torch.manual_seed(2)
    clients = Clients.of(*((torch.randn(n, 4), labels(n)) for n in sizes))
    clients.y = clients.y.to(
        {"binary": torch.bool, "regression": torch.float32}.get(task, torch.int64)
    )
    module = network(widths, activation, bias, out)
    work = {"task": task, "batch_size": batch, "epochs": epochs, "lr": 0.02, **solver}
    (loop, compiled), (first, second) = both("fedavg", module, clients, **work)
    assert distance(compiled.params, loop.params, loop.settings.model.params) < 1e-3
    for one, other in zip(first, second):
        assert torch.equal(one.stacked.steps, other.stacked.steps)
        torch.testing.assert_close(other.stacked.loss, one.stacked.loss, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "method",
    [
        "fedrep",
        "fedper",
        "fine_tuned",
        "fednova",
        "fedlws",
        "fedbabu",
        "fedprox(mu=0.3)",
        "scaffold",
        "scaffold(option=1)",
        "feddyn",
        "feddc",
        "scaffold + proximal(mu=0.3) + private(select='head')",
        "fedmix(mu=0.3)",
        "ditto(lam=0.5)",
        "ditto(lam=0)",
        "scaffold + proximal(mu=0.3) + proximal_model(lam=0.5)",
        "pfedme(lam=2, steps=3, rate=0.1)",
        "perfedavg(alpha=0.1)",
        "pfedme(rate=0.05) + proximal(mu=0.3)",
        "perfedavg + scaffold",
    ],
)
def test_compiled_loops_methods_with_pulls_and_phases_equal_loop(method):
    (loop, compiled), _ = both(
        method, ua.model("mlp(hidden=(9, 6))", (4,), 3), Clients.random((7, 3, 1, 12)), lr=0.05
    )
    assert distance(compiled.params, loop.params, loop.settings.model.params) < 1e-5
    for k in range(4):
        torch.testing.assert_close(compiled.memory(k), loop.memory(k), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    "method", ["scaffold(after_momentum=True)", "scaffold(after_momentum=True) + proximal(mu=0.3)"]
)
def test_compiled_loops_correction_after_momentum_equals_loop(method, momentum):
    """A correction of steps is a momentum to begin with, and a pull."""
    work = {"lr": 0.02, "momentum": momentum, "weight_decay": 0.1, "epochs": 2, "batch_size": 4}
    (loop, compiled), _ = both(
        method, ua.model("mlp(hidden=(9, 6))", (4,), 3), Clients.random((7, 3, 1, 12)), **work
    )
    assert distance(compiled.params, loop.params, loop.settings.model.params) < 1e-5
    for k in range(4):
        torch.testing.assert_close(compiled.memory(k), loop.memory(k), rtol=1e-4, atol=1e-6)


@st.composite
def convolutional_networks(draw):
    """A network of one to three convolutions for images of 13 x 11 pixels, and their number of channels."""
    torch.manual_seed(1)
    channels = draw(st.integers(1, 3))
    layers, sides, before = [], (13, 11), channels
    for _ in range(draw(st.integers(1, 3))):
        kernel, padding, pool = (
            draw(st.integers(1, 5)),
            draw(st.integers(0, 2)),
            draw(st.integers(1, 3)),
        )
        after = tuple((n + 2 * padding - kernel + 1) // pool for n in sides)
        if min(after) < 1:
            break
        filters, sides = draw(st.integers(1, 20)), after
        added = [nn.ReLU()] if draw(st.booleans()) else []
        added += [nn.MaxPool2d(pool)] if pool > 1 else []
        added = added[::-1] if draw(st.booleans()) else added
        layers += [
            nn.Conv2d(before, filters, kernel, padding=padding, bias=draw(st.booleans())),
            *added,
        ]
        before = filters
    hidden = draw(st.integers(1, 12))
    dense = [
        nn.Flatten(),
        nn.Linear(before * sides[0] * sides[1], hidden),
        nn.Tanh(),
        nn.Linear(hidden, 3),
    ]
    return nn.Sequential(*layers, *dense), channels


@given(
    made=convolutional_networks(),
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    batch=st.one_of(st.none(), st.integers(1, 9)),
    solver=st.sampled_from(
        [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}]
    ),
)
def test_compiled_loops_convolutions_equal_loop(made, sizes, batch, solver):
    """1e-3 of the update, as in the test of linear layers."""
    module, channels = made
    torch.manual_seed(2)
    clients = Clients.of(
        *((torch.randn(n, channels, 13, 11), torch.randint(0, 3, (n,))) for n in sizes)
    )
    (loop, compiled), (first, second) = both(
        "fedavg", module, clients, batch_size=batch, epochs=1, lr=0.02, **solver
    )
    assert distance(compiled.params, loop.params, loop.settings.model.params) < 1e-3
    for one, other in zip(first, second):
        torch.testing.assert_close(other.stacked.loss, one.stacked.loss, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["lenet", "cnn(channels=(5, 9))", "emnist_cnn"])
@pytest.mark.parametrize(
    "method",
    [
        "fedrep",
        "fedbabu",
        "fedprox(mu=0.3)",
        "scaffold",
        "ditto(lam=0.5)",
        "fednova",
        "pfedme",
        "perfedavg",
    ],
)
def test_compiled_loops_convolutional_methods_equal_loop(name, method):
    """With frozen convolutions, pulls, a personal model and inner loops."""
    torch.manual_seed(3)
    clients = Clients.of(
        *((torch.randn(n, 1, 16, 16), torch.randint(0, 3, (n,))) for n in (7, 3, 1, 12))
    )
    (loop, compiled), _ = both(method, ua.model(name, (1, 16, 16), 3), clients, lr=0.05)
    assert distance(compiled.params, loop.params, loop.settings.model.params) < 1e-4
    for k in range(4):
        torch.testing.assert_close(compiled.memory(k), loop.memory(k), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", ["fedavg", "pfedme", "perfedavg", "scaffold"])
@pytest.mark.parametrize(
    "work", [{"batch_size": 9, "momentum": 0.9, "weight_decay": 0.1}, {"batch_size": None}]
)
@pytest.mark.parametrize("frozen", [(), ("0.weight", "3.bias", "7.weight")])
def test_compiled_loops_batches_cut_into_pieces_equal_loop(method, work, frozen, monkeypatch):
    """Five samples are computed at a time; some parameters are frozen, perhaps."""
    monkeypatch.setattr(compiled_training, "_samples_at_a_time", lambda model, sample: 5)
    torch.manual_seed(4)
    module = nn.Sequential(
        *(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(3, 4, 3),
            nn.ReLU(),
            nn.Flatten(),
        ),
        *(nn.Linear(64, 6), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
    )
    for name, weight in module.named_parameters():
        weight.requires_grad_(name not in frozen)
    clients = Clients.of(
        *((torch.randn(n, 1, 12, 12), torch.randint(0, 3, (n,))) for n in (23, 3, 1, 16))
    )
    (loop, compiled), (first, second) = both(method, module, clients, lr=0.05, **work)
    assert distance(compiled.params, loop.params, loop.settings.model.params) < 1e-4
    for one, other in zip(first, second):
        torch.testing.assert_close(other.stacked.loss, one.stacked.loss, rtol=1e-4, atol=1e-5)
    for k in range(4):
        torch.testing.assert_close(compiled.memory(k), loop.memory(k), rtol=1e-3, atol=1e-5)


def test_compiled_loops_first_of_equal_numbers_in_a_window_gets_the_gradient():
    """Constant images: all numbers of a window are equal, and torch takes the first one."""
    torch.manual_seed(4)
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 3)
    )
    clients = Clients.of((torch.ones(5, 1, 6, 6), torch.tensor([0, 1, 2, 0, 1])))
    (loop, compiled), _ = both("fedavg", module, clients, lr=0.1, epochs=1)
    assert distance(compiled.params, loop.params, loop.settings.model.params) < 1e-5


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold"])
def test_compiled_loops_float64_default_dtype_trains_in_float32(method):
    module, clients, kind = (
        ua.model("mlp(hidden=(9, 6))", (4,), 3),
        Clients.random((7, 3, 1, 12)),
        torch.get_default_dtype(),
    )
    try:
        torch.set_default_dtype(torch.float64)
        (loop, compiled), _ = both(method, module, clients, lr=0.05)
    finally:
        torch.set_default_dtype(kind)
    assert all(w.dtype == torch.float32 for w in compiled.params.values())
    assert distance(compiled.params, loop.params, loop.settings.model.params) < 1e-5


def test_compiled_loops_strided_labels_equal_loop():
    """For example a column of a table: between two labels lie other numbers."""
    clients = Clients.random((7, 3, 12))
    apart = replace(clients, y=torch.stack([clients.y, -clients.y], 1)[:, 0])
    assert not apart.y.is_contiguous()
    (loop, compiled), _ = both("fedavg", mlp(), apart, lr=0.05)
    assert distance(compiled.params, loop.params, loop.settings.model.params) < 1e-5


def test_compiled_loops_clients_without_samples_make_no_steps():
    clients = replace(Clients.random((3, 2)), train=[np.arange(0)] * 2)
    found = Simulation("fedavg", mlp(), clients, executor="batched").run().stacked
    assert not found.size.any() and not found.steps.any()


def test_compiled_loops_are_as_close_to_float64_as_torch():
    """Ten steps of 784-200-200-10 on the same rows are no further from float64 than torch's float32 is."""
    torch.manual_seed(0)
    x, y = torch.randn(10, 10, 784), torch.randint(0, 10, (10, 10))
    module = nn.Sequential(
        nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )

    def trained(kind):
        net = copy.deepcopy(module).to(kind)
        solver = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        for t in range(10):
            solver.zero_grad()
            nn.functional.cross_entropy(net(x[t].to(kind)), y[t]).backward()
            solver.step()
        return torch.cat([p.detach().double().flatten() for p in net.parameters()])

    exact, usual = trained(torch.float64), trained(torch.float32)
    loops, names = compiled_training.kernels(), dict(module.named_parameters())
    model = Model(module)
    layout = layout_of(
        chain_of(model), tuple((n, p.shape) for n, p in names.items()), frozenset(names), (784,)
    )
    start = torch.cat([p.detach().flatten() for p in names.values()])[None]
    found = torch.empty(1, len(exact))
    data = loops.Data(
        x.flatten(0, 1).numpy(),
        np.arange(100).reshape(1, 10, 10),
        np.full((1, 10), 10),
        y.flatten().numpy(),
        np.empty(0, np.float32),
        10,
    )
    no_pull = np.empty((0, 0), np.float32)
    step = loops.Step(
        loops.CLASSES,
        np.float32(0.05),
        np.float32(0.9),
        False,
        layout.decays(0.0, 0.0, ()),
        no_pull,
        no_pull,
    )
    results = loops.Results(
        False, np.empty(0, np.float32), np.arange(2), np.zeros((3, 1)), found.numpy()
    )
    chain = loops.Model(layout.layers, layout.convolutions, layout.runs, layout.floats)
    loops.train(start.numpy(), data, chain, step, results, np.zeros(1, np.int64))
    assert (found[0].double() - exact).norm() <= 1.5 * (usual - exact).norm()


def test_compiled_loops_nan_of_one_client_does_not_reach_others():
    """Padding in the workspace must be zero again for the next client."""
    torch.manual_seed(0)
    data = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(3)]
    wild = [(torch.full((8, 4), float("nan")), data[0][1]), *data[1:]]
    plain, sick = (
        Simulation("fedavg", mlp(), Clients.of(*given), executor="batched", lr=0.1)
        .run()
        .stacked.update
        for given in (data, wild)
    )
    for name, update in sick.items():
        assert update[0].isnan().any() and torch.equal(update[1:], plain[name][1:])


def test_compiled_loops_nan_of_one_clients_images_does_not_reach_others():
    """The borders of images and the padding of filters must be zero again for the next client."""
    torch.manual_seed(0)
    data = [(torch.randn(8, 1, 8, 8), torch.randint(0, 3, (8,))) for _ in range(3)]
    wild = [(torch.full((8, 1, 8, 8), float("nan")), data[0][1]), *data[1:]]
    module = nn.Sequential(
        *(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(3, 4, 3, padding=1),
            nn.ReLU(),
        ),
        *(nn.Flatten(), nn.Linear(64, 3)),
    )
    plain, sick = (
        Simulation("fedavg", module, Clients.of(*given), executor="batched", lr=0.1)
        .run()
        .stacked.update
        for given in (data, wild)
    )
    for name, update in sick.items():
        assert update[0].isnan().any() and torch.equal(update[1:], plain[name][1:])


def test_compiled_loops_overflow_in_last_step_does_not_reach_others():
    """Its loss is finite, its gradients are not."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    fair = [(torch.randn(3, 3), torch.randn(3)) for _ in range(2)]
    wild = (torch.tensor([[50.0] * 3, [1e-3] * 3]), torch.tensor([1e19, 1.9e20]))
    work = {"task": "regression", "batch_size": 1, "lr": 10.0}
    sick, alone = (
        Simulation("fedavg", module, Clients.of(*data), executor="batched", **work).run().stacked
        for data in ((wild, *fair), ((torch.zeros(2, 3), torch.zeros(2)), *fair))
    )
    assert sick.loss[0].isfinite() and not sick.update["0.weight"][0].isfinite().all()
    for name, update in alone.update.items():
        assert torch.equal(sick.update[name][1:], update[1:])


@pytest.mark.parametrize(
    "method", ["fedavg", "fednova", "fedprox(mu=0.3) + uniform", "fedadam(lr=0.1)"]
)
@pytest.mark.parametrize("sick", [False, True])
def test_compiled_loops_summed_updates_equal_sum_of_updates(method, sick, monkeypatch):
    """40 clients of unequal sizes; the update of one of them may be refused."""
    torch.manual_seed(0)
    sizes = [1 + k % 7 for k in range(40)]
    people = [ua.ClientData(train=(torch.randn(n, 4), torch.arange(n) % 3)) for n in sizes]
    work = ua.Work(lr=0.1, momentum=0.9, batch_size=3)
    run_config = configure_run(
        method, people, model="mlp(hidden=(8,))", rounds=2, work=work, executor="batched"
    )
    if sick:
        run_config.population.x[run_config.population.train[3]] = float("nan")
    chunks, plain = [], StreamingSum.add

    def add(self, ids, report, summed=False):
        chunks.append((len(ids), summed))
        plain(self, ids, report, summed)

    monkeypatch.setattr(StreamingSum, "add", add)
    stage = next(steps_of(run_config.plan, run_config.plan_inputs))
    runs = [local_backend.LocalStage(run_config, stage) for _ in range(2)]
    for group in runs[0].state.groups.values():
        group.keeps_updates = True
    for run in runs:
        run.start()
    for _ in range(2):
        for run in runs:
            assert [*run_round(run).refused] == ([3] if sick else [])
    (apart,), (together,) = ([*run.state.groups.values()] for run in runs)
    assert chunks.count((40, True)) == (0 if sick else 2)
    assert distance(together.state.params, apart.state.params, run_config.model.params) < 1e-5


def test_compiled_loops_label_out_of_range_is_refused():
    clients = Clients.of((torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])))
    with pytest.raises((UnalikeError, IndexError), match="label"):
        Simulation("fedavg", mlp(), clients, executor="batched").round()


@pytest.fixture
def three_threads():
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedpake"])
def test_compiled_loops_threads_change_no_bit(method, monkeypatch, three_threads):
    """Clients of unequal sizes; in SCAFFOLD each client has its own pull."""
    people = [
        ua.ClientData(
            train=(torch.randn(n, 4), torch.arange(n) % 3),
            test=(torch.randn(3, 4), torch.arange(3)),
        )
        for n in (7, 1, 12, 30, 5, 5, 9, 2, 16)
    ]
    seen, plain = set(), compiled_training.kernels().train
    monkeypatch.setattr(
        compiled_training.kernels(),
        "train",
        lambda *a: seen.add(threading.get_ident()) or time.sleep(0.05) or plain(*a),
    )
    runs = []
    for count in (1, 3):
        torch.set_num_threads(count)
        seen.clear()
        runs.append(
            ua.run(
                method,
                people,
                model="mlp(hidden=(8,))",
                rounds=3,
                executor="batched",
                work=ua.Work(batch_size=5),
            )
        )
        assert len(seen) == count and torch.get_num_threads() == count
    alone, together = runs
    assert all(torch.equal(alone.params[n], t) for n, t in together.params.items())
    assert alone.history.last["accuracy"] == together.history.last["accuracy"]


def test_compiled_loops_error_in_thread_is_raised(three_threads):
    people = [ua.ClientData(train=(torch.randn(6, 4), torch.arange(6) % 3)) for _ in range(6)]
    run_config = configure_run(
        "fedavg", people, model="mlp(hidden=(8,))", rounds=1, executor="batched"
    )
    simulation = local_backend.LocalStage(
        run_config, next(steps_of(run_config.plan, run_config.plan_inputs))
    )
    simulation.start()
    run_config.population.y[-1] = 7
    with threads_for(run_config.model), pytest.raises(IndexError, match="label"):
        run_round(simulation)


def test_exponential_equals_float64():
    numba = pytest.importorskip("numba")
    from unalike.loops import layer_loops as loops

    @numba.njit(fastmath=loops.MATHS)
    def rows(x, out):
        for r in range(len(x)):
            loops.store(out, r, 0, loops.exponential(loops.load(x, r, 0)))

    def each(x):
        given = np.zeros((-(-len(x) // loops.LANES), loops.LANES), np.float32)
        given.flat[: len(x)] = x
        rows(given, out := np.empty_like(given))
        return out.flatten()[: len(x)]

    def apart(x):
        exact = np.exp(x.astype(np.float32).astype(np.float64))
        return np.abs(each(x) / exact - 1).max()

    assert (
        apart(-np.linspace(0, 10, 20_001)) < 1e-7 and apart(-np.linspace(10, 86.9, 20_001)) < 3.5e-7
    )
    out = each(np.array([-87, -1e4, -np.inf, np.nan]))
    assert (out[:3] < 2e-38).all() and (out[:3] > 0).all() and np.isnan(out[3])


@pytest.mark.parametrize("slices", [1, 2, 3, 8, 16])
def test_bounds_slices_are_complete_and_shrink(slices):
    for count in range(1, 60):
        cut = compiled_loops.bounds(count, slices)
        sizes = [b - a for a, b in pairwise(cut)]
        assert (
            cut[0] == 0
            and cut[-1] == count
            and min(sizes) > 0
            and len(sizes) <= slices
            and sizes[0] >= sizes[-1]
        )


def test_threads_for_worker_process_is_one(three_threads):
    def who(pieces, expected):
        found, all_here = [], threading.Barrier(expected)

        def come(_):
            all_here.wait(60)  # threads that start after the work is done are not waited for
            found.append(threading.get_ident())

        compiled_loops.share_out(come, pieces)
        return found

    with threads_for(Model(mlp()), alone=False):
        assert (
            who(5, 1) == [threading.get_ident()]
            and compiled_loops.pieces() == torch.get_num_threads() == 1
        )
    with threads_for(Model(mlp())):
        for pieces, threads in ((5, 3), (100, 3), (2, 2), (1, 1)):
            found = who(pieces, threads)
            assert len({*found}) == len(found) == threads and threading.get_ident() in found
        assert (
            compiled_loops.pieces() == 3 * compiled_loops.PIECES_PER_THREAD
            and torch.get_num_threads() == 1
        )
    assert torch.get_num_threads() == 3


def test_share_out_does_not_wait_for_threads_not_started():
    crew_is_busy, done = threading.Event(), []
    with compiled_loops.crew_of(2):
        pool = compiled_loops._crew.get().pool
        for _ in range(2):
            pool.submit(crew_is_busy.wait, 60)
        compiled_loops.share_out(done.append, 5)
        assert len(done) == 1 and not crew_is_busy.is_set()
        crew_is_busy.set()
    assert len(done) == 1


def test_share_out_each_piece_is_done_once():
    njit = pytest.importorskip("numba").njit
    from unalike.loops.simd import next_piece

    @njit(nogil=True)
    def count(pieces, turns):
        piece = next_piece(turns)
        while piece < len(pieces):
            pieces[piece] += 1
            piece = next_piece(turns)

    for threads, pieces in ((1, 7), (3, 100_000), (3, 2), (3, 0)):
        done = np.zeros(pieces, np.int64)
        with compiled_loops.crew_of(threads):
            compiled_loops.share_out(partial(count, done), pieces)
        assert (done == 1).all()


def test_share_out_exception_ends_other_threads():
    seen = []

    def loop(turns):
        seen.append(turns)
        raise ValueError("of a thread")

    with compiled_loops.crew_of(2), pytest.raises(ValueError, match="of a thread"):
        compiled_loops.share_out(loop, 10)
    assert seen[0][0] == 10


@dataclass(frozen=True)
class Steeper(Proximal):
    """It changes the loss and inherits the pull of the old one."""

    name: ClassVar[str] = "steeper"

    def loss(self, local, batch):
        return 2 * super().loss(local, batch)


@dataclass(frozen=True)
class SteeperEnvelope(MoreauEnvelope):
    """It changes the loss and inherits the inner loop of the old one."""

    name: ClassVar[str] = "steeper_envelope"

    def loss(self, client, batch):
        return 2 * super().loss(client, batch)


@dataclass(frozen=True)
class Careful(Personalizer):
    """It clips gradients in its only phase."""

    name: ClassVar[str] = "careful"

    def phases(self):
        return (Phase(work=lambda work: replace(work, clip=0.1)),)


@pytest.mark.parametrize(
    "method, more",
    [
        (Method(Steeper()), {}),
        (Method(SteeperEnvelope()), {}),
        ("perfedavg(second_order=True)", {}),
        ("perfedavg + head_first", {}),
        (Method(Careful()), {}),
        ("apfl", {}),
        ("moon", {}),
        ("scaffold + fedntd", {}),
        ("fedavg", {"clip": 1.0}),
        ("fedavg", {"optimizer": "adam"}),
        ("fedavg", {"keep_optimizer_state": True, "momentum": 0.9}),
        ("fedavg", {"batch_size": 40_000}),
    ],
)
def test_unsupported_work_is_left_to_torch(method, more, monkeypatch):
    monkeypatch.setattr(compiled_training.CompiledTrainer, "phase", None)
    sizes = (40_000, 4) if more.get("batch_size") else (6, 4)
    Simulation(method, mlp(), Clients.random(sizes), executor="batched", **more).round()


def test_without_numba_torch_trains(monkeypatch):
    monkeypatch.setattr(compiled_training.CompiledTrainer, "phase", None)
    monkeypatch.setattr(compiled_training, "kernels", lambda: None)
    Simulation("fedavg", mlp(), Clients.random((6, 4)), executor="batched").round()


@pytest.mark.parametrize(
    "broken, words",
    [
        (("numba",), "numba is not installed"),
        (MODULES_OF_LOOPS, "numba cannot be used, `unalike doctor` says why"),
    ],
)
def test_loops_without_numba_warn_once_for_all_modules(broken, words, monkeypatch):
    monkeypatch.setattr(compiled_loops, "_warn", cache(compiled_loops._warn.__wrapped__))
    for module in MODULES_OF_LOOPS:
        parent, _, name = module.rpartition(".")
        monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.delattr(sys.modules[parent], name, raising=False)
    for module in broken:
        monkeypatch.setitem(sys.modules, module, None)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert [compiled_loops.loops.__wrapped__(module) for module in MODULES_OF_LOOPS] == [
            None,
            None,
            None,
        ]
    assert [words in str(w.message) for w in seen] == [True]


NARROW = """
import sys
import numpy as np
from llvmlite import binding

lanes, found = int(sys.argv[1]), binding.get_host_cpu_features()
for name in found:
    if lanes < 16 and name.startswith(("avx512", "avx10") if lanes == 8 else "avx"):
        found[name] = False
binding.get_host_cpu_features = lambda: found  # what numba compiles for, too

import torch
import unalike as ua
from unalike.loops import simd as vectors
from unalike.engine.compiled import compiled_training

rng = np.random.default_rng(0)
work = ua.Work(batch_size=11, momentum=0.9, weight_decay=0.01)
weights = []
for shape, model in (((50,), "mlp(hidden=(37, 5))"), ((2, 16, 17), "lenet")):
    people = [
        ua.ClientData(train=(torch.from_numpy(rng.standard_normal((n, *shape), np.float32)), torch.arange(n) % 19))
        for n in (7, 1, 12, 30)
    ]
    run = ua.run("fedprox", people, model=model, work=work, rounds=2, executor="batched")
    weights += [w.flatten() for w in run.params.values()]
assert compiled_training.kernels() and vectors.LANES == lanes
np.save(sys.argv[2], torch.cat(weights).numpy())
"""


@pytest.mark.slow
def test_compiled_loops_narrower_vectors_train_the_same(tmp_path):
    vectors = pytest.importorskip("unalike.loops.simd")
    trained = []
    # Only the loops of narrower vectors are compiled anew; those of this processor are stored.
    for lanes, environment in (
        (vectors.LANES, {}),
        (vectors.LANES // 2, {"NUMBA_CACHE_DIR": str(tmp_path)}),
    ):
        file = tmp_path / f"{lanes}.npy"
        words = [sys.executable, "-c", NARROW, str(lanes), str(file)]
        subprocess.run(words, env=os.environ | environment, timeout=300, check=True)
        trained.append(np.load(file))
    np.testing.assert_allclose(*trained, atol=2e-6)


@pytest.mark.parametrize(
    ("terminal", "seconds", "told"), [(True, 0.0, True), (True, 9.0, False), (False, 0.0, False)]
)
def test_compiling_is_announced_on_terminal(terminal, seconds, told, monkeypatch, capsys):
    def compiled(module):
        time.sleep(0.2)
        return time

    monkeypatch.setattr(compiled_loops, "LOADING_SECONDS", seconds)
    monkeypatch.setattr(compiled_loops, "import_module", compiled)
    monkeypatch.setattr(sys.__stderr__, "isatty", lambda: terminal, raising=False)
    assert compiled_loops.loops.__wrapped__("loops") is time
    assert ("once on this machine" in capsys.readouterr().err) == told
