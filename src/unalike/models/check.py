"""Validation of model options and input shapes, and the normalization layers that models share."""

import math
from collections.abc import Callable

from torch import nn

from unalike._utils.errors import UnalikeError, unknown

MAX_WIDTH = 2**31 - 1
"""Most units of a layer."""


def widths(
    model: str, option: str, value: int | tuple[int, ...], least: int = 0
) -> tuple[int, ...]:
    """Return widths as a tuple; a number is one layer.

    Raises `UnalikeError` unless they are `least` or more integers from 1 to `MAX_WIDTH`.
    """
    several = (value,) if isinstance(value, int) else tuple(value)
    are_possible = all(isinstance(width, int) and 1 <= width <= MAX_WIDTH for width in several)
    if len(several) < least or not are_possible:
        raise UnalikeError(
            f"{model}: found {option}={value!r}, expected whole numbers from 1 to {MAX_WIDTH:,}, "
            "such as (200, 200)"
        )
    return several


def images(model: str, input_shape: tuple[int, ...], smallest: int = 1) -> tuple[int, int, int]:
    """Return (channels, height, width). Raises `UnalikeError` for rows, tokens and sides below `smallest` pixels."""
    if len(input_shape) != 3:
        raise UnalikeError(
            f"{model}: found samples of shape {input_shape}, expected images "
            "(channels, height, width); use 'mlp' or 'linear' for rows"
        )
    channels, height, width = input_shape
    if min(height, width) < smallest:
        raise UnalikeError(
            f"{model}: found images of {height}x{width} pixels, expected "
            f"{smallest}x{smallest} or more; use 'cnn' or 'mlp'"
        )
    return channels, height, width


def tokens(model: str, input_shape: tuple[int, ...]) -> None:
    """Raise `UnalikeError` unless samples are rows of tokens."""
    if len(input_shape) != 1:
        raise UnalikeError(
            f"{model}: found samples of shape {input_shape}, expected tokens "
            "(length,); use 'cnn' for images"
        )


Norm = Callable[[int], nn.Module]
"""A function from a number of channels to a normalization layer."""


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(8, channels), channels)


NORMS: dict[str, Norm] = {"batch": nn.BatchNorm2d, "group": _group_norm}
"""Batch normalization; group normalization (Wu and He 2018) in up to 8 groups, which keeps no running statistics."""


def norm_of(model: str, name: str) -> Norm:
    """Return the normalization of this name. Raises `UnalikeError` if it is unknown."""
    if name not in NORMS:
        raise unknown(f"norm for {model}", name, NORMS)
    return NORMS[name]


def he_init(module: nn.Module) -> None:
    """Draw the weights of every convolution from N(0, 2 / fan_out) (He et al. 2015)."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
