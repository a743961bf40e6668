"""A site's own reading of the plan: which methods and questions it agreed to, and the models that later stages make.

No model and no code travels. Where a stage has a model of its own, a site makes one of the same architecture by running the plan
that it installed, with nobody trained and invented answers; the values are in the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unalike._utils.errors import UnalikeError
from unalike.core.model import Model
from unalike.federation.protocol.messages import StepRequest
from unalike.methods.plan import Answers, PlanInputs, Stage, StageResults
from unalike.methods.plan import Step as PlanStep
from unalike.runtime.run_config import RunConfig
from unalike.training.wire import at_random, untrained


def agreed(job: RunConfig) -> set[str]:
    """The methods and questions of the plan, as text."""
    stages = [s for s in job.outline if isinstance(s, Stage)]
    questions = [s.question for s in job.outline if not isinstance(s, Stage)]
    questions += [s.chooses for s in stages if s.chooses is not None]
    return {repr(s.method) for s in stages} | {repr(q) for q in questions}


def model_of(job: RunConfig, asked: StepRequest) -> Model:
    """The model of the step that the plan is at."""
    if not asked.derived:
        return job.model
    scene = replace(job.scene, rounds=asked.rounds, samples=asked.samples)
    steps = job.plan.stages(scene)
    try:
        step = next(steps)
        for groups in asked.outcomes:
            step = steps.send(_invented(step, scene, groups))
    except StopIteration:
        raise UnalikeError(f"{job.plan!r} has no step {len(asked.outcomes)} here") from None
    return step.model or job.model


def _invented(step: PlanStep, scene: PlanInputs, groups: Sequence[str]) -> StageResults | Answers:
    return untrained(step, scene, groups) if isinstance(step, Stage) else at_random(step, scene)
