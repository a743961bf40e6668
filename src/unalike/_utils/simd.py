"""Vectors for compiled loops (numba), and what else such loops say to the compiler.

A loop over numbers is made into vectors by the compiler, which does not know what is worth keeping in registers. A loop over
vectors says so: `a = a + load(x, r, i) * d[r, o]` is one instruction for LANES columns.

numba knows what it has kept of a file of loops by the text of that file: whoever changes this one changes a word in those, too.
"""

from __future__ import annotations

import operator
from itertools import zip_longest
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic
from numba.extending import models, overload, register_model

intrinsic: Any = _intrinsic  # whose types expect its callers to pass what the compiler does

_has = binding.get_host_cpu_features()
LANES = 16 if _has.get("avx512f") else 8 if _has.get("avx") else 4
"""Floats in a vector: as many as the processor computes with at once."""

MATHS = {"reassoc", "contract", "nsz", "arcp"}
"""What the compiler may do to sums and products. A NaN stays one: it is how divergence shows."""
FLOAT, WORD, BYTE = ir.FloatType(), ir.IntType(32), ir.IntType(8)
FLOATS, WORDS = ir.VectorType(FLOAT, LANES), ir.VectorType(WORD, LANES)


@intrinsic
def widest(typing):
    """The function that calls this computes with the widest vectors that the processor has.

    For several processors that have vectors of 64 bytes the compiler keeps to 32, lest they clock lower; our loops gain a fifth.
    """

    def mark(context, builder, signature, arguments):
        # llvmlite admits a list of attributes that lacks this one
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), mark


@intrinsic
def matrix(typing, floats, at, rows, columns):
    """The matrix that begins at a place among floats that lie side by side; they must outlive it.

    A slice, made into a matrix by `reshape`, is counted and checked, which takes as long as a step of a small model. The compiler
    is not told that several begin among the same floats: it would take them for one thing, and its loops would be slower.
    """
    kind = types.Array(floats.dtype, 2, "C")

    def view(context, builder, signature, arguments):
        source, place, *shape = arguments
        source, made = context.make_array(floats)(context, builder, source), context.make_array(kind)(context, builder)
        word, size = context.get_value_type(types.intp), context.get_constant(types.intp, floats.dtype.bitwidth // 8)
        unseen = ir.InlineAsm(ir.FunctionType(word, [word]), "", "=r,0")  # what goes in comes out
        address = builder.call(unseen, [builder.ptrtoint(builder.gep(source.data, [place]), word)])
        data, strides = builder.inttoptr(address, source.data.type), [builder.mul(shape[1], size), size]
        context.populate_array(made, data=data, shape=shape, strides=strides, itemsize=size, meminfo=None)
        return made._getvalue()

    return kind(floats, types.intp, types.intp, types.intp), view


@intrinsic
def borrowed(typing, array):
    """The same array, which must outlive it: nobody counts who still needs it, which takes as long as an instruction on memory
    that threads share, each time that a slice of it is made.
    """

    def view(context, builder, signature, arguments):
        made = context.make_array(array)(context, builder, arguments[0])
        made.meminfo = ir.Constant(made.meminfo.type, None)
        return made._getvalue()

    return array(array), view


@intrinsic
def turn(typing, turns):
    """The next of the numbers that threads take in turns, of which turns[0] counts how many have been taken."""

    def make(context, builder, signature, arguments):
        counter = context.make_array(turns)(context, builder, *arguments).data
        return builder.atomic_rmw("add", counter, ir.Constant(counter.type.pointee, 1), "monotonic")

    return types.intp(turns), make


class Vector(types.Type):
    """The kind of LANES floats."""

    def __init__(self):
        super().__init__("Vector")


VECTOR = Vector()


@register_model(Vector)
class _Register(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, FLOATS)


def _call(builder, name, result, *arguments, **flags):
    """The compiler's own function `llvm.name`."""
    kind = ir.FunctionType(result, [a.type for a in arguments])
    return builder.call(builder.module.declare_intrinsic(f"llvm.{name}", (), kind), arguments, **flags)


def _words(values):
    return ir.Constant(WORDS, list(values))


def _everywhere(builder, number):
    """A number in all lanes."""
    kind = ir.VectorType(number.type, LANES)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.Constant(WORD, 0))
    return builder.shuffle_vector(first, first, _words([0] * LANES))


def _address(context, builder, kind, matrix, row, column):
    """Where a vector of a matrix lies whose rows lie side by side."""
    array = context.make_array(kind)(context, builder, matrix)
    columns = cgutils.unpack_tuple(builder, array.shape)[1]
    return builder.gep(array.data, [builder.add(builder.mul(row, columns), column)])


@intrinsic
def load(typing, matrix, row, column):
    """The vector matrix[row, column : column + LANES]."""

    def make(context, builder, signature, arguments):
        at = _address(context, builder, matrix, *arguments)
        return builder.load(builder.bitcast(at, FLOATS.as_pointer()), align=4)

    return VECTOR(matrix, types.intp, types.intp), make


