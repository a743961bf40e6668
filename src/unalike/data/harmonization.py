"""ComBat: effects of a site on location and scale of its inputs, estimated from sums that clients give.

`site_sums` is what a client sends, `estimate` what the server makes of it, and `Harmonization.corrected` what a client does
with the answer; `harmonized` does all three for a simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from unalike._utils.errors import UnalikeError
from unalike.core.inputs import is_one_tensor
from unalike.data.array_checks import Pair
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
    """The sums of one client: n, means of G columns y and of P kept columns c, and products of deviations from these means.

    Attributes:
        rows: Number of training samples n.
        mean_y: Means of y, [G].
        mean_c: Means of c, [P].
        yy: Sums of squares of y, [G].
        cy: Sums of products, [P, G].
        cc: Sums of products, [P, P].
    """

    rows: int
    mean_y: np.ndarray
    mean_c: np.ndarray
    yy: np.ndarray
    cy: np.ndarray
    cc: np.ndarray


def site_sums(x: np.ndarray, columns: Sequence[int], kept: Sequence[int]) -> SiteSums:
    """The sums of a client with the training samples x [n, D]: all that leaves it."""
    y = x[:, columns].astype(np.float64)
    c = x[:, kept].astype(np.float64)
    mean_y = y.mean(0)
    mean_c = c.mean(0)
    y = y - mean_y
    c = c - mean_c
    return SiteSums(
        rows=len(x), mean_y=mean_y, mean_c=mean_c, yy=(y * y).sum(0), cy=c.T @ y, cc=c.T @ c
    )


@dataclass(frozen=True, eq=False)
class Harmonization:
    """y = alpha + c beta + sigma (gamma_k + delta_k e) with e ~ N(0, 1), at client k, for each column y with kept columns c.

    Attributes:
        columns: Positions of the G columns that are corrected.
        kept: Positions of the P columns whose effect is kept.
        alpha: Means without effects, [G].
        beta: Effects of the kept columns, [P, G].
        sigma: Pooled deviations of the residuals, [G].
        gamma: Shifts of the clients, [K, G].
        delta: Scales of the clients, [K, G].
    """

    columns: tuple[int, ...]
    kept: tuple[int, ...]
    alpha: np.ndarray
    beta: np.ndarray
    sigma: np.ndarray
    gamma: np.ndarray
    delta: np.ndarray

    def corrected(self, x: np.ndarray, client: int) -> np.ndarray:
        """The samples x [n, D] of a client without its shift and scale, in float64: alpha + c beta + sigma (z - gamma_k) / delta_k.

        z are the values y less alpha + c beta, over sigma.
        """
        result = x.astype(np.float64)
        expected = self.alpha + result[:, self.kept] @ self.beta
        shift = self.sigma * self.gamma[client]
        residual = result[:, self.columns] - expected - shift
        result[:, self.columns] = expected + residual / self.delta[client]
        return result


def estimate(
    sums: Sequence[SiteSums], columns: Sequence[int], kept: Sequence[int]
) -> Harmonization:
    """The effects of the sites from their sums, as ComBat estimates them from the pooled samples (Johnson et al. 2007).

    beta is that of least squares with an intercept a_k for each client; alpha = sum_k n_k a_k / N, sigma^2 is the mean squared
    residual. gamma_k and delta_k^2 are means of their conditional posteriors, iterated until they agree, with the priors
    N(m_k, t_k^2) and inverse gamma, whose moments are those of the client's estimates over the columns.

    Raises:
        UnalikeError: A column is constant at all clients, or the effect of a kept one cannot be told from those of the sites.
    """
    counts = np.array([s.rows for s in sums], np.float64)[:, None]
    cc = sum(s.cc for s in sums)
    cy = sum(s.cy for s in sums)
    if len(kept) and np.linalg.matrix_rank(cc) < len(kept):
        raise UnalikeError(
            f"the kept columns {list(kept)} are constant at every client, or follow from each other; "
            "expected columns that vary within clients: leave such a column out"
        )
    beta = np.linalg.solve(cc, cy)

    # least squares, from the sums alone
    intercepts = np.stack([s.mean_y - s.mean_c @ beta for s in sums])
    alpha = (counts * intercepts).sum(0) / counts.sum()
    squares = []
    for s in sums:
        fitted = np.einsum("pg,pq,qg->g", beta, s.cc, beta)
        squares.append(s.yy - 2 * (beta * s.cy).sum(0) + fitted)
    residuals = np.stack(squares).clip(0)
    sigma = np.sqrt(residuals.sum(0) / counts.sum())
    constant = [column for column, deviation in zip(columns, sigma) if not deviation > 0]
    if constant:
        raise UnalikeError(
            f"the columns {constant} are constant at every client; leave them out of the columns to correct"
        )

    # what sites add to standardized values, before it is drawn towards their means over the columns
    gamma_hat = (intercepts - alpha) / sigma
    spread = residuals / sigma**2
    gamma, variance = _posterior_means(gamma_hat, spread, counts)
    return Harmonization(
        columns=tuple(columns),
        kept=tuple(kept),
        alpha=alpha,
        beta=beta,
        sigma=sigma,
        gamma=gamma,
        delta=np.sqrt(variance),
    )


def _posterior_means(
    gamma_hat: np.ndarray, spread: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """gamma and delta^2, [K, G] each, from shifts, sums of squares about them, both [K, G], and numbers of samples [K, 1]."""
    variance_hat = spread / (counts - 1)
    prior_mean = gamma_hat.mean(1, keepdims=True)
    prior_variance = gamma_hat.var(1, ddof=1, keepdims=True)
    # an inverse gamma distribution of shape a and scale b has the mean b / (a - 1) and the variance mean^2 / (a - 2)
    mean = variance_hat.mean(1, keepdims=True)
    shape = mean**2 / variance_hat.var(1, ddof=1, keepdims=True) + 2
    scale = mean * (shape - 1)

    gamma = gamma_hat
    variance = variance_hat
    for _ in range(MAX_ITERATIONS):
        before = np.stack([gamma, variance])
        weight = counts * prior_variance
        gamma = (weight * gamma_hat + variance * prior_mean) / (weight + variance)
        squares = spread + counts * (gamma_hat - gamma) ** 2
        variance = (scale + squares / 2) / (shape + counts / 2 - 1)
        change = np.abs(np.stack([gamma, variance]) - before)
        if (change <= LARGEST_CHANGE * (1 + np.abs(before))).all():
            return gamma, variance
    raise UnalikeError(
        "the effects of the sites did not settle; expected columns with finite values, of which some vary at each client"
    )


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
    if not is_one_tensor(population.x) or len(population.input_shape) != 1:
        raise UnalikeError(
            f"found inputs of shape {population.input_shape}, expected rows of numbers: "
            "give features of images in their place"
        )
    positions = range(population.input_shape[0])
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
    small = [population.names[int(k)] for k in np.flatnonzero(population.sizes < LEAST_SAMPLES)]
    if small:
        raise UnalikeError(
            f"client {small[0]!r} has fewer than two training samples; expected two of each client, whose scale is estimated"
        )

    clients = list(population)
    sums = [site_sums(client.train[0].numpy(force=True), columns, kept) for client in clients]
    effects = estimate(sums, columns, kept)
    corrected = [_corrected_client(client, effects, k) for k, client in enumerate(clients)]
    result = Population.of(corrected, classes=population.classes, task=population.task)
    return replace(result, clusters=population.clusters)


def _corrected_client(client: ClientData, effects: Harmonization, number: int) -> ClientData:
    """The client with its samples corrected."""

    def corrected(samples: Pair) -> Pair:
        x, y = samples
        values = effects.corrected(x.numpy(force=True), number)
        return torch.from_numpy(values).to(x), y

    splits: dict[str, Any] = {}
    for split, samples in client.splits().items():
        splits[split] = corrected(samples)
    return replace(client, **splits)
