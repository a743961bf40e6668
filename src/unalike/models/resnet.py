"""Residual networks, with a 3x3 stem for images of about 32x32 to 64x64 or the 7x7 stem with pooling for larger ones."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from unalike._utils.errors import unknown
from unalike.models import check
from unalike.models.check import Norm
from unalike.models.registry import registry


class Pad(nn.Module):
    """The shortcut without parameters, option A of He et al. 2016: every `stride`-th pixel, zeros for new channels."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm):
        super().__init__()
        self.stride = stride
        self.extra = after - before

    def forward(self, x: Tensor) -> Tensor:
        """[B, after, H / stride, W / stride] from [B, before, H, W]."""
        pixels = x[..., :: self.stride, :: self.stride]
        return F.pad(pixels, (0, 0, 0, 0, 0, self.extra))


def _projection(before: int, after: int, stride: int, norm: Norm) -> nn.Module:
    return nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))


SHORTCUTS: dict[str, Callable[[int, int, int, Norm], nn.Module]] = {
    "projection": _projection,
    "pad": Pad,
}
"""Shortcuts for blocks that change the shape: option B and option A of He et al. 2016."""


def _cifar(channels: int, width: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, width, 3, 1, 1, bias=False), norm(width), nn.ReLU())


def _imagenet(channels: int, width: int, norm: Norm) -> nn.Sequential:
    convolution = nn.Conv2d(channels, width, 7, 2, 3, bias=False)
    return nn.Sequential(convolution, norm(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))


STEMS: dict[str, Callable[[int, int, Norm], nn.Module]] = {"cifar": _cifar, "imagenet": _imagenet}
"""Stems: a 3x3 convolution, or a 7x7 one and max-pooling, which divide the sides by 4 (He et al. 2016, sections 4.2 and 4.1)."""


class ResidualBlock(nn.Module):
    """The basic block of He et al. 2016: relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)) with 3x3 convolutions."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm, shortcut: str):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = norm(after)
        if before == after and stride == 1:
            self.shortcut: nn.Module = nn.Identity()
        else:
            self.shortcut = SHORTCUTS[shortcut](before, after, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        """[B, after, H / stride, W / stride] from [B, before, H, W]."""
        inner = F.relu(self.norm1(self.conv1(x)))
        outer = self.norm2(self.conv2(inner))
        return F.relu(outer + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, then `blocks[i]` basic blocks of width `widths[i]`, which halve the sides from the second width on, mean, head.
    Input: float32 [B, channels, height, width].
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int | None,
        *,
        widths: tuple[int, ...],
        blocks: tuple[int, ...],
        norm: str = "batch",
        shortcut: str = "projection",
        stem: str = "cifar",
    ):
        super().__init__()
        in_channels, _, _ = check.images("resnet", input_shape)
        if shortcut not in SHORTCUTS:
            raise unknown("shortcut for resnet", shortcut, SHORTCUTS)
        if stem not in STEMS:
            raise unknown("stem for resnet", stem, STEMS)
        norm_layer = check.norm_of("resnet", norm)
        self.stem = STEMS[stem](in_channels, widths[0], norm_layer)
        stages: list[nn.Module] = []
        before = widths[0]
        for after, count in zip(widths, blocks, strict=True):
            # The first block of a stage changes the width, and halves the sides but in the first stage.
            stride = 2 if stages else 1
            stage = [ResidualBlock(before, after, stride, norm_layer, shortcut)]
            for _ in range(count - 1):
                stage.append(ResidualBlock(after, after, 1, norm_layer, shortcut))
            stages.append(nn.Sequential(*stage))
            before = after
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(before, classes or 1)
        check.he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((-2, -1)))


@registry.register("resnet20")
def resnet20(
    input_shape: tuple[int, ...],
    classes: int | None,
    *,
    norm: str = "batch",
    shortcut: str = "projection",
) -> ResNet:
    """ResNet-20 for 32x32 images: 272,474 parameters with 10 classes.

    The shortcuts are projections, as in the code of FedLAW and FedLWS; shortcut="pad" is the paper's (269,722 parameters).

    Source: He et al. 2016, section 4.2.
    """
    return ResNet(
        input_shape, classes, widths=(16, 32, 64), blocks=(3, 3, 3), norm=norm, shortcut=shortcut
    )


@registry.register("resnet18")
def resnet18(
    input_shape: tuple[int, ...], classes: int | None, *, norm: str = "batch", stem: str = "cifar"
) -> ResNet:
    """ResNet-18 (He et al. 2016): 11,173,962 parameters with 10 classes and the 3x3 stem.

    stem="imagenet" is the published network, as in torchvision: 11,689,512 parameters with 1,000 classes. It divides the sides of
    an image by 32 instead of 8, and takes a fifteenth of the operations.
    """
    return ResNet(
        input_shape, classes, widths=(64, 128, 256, 512), blocks=(2, 2, 2, 2), norm=norm, stem=stem
    )


@registry.register("resnet34")
def resnet34(
    input_shape: tuple[int, ...], classes: int | None, *, norm: str = "batch", stem: str = "cifar"
) -> ResNet:
    """ResNet-34 (He et al. 2016): 21,282,122 parameters with 10 classes and the 3x3 stem.

    stem="imagenet" is as for `resnet18`: 21,797,672 parameters with 1,000 classes.
    """
    return ResNet(
        input_shape, classes, widths=(64, 128, 256, 512), blocks=(3, 4, 6, 3), norm=norm, stem=stem
    )


@registry.register("wrn56_4")
def wrn56_4(input_shape: tuple[int, ...], classes: int | None, *, norm: str = "batch") -> ResNet:
    """ResNet-56, four times as wide, named WRN-56-4 by FedLAW and FedLWS; 13,628,234 parameters with 10 classes.

    The depth is that of He et al. 2016, 6 n + 2 with n = 9. It is not a network of Zagoruyko and Komodakis 2016: there depths
    are 6 n + 4 and norms come first.
    """
    return ResNet(input_shape, classes, widths=(64, 128, 256), blocks=(9, 9, 9), norm=norm)
