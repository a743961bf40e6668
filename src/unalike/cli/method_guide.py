"""Summary of a method in words and numbers, for `unalike list methods` and the pages in docs/methods."""

import inspect
import math
import re
from dataclasses import dataclass, replace
from functools import cache

import torch

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.tasks.classification import ASSUMED_TASK
from unalike.core.tasks.task import CLASS_LOGITS, CLASSES
from unalike.core.types import Batch
from unalike.core.views import StageSettings
from unalike.core.work import Work
from unalike.methods.method import DEFAULTS, Method
from unalike.methods.part import Part, registry
from unalike.models.registry import model as build_model
from unalike.training.client.client_update import initial_client_state
from unalike.training.server.server_update import initial_server_state
from unalike.training.wire import NUMBERS_BYTES, wire


@dataclass(frozen=True)
class MethodEntry:
    """One name of the catalogue.

    `down` and `up`: what a client receives and sends in a round; `server` and `client`: the state that each keeps; in units of the
    model, NaN for a plan of several stages. `needs`: what else the method requires.
    """

    name: str
    usage: str
    summary: str
    source: str
    down: float = math.nan
    up: float = math.nan
    server: float = math.nan
    client: float = math.nan
    needs: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()


def published() -> list[str]:
    """The names of methods, plans and add-ons, without the parts that methods are made of."""
    names = [n for n in registry if not _is_part(n) or registry[n].has_own_name]  # type: ignore[attr-defined]
    return sorted(names)


def parts() -> list[str]:
    """The names of parts."""
    return sorted(name for name in registry if _is_part(name))


def combines(a: str, b: str) -> str | None:
    """The reason why `a + b` is refused; None where they combine."""
    try:
        Method.parse(a) + Method.parse(b)
    except UnalikeError as error:
        return str(error)
    return None


def entry(name: str) -> MethodEntry:
    """Describe a method, part or plan by its name, with its defaults."""
    # the first paragraph of the docstring, without the paper in parentheses
    text = inspect.getdoc(registry[name]) or ""
    summary = re.sub(r"\s+", " ", text.split("\n\n")[0]).strip()
    papers = re.findall(r"\(([^()]*(?:19|20)\d\d[^()]*|the [^()]*paper[^()]*)\)", summary)
    source = papers[-1] if papers else ""
    if source:
        summary = summary.replace(f" ({source})", "")
    described = MethodEntry(
        name=name, usage=registry.usage(name), summary=summary.rstrip("."), source=source
    )
    method = _method(name)
    if method is None:
        return described

    # what the method sends and keeps with the reference model
    model, settings = _reference()
    facts = method.client_facts(Batch(torch.zeros(10, 64), torch.arange(10)), settings)
    items = wire(method, model, facts)
    down = sum(item.bytes for item in items if item.direction == "down")
    up = sum(item.bytes for item in items if item.direction == "up")
    if items:
        up -= NUMBERS_BYTES
    server_states = initial_server_state(method, settings).part_states
    client_states = initial_client_state(method, settings)
    size = tree.nbytes(model.params)
    return replace(
        described,
        down=down / size,
        up=up / size,
        server=tree.nbytes(*server_states.values()) / size,
        client=tree.nbytes(*client_states.values()) / size,
        needs=_needs(method),
        parts=tuple(part for part in method.parts if part not in DEFAULTS.values()),
    )


def units(value: float) -> str:
    """`1.00`-style units of the model: `-` for a plan, `0` for nothing, at most two digits."""
    if math.isnan(value):
        return "-"
    if value < 0.005 and value != 0:
        return "<0.01"
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _needs(method: Method) -> tuple[str, ...]:
    needs = {
        "classes": any(p.needs_of_task in (CLASSES, CLASS_LOGITS) for p in method.parts),
        "proxy data on the server": any(p.needs_proxy for p in method.parts),
        "label histograms": any("label_histogram" in p.shares for p in method.parts),
        "features of the model": any(p.name == "model_contrast" for p in method.parts),
        "fine-tuning before evaluation": method.finetuning_phase is not None,
        "a conditional model": bool(method.conditioners),
    }
    return tuple(what for what, is_needed in needs.items() if is_needed)


def _is_part(name: str) -> bool:
    builder = registry[name]
    return inspect.isclass(builder) and issubclass(builder, Part)


def _method(name: str) -> Method | None:
    builder = registry[name]
    if inspect.isclass(builder) and not issubclass(builder, Part):
        return None
    return Method.parse(name)


@cache
def _reference() -> tuple[Model, StageSettings]:
    """A two-layer network on ten classes: what is counted in units of the model."""
    model = Model(build_model("mlp(hidden=(64,))", (64,), 10))
    return model, StageSettings(model, ASSUMED_TASK, Work(), classes=10)
