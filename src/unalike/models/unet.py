"""A U-Net: a class for each pixel of an image."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unalike.models import check
from unalike.models.registry import registry


@registry.register("unet")
class UNet(nn.Module):
    """`depth` halvings of the image and back, each level joined with its mirror image; two convolutions 3x3 a level, a head 1x1.

    `width` channels at full size, twice as many a level. Convolutions are padded, so that outputs are as large as the image, which
    may have any sides; the way back is an enlargement and two convolutions. 118,002 parameters for one channel in and two classes.

    Source: Ronneberger et al. 2015, whose network is width=64, depth=4 without padding.
    Input: float32 [B, C, H, W]. Output: logits [B, classes, H, W], for the task `segmentation`.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int | None,
        *,
        width: int = 16,
        depth: int = 2,
        norm: str | None = None,
    ):
        super().__init__()
        check.widths("unet", "width and depth", (width, depth))
        channels, _, _ = check.images("unet", input_shape, smallest=2**depth)
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList()
        for inputs, outputs in zip((channels, *widths), widths):
            self.down.append(_level(inputs, outputs, norm))
        self.up = nn.ModuleList()
        for outputs in reversed(widths[:-1]):
            # the enlarged level below has twice the channels of its mirror image
            self.up.append(_level(3 * outputs, outputs, norm))
        self.head = nn.Conv2d(width, classes or 1, 1)
        check.he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        levels = [self.down[0](x)]
        for level in list(self.down)[1:]:
            levels.append(level(F.max_pool2d(levels[-1], 2)))
        h = levels.pop()
        for level in self.up:
            mirror = levels.pop()
            enlarged = F.interpolate(h, size=mirror.shape[-2:])
            h = level(torch.cat([enlarged, mirror], dim=-3))
        return self.head(h)


def _level(inputs: int, outputs: int, norm: str | None) -> nn.Sequential:
    """Two convolutions 3x3, each with ReLU, and with normalization where there is one."""
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers.append(nn.Conv2d(channels, outputs, 3, padding=1))
        if norm is not None:
            layers.append(check.norm_of("unet", norm)(outputs))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)
