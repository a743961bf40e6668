"""MobileNetV2 (Sandler et al. 2018)."""

from torch import Tensor, nn

from unalike._utils.errors import UnalikeError
from unalike.models import check
from unalike.models.check import Norm
from unalike.models.registry import registry

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Table 2 of the paper: expansion, channels, blocks, stride of the first block."""

MAX_SMALL_SIDE_PIXELS = 64
"""Images with a side of at most this many pixels are not halved by the stem and by the second stage."""


def _convolution(
    before: int, after: int, norm: Norm, side: int = 1, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """Make a convolution without bias, its norm and ReLU6."""
    padding = side // 2
    return [
        nn.Conv2d(before, after, side, stride, padding, groups=groups, bias=False),
        norm(after),
        nn.ReLU6(),
    ]


class InvertedResidual(nn.Module):
    """1x1 convolution to `expansion` times the channels, 3x3 depthwise convolution, 1x1 convolution without ReLU.

    The input is added if the output has its shape.
    """

    def __init__(self, before: int, after: int, expansion: int, stride: int, norm: Norm):
        super().__init__()
        inner = before * expansion
        expand = _convolution(before, inner, norm) if expansion > 1 else []
        depthwise = _convolution(inner, inner, norm, side=3, stride=stride, groups=inner)
        project = nn.Conv2d(inner, after, 1, bias=False)
        self.layers = nn.Sequential(*expand, *depthwise, project, norm(after))
        self.adds = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """[B, after, H / stride, W / stride] from [B, before, H, W]."""
        return x + self.layers(x) if self.adds else self.layers(x)


@registry.register("mobilenet_v2")
class MobileNetV2(nn.Module):
    """MobileNetV2: a 3x3 stem, 17 inverted residual blocks, a 1x1 convolution to 1280 channels, mean, head.

    2,236,682 parameters with 10 classes, 3,504,872 with 1000, as torchvision's. `width` multiplies the channels, rounded to
    multiples of 8. `norm` is "batch" or "group". Images with a side of at most 64 pixels are halved three times instead of
    five, as is usual for CIFAR; this does not change the parameters. No dropout.

    Source: Sandler et al. 2018, table 2.
    Input: float32 [B, channels, height, width].
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int | None,
        *,
        width: float = 1.0,
        norm: str = "batch",
    ):
        super().__init__()
        in_channels, *sides = check.images("mobilenet_v2", input_shape)
        if not 0 < width < float("inf"):
            raise UnalikeError(
                f"mobilenet_v2: found width={width!r}, expected a factor above 0, such as 0.5"
            )
        norm_layer = check.norm_of("mobilenet_v2", norm)
        stem_stride = 1 if min(sides) <= MAX_SMALL_SIDE_PIXELS else 2
        before = _rounded(32 * width)
        layers = _convolution(in_channels, before, norm_layer, side=3, stride=stem_stride)
        for i, (expansion, channels, blocks, stride) in enumerate(STAGES):
            # Small images are halved neither by the stem nor by the second stage.
            stage_stride = stem_stride if i == 1 else stride
            after = _rounded(channels * width)
            for j in range(blocks):
                block_stride = stage_stride if j == 0 else 1
                layers.append(InvertedResidual(before, after, expansion, block_stride, norm_layer))
                before = after
        last = _rounded(1280 * max(1.0, width))
        layers += _convolution(before, last, norm_layer)
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(last, classes or 1)
        check.he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((-2, -1)))


def _rounded(channels: float) -> int:
    """Round to a multiple of 8, at least 8, and never down by more than a tenth (the rule of the authors' code)."""
    nearest = int(channels + 4) // 8 * 8
    nearest = max(8, nearest)
    return nearest if nearest >= 0.9 * channels else nearest + 8
