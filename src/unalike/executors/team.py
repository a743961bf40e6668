"""Processes that work for a run: started here, or by `torchrun` on one or many machines. Rank 0 leads, the others answer.

They talk over `torch.distributed` (gloo) in a group of their own, so that no global group is touched.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache, partial
from itertools import chain
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

from unalike.core.errors import UnalikeError
from unalike.core.labels import part_of
from unalike.executors.parcel import packed, unpacked

Message = dict[str, Any]

PATIENCE = timedelta(days=7)
"""A leader may evaluate for hours before it asks again; the end of a process is noticed at once."""
FAREWELL = 10.0
"""Seconds that a process has to leave by itself."""


class Team:
    """The processes of a run as one of them sees it. `place` is its number among those of its machine."""

    def __init__(
        self,
        group: Any,
        rank: int,
        size: int,
        place: int,
        room: TemporaryDirectory[str] | None = None,
        processes: Sequence[BaseProcess] = (),
    ):
        self.rank, self.size, self.place, self._room = rank, size, place, room
        self.folder = None if room is None else Path(room.name)
        self._group, self._processes = group, processes
        self._lost, self._owed = "", set[int]()
        self.closed = False
        """Whether the run is over and the others have left."""

    def tell(self, message: Message, asked: Iterable[int] = ()) -> None:
        """From the leader to all; the processes that it `asked` will answer."""
        for rank in sorted(self._owed):  # of a question that was given up
            with suppress(UnalikeError):  # they listen when somebody has taken their answers
                self.answer(rank)
        self._owed = set(asked)
        with self._watched():
            for part in _parts(message | {"asked": sorted(self._owed)}):
                self._broadcast(part)

    def hear(self) -> Message:
        """What the leader tells."""
        return _message(self._broadcast)

    def reply(self, message: Message) -> None:
        """To the leader, who asked last."""
        for part in _parts(message):
            if len(part):
                self._group.send([part], 0, 0).wait()

    @part_of("waiting")
    def answer(self, rank: int) -> Message:
        """What a process that was asked replies. Raises `UnalikeError` for an error there, or a process that is gone."""
        with self._watched(rank):
            message = _message(partial(self._receive, rank))
        self._owed.discard(rank)
        if "error" in message:
            raise UnalikeError(f"process {rank} of {self.size}: {message['error']}")
        return message

    def close(self) -> None:
        """Let the others go; end those of this machine that are still busy with a question."""
        leave = not self._lost and not (self._owed and self._processes)
        if leave:
            with suppress(UnalikeError):
                self.tell({"do": "end"})
        self.closed = True
        for process in self._processes:
            process.join(FAREWELL if leave else 0.0)
            if process.is_alive():
                process.kill()
                process.join()

    def _broadcast(self, part: torch.Tensor) -> None:
        if len(part):
            self._group.broadcast([part], dist.BroadcastOptions()).wait()

    def _receive(self, rank: int, part: torch.Tensor) -> None:
        if len(part):
            self._group.recv([part], rank, 0).wait()

    @contextmanager
    def _watched(self, rank: int | None = None) -> Iterator[None]:
        if self._lost:
            raise UnalikeError(self._lost)
        try:
            yield
        except RuntimeError as error:
            for process in self._processes:
                process.join(0.5)
            dead = [f"{i + 1} (exit code {p.exitcode})" for i, p in enumerate(self._processes) if not p.is_alive()]
            who = ", ".join(dead) or (str(rank) if rank is not None else "one")
            self._lost = (
                f"of {self.size} processes of the run number {who} is gone: {str(error).splitlines()[0][:160]}. Its clients' "
                "memories went with it; with out=FOLDER the same command goes on from the last checkpoint"
            )
            raise UnalikeError(self._lost) from None
        except BaseException:
            self._lost = "the run was interrupted while its processes talked"
            raise


def _parts(message: Message) -> Iterator[torch.Tensor]:
    """What is sent: the length of the header, the header, the pieces."""
    header, pieces = packed(message)
    return chain([torch.tensor([len(header)]), header], pieces)


def _message(take: Callable[[torch.Tensor], None]) -> Message:
    """The message whose parts `take` writes into the vectors that it is given."""
    take(length := torch.empty(1, dtype=torch.int64))
    take(header := torch.empty(int(length), dtype=torch.uint8))
    message: Message = unpacked(header, take)
    return message


def started(workers: int, serve: Callable[[Team], None], device: torch.device) -> Team:
    """`workers` processes: this one leads, the others are copies of it that `serve` and share its memory until they write.

    Raises `UnalikeError` where there are no copies, or where they could not use the `device` because this process has.
    """
    if sys.platform != "linux":
        raise UnalikeError(f"workers are started on Linux only, found {sys.platform}; use torchrun, or executor='loop'")
    if device.type != "cpu" and torch.get_device_module(device).is_initialized():
        raise UnalikeError(
            f"workers would be copies of this process, which has used {device} already, and copies cannot; start them with "
            f"`torchrun --nproc-per-node={workers} -m unalike run ...`, or let torchrun start a script with this run alone"
        )
    room = TemporaryDirectory(prefix="unalike-team-")
    store = str(Path(room.name) / "store")
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_work, args=(store, rank, workers, serve), daemon=True, name=f"unalike-{rank}")
        for rank in range(1, workers)
    ]
    gc.collect()
    gc.freeze()  # what exists now is never collected in the workers: its threads and handles are this process's
    try:
        for process in processes:
            process.start()
    finally:
        gc.unfreeze()
    return Team(_local_group(store, 0, workers), 0, workers, 0, room, processes)


def called() -> bool:
    """Whether `torchrun` started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def neighbours() -> bool:
    """Whether all processes of `torchrun` are on this machine."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]


def joined() -> Team | None:
    """The team of the next run in which `torchrun` made this process a member; None outside of it."""
    if not called():
        return None
    group, rank, size = _members()
    room = TemporaryDirectory(prefix="unalike-team-") if neighbours() and not rank else None
    return Team(group, rank, size, int(os.environ.get("LOCAL_RANK", "0")), room)


@cache
def _members() -> tuple[Any, int, int]:
    """The processes of `torchrun`, which meet once: their group, and which one of how many this is."""
    store, rank, size = next(iter(dist.rendezvous("env://")))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return _group(dist.PrefixStore(f"unalike-{attempt}", store), rank, size, _reachable()), rank, size


def have_met() -> bool:
    """Whether the processes of `torchrun` have had a run."""
    return bool(_members.cache_info().currsize)


def _work(store: str, rank: int, size: int, serve: Callable[[Team], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the leader decides what an interruption means
    with suppress(RuntimeError, KeyboardInterrupt):  # the leader is gone
        serve(Team(_local_group(store, rank, size), rank, size, rank))
    os._exit(0)


def _local_group(store: str, rank: int, size: int) -> Any:
    device = dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")
    return _group(dist.FileStore(store, size), rank, size, device)


def _reachable() -> Any:
    """Where the others reach this process: at the interface that a person named, or else that leads to rank 0.

    A machine's own name, which gloo would take, often stands for an address that no other machine can reach.
    """
    named = os.environ.get("GLOO_SOCKET_IFNAME")
    if named:
        return dist.ProcessGroupGloo.create_device(interface=named)
    leader = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    for family, kind, protocol, _, address in socket.getaddrinfo(*leader, type=socket.SOCK_DGRAM):
        with suppress(OSError), socket.socket(family, kind, protocol) as way:
            way.connect(address)  # nothing is sent
            return dist.ProcessGroupGloo.create_device(hostname=way.getsockname()[0])
    return dist.ProcessGroupGloo.create_default_device()


def _group(store: Any, rank: int, size: int, device: Any) -> Any:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout, options._devices = PATIENCE, [device]
    return dist.ProcessGroupGloo(store, rank, size, options)
