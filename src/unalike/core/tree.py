"""Arithmetic on trees (mappings from a parameter's name to its tensor). Parts use these functions and nothing else.

The result has the names of the first tree; the other trees may hold more (all parameters beside the shared ones).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from types import ModuleType

import torch
from torch import Tensor

from unalike.core.types import Tree
from unalike.loops import crew

BLOCK_ENTRIES = 2**20
"""Number of entries in a block of columns (see `blocks`)."""
LOOPS_FROM_BYTES = 2**24
"""Compiled loops are loaded for stacked tensors of at least this size."""


def map(function: Callable[..., Tensor], first: Tree, *rest: Tree) -> Tree:
    """Apply `function` name by name."""
    mapped = {}
    for name, tensor in first.items():
        others = [tree[name] for tree in rest]
        mapped[name] = function(tensor, *others)
    return mapped


def zeros(tree: Tree) -> Tree:
    """Zeros of the same shapes."""
    return map(torch.zeros_like, tree)


def add(a: Tree, b: Tree) -> Tree:
    return map(torch.add, a, b)


def total(a: Tree, b: Tree) -> Tree:
    """a + b; an empty tree counts as 0."""
    if not a:
        return b
    if not b:
        return a
    return add(a, b)


def sub(a: Tree, b: Tree) -> Tree:
    return map(torch.sub, a, b)


def scale(tree: Tree, factor: float | Tensor) -> Tree:
    return map(lambda t: factor * t, tree)


def exact(tensor: Tensor) -> Tensor:
    """The tensor in float64: on its own device, or on the CPU if the device has no float64."""
    if not _has_float64(tensor.device):
        tensor = tensor.cpu()
    return tensor.double()


@lru_cache
def _has_float64(device: torch.device) -> bool:
    """Whether the device computes in float64; GPUs of Apple do not."""
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def detach(tree: Tree) -> Tree:
    """The same values without gradient."""
    return map(Tensor.detach, tree)


def dot(a: Tree, b: Tree) -> Tensor:
    """Inner product over all entries, a scalar; 0 for an empty tree."""
    products = ((x * b[name]).sum() for name, x in a.items())
    return sum(products, start=torch.zeros(()))


def norm(tree: Tree) -> Tensor:
    """Euclidean norm over all entries, a scalar; 0 for an empty tree."""
    squares = (torch.linalg.vector_norm(t).square() for t in tree.values())
    return sum(squares, start=torch.zeros(())).sqrt()


def finite(tensor: Tensor) -> Tensor:
    """The tensor with 0 in the place of NaN and infinities."""
    return tensor.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def shortening(norms: Tensor, limit: float | Tensor) -> Tensor:
    """min(1, limit / norm) for each norm: the factors that leave nothing longer than the limit."""
    return (limit / norms.clamp_min(1e-12)).clamp_max(1.0)


def finite_shortening(norms: Tensor, limit: float | Tensor) -> Tensor:
    """`shortening`, with 0 for a norm that is not finite. The factors multiply `finite` values: 0 times NaN is NaN."""
    return shortening(norms, limit).nan_to_num(nan=0.0)


def clipped(tree: Tree, limit: float | Tensor) -> Tree:
    """The tree, shortened to the norm `limit` if it is longer. What is not finite stays so: training has diverged, and says so."""
    return scale(tree, shortening(norm(tree), limit))


def bounded(tree: Tree, limit: float | Tensor) -> Tree:
    """The tree, shortened to the norm `limit` if it is longer; zeros if its norm is not finite.

    For privacy: whether a tree is finite would be an answer about the samples that it follows from, which no noise hides.
    """
    factor = finite_shortening(norm(tree), limit)
    return map(lambda t: factor * finite(t), tree)


def where(condition: Tensor, a: Tree, b: Tree) -> Tree:
    """`a` where the scalar condition holds, else `b`."""
    return map(lambda x, y: torch.where(condition, x, y), a, b)


def stack(trees: Sequence[Tree]) -> Tree:
    """[tree, ...] -> one tree with a leading dimension [K]."""
    stacked = {}
    for name in trees[0]:
        stacked[name] = torch.stack([tree[name] for tree in trees])
    return stacked


def row(tree: Tree, index: int | Tensor) -> Tree:
    """One client's tree out of a stacked one, or several rows when `index` is a tensor."""
    return map(lambda t: t[index], tree)


def weighted_sum(stacked: Tree, weights: Tensor) -> Tree:
    """sum_k weights_k * stacked_k: trees of shape [K, ...] and weights [K] -> a tree of shape [...]."""
    loops = column_loops(stacked)
    return map(lambda t: combined(t, weights.to(t), loops), stacked)


def combined(stacked: Tensor, weights: Tensor, loops: ModuleType | None = None) -> Tensor:
    """sum_k weights_k * stacked_k of one tensor [K, ...], by compiled loops where they can read it."""
    rows = matrix(stacked)
    if loops is None or not loops_read(rows, weights):
        return (weights @ rows).view(stacked.shape[1:])
    combination = torch.empty_like(rows[0])
    sum_blocks = partial(loops.weighted_sum, rows.numpy(), weights.numpy(), combination.numpy())
    crew.share_out(sum_blocks, loops.blocks(rows))
    return combination.view(stacked.shape[1:])


def column_loops(stacked: Tree) -> ModuleType | None:
    """The compiled loops over the columns of stacked tensors [K, ...], if these are large enough to be worth their loading."""
    if nbytes(stacked) < LOOPS_FROM_BYTES:
        return None
    return crew.loops("unalike.loops.column_loops")


