"""A site's own run of the plan: the methods and queries that it agreed to, and the models that later stages build.

Neither model definitions nor code are sent. If a stage has a model of its own, the site builds one of the same architecture: it
runs its installed plan without training and with random answers. The values come with the request.
"""

from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core.inputs import map_inputs
from unalike.core.model import Model
from unalike.core.types import Batch
from unalike.federation.protocol.messages import Declined, StepRequest
from unalike.methods.plan import QueryStep, Stage, Step, steps_of
from unalike.runtime.setup.run_config import RunConfig
from unalike.training.wire import at_random, plan_outline, untrained

S = TypeVar("S", Stage, QueryStep)


def planned_step(
    run_config: RunConfig, place: int, spec: str, kind: type[S], asked: StepRequest
) -> S:
    """The step at this place of the plan, counted from 1, with the method or query `spec`. Raises `Declined` for any other.

    A plan that divides clients makes more steps than its outline, at most one more a round; there the place may be another one.
    Public samples in a step are as many as the plan takes, with other values.
    """

    # The outline depends on how many public samples there are, and not on their values.
    def repeated(t: Tensor) -> Tensor:
        return t[:1].expand(asked.samples, *t.shape[1:])

    population = run_config.population
    proxy = Batch(map_inputs(repeated, population.x), repeated(population.y))
    inputs = replace(
        run_config.plan_inputs, samples=asked.samples, rounds=asked.rounds, proxy=proxy
    )
    outline = plan_outline(run_config.plan, inputs, run_config.settings)

    # Where the plan divides clients, the step may be any one of the outline.
    more_steps = 0
    if run_config.plan.divides:
        more_steps = run_config.options.rounds
    steps = outline[place - 1 : place]
    if more_steps and 0 < place <= len(outline) + more_steps:
        steps = outline

    agreed = {}
    for step in steps:
        if isinstance(step, kind):
            for agreed_spec in _specs(step):
                agreed[agreed_spec] = step
    if spec not in agreed:
        raise Declined(
            "plan",
            f"{spec} is not among what this site agreed to as step {place}: {'; '.join(sorted(agreed)) or 'none'}",
        )
    step = agreed[spec]
    if asked.derived != (step.model is not None):
        whose = "a model that the plan makes" if step.model is not None else "the model of the run"
        raise Declined("plan", f"another model in step {place} than agreed; expected {whose}")
    return step


def _specs(step: Step) -> set[str]:
    """Specs of the method and of the query of a step."""
    if not isinstance(step, Stage):
        return {repr(step.query)}
    specs = {repr(step.method)}
    if step.chooses is not None:
        specs.add(repr(step.chooses))
    return specs


def model_of_step(run_config: RunConfig, asked: StepRequest) -> Model:
    """The model of the plan's current step, up to its values. Raises `UnalikeError` if the plan has no such step."""
    if not asked.derived:
        return run_config.model
    plan_inputs = replace(run_config.plan_inputs, rounds=asked.rounds, samples=asked.samples)
    steps = steps_of(run_config.plan, plan_inputs)
    try:
        step = next(steps)
        # Each earlier step ends as it did in the run, but for its values: the plan decides by shapes and groups.
        for groups in asked.outcomes:
            if isinstance(step, Stage):
                step = steps.send(untrained(step, plan_inputs, run_config.settings, groups))
            else:
                step = steps.send(at_random(step, plan_inputs))
    except StopIteration:
        raise UnalikeError(f"{run_config.plan!r} has no step {len(asked.outcomes)} here") from None
    return step.model or run_config.model
