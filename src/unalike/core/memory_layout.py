"""The memory format of images and convolution weights: as torch makes them, or with the channels last."""

from dataclasses import dataclass

import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.inputs import Inputs, is_one_tensor, take_rows
from unalike.core.types import Tree


@dataclass(frozen=True)
class MemoryLayout:
    """The order in memory of tensors with four dimensions, [N, C, H, W] by their shape.

    `channels_last`: they lie in memory as [N, H, W, C], which makes the convolutions of one client faster. Tensors with other
    numbers of dimensions stay as they are.
    """

    channels_last: bool = False

    def converts(self, t: Tensor) -> bool:
        """Whether the tensor is converted to this layout."""
        return self.channels_last and t.dim() == 4

    def of(self, t: Tensor) -> Tensor:
        """The tensor in this layout."""
        if not self.converts(t):
            return t
        return t.contiguous(memory_format=torch.channels_last)

    def of_tree(self, values: Tree) -> Tree:
        """Parameters in this layout; arithmetic on parameters of one layout is faster, too."""
        return tree.map(self.of, values)

    def rows(self, x: Inputs, index: Tensor) -> Inputs:
        """The samples x[index] in this layout, fetched and converted in one pass."""
        if not (is_one_tensor(x) and self.converts(x)):
            return take_rows(x, index)
        channels_last = x.permute(0, 2, 3, 1)
        return channels_last.index_select(0, index).permute(0, 3, 1, 2)

    def leaf(self, t: Tensor) -> Tensor:
        """A copy of a parameter to train, in this layout."""
        memory_format = torch.channels_last if self.converts(t) else torch.preserve_format
        return t.clone(memory_format=memory_format).requires_grad_()
