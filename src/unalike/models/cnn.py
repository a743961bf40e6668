"""The convolutional networks of the FedLWS and FedMix experiments."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor, nn

from unalike._utils.errors import UnalikeError
from unalike.models import check
from unalike.models.registry import registry

PUBLISHED = 22
"""From this height and width on (pixels), the published form without padding fits."""


@registry.register("cnn")
class CNN(nn.Module):
    """FedLWS's SimpleCNN: convolutions 3x3 with ReLU, max-pooling 2x2 between them, a hidden linear layer, the head.

    `norm` ("batch" or "group", up to 8 groups) follows each convolution. `padding` None is 0, as published, for images
    of 22 pixels or more and 1 for smaller ones. Raises `UnalikeError` for rows and for images that shrink to nothing.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int | None,
        *,
        channels: int | tuple[int, ...] = (32, 64, 64),
        hidden: int = 64,
        norm: str | None = None,
        padding: int | None = None,
    ):
        super().__init__()
        colours, *sides = check.images("cnn", input_shape)
        widths = check.widths("cnn", "channels", channels, least=1)
        (units,) = check.widths("cnn", "hidden", hidden)
        self.convolutions, area = convolutions(colours, sides, widths, norm, padding)
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(area * widths[-1], units), nn.ReLU())
        self.head = nn.Linear(units, classes or 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, C] of images `x` [B, channels, height, width]."""
        return self.head(self.hidden(self.convolutions(x)))


@registry.register("emnist_cnn")
class EmnistCNN(nn.Module):
    """FedMix's network: convolutions 5x5 of 16 and 32 channels, each with ReLU and max-pooling 2x2, then the head.

    The paper gives the widths only; padding 2 keeps 28x28 images at 7x7 before the head: 110,526 parameters for the 62
    classes of EMNIST.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int | None):
        super().__init__()
        colours, height, width = check.images("emnist_cnn", input_shape, smallest=4)
        layers = [
            (nn.Conv2d(before, after, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
            for before, after in pairwise((colours, 16, 32))
        ]
        self.body = nn.Sequential(*(layer for block in layers for layer in block), nn.Flatten())
        self.head = nn.Linear(32 * (height // 4) * (width // 4), classes or 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, C] of images `x` [B, channels, height, width]."""
        return self.head(self.body(x))


def convolutions(
    colours: int, sides: list[int], widths: tuple[int, ...], norm: str | None, padding: int | None
) -> tuple[nn.Sequential, int]:
    """Convolutions 3x3 (norm, ReLU) with pooling between them, and the number of pixels that they leave."""
    if padding is None:
        padding = 0 if min(sides) >= PUBLISHED else 1
    if padding < 0:
        raise UnalikeError(f"cnn: found padding={padding}, expected 0 or more pixels, or None to choose by the image")
    area = math.prod(_side(side, len(widths), padding) for side in sides)
    layers: list[nn.Module] = []
    for before, after in pairwise((colours, *widths)):
        if layers:
            layers.append(nn.MaxPool2d(2))
        layers.append(nn.Conv2d(before, after, 3, padding=padding))
        if norm is not None:
            layers.append(check.norm_of("cnn", norm)(after))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers), area


def _side(pixels: int, convolutions: int, padding: int) -> int:
    """Height or width after the convolutions and the pooling between them."""
    side = pixels
    for i in range(convolutions):
        side = (side if i == 0 else side // 2) - 2 + 2 * padding
        if side < 1:
            raise UnalikeError(
                f"cnn: images of {pixels} pixels shrink to nothing at convolution {i + 1} of {convolutions} with "
                f"padding={padding}; use fewer channels, padding=1 or 'mlp'"
            )
    return side
