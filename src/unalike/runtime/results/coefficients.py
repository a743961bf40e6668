"""The table of coefficients of a model that Newton's method fitted, with standard errors, tests and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from unalike._utils.errors import UnalikeError, warn
from unalike._utils.nouns import several
from unalike.core.tasks.task import CLASSES
from unalike.core.types import Tree
from unalike.data.sanity import listed
from unalike.methods.linear_head import LinearHead, generalized_inverse
from unalike.methods.part import spec_text
from unalike.methods.parts.newton import Newton, penalties
from unalike.runtime.results.linear_terms import Term, terms_of

if TYPE_CHECKING:
    import pandas as pd

    from unalike.data.population import Population
    from unalike.runtime.stages.model_group import ModelGroup

MOST_LAST_MOVE = 1e-4
"""The largest last move of a coefficient that has converged, relative to itself plus one standard deviation of its column."""
MOST_UNKNOWN_SHARE = 1e-6
"""The largest share of a combination of coefficients that samples tell nothing about, for one that they determine."""
FEWEST_OF_OWN_INTERCEPT = 30
"""With fewer samples a client, intercepts of the clients' own make coefficients of classes too large by more than some 5 %."""

IS_DETERMINED = "is_determined"
HAS_CONVERGED = "has_converged"
"""Columns of the table while it is made."""


@dataclass(frozen=True)
class LinearFit:
    """A fit by Newton's method: b [R, Q], H + L and its inverse, and the sums of the last round over samples and clients.

    With P = R Q coefficients row by row. `state` is the server state of the part.
    """

    head: LinearHead
    state: Tree
    part: Newton

    def number(self, name: str) -> float:
        """A number of the state."""
        return float(self.state[name])

    def vector(self, name: str) -> np.ndarray:
        """A tensor of the state with one entry for each coefficient, [P]."""
        return self.state[name].flatten().numpy(force=True)

    @cached_property
    def curvature(self) -> np.ndarray:
        """H + L, [P, P]."""
        penalty = penalties(self.state["coefficients"], self.head.features, self.part.l2)
        return (self.state["curvature"] + penalty.diag()).numpy(force=True)

    @cached_property
    def inverse(self) -> np.ndarray:
        """(H + L)^-, [P, P]."""
        return generalized_inverse(torch.from_numpy(self.curvature)).numpy()

    @property
    def rank(self) -> int:
        """The number of combinations of coefficients that samples determine, with the intercepts of the clients' own."""
        common = round(float(np.trace(self.inverse @ self.curvature)))
        if not self.part.has_own_intercepts:
            return common
        rows, _ = self.head.shape
        return common + rows * round(self.number("clients"))

    @property
    def ratio(self) -> str:
        """The ratio that the exponential of a coefficient is; empty where the variance about the line is estimated, too."""
        return self.head.task.coefficient_ratio

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the tests: n - rank of a regression; infinitely many where there is no variance to estimate."""
        return math.inf if self.ratio else self.number("samples") - self.rank

    @property
    def covariance(self) -> np.ndarray:
        """phi (H + L)^-, [P, P]: phi is 1 for ratios; for a regression 2 loss / (n - rank), which follows the loss's scale."""
        if self.ratio:
            return self.inverse
        scale = 2 * self.number("loss") / self.freedom if self.freedom > 0 else math.nan
        return scale * self.inverse

    @property
    def robust_covariance(self) -> np.ndarray:
        """c (H + L)^- sum_k g_k g_k^T (H + L)^-, [P, P], c = K / (K - 1) (n - 1) / (n - rank).

        NaN for one client K, and where clients sent no squares.
        """
        if not self.part.robust_errors:
            return np.full_like(self.inverse, math.nan)
        clients = self.number("clients")
        samples = self.number("samples")
        freedom = (clients - 1) * (samples - self.rank)
        correction = clients * (samples - 1) / freedom if freedom > 0 else math.nan
        squares = self.state["squares"].numpy(force=True)
        return correction * self.inverse @ squares @ self.inverse

    def are_determined(self, combinations: np.ndarray) -> np.ndarray:
        """Whether samples determine these combinations of coefficients [T, P]: [T]."""
        rest = combinations - combinations @ self.inverse @ self.curvature
        return np.abs(rest).max(1) <= MOST_UNKNOWN_SHARE * np.abs(combinations).max(1)

    def have_converged(self, combinations: np.ndarray) -> np.ndarray:
        """Whether the last round hardly moved these combinations of coefficients [T, P]: [T]."""
        move = np.abs(combinations @ self.vector("move"))
        size = np.abs(combinations @ self.vector("coefficients"))
        return move <= MOST_LAST_MOVE * (size + np.abs(combinations).max(1))


