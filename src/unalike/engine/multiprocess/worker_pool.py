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

FAREWELL = 10.0
"""Seconds that a process has to exit by itself."""


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
        self.rank, self.size, self.place, self._room = channel.rank, size, place, room
        self.folder = None if room is None else Path(room.name)
        self._channel, self._processes = channel, processes
        self._lost, self._owed = "", set[int]()
        self.closed = False
        """Whether the run is over and the others have left."""

    def tell(self, message: Message, asked: Iterable[int] = ()) -> None:
        """Send a command from the leader to all processes; those that it `asked` will answer."""
        for rank in sorted(self._owed):  # answers to a question that was interrupted
            with suppress(UnalikeError):  # a process listens again once its answer was taken
                self.answer(rank)
        self._owed = set(asked)
        with self._watched():
            self._channel.tell(message | {"asked": sorted(self._owed)})

    def hear(self) -> Message:
        """Receive what the leader tells."""
        return self._channel.hear()

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
        leave = not self._lost and not (self._owed and self._processes)
        if leave:
            with suppress(UnalikeError):
                self.tell(EndRun().as_dict())
        self.closed = True
        self._channel.close()
        for process in self._processes:
            process.join(FAREWELL if leave else 0.0)
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
            for process in self._processes:
                process.join(0.5)
            dead = [
                f"{i + 1} (exit code {p.exitcode})"
                for i, p in enumerate(self._processes)
                if not p.is_alive()
            ]
            who = ", ".join(dead) or (str(rank) if rank is not None else "one")
            self._lost = (
                f"of {self.size} processes of the run number {who} is gone: {str(error).splitlines()[0][:160]}. Its clients' "
                "states went with it; with out=FOLDER the same command goes on from the last checkpoint"
            )
            raise UnalikeError(self._lost) from None
        except BaseException:
            self._lost = "the run was interrupted while its processes talked"
            raise


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
    way = device.type if nccl else None
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(
            target=_work,
            args=(store, rank, workers, serve, way),
            daemon=True,
            name=f"unalike-{rank}",
        )
        for rank in range(1, workers)
    ]
    gc.collect()
    gc.freeze()  # what exists now is never collected in the workers: its threads and handles are this process's
    try:
        for process in processes:
            process.start()
    finally:
        gc.unfreeze()
    return WorkerPool(_local(store, 0, workers, way), workers, 0, room, processes)


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
    store, line, size = _members()
    place = int(os.environ.get("LOCAL_RANK", "0"))
    if nccl:
        check_nccl(device, int(os.environ["LOCAL_WORLD_SIZE"]))
        own = dist.PrefixStore(f"team-{store.add(f'teams of {line.rank}', 1)}", store)
        line = Channel(
            line.rank, line.gloo, nccl_group(torch.device(device.type, place), own, line.rank, size)
        )
    room = (
        TemporaryDirectory(prefix="unalike-team-")
        if all_on_this_machine() and not line.rank
        else None
    )
    return WorkerPool(line, size, place, room)


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
    store: str, rank: int, size: int, serve: Callable[[WorkerPool], None], way: str | None
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the leader decides what an interruption means
    with suppress(RuntimeError, KeyboardInterrupt):  # the leader is gone
        serve(WorkerPool(_local(store, rank, size, way), size, rank))
    os._exit(0)


def _local(file: str, rank: int, size: int, way: str | None) -> Channel:
    """A channel between processes of this machine; `way`: a device type for direct transfers as well."""
    store = dist.FileStore(file, size)
    gloo = local_gloo(store, rank, size)
    if way is None:
        return Channel(rank, gloo)
    return Channel(
        rank,
        gloo,
        nccl_group(torch.device(way, rank), dist.PrefixStore("direct", store), rank, size),
    )
