"""ComBat: effects of a site on location and scale of its inputs, estimated from sums that clients give.

`site_sums` is what a client sends, `estimate` what the server makes of it, and with the answer the client takes its own
`SiteEffects` out of its samples. `harmonized` does all this for a simulation, the plan `combat` in a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.data.client_data import ClientData
from unalike.data.population import Population

LEAST_SAMPLES = 2
"""Fewest training samples of a client whose scale is estimated."""
LEAST_COLUMNS = 2
"""Fewest columns whose effects have a mean and a variance, which the prior is made of."""
LARGEST_CHANGE = 1e-12
"""Relative change of the effects at which their iteration ends."""
MAX_ITERATIONS = 10_000


class SiteSums(NamedTuple):
    """The sums of one client: of its deviations Y [n, G] and C [n, P] from the means of columns y and of kept columns c.

    C = Q R, Q with orthonormal columns, R an upper triangle.

    Attributes:
        rows: Number of training samples n, [].
        mean_y: Means of y, [G].
        mean_c: Means of c, [P].
        root: R by rows, without the zeros below its diagonal, [P (P + 1) / 2].
        products: Q^T Y, [P, G].
        residual: Sums of squares of Y - Q Q^T Y, [G].
    """

    rows: Tensor
    mean_y: Tensor
    mean_c: Tensor
    root: Tensor
    products: Tensor
    residual: Tensor

    @property
    def triangle(self) -> Tensor:
        """R, [P, P]."""
        kept = len(self.mean_c)
        triangle = self.root.new_zeros(kept, kept)
        triangle[*torch.triu_indices(kept, kept)] = self.root
        return triangle

    @property
    def suffices(self) -> bool:
        """Whether the scale of the client can be estimated: it has two samples or more, which differ."""
        varies = bool(self.products.any() or self.residual.any())
        return varies and int(self.rows) >= LEAST_SAMPLES

    def squares(self, beta: Tensor) -> Tensor:
        """Sums of squares of Y - C beta, [G]."""
        return self.residual + (self.products - self.triangle @ beta).square().sum(0)


def site_sums(x: Tensor, columns: Sequence[int], kept: Sequence[int]) -> SiteSums:
    """The sums of a client with the training samples x [n, D], in float64: all that leaves it.

    Raises `UnalikeError` for whole numbers, as tokens are.
    """
    if not x.is_floating_point():
        raise UnalikeError(f"found inputs of {x.dtype}, as of tokens; expected rows of float32")
    x = x.cpu().double()
    # constant columns have deviations of exactly 0 from their first value
    first = x[:1].sum(0)
    means = (x - first).sum(0) / max(len(x), 1)
    deviations = x - first - means
    means = first + means

    # rows of 0 give R its shape where samples are fewer than kept columns
    deviations = torch.cat([deviations, x.new_zeros(len(kept), x.shape[1])])
    y = deviations[:, list(columns)]
    q, r = torch.linalg.qr(deviations[:, list(kept)])
    products = q.T @ y
    return SiteSums(
        rows=torch.tensor(len(x)),
        mean_y=means[list(columns)],
        mean_c=means[list(kept)],
        root=r[*torch.triu_indices(*r.shape)],
        products=products,
        residual=(y - q @ products).square().sum(0),
    )


class SiteEffects(NamedTuple):
    """Effects of a site on its columns: their deviations are multiplied by `scale`, and `shift` is added, [D] each."""

    shift: Tensor
    scale: Tensor


@dataclass(frozen=True, eq=False)
class Harmonization:
    """y = alpha + c beta + sigma (gamma_k + delta_k e) with e ~ N(0, 1), at client k, for each column y with kept columns c.

    Attributes:
        columns: Positions of the G columns that are corrected.
        kept: Positions of the P columns whose effect is kept.
        coefficients: alpha, the means without effects, and under it beta, the effects of the kept columns, [1 + P, D]; 0 in columns
            that are not corrected.
        sigma: Pooled deviations of the residuals, [D]; 0 in columns that are not corrected.
    """

    columns: Sequence[int]
    kept: Sequence[int]
    coefficients: Tensor
    sigma: Tensor

    def effects(self, sums: SiteSums) -> SiteEffects:
        """The effects of a client with these sums: `shift` sigma gamma_k, `scale` delta_k. They are none where sums do not suffice.

        gamma_k and delta_k^2 are means of their conditional posteriors, iterated until they agree, with the priors N(m, t^2) and
        inverse gamma, whose moments are those of the client's estimates over the columns.
        """
        shift = torch.zeros_like(self.sigma)
        scale = torch.ones_like(self.sigma)
        if sums.suffices:
            columns = list(self.columns)
            coefficients = self.coefficients[:, columns].cpu().double()
            sigma = self.sigma[columns].cpu().double()
            gamma, delta = _posterior_means(sums, coefficients[0], coefficients[1:], sigma)
            shift[columns] = (sigma * gamma).to(shift)
            scale[columns] = delta.to(scale)
        return SiteEffects(shift, scale)

    def corrected(self, x: Tensor, effects: SiteEffects) -> Tensor:
        """The samples x [B, D] without the effects of their site: alpha + c beta + sigma (z - gamma_k) / delta_k.

        z are the values y less alpha + c beta, over sigma.
        """
        expected, *beta = self.coefficients.to(x)
        # no matrix product, which autocast would round
        for position, effect in zip(self.kept, beta, strict=True):
            expected = expected + x[:, position, None] * effect
        return expected + (x - expected - effects.shift.to(x)) / effects.scale.to(x)


def _posterior_means(
    sums: SiteSums, alpha: Tensor, beta: Tensor, sigma: Tensor
) -> tuple[Tensor, Tensor]:
    """gamma and delta of a client, [G] each."""
    rows = sums.rows.double()
    gamma_hat = (sums.mean_y - sums.mean_c @ beta - alpha) / sigma
    spread = sums.squares(beta) / sigma**2
    variance_hat = spread / (rows - 1)
    prior_mean = gamma_hat.mean()
    weight = rows * gamma_hat.var()
    # an inverse gamma distribution of mean m and variance u m^2 has the shape 2 + 1 / u and the scale m (1 + 1 / u): times u below
    mean = variance_hat.mean()
    u = variance_hat.var() / mean**2

    gamma = gamma_hat
    variance = variance_hat
    for _ in range(MAX_ITERATIONS):
        before = torch.stack([gamma, variance])
        gamma = (weight * gamma_hat + variance * prior_mean) / (weight + variance)
        squares = spread + rows * (gamma_hat - gamma) ** 2
        variance = (mean * (1 + u) + u * squares / 2) / (1 + u * (1 + rows / 2))
        change = (torch.stack([gamma, variance]) - before).abs()
        if (change <= LARGEST_CHANGE * (1 + before.abs())).all():
            return gamma, variance.sqrt()
    raise UnalikeError(
        "the effects of a site did not settle; expected columns with finite values, of which some vary at each client"
    )


def estimate(
    sums: Sequence[SiteSums], width: int, columns: Sequence[int], kept: Sequence[int]
) -> Harmonization:
    """The common values of sites of D = `width` columns, as ComBat estimates them from the pooled samples (Johnson et al. 2007).

    beta is that of least squares with an intercept a_k for each client; alpha = sum_k n_k a_k / N, sigma^2 is the mean squared
    residual.

    Raises:
        UnalikeError: A column is constant at all clients, or the effect of a kept one cannot be told from those of the sites.
    """
    counts = torch.stack([s.rows for s in sums]).double()
    roots = torch.cat([s.triangle for s in sums])
    if torch.linalg.matrix_rank(roots) < len(kept):
        raise UnalikeError(
            f"the kept columns {list(kept)} are constant at every client, or follow from each other; "
            "expected columns that vary within clients: leave such a column out"
        )
    beta = torch.linalg.pinv(roots) @ torch.cat([s.products for s in sums])

    intercepts = torch.stack([s.mean_y - s.mean_c @ beta for s in sums])
    squares = torch.stack([s.squares(beta) for s in sums])
    sigma = (squares.sum(0) / counts.sum()).sqrt()
    constant = [column for column, deviation in zip(columns, sigma) if not deviation > 0]
    if constant:
        raise UnalikeError(
            f"the columns {constant} are constant at every client; leave them out of the columns to correct"
        )
    alpha = counts @ intercepts / counts.sum()

    # columns that are not corrected have 0
    coefficients = beta.new_zeros(1 + len(kept), width)
    coefficients[:, list(columns)] = torch.cat([alpha[None], beta])
    deviations = sigma.new_zeros(width)
    deviations[list(columns)] = sigma
    return Harmonization(columns, kept, coefficients, deviations)


def columns_to_correct(
    input_shape: Sequence[Any], columns: Sequence[int] | None, kept: Sequence[int]
) -> list[int]:
    """The columns that are corrected: those given, or all that are not kept.

    Raises `UnalikeError` for inputs of a shape that is none of rows, for columns that are not there, and for fewer than two.
    """
    if len(input_shape) != 1 or not isinstance(input_shape[0], int):
        raise UnalikeError(
            f"found inputs of shape {tuple(input_shape)}, expected rows of numbers: "
            "give features of images in their place"
        )
    positions = range(input_shape[0])
    if columns is None:
        columns = [d for d in positions if d not in kept]
    unknown = [d for d in (*columns, *kept) if d not in positions]
    if unknown or len(set(columns)) < len(columns):
        raise UnalikeError(
            f"found the columns {list(columns)} to correct and {list(kept)} to keep; "
            f"expected positions from 0 to {positions[-1]}, each once"
        )
    if len(columns) < LEAST_COLUMNS or set(columns) & set(kept):
        raise UnalikeError(
            f"found the columns {list(columns)} to correct beside {list(kept)} to keep; "
            "expected two columns or more that are not kept"
        )
    return list(columns)


def harmonized(
    population: Population, columns: Sequence[int] | None = None, *, kept: Sequence[int] = ()
) -> Population:
    """The clients with their site's effects on location and scale taken out of their inputs (ComBat, Johnson et al. 2007).

    It equals ComBat on the pooled training samples, computed from sums of the clients. Fed-ComBat (Silva et al. 2023)
    also allows effects of the kept columns that are not linear, trained by FedAvg; here they are linear, as in ComBat. Public
    code of ComBat ends the iteration at a looser relative change, 1e-4. Without site effects in the inputs it changes them little.

    Labels are not read: a site whose labels differ loses what differs in the inputs with them, unless a kept column tells it.

    Args:
        population: Clients whose inputs are rows of numbers.
        columns: Positions of the columns that are corrected; None: all that are not kept. Codes of categories are no such columns.
        kept: Positions of columns, such as age, whose effect on the others is kept; they stay as they are.

    Returns:
        The population. Test and validation samples have the correction of the training samples of their client. It has no
        encoding: new rows need the correction of their site.

    Raises:
        UnalikeError: Inputs are no rows, a client has fewer than two training samples, there is no such column, fewer than two
            are corrected, or `estimate` refuses the columns.
    """
    columns = columns_to_correct(population.input_shape, columns, kept)
    clients = list(population)
    sums = [site_sums(client.train[0], columns, kept) for client in clients]
    small = [name for name, s in zip(population.names, sums) if not s.suffices]
    if small:
        raise UnalikeError(
            f"client {small[0]!r} has fewer than two training samples that differ; expected two of each client, whose scale is "
            "estimated"
        )

    [width] = population.input_shape
    common = estimate(sums, width, columns, kept)
    changed = [
        _harmonized_client(client, common, common.effects(s)) for client, s in zip(clients, sums)
    ]
    result = Population.of(changed, classes=population.classes, task=population.task)
    return replace(result, clusters=population.clusters)


def _harmonized_client(
    client: ClientData, common: Harmonization, effects: SiteEffects
) -> ClientData:
    """The client with its samples corrected."""
    splits: dict[str, Any] = {
        split: (common.corrected(x.double(), effects).to(x), y)
        for split, (x, y) in client.splits().items()
    }
    return replace(client, **splits)
