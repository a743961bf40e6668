"""Refusal of private runs that let something out unaccounted, and of budgets of epsilon that cannot be kept."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from unalike._utils.errors import UnalikeError
from unalike.core.views import StageSettings
from unalike.methods.plan import Stage, Step
from unalike.methods.privacy import Privacy
from unalike.runtime.setup.run_options import RunOptions
from unalike.runtime.setup.stopping import TOTALS, names_in
from unalike.training.wire import Item


def check_privacy(
    asked: str,
    steps: Sequence[Step],
    items: Sequence[Item],
    settings: StageSettings,
    options: RunOptions,
) -> None:
    """Raise `UnalikeError` where a private method would leak outside the accounting, and where its budget cannot be kept.

    `asked` is the method as typed, `steps` are those of its plan, `items` what crosses the wire in them.
    """
    stages = [step for step in steps if isinstance(step, Stage)]
    part = next(
        (stage.method.privacy for stage in stages if stage.method.privacy is not None), None
    )
    if part is None:
        return
    settings = replace(settings, work=stages[0].method.local_work(settings.work))
    known = part.accounted(settings.model, options.buffers)
    sent = [
        f"{item.what} has no noise"
        for item in items
        if item.direction == "up" and not known(item.what)
    ]
    if leaks := [
        *_of_plan(steps),
        *part.leaks(stages[0].method, settings),
        *sent,
        *_of_decisions(options),
    ]:
        listed = "; ".join(dict.fromkeys(leaks))
        raise UnalikeError(
            f"{part.name} cannot account {asked}: {listed}. Leave out what is named, or {part.name}"
        )
    z, limit = part.multipliers(settings), min(part.epsilon or math.inf, options.epsilon_limit)
    if settings.secret_noise and part.epsilon is not None:
        raise UnalikeError(
            f"{part.name}: found epsilon={part.epsilon:g} in a federation; expected noise_multiplier, which its sites agree to: "
            f"{_agreed(part, settings)} for {options.rounds} rounds"
        )
    if options.rounds and limit < math.inf and limit < (first := part.spent(settings, z, 1)):
        raise UnalikeError(
            f"the first round costs epsilon {first:.3g} with noise_multiplier={float(z.min()):.3g}, above the budget of {limit:g}; "
            "give more noise"
        )


def _agreed(part: Privacy, settings: StageSettings) -> str:
    """The noise multipliers of a budget: the more batches a site has in a pass, the less noise its Poisson samples need."""
    assert settings.sampling is not None
    found, batch = {}, settings.work.batch_size or 1
    for n in (100, 10, 1):
        sampling = replace(
            settings.sampling, sizes=(n * batch, 2 * n * batch)
        )  # two batches may need more than one
        z = float(part.multipliers(replace(settings, sampling=sampling)).max())
        found[f"{z:.4g}"] = f" where every site has {n} batches or more in a pass" * (n > 1)
    return ", ".join(f"{z}{where}" for z, where in found.items())


def _of_plan(steps: Sequence[Step]) -> Iterator[str]:
    """The things that a plan of several steps, or of several models, lets out."""
    for step in steps:
        if not isinstance(step, Stage):
            yield f"the answers to the query {step.query.name} have no noise"
        elif step.groups is not None or step.pooled or step.shared is not None:
            yield "its clients are divided into groups, choose a model, or share samples, by what their data say"
    if len(steps) > 1:
        yield f"only one step is accounted, and it has {', '.join(step.name for step in steps)}"


def _of_decisions(options: RunOptions) -> Iterator[str]:
    """The decisions about the run that are made by samples of the clients."""
    if options.select == "best":
        yield "select='best' chooses a round by the clients' validation samples"
    read = sorted(names_in(options.stop) - (TOTALS.keys() - {"train_loss"}))
    if read and options.protocols != ("server",):
        yield f"the stop rule reads {', '.join(read)} of the clients' samples"
