"""A site's own run of the plan: the methods and queries that it agreed to, and the models that later stages build.

Neither model definitions nor code are sent. If a stage has a model of its own, the site builds one of the same architecture: it
runs its installed plan without training and with random answers. The values come with the request.
"""

from __future__ import annotations

from dataclasses import replace

from unalike._utils.errors import UnalikeError
from unalike.core.model import Model
from unalike.federation.protocol.messages import StepRequest
from unalike.methods.plan import Stage, steps_of
from unalike.runtime.run_config import RunConfig
from unalike.training.wire import at_random, untrained


def agreed_specs(run_config: RunConfig) -> set[str]:
    """Specs of the methods and queries in the plan."""
    stages = [s for s in run_config.outline if isinstance(s, Stage)]
    queries = [s.query for s in run_config.outline if not isinstance(s, Stage)]
    queries += [s.chooses for s in stages if s.chooses is not None]
    return {repr(s.method) for s in stages} | {repr(q) for q in queries}


def model_of_step(run_config: RunConfig, asked: StepRequest) -> Model:
    """The model of the plan's current step, up to its values. Raises `UnalikeError` if the plan has no such step."""
    if not asked.derived:
        return run_config.model
    plan_inputs = replace(run_config.plan_inputs, rounds=asked.rounds, samples=asked.samples)
    steps = steps_of(run_config.plan, plan_inputs)
    try:
        step = next(steps)
        for groups in asked.outcomes:
            step = steps.send(
                untrained(step, plan_inputs, groups) if isinstance(step, Stage) else at_random(step, plan_inputs)
            )
    except StopIteration:
        raise UnalikeError(f"{run_config.plan!r} has no step {len(asked.outcomes)} here") from None
    return step.model or run_config.model
