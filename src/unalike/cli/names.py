"""The registries whose names flags take: `unalike list` prints them, and shells complete them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unalike._utils.registry import Registry

REGISTRIES = {
    "methods": {"Methods and parts": "unalike.methods.part"},
    "partitions": {
        "Partitions": "unalike.data.partitioning.scheme",
        "Changes of samples": "unalike.data.partitioning.feature_skew",
    },
    "transforms": {"Transforms": "unalike.data.transforms"},
    "devices": {"Traits of devices": "unalike.client_devices.device_model"},
    "models": {"Models": "unalike.models.registry"},
    "tasks": {"Tasks": "unalike.core.tasks.registry"},
    "losses": {"Losses": "unalike.core.losses"},
    "optimizers": {"Optimizers": "unalike.core.solvers"},
    "schedules": {"Schedules": "unalike.core.schedules"},
    "metrics": {"Metrics": "unalike.metrics.named_metrics"},
    "data": {"Data": "unalike.data.sources.registry"},
}
"""List -> the titles of its tables, and the modules of their registries."""


def registries(kind: str) -> dict[str, Registry]:
    """Title -> registry, for the tables of a list."""
    return {title: import_module(module).registry for title, module in REGISTRIES[kind].items()}


def names_beginning(kind: str, typed: str) -> list[str]:
    """The names of a list that begin with what was typed."""
    names: list[str] = []
    for registry in registries(kind).values():
        names += [name for name in registry if name.startswith(typed)]
    return names


def completion(flag: str) -> dict[str, Any]:
    """The keywords with which `typer.Option` completes the values of a flag: `--model` takes the names of the list of models."""
    # a list has the flag's name, or the plural of it: model and models, loss and losses
    kinds = [kind for kind in REGISTRIES if flag in (kind, kind[:-1], kind[:-2])]
    if not kinds:
        return {}

    def complete(incomplete: str) -> list[str]:
        return names_beginning(kinds[0], incomplete)

    return {"autocompletion": complete}
