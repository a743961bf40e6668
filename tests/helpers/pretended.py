"""A kind of device that is not there: tensors that say they are on it, and whose numbers lie in the CPU's memory.

What an accelerator refuses is refused here, too: operations on tensors of two devices, indices on one of values on the CPU, and
looking at numbers without copying them. Nor is there float64, as Apple's devices have none. So code that runs here has no such
mistake, though nothing shows how fast it would be.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

KIND, COUNT = "pretended", 2
aten = torch.ops.aten
INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
"""Indices may lie on the CPU, values elsewhere."""
COPIES = {aten._to_copy.default, aten.copy_.default}


class Module(_DummyBackendModule):
    """What torch asks of `torch.pretended`."""

    used = False

    def __init__(self) -> None:
        self.asked: list[Future[None]] = []
        """What the devices have been told to do and may not have done."""
        self.generators = [torch.Generator() for _ in range(COUNT)]
        """Nobody draws from them: operations are done by the CPU."""

    def device_count(self) -> int:
        return COUNT

    def is_initialized(self) -> bool:
        return self.used

    def synchronize(self, device: Any = None) -> None:
        while self.asked:
            self.asked.pop(0).result()

    def get_rng_state(self, device: torch.device) -> Tensor:
        return self.generators[device.index or 0].get_state()

    def set_rng_state(self, state: Tensor, device: torch.device) -> None:
        self.generators[device.index or 0].set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class Generator(torch.Generator):
    """One whose numbers are the CPU's, wherever it is said to be."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        return super().__new__(cls)


module, library = Module(), torch.library.Library("_", "IMPL")
_setup_privateuseone_for_python_backend(KIND, module)
library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # nothing is rounded


class There(Tensor):
    """A tensor on one of the devices; `own` has its numbers."""

    own: Tensor

    @staticmethod
    def __new__(cls, own: Tensor, device: torch.device) -> There:
        module.used = True
        layout = {"strides": own.stride(), "storage_offset": own.storage_offset()}
        made = torch.Tensor._make_wrapper_subclass(
            cls, own.shape, dtype=own.dtype, device=device, **layout
        )
        made.own = own
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"There({self.own}, {self.device})"

    def tolist(self) -> Any:
        return self.own.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(f"can't convert a tensor on {self.device} to numpy")
        return self.own.detach().numpy()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


class Pretending(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operation on the CPU; what comes of it is where it would have come of it."""
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    there = [t for t in tensors if isinstance(t, There)]
    wanted = kwargs.get("device")
    if wanted is not None:
        place = torch.device(wanted)
        kwargs, given = kwargs | {"device": torch.device("cpu")}, kwargs
    else:
        place, given = _place(func, args, tensors, there), kwargs
    own_args, own_kwargs = tree_map_only(There, lambda t: t.own, (args, kwargs))
    found = func(*own_args, **own_kwargs)
    if place.type != KIND or func is aten._local_scalar_dense.default:
        return found
    index = place.index or 0
    if any(isinstance(t, Tensor) and t.dtype == torch.float64 for t in tree_leaves(found)):
        raise TypeError(f"{func}: {KIND} devices have no float64")
    found = tree_map_only(Tensor, lambda t: There(t, torch.device(KIND, index)), found)
    return return_and_correct_aliasing(func, args, given, found) if there else found


def _place(func: Any, args: Any, tensors: list[Tensor], there: list[There]) -> torch.device:
    if not there:
        return torch.device("cpu")
    if func in COPIES or func in INDEXING:
        if func in INDEXING and not isinstance(args[0], There):
            raise RuntimeError(f"{func}: indices on {there[0].device} of values on the CPU")
        return args[0].device
    places = {t.device for t in tensors if t.dim() or isinstance(t, There)}
    if len(places) > 1:
        shapes = ", ".join(f"{tuple(t.shape)} on {t.device}" for t in tensors)
        raise RuntimeError(f"{func}: expected all tensors on the same device, found {shapes}")
    return places.pop()


@contextmanager
def pretended() -> Iterator[None]:
    """While it lasts, `torch.device("pretended:0")` and `torch.device("pretended:1")` can be used by this thread."""
    torch._C._set_only_lift_cpu_tensors(
        True
    )  # `torch.tensor(..., device=...)` makes a tensor here and moves it
    try:
        # torch has a thread for gradients on one device of a kind that Python pretends: compute them in the calling thread
        with (
            torch.autograd.set_multithreading_enabled(False),
            Pretending(),
            patch.object(torch, "Generator", Generator),
        ):
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(False)


def here(t: Tensor) -> Tensor:
    """The numbers of a tensor, wherever it is."""
    return t.own if isinstance(t, There) else t


class Wires:
    """What NCCL is to GPUs: whoever asks goes on at once, and nobody is told of a process that is dead."""

    def __init__(self, store: Any, rank: int, size: int):
        self.gloo = dist.ProcessGroupGloo(
            dist.PrefixStore("wires", store), rank, size, timedelta(seconds=60)
        )
        self.stream, self.given_up, self.bytes = ThreadPoolExecutor(1), Event(), 0

    def broadcast(self, tensors: list[There], options: Any) -> Any:
        return self._ask(self.gloo.broadcast, tensors, options)

    def send(self, tensors: list[There], rank: int, tag: int) -> Any:
        copies = [
            There(t.own.clone(), t.device) for t in tensors
        ]  # a device does one thing after the other
        return self._ask(self.gloo.send, copies, rank, tag)

    def recv(self, tensors: list[There], rank: int, tag: int) -> Any:
        return self._ask(self.gloo.recv, tensors, rank, tag)

    def abort(self) -> None:
        self.given_up.set()

    def _ask(self, what: Any, tensors: list[There], *others: Any) -> Any:
        assert all(isinstance(t, There) for t in tensors)
        self.bytes += sum(t.nbytes for t in tensors)
        module.asked.append(self.stream.submit(self._do, what, [t.own for t in tensors], *others))
        return SimpleNamespace(wait=lambda: None)

    def _do(self, what: Any, *others: Any) -> None:
        try:
            what(*others).wait()
        except RuntimeError:
            self.given_up.wait()
