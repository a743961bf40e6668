"""Small convolutional networks: those of the FedLWS and FedMix experiments, of NIID-Bench and of McMahan et al."""

import math
from itertools import pairwise

from torch import Tensor, nn

from unalike._utils.errors import UnalikeError
from unalike.models import check
from unalike.models.dense import hidden_layers
from unalike.models.registry import registry

MIN_UNPADDED_PIXELS = 22
"""Smallest height and width, in pixels, for the published form without padding."""


@registry.register("cnn")
class CNN(nn.Module):
    """SimpleCNN of FedLWS: 3x3 convolutions with ReLU, 2x2 max-pooling between them, a hidden linear layer, the head.

    122,570 parameters for 3x32x32 images and 10 classes. `norm` ("batch" or "group", up to 8 groups) follows each convolution.
    `padding=None` is 0, as published, for images of 22 pixels or more and 1 for smaller ones.

    Source: the code of FedLWS.

    Raises `UnalikeError` for samples that are no images, or too small for the convolutions.
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
        in_channels, *sides = check.images("cnn", input_shape)
        widths = check.widths("cnn", "channels", channels, least=1)
        (units,) = check.widths("cnn", "hidden", hidden)
        self.convolutions, area = convolutions(in_channels, sides, widths, norm, padding)
        features = area * widths[-1]
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(features, units), nn.ReLU())
        self.head = nn.Linear(units, classes or 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.convolutions(x)))


@registry.register("emnist_cnn")
class EmnistCNN(nn.Module):
    """FedMix's network: 5x5 convolutions of 16 and 32 channels, each with ReLU and 2x2 max-pooling, then the head.

    110,526 parameters for 1x28x28 images and the 62 classes of EMNIST. The paper gives the widths only; with padding 2 the
    head sees 7x7 positions of a 28x28 image.

    Source: FedMix.
    Input: float32 [B, channels, height, width], sides of 4 pixels or more.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int | None):
        super().__init__()
        in_channels, height, width = check.images("emnist_cnn", input_shape, smallest=4)
        layers = _pooled_convolutions((in_channels, 16, 32), padding=2)
        self.body = nn.Sequential(*layers, nn.Flatten())
        area = (height // 4) * (width // 4)
        self.head = nn.Linear(32 * area, classes or 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@registry.register("lenet")
class LeNet(nn.Module):
    """NIID-Bench's "simple-cnn": 5x5 convolutions of 6 and 16 channels with ReLU and 2x2 max-pooling, layers of 120 and 84.

    62,006 parameters for 3x32x32 images and 10 classes, 44,426 for 1x28x28. It is LeNet-5 (LeCun et al. 1998) with ReLU,
    max-pooling and complete connections.

    Source: Li et al. 2022, section V.
    Input: float32 [B, channels, height, width], sides of 16 pixels or more.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int | None):
        super().__init__()
        in_channels, *sides = check.images("lenet", input_shape, smallest=16)
        self.convolutions = nn.Sequential(*_pooled_convolutions((in_channels, 6, 16)))
        # Each convolution takes four pixels off a side, and the pooling halves it.
        area = math.prod(((side - 4) // 2 - 4) // 2 for side in sides)
        layers = hidden_layers([16 * area, 120, 84])
        self.hidden = nn.Sequential(nn.Flatten(), *layers)
        self.head = nn.Linear(84, classes or 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.convolutions(x)))


@registry.register("mcmahan_cnn")
class McMahanCNN(nn.Module):
    """The FedAvg paper's CNN: 5x5 convolutions of 32 and 64 channels with ReLU and 2x2 max-pooling, a layer of 512.

    1,663,370 parameters for 1x28x28 images and 10 classes, the published number; it is reached with padding 2, so that the
    linear layer sees 7x7 positions.

    Source: McMahan et al. 2017, section 3.
    Input: float32 [B, channels, height, width], sides of 4 pixels or more.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int | None):
        super().__init__()
        in_channels, height, width = check.images("mcmahan_cnn", input_shape, smallest=4)
        self.convolutions = nn.Sequential(*_pooled_convolutions((in_channels, 32, 64), padding=2))
        area = (height // 4) * (width // 4)
        self.hidden = nn.Sequential(nn.Flatten(), *hidden_layers([64 * area, 512]))
        self.head = nn.Linear(512, classes or 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.convolutions(x)))


def convolutions(
    in_channels: int,
    sides: list[int],
    widths: tuple[int, ...],
    norm: str | None,
    padding: int | None,
) -> tuple[nn.Sequential, int]:
    """Make 3x3 convolutions (norm, ReLU) with pooling between them; returns them and the pixels of their output."""
    if padding is None:
        padding = 0 if min(sides) >= MIN_UNPADDED_PIXELS else 1
    if padding < 0:
        raise UnalikeError(
            f"cnn: found padding={padding}, expected 0 or more pixels, or None to "
            "choose by the image"
        )
    area = math.prod(_side(side, len(widths), padding) for side in sides)
    layers: list[nn.Module] = []
    for before, after in pairwise((in_channels, *widths)):
        # Pooling stands between convolutions, so that none follows the last one.
        if layers:
            layers.append(nn.MaxPool2d(2))
        layers.append(nn.Conv2d(before, after, 3, padding=padding))
        if norm is not None:
            layers.append(check.norm_of("cnn", norm)(after))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers), area


def _pooled_convolutions(widths: tuple[int, ...], padding: int = 0) -> list[nn.Module]:
    """Make a 5x5 convolution, ReLU and 2x2 max-pooling for each step from one number of channels to the next."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
    return layers


def _side(pixels: int, convolutions: int, padding: int) -> int:
    """Return the height or width after the convolutions and the pooling between them."""
    side = pixels
    for i in range(convolutions):
        if i:
            side = side // 2
        side = side - 2 + 2 * padding
        if side < 1:
            remedy = "" if padding else ", padding=1"
            raise UnalikeError(
                f"cnn: images of {pixels} pixels shrink to nothing at convolution "
                f"{i + 1} of {convolutions} with padding={padding}; use fewer "
                f"channels{remedy} or 'mlp'; channels come first, [C, H, W]"
            )
    return side
