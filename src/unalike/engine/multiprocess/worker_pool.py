"""The worker pool: processes that share the work of a run, started here, or by `torchrun` on one or many machines. Rank 0 leads.

They communicate over `torch.distributed` in groups of their own; no global group is touched.
"""

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

from unalike._utils.errors import UnalikeError
from unalike._utils.profiler_regions import profiled_function
from unalike.engine.multiprocess.channel import (
    Channel,
    check_nccl,
    local_gloo,
    nccl_group,
    remote_gloo,
)
from unalike.engine.multiprocess.messages import EndRun

Message = dict[str, Any]

EXIT_SECONDS = 10.0
"""Seconds that a process has to exit by itself."""
CRASH_SECONDS = 0.5
"""Seconds that a process which is gone may take until it is known to be."""


class WorkerPool:
    """The processes of a run, as one of them sees them. `place` is its number among those of its machine."""

    def __init__(
        self,
        channel: Channel,
        size: int,
        place: int,
        room: TemporaryDirectory[str] | None = None,
        processes: Sequence[BaseProcess] = (),
    ):
        self.rank = channel.rank
        self.size = size
        self.place = place
        self.folder = None if room is None else Path(room.name)
        self._room = room
        self._channel = channel
        self._processes = processes
        # why the others can no longer be reached, and the processes whose answers are still to come
        self._lost = ""
        self._owed: set[int] = set()
        self.closed = False
        """Whether the run is over and the others have left."""

    def send(self, message: Message, asked: Iterable[int] = ()) -> None:
        """Send a command from the leader to all processes; those that are `asked` will answer."""
        # after an interrupted question: a process listens again once its answer was taken
        for rank in sorted(self._owed):
            with suppress(UnalikeError):
                self.answer(rank)
        self._owed = set(asked)
        with self._watched():
            self._channel.send_to_all(message | {"asked": sorted(self._owed)})

    def receive(self) -> Message:
        """Receive the leader's next command."""
        return self._channel.receive_from_leader()

    def reply(self, message: Message) -> None:
        """Answer the leader's last question."""
        self._channel.send(message, 0)

    @profiled_function("waiting")
    def answer(self, rank: int) -> Message:
        """Receive a process's answer. Raises `UnalikeError` for an error there, or a process that is gone."""
        with self._watched(rank):
            message: Message = self._channel.receive(rank)
        self._owed.discard(rank)
        if "error" in message:
            raise UnalikeError(f"process {rank} of {self.size}: {message['error']}")
        return message

    def close(self) -> None:
        """Let the other processes exit; end those of this machine that are still busy with a command."""
        is_busy = bool(self._owed and self._processes)
        can_leave = not self._lost and not is_busy
        if can_leave:
            with suppress(UnalikeError):
                self.send(EndRun().as_dict())
        self.closed = True
        self._channel.close()
        for process in self._processes:
            process.join(EXIT_SECONDS if can_leave else 0.0)
            if process.is_alive():
                process.kill()
                process.join()

    @contextmanager
    def _watched(self, rank: int | None = None) -> Iterator[None]:
        if self._lost:
            raise UnalikeError(self._lost)
        try:
            yield
        except RuntimeError as error:
            self._lost = self._why_lost(rank, str(error).splitlines()[0][:160])
            raise UnalikeError(self._lost) from None
        except BaseException:
            self._lost = "the run was interrupted while its processes talked"
            raise

    def _why_lost(self, rank: int | None, reason: str) -> str:
        """What an error of the channel means; `rank` is the process that was spoken to, if it was one."""
        # the process that is gone may be another one than that which was spoken to
        for process in self._processes:
            process.join(CRASH_SECONDS)
        dead = [
            f"{number} (exit code {process.exitcode})"
            for number, process in enumerate(self._processes, start=1)
            if not process.is_alive()
        ]
        who = ", ".join(dead) or ("one" if rank is None else str(rank))
        return (
            f"of {self.size} processes of the run number {who} is gone: {reason}. Its clients' "
            "states went with it; with out=FOLDER the same command goes on from the last checkpoint"
        )


