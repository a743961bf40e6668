"""What a CUDA graph does, on the CPU: a replay repeats operations on the memory of the recording, and no Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unalike.engine.step_graphs import CudaRecorder


class Operations(TorchDispatchMode):
    """All operations of a block, with the tensors that they read and made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[Any, Any, dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.made.append((func, args, kwargs or {}, out))
        return out

    @torch.no_grad()
    def repeat(self) -> None:
        for func, args, kwargs, out in self.made:
            if func.is_view:
                continue
            for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class HostRecorder(CudaRecorder):
    """Records on the CPU."""

    refused = None
    generator = torch.default_generator

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """The function is run, and the first replay does nothing: a recording of CUDA computes nothing."""
        operations, waiting = Operations(), [None]
        with operations:
            function()

        def replay() -> None:
            if waiting:
                waiting.clear()
            else:
                operations.repeat()

        return replay
