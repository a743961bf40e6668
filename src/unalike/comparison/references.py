"""References and default settings: methods that are shown but no candidates, and methods that were not tuned."""

import inspect
from contextlib import suppress

from unalike._utils import spec
from unalike._utils.errors import UnalikeError
from unalike.methods.part import registry
from unalike.methods.plan import Plan, complete_spec, method_of, plan
from unalike.statistics.verdicts import ORACLE, UPPER


def reference(method: str) -> str:
    """The meaning of a reference by its spec with every field; empty for a candidate.

    `local_only` is a candidate: not to federate is a choice that a client has.
    """
    if method.startswith("centralised("):
        return UPPER
    return ORACLE if method.startswith("cluster_oracle(") else ""


def is_alone(method: str) -> bool:
    """Whether the spec with every field is that of training alone, without communication."""
    return method == complete_spec(plan("local_only"))


def is_grouped(method: str) -> bool:
    """Whether a method of this spec ends with a model for each group of clients, and with none for all."""
    name = method.partition("(")[0]
    if name not in registry:
        return False
    builder = registry[name]
    return isinstance(builder, type) and issubclass(builder, Plan) and builder.grouped


def protects(method: str) -> str:
    """The meaning of the epsilon of a private method of this spec; empty for others, and for parts that are not known here."""
    with suppress(UnalikeError):
        return method_of(plan(method)).protects
    return ""


def untuned(method: str) -> str:
    """The parts of a spec text that ran with default settings, with these settings; empty if there are none.

    A part without numbers to choose has nothing to tune, and a text that names any of a part's settings counts as a choice.
    """
    try:
        calls = [call for call in spec.parse(method) if not call.parameters]
        settings = [(call.name, _numbers(call.name)) for call in calls]
    except (UnalikeError, TypeError, ValueError):
        # It is the text of a method object, and no spec.
        return ""
    parts = [f"{name}({', '.join(numbers)})" for name, numbers in settings if numbers]
    return " + ".join(parts)


def _numbers(name: str) -> list[str]:
    """The numeric settings of a method or part with their defaults."""
    parameters = inspect.signature(registry[name]).parameters.values()
    return [
        f"{p.name}={p.default!r}"
        for p in parameters
        if isinstance(p.default, int | float) and type(p.default) is not bool
    ]
