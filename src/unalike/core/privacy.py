"""Accounting of differential privacy: epsilon of a number of Gaussian releases, and the noise that a budget of epsilon needs.

A release adds up contributions of L2 norm at most C and adds N(0, (z C)^2 I), z being the noise multiplier. Two data sets are
adjacent if one contribution of all releases is 0 in one of them (zero-out adjacency, Kairouz et al. 2021; the bounds are those of
add-or-remove-one), or, for cohorts of fixed size, if it is another one (replace-one, which moves a sum by up to 2 C).

The accountants are those of `dp-accounting`, the extra `privacy`; nothing here is imported from it before it is needed.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError, require_extra

Accountant = Literal["rdp", "pld"]
"""Renyi differential privacy, or the privacy loss distribution, which is tighter and takes seconds for each number."""
Draw = Literal["all", "fixed", "poisson"]
LOSS_INTERVAL = 1e-3
"""Grid of privacy losses of the accountant "pld", which rounds them up."""
MIN_NOISE_MULTIPLIER = 0.1
"""Where the search for the noise multiplier of a budget begins."""
MAX_NOISE_MULTIPLIER = 1e4
"""The largest noise multiplier that a budget is met with."""
CALIBRATION_RATIO = 1.001
"""The noise multiplier of a budget is at most so many times the least one."""


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


@dataclass(frozen=True)
class Release:
    """Gaussian releases of one kind.

    Attributes:
        noise_multiplier: The noise multiplier z of each.
        draw: Draw of the contributions, as in `ReleaseSampling`.
        share: The share of the contributions that are in each, or the probability that one is.
        count: Number of releases.
    """

    noise_multiplier: float
    draw: Draw
    share: float
    count: int


def epsilon_of(
    z: float, sampling: ReleaseSampling, releases: int, delta: float, accountant: Accountant = "rdp"
) -> float:
    """Epsilon at `delta` after so many releases with noise multiplier `z`; 0 before the first, infinite without noise.

    Releases in which all take part compose to one Gaussian release with z / sqrt(releases), whose epsilon is exact (Balle and
    Wang 2018, theorem 8). Raises `UnalikeError` without the extra `privacy`, and for "pld" with cohorts of fixed size.
    """
    if not releases:
        return 0.0
    if not z:
        return float("inf")
    require_extra("privacy", "dp_accounting", what="the accounting of differential privacy")
    return _epsilon(
        z=float(z),
        draw=sampling.draw,
        share=sampling.expected / sampling.units,
        releases=int(releases),
        delta=delta,
        accountant=accountant,
    )


def epsilon_of_all(releases: Mapping[Release, int], delta: float) -> float:
    """Epsilon at `delta` of releases of several kinds together, of each as many times as given; 0 of none.

    Where all contributions are in every release the epsilon is exact, as in `epsilon_of`; else Renyi divergences are added up.
    Infinite with a release without noise. Raises `UnalikeError` without the extra `privacy`.
    """
    if not releases:
        return 0.0
    if any(not release.noise_multiplier for release in releases):
        return float("inf")
    require_extra("privacy", "dp_accounting", what="the accounting of differential privacy")

    # Gaussian releases in which all take part compose to one, whose inverse variance is the sum of theirs
    precision = 0.0
    divergences: Any = 0.0
    for release, times in releases.items():
        count = release.count * times
        if release.draw == "all":
            precision += count / release.noise_multiplier**2
        else:
            orders, of_one = _renyi_divergences(
                release.noise_multiplier, release.draw, release.share
            )
            divergences += count * of_one
    if all(release.draw == "all" for release in releases):
        import dp_accounting as dp

        return float(dp.get_epsilon_gaussian(precision**-0.5, delta))

    from dp_accounting.rdp import compute_epsilon

    epsilon, _ = compute_epsilon(orders, divergences + orders * precision / 2, delta)
    return float(epsilon)


@lru_cache(4096)
def _epsilon(
    z: float, draw: Draw, share: float, releases: int, delta: float, accountant: Accountant
) -> float:
    """Epsilon as `epsilon_of` gives it, cached by the numbers on which it depends."""
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

        release = dp.PoissonSampledDpEvent(share, dp.GaussianDpEvent(z))
        loss_distribution = PLDAccountant(value_discretization_interval=LOSS_INTERVAL)
        loss_distribution.compose(release, releases)
        return float(loss_distribution.get_epsilon(delta))

    from dp_accounting.rdp import compute_epsilon

    # Renyi divergences of releases add up, order by order
    orders, divergences = _renyi_divergences(z, draw, share)
    epsilon, _ = compute_epsilon(orders, releases * divergences, delta)
    return float(epsilon)


@lru_cache(1024)
def _renyi_divergences(z: float, draw: Draw, share: float) -> tuple[Any, Any]:
    """The orders, and the Renyi divergence of one release of each: whole orders, for which it is a sum of few terms."""
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    orders = [*range(2, 33), 40, 48, 64, 96, 128, 256]
    if draw == "poisson":
        rdp = RdpAccountant(orders)
        rdp.compose(dp.PoissonSampledDpEvent(share, dp.GaussianDpEvent(z)))
    else:
        # replacing a contribution moves the sum by up to 2 C: as adding one does, under half the noise
        rdp = RdpAccountant(orders, dp.NeighboringRelation.REPLACE_ONE)
        noise = dp.GaussianDpEvent(z / 2)
        # a population of 10^6 stands for any: only the ratio of the two numbers counts
        population = 10**6
        drawn_at_once = round(share * population)
        rdp.compose(dp.SampledWithoutReplacementDpEvent(population, drawn_at_once, noise))
    return rdp.orders, rdp.rdp


@lru_cache(256)
def noise_multiplier_of(
    epsilon: float, sampling: ReleaseSampling, delta: float, accountant: Accountant = "rdp"
) -> float:
    """The least noise multiplier, to three digits, with which the releases that are planned stay within epsilon.

    Raises `UnalikeError` where there is none up to `MAX_NOISE_MULTIPLIER`.
    """
    releases = max(1, sampling.releases)

    def fits(z: float) -> bool:
        return epsilon_of(z, sampling, releases, delta, accountant) <= epsilon

    # double the noise until it suffices: the least that does is then in the last doubling
    high = MIN_NOISE_MULTIPLIER
    while not fits(high):
        high *= 2
        if high > MAX_NOISE_MULTIPLIER:
            raise UnalikeError(
                f"no noise multiplier up to {MAX_NOISE_MULTIPLIER:g} keeps {sampling.releases} releases within "
                f"epsilon={epsilon:g} at delta={delta:g}; give a larger epsilon or delta, or fewer rounds"
            )

    # bisect by ratios, so that the precision is the same for little noise and for much
    low = high / 2
    while high / low > CALIBRATION_RATIO:
        middle = (low * high) ** 0.5
        if fits(middle):
            high = middle
        else:
            low = middle
    return high


def normal_noise(like: Tensor, secret: bool, generator: torch.Generator | None = None) -> Tensor:
    """N(0, I) of the shape and type of `like`: drawn on the CPU from the generator, so that all devices see the same numbers.

    `secret`: made of the operating system's random bytes by the transform of Box and Muller; no seed gives the numbers again.
    """
    if not secret:
        noise = torch.randn(like.shape, generator=generator, dtype=like.dtype)
        return noise.to(like.device)

    # two random words of 8 bytes for each number; a tensor without entries takes two, too: torch reads no empty buffer
    count = like.numel()
    random_bytes = bytearray(os.urandom(16 * max(1, count)))
    words = torch.frombuffer(random_bytes, dtype=torch.int64).double()
    # uniform in (0, 1]: the logarithm of 0 would be infinite
    uniform = (words / 2.0**64 + 0.5).clamp(2.0**-53, 1.0)
    for_radius, for_angle = uniform.reshape(2, -1)[:, :count]

    radius = (-2 * for_radius.log()).sqrt()
    noise = radius * (2 * torch.pi * for_angle).cos()
    return noise.reshape(like.shape).to(like)
