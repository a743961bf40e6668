"""A bound on what one site's loss does to the loss of all, by which rounds are chosen and runs end.

Counts of a site are bounded by its number of samples; losses are not. A site's mean loss counts as the largest of the other sites
where it is not finite, or where it is all of these: more than half of the sum over all, more than ten times the largest of the
others, and more than that of a model that knows nothing (log C of C classes, the variance of the others' outcomes). So an honest
site with a few samples that the model gets wrong counts as it is. The same holds for absolute errors and for means without an upper
bound, such as the log loss. What a site leaves out counts as the largest of the others, too: also a mean with an upper bound, such
as the Brier score, and sums of labels, in the proportion of the others. So no site takes a metric of all away. All other sums stay
as they are. With fewer than two other sites nothing says who is wrong, and nothing is bounded.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf, isfinite, log, sqrt

from unalike.metrics.metric_sums import MetricSums
from unalike.metrics.metrics import RunMetrics
from unalike.metrics.named_metrics import Metric, metric_named

OUTLYING_MULTIPLE = 10.0
"""The multiple of the largest mean loss of the other sites above which a site's loss is an outlier."""
LEAST_OTHERS = 2
"""The least number of other sites with a finite loss by which a site's is judged."""

Means = Mapping[int, float | None]
"""Client -> a mean over its samples; None where it is not finite."""
Level = Callable[[int], float]
"""The mean of a model that knows nothing, by the sums of all clients but this one."""


def bounded_losses(
    sums: Mapping[int, MetricSums], chosen: RunMetrics
) -> tuple[dict[int, MetricSums], dict[int, str]]:
    """The sums of clients as they count for all together, and client -> what is said of one whose loss counts otherwise."""
    bounded = dict(sums)
    reasons: dict[int, str] = {}
    sizes = {client: one.n for client, one in sums.items() if one.n}

    def loss_level(client: int) -> float:
        total = MetricSums()
        for other in sizes.keys() - {client}:
            total = total.added(sums[other], chosen)
        return _loss_of_no_model(total)

    def error_level(client: int) -> float:
        return sqrt(loss_level(client))

    def no_level(client: int) -> float:
        return inf

    losses = {}
    for client, n in sizes.items():
        loss = sums[client].loss
        losses[client] = None if loss is None else loss / n
    for client, mean in _outliers(losses, sizes, loss_level).items():
        bounded[client] = replace(bounded[client], loss=mean * sizes[client])
        reasons[client] = _reason("loss", losses[client], mean)

    errors: dict[int, float | None] = {}
    for client, n in sizes.items():
        moments = sums[client].moments
        errors[client] = moments[0] / n if moments else None
    for client, mean in _outliers(errors, sizes, error_level).items():
        n = sizes[client]
        moments = (mean * n, *_label_sums(client, sums))
        bounded[client] = replace(bounded[client], moments=moments)
        reasons.setdefault(client, _reason("absolute error", errors[client], mean))

    for name, metric in _means(sums, chosen).items():
        # where a mean has an upper bound, a site's share of the samples bounds what it does
        level = no_level if isfinite(metric.high) else loss_level
        values = {client: sums[client].computed_by_client.get(name) for client in sizes}
        for client, mean in _outliers(values, sizes, level).items():
            means = {**bounded[client].computed_by_client, name: mean}
            bounded[client] = replace(bounded[client], computed_by_client=means)
            reasons.setdefault(client, _reason(name, values[client], mean))
    return bounded, reasons


def _means(sums: Mapping[int, MetricSums], chosen: RunMetrics) -> dict[str, Metric]:
    """The metrics that are means over samples, by name: those that were chosen, and those of the task that clients compute."""
    metrics = dict(chosen)
    for one in sums.values():
        for name in one.computed_by_client:
            if name not in metrics:
                metrics[name] = metric_named(name)
    return {name: metric for name, metric in metrics.items() if metric.is_mean}


def _outliers(means: Means, sizes: Mapping[int, int], level: Level) -> dict[int, float]:
    """Client -> the mean that counts in place of its own, for those that are outliers."""
    finite = {client: mean for client, mean in means.items() if mean is not None}
    outliers = {}

    # Only the largest can be several times as large as all others.
    if len(finite) > LEAST_OTHERS:
        second, largest = sorted(finite, key=finite.__getitem__)[-2:]
        total = sum(sizes[client] * mean for client, mean in finite.items())
        is_most = sizes[largest] * finite[largest] > total / 2
        limit = max(OUTLYING_MULTIPLE * finite[second], level(largest))
        if is_most and finite[largest] > limit:
            outliers[largest] = finite[second]

    if len(finite) >= LEAST_OTHERS:
        worst = max((finite | outliers).values())
        for client in means.keys() - finite.keys():
            outliers[client] = worst
    return outliers


def _label_sums(client: int, sums: Mapping[int, MetricSums]) -> tuple[float, ...]:
    """The sums of a client's labels and of their squares; of one without them those of the others, in the proportion of samples."""
    if sums[client].moments:
        return sums[client].moments[1:]
    known = [one for one in sums.values() if one.n and one.moments]
    share = sums[client].n / sum(one.n for one in known)
    labels = sum(one.moments[1] for one in known)
    squares = sum(one.moments[2] for one in known)
    return share * labels, share * squares


def _loss_of_no_model(total: MetricSums) -> float:
    """The mean loss of a model that knows nothing of the inputs, on these samples; 0 where sums do not tell it."""
    if total.moments:
        _, labels, squares = total.moments
        return max(0.0, (squares - labels**2 / total.n) / total.n)
    return log(len(total.true)) if total.true else 0.0


def _reason(what: str, mean: float | None, counted: float) -> str:
    found = "is not finite" if mean is None else f"is {mean:.3g}, more than half of that of all"
    return f"its {what} {found}; it counts as {counted:.3g}, the largest of the other sites"
