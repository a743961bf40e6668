"""Refusal of methods that make no sense where updates count in a later round than they were asked for."""

from collections.abc import Iterator

from unalike._utils.errors import UnalikeError
from unalike.methods.plan import Stage
from unalike.methods.roles import Upload


def refuse_late_updates(stage: Stage, keeps_updates: bool) -> None:
    """Raise `UnalikeError` where a stage cannot take late updates; `keeps_updates` as in `ModelGroup`."""
    reasons = [*_reasons(stage, keeps_updates)]
    if not reasons:
        return
    mend = "Let the server await all updates"
    # a round that drops late ones is no random draw either
    if not any(part.releases_once for part in stage.method.parts):
        mend += ", or, of simulated devices, drop late ones: devices='first(updates=8, drop=True)'"
    raise UnalikeError(
        f"late updates count in this run, and {stage.method!r} cannot use them: {'; '.join(reasons)}. {mend}"
    )


def _reasons(stage: Stage, keeps_updates: bool) -> Iterator[str]:
    """The reasons against late updates, by the hooks of the method."""
    if stage.groups is not None:
        yield "clients are divided into groups, and may have left theirs when their update comes"
    if keeps_updates:
        yield (
            "protocol='local' and record= look at each client's model after training, which began from another than the round's"
        )
    if stage.method.mixes_models and not stage.method.needs_sums_only:
        yield "models are mixed in as they arrive, while one of its parts looks at more than their sum"
    sampler = stage.method.sampler
    if sampler is not None and sampler.sets_work:
        yield f"{sampler.name} says how many steps a client makes for the round that asks it"
    for part in stage.method.parts:
        if part.releases_once:
            yield f"the accounting of {part.name} knows of a random draw alone, not of updates that arrive first"
        if isinstance(part, Upload):
            yield f"{part.name} decodes an update by the round that it comes in"
        elif part.needs == "updates":
            yield f"{part.name} compares single updates, which would belong to different models"
