"""The executor that `auto` chooses, models and parts that cannot be stacked, and chunks that do not fit into memory."""

import re
from dataclasses import dataclass, replace
from itertools import groupby
from typing import ClassVar

import numpy as np
import pytest
import torch
from every_method import federation
from simulation import same
from torch import nn

import unalike as ua
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.model_probes import why_padding_counts
from unalike.engine import auto
from unalike.engine.batched import Batched, cuts
from unalike.engine.compiled import compiled_training
from unalike.methods.method import Method
from unalike.methods.plan import steps_of
from unalike.methods.roles import Correction, Objective
from unalike.runtime.processes import launch
from unalike.runtime.round_loop import run_round
from unalike.runtime.setup.run_config import configure_run
from unalike.runtime.stages.local_backend import LocalStage


def clients(count=12, samples=20):
    g = torch.Generator().manual_seed(0)
    return [
        ua.ClientData(train=(torch.randn(samples, 8, generator=g), torch.arange(samples) % 3))
        for _ in range(count)
    ]


@pytest.fixture
def measures(monkeypatch):
    """Every choice is measured."""
    monkeypatch.setattr(auto, "MEASURE_FROM_SECONDS", 0.0)
    monkeypatch.setattr(compiled_training, "kernels", lambda: None)


def runner_of(people, model="mlp(hidden=(8,))", rounds=5, executor="auto", method="fedavg", **more):
    work = ua.Work(batch_size=5)
    run_config = configure_run(
        method, people, model=model, rounds=rounds, work=work, executor=executor, **more
    )
    stage = LocalStage(run_config, next(steps_of(run_config.plan, run_config.plan_inputs)))
    stage.start()
    return stage


NO_NUMBA = "; compiled loops do not train the model: numba is not installed"


def test_auto_short_run_is_decided_by_rule(monkeypatch):
    loops = "batched: compiled loops train the model"
    assert runner_of(clients()).executor == runner_of(clients(1)).executor == loops
    monkeypatch.setattr(compiled_training, "kernels", lambda: None)
    assert runner_of(clients()).executor == f"batched: a step of the model is little work{NO_NUMBA}"
    assert runner_of(clients(1)).executor.startswith("loop: one client")
    assert runner_of(clients(3)).executor.startswith(
        "loop: stacking would do the work of 3.0 clients"
    )
    assert runner_of(clients(), executor="loop").executor == "loop: asked for"


def test_auto_convolutions_are_compiled_unless_threads_would_idle(monkeypatch):
    g = torch.Generator().manual_seed(0)
    images = [
        ua.ClientData(train=(torch.randn(5, 1, 8, 8, generator=g), torch.arange(5) % 3))
        for _ in range(3)
    ]
    loops = "batched: compiled loops train the model"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert runner_of(images, model="cnn(channels=4)").executor == loops
    why = runner_of(images, model="cnn(channels=4, norm='batch')").executor
    assert why.startswith(
        "loop: stacking would do the work of 3.0 clients at a time, and pays from 5.0 on; compiled loops do"
    )
    assert "they have no BatchNorm2d(" in why and "in the place of convolutions.1" in why
    monkeypatch.setattr(auto, "THREADED_FLOPS", 0.0)
    assert runner_of(images, model="cnn(channels=4)").executor.startswith(
        "loop: threads share a step"
    )
    assert (
        runner_of(clients(3)).executor
        == runner_of(images * 2, model="cnn(channels=4)").executor
        == loops
    )


@pytest.mark.parametrize(
    ("side", "count", "why"),
    [
        (8, 8, "batched: a step of the model is little work"),
        (56, 8, "loop: stacking would do the work of 8.0 clients at a time, and pays from 8.1 on"),
        (56, 9, "batched: a step of the model is little work"),
        (80, 9, "loop: a step is work enough for a processor (26 million operations forward)"),
    ],
)
def test_auto_convolutions_are_stacked_where_their_work_is_little_beside_the_clients(
    side, count, why
):
    """5 images times 2 x 25 x 16 side^2 operations."""
    layers = (
        torch.nn.Conv2d(1, 16, 5, padding=2),
        torch.nn.GroupNorm(4, 16),
        torch.nn.AdaptiveAvgPool2d(2),
    )
    model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64, 3))
    images = [
        ua.ClientData(train=(torch.randn(5, 1, side, side), torch.arange(5) % 3))
        for _ in range(count)
    ]
    assert runner_of(images, model=model).executor.startswith(why)


