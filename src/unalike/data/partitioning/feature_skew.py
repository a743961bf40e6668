"""Feature skew: changes of the samples themselves, such as noise or rotation that differs between clients.

A change depends on its parameters and on the generator that it receives, and on nothing else, so that a saved plan makes the same
samples again. It may stand alone (`noise(level=0.1)`, on an IID division) or beside a scheme
(`dirichlet(alpha=0.1) + rotation(degrees=90)`).
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.option_types import check_positive
from unalike._utils.registry import Registry

registry = Registry(
    "feature change", home="unalike.data.partitioning.feature_skew", group="unalike.feature_changes"
)


class Change(Protocol):
    """A function from the samples `x` [n, ...] of client k of `clients` to the changed samples."""

    moves_pixels: ClassVar[bool]
    """Whether labels that are as large as the images would have to change as well."""

    def __call__(
        self, x: Tensor, client: int, clients: int, rng: np.random.Generator
    ) -> Tensor: ...

    def clusters(self, clients: int) -> np.ndarray | None:
        """Number the groups of clients that are changed in the same way, [clients]; None if no two are."""


@registry.register("noise")
@dataclass(frozen=True)
class Noise:
    """Gaussian noise that grows with the client: x + N(0, level k / K) for client k of 1..K; level k / K is the variance.

    With `deviation`, the standard deviation grows instead, from 0 to `level`: level (k - 1) / (K - 1).

    Source: Li et al. 2022, NIID-Bench: the variance in the paper, the standard deviation in the authors' code, which is noise of a
    tenth of the variance at level 0.1. Limit: level -> 0 leaves the samples as they are.
    """

    moves_pixels: ClassVar[bool] = False

    level: float = 0.1
    deviation: bool = False

    def __post_init__(self) -> None:
        check_positive("noise", level=self.level)

    def __call__(self, x: Tensor, client: int, clients: int, rng: np.random.Generator) -> Tensor:
        if not x.is_floating_point():
            raise UnalikeError(
                "noise: found tokens, expected images or rows of numbers; use another partition "
                "for texts"
            )
        numbers = rng.standard_normal(tuple(x.shape), dtype=np.float32)
        noise = torch.from_numpy(numbers).to(x.device)
        if self.deviation:
            scale = self.level * (client / max(1, clients - 1))
        else:
            scale = float(np.sqrt(self.level * (client + 1) / clients))
        return x + scale * noise

    def clusters(self, clients: int) -> np.ndarray | None:
        return None


@registry.register("rotation")
@dataclass(frozen=True)
class Rotation:
    """Images rotated counter-clockwise, by another angle in each group of clients: client k of K by angle floor(k G / K) of G.

    `degrees` are the G angles; a single number d stands for 0, d, 2 d, ... below 360. Multiples of 90 move pixels exactly where
    height and width allow it; other angles interpolate bilinearly and fill with 0.

    Source: Ghosh et al. 2020, IFCA. Limit: degrees=(0,) leaves the samples as they are.
    """

    moves_pixels: ClassVar[bool] = True

    degrees: float | tuple[float, ...] = (0, 90, 180, 270)

    def __post_init__(self) -> None:
        if isinstance(self.degrees, int | float):
            check_positive("rotation", degrees=self.degrees)
            if self.degrees >= 360:
                raise UnalikeError(
                    f"rotation: found degrees={self.degrees:g}, which turns nothing; expected less "
                    "than 360"
                )
        elif not self.degrees or not np.isfinite(self.degrees).all():
            raise UnalikeError(
                f"rotation: found degrees={self.degrees!r}, expected angles such as (0, 90, 180, "
                "270)"
            )

    @property
    def angles(self) -> tuple[float, ...]:
        if isinstance(self.degrees, int | float):
            return tuple(np.arange(0, 360, self.degrees).tolist())
        return tuple(self.degrees)

    def __call__(self, x: Tensor, client: int, clients: int, rng: np.random.Generator) -> Tensor:
        if x.dim() != 4:
            raise UnalikeError(
                f"rotation: found samples of shape {tuple(x.shape[1:])}, expected images [C, H, W]"
            )
        angle = self.angles[client * len(self.angles) // clients]
        quarters, rest = divmod(angle, 90)
        is_square = x.shape[-1] == x.shape[-2]
        if rest == 0 and (is_square or quarters % 2 == 0):
            return torch.rot90(x, int(quarters), (-2, -1))
        return _rotated(x, np.deg2rad(angle))

    def clusters(self, clients: int) -> np.ndarray | None:
        return np.arange(clients) * len(self.angles) // clients


def _rotated(x: Tensor, angle: float) -> Tensor:
    """Rotate images counter-clockwise by `angle` (radians) about their center."""
    height, width = x.shape[-2:]
    # affine_grid uses coordinates of -1..1 on either axis, so the aspect ratio enters the off-diagonal terms.
    rows = [
        [np.cos(angle), -np.sin(angle) * height / width, 0],
        [np.sin(angle) * width / height, np.cos(angle), 0],
    ]
    grid = F.affine_grid(
        x.new_tensor([rows]).expand(len(x), -1, -1), list(x.shape), align_corners=False
    )
    return F.grid_sample(x, grid, align_corners=False)