def coefficient_table(group: ModelGroup, population: Population, noun: str) -> pd.DataFrame:
    """The table of `Run.coefficients`, for the model of a group; `noun` is the word for a client in notes.

    Raises `UnalikeError` for a model that Newton's method did not fit, or of which nothing has converged.
    """
    import pandas as pd

    fit = _fit_of(group)
    rows, columns = fit.head.shape
    terms = terms_of(population.encoding, fit.head.features, columns > fit.head.features)
    tables = []
    for row, outcome in enumerate(_outcomes(fit, population)):
        # the terms of one outcome as combinations of the coefficients of all
        combinations = np.zeros((len(terms), rows, columns))
        combinations[:, row] = [term.combination for term in terms]
        tables.append(_rows(fit, outcome, terms, combinations.reshape(len(terms), -1)))
    table = pd.concat(tables, ignore_index=True)
    _tell_doubts(fit, table, noun)
    clients = round(fit.number("clients"))
    if clients < group.members.clients:
        warn(
            f"{clients} of {group.members.clients} {several(noun)} took part in the last round, and the coefficients are those of "
            "their samples alone"
        )
    table = table.drop(columns=[IS_DETERMINED, HAS_CONVERGED])
    table.attrs["client_noun"] = noun
    table.attrs["about"] = (
        f"{fit.number('samples'):.0f} training samples of {clients} {several(noun)}, {spec_text(fit.part)}, "
        f"{group.state.round} rounds"
    )
    return table


def _fit_of(group: ModelGroup) -> LinearFit:
    """The fit of a group's model. Raises `UnalikeError` if there is none."""
    parts = [part for part in group.method.parts if isinstance(part, Newton)]
    if not parts:
        raise UnalikeError(
            f"coefficients have standard errors where the fit is exact, and this run is of {group.method!r}; "
            "give method='newton' and model='logistic', or 'linear' for a regression"
        )
    model = group.model
    if any(model.trainable(name) and not model.in_head(name) for name in model.params):
        raise UnalikeError(
            "found a model with layers below its head, whose coefficients belong to no column; expected model='logistic', or "
            "'linear' for a regression"
        )
    [newton] = parts
    state = group.state.part_states[newton.name]
    if not state["samples"]:
        raise UnalikeError("this run has made no round, so there are no coefficients; give rounds")
    return LinearFit(newton.head(group.settings), state, newton)


def _outcomes(fit: LinearFit, population: Population) -> Sequence[str]:
    """The class, or the target, that each of the R rows of the coefficients predicts. Raises `UnalikeError` for several targets."""
    if fit.head.task.offers(CLASSES):
        classes = population.classes or population.task.class_names
        return list(classes)[1:]
    if fit.head.outputs > 1:
        raise UnalikeError(
            f"found {fit.head.outputs} targets; a table of coefficients is of one, so fit each by itself"
        )
    encoding = population.encoding
    if encoding is None or encoding.target is None:
        return [""]
    # of a label of several numbers the first is what is predicted
    return [encoding.target] if isinstance(encoding.target, str) else [encoding.target[0]]


