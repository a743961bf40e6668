"""Several real processes do what one does."""

import os
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from every_method import METHODS, SIZES, WORK
from every_task import NAMES, OneLayer, class_count, fitted, population_of
from simulation import Clients, mlp

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.data import Population
from unalike.engine.base import client_costs
from unalike.engine.multiprocess.distributed import assign_clients
from unalike.engine.multiprocess.worker_pool import WorkerPool, start_pool
from unalike.methods.plan import plan, steps_of
from unalike.metrics.columns import TIMES
from unalike.runtime.processes.launch import require_folder
from unalike.runtime.processes.process_backend import ProcessBackend
from unalike.runtime.processes.worker_process import serve
from unalike.runtime.round_loop import run_round
from unalike.runtime.setup.run_config import configure_run
from unalike.runtime.stages.local_backend import LocalStage

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="workers are started on Linux only"),
]


def people():
    clients = Clients.random(SIZES)
    return [
        ua.ClientData(train=(clients.x[i], clients.y[i]))
        for i in map(torch.from_numpy, clients.train)
    ]


def job_of(spec, norm=False, **options):
    clients = Clients.random(SIZES)
    return configure_run(
        spec,
        people(),
        model=mlp(norm=norm and spec.privacy is None),  # private methods refuse batch norm
        rounds=2,
        work=ua.Work(**WORK),
        seed=3,
        proxy=(clients.x[1:7], clients.y[1:7]),
        **options,
    )


def rounds(simulation, count=2):
    return [run_round(simulation) for _ in range(count)]


def states_agree(a, b, tolerance=1e-6):
    """Within 1e-6 of the values: the same reports, added up in another order."""
    for name in a.state.states:
        for field in ("params", "buffers"):
            mine, theirs = (
                getattr(a.state.states[name], field),
                getattr(b.state.states[name], field),
            )
            for n in theirs:
                torch.testing.assert_close(mine[n], theirs[n], rtol=10 * tolerance, atol=tolerance)


def test_assign_clients_picks_least_loaded_process():
    assert assign_clients(np.array([5, 4, 3, 3, 3]), 2).tolist() == [0, 1, 1, 0, 1]
    zipf = (1000 / np.arange(1, 101)).astype(np.int64)
    assert abs(np.diff(np.bincount(assign_clients(zipf, 2), zipf)))[0] <= zipf.min()


def test_client_costs_count_steps_and_their_samples():
    method = plan("fedavg")
    assert client_costs(
        method, ua.Work(epochs=2, batch_size=10), np.array([25, 3, 0])
    ).tolist() == [6 * 14, 2 * 7, 0]
    assert client_costs(method, ua.Work(steps=5, batch_size=None), np.array([25, 3])).tolist() == [
        5 * 29,
        5 * 7,
    ]


