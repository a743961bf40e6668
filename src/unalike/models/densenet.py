"""Densely connected networks (Huang et al. 2017) for small images."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unalike.models import check
from unalike.models.check import Norm
from unalike.models.registry import registry


class Layer(nn.Module):
    """Append `growth` channels: norm, ReLU, conv 1x1 to 4 growth, norm, ReLU, conv 3x3 (the bottleneck layer, "B")."""

    def __init__(self, before: int, growth: int, norm: Norm):
        super().__init__()
        self.norm1 = norm(before)
        self.conv1 = nn.Conv2d(before, 4 * growth, 1, bias=False)
        self.norm2 = norm(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, before + growth, H, W] from [B, before, H, W]."""
        inner = self.conv1(F.relu(self.norm1(x)))
        added = self.conv2(F.relu(self.norm2(inner)))
        return torch.cat([x, added], 1)


class DenseNet(nn.Module):
    """A 3x3 stem of 2 growth channels, dense blocks with transitions between them, norm, ReLU, mean, head.

    `blocks` are the numbers of layers in each block.
    Input: float32 [B, channels, height, width], sides of 2^(blocks - 1) pixels or more.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int | None,
        *,
        blocks: tuple[int, ...],
        growth: int,
        norm: str = "batch",
    ):
        super().__init__()
        smallest = 2 ** (len(blocks) - 1)
        in_channels, _, _ = check.images("densenet", input_shape, smallest)
        norm_layer = check.norm_of("densenet", norm)
        width = 2 * growth
        layers: list[nn.Module] = [nn.Conv2d(in_channels, width, 3, padding=1, bias=False)]
        for i, count in enumerate(blocks):
            if i:
                # the transition halves the channels (compression, "C") and the sides
                halved = nn.Conv2d(width, width // 2, 1, bias=False)
                transition = (norm_layer(width), nn.ReLU(), halved, nn.AvgPool2d(2))
                layers.append(nn.Sequential(*transition))
                width //= 2
            for _ in range(count):
                layers.append(Layer(width, growth, norm_layer))
                width += growth
        self.body = nn.Sequential(*layers, norm_layer(width), nn.ReLU())
        self.head = nn.Linear(width, classes or 1)
        check.he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((-2, -1)))


@registry.register("densenet121")
def densenet121(
    input_shape: tuple[int, ...], classes: int | None, *, norm: str = "batch"
) -> DenseNet:
    """DenseNet-121 with the 3x3 stem of the paper's CIFAR networks: 6,956,298 parameters with 10 classes."""
    return DenseNet(input_shape, classes, blocks=(6, 12, 24, 16), growth=32, norm=norm)