@pytest.mark.parametrize(("width", "executor"), [(8, "batched"), (256, "loop")])
def test_auto_transformer_is_stacked_only_if_small(width, executor):
    layer = torch.nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 12 * width), torch.nn.Unflatten(1, (12, width)), layer
    )
    model = torch.nn.Sequential(model, torch.nn.Flatten(), torch.nn.Linear(12 * width, 3))
    why = runner_of(clients(24), model=model).executor
    assert why.startswith(executor), why
    assert ("a step is work enough" in why) == (executor == "loop")


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_auto_recurrent_model_takes_loop(kind):
    class Reader(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = kind(2, 4, batch_first=True), torch.nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.layer(x.unflatten(1, (4, 2)))[0][:, -1])

    why = runner_of(clients(24), model=Reader()).executor
    assert why.startswith(
        "loop: torch computes stacked recurrent layers one after the other; compiled loops"
    )


def test_auto_clients_without_samples_do_not_matter(monkeypatch):
    monkeypatch.setattr(compiled_training, "kernels", lambda: None)
    assert (
        runner_of(clients(70, samples=0) + clients()).executor
        == f"batched: a step of the model is little work{NO_NUMBA}"
    )


class Activated(torch.nn.BatchNorm1d):
    """A batch norm with its own `forward`, which would count padding."""

    def forward(self, x):
        return super().forward(x).relu()


def test_batched_batch_norm_with_own_forward_is_refused():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), Activated(8), torch.nn.Linear(8, 3))
    chosen = runner_of(clients(), model=model)
    assert chosen.executor.startswith(
        "loop: the model cannot be stacked: padding would count in a batch norm with a forward of its own (Activated); compiled"
    )
    run_round(chosen)
    for asked in ("batched", "batched(chunk=2)"):
        with pytest.raises(
            ua.UnalikeError, match=r"batched.*cannot be stacked: padding would count.*\(Activated\)"
        ):
            run_round(runner_of(clients(), model=model, executor=asked))