@pytest.mark.parametrize("norm", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_two_processes_every_method_equals_loop(norm):
    run_configs = {name: job_of(method, norm, executor="loop") for name, method in METHODS.items()}
    # averages over few steps of a generator amplify a last bit; everything else is at rounding
    coarse = {name for name in METHODS if "gen" in name or norm}
    all_agree_in_two_processes(run_configs, coarse)


@pytest.mark.slow
def test_two_processes_every_task_equals_loop():
    run_configs = {}
    for name in NAMES:
        clients = population_of(fitted(name))
        outputs = clients.task.output_shape(class_count(clients.task), clients.y.shape[1:])
        run_configs[name] = configure_run(
            "fedavg",
            clients,
            model=OneLayer(4, outputs),
            rounds=2,
            work=ua.Work(batch_size=20, lr=0.01),
            executor="loop",
        )
    all_agree_in_two_processes(run_configs)


def all_agree_in_two_processes(run_configs, coarse=()):
    """Check that two processes do what one does in each of these runs; the worker is told of one after the other.

    Those in `coarse` agree within 1e-4.
    """
    worker_pool = start_pool(2, partial(_serve_all, run_configs), torch.device("cpu"))
    try:
        for name, run_config in run_configs.items():
            stage = next(steps_of(run_config.plan, run_config.plan_inputs))
            shared = ProcessBackend(run_config, worker_pool).stage(
                stage, 0, worker_pool.folder / name.replace("/", "-")
            )
            shared.start()
            alone = LocalStage(run_config, stage)
            alone.start()
            mine, theirs = rounds(shared), rounds(alone)
            states_agree(shared, alone, 1e-4 if name in coarse else 2e-6)
            for a, b in zip(mine, theirs):
                assert a.trained == b.trained and (a.bytes_up, a.bytes_down) == (
                    b.bytes_up,
                    b.bytes_down,
                )
            for k in range(len(run_config.population)):
                torch.testing.assert_close(
                    shared.personal(k), alone.personal(k), rtol=1e-3, atol=1e-4
                )
            worker_pool.send({"do": "another"})
    finally:
        worker_pool.close()


def _serve_all(run_configs, worker_pool):
    """What `serve` does for a run, for one job after the other."""
    warnings.simplefilter("ignore")
    for run_config in run_configs.values():
        serve(run_config, _Until(worker_pool))


class _Until:
    """A team whose run ends when another one begins."""

    def __init__(self, worker_pool):
        self.worker_pool = worker_pool

    def __getattr__(self, name):
        return getattr(self.worker_pool, name)

    def receive(self):
        message = self.worker_pool.receive()
        return {"do": "end"} if message["do"] == "another" else message


def digits(clients=6):
    return ua.partition(ua.load("digits"), "dirichlet(alpha=0.5)", clients=clients, seed=0)


def played(spec, executor, **more):
    return ua.run(
        spec,
        digits(),
        model="mlp(hidden=(8,))",
        rounds=3,
        executor=executor,
        work=ua.Work(lr=0.1),
        **more,
    )


@pytest.mark.slow
def test_worker_run_equals_single_process_run():
    for spec in ("scaffold", "ditto + fedlws"):
        alone = played(spec, "loop", participation=0.7)
        for workers in (2, 3):
            shared = played(
                spec, f"distributed(workers={workers}, inner='loop')", participation=0.7
            )
            again = played(spec, f"distributed(workers={workers}, inner='loop')", participation=0.7)
            assert "processes" in shared.executor
            for n in alone.params:  # 1e-6: sums in another order
                torch.testing.assert_close(shared.params[n], alone.params[n], rtol=1e-5, atol=1e-6)
                assert torch.equal(shared.params[n], again.params[n])
            # the processes are gone, and what clients remember is still there
            torch.testing.assert_close(shared.personal(4), alone.personal(4), rtol=1e-4, atol=1e-5)


SCORED = {
    "fedavg": "score",
    "ditto": "score own",
    "fedper + fedlws": "score own",
    "fedbn": "score own",
    "local_finetune": "score own",
    "scaffold + local_finetune": "score own",
    "conditional": "score own",
    "ifca(clusters=2)": "score",
}


@pytest.mark.parametrize("spec", SCORED)
def test_evaluation_split_over_processes_equals_one_process(spec, monkeypatch):
    """Shared models on a part of the samples each, clients' own models where their memories are: the metrics of one process."""
    told, send = set(), WorkerPool.send
    monkeypatch.setattr("unalike.runtime.processes.process_backend.MIN_SHARED_SAMPLES", 1)
    monkeypatch.setattr(
        WorkerPool,
        "send",
        lambda worker_pool, message, *who: (
            told.add(message["do"]) or send(worker_pool, message, *who)
        ),
    )
    people = ua.partition(ua.load("digits"), "dirichlet(alpha=0.5)", clients=7, seed=0, val=0.2)
    protocols = (
        ("clients",) if spec in ("conditional", "ifca(clusters=2)") else ("clients", "server")
    )
    alone, shared = (
        ua.run(
            spec,
            people,
            model={
                "conditional": "conditional_mlp(hidden=(8,))",
                "fedbn": "cnn(channels=(2,), norm='batch')",
            }.get(spec, "mlp(hidden=(8,))"),
            rounds=3,
            participation=0.6,
            work=ua.Work(lr=0.1),
            executor=executor,
            protocol=protocols,
            test=(people.x[:500], people.y[:500]),
            metrics={
                "rank": lambda y, guess, logits: float((logits > 0).sum() + (y == guess).sum())
            },
        ).history
        for executor in ("loop", "distributed(workers=3, inner='loop')")
    )
    assert SCORED[spec] in told
    for table in ("rounds", "clients"):
        mine, theirs = (
            getattr(h, table).drop(columns=[*TIMES], errors="ignore") for h in (shared, alone)
        )
        pd.testing.assert_frame_equal(mine, theirs, rtol=1e-3, atol=1e-4)


def test_plan_with_several_stages_on_workers_equals_loop():
    for spec in (
        "fedconcat(clusters=2, encoder_rounds=2, classifier_rounds=1)",
        "ifca(clusters=2)",
    ):
        alone, shared = (played(spec, e) for e in ("loop", "distributed(workers=2, inner='loop')"))
        torch.testing.assert_close(shared.personal(0), alone.personal(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inner", ["loop", "batched(compiled_loops=False)"])
def test_dropout_of_equal_clients_on_workers_differs(inner):
    """Of clients whose samples are all alike, dropout alone tells one from another."""
    alike = [ua.ClientData(train=(torch.ones(6, 4), torch.zeros(6, dtype=torch.int64)))] * 4
    executor = f"distributed(workers=2, inner='{inner}')"
    run = ua.run(
        "local_only",
        alike,
        model=mlp(hidden=20, dropout=0.5),
        rounds=1,
        executor=executor,
        work=ua.Work(lr=0.1),
    )
    assert len({tuple(run.personal(k)["body.weight"].flatten().tolist()) for k in range(4)}) == 4


@pytest.mark.parametrize("spec", ["scaffold", "ditto"])
def test_round_without_client_in_leader_equals_loop(spec):
    """Those who remember something stay where their memories are: one participant a round is mostly another process's."""
    alone, shared = (
        played(spec, e, participation=0.1)
        for e in ("loop", "distributed(workers=3, inner='batched')")
    )
    for n in alone.params:  # 1e-6: chunks
        torch.testing.assert_close(shared.params[n], alone.params[n], rtol=1e-5, atol=1e-6)


def test_resume_with_other_number_of_processes_gives_same_model(tmp_path):
    whole = played("scaffold", "loop")
    for executor in ("distributed(workers=2, inner='loop')", "loop"):
        stop = lambda row: row["round"] == 1  # noqa: E731
        folder = tmp_path / executor
        played("scaffold", executor, out=folder, stop=stop)
        more = played("scaffold", "distributed(workers=3, inner='loop')", out=folder)
        torch.testing.assert_close(more.params, whole.params, rtol=1e-5, atol=1e-6)


def test_checkpoint_in_second_stage_keeps_client_states_of_first_stage(tmp_path):
    """Written in the second stage, which has one group where the first has two; then the run goes on from it."""
    spec = "fedconcat(clusters=2, encoder_rounds=2, classifier_rounds=1, method='scaffold')"
    whole = played(spec, "loop")
    more = {"executor": "distributed(workers=2, inner='loop')", "out": tmp_path}
    for last in (2, 3):
        run = played(spec, stop=lambda row, last=last: row["round"] == last, **more)
    assert len(run.history.rounds) == 4
    torch.testing.assert_close(run.personal(0), whole.personal(0), rtol=1e-4, atol=1e-5)


def test_worker_pool_invalid_options_are_refused():
    with pytest.raises(UnalikeError, match=r"expected 'distributed\(workers=2\)'"):
        played("fedavg", "distributed(workers=0)")
    with pytest.raises(UnalikeError, match="unknown executor 'ray'"):
        played("fedavg", "distributed(workers=2, inner='ray')")


class Falls(Exception):
    pass


def test_worker_killed_ends_run_with_checkpoint_and_resume_gives_same_model(tmp_path):
    """The leader says who is gone; the same command goes on and comes to the same model."""
    whole = played("fedavg", "loop")

    def kill(row):
        if row["round"] == 2:
            for child in psutil.Process().children():
                child.kill()
        return False

    with pytest.raises(
        UnalikeError, match=r"processes of the run number 1 \(exit code -9\) is gone"
    ):
        played("fedavg", "distributed(workers=2, inner='loop')", out=tmp_path, stop=kill)
    assert (tmp_path / "checkpoints" / "round-000002.safetensors").exists()
    more = played("fedavg", "distributed(workers=2, inner='loop')", out=tmp_path)
    torch.testing.assert_close(more.params, whole.params, rtol=1e-5, atol=1e-6)


def test_worker_error_is_raised_in_leader():
    """A model that fails in a process of its own fails the run with its words."""

    class Fails(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.pid = torch.nn.Linear(64, 10), os.getpid()

        def forward(self, x):
            if os.getpid() != self.pid:
                raise Falls("no luck")
            return self.head(x.flatten(1))

    with pytest.raises(UnalikeError, match="process 1 of 2: Falls: no luck"):
        ua.run(
            "fedavg",
            digits(),
            model=Fails(),
            rounds=1,
            executor="distributed(workers=2, inner='loop')",
        )


STOPPED = """
import os, time, torch, unalike as ua
from unalike.engine.loop import Loop

leader, feed = os.getpid(), Loop.feed


def stopped(self, *given):
    if os.getpid() == leader:
        time.sleep(1)  # meanwhile the other process has begun to send an answer that fills more than what sockets hold
        raise {error}
    return feed(self, *given)


Loop.feed = stopped
torch.set_num_threads(1)
clients = [ua.ClientData(train=(torch.randn(4, 50), torch.arange(4))) for _ in range(4)]
ua.run("fedavg", clients, model="mlp(hidden=(2000, 2000))", rounds=2, executor="distributed(workers=2, inner='loop')")
"""


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "MemoryError('no more')"])
def test_leader_stopped_in_a_round_does_not_wait_for_workers(error):
    """Ctrl-C, or an error of its own, while the others are busy with what it asked them."""
    environment = os.environ | {"PYTHONPATH": str(Path(ua.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", STOPPED.format(error=error)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0 and error.partition("(")[0] in done.stderr.splitlines()[-1]


TORCHRUN = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    "--max-restarts",
    "2",
]
RUN = [
    "-m",
    "unalike",
    "run",
    "--data",
    "digits",
    "--method",
    "scaffold",
    "--clients",
    "6",
    "--model",
    "mlp(hidden=(8,))",
]


@pytest.mark.slow
def test_torchrun_restart_after_kill_gives_same_model_as_one_process(tmp_path):
    """One of two processes is killed under way; torchrun starts them again, and the run ends with the model of one process."""
    flags = [*RUN, "--rounds", "150", "--executor", "loop", "--lr", "0.01"]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(ua.__file__).parents[1]),
    }
    out = tmp_path / "joined"
    process = subprocess.Popen(
        [*TORCHRUN, *flags, "--out", str(out)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        killed = _kill_a_rank(process.pid, out)
        output, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    assert killed and process.returncode == 0, output
    events = (out / "events.jsonl").read_text()
    assert events.count('"event": "finished"') == 1
    alone = subprocess.run(
        [sys.executable, *flags, "--out", str(tmp_path / "alone")],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert alone.returncode == 0, alone.stderr
    from unalike._utils.tensor_files import read_tensors

    a, b = (read_tensors(folder / "model.safetensors")[0] for folder in (out, tmp_path / "alone"))
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)  # 150 rounds of sums in another order


def _kill_a_rank(agent, out):
    """Kill the process of rank 1 once the run trains; whether there was one."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (out / "events.jsonl").exists() and '"stage"' in (out / "events.jsonl").read_text():
            time.sleep(0.5)
            for child in psutil.Process(agent).children():
                if child.environ().get("RANK") == "1":
                    child.kill()
                    return True
            return False
        time.sleep(0.05)
    return False


def said(folder, *command):
    """What Python says to a command that ends well."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(ua.__file__).parents[1]),
    }
    done = subprocess.run(
        [*command], env=environment, cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


SCRIPT = """
import unalike as ua

clients = ua.partition(ua.load("digits"), "dirichlet(alpha=0.5)", clients=6, seed=0)
played = lambda spec: ua.run(spec, clients, model="mlp(hidden=(8,))", rounds=3, executor="loop", work=ua.Work(lr=0.1))
run = played("ditto")
print("own models:", *(round(float(sum(t.abs().sum() for t in run.personal(k).values())), 3) for k in range(6)))
try:
    played("fedavg")
except ua.UnalikeError as error:
    print(error)
"""


@pytest.mark.slow
def test_torchrun_script_gets_all_personal_models_and_refuses_second_run(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    output = said(tmp_path, *TORCHRUN, "script.py")
    assert output.count("one torchrun makes one run or one comparison") == 1, output
    run = played("ditto", "loop")
    own = [float(sum(t.abs().sum() for t in run.personal(k).values())) for k in range(6)]
    [line] = [line for line in output.splitlines() if line.startswith("own models:")]
    assert [float(word) for word in line.split()[2:]] == pytest.approx(own, abs=2e-3)


def test_client_states_on_two_machines_without_shared_folder_are_refused(monkeypatch):
    """Two machines with a process each; on one machine the leader makes a folder, and without memories there is no need."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with pytest.raises(
        UnalikeError, match="keep a state, and no folder is known that all machines see"
    ):
        played("ditto", "loop")
    require_folder(job_of("fedavg"), None)
    require_folder(job_of("ditto"), "folder")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    require_folder(job_of("ditto"), None)


@pytest.mark.slow
def test_torchrun_compare_equals_one_process(tmp_path):
    """The same processes work for all cells, one that diverges among them, and only one of them reports."""
    flags = [
        "-m",
        "unalike",
        "compare",
        "--data",
        "digits",
        "--clients",
        "6",
        "--model",
        "mlp(hidden=(8,))",
    ]
    flags += ["--rounds", "3", "--seeds", "2", "--executor", "loop", "--lr", "0.1"]
    for method in ("ditto", "fedprox(mu=1e38)", "scaffold"):
        flags += ["--method", method]
    output = said(tmp_path, *TORCHRUN, *flags, "--out", "joined")
    assert output.count("report: ") == 1 and "is left out" in output, output
    said(tmp_path, sys.executable, *flags, "--out", "alone")
    mine, theirs = (
        pd.read_parquet(tmp_path / name / "rounds.parquet") for name in ("joined", "alone")
    )
    pd.testing.assert_frame_equal(
        mine.drop(columns=[*TIMES]), theirs.drop(columns=[*TIMES]), rtol=1e-3, atol=1e-4
    )


def test_two_processes_with_one_client_complete_the_run():
    one = Population.of(people()[:1])
    run = ua.run("fedavg", one, model="linear", rounds=1, executor="distributed(workers=2)")
    assert len(run.history) == 2