def start_pool(
    workers: int, serve: Callable[[WorkerPool], None], device: torch.device, nccl: bool = False
) -> WorkerPool:
    """`workers` processes: this one leads, the others are forks of it that run `serve` and share its memory until they write.

    With `nccl` tensors travel directly between devices of their own, of the kind of `device`. Raises `UnalikeError` where there
    are no copies, or where they could not use the `device` because this process has.
    """
    if sys.platform != "linux":
        raise UnalikeError(
            f"workers are started on Linux only, found {sys.platform}; use torchrun, or executor='loop'"
        )
    if device.type != "cpu" and not _copies_can_use(device):
        raise UnalikeError(
            f"workers would be copies of this process, which has used {device} already, and copies cannot; start them with "
            f"`torchrun --nproc-per-node={workers} -m unalike run ...`, or let torchrun start a script with this run alone "
            "(torch.cuda.is_available() uses the device, unless PYTORCH_NVML_BASED_CUDA_CHECK=1 is set)"
        )
    if nccl:
        check_nccl(device, workers)
    room = TemporaryDirectory(prefix="unalike-team-")
    store = str(Path(room.name) / "store")
    direct_device = device.type if nccl else None
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(
            target=_work,
            args=(store, rank, workers, serve, direct_device),
            daemon=True,
            name=f"unalike-{rank}",
        )
        for rank in range(1, workers)
    ]
    # what exists now is never collected in the workers: its threads and handles are this process's
    gc.collect()
    gc.freeze()
    try:
        for process in processes:
            process.start()
    finally:
        gc.unfreeze()
    return WorkerPool(_local(store, 0, workers, direct_device), workers, 0, room, processes)


def _copies_can_use(device: torch.device) -> bool:
    """Whether forks of this process could use the device: it has not been initialized here, and a fork finds no trace of that."""
    module = torch.get_device_module(device)
    if module.is_initialized():
        return False
    was_used = getattr(module, "_is_in_bad_fork", None)
    if was_used is None:
        return True
    child = os.fork()
    if not child:
        os._exit(int(was_used()))
    return not os.waitpid(child, 0)[1]


def launched_by_torchrun() -> bool:
    """Whether `torchrun` started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def all_on_this_machine() -> bool:
    """Whether all processes of `torchrun` are on this machine."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]


def join_pool(device: torch.device, nccl: bool = False) -> WorkerPool | None:
    """The worker pool of the next run under `torchrun`; None without `torchrun`."""
    if not launched_by_torchrun():
        return None
    store, channel, size = _members()
    rank, place = channel.rank, int(os.environ.get("LOCAL_RANK", "0"))
    if nccl:
        check_nccl(device, int(os.environ["LOCAL_WORLD_SIZE"]))
        # each run connects the devices anew, under a name that no run before it had
        run_number = store.add(f"teams of {rank}", 1)
        run_store = dist.PrefixStore(f"team-{run_number}", store)
        own_device = torch.device(device.type, place)
        direct = nccl_group(own_device, run_store, rank, size)
        channel = Channel(rank, channel.gloo, direct)
    room = None
    if all_on_this_machine() and rank == 0:
        room = TemporaryDirectory(prefix="unalike-team-")
    return WorkerPool(channel, size, place, room)


@cache
def _members() -> tuple[Any, Channel, int]:
    """Connects the processes of `torchrun`, once: their store, the channel between them, and their number."""
    store, rank, size = next(iter(dist.rendezvous("env://")))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"unalike-{attempt}", store)
    return store, Channel(rank, remote_gloo(store, rank, size)), size


def pool_was_used() -> bool:
    """Whether the processes of `torchrun` have had a run."""
    return bool(_members.cache_info().currsize)


def _work(
    store: str, rank: int, size: int, serve: Callable[[WorkerPool], None], direct_device: str | None
) -> None:
    # the leader decides what an interruption means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # without the leader there is nothing left to do
    with suppress(RuntimeError, KeyboardInterrupt):
        serve(WorkerPool(_local(store, rank, size, direct_device), size, rank))
    os._exit(0)


def _local(file: str, rank: int, size: int, direct_device: str | None) -> Channel:
    """A channel between processes of this machine; `direct_device`: a device type for direct transfers as well."""
    store = dist.FileStore(file, size)
    gloo = local_gloo(store, rank, size)
    if direct_device is None:
        return Channel(rank, gloo)
    device = torch.device(direct_device, rank)
    direct = nccl_group(device, dist.PrefixStore("direct", store), rank, size)
    return Channel(rank, gloo, direct)