def loops_read(*tensors: Tensor) -> bool:
    """Whether compiled loops can read the tensors: float32 in memory order on the CPU, without gradient."""
    return all(
        t.dtype == torch.float32
        and t.device.type == "cpu"
        and t.is_contiguous()
        and not t.requires_grad
        for t in tensors
    )


def in_memory_order(t: Tensor) -> Tensor:
    """A view of the tensor with its dimensions in the order of its memory: contiguous, if the tensor is dense.

    `Tensor.dim_order` takes 50 times as long as the sort: 3 to 4 % of a step of a ResNet-20.
    """
    if t.is_contiguous():
        return t
    by_stride = sorted(range(t.dim()), key=t.stride, reverse=True)
    return t.permute(by_stride)


def only(tree: Tree, names: Iterable[str]) -> Tree:
    """The entries of `tree` that `names` lists."""
    return {name: tree[name] for name in names}


def shared(tree: Tree, names: Iterable[str]) -> Tree:
    """The entries of `tree` whose names are among `names`, in the order of the tree."""
    wanted = set(names)
    return {name: t for name, t in tree.items() if name in wanted}


def prefixed(prefix: str, tree: Tree) -> Tree:
    """The entries of `tree` with `prefix` before their names; `under` takes it away."""
    return {prefix + name: t for name, t in tree.items()}


def under(tree: Tree, prefix: str) -> Tree:
    """The entries of `tree` whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): t for name, t in tree.items() if name.startswith(prefix)}


def layers(tree: Tree) -> list[list[str]]:
    """Names grouped into layers: consecutive names up to and including one that ends in `bias`; a tail forms its own layer.

    The grouping of the FedLWS code, over parameters only. Where it would make one layer of the whole model, as of one without
    biases, a layer is a module.
    """
    groups: list[list[str]] = [[]]
    for name in tree:
        groups[-1].append(name)
        if name.endswith("bias"):
            groups.append([])
    # a model that ends in a bias has no tail
    if not groups[-1]:
        groups.pop()
    return groups if len(groups) > 1 else _modules(tree)


def _modules(tree: Tree) -> list[list[str]]:
    """Names grouped by the module that has them; names of one module stand one after the other."""
    groups: dict[str, list[str]] = {}
    for name in tree:
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    return list(groups.values())


def scopes(scope: str, params: Tree, moving: Tree) -> list[list[str]]:
    """The names in `moving`, grouped by `scope`: one "tensor", one "layer" of `params`, or the whole "model"."""
    if scope == "model":
        return [list(moving)]
    if scope != "layer":
        return [[name] for name in moving]
    groups = []
    for layer in layers(params):
        names = [name for name in layer if name in moving]
        if names:
            groups.append(names)
    return groups


def flatten(tree: Tree, rows: int | None = None) -> Tensor:
    """All entries as one vector [P], or, for `rows` stacked clients, as a matrix [rows, P]. A view if there is one tensor."""
    shape = (-1,) if rows is None else (rows, -1)
    flat = [t.reshape(shape) for t in tree.values()]
    if len(flat) == 1:
        return flat[0]
    return torch.cat(flat, dim=-1)


def blocks(matrix: Tensor) -> list[slice]:
    """Slices of the columns of a matrix [K, M], each small enough to stay in the processor's cache."""
    width = max(1, BLOCK_ENTRIES // len(matrix))
    # a matrix without columns has one empty block: callers stack the results of blocks
    starts = range(0, max(1, matrix.shape[1]), width)
    return [slice(start, start + width) for start in starts]


def columns(stacked: Tree) -> Iterator[Tensor]:
    """The entries of a stacked tree [K, ...] as matrices [K, m], each small enough to stay in the processor's cache."""
    for tensor in stacked.values():
        rows = matrix(tensor)
        for block in blocks(rows):
            yield rows[:, block]


def over_clients(rule: Callable[[Tensor], Tensor], stacked: Tensor) -> Tensor:
    """Apply `rule`, [K, m] -> [m], to a tensor [K, ...] -> [...]; in blocks of columns, since the rule may copy its input."""
    results = [rule(block) for block in columns({"": stacked})]
    return torch.cat(results).reshape(stacked.shape[1:])


def matrix(stacked: Tensor) -> Tensor:
    """[K, ...] as [K, m]; a view where possible."""
    return stacked.flatten(1) if stacked.dim() > 1 else stacked[:, None]


def unflatten(vector: Tensor, like: Tree) -> Tree:
    """The inverse of `flatten` for one vector [P]."""
    sizes = [t.numel() for t in like.values()]
    pieces = vector.split(sizes)
    tensors = {}
    for (name, t), piece in zip(like.items(), pieces, strict=True):
        tensors[name] = piece.reshape(t.shape)
    return tensors


def dtype(tree: Tree) -> torch.dtype:
    """The dtype of the first float tensor; float32 if there is none."""
    for t in tree.values():
        if t.is_floating_point():
            return t.dtype
    return torch.float32


def nbytes(*trees: Tree) -> int:
    """Total bytes of the tensors of these trees."""
    return sum(t.numel() * t.element_size() for tree in trees for t in tree.values())


def pack(part_trees: dict[str, Tree]) -> Tree:
    """The trees of all parts as one flat tree, `part/name` -> tensor, for storage."""
    packed = {}
    for part, tree in part_trees.items():
        for name, tensor in tree.items():
            packed[f"{part}/{name}"] = tensor
    return packed


def unpack(tree: Tree) -> dict[str, Tree]:
    """The inverse of `pack`; a part's name holds no slash."""
    part_trees: dict[str, Tree] = {}
    for path, tensor in tree.items():
        part, name = path.split("/", 1)
        part_trees.setdefault(part, {})[name] = tensor
    return part_trees
