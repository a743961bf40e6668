"""The samples that a torch `DataLoader` gives: those of its sampler, as its `collate_fn` makes them.

In every function `where` is the text that error messages start with, such as "client 'north', train".
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, default_collate, default_convert

from unalike._utils.errors import UnalikeError
from unalike._utils.seeds import isolated
from unalike.core.inputs import Inputs, join_rows, layout_of
from unalike.core.nests import tensors_of

SAMPLES_OF_A_BATCH = 64
"""Samples that a `collate_fn` is given at once where the loader has no batch size."""
ITERATION = ("__iter__", "_get_iterator")
"""The functions of a `DataLoader` that make its batches."""
MOST_TIMES = 100
"""A sampler that draws more than so many times the samples of its data set is taken as one that does not end."""


def rows_of(loader: DataLoader[Any], where: str) -> list[int]:
    """The numbers of the samples that the sampler of a loader draws in one pass, in the order of the data set.

    The order of a pass and the limits of its batches are ignored, `drop_last` too: batches are drawn by the run. Raises
    `UnalikeError` for a sampler that draws with replacement, or other samples at each pass, and for a loader with an iteration
    of its own.
    """
    kind = type(loader).__name__
    if any(getattr(type(loader), name) is not getattr(DataLoader, name) for name in ITERATION):
        raise UnalikeError(
            f"{where}: found a {kind} with an iteration of its own, whose samples may be any; expected a "
            "torch DataLoader, or the samples themselves: (x, y) or a TensorDataset"
        )
    sampler = _sampler(loader)
    name = type(sampler).__name__
    mend = (
        "expected one with the same samples at each pass: give the data set itself, or "
        "torch.utils.data.Subset(dataset, rows) with the rows that this client has; the run shuffles "
        "and draws batches"
    )
    if getattr(sampler, "replacement", False):
        raise UnalikeError(
            f"{where}: found a {kind} whose {name} draws with replacement, so that a pass has some "
            f"samples several times and others not at all; {mend}"
        )
    # Two passes, with torch's own generators as they were: what shuffles differs in order, what draws differs in samples.
    data: Any = loader.dataset
    most = MOST_TIMES * len(data)
    with isolated(0):
        first = sorted(islice(_flat(sampler), most + 1))
        second = sorted(islice(_flat(_in_next_epoch(sampler)), most + 1))
    if len(first) > most:
        raise UnalikeError(f"{where}: found a {kind} whose {name} does not end; {mend}")
    if first != second:
        raise UnalikeError(
            f"{where}: found a {kind} whose {name} draws other samples at each pass; {mend}"
        )
    return first


def has_own_collation(loader: DataLoader[Any]) -> bool:
    """Whether the loader has a `collate_fn` of its own, which may change samples."""
    return loader.collate_fn not in (default_collate, default_convert)


def collated(loader: DataLoader[Any], where: str) -> tuple[Inputs, Tensor]:
    """The samples of a loader as its own `collate_fn` makes them of batches, in the order of the data set.

    Where the batches have samples of several shapes, as a rule that pads to the longest of a batch makes them, the rule is given
    all samples at once, so that all have one shape. Raises `UnalikeError` as `rows_of` does, and for batches that are no pairs.
    """
    rows = rows_of(loader, where)
    size = loader.batch_size or SAMPLES_OF_A_BATCH
    batches = [rows[first : first + size] for first in range(0, len(rows), size)]
    pairs = _batches(loader, batches, where)
    if not pairs:
        raise UnalikeError(f"{where}: found a loader with no samples, expected pairs (x, y)")
    layouts = [(layout_of(x), y.shape[1:]) for x, y in pairs]
    if any(layout != layouts[0] for layout in layouts):
        pairs = _batches(loader, [rows], where)
    return join_rows([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def _batches(
    loader: DataLoader[Any], batches: list[list[int]], where: str
) -> list[tuple[Inputs, Tensor]]:
    """These batches of the loader's data set, as its `collate_fn` makes them."""
    in_order: DataLoader[Any] = DataLoader(
        loader.dataset, batch_sampler=batches, collate_fn=loader.collate_fn
    )
    with isolated(0):
        return [_checked(batch, where) for batch in in_order]


def _sampler(loader: DataLoader[Any]) -> Iterable[Any]:
    """The object that names the samples of a pass: a sampler, of which torch makes batches, or one that gives batches."""
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    # torch's own class adds the limits of batches to a sampler, and nothing else
    return batches.sampler if type(batches) is BatchSampler else batches


def _flat(keys: Iterable[Any]) -> Iterator[Any]:
    """The numbers of samples, of which a batch has several."""
    for key in keys:
        if isinstance(key, Sequence) and not isinstance(key, str):
            yield from _flat(key)
        elif isinstance(key, Tensor):
            yield from key.reshape(-1).tolist()
        else:
            yield key


def _in_next_epoch(sampler: Any) -> Any:
    """The same sampler; one that draws by the number of its epoch, in the next one."""
    if not hasattr(sampler, "set_epoch"):
        return sampler
    later = copy.copy(sampler)
    later.set_epoch(getattr(sampler, "epoch", 0) + 1)
    return later


def _checked(batch: Any, where: str) -> tuple[Inputs, Tensor]:
    """The inputs and labels of a batch as tensors."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise UnalikeError(
            f"{where}: the loader's collate_fn gives {type(batch).__name__}, expected pairs (x, y) of "
            "inputs [B, ...] and labels [B]"
        )
    x = _as_tensors(batch[0])
    y = torch.as_tensor(batch[1])
    counts = {t.shape[:1] for t in (*tensors_of(x), y)}
    if len(counts) != 1 or counts == {()}:
        raise UnalikeError(
            f"{where}: the loader's collate_fn gives inputs {_shapes(x)} and labels "
            f"{list(y.shape)}, expected one label per input"
        )
    return x, y


def _as_tensors(x: Any) -> Inputs:
    """Inputs as tensors; a dictionary, or a tuple of tensors, is a tree."""
    if isinstance(x, Mapping):
        return {name: _as_tensors(branch) for name, branch in x.items()}
    if isinstance(x, tuple) and any(isinstance(branch, Tensor | Mapping) for branch in x):
        return tuple(_as_tensors(branch) for branch in x)
    return torch.as_tensor(x)


def _shapes(x: Inputs) -> Any:
    """The shape of one tensor, or those of all tensors of a tree."""
    shapes = [list(t.shape) for t in tensors_of(x)]
    return shapes[0] if isinstance(x, Tensor) else shapes
