"""The score of all sites that decides: of all samples together as far as sums give it, or the mean of the sites' own scores."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from unalike.federation.protocol.federation_file import Federation
from unalike.metrics.metric_sums import unpooled
from unalike.metrics.metrics import Metrics
from unalike.runtime.setup.run_config import RunConfig

CLIENTS = "clients"
"""The value of `across` by which the mean of the sites' own scores decides."""


def with_deciding_metrics(run_config: RunConfig, federation: Federation) -> RunConfig:
    """The same with metrics that are known of all sites in front.

    Across clients those that were chosen are means of the sites' own. Else metrics that cannot be pooled from what sites send
    do not lead, so that none of them decides.
    """
    unknown = unknown_of_all(run_config, federation)
    metrics = {}
    for name, metric in run_config.metrics.items():
        if federation.across == CLIENTS:
            metric = metric.mean_of("sites")
        metrics[name] = replace(metric, leads=metric.leads and name not in unknown)
    return replace(run_config, metrics=metrics)


def unknown_of_all(run_config: RunConfig, federation: Federation) -> tuple[str, ...]:
    """The metrics of which no value of all sites is known."""
    names = unpooled(run_config.population.task, run_config.metrics)
    if federation.across != CLIENTS:
        return names
    return tuple(name for name in names if name not in run_config.metrics)


def unbounded_of_sites(run_config: RunConfig, federation: Federation) -> tuple[str, ...]:
    """The metrics across clients in whose mean over the sites one site's value may outweigh all others."""
    if federation.across != CLIENTS:
        return ()
    return tuple(name for name, metric in run_config.metrics.items() if not metric.bounded)


def means_of_sites(by_site: Sequence[Metrics], names: Sequence[str]) -> Metrics:
    """The unweighted mean of these metrics over the sites that have a value; NaN where none has."""
    means = pd.DataFrame(by_site, columns=list(names)).mean()
    return {str(name): float(mean) for name, mean in means.items()}
