"""Refusal of private runs that let something out unaccounted, and of budgets of epsilon that cannot be kept."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from unalike._utils.errors import UnalikeError
from unalike.core.views import StageSettings
from unalike.methods.plan import Stage, Step
from unalike.methods.privacy import Privacy
from unalike.runtime.setup.privacy_budget import PrivacyBudget, epsilon_limit
from unalike.runtime.setup.run_options import RunOptions
from unalike.runtime.setup.stopping import TOTALS, names_in
from unalike.training.wire import Item


def check_privacy(
    method_text: str,
    steps: Sequence[Step],
    items: Sequence[Item],
    settings: StageSettings,
    options: RunOptions,
) -> None:
    """Raise `UnalikeError` where a private method would leak outside the accounting, and where its budget cannot be kept.

    `method_text` is the method as typed, `steps` are those of its plan, `items` what crosses the wire in them.
    """
    stages = [step for step in steps if isinstance(step, Stage)]
    parts = [stage.method.privacy for stage in stages]
    part = next((part for part in parts if part is not None), None)
    if part is None:
        return
    settings = replace(settings, work=stages[0].method.local_work(settings.work))

    # Epsilon bounds what is accounted. Anything else that depends on the clients' samples would make it untrue.
    is_accounted = part.accounted(settings.model, options.buffers)
    uploads = [item.what for item in items if item.direction == "up"]
    leaks = [
        *_leaks_of_plan(steps),
        *part.leaks(stages[0].method, settings),
        *[f"{upload} has no noise" for upload in uploads if not is_accounted(upload)],
        *_leaks_of_late_updates(stages, options),
        *_leaks_of_decisions(options),
        *_leaks_of_selection(stages),
    ]
    if leaks:
        listed = "; ".join(dict.fromkeys(leaks))
        raise UnalikeError(
            f"{part.name} cannot account {method_text}: {listed}. Leave out what is named, or {part.name}"
        )

    # Sites agree to the noise before they are asked for numbers of samples, from which the noise of a budget follows.
    noise_multipliers = part.multipliers(settings)
    if settings.secret_noise and part.epsilon is not None:
        raise UnalikeError(
            f"{part.name}: found epsilon={part.epsilon:g} in a federation; expected noise_multiplier, which its sites agree to: "
            f"{_multipliers_of_budget(part, settings)} for {options.rounds} rounds"
        )

    # A budget that forbids the first round is a mistake, while one that ends the run later is a rule.
    limit = PrivacyBudget(part, settings, epsilon_limit(options.budget)).limit
    if not options.rounds or limit == math.inf:
        return
    first_round = part.spent(settings, noise_multipliers, 1)
    if limit < first_round:
        smallest = float(noise_multipliers.min())
        raise UnalikeError(
            f"the first round costs epsilon {first_round:.3g} with noise_multiplier={smallest:.3g}, above the budget of "
            f"{limit:g}; give more noise"
        )


def _multipliers_of_budget(part: Privacy, settings: StageSettings) -> str:
    """The noise multipliers of a budget: the more batches a site has in a pass, the less noise its Poisson samples need."""
    assert settings.sampling is not None
    batch_size = settings.work.batch_size or 1
    conditions = {}
    for batches in (100, 10, 1):
        # twice as many, too: two batches may need more noise than one
        sizes = (batches * batch_size, 2 * batches * batch_size)
        sampling = replace(settings.sampling, sizes=sizes)
        largest = float(part.multipliers(replace(settings, sampling=sampling)).max())
        where = f" where every site has {batches} batches or more in a pass" if batches > 1 else ""
        conditions[f"{largest:.4g}"] = where
    return ", ".join(f"{multiplier}{where}" for multiplier, where in conditions.items())


def _leaks_of_plan(steps: Sequence[Step]) -> Iterator[str]:
    """The things that a plan of several steps, or of several models, lets out."""
    for step in steps:
        if not isinstance(step, Stage):
            yield f"the answers to the query {step.query.name} have no noise"
        elif step.groups is not None or step.pooled or step.shared is not None:
            yield "its clients are divided into groups, choose a model, or share samples, by what their data say"
    if len(steps) > 1:
        yield f"only one step is accounted, and it has {', '.join(step.name for step in steps)}"


def _leaks_of_late_updates(stages: Sequence[Stage], options: RunOptions) -> Iterator[str]:
    """The decision by arrival whose updates count in a round."""
    awaited = min(stage.method.updates_awaited for stage in stages)
    if options.device_model is not None and awaited < math.inf:
        yield "the updates that arrive first count, and the accounting knows of a random draw alone"


def _leaks_of_selection(stages: Sequence[Stage]) -> Iterator[str]:
    """The samplers whose cohorts tell what the accounting does not know of."""
    for stage in stages:
        sampler = stage.method.sampler
        if sampler is None or not sampler.decides_by:
            continue
        if sampler.reads_losses:
            yield f"{sampler.name} asks clients by {sampler.decides_by}, which have no noise"
        elif stage.method.hides_participants:
            yield (
                f"{sampler.name} asks clients by {sampler.decides_by}, and the accounting knows of a random draw alone "
                "(uniform_cohort, poisson_cohort)"
            )


def _leaks_of_decisions(options: RunOptions) -> Iterator[str]:
    """The decisions about the run that are made by samples of the clients."""
    if options.device_model is not None and options.device_model.decides_who_counts:
        yield f"devices={options.devices!r} decide whose updates count, and the accounting knows of a random draw alone"
    if options.select == "best":
        yield "select='best' chooses a round by the clients' validation samples"
    read = sorted(names_in(options.stop) - (TOTALS.keys() - {"train_loss"}))
    if read and options.protocols != ("server",):
        yield f"the stop rule reads {', '.join(read)} of the clients' samples"
