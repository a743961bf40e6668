"""Normalization and augmentation of image batches as pure functions of the images and of random numbers.

A transform takes `draws` numbers in [0, 1) per sample. An executor draws them per client and round (`TransformChain.numbers`), so
that a client's images are cropped and flipped in the same way whether it trains alone or stacked with others.

>>> augment = transform("normalize(mean=0.5, std=0.25) + crop(padding=4) + flip")
>>> u = augment.numbers(seed=0, round=3, client=1, samples=8)
>>> augment(torch.rand(8, 3, 32, 32), u).shape
torch.Size([8, 3, 32, 32])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.registry import Registry
from unalike._utils.seeds import generator
from unalike._utils.spec import parse

registry = Registry("transform", home="unalike.data.transforms")


class Transform(Protocol):
    """A function `transform(x, u)` from images and random numbers to images of the same shape.

    A transform with `draws` 0 is applied in evaluation too; the others are for training only.

    Shapes:
        x: [..., C, H, W].
        u: [..., draws].
    """

    @property
    def draws(self) -> int: ...

    def __call__(self, x: Tensor, u: Tensor) -> Tensor: ...


def transform(spec: str) -> TransformChain:
    """Build the transforms of a spec; they are applied from left to right.

    Raises `UnalikeError` for an unknown name or option.
    """
    return TransformChain(tuple(registry.build(call) for call in parse(spec)))


@dataclass(frozen=True)
class TransformChain:
    """Several transforms, applied in order; each takes its own columns of the random numbers."""

    parts: tuple[Transform, ...]

    @property
    def draws(self) -> int:
        return sum(part.draws for part in self.parts)

    def numbers(self, seed: int, round: int, client: int, samples: int) -> Tensor:
        """Draw the random numbers of a client's training samples in a round: float32 [samples, draws] in [0, 1).

        Row i belongs to the i-th sample in training order. More samples do not change the first rows.
        """
        rng = generator(seed, "augment", round, client)
        return torch.from_numpy(rng.random((samples, self.draws), np.float32))

    @property
    def fixed(self) -> TransformChain:
        """The transforms without random numbers, which evaluation applies too."""
        return TransformChain(tuple(part for part in self.parts if not part.draws))

    def before(self, predict: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return `predict` preceded by this chain, which must draw no random numbers."""
        return lambda x: predict(self(x, x.new_zeros(x.shape[0], 0)))

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        columns = u.split([part.draws for part in self.parts], -1)
        for part, numbers in zip(self.parts, columns):
            x = part(x, numbers)
        return x


@registry.register("normalize")
@dataclass(frozen=True)
class Normalize:
    """(x - mean) / std with one number for all channels or one for each channel."""

    mean: float | tuple[float, ...] = 0.5
    std: float | tuple[float, ...] = 0.5
    draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        stds = self.std if isinstance(self.std, tuple) else (self.std,)
        if min(stds, default=0) <= 0:
            raise UnalikeError(f"normalize: found std={self.std!r}, expected numbers above 0")

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        mean = self._channels(self.mean, x)
        std = self._channels(self.std, x)
        return (x - mean) / std

    def _channels(self, values: float | tuple[float, ...], x: Tensor) -> Tensor:
        per_channel = x.new_tensor(values).reshape(-1, 1, 1)
        if len(per_channel) not in (1, x.shape[-3]):
            raise UnalikeError(
                f"normalize: found {len(per_channel)} numbers, expected 1 or one for each of "
                f"{x.shape[-3]} channels"
            )
        return per_channel


@registry.register("crop")
@dataclass(frozen=True)
class Crop:
    """Pad with `padding` zeros and crop to the old size at a random place (He et al. 2016). padding=0: no change."""

    padding: int = 4
    draws: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise UnalikeError(f"crop: found padding={self.padding}, expected 0 pixels or more")

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        padded = F.pad(x, [self.padding] * 4)
        # The upper left corner of the crop: one of 2 padding + 1 places on either axis.
        corner = (u * (2 * self.padding + 1)).floor().long()[..., None, None]
        rows = corner[..., 0, :, :] + torch.arange(height, device=x.device)
        columns = corner[..., 1, :, :] + torch.arange(width, device=x.device)
        # Indexed by tensors: slices would differ between samples and could not be stacked.
        cut = padded.take_along_dim(rows[..., None], -2)
        return cut.take_along_dim(columns[..., None, :], -1)


@registry.register("flip")
@dataclass(frozen=True)
class Flip:
    """Mirror horizontally with probability `p`. p=0: no change."""

    p: float = 0.5
    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise UnalikeError(f"flip: found p={self.p!r}, expected a probability in 0..1")

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        return torch.where((u < self.p)[..., None, None], x.flip(-1), x)
