"""What compiled loops (numba) say to the compiler beside their arithmetic.

numba knows what it has kept of a file of loops by the text of that file: whoever changes this one changes a word in those, too.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
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


def _matrix(typing: Any, floats: Any, at: Any, rows: Any, columns: Any) -> Any:
    """The matrix that begins at a place among floats that lie side by side; they must outlive it.

    A slice, made into a matrix by `reshape`, is counted and checked, which takes as long as a step of a small model. The compiler
    is not told that several begin among the same floats: it would take them for one thing, and its loops would be slower.
    """
    kind = types.Array(floats.dtype, 2, "C")

    def view(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, place, *shape = arguments
        source, made = context.make_array(floats)(context, builder, source), context.make_array(kind)(context, builder)
        word, size = context.get_value_type(types.intp), context.get_constant(types.intp, floats.dtype.bitwidth // 8)
        unseen = ir.InlineAsm(ir.FunctionType(word, [word]), "", "=r,0")  # what goes in comes out
        address = builder.call(unseen, [builder.ptrtoint(builder.gep(source.data, [place]), word)])
        data, strides = builder.inttoptr(address, source.data.type), [builder.mul(shape[1], size), size]
        context.populate_array(made, data=data, shape=shape, strides=strides, itemsize=size, meminfo=None)
        return made._getvalue()

    return kind(floats, types.intp, types.intp, types.intp), view


matrix: Any = intrinsic(_matrix)
