"""Direct transfers between the GPUs of several processes: NCCL, for NVIDIA and AMD."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from unalike._utils.errors import UnalikeError


@dataclass(frozen=True)
class NcclGroup:
    """`group` is a backend of `torch.distributed` for tensors on `device`, that of this process.

    Transfers are asynchronous, like everything on a device.
    """

    device: torch.device
    group: Any

    def wait(self) -> None:
        """Wait until the device has finished."""
        torch.get_device_module(self.device).synchronize(self.device)


def _nccl(store: Any, rank: int, size: int) -> Any:
    from torch._C._distributed_c10d import ProcessGroupNCCL

    return ProcessGroupNCCL(store, rank, size, ProcessGroupNCCL.Options())


BACKENDS: dict[str, Callable[[Any, int, int], Any]] = {"cuda": _nccl}
"""Device type -> makes a `torch.distributed` backend from a store, a rank and the number of processes."""


def check_nccl(device: torch.device, processes: int) -> None:
    """Raise `UnalikeError` where the processes of this machine cannot have a GPU each."""
    if device.type not in BACKENDS or (device.type == "cuda" and not dist.is_nccl_available()):
        raise UnalikeError(
            f"nccl=True: found device='{device}' and torch {torch.__version__}, expected GPUs and a torch with NCCL"
        )
    found = torch.get_device_module(device).device_count()
    if device.index is not None or processes > found:
        raise UnalikeError(
            f"nccl=True: found device='{device}', {processes} processes and {found} devices on this machine, "
            f"expected device='{device.type}' and a device for each process; without nccl=True several may share one"
        )


def nccl_group(device: torch.device, store: Any, rank: int, size: int) -> NcclGroup:
    """Connects this process's `device` with those of the others. Raises `UnalikeError`."""
    word = torch.zeros(1, dtype=torch.uint8, device=device)
    try:
        group = BACKENDS[device.type](store, rank, size)
        group.broadcast([word], dist.BroadcastOptions()).wait()
        for other in range(
            1, size
        ):  # connections are made when they are first used: now, when nobody is known to be dead
            if rank == 0:
                group.recv([word], other, 0).wait()
            elif rank == other:
                group.send([word], 0, 0).wait()
        made = NcclGroup(device, group)
        made.wait()
    except RuntimeError as error:
        raise UnalikeError(
            f"nccl=True: {device} of process {rank} does not reach the others: {str(error).splitlines()[0][:160]}; "
            "NCCL_DEBUG=INFO says more, and without nccl=True tensors travel over the host"
        ) from None
    return made