class Decided(torch.nn.Module):
    """Its forward branches on a number, which stacked clients do not have."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.head(x) if x.sum() > 0 else self.head(-x)


@pytest.mark.parametrize(
    "model, why",
    [
        (Decided(), "control flow"),
        (torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(8, 3)), ""),
    ],
)
def test_batched_model_that_cannot_be_stacked_is_refused(model, why):
    with pytest.raises(
        ua.UnalikeError, match=f"batched.*cannot be stacked: .*{why}.*; write 'loop' or 'auto'"
    ):
        run_round(runner_of(clients(), model=model, executor="batched"))
    run_round(runner_of(clients(), model=model))


def test_batched_part_that_cannot_be_stacked_is_refused():
    @dataclass(frozen=True)
    class Stern(Objective):
        name = "stern"

        def loss(self, local, batch):
            size = batch.mean(local.output.logits.square().sum(1))
            return size if size.item() > 1 else 2 * size

    with pytest.raises(ua.UnalikeError, match=r"cannot be stacked: .*write 'loop' or 'auto'"):
        run_round(
            runner_of(clients(), method=ua.Method.parse("fedavg") + Stern(), executor="batched")
        )


def test_run_under_no_grad_trains_the_same(monkeypatch):
    monkeypatch.setattr(compiled_training, "kernels", lambda: None)
    with torch.no_grad():
        runs = [
            ua.run("fedavg", clients(), model="mlp(hidden=(8,))", rounds=1, executor=e)
            for e in ("auto", "batched")
        ]
    assert same(runs[0].params, runs[1].params)


class Unwritten(torch.nn.Linear):
    """It cannot be stacked, and raises an error without a message."""

    def forward(self, x):
        if torch._C._functorch.is_functorch_wrapped_tensor(self.weight):
            raise NotImplementedError
        return super().forward(x)


def test_batched_error_without_message_is_refused_by_type():
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.SiLU(), Unwritten(4, 3))
    with pytest.raises(
        ua.UnalikeError, match="cannot be stacked: NotImplementedError; write 'loop'"
    ):
        run_round(runner_of(clients(), model=model, executor="batched"))


class Centred(torch.nn.Module):
    """Its outputs depend on the whole batch, or only a buffer outside of a norm does."""

    def __init__(self, outputs=True, dropout=0.0):
        super().__init__()
        self.outputs, self.dropout, self.head = (
            outputs,
            torch.nn.Dropout(dropout),
            torch.nn.Linear(8, 3),
        )
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.head(self.dropout(x - x.mean(0) if self.outputs else x - self.mean))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(
    "model, where",
    [
        (Centred(), "the buffer 0.mean"),
        (Centred(outputs=False), "the buffer 0.mean"),
        (
            torch.nn.Sequential(
                torch.nn.Unflatten(1, (2, 4)), torch.nn.InstanceNorm1d(2, track_running_stats=True)
            ),
            "running",
        ),
    ],
)
def test_padding_check_model_using_batch_statistics_is_refused(model, where, dropout):
    model = torch.nn.Sequential(
        model, torch.nn.Flatten(), torch.nn.Dropout(dropout), torch.nn.LazyLinear(3)
    )
    model(torch.randn(4, 8))
    chosen = runner_of(clients(), model=model)
    assert re.match(
        f"loop: the model cannot be stacked: padding would count in .*{where}", chosen.executor
    )
    with pytest.raises(ua.UnalikeError, match="padding would count"):
        run_round(runner_of(clients(), model=model, executor="batched"))


@dataclass(frozen=True)
class Confident(Objective):
    """The mean entropy of the outputs, as a plain mean or by `batch.mean`."""

    name = "confident"
    plain_mean: bool = True

    def loss(self, local, batch):
        entropy = torch.distributions.Categorical(logits=local.output.logits).entropy()
        return entropy.mean() if self.plain_mean else batch.mean(entropy)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("method", ["fedavg", "fedprox + topk", "ditto", "moon"])
def test_padding_check_plain_mean_in_own_part_is_refused(dropout, method):
    """Without the check, training would go on with a wrong loss."""
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 6), torch.nn.GELU(), torch.nn.Dropout(dropout), torch.nn.Linear(6, 3)
    )
    wrong, right = (ua.Method.parse(method) + Confident(plain_mean) for plain_mean in (True, False))
    assert (
        "padding would count in confident: a mean"
        in runner_of(clients(), model=model, method=wrong).executor
    )
    with pytest.raises(
        ua.UnalikeError, match=r"padding would count in confident.*batch.mean\(per_sample\)"
    ):
        run_round(runner_of(clients(), model=model, method=wrong, executor="batched"))
    assert runner_of(clients(), model=model, method=right).executor.startswith("batched")


@dataclass(frozen=True)
class Noisy(Correction):
    """Gradients with noise."""

    name: ClassVar[str] = "noisy"
    scale: float = 0.1

    def correct(self, client, grads, batch):
        return tree.map(lambda g: g + self.scale * torch.randn_like(g), grads)


@dataclass(frozen=True)
class NoisyRows(Objective):
    """Losses with noise, as a plain mean or by `batch.mean`."""

    name: ClassVar[str] = "noisy_rows"
    scale: float = 0.1
    plain_mean: bool = False

    def loss(self, client, batch):
        losses = client.settings.task.losses(client.out(batch).logits, batch.y)
        noisy = losses * (1 + self.scale * torch.randn(len(losses)))
        return noisy.mean() if self.plain_mean else batch.mean(noisy)


@pytest.mark.parametrize("scale", [1e-4, 6e-4, 1e-2, 0.1, 1.0])
@pytest.mark.parametrize("own", [Noisy, NoisyRows])
def test_padding_check_part_that_draws_noise_is_accepted(own, scale):
    chosen = runner_of(clients(), method=Method() + own(scale))
    assert chosen.executor.startswith("batched")


@pytest.mark.parametrize("scale", [1e-3, 0.1])
def test_padding_check_noise_does_not_hide_a_plain_mean(scale):
    wrong = Method() + NoisyRows(scale, plain_mean=True)
    assert "padding would count in noisy_rows" in runner_of(clients(), method=wrong).executor


def test_padding_check_embedding_scaled_by_frequency_is_refused():
    table = torch.nn.Embedding(9, 4, scale_grad_by_freq=True)
    assert "scale_grad_by_freq" in why_padding_counts(Model(table), torch.randint(9, (3, 5)))


def test_padding_check_norms_and_dropout_are_accepted():
    torch.manual_seed(0)
    norms = [torch.nn.LayerNorm(8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)]
    model = torch.nn.Sequential(*norms, torch.nn.GELU(), torch.nn.Linear(8, 3))
    assert why_padding_counts(Model(model), torch.randn(5, 8)) is None
    assert why_padding_counts(Model(model), torch.randn(1, 8)) is None


def test_auto_long_run_is_measured_once(monkeypatch):
    monkeypatch.setattr(compiled_training, "kernels", lambda: None)
    trials, seen = [], auto._trial
    monkeypatch.setattr(auto, "_trial", lambda *a: trials.append(a) or seen(*a))
    sim = runner_of(clients(), rounds=10**7)
    sim.start()
    assert (
        "measured" in sim.executor
        and "ms a client" in sim.executor
        and sim.executor == sim.executor
    )
    assert 2 <= len(trials) <= 4
    assert (
        type(sim.state.groups["all"].executor).__name__.lower() == sim.choice.executor.split("(")[0]
    )


def test_auto_measures_few_clients_a_round_and_clients_of_all_sizes(monkeypatch):
    """Stacking would do the work of three clients at a time: short runs take the loop; of unequal clients, each size is tried."""
    monkeypatch.setattr(compiled_training, "kernels", lambda: None)
    fed = []

    class Watched(auto.Loop):
        def feed(self, broadcast, ids, accepted, sink):
            fed.append([int(n) for n in self.client_pool.sizes[ids]])
            super().feed(broadcast, ids, accepted, sink)

    monkeypatch.setattr(auto, "Loop", Watched)
    people = [client for size in (5, 40, 10) for client in clients(1, size)]
    stage = runner_of(people, rounds=10**7)
    assert "measured" in stage.executor and "ms a client" in stage.executor and fed[0] == [5, 40]
    pool, makes = stage.state.groups["all"].client_pool, (2, 3, 9)
    fed.clear()
    for count in makes:
        auto._trial(pool, Watched, count)
    assert [sizes for sizes, _ in groupby(fed)] == [[5, 40], [5, 10, 40]]  # no more than there are


def test_auto_measuring_leaves_no_trace(measures):
    sim, plain = runner_of(clients()), runner_of(clients(), executor="loop")
    sim.build_executors(replace(sim.choice, executor="loop"))
    before = torch.get_rng_state()
    for s in (sim, plain):
        run_round(s), run_round(s)
    assert same(sim.state.states["all"].params, plain.state.states["all"].params) and torch.equal(
        before, torch.get_rng_state()
    )


def test_auto_resumed_run_keeps_its_executor(tmp_path, monkeypatch, measures):
    """A finished run that is only read is not measured, either."""
    arguments = {"model": "mlp(hidden=(8,))", "rounds": 4, "work": ua.Work(batch_size=5)}
    whole = ua.run("fedavg", clients(), out=tmp_path / "whole", **arguments)
    ua.run(
        "fedavg", clients(), out=tmp_path / "part", stop=lambda row: row["round"] == 2, **arguments
    )
    monkeypatch.setattr(auto, "_trial", lambda *a: pytest.fail("measured again"))
    rest = ua.run("fedavg", clients(), out=tmp_path / "part", **arguments)
    assert rest.history.last["round"] == 4
    again = ua.run("fedavg", clients(), out=tmp_path / "whole", **arguments)
    assert same(again.params, whole.params)


def test_worker_pool_is_not_started_for_compiled_loops(monkeypatch):
    """Compiled loops use all cores in one process; torch does not."""
    run_config = configure_run(
        "fedavg", clients(), model="mlp(hidden=(8,))", rounds=10**7, work=ua.Work(batch_size=5)
    )
    assert launch._pool_to_share(run_config) is None
    monkeypatch.setattr(compiled_training, "kernels", lambda: None)
    assert launch._pool_to_share(run_config) is not None


@pytest.mark.parametrize(("idle", "processes"), [(0, 1), (1, 1), (2, 2), (7, 7)])
def test_long_run_of_auto_has_a_process_for_each_idle_core(monkeypatch, idle, processes):
    monkeypatch.setattr(compiled_training, "kernels", lambda: None)
    monkeypatch.setattr(launch, "idle_cores", lambda: idle)
    monkeypatch.setattr(launch, "share_gain", lambda *_: 2.0)
    run_config = configure_run(
        "fedavg", clients(), model="mlp(hidden=(8,))", rounds=10**7, work=ua.Work(batch_size=5)
    )
    assert launch._processes(run_config) == processes
    monkeypatch.setattr(launch, "MIN_SECONDS_ALONE", float("inf"))
    assert launch._processes(run_config) is None


@pytest.mark.parametrize(("whole", "half", "processes"), [(1.0, 0.9, None), (1.0, 0.6, 2)])
def test_processes_must_gain_more_than_their_messages_cost(
    monkeypatch, measures, whole, half, processes
):
    """Stacked steps that cost as much for half of the clients leave nothing to gain."""
    timed = {12: whole / 12, 6: half / 6}
    monkeypatch.setattr(
        auto, "_seconds_by_executor", lambda pool, n: {"loop": 2.0, "batched": timed[n]}
    )
    monkeypatch.setattr(launch, "idle_cores", lambda: 2)
    run_config = configure_run(
        "fedavg", clients(), model="mlp(hidden=(8,))", rounds=10**7, work=ua.Work(batch_size=5)
    )
    assert launch._processes(run_config) == processes


@pytest.mark.parametrize(("patience", "threads"), [(0.0, 1), (float("inf"), 2)])
def test_long_run_of_convolutions_beside_a_busy_program_has_one_thread(
    monkeypatch, patience, threads
):
    """The module notes torch's number of threads in each forward pass."""
    seen = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 2, 3), nn.Linear(8, 2)

        def forward(self, x):
            seen.append(torch.get_num_threads())
            return self.head(self.conv(x).flatten(1))

    before = torch.get_num_threads()
    monkeypatch.setattr(compiled_training, "kernels", lambda: None)
    monkeypatch.setattr(launch, "idle_cores", lambda: 1)
    monkeypatch.setattr(launch, "MIN_SECONDS_ALONE", patience)
    people = [ua.ClientData(train=(torch.randn(4, 1, 4, 4), torch.arange(4) % 2)) for _ in range(3)]
    try:
        torch.set_num_threads(2)
        ua.run("fedavg", people, model=Net(), rounds=1, work=ua.Work(batch_size=None))
        assert seen[-1] == threads and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("chunk", [0, -1, 2.5])
