"""Accounting of differential privacy: epsilon of a number of Gaussian releases, and the noise that a budget of epsilon needs.

A release adds up contributions of L2 norm at most C and adds N(0, (z C)^2 I), z being the noise multiplier. Two data sets are
adjacent if one contribution of all releases is 0 in one of them (zero-out adjacency, Kairouz et al. 2021; the bounds are those of
add-or-remove-one), or, for cohorts of fixed size, if it is another one (replace-one, which moves a sum by up to 2 C).

The accountants are those of `dp-accounting`, the extra `privacy`; nothing here is imported from it before it is needed.
"""

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError, require_extra

Accountant = Literal["rdp", "pld"]
"""Renyi differential privacy, or the privacy loss distribution, which is tighter and takes seconds for each number."""
Draw = Literal["all", "fixed", "poisson"]
INTERVAL = 1e-3
"""Grid of privacy losses of the accountant "pld", which rounds them up."""
SMALLEST, LARGEST = 0.1, 1e4
"""Range of noise multipliers that a budget is calibrated to."""


@dataclass(frozen=True)
class ReleaseSampling:
    """The number of contributions to a release, and their draw.

    Attributes:
        units: Number of clients, or of samples of a client.
        expected: Mean number of them in a release.
        draw: "all" take part in every release; "fixed": a random set of this size, without replacement; "poisson": each one by
            itself, with probability `expected / units`.
        releases: Number of releases that are planned.
        min_contributions: Fewest of them in a release; each adds its share of the noise of a sum; 0 with "poisson".
        sizes: The numbers of training samples that clients have, each number once.
    """

    units: int
    expected: float
    draw: Draw = "all"
    releases: int = 1
    min_contributions: int = 0
    sizes: tuple[int, ...] = ()


def epsilon_of(
    z: float, sampling: ReleaseSampling, releases: int, delta: float, accountant: Accountant = "rdp"
) -> float:
    """Epsilon at `delta` after so many releases with noise multiplier `z`; 0 before the first, infinite without noise.

    Releases in which all take part compose to one Gaussian release with z / sqrt(releases), whose epsilon is exact (Balle and
    Wang 2018, theorem 8). Raises `UnalikeError` without the extra `privacy`, and for "pld" with cohorts of fixed size.
    """
    if not releases or not z:
        return float("inf") if releases else 0.0
    require_extra("privacy", "dp_accounting", what="the accounting of differential privacy")
    return _epsilon(
        float(z),
        sampling.draw,
        sampling.expected / sampling.units,
        int(releases),
        delta,
        accountant,
    )


@lru_cache(4096)
def _epsilon(
    z: float, draw: Draw, share: float, releases: int, delta: float, accountant: Accountant
) -> float:
    import dp_accounting as dp

    if draw == "all":
        return float(dp.get_epsilon_gaussian(z / releases**0.5, delta))
    if accountant == "pld":
        if draw == "fixed":
            raise UnalikeError(
                "found accountant='pld' and cohorts of a fixed size, which it cannot account; give sampling='poisson', or "
                "accountant='rdp'"
            )
        from dp_accounting.pld import PLDAccountant

        event = dp.PoissonSampledDpEvent(share, dp.GaussianDpEvent(z))
        found = PLDAccountant(value_discretization_interval=INTERVAL).compose(event, releases)
        return float(found.get_epsilon(delta))
    from dp_accounting.rdp import compute_epsilon

    orders, one = _renyi(z, draw, share)
    return float(compute_epsilon(orders, releases * one, delta)[0])


@lru_cache(1024)
def _renyi(z: float, draw: Draw, share: float) -> tuple[Any, Any]:
    """The Renyi divergences of one release, by order: whole ones, for which they are sums of few terms."""
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    orders = [*range(2, 33), 40, 48, 64, 96, 128, 256]
    if draw == "poisson":
        made = RdpAccountant(orders).compose(dp.PoissonSampledDpEvent(share, dp.GaussianDpEvent(z)))
    else:  # of a denominator of 10^6: only the share of the two numbers counts
        one = dp.SampledWithoutReplacementDpEvent(
            10**6, round(share * 10**6), dp.GaussianDpEvent(z / 2)
        )
        made = RdpAccountant(orders, dp.NeighboringRelation.REPLACE_ONE).compose(one)
    return made.orders, made.rdp


@lru_cache(256)
def noise_multiplier_of(
    epsilon: float, sampling: ReleaseSampling, delta: float, accountant: Accountant = "rdp"
) -> float:
    """The least noise multiplier, to three digits, with which the releases that are planned stay within epsilon.

    Raises `UnalikeError` where there is none below `LARGEST`.
    """

    def fits(z: float) -> bool:
        return epsilon_of(z, sampling, max(1, sampling.releases), delta, accountant) <= epsilon

    high = SMALLEST
    while not fits(high):
        high *= 2
        if high > LARGEST:
            raise UnalikeError(
                f"no noise multiplier up to {LARGEST:g} keeps {sampling.releases} releases within epsilon={epsilon:g} at "
                f"delta={delta:g}; give a larger epsilon or delta, or fewer rounds"
            )
    low = high / 2
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def normal_noise(like: Tensor, secret: bool, generator: torch.Generator | None = None) -> Tensor:
    """N(0, I) of the shape and type of `like`: drawn on the CPU from the generator, so that all devices see the same numbers.

    `secret`: made of the operating system's random bytes by the transform of Box and Muller; no seed gives the numbers again.
    """
    if not secret:
        return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
    count = like.numel()
    words = torch.frombuffer(bytearray(os.urandom(16 * max(1, count))), dtype=torch.int64).double()
    u = (words / 2.0**64 + 0.5).clamp(2.0**-53, 1.0).reshape(2, -1)[:, :count]  # in (0, 1]
    drawn = (-2 * u[0].log()).sqrt() * (2 * torch.pi * u[1]).cos()
    return drawn.reshape(like.shape).to(like)
