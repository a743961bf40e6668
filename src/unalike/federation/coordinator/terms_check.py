"""Check of a federation's terms before keys and bundles are made."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.views import StageSettings
from unalike.federation.coordinator.network_backend import check_stage
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.roster import Roster, SampleCounts, placeholders, run_config_of
from unalike.federation.secure_aggregation.summands import check_summed
from unalike.methods.plan import Stage
from unalike.metrics.metric_sums import unpooled
from unalike.runtime.setup.run_config import Pair, RunConfig
from unalike.training.client.client_update import initial_client_state, trained_names


def check_terms_run(
    federation: Federation,
    own: Mapping[str, Pair | None],
    start: Path | None = None,
    start_partial: bool = False,
) -> RunConfig:
    """Build the run as its coordinator will, with one sample per split at each site and the coordinator's "test" and "proxy".

    Returns the run config; its model has the initial weights of `start`. Raises `UnalikeError` for terms that cannot be run.
    """
    asked, enrolled = federation.participation, len(federation.sites)
    if asked > enrolled and not federation.open:
        raise UnalikeError(
            f"found --participation {asked} and {enrolled} sites; expected at most {enrolled}, or a share of the sites such as 0.5"
        )
    one = SampleCounts(train=1, test=1, val=int(federation.val > 0))
    population = placeholders(federation, Roster("", {site.name: one for site in federation.sites}))
    given = federation, population, own.get("test"), own.get("proxy")
    run_config = run_config_of(*given, coordinated=True)
    if start is not None:
        at_sites = run_config.settings
        run_config = run_config_of(
            *given, start=start, start_partial=start_partial, coordinated=True
        )
        _check_start_reaches_sites(run_config, at_sites)
    _check_decided(federation, run_config)
    for step in run_config.outline:
        if federation.secure_aggregation:
            check_summed(step, run_config.settings)
        if isinstance(step, Stage):
            check_stage(step, run_config)
            step.method.check_task(run_config.settings.task)
            model = step.model or run_config.model
            for phase in step.method.phases if step.trained else ():
                trained_names(step.method, phase, model)
            least = tree.nbytes(
                tree.only(model.params, step.method.shared_names(model.params, model))
            )
            if least > federation.message_bytes:
                raise UnalikeError(
                    f"what sites share of the model has {least} bytes and a message may have {federation.message_bytes}: raise "
                    "--message-bytes"
                )
    return run_config


def message_limit(run_config: RunConfig) -> int:
    """Maximum bytes of a message: four times all that a site receives, or sends, in the whole plan, and 1 MiB."""
    total = Counter[str]()
    for item in run_config.wire:
        total[item.direction] += item.bytes
    return 4 * max(total.values(), default=0) + 2**20


def _check_start_reaches_sites(run_config: RunConfig, at_sites: StageSettings) -> None:
    """Raise `UnalikeError` if sites would keep initial weights of their own in place of those of the start."""
    for step in run_config.outline:
        if isinstance(step, Stage) and step.model is None:
            here, there = (
                initial_client_state(step.method, s) for s in (run_config.settings, at_sites)
            )
            kept = sorted(
                {
                    name
                    for p, own in here.items()
                    for name, t in own.items()
                    if not t.equal(there[p][name])
                }
            )
            if kept:
                raise UnalikeError(
                    f"with {run_config.method_text} sites keep values of their own for {', '.join(kept[:4])}, which no message "
                    "carries, so that they would not begin from --start; expected a method that sends the whole model, or a start "
                    "that leaves these out (--start-partial)"
                )


def _check_decided(federation: Federation, run_config: RunConfig) -> None:
    """Raise `UnalikeError` if a round or the end of the run is chosen by a metric of all sites that cannot be computed."""
    alone = unpooled(run_config.population.task, run_config.metrics)
    main, stop = run_config.columns.metric.name, federation.stop or ""
    chosen_by = {main} if federation.select == "best" or "patience" in stop else set()
    lacking = [
        name
        for name in alone
        if name in chosen_by or re.search(rf"(?<!min_)(?<!max_)\b{name}\b", stop)
    ]
    if lacking:
        raise UnalikeError(
            f"{lacking[0]} of all sites together cannot be computed from the sums and counts that sites send, so that neither "
            "--select best nor a stop rule can go by it; choose accuracy, macro_f1, log_loss, brier_score, rmse, mae or r2 instead"
        )