@intrinsic
def store(typing, matrix, row, column, vector):
    """matrix[row, column : column + LANES] = vector."""

    def make(context, builder, signature, arguments):
        *place, value = arguments
        at = _address(context, builder, matrix, *place)
        builder.store(value, builder.bitcast(at, FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(matrix, types.intp, types.intp, VECTOR), make


@intrinsic
def prefetch(typing, array, place):
    """That what lies so many entries after the first one is soon to be read; wherever that is, nothing happens otherwise."""

    def make(context, builder, signature, arguments):
        data = context.make_array(array)(context, builder, arguments[0]).data
        at = builder.bitcast(builder.gep(data, [arguments[1]]), BYTE.as_pointer())
        _call(builder, "prefetch.p0i8", ir.VoidType(), at, *(ir.Constant(WORD, n) for n in (0, 3, 1)))
        return context.get_dummy_value()

    return types.void(array, types.intp), make


@intrinsic
def fill(typing, number):
    """A number in all lanes."""
    return VECTOR(types.float32), lambda context, builder, signature, arguments: _everywhere(builder, *arguments)


@intrinsic
def first(typing, number):
    """A number in the first lane, 0 in the others."""

    def make(context, builder, signature, arguments):
        return builder.insert_element(ir.Constant(FLOATS, [0.0] * LANES), *arguments, ir.Constant(WORD, 0))

    return VECTOR(types.float32), make


@intrinsic
def upto(typing, count):
    """1 in the first lanes, 0 in the others."""

    def make(context, builder, signature, arguments):
        limit = _everywhere(builder, builder.trunc(arguments[0], WORD))
        return builder.uitofp(builder.icmp_signed("<", _words(range(LANES)), limit), FLOATS)

    return VECTOR(types.intp), make


@intrinsic
def floor(typing, x):
    """The next whole numbers below."""
    return VECTOR(VECTOR), lambda context, builder, _, values: _call(builder, f"floor.v{LANES}f32", FLOATS, *values)


@intrinsic
def power(typing, n):
    """2^n of whole numbers, -126 <= n <= 127."""

    def make(context, builder, signature, arguments):
        exponent = builder.add(builder.fptosi(arguments[0], WORDS), _words([127] * LANES))
        return builder.bitcast(builder.shl(exponent, _words([23] * LANES)), FLOATS)

    return VECTOR(VECTOR), make


@intrinsic
def totals(typing, vectors):
    """The sums of the lanes of several vectors: many at once take fewer steps than one after the other."""
    return _reduced(vectors, _sum)


@intrinsic
def tops(typing, vectors):
    """The largest lanes of several vectors; a NaN may be left out."""
    return _reduced(vectors, _larger)


def _reduced(vectors, join):
    """The signature and the code of what makes a number of each of several vectors."""

    def make(context, builder, signature, arguments):
        left, found = cgutils.unpack_tuple(builder, arguments[0]), []
        for first in range(0, len(left), LANES):
            some = left[first : first + LANES]
            joined, lanes = _joined(builder, some, join)
            found += [builder.extract_element(joined, ir.Constant(WORD, lanes[i])) for i in range(len(some))]
        return context.make_tuple(builder, signature.return_type, found)

    return types.UniTuple(types.float32, len(vectors))(vectors), make


def _joined(builder, vectors, join):
    """A vector with what several ones come to, and the lane of each. Halves are joined until one lane is left: a pair makes one
    vector of two halves each time, and of its lanes the first half belongs to the first of them.
    """
    half, found, lanes = LANES // 2, [*vectors], [0]
    while half:
        first = [i % (2 * half) < half for i in range(LANES)]
        own = _words(i if mine else LANES + i for i, mine in enumerate(first))
        other = _words(i + half if mine else LANES + i - half for i, mine in enumerate(first))
        pairs = [(a, b) for a, b in zip_longest(found[::2], found[1::2])]
        halves = [[builder.shuffle_vector(a, b or a, lanes) for lanes in (own, other)] for a, b in pairs]
        found = [join(builder, *both) for both in halves]
        lanes = [lane + half * late for late in (0, 1) for lane in lanes]
        half //= 2
    return found[0], lanes


def _operation(build):
    """An operation on two vectors, or on one and a number."""

    @intrinsic
    def operation(typing, a, b):
        kinds = [kind if kind == VECTOR else types.float32 for kind in (a, b)]

        def make(context, builder, signature, arguments):
            return build(builder, *(v if k == VECTOR else _everywhere(builder, v) for v, k in zip(arguments, kinds)))

        return VECTOR(*kinds), make

    return operation


def _operator(symbol, name):
    made = _operation(lambda builder, a, b: getattr(builder, name)(a, b, flags=tuple(MATHS)))

    @overload(symbol, inline="always")
    def known(a, b):
        return (lambda a, b: made(a, b)) if VECTOR in (a, b) else None


def _sum(builder, a, b):
    return builder.fadd(a, b, flags=tuple(MATHS))


def _larger(builder, a, b):
    return builder.select(builder.fcmp_ordered("<", a, b), b, a)


for _symbol, _name in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul")):
    _operator(_symbol, _name)
larger = _operation(_larger)
smaller = _operation(lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), b, a))
"""The larger, or the smaller, of each lane; a NaN of the first stays one."""
