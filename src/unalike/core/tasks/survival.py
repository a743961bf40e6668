"""Survival: labels that are times to an event, some of which ended before it (censored)."""

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core.tasks.registry import task
from unalike.core.tasks.task import EVENT_TIMES, RELATIVE_OUTPUTS, Formula, Task, in_columns
from unalike.core.types import Batch

MOST_TIED = 0.05
"""With a larger share of ties (`tied_share`) Breslow's approximation makes log hazard ratios too small by about as much."""


class _EventTimes(Task):
    """A task whose labels are [time, event] [N, 2]: event 1 ends the time with an event, 0 without (censored)."""

    loss_may_be_negative: ClassVar[bool] = False
    label_type: ClassVar[torch.dtype] = torch.float32
    label_dimensions: ClassVar[int] = 1
    label_shape: ClassVar[tuple[int, ...] | None] = (2,)
    labels_in_words: ClassVar[str] = "times to an event"
    traits: ClassVar[frozenset[str]] = frozenset({EVENT_TIMES})

    def as_labels(self, y: Tensor) -> Tensor:
        if y.dim() != 2 or y.shape[1] != 2:
            raise ValueError("expected [N, 2], the time and 1 for an event or 0 for none,")
        return y

    def label_fault(self, y: Tensor, classes: int | None) -> str:
        time, event = y.unbind(1)
        if (time < 0).any():
            return f"found the time {time.min().item():g}, expected times of 0 or more"
        if ((event != 0) & (event != 1)).any():
            return "found events other than 0 and 1; expected 1 where the time ends with the event, else 0"
        return ""

    def outcome(self, y: Tensor) -> Tensor:
        return y[:, 1]

    def kinds(self, y: Tensor) -> Tensor:
        return y[:, 1:]

    def label_doubt(self, y: Tensor) -> str:
        return "" if y[:, 1].any() else "no sample has the event, so that nothing can be learned"

    def constant_prediction(
        self, train: Tensor, test: Tensor, classes: Sequence[str] | None
    ) -> str:
        events = int(test[:, 1].sum())
        return f"always predicting the same risk has a C-index of 0.5 ({events} of {len(test)} test samples have the event)"


@task
class Survival(_EventTimes):
    """Cox's partial likelihood with Breslow's ties (Cox 1972; Breslow 1974); the output z is a log hazard ratio.

        loss_b = event_b (log sum of exp z_j over the samples j with time_j >= time_b, minus z_b)

    The samples j, the risk set, are those of the batch in training, and those of the client in scores: no client sees another's
    samples, which is the Cox model stratified by client. The loss is the mean of loss_b over all samples, with an event or not, as
    in FLamby's Fed-TCGA-BRCA. Batches of one sample, or without an event, have the loss 0: take large ones. Rows of padding are
    in no risk set. A federation has no baseline hazard, so that probabilities at a time, and a Brier score, are those of
    `discrete_survival`.
    """

    name: ClassVar[str] = "survival"
    traits: ClassVar[frozenset[str]] = frozenset({EVENT_TIMES, RELATIVE_OUTPUTS})
    coefficient_ratio: ClassVar[str] = "hazard"
    compares_samples: ClassVar[bool] = True
    metrics: ClassVar[tuple[str, ...]] = ("loss", "c_index")

    def outputs(self, classes: int | None, label_shape: Sequence[int] = ()) -> int | None:
        return None

    def label_doubt(self, y: Tensor) -> str:
        time, event = y.numpy(force=True).T
        share = tied_share(time, event)
        if share <= MOST_TIED:
            return super().label_doubt(y)
        times = len(np.unique(time[event > 0]))
        return (
            f"{event.sum():.0f} events have {times} different times, and Breslow's approximation of equal times makes log hazard "
            f"ratios some {100 * share:.0f} % too small: give finer times, or fit a hazard for each interval, with --task "
            "'discrete_survival(edges=(30, 90))'"
        )

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """The contribution of each sample [B], with the samples of y as risk set."""
        z = logits.reshape(len(y))
        time, event = y.unbind(1)

        # Latest first, the risk set of a sample begins with the latest and ends with the last of those with its own time.
        latest_first = time.argsort(descending=True)
        ascending = -time[latest_first]
        last_of_time = torch.searchsorted(ascending, ascending, right=True) - 1
        log_sums = torch.logcumsumexp(z[latest_first], dim=0)
        log_risk = torch.zeros_like(z).scatter(0, latest_first, log_sums[last_of_time])
        return event * (log_risk - z)

    def batch_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        if batch.weight is None:
            return self.loss(logits, batch.y)
        # padding ends before all others, without an event: it is in no other sample's risk set
        is_padding = batch.weight == 0
        time, event = batch.y.unbind(1)
        time = time.masked_fill(is_padding, -torch.inf)
        event = event.masked_fill(is_padding, 0)
        return batch.mean(self.losses(logits, torch.stack([time, event], dim=1)))

    def predict(self, logits: Tensor) -> Tensor:
        return logits.flatten()


