"""Vectors (SIMD) for compiled loops (numba), and other instructions that numba lacks.

In a loop over numbers the compiler decides what to keep in registers, and often badly. In a loop over vectors the code decides:
`a = a + load(x, r, i) * d[r, o]` is one instruction for LANES columns.

numba caches compiled loops by the text of their own file. After a change to the code in this file, change a word in those that
import it, or they are not compiled again.
"""

import operator
from itertools import zip_longest
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic
from numba.extending import models, overload, register_model

intrinsic: Any = _intrinsic  # untyped: its annotations describe calls by the compiler, not ours

_has = binding.get_host_cpu_features()
LANES = 16 if _has.get("avx512f") else 8 if _has.get("avx") else 4
"""Floats in a vector: the processor's widest."""

MATHS = {"reassoc", "contract", "nsz", "arcp"}
"""Rewritings of sums and products that the compiler may use. None of them hides a NaN, which shows divergence."""
FLOAT, WORD, BYTE = ir.FloatType(), ir.IntType(32), ir.IntType(8)
FLOATS, WORDS = ir.VectorType(FLOAT, LANES), ir.VectorType(WORD, LANES)


@intrinsic
def vector_width(typing):
    """Mark the calling function to use the processor's widest vectors.

    On some processors with vectors of 64 bytes the compiler uses 32, because wide vectors may lower the clock. Our loops run a
    fifth faster with 64.
    """

    def mark(context, builder, signature, arguments):
        # not in llvmlite's list of attributes, so its check is bypassed
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), mark


@intrinsic
def matrix(typing, floats, at, rows, columns):
    """View floats[at : at + rows * columns] as a matrix; the floats must outlive it.

    `reshape` of a slice counts references and checks sizes, which takes as long as a step of a small model. The address passes
    through an empty piece of assembly, so the compiler does not see that matrices share an array: it would assume that each store
    into one may change the others, and the loops would be slower.
    """
    kind = types.Array(floats.dtype, 2, "C")

    def view(context, builder, signature, arguments):
        source, place, *shape = arguments
        source, made = (
            context.make_array(floats)(context, builder, source),
            context.make_array(kind)(context, builder),
        )
        word, size = (
            context.get_value_type(types.intp),
            context.get_constant(types.intp, floats.dtype.bitwidth // 8),
        )
        opaque = ir.InlineAsm(ir.FunctionType(word, [word]), "", "=r,0")  # returns its argument
        address = builder.call(opaque, [builder.ptrtoint(builder.gep(source.data, [place]), word)])
        data, strides = (
            builder.inttoptr(address, source.data.type),
            [builder.mul(shape[1], size), size],
        )
        context.populate_array(
            made, data=data, shape=shape, strides=strides, itemsize=size, meminfo=None
        )
        return made._getvalue()

    return kind(floats, types.intp, types.intp, types.intp), view


@intrinsic
def borrowed_array(typing, array):
    """The same array without reference counting; the array must outlive the result.

    Counting takes an atomic instruction on memory that all threads share, for every slice.
    """

    def view(context, builder, signature, arguments):
        made = context.make_array(array)(context, builder, arguments[0])
        made.meminfo = ir.Constant(made.meminfo.type, None)
        return made._getvalue()

    return array(array), view


@intrinsic
def next_piece(typing, turns):
    """The next number 0, 1, 2, ...: threads share the counter turns[0], and each number is given out once."""

    def make(context, builder, signature, arguments):
        counter = context.make_array(turns)(context, builder, *arguments).data
        return builder.atomic_rmw("add", counter, ir.Constant(counter.type.pointee, 1), "monotonic")

    return types.intp(turns), make


class Vector(types.Type):
    """numba's type of a vector of LANES floats."""

    def __init__(self):
        super().__init__("Vector")


VECTOR = Vector()


@register_model(Vector)
class _Register(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, FLOATS)


def _call(builder, name, result, *arguments, **flags):
    """A call of LLVM's intrinsic function `llvm.name`."""
    kind = ir.FunctionType(result, [a.type for a in arguments])
    return builder.call(
        builder.module.declare_intrinsic(f"llvm.{name}", (), kind), arguments, **flags
    )


def _words(values):
    return ir.Constant(WORDS, list(values))


def _everywhere(builder, number):
    """A number in all lanes."""
    kind = ir.VectorType(number.type, LANES)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.Constant(WORD, 0))
    return builder.shuffle_vector(first, first, _words([0] * LANES))


def _address(context, builder, kind, matrix, row, column):
    """The address of matrix[row, column] in a contiguous matrix."""
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
def spread(typing, matrix, row, column):
    """The number matrix[row, column] in all lanes."""

    def make(context, builder, signature, arguments):
        return _everywhere(builder, builder.load(_address(context, builder, matrix, *arguments)))

    return VECTOR(matrix, types.intp, types.intp), make


@intrinsic
def prefetch(typing, array, place):
    """Load array[place] into the cache ahead of its use. Any place is allowed: prefetching never faults."""

    def make(context, builder, signature, arguments):
        numbers = context.make_array(array)(context, builder, arguments[0]).data
        at = builder.bitcast(builder.gep(numbers, [arguments[1]]), BYTE.as_pointer())
        read, all_caches, data = (
            ir.Constant(WORD, number) for number in (0, 3, 1)
        )  # of write 1, no cache 0, code 0
        _call(builder, "prefetch.p0i8", ir.VoidType(), at, read, all_caches, data)
        return context.get_dummy_value()

    return types.void(array, types.intp), make


