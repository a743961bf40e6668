"""Conditioning on local statistics: statistics of a client's data are an input of its model."""

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core.inputs import one_tensor
from unalike.core.types import Batch, Tree
from unalike.methods.part import part
from unalike.methods.roles import Conditioner

Kind = Literal[
    "ols", "covariance", "mean", "moments", "pca", "label_histogram", "zeros", "pooled_pca"
]


@part
class Conditional(Conditioner):
    """mu, a vector of m numbers, of the client's training samples alone; the models `conditional_*` are fed it.

    With k numbers a sample and the labels as C numbers (one-hot for classes, else one; n is never divided by less than 1):

        ols              B = (A^T A)^+ A^T Y with A = [X, 1], row by row            (k + 1) C
        covariance       (X - mean)^T (Y - mean) / (n - 1), row by row              k C
        mean             the mean of each input                                     k
        moments          mean, then central moments 2 .. `order`                    order k
        pca              the first `components` principal components of [X, Y]      components (k + C)
        label_histogram  the share of each class                                    C
        zeros            nothing, in the length of the statistic `like`
        pooled_pca       `pca` of all clients together, the same for everybody; a reference for simulations only

    mu never leaves the client. `zeros` and `pooled_pca` are the references of the Local Statistics paper: a global model with
    the same inputs. What too few different samples leave undefined is 0.

    The paper's text calls mu the covariance of X and Y, its equation 2 is `ols`, with which `conditional_linear` at W = I is
    least squares on each client. Only `ols` gives the paper's numbers for that model; it needs more than k + 1 samples. Where
    A^T A is singular, because n <= k or columns repeat, B is the solution of least norm (^+ is the pseudo-inverse). With n <= k it
    fits the training labels without error; `covariance` and `pca` are less noisy there.

    Source: Brannvall 2025, equations 1 and 2 and the model section. Limit: a model that ignores mu is `fedavg`.
    """

    has_own_name: ClassVar[bool] = True

    statistic: Kind = "ols"
    order: PositiveInt = 2
    components: PositiveInt = 1
    like: Kind = "ols"

    @property
    def pooled(self) -> bool:
        return self.statistic == "pooled_pca"

    def describe(self, data: Batch, outputs: int | None) -> Tree:
        x = one_tensor(data.x, "conditional").flatten(1)
        if not x.is_floating_point():
            raise UnalikeError(
                "conditional needs numbers or images, found tokens; use another method for text"
            )
        y = _labels(data, x, outputs)
        mu = STATISTICS[self.statistic](x, y, self)
        return {"statistic": mu.flatten()}


def ols(x: Tensor, y: Tensor, part: Conditional) -> Tensor:
    """[k + 1, C], the solution of least norm: singular values below the rounding error of the largest one count as 0."""
    rows = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    return torch.linalg.pinv(rows) @ y


def covariance(x: Tensor, y: Tensor, part: Conditional) -> Tensor:
    """[k, C]."""
    return _centred(x).T @ _centred(y) / max(1, len(x) - 1)


def mean(x: Tensor, y: Tensor, part: Conditional) -> Tensor:
    """[k]."""
    return x.sum(0) / max(1, len(x))


def moments(x: Tensor, y: Tensor, part: Conditional) -> Tensor:
    """[order, k]."""
    centred = _centred(x)
    central = [mean(centred**p, y, part) for p in range(2, part.order + 1)]
    return torch.stack([mean(x, y, part), *central])


def pca(x: Tensor, y: Tensor, part: Conditional) -> Tensor:
    """[components, k + C], of length 1 each; the sign, which is arbitrary, makes the largest entry positive.

    Over clients of the same law that sign agrees more often than others do. Where the rows do not differ there is none.
    """
    rows = torch.cat([x, y], 1)
    _, lengths, vectors = torch.linalg.svd(_centred(rows), full_matrices=False)
    rounding = torch.finfo(rows.dtype).eps * max(rows.shape) * rows.norm()
    rank = int((lengths > rounding).sum())
    vectors = vectors[: min(part.components, rank)]
    largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))

    # components beyond the rank stay 0
    components = torch.zeros(part.components, rows.shape[1], dtype=rows.dtype, device=rows.device)
    components[: len(vectors)] = vectors * largest.sign()
    return components


def label_histogram(x: Tensor, y: Tensor, part: Conditional) -> Tensor:
    """[C]."""
    return y.sum(0) / max(1, len(y))


def zeros(x: Tensor, y: Tensor, part: Conditional) -> Tensor:
    """The length of another statistic."""
    if part.like == "zeros":
        return ols(x, y, part) * 0
    return torch.zeros_like(STATISTICS[part.like](x, y, part))


STATISTICS: dict[str, Callable[[Tensor, Tensor, Conditional], Tensor]] = {
    "ols": ols,
    "covariance": covariance,
    "mean": mean,
    "moments": moments,
    "pca": pca,
    "label_histogram": label_histogram,
    "zeros": zeros,
    "pooled_pca": pca,
}
"""From inputs [n, k] and labels [n, C] to the statistic."""


def _labels(data: Batch, x: Tensor, outputs: int | None) -> Tensor:
    """[n, C]: one-hot classes, or the numbers themselves."""
    if outputs is None or data.y.dim() > 1:
        return data.y.reshape(len(x), -1).to(x.dtype)
    classes = torch.arange(outputs, device=x.device)
    return (data.y[:, None] == classes).to(x.dtype)


def _centred(values: Tensor) -> Tensor:
    return values - values.sum(0) / max(1, len(values))
