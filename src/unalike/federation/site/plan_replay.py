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
from unalike.methods.plan import Answers, PlanInputs, Stage, StageResults, steps_of
from unalike.methods.plan import Step as PlanStep
from unalike.runtime.run_config import RunConfig
from unalike.training.wire import at_random, untrained


def agreed(run_config: RunConfig) -> set[str]:
    """The methods and questions of the plan, as text."""
    stages = [s for s in run_config.outline if isinstance(s, Stage)]
    questions = [s.query for s in run_config.outline if not isinstance(s, Stage)]
    questions += [s.chooses for s in stages if s.chooses is not None]
    return {repr(s.method) for s in stages} | {repr(q) for q in questions}


def model_of(run_config: RunConfig, asked: StepRequest) -> Model:
    """The model of the step that the plan is at."""
    if not asked.derived:
        return run_config.model
    plan_inputs = replace(run_config.plan_inputs, rounds=asked.rounds, samples=asked.samples)
    steps = steps_of(run_config.plan, plan_inputs)
    try:
        step = next(steps)
        for groups in asked.outcomes:
            step = steps.send(_invented(step, plan_inputs, groups))
    except StopIteration:
        raise UnalikeError(f"{run_config.plan!r} has no step {len(asked.outcomes)} here") from None
    return step.model or run_config.model


def _invented(step: PlanStep, plan_inputs: PlanInputs, groups: Sequence[str]) -> StageResults | Answers:
    return untrained(step, plan_inputs, groups) if isinstance(step, Stage) else at_random(step, plan_inputs)
