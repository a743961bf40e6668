"""VGG networks (Simonyan and Zisserman 2015) for small images."""

from torch import Tensor, nn

from unalike.models import check
from unalike.models.dense import hidden_layers
from unalike.models.registry import registry

POOL = 0
"""Stands for 2x2 max-pooling among the widths of convolutions."""

VGG11 = (64, POOL, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512, POOL)
"""Configuration A of the paper."""


class VGG(nn.Module):
    """3x3 convolutions, each with norm and ReLU, 2x2 max-pooling between them, linear layers of `hidden` units, the head.
    Input: float32 [B, channels, height, width], sides of 32 pixels or more.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int | None,
        *,
        layers: tuple[int, ...],
        norm: str | None = "group",
        hidden: int | tuple[int, ...] = (),
    ):
        super().__init__()
        pools = layers.count(POOL)
        before, height, width = check.images("vgg", input_shape, smallest=2**pools)
        norm_layer = None if norm is None else check.norm_of("vgg", norm)
        convolutions: list[nn.Module] = []
        for after in layers:
            if after == POOL:
                convolutions.append(nn.MaxPool2d(2))
                continue
            convolutions.append(nn.Conv2d(before, after, 3, padding=1))
            if norm_layer is not None:
                convolutions.append(norm_layer(after))
            convolutions.append(nn.ReLU())
            before = after
        self.convolutions = nn.Sequential(*convolutions, nn.Flatten())

        # Each pooling halves the sides, and the linear layers see what is left.
        area = (height // 2**pools) * (width // 2**pools)
        widths = [before * area, *check.widths("vgg", "hidden", hidden)]
        self.hidden = nn.Sequential(*hidden_layers(widths))
        self.head = nn.Linear(widths[-1], classes or 1)
        check.he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.convolutions(x)))


@registry.register("vgg11")
def vgg11(
    input_shape: tuple[int, ...],
    classes: int | None,
    *,
    norm: str | None = "group",
    hidden: int | tuple[int, ...] = (),
) -> VGG:
    """VGG-11 with group normalization: 9,231,114 parameters for 3x32x32 images and 10 classes.

    `norm` is "group", "batch" or None (9,225,610 parameters). The usual form for CIFAR has no hidden linear layer;
    `hidden=(512, 512)` are those of FedNova's experiments and `hidden=(4096, 4096)` the paper's, both without dropout.

    Source: Simonyan and Zisserman 2015, table 1, configuration A.
    """
    return VGG(input_shape, classes, layers=VGG11, norm=norm, hidden=hidden)
