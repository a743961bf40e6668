"""What compiled loops (numba) say to the compiler beside their arithmetic."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


def _widest(typing: Any) -> Any:
    """The function that calls this computes with the widest vectors that the processor has.

    For several processors that have vectors of 64 bytes the compiler keeps to 32, lest they clock lower; our loops gain a fifth.
    """

    def mark(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # llvmlite admits a list of attributes that lacks this one
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), mark


widest: Any = intrinsic(_widest)