@intrinsic
def fill(typing, number):
    """A number in all lanes."""
    return VECTOR(types.float32), lambda context, builder, signature, arguments: _everywhere(
        builder, *arguments
    )


@intrinsic
def first(typing, number):
    """A number in the first lane, 0 in the others."""

    def make(context, builder, signature, arguments):
        return builder.insert_element(
            ir.Constant(FLOATS, [0.0] * LANES), *arguments, ir.Constant(WORD, 0)
        )

    return VECTOR(types.float32), make


@intrinsic
def lanes_up_to(typing, count):
    """1 in the first `count` lanes, 0 in the others."""

    def make(context, builder, signature, arguments):
        limit = _everywhere(builder, builder.trunc(arguments[0], WORD))
        return builder.uitofp(builder.icmp_signed("<", _words(range(LANES)), limit), FLOATS)

    return VECTOR(types.intp), make


@intrinsic
def select(typing, a, b, x, y):
    """In each lane x where a <= b, else y, also where a or b is NaN."""

    def make(context, builder, signature, arguments):
        a, b, x, y = arguments
        return builder.select(builder.fcmp_ordered("<=", a, b), x, y)

    return VECTOR(VECTOR, VECTOR, VECTOR, VECTOR), make


@intrinsic
def floor(typing, x):
    """The largest whole number of at most x, in each lane."""
    return VECTOR(VECTOR), lambda context, builder, _, values: _call(
        builder, f"floor.v{LANES}f32", FLOATS, *values
    )


@intrinsic
def power(typing, n):
    """2^n in each lane, for whole numbers -126 <= n <= 127."""

    def make(context, builder, signature, arguments):
        exponent = builder.add(builder.fptosi(arguments[0], WORDS), _words([127] * LANES))
        return builder.bitcast(builder.shl(exponent, _words([23] * LANES)), FLOATS)

    return VECTOR(VECTOR), make


@intrinsic
def horizontal_sum(typing, vectors):
    """The sum of the lanes of each vector; many vectors at once take fewer instructions than one after the other."""
    return _reduced(vectors, _sum)


@intrinsic
def horizontal_max(typing, vectors):
    """The largest lane of each vector; a NaN may be left out."""
    return _reduced(vectors, _larger)


def _reduced(vectors, join):
    """Signature and code generator of a function that reduces each vector of a tuple to a number."""

    def make(context, builder, signature, arguments):
        left, found = cgutils.unpack_tuple(builder, arguments[0]), []
        for first in range(0, len(left), LANES):
            some = left[first : first + LANES]
            joined, lanes = _joined(builder, some, join)
            found += [
                builder.extract_element(joined, ir.Constant(WORD, lanes[i]))
                for i in range(len(some))
            ]
        return context.make_tuple(builder, signature.return_type, found)

    return types.UniTuple(types.float32, len(vectors))(vectors), make


def _joined(builder, vectors, join):
    """Reduce several vectors (at most LANES) at once; returns one vector, and for each input the lane that holds its result.

    Each pass halves the lanes per vector: it joins the two halves of every vector, and packs the results of a pair of vectors
    into one. With LANES = 4, two vectors a and b, `+` for `join`:

        a            a0    a1    a2    a3
        b            b0    b1    b2    b3
        kept         a0    a1    b2    b3         mask `kept`:    the first half of a, the second half of b
        crossed      a2    a3    b0    b1         mask `crossed`: the other halves, each in the lanes that it is joined with
        joined       a02   a13   b02   b13        half = 2: a has lanes 0-1, b has lanes 2-3
        next pass    a0123  .    b0123  .         half = 1, with the vector as its own partner: results in lanes 0 and 2

    A mask lists, for each lane of the result, a lane of the first vector (0 to LANES - 1) or of the second (LANES + ...).
    """
    half = LANES // 2
    halved = [*vectors]
    lanes = [0]
    while half:
        first = [i % (2 * half) < half for i in range(LANES)]
        kept = _words(i if mine else LANES + i for i, mine in enumerate(first))
        crossed = _words(i + half if mine else LANES + i - half for i, mine in enumerate(first))
        joined = []
        for a, b in zip_longest(halved[::2], halved[1::2]):
            b = b or a
            of_kept = builder.shuffle_vector(a, b, kept)
            of_crossed = builder.shuffle_vector(a, b, crossed)
            joined.append(join(builder, of_kept, of_crossed))
        halved = joined
        lanes = [*lanes, *[lane + half for lane in lanes]]
        half //= 2
    return halved[0], lanes


def _operation(build):
    """An operation on two vectors, or on a vector and a number."""

    @intrinsic
    def operation(typing, a, b):
        kinds = [kind if kind == VECTOR else types.float32 for kind in (a, b)]

        def make(context, builder, signature, arguments):
            vectors = []
            for value, kind in zip(arguments, kinds):
                vectors.append(value if kind == VECTOR else _everywhere(builder, value))
            return build(builder, *vectors)

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
"""The larger, or the smaller, number in each lane; a NaN in the first vector stays one."""
