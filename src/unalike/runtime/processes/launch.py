"""Whether a run has several processes, and their start: as forks of this one, or as the processes of `torchrun`."""

import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from unalike._utils import spec
from unalike._utils.errors import UnalikeError
from unalike._utils.spec import Call
from unalike._utils.system.machine import cores, idle_cores
from unalike.core.options import cohort_size
from unalike.engine.auto import share_gain, work_seconds
from unalike.engine.base import ClientPool
from unalike.engine.batched import Batched
from unalike.engine.multiprocess.worker_pool import (
    all_on_this_machine,
    join_pool,
    launched_by_torchrun,
    pool_was_used,
    start_pool,
)
from unalike.engine.threads import threads_for
from unalike.methods.plan import Stage, steps_of
from unalike.runtime.processes.process_backend import ProcessBackend
from unalike.runtime.processes.worker_process import serve
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.local_backend import LocalBackend
from unalike.training.client.client_states import ClientStates
from unalike.training.client.client_update import initial_client_state

MIN_SECONDS_ALONE = 20.0
"""Seconds of training in one process above which a run gets several."""
MIN_GAIN = 1.25
"""Speed of the processes over that of one from which on they pay, since their clients are not always shared out evenly."""

IN_ONE_PROCESS = "distributed(workers=1)"
"""The automatic choice of the executor, but no further processes."""


@contextmanager
def backend_here(run_config: RunConfig) -> Iterator[LocalBackend]:
    """The backend of a run on this machine: this process, or several, which leave when the run ends."""
    # The processes of torchrun are there already. Without it, this one may start others.
    worker_pool = join_pool(run_config.device, _nccl(run_config))
    count = None
    if worker_pool is None:
        count = _processes(run_config)
        if count is not None and count > 1:
            worker_pool = start_pool(
                count, partial(serve, run_config), run_config.device, _nccl(run_config)
            )
    if worker_pool is None:
        with threads_for(run_config.model, alone=count is None):
            yield LocalBackend(run_config.here())
        return

    # A run gives its clients' states back before the processes that keep them leave.
    try:
        backend = ProcessBackend(run_config.here(worker_pool.place), worker_pool)
        with threads_for(run_config.model, alone=False):
            yield backend
        backend.collect_client_states()
    finally:
        worker_pool.close()


def follow_leader(run_configs: Sequence[RunConfig]) -> None:
    """In a worker process of `torchrun`, train its share of each run, and exit; elsewhere do nothing.

    It does not return, so these are all the runs of the process. Raises `UnalikeError` when there are more.
    """
    if not launched_by_torchrun():
        return
    if pool_was_used():
        raise UnalikeError(
            "one torchrun makes one run or one comparison, and this would be another: its other processes have left; "
            "start torchrun once for each, or put what belongs together into one ua.compare([...])"
        )
    if os.environ["RANK"] == "0":
        return
    for run_config in run_configs:
        worker_pool = join_pool(run_config.device, _nccl(run_config))
        assert worker_pool is not None
        try:
            serve(run_config, worker_pool)
        except RuntimeError as error:
            raise UnalikeError(
                f"the process that leads is gone: {str(error).splitlines()[0][:160]}"
            ) from None
    sys.stdout.flush()
    sys.stderr.flush()
    # an ordinary exit can abort: the threads of gloo may still wait for the leader
    os._exit(0)


def require_folder(run_config: RunConfig, out: str | Path | None) -> None:
    """Raise `UnalikeError` where clients' states would be lost with the machines that keep them."""
    if out is not None or not launched_by_torchrun() or all_on_this_machine():
        return
    for stage in run_config.outline:
        if not isinstance(stage, Stage):
            continue
        settings = replace(run_config.settings, model=stage.model or run_config.model)
        if initial_client_state(stage.method, settings):
            raise UnalikeError(
                f"clients of {stage.method!r} keep a state, and no folder is known that all machines see; give one by out="
            )


def _processes(run_config: RunConfig) -> int | None:
    """The number of processes that train on a core each; None: one process trains, on all cores.

    "auto" leaves out the cores that other programs use: threads that wait for each other beside them are many times as slow (a
    round of a ResNet-20 by two threads on two busy cores takes 8 to 28 times as long as by one).
    """
    call = _distributed(run_config)
    if call is None:
        return None
    if call.name != "auto":
        return int(call.parameters.get("workers", cores()))
    shared = _pool_to_share(run_config)
    if shared is None:
        return None
    client_pool, clients = shared
    idle = max(1, idle_cores())
    if idle == 1:
        return idle
    with threads_for(run_config.model, alone=False):
        gain = share_gain(client_pool, clients, run_config.options.rounds, idle)
    return idle if gain >= MIN_GAIN else None


def _nccl(run_config: RunConfig) -> bool:
    """Whether tensors shall travel directly between the processes' accelerators."""
    call = _distributed(run_config)
    return call is not None and call.parameters.get("nccl", False)


def _distributed(run_config: RunConfig) -> Call | None:
    """The run's executor, if it has or may have several processes. Raises `UnalikeError` for unknown parameters."""
    call = spec.parse_one(run_config.options.executor)
    if call.name not in ("distributed", "auto"):
        return None
    strange = set(call.parameters) - {"workers", "inner", "nccl"}
    workers = call.parameters.get("workers", 1)
    nccl = call.parameters.get("nccl", False)
    if strange or type(workers) is not int or workers < 1 or type(nccl) is not bool:
        raise UnalikeError(
            f"executor {call}: expected 'distributed(workers=2)', or with inner='loop' or 'batched' in each of them, or with "
            "nccl=True between GPUs"
        )
    return call


def _pool_to_share(run_config: RunConfig) -> tuple[ClientPool, int] | None:
    """The clients, and how many take part in a round, of a run that "auto" may share out: on Linux, on the CPU, and long.

    Compiled loops train on all cores from within one process, without messages.
    """
    # A process that is itself a worker, as one of a tuning, may have no children.
    stage = next(steps_of(run_config.plan, run_config.plan_inputs))
    stays_alone = (
        sys.platform != "linux"
        or run_config.device.type != "cpu"
        or multiprocessing.current_process().daemon
        or run_config.models is not None
    )
    if stays_alone or not isinstance(stage, Stage) or stage.pooled or not stage.trained:
        return None
    if stage.method.sampler is not None and stage.method.sampler.sets_work:
        return None
    settings = replace(
        run_config.settings,
        model=stage.model or run_config.model,
        work=stage.method.local_work(run_config.work),
    )
    clients = int(np.count_nonzero(run_config.population.sizes))
    count = cohort_size(run_config.options.participation, clients)
    client_pool = ClientPool(stage.method, settings, run_config.population, ClientStates({}))
    if count == 1 or Batched(client_pool).uses_compiled_loops:
        return None
    with threads_for(run_config.model):  # as it would train: more of them may wait for each other
        is_long = work_seconds(client_pool, count, run_config.options.rounds) > MIN_SECONDS_ALONE
    return (client_pool, count) if is_long else None