def _rows(
    fit: LinearFit, outcome: str, terms: Sequence[Term], combinations: np.ndarray
) -> pd.DataFrame:
    """The rows of one outcome; what samples do not determine, or has not converged, is NaN."""
    import pandas as pd

    from unalike.statistics.wald import wald

    is_determined = fit.are_determined(combinations)
    has_converged = fit.have_converged(combinations)
    estimate = combinations @ fit.vector("coefficients")
    estimate[~(is_determined & has_converged)] = math.nan
    is_reference = [term.is_reference for term in terms]

    def errors(covariance: np.ndarray) -> np.ndarray:
        variances = np.einsum("tp,pq,tq->t", combinations, covariance, combinations)
        variances[is_reference | np.isnan(estimate)] = math.nan
        # rounding may take a variance of 0 below it
        with np.errstate(invalid="ignore"):
            return np.sqrt(variances)

    # tests by client have the degrees of freedom of the clients
    error = errors(fit.covariance)
    robust_error = errors(fit.robust_covariance)
    model_based = wald(estimate, error, fit.freedom)
    robust = wald(estimate, robust_error, fit.number("clients") - 1)
    columns = {
        "outcome": outcome,
        "term": [term.name for term in terms],
        "coefficient": estimate,
        "se": error,
        "z": model_based.z,
        "p": model_based.p,
        "low": model_based.low,
        "high": model_based.high,
        "robust_se": robust_error,
        "robust_p": robust.p,
        "robust_low": robust.low,
        "robust_high": robust.high,
    }
    if fit.ratio:
        with np.errstate(over="ignore"):
            columns |= {
                f"{fit.ratio}_ratio": np.exp(estimate),
                f"{fit.ratio}_low": np.exp(model_based.low),
                f"{fit.ratio}_high": np.exp(model_based.high),
            }
    columns |= {IS_DETERMINED: is_determined, HAS_CONVERGED: has_converged}
    return pd.DataFrame(columns)


def _tell_doubts(fit: LinearFit, table: pd.DataFrame, noun: str) -> None:
    """Warn of coefficients that are left out, and of small clients. Raises `UnalikeError` where nothing has converged."""
    if fit.freedom <= 0:
        raise UnalikeError(
            f"found {fit.number('samples'):.0f} training samples for {fit.rank} coefficients; expected more samples, so that "
            "standard errors are known: leave columns out"
        )
    if not fit.rank:
        raise UnalikeError(
            f"{fit.number('samples'):.0f} training samples determine no coefficient; expected events or several classes, and a "
            "column with several values"
        )
    advice = "more rounds are needed"
    if fit.ratio:
        separated = (
            "a class is separated"
            if fit.head.task.offers(CLASSES)
            else "those without an event are told"
        )
        advice = (
            f"{separated} by these columns, or more rounds are needed: give {fit.part.name}(l2=0.1), which has a finite fit, leave "
            "the columns out, or give more rounds"
        )
    moving = table["term"][table[IS_DETERMINED] & ~table[HAS_CONVERGED]].unique()
    if not table["se"].notna().any():
        raise UnalikeError(f"no coefficient has converged; {advice}")
    if len(moving):
        warn(f"no finite coefficient of {listed(list(moving))}: {advice}")
    undetermined = table["term"][~table[IS_DETERMINED]].unique()
    if len(undetermined):
        warn(
            f"no coefficient of {listed(list(undetermined))}: in the training samples these columns are constant, or sums of "
            f"others; leave one of them out, or give {fit.part.name}(l2=0.1)"
        )
    _tell_small_clients(fit, noun)
    clients = round(fit.number("clients"))
    if fit.part.robust_errors and 1 < clients <= fit.rank:
        warn(
            f"robust standard errors of {fit.rank} coefficients by {clients} {several(noun)} are far too small: use those of the "
            f"model, or fewer columns than {several(noun)}"
        )


def _tell_small_clients(fit: LinearFit, noun: str) -> None:
    """Warn of clients with too few samples for intercepts of their own, or for sums that hide single ones."""
    samples = fit.number("samples") / fit.number("clients")
    is_of_classes = fit.head.task.offers(CLASSES)
    if fit.part.has_own_intercepts and is_of_classes and samples < FEWEST_OF_OWN_INTERCEPT:
        warn(
            f"{samples:.0f} samples per {noun}, each with an intercept of its own: below some {FEWEST_OF_OWN_INTERCEPT} "
            "coefficients of classes are too large; compare them with those of newton"
        )
    small = round(fit.number("small_clients"))
    if small:
        clients = round(fit.number("clients"))
        warn(
            f"{small} of {clients} {several(noun)} have fewer samples than the model has coefficients ({fit.head.count}): in "
            "a federation what they send may tell of single samples unless a secure aggregation adds it up; robust standard errors "
            "rest on few"
        )
