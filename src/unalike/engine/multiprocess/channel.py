"""Transport between worker processes: gloo, optionally NCCL between GPUs.

Gloo notices at once when a process dies; NCCL waits. So with NCCL every message ends with one byte over gloo. That byte arrives
once the other side has started its transfer, and never if that side is dead.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core.codec import from_pieces, to_pieces

MAX_WAIT = timedelta(days=7)
"""A leader may evaluate for hours before it asks again; the end of a process is noticed at once."""


@dataclass(frozen=True)
class NcclGroup:
    """Direct transfers between the GPUs of several processes: NCCL, for NVIDIA and AMD.

    `group` is a backend of `torch.distributed` for tensors on `device`, that of this process. Transfers are asynchronous, like
    everything on a device.
    """

    device: torch.device
    group: Any

    def wait(self) -> None:
        """Wait until the device has finished."""
        torch.get_device_module(self.device).synchronize(self.device)


@dataclass(frozen=True)
class Channel:
    """Nests of plain values and tensors go from rank 0 to all, and between two. Raises `RuntimeError` when a process is gone."""

    rank: int
    gloo: Any
    direct: NcclGroup | None = None

    def send_to_all(self, nest: Any) -> None:
        """Send a nest from rank 0 to all processes."""
        with self._guarded():
            for part in to_pieces(nest, self._direct_device):
                self._broadcast(part)
            self._await_all()

    def receive_from_leader(self) -> Any:
        """Receive what rank 0 sends to all."""
        with self._guarded():
            nest = from_pieces(self._broadcast, self._direct_device)
            self._await_all()
            return nest

    def send(self, nest: Any, rank: int) -> None:
        """Send a nest to one process."""
        with self._guarded():
            for part in to_pieces(nest, self._direct_device):
                self._send(part, rank)
            if self.direct:
                self._send(_one_byte(), rank)

    def receive(self, rank: int) -> Any:
        """Receive what one process sends to this one."""
        with self._guarded():
            nest = from_pieces(lambda part: self._receive(part, rank), self._direct_device)
            if self.direct:
                self._receive(_one_byte(), rank)
                self.direct.wait()
            return nest

    def close(self) -> None:
        """Abort transfers between GPUs that are not complete."""
        if self.direct:
            self.direct.group.abort()

    def _broadcast(self, part: Tensor) -> None:
        if len(part):
            self._group(part).broadcast([part], dist.BroadcastOptions()).wait()

    def _send(self, part: Tensor, rank: int) -> None:
        if len(part):
            self._group(part).send([part], rank, 0).wait()

    def _receive(self, part: Tensor, rank: int) -> None:
        if len(part):
            self._group(part).recv([part], rank, 0).wait()

    def _await_all(self) -> None:
        """Wait until all processes have started the transfer, so that it will complete."""
        if self.direct:
            self.gloo.barrier(dist.BarrierOptions()).wait()
            self.direct.wait()

    def _group(self, part: Tensor) -> Any:
        if self.direct is None or part.device.type == "cpu":
            return self.gloo
        return self.direct.group

    @property
    def _direct_device(self) -> torch.device | None:
        return self.direct.device if self.direct else None

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # a GPU that waits for a dead process would wait forever
            self.close()
            raise


def _one_byte(device: torch.device | None = None) -> Tensor:
    return torch.zeros(1, dtype=torch.uint8, device=device)


def local_gloo(store: Any, rank: int, size: int) -> Any:
    """Gloo among processes of this machine."""
    return _gloo(store, rank, size, dist.ProcessGroupGloo.create_device(hostname="127.0.0.1"))


def remote_gloo(store: Any, rank: int, size: int) -> Any:
    """Gloo among processes of many machines."""
    return _gloo(store, rank, size, _reachable())


def _reachable() -> Any:
    """The network interface of this process: the one that the environment names, or else the one that leads to rank 0.

    By default gloo uses the machine's own name, which often stands for an address that no other machine can reach.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    if interface:
        return dist.ProcessGroupGloo.create_device(interface=interface)
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    for family, kind, protocol, _, address in addresses:
        with suppress(OSError), socket.socket(family, kind, protocol) as connection:
            # nothing is sent: the system only chooses the interface
            connection.connect(address)
            own_address = connection.getsockname()[0]
            return dist.ProcessGroupGloo.create_device(hostname=own_address)
    return dist.ProcessGroupGloo.create_default_device()


def _gloo(store: Any, rank: int, size: int, device: Any) -> Any:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = MAX_WAIT
    options._devices = [device]
    return dist.ProcessGroupGloo(store, rank, size, options)


def _nccl(store: Any, rank: int, size: int) -> Any:
    from torch._C._distributed_c10d import ProcessGroupNCCL

    return ProcessGroupNCCL(store, rank, size, ProcessGroupNCCL.Options())


BACKENDS: dict[str, Callable[[Any, int, int], Any]] = {"cuda": _nccl}
"""Device type -> makes a `torch.distributed` backend from a store, a rank and the number of processes."""


def check_nccl(device: torch.device, processes: int) -> None:
    """Raise `UnalikeError` where the processes of this machine cannot have a GPU each."""
    has_nccl = device.type != "cuda" or dist.is_nccl_available()
    if device.type not in BACKENDS or not has_nccl:
        raise UnalikeError(
            f"nccl=True: found device='{device}' and torch {torch.__version__}, expected GPUs and a torch with NCCL"
        )
    count = torch.get_device_module(device).device_count()
    if device.index is not None or processes > count:
        raise UnalikeError(
            f"nccl=True: found device='{device}', {processes} processes and {count} devices on this machine, "
            f"expected device='{device.type}' and a device for each process; without nccl=True several may share one"
        )


def nccl_group(device: torch.device, store: Any, rank: int, size: int) -> NcclGroup:
    """Connects this process's `device` with those of the others. Raises `UnalikeError`."""
    byte = _one_byte(device)
    try:
        group = BACKENDS[device.type](store, rank, size)
        group.broadcast([byte], dist.BroadcastOptions()).wait()
        # connections are made when they are first used: now, when nobody is known to be dead
        for other in range(1, size):
            if rank == 0:
                group.recv([byte], other, 0).wait()
            elif rank == other:
                group.send([byte], 0, 0).wait()
        connected = NcclGroup(device, group)
        connected.wait()
    except RuntimeError as error:
        reason = str(error).splitlines()[0][:160]
        raise UnalikeError(
            f"nccl=True: {device} of process {rank} does not reach the others: {reason}; "
            "NCCL_DEBUG=INFO says more, and without nccl=True tensors travel over the host"
        ) from None
    return connected