def test_batched_chunk_below_one_is_refused(chunk):
    with pytest.raises(ua.UnalikeError, match=rf"batched\(chunk={chunk}\): .* at least 1"):
        run_round(runner_of(clients(), executor=f"batched(chunk={chunk})"))


class Tight(Batched):
    """A device with room for three clients."""

    room = 3
    error: Exception = torch.OutOfMemoryError("CUDA out of memory")

    def _chunk(self, kind, order, ids, accepted):
        if len(ids) > self.room:
            raise self.error
        return super()._chunk(kind, order, ids, accepted)


@pytest.mark.parametrize(
    "told",
    ["MPS backend out of memory", "[enforce fail at alloc_cpu.cpp:117] can't allocate memory"],
)
def test_batched_out_of_memory_is_recognized_by_message(told, monkeypatch):
    monkeypatch.setattr(Tight, "error", RuntimeError(told))
    tight = federation("fedavg")
    tight.executor = Tight(tight.executor.client_pool)
    tight.round()
    assert tight.executor.width == 2


@pytest.mark.parametrize("method", ["scaffold", "fedbabu"])
def test_batched_out_of_memory_halves_chunk(method):
    plain, tight = federation(method, "batched", chunk=2), federation(method)
    tight.executor = Tight(tight.executor.client_pool)
    a, b = plain.round(), tight.round()
    assert tight.executor.width == 2 and a.ids == b.ids and same(plain.params, tight.params)
    plain.round(), tight.round()
    assert same(plain.params, tight.params) and all(
        same(plain.memory(k), tight.memory(k)) for k in range(4)
    )
    if method == "fedbabu":
        assert same(plain.tuned(), tight.tuned())


def test_batched_out_of_memory_with_one_client_is_raised():
    sim = federation("fedavg")
    sim.executor = Tight(sim.executor.client_pool)
    Tight.room = 0
    try:
        with pytest.raises(torch.OutOfMemoryError):
            sim.round()
    finally:
        Tight.room = 3


def test_batched_other_error_is_raised():
    class Broken(Batched):
        def _chunk(self, *arguments):
            raise RuntimeError("shapes do not match")

    sim = federation("fedavg")
    sim.executor = Broken(sim.executor.client_pool)
    with pytest.raises(RuntimeError, match="shapes"):
        sim.round()


def test_cuts_group_clients_of_similar_size():
    """A large client does not share a chunk with many small ones, and clients of equal size are not separated."""
    sizes = np.array([1] * 3 + [10] * 50 + [11, 20, 30, 5000])
    chunks = np.split(sizes, cuts(sizes, 40))
    assert [len(chunk) for chunk in chunks] == [3, 40, 12, 2]
    assert all(len(chunk) * chunk.max() <= 2 * chunk.sum() for chunk in chunks)
    assert cuts(np.full(100, 7), 40) == [40, 80] and cuts(sizes[:0], 4) == []