@task
class DiscreteSurvival(_EventTimes):
    """Hazards of K intervals, the probability sigmoid(z_k) of the event in one that was reached (Gensheimer and Narasimhan 2019).

        loss_b = sum over the intervals k that b survived of -log(1 - sigmoid z_k), and of an event -log sigmoid z_k of its own

    `edges` are the ends of the intervals [0, e_1), [e_1, e_2), ..., in the unit of the times; an event after the last one counts
    as survived, and a time that is censored within an interval does not count there. The loss is a mean over samples, so that no
    client has to know who else is at risk. The prediction is the probability of an event before the last edge.
    """

    name: ClassVar[str] = "discrete_survival"
    coefficient_ratio: ClassVar[str] = "odds"
    metrics: ClassVar[tuple[str, ...]] = ("loss", "c_index", "integrated_brier")

    edges: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0)

    def __post_init__(self) -> None:
        edges = (0.0, *map(float, self.edges))
        if len(edges) < 2 or not all(low < high < np.inf for low, high in pairwise(edges)):
            raise UnalikeError(
                f"{self.name}: found edges={self.edges!r}, expected numbers above 0 in ascending order, the ends of the intervals"
            )
        object.__setattr__(self, "edges", edges[1:])

    def outputs(self, classes: int | None, label_shape: Sequence[int] = ()) -> int | None:
        return len(self.edges) if len(self.edges) > 1 else None

    def label_doubt(self, y: Tensor) -> str:
        time, event = y.unbind(1)
        times = time[event > 0]
        interval = torch.bucketize(times, torch.tensor(self.edges), right=True)
        if not len(times) or len(self.edges) == 1 or len(interval.unique()) > 1:
            return super().label_doubt(y)
        return (
            f"all events lie between {times.min():g} and {times.max():g}, within one interval of the edges "
            f"{', '.join(f'{edge:g}' for edge in self.edges)}; expected edges in the unit of the times, such as their quantiles"
        )

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        z = in_columns(logits)
        time, event = y.unbind(1)
        survived = torch.stack([time >= edge for edge in self.edges], dim=1)
        reached = torch.cat([torch.ones_like(survived[:, :1]), survived[:, :-1]], dim=1)
        has_event = reached & ~survived & (event.unsqueeze(1) > 0)
        return (survived * F.softplus(z) + has_event * F.softplus(-z)).sum(1)

    def survival(self, logits: Tensor) -> Tensor:
        """The probability to have no event before each edge, [B, K]."""
        z = in_columns(logits)
        return (-F.softplus(z)).cumsum(1).exp()

    def predict(self, logits: Tensor) -> Tensor:
        return 1 - self.survival(logits)[:, -1]

    def scored_logits(self, logits: Tensor, wanted: bool) -> Tensor:
        return in_columns(logits)

    def formula(self, metric: str) -> Formula | None:
        return self._integrated_brier if metric == "integrated_brier" else None

    def _integrated_brier(
        self, labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray
    ) -> float:
        """The Brier scores at the edges, weighted by the widths of the intervals that they end.

        Samples that were censored before an edge do not count there; the others stand for them, by the inverse probability of not
        being censored (Graf et al. 1999), which is estimated from the same samples.
        """
        time, event = labels.astype(np.float64).T
        survival = self.survival(torch.from_numpy(logits)).numpy().astype(np.float64)
        known_at_event = uncensored_before(time, time, event)
        known_at_edge = uncensored_before(np.array(self.edges), time, event)
        scores = []
        for k, edge in enumerate(self.edges):
            errors = np.zeros(len(time))
            had_event = (time < edge) & (event > 0)
            errors[had_event] = survival[had_event, k] ** 2 / known_at_event[had_event]
            survived = time >= edge
            errors[survived] = (1 - survival[survived, k]) ** 2 / known_at_edge[k]
            scores.append(errors.mean())
        return float(np.average(scores, weights=np.diff((0.0, *self.edges))))


def tied_share(time: np.ndarray, event: np.ndarray) -> float:
    """The mean over events of (d - 1) / (2 n): half the share of other events of their time, d, among the n samples at risk then.

    That share of a risk set counts in Breslow's partial likelihood although its event may have come before. 0 without events.
    """
    moments, events = np.unique(time[event > 0], return_counts=True)
    if not len(moments):
        return 0.0
    at_risk = len(time) - np.searchsorted(np.sort(time), moments, side="left")
    return float(np.average((events - 1) / (2 * at_risk), weights=events))


def uncensored_before(moments: np.ndarray, time: np.ndarray, event: np.ndarray) -> np.ndarray:
    """The probability not to be censored before each of some moments, [M], by Kaplan and Meier.

    It is estimated from times [n] and events [n]; of equal times, events come before those that are censored.
    """
    is_censored = event == 0
    ends, censored = np.unique(time[is_censored], return_counts=True)
    ended = np.searchsorted(np.sort(time), ends, side="left")
    events_then = (time[~is_censored][None, :] == ends[:, None]).sum(1)
    at_risk = len(time) - ended - events_then
    shares = np.concatenate([[1.0], np.cumprod(1 - censored / at_risk)])
    return shares[np.searchsorted(ends, moments, side="left")]
