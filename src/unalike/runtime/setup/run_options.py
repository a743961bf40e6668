"""The options of a run, and the checks that need no data."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as validated

from unalike._utils.errors import UnalikeError, unknown
from unalike._utils.functions import text_of_function
from unalike._utils.spec import parse_one
from unalike._utils.validated import explain_errors
from unalike.client_devices.device_model import DeviceModel, device_model
from unalike.core.losses import LossFunction
from unalike.core.options import SimulationOptions
from unalike.core.work import Work
from unalike.data.transforms import TransformChain
from unalike.data.transforms import transform as chain_of
from unalike.engine.auto import EXECUTORS
from unalike.methods.plan import Plan
from unalike.methods.plan import plan as plan_of
from unalike.metrics.columns import PROTOCOLS, SIMULATED_SECONDS
from unalike.metrics.named_metrics import Metric
from unalike.metrics.named_metrics import read as read_metrics
from unalike.models.checkpoint import read_state_dict
from unalike.models.registry import read
from unalike.models.registry import registry as models
from unalike.runtime.records.recording import Hook, Recording
from unalike.runtime.setup.client_networks import ModelOrNetworks, models_by_name
from unalike.runtime.setup.privacy_budget import check_readers
from unalike.runtime.setup.stopping import reader_of


@validated(frozen=True, config=ConfigDict(extra="forbid"))
class RunOptions(SimulationOptions):
    """Options of a run, checked. `protocol` may list several; the first fills the plain columns of the history."""

    def with_seed(self, seed: int) -> Self:
        """The same options under another seed. Raises `UnalikeError` for one that is none."""
        try:
            return replace(self, seed=seed)
        except ValidationError as error:
            raise UnalikeError(explain_errors(error)) from None

    @cached_property
    def chain(self) -> TransformChain | None:
        """The transform of training batches. Evaluation applies only its steps without random draws."""
        return None if self.transform is None else chain_of(self.transform)

    @cached_property
    def device_model(self) -> DeviceModel | None:
        """The simulated devices of the clients; None where nothing is simulated."""
        return None if self.devices is None else device_model(self.devices)

    @property
    def chosen_metrics(self) -> list[Metric]:
        """The metrics that were chosen by name; the first one decides."""
        return read_metrics((self.metric,) if isinstance(self.metric, str) else self.metric)

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols, each once."""
        return (
            (self.protocol,)
            if isinstance(self.protocol, str)
            else tuple(dict.fromkeys(self.protocol))
        )


class NamedPlan(NamedTuple):
    """A plan, and its text: as the user typed it, or with every field where it was made by a program."""

    text: str
    plan: Plan


def named_plan(spec: object) -> NamedPlan:
    """Read the method that a user gave. Raises `UnalikeError` for what is none."""
    plan = plan_of(spec)
    return NamedPlan(spec if isinstance(spec, str) else repr(plan), plan)


def with_loss(work: object, loss: str | LossFunction | None) -> Work | None:
    """The local training with the loss of the keyword `loss`. Raises `UnalikeError` for anything but work, or for two losses."""
    if not isinstance(work, Work | None):
        raise UnalikeError(
            f"work={work!r}: expected ua.Work(epochs=2, lr=0.1, ...), or from ua.compare one by method"
        )
    if loss is None:
        return work
    if work is not None and work.loss not in (None, loss):
        raise UnalikeError(
            f"found loss={text_of_function(loss)!r} beside work=ua.Work(loss={text_of_function(work.loss)!r}); give one of them"
        )
    return replace(work or Work(), loss=loss)


def check_inputs(
    plans: Iterable[NamedPlan],
    *,
    model: ModelOrNetworks = "mlp",
    start: str | Path | None = None,
    start_partial: bool = False,
    work: Work | None = None,
    has_test: bool,
    record: str | Hook | Recording | None = None,
    **options: Any,
) -> RunOptions:
    """Check everything that needs no data, so that a mistake is reported before data is read.

    `has_test`: the server has test samples, or gets some. Raises `UnalikeError` for anything unknown or out of range.
    """
    try:
        checked = RunOptions(**options)
    except ValidationError as error:
        raise UnalikeError(explain_errors(error)) from None
    with_loss(work, None)
    check_readers(plans, budget=checked.budget, stop=checked.stop)
    for given in models_by_name(model).values():
        if isinstance(given, str):
            _ = models[read(given).name]
    if start is not None:
        read_state_dict(start)
    elif start_partial:
        raise UnalikeError(
            "found start_partial=True without start; give start=FILE, or leave start_partial out"
        )
    Recording.of(record)
    _check_protocols(checked.protocols, has_test)
    _check_executor(checked.executor)
    _check_device(checked.device)
    _check_modes(torch.device(checked.device).type)
    # these are read from text on first use, which raises for a text that says nothing
    _ = checked.chain
    _ = checked.device_model
    _check_simulated_time(checked)
    _ = checked.chosen_metrics
    return checked


def _check_simulated_time(options: RunOptions) -> None:
    """Raise `UnalikeError` where the run is to end by simulated time, and no devices are simulated."""
    reader = reader_of(SIMULATED_SECONDS, budget=options.budget, stop=options.stop)
    if reader and options.device_model is None:
        raise UnalikeError(
            f"found {reader} and no devices, without which no time is simulated; give devices='lognormal(sigma=1)' or others of "
            "`unalike list devices`"
        )


def _check_executor(text: str) -> None:
    """Raise `UnalikeError` unless there are executors of these names, in each process too."""
    call = parse_one(text)
    names = {*EXECUTORS, "auto", "distributed"}
    if call.name not in names:
        raise unknown("executor", call.name, names)
    inner = call.parameters.get("inner")
    if call.name == "distributed" and isinstance(inner, str):
        _check_executor(inner)


def _check_protocols(protocols: Sequence[str], has_test: bool) -> None:
    if not protocols:
        raise UnalikeError(f"found no protocol; expected one or more of {', '.join(PROTOCOLS)}")
    for name in protocols:
        if name not in PROTOCOLS:
            raise unknown("protocol", name, PROTOCOLS)
    if "server" in protocols and not has_test:
        raise UnalikeError(
            "protocol 'server' needs a held-out test set: give test=(x, y), or data='NAME' with the test set that was published "
            "with it, or choose protocol='clients'"
        )


def _check_device(name: str) -> None:
    """Raise `UnalikeError` unless there is such a device; it is not used, or processes that start later could not use it."""
    try:
        device = torch.device(name)
        count = 1 if device.type == "cpu" else torch.get_device_module(device).device_count()
    except (RuntimeError, AttributeError) as error:
        raise UnalikeError(
            f"device={name!r} cannot be used: {str(error).splitlines()[0]}"
        ) from None
    if (device.index or 0) >= count:
        raise UnalikeError(
            f"device={name!r} cannot be used: torch finds {count} devices of this kind"
        )


def _check_modes(kind: str) -> None:
    """Refuse modes of torch that hold here but were meant for something else."""
    if torch.is_inference_mode_enabled():
        raise UnalikeError(
            "nothing can be trained inside of torch.inference_mode(); call this outside of it"
        )
    if any(torch.is_autocast_enabled(k) for k in ("cpu", kind)):
        raise UnalikeError(
            "training inside of torch.autocast would round numbers that have to stay exact; call this outside of it, and write "
            "precision='bf16' for faster training"
        )
