"""Check of a federation's terms before keys and bundles are made."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.views import StageSettings
from unalike.federation.coordinator.deciding_score import unbounded_of_sites, unknown_of_all
from unalike.federation.coordinator.network_backend import check_stage
from unalike.federation.coordinator.sites_under_way import check_late_updates
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.roster import Roster, SampleCounts, placeholders, run_config_of
from unalike.federation.secure_aggregation.summands import (
    check_one_weighing,
    check_summed,
    check_threshold,
)
from unalike.methods.plan import Stage, method_of, plan
from unalike.runtime.setup.run_config import Pair, RunConfig
from unalike.runtime.setup.stopping import TOTALS, names_in
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
    participation = federation.participation
    enrolled = len(federation.sites)
    if participation > enrolled and not federation.open:
        raise UnalikeError(
            f"found --participation {participation} and {enrolled} sites; expected at most {enrolled}, or a share of the sites "
            "such as 0.5"
        )

    # The sites' samples are not known yet: with one of each kind the run has the shapes that it will have.
    one_each = SampleCounts(train=1, test=1, val=int(federation.val > 0))
    roster = Roster("", {site.name: one_each for site in federation.sites})
    population = placeholders(federation, roster)
    test, proxy = own.get("test"), own.get("proxy")
    run_config = run_config_of(federation, population, test, proxy, coordinated=True)
    if start is not None:
        at_sites = run_config.settings
        run_config = run_config_of(
            federation,
            population,
            test,
            proxy,
            start=start,
            start_partial=start_partial,
            coordinated=True,
        )
        _check_start_reaches_sites(run_config, at_sites)
    _check_decided(federation, run_config)
    if federation.secure_aggregation:
        check_one_weighing(federation)
    for step in run_config.outline:
        if federation.secure_aggregation:
            check_summed(step, run_config.settings)
            check_threshold(step, federation, run_config.settings)
        if isinstance(step, Stage):
            check_stage(step, run_config)
            check_late_updates(step, run_config, federation)
            _check_scores_told(step, run_config, federation)
            _check_trained(step, run_config)
            _check_message_size(step, run_config, federation.message_bytes)
    return run_config


def _check_trained(stage: Stage, run_config: RunConfig) -> None:
    """Raise `UnalikeError` for a stage whose method does not suit the task, or names parameters that the model lacks."""
    stage.method.check_task(run_config.settings.task)
    if not stage.trained:
        return
    model = stage.model or run_config.model
    for phase in stage.method.phases:
        trained_names(stage.method, phase, model)


def _check_scores_told(stage: Stage, run_config: RunConfig, federation: Federation) -> None:
    """Raise `UnalikeError` if a round or the end of the run is chosen by scores that stay at the sites."""
    scores_in_rule = names_in(federation.stop) - TOTALS.keys()
    if not federation.secure_aggregation or not (scores_in_rule or federation.select == "best"):
        return
    model = stage.model or run_config.model
    why = stage.why_no_single_model(model, federation.buffers, groups=1)
    if why:
        raise UnalikeError(
            f"{stage.method!r} {why}, and with secure aggregation scores of such models stay at the sites, so that neither "
            f"--select best nor a stop rule can go by them; choose --select last and a rule about {', '.join(TOTALS)}"
        )


def _check_message_size(stage: Stage, run_config: RunConfig, limit: int) -> None:
    """Raise `UnalikeError` for a stage whose shared parameters have more bytes than a message may have."""
    models = [stage.model or run_config.model]
    if stage.models is not None:
        models = [*stage.models.values()]
    sizes = []
    for model in models:
        shared = tree.only(model.params, stage.method.shared_names(model.params, model))
        sizes.append(tree.nbytes(shared))
    least = max(sizes)
    if least > limit:
        raise UnalikeError(
            f"what sites share of the model has {least} bytes and a message may have {limit}: raise --message-bytes"
        )


def message_limit(run_config: RunConfig) -> int:
    """Maximum bytes of a message: four times all that a site receives, or sends, in the whole plan, and 1 MiB."""
    total = Counter[str]()
    for item in run_config.wire:
        total[item.direction] += item.bytes
    return 4 * max(total.values(), default=0) + 2**20


def usual_noise_shares(federation: Federation) -> int:
    """The fewest updates of a round where sites share out the noise of a method among them, else 1."""
    for method in (federation.method, *federation.also):
        if method_of(plan(method)).shares_noise:
            return federation.fewest_updates
    return 1


def _check_start_reaches_sites(run_config: RunConfig, at_sites: StageSettings) -> None:
    """Raise `UnalikeError` if sites would keep initial weights of their own in place of those of the start."""
    for step in run_config.outline:
        if not isinstance(step, Stage) or step.model is not None:
            continue
        here = initial_client_state(step.method, run_config.settings)
        there = initial_client_state(step.method, at_sites)
        names = set()
        for part, part_state in here.items():
            for name, value in part_state.items():
                if not value.equal(there[part][name]):
                    names.add(name)
        if names:
            raise UnalikeError(
                f"with {run_config.method_text} sites keep values of their own for {', '.join(sorted(names)[:4])}, which no "
                "message carries, so that they would not begin from --start; expected a method that sends the whole model, or a "
                "start that leaves these out (--start-partial)"
            )


def _check_decided(federation: Federation, run_config: RunConfig) -> None:
    """Raise `UnalikeError` if a round or the end of the run is chosen by a metric of all sites that cannot do it.

    It cannot be computed, or it is a mean of the sites' own values in which one site's may be any number.
    """
    main_metric = run_config.columns.metric.name
    stop = federation.stop or ""
    decides_by_main = federation.select == "best" or "patience" in stop

    def decides(name: str) -> bool:
        # a rule may ask for the smallest or largest metric of the clients, which needs no pooling
        is_in_rule = bool(re.search(rf"(?<!min_)(?<!max_)\b{name}\b", stop))
        return is_in_rule or (decides_by_main and name == main_metric)

    for name in unknown_of_all(run_config, federation):
        if decides(name):
            raise UnalikeError(
                f"{name} of all sites together cannot be computed from the sums and counts that sites send, so that neither "
                "--select best nor a stop rule can go by it; choose accuracy, macro_f1, log_loss, brier_score, rmse, mae or r2 "
                "instead"
            )
    for name in unbounded_of_sites(run_config, federation):
        if decides(name):
            raise UnalikeError(
                f"{name} has no bounds, so that one site's own {name} would decide the mean over the sites alone; expected a "
                "metric with bounds, such as roc_auc or accuracy, or --across pooled"
            )
