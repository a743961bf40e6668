"""The data of one client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core.inputs import first_rows, map_inputs
from unalike.data import array_checks
from unalike.data.array_checks import Pair, Samples

SPLITS = ("train", "test", "val")
"""The names of a client's sets of samples, in the order in which files, hashes and populations hold them."""


@dataclass(frozen=True, eq=False)
class ClientData:
    """The training, test and validation samples of one client.

    A client without training samples is allowed; it is listed and never selected.

    >>> ClientData(train=([[0.1, 0.2], [0.3, 0.4]], [0, 1]), name="north")
    <ClientData north: train 2 samples>

    Args:
        train: The training samples (x, y), or (x, None) for tasks that make labels of the inputs.
        test: The test samples (x, y).
        val: The validation samples (x, y).
        name: The client's name; without one a population numbers its clients.

    Shapes:
        x: float32 images [N, C, H, W] or rows [N, D], or int64 tokens [N, T]; or a tuple or dictionary of such.
        y: [N], int64 for classes, bool for binary labels, float32 for regression; [N, ...] of tasks with several numbers a label.

    Raises:
        UnalikeError: Lengths differ, numbers are not finite, an array has a type that cannot be used, or the name is not a
            text. The message names the client.
    """

    train: Pair
    test: Pair | None = None
    val: Pair | None = None
    name: str | None = None

    if TYPE_CHECKING:  # the arguments may be arrays, the fields are tensors

        def __init__(
            self,
            train: Samples,
            test: Samples | None = None,
            val: Samples | None = None,
            name: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.name, str | None):
            raise UnalikeError(
                f"found a client with name={self.name!r}, expected a text: write "
                f"name={str(self.name)!r}"
            )
        owner = "a client without a name" if self.name is None else f"client {self.name!r}"
        object.__setattr__(
            self, "train", array_checks.pair_for_any_task(self.train, f"{owner}, train")
        )
        for split in ("test", "val"):
            arrays = getattr(self, split)
            if arrays is not None:
                object.__setattr__(
                    self, split, array_checks.pair_for_any_task(arrays, f"{owner}, {split}")
                )

    def __repr__(self) -> str:
        name = self.name or "without a name"
        sizes = [f"{split} {len(y)}" for split, (_, y) in self.splits().items()]
        return f"<ClientData {name}: {', '.join(sizes)} samples>"

    def splits(self) -> dict[str, Pair]:
        """Map "train", "test" and "val" to the samples that the client has of each; those it lacks are left out."""
        pairs = {split: getattr(self, split) for split in SPLITS}
        return {split: pair for split, pair in pairs.items() if pair is not None}

    def without_small_groups(
        self, least: int, least_of_kind: int, kinds: Callable[[Tensor], Tensor]
    ) -> ClientData:
        """The same without test or validation samples of kinds with fewer than `least_of_kind` there.

        Where fewer than `least` are left there are none. `kinds` gives those of labels, as `Task.kinds`.
        """

        def reduced(pair: Pair | None) -> Pair | None:
            if pair is None:
                return None
            x, y = pair
            is_frequent = frequent(kinds(y), least_of_kind)
            if int(is_frequent.sum()) < least:
                return first_rows(x, 0), y[:0]
            return map_inputs(lambda t: t[is_frequent], x), y[is_frequent]

        return replace(self, test=reduced(self.test), val=reduced(self.val))


def frequent(kinds: Tensor, least: int) -> Tensor:
    """The samples [N] whose kinds [N, M] are each that of `least` samples or more, when the others are left out."""
    is_left = torch.ones(len(kinds), dtype=torch.bool)
    count = len(kinds) + 1
    # what is left out for one of several kinds may make another one rare
    while is_left.sum() < count:
        count = int(is_left.sum())
        for column in kinds.T:
            rows = is_left.nonzero().squeeze(1)
            _, places, counts = torch.unique(column[rows], return_inverse=True, return_counts=True)
            is_left[rows] = counts[places] >= least
    return is_left
