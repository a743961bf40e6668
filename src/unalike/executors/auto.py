"""Choose the executor: small dense models want stacking, convolutions on a CPU want one client at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from unalike.core import spec, tree
from unalike.core.client import Setting, open_memory
from unalike.core.errors import UnalikeError, unknown
from unalike.core.memory import ClientMemories
from unalike.core.method import Method
from unalike.core.server import issue, open_state
from unalike.executors.base import Executor, Site, Source
from unalike.executors.batched import CACHE, Batched
from unalike.executors.loop import Loop

EXECUTORS: dict[str, Callable[..., Executor]] = {"loop": Loop, "batched": Batched}

WORTH = 5.0
"""A stacked step of small dense models costs about as much as four steps of one client (measured on a CPU)."""


def build(text: str, site: Site) -> Executor:
    """The executor of one process that `text` names: "loop", "batched" or "batched(chunk=20)"."""
    call = spec.parse_one(text)
    if call.name not in EXECUTORS:
        raise unknown("executor", call.name, [*EXECUTORS, "auto", "distributed"])
    try:
        return EXECUTORS[call.name](site, **call.parameters)
    except TypeError as error:
        raise UnalikeError(f"executor {call}: {error}; write 'loop', 'batched' or 'batched(chunk=20)'") from None


def decide(text: str, site: Site, participants: int) -> tuple[str, str]:
    """What "auto" stands for, and why; any other text stands for itself."""
    if spec.parse_one(text).name != "auto":
        return text, "asked for"
    return _auto(site, participants)


def _auto(site: Site, participants: int) -> tuple[str, str]:
    model = site.setting.model
    on_cpu = site.source.x.device.type == "cpu"
    if participants < 2:
        return "loop", "one participant a round leaves nothing to stack"
    if on_cpu and model.convolutional:
        return "loop", "stacked convolutions are slower on a CPU"
    if on_cpu and 4 * tree.nbytes(model.params) > CACHE:
        return "loop", "the model is too large for several of them to share the processor's cache"
    gain = _parallelism(site, participants)
    if gain < WORTH:
        return "loop", f"stacking would do the work of {gain:.1f} clients at a time, and pays from {WORTH:g} on"
    problem = _obstacle(site.method, site.setting, site.source)
    if problem:
        return "loop", f"the model cannot be stacked: {problem}"
    return "batched", "the model is small and dense"


def _parallelism(site: Site, participants: int) -> float:
    """Steps of a typical cohort over the stacked steps that do the same: what padding leaves of the width of a chunk."""
    sizes = site.sizes[site.sizes > 0]
    kinds, counts = np.unique(sizes, return_counts=True)
    steps = np.sort(np.repeat([site.steps(n) for n in kinds.tolist()], counts)).tolist()
    cohort = [steps[i * len(steps) // participants] for i in range(participants)]
    width = Batched(site).width
    return sum(cohort) / sum(max(cohort[i : i + width]) for i in range(0, len(cohort), width))


def _obstacle(method: Method, setting: Setting, source: Source) -> str | None:
    """Why two clients cannot be trained stacked, found by doing it; None when they can."""
    filled = [k for k in range(min(len(source), 64)) if len(source.train[k])][:2]
    probe = Batched(Site(method, setting, _Few(source, filled), ClientMemories(open_memory(method, setting))))
    try:
        probe.run(issue(method, setting, open_state(method, setting), 2, range(len(filled))), range(len(filled)), {}, 2)
    except UnalikeError:
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return str(error).split("\n")[0][:200]
    return None


class _Few:
    """A few samples of a few clients."""

    def __init__(self, source: Source, clients: list[int]):
        self.x, self.y = source.x, source.y
        self.train = [source.train[k][:2] for k in clients]

    def __len__(self) -> int:
        return len(self.train)
