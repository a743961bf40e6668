"""The configuration of a run, checked before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError
from pydantic.dataclasses import dataclass as validated
from torch import nn
from torch.nn.parameter import is_lazy

from unalike._utils import seeds as seeds
from unalike._utils.errors import UnalikeError, unknown
from unalike._utils.spec import parse_one
from unalike._utils.validated import explain_errors
from unalike._utils.version import __version__
from unalike.core.model import Model, Precision
from unalike.core.types import Batch, Context
from unalike.core.views import StageSettings
from unalike.core.work import Work
from unalike.data import array_checks
from unalike.data.partitioning.given_clients import Clients
from unalike.data.population import Population
from unalike.data.training_vocabulary import replace_untrained, trained_words
from unalike.data.transforms import TransformChain
from unalike.data.transforms import transform as chain_of
from unalike.engine.auto import EXECUTORS
from unalike.methods.plan import Plan, PlanInputs, Stage, Step, method_of, steps_of
from unalike.methods.plan import plan as plan_of
from unalike.metrics.metrics import PROTOCOLS, Custom, metric_names
from unalike.metrics.named_metrics import Metric
from unalike.metrics.named_metrics import read as read_metrics
from unalike.models.checkpoint import Start, read_state_dict, start_from
from unalike.models.conditional import fitted
from unalike.models.registry import model as build_model
from unalike.models.registry import read
from unalike.models.registry import registry as models
from unalike.runtime.model_checks import check_fit, check_repeats
from unalike.runtime.records.recording import Hook, Recording
from unalike.runtime.records.run_directory import Config, digest, fingerprint
from unalike.runtime.stopping import Budget, KnownColumns, StopRules
from unalike.training.wire import Item, plan_outline, plan_wire

ModelLike = str | nn.Module | Callable[[], nn.Module]
Pair = tuple[Any, Any]
MODEL, ROUNDS = "mlp", 50
"""The defaults of runs and comparisons."""


@validated(frozen=True, config=ConfigDict(extra="forbid"))
class RunOptions:
    """Options of a run. `protocol` may list several; the first fills the plain columns of the history.

    `stop` and `budget` end it early (`runtime.stopping`); `select` chooses the round that the final model comes from: the last, or
    the best by the validation samples.
    """

    rounds: NonNegativeInt = ROUNDS
    seed: NonNegativeInt = Field(default=0, lt=2**63)
    participation: float = Field(default=1.0, gt=0, le=1)
    executor: str = "auto"
    evaluate_every: PositiveInt = 1
    protocol: str | tuple[str, ...] = "clients"
    metric: str | tuple[str, ...] = ()
    device: str = "cpu"
    buffers: Literal["average", "local", "first"] = "average"
    transform: str | None = None
    precision: Precision = "float32"
    stop: str | None = None
    budget: str | None = None
    select: Literal["last", "best"] = "last"

    @cached_property
    def chain(self) -> TransformChain | None:
        """The transform of training batches. Evaluation applies only its steps without random draws."""
        return None if self.transform is None else chain_of(self.transform)

    @property
    def chosen_metrics(self) -> list[Metric]:
        """The metrics that were chosen by name; the first one decides."""
        return read_metrics((self.metric,) if isinstance(self.metric, str) else self.metric)

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols, each once."""
        return (self.protocol,) if isinstance(self.protocol, str) else tuple(dict.fromkeys(self.protocol))


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides the numbers of a run. A run folder keeps `record`; `key` is its hash.

    `model_name` is the model as the user wrote it; `model_text` adds the length of the client statistics. `asked` is the method
    as typed: shown, not hashed. `start` says where the initial weights came from; their hash is in `record`. `recording` changes no
    number and is not hashed.
    """

    plan: Plan
    population: Population
    model: Model
    work: Work
    options: RunOptions
    model_name: str
    model_text: str
    test: tuple[torch.Tensor, torch.Tensor] | None = None
    proxy: tuple[torch.Tensor, torch.Tensor] | None = None
    metrics: Custom = field(default_factory=dict)
    asked: str = ""
    start: Start | None = None
    recording: Recording | None = None

    @cached_property
    def record(self) -> Config:
        partition = self.population.plan
        data: Config = {
            "fingerprint": self.population.fingerprint,
            "clients": len(self.population),
            "input_shape": list(self.population.input_shape),
            "outputs": self.population.outputs,
            "task": self.population.task.name,
            "classes": self.population.classes,
        }
        for name, pair in (("test", self.test), ("proxy", self.proxy)):
            if pair is not None:
                data[name] = fingerprint({"x": pair[0], "y": pair[1]})
        if self.plan_inputs.clusters is not None:
            data["clusters"] = digest({"of": [int(c) for c in self.plan_inputs.clusters]})
        if partition is not None:
            data |= {"name": partition.data, "partition": partition.spec, "partition_seed": partition.seed}
            data |= {"val": partition.val_share} if partition.val_share else {}
        return {
            "unalike": __version__,
            "method": repr(self.plan),
            **{name: value for name, value in asdict(self.options).items() if name != "metric" or value},
            "protocol": list(self.options.protocols),
            **({"metrics": list(self.metrics)} if self.metrics else {}),
            "work": asdict(self.work),
            "model": {"name": self.model_text, "fingerprint": fingerprint(self.model.params | self.model.buffers)},
            "data": data,
        }

    @cached_property
    def settings(self) -> StageSettings:
        """The settings that stay the same in all rounds."""
        classes = None if self.population.classes is None else len(self.population.classes)
        proxy = _batch(self.proxy)
        options = self.options
        return StageSettings(self.model, self.population.task, self.work, options.seed, options.buffers, proxy, classes)

    @cached_property
    def ending(self) -> StopRules:
        """The rules that end the run before its last round."""
        options, people = self.options, self.population
        known = KnownColumns(options.protocols, metric_names(people.task, self.metrics), bool(len(people.val.values)))
        return StopRules(options.stop, options.budget, known)

    @property
    def warnings(self) -> list[str]:
        """Warnings about a configuration that can be run."""
        nothing = "rounds=0 trains nothing: the run holds the initial model and its evaluation; expected 1 or more"
        found = [nothing] if not self.options.rounds else []
        if self.start is not None and self.start.partial:
            found.append(f"the run starts from {self.start.path}: {self.start.taken}")
        return found + ([self.ending.warning] if self.ending.warning else [])

    @property
    def plan_inputs(self) -> PlanInputs:
        """The inputs that a plan builds its stages from."""
        people, options = self.population, self.options
        clusters = people.clusters if people.clusters is not None or people.plan is None else people.plan.clusters
        samples = int(people.sizes.sum())
        known = self.settings
        return PlanInputs(
            len(people), options.rounds, self.model, options.seed, samples, clusters, known.proxy, known.task
        )

    @cached_property
    def outline(self) -> list[Step]:
        """The stages and client queries of the plan, as far as they are known before it runs."""
        return plan_outline(self.plan, self.plan_inputs)

    @property
    def wire(self) -> list[Item]:
        """The tensors that cross the wire in them."""
        some = next((Batch(*c.train) for c in self.population if len(c.train[1])), None)
        return plan_wire(self.outline, self.model, lambda m: {} if some is None else m.facts(some, self.settings))

    @property
    def key(self) -> str:
        return digest({k: v for k, v in self.record.items() if k not in ("executor", "device")})

    @property
    def device(self) -> torch.device:
        """The device of the run."""
        return torch.device(self.options.device)

    def here(self, place: int = 0) -> RunConfig:
        """The same with samples and model on the device. Where a name stands for several devices ("cuda"), the `place`-th process
        of a machine uses the `place`-th of them."""
        device = self.device
        if device.type == "cpu":
            return self
        if device.index is None:
            device = torch.device(device.type, place % torch.get_device_module(device).device_count())
        test, proxy = (pair and (pair[0].to(device), pair[1].to(device)) for pair in (self.test, self.proxy))
        population, model = self.population.to(device), self.model.to(device)
        return replace(self, population=population, model=model, test=test, proxy=proxy)


def check_request(
    specs: Iterable[object],
    *,
    model: ModelLike = MODEL,
    start: str | Path | None = None,
    start_partial: bool = False,
    work: Work | None = None,
    has_test: bool,
    **options: Any,
) -> RunOptions:
    """Check everything that needs no data, so that a mistake is reported before data is read.

    Args:
        specs: the methods.
        model: the model.
        start: the file or folder of initial weights.
        start_partial: whether a part of them is enough.
        work: the local training.
        has_test: whether the server has test samples, or gets some.
        options: the fields of `RunOptions`.

    Returns:
        The options.

    Raises:
        UnalikeError: something in it is unknown or out of range.
    """
    try:
        chosen = RunOptions(**options)
    except ValidationError as error:
        raise UnalikeError(explain_errors(error)) from None
    if not isinstance(work, Work | None):
        raise UnalikeError(f"work={work!r}: expected ua.Work(epochs=1, batch_size=32, lr=0.01, ...)")
    for spec in specs:
        plan_of(spec)
    if isinstance(model, str):
        _ = models[read(model).name]
    if start is not None:
        read_state_dict(start)
    elif start_partial:
        raise UnalikeError("found start_partial=True without start; give start=FILE, or leave start_partial out")
    _check_protocols(chosen.protocols, has_test)
    _check_executor(chosen.executor)
    _check_device(chosen.device)
    _check_modes(torch.device(chosen.device).type)
    _ = chosen.chain, chosen.chosen_metrics, chosen.budget and Budget(chosen.budget)
    return chosen


def prepare_run(
    spec: object,
    clients: Clients,
    *,
    model: ModelLike,
    start: str | Path | None = None,
    start_partial: bool = False,
    work: Work | None = None,
    test: Pair | None = None,
    proxy: Pair | None = None,
    metrics: Custom | None = None,
    record: str | Hook | Recording | None = None,
    **options: Any,
) -> RunConfig:
    """Check everything that can be checked before training. Raises `UnalikeError`."""
    chosen = check_request([spec], model=model, work=work, has_test=test is not None, **options)
    population = clients if isinstance(clients, Population) else Population.of(clients)
    plan = plan_of(spec)
    context = _context(plan, population)
    made, name = make_model(fitted(model, context) if isinstance(model, str) else model, population, chosen.seed)
    asked = model if isinstance(model, str) else name
    started = None
    if start is not None:
        made, started = start_from(made, start, start_partial)
    check_fit(made, population, context)
    if not isinstance(model, str):
        check_repeats(made, population, context)
    if chosen.chain is not None:
        if population.x.dim() != 4:
            shape = list(population.input_shape)
            raise UnalikeError(
                f"transform={chosen.transform!r} is for images; found samples of shape {shape}: leave it out"
            )
        chosen.chain(population.x[:1], torch.zeros(1, chosen.chain.draws))  # an error now, not in the first round
    population, made = population.to("cpu"), made.to("cpu").at(chosen.precision)
    held_out, public = _tensors("test", test, population), _tensors("proxy", proxy, population)
    named = {m.column: m.of(population.task, population.classes) for m in chosen.chosen_metrics}
    columns: Custom = {**named, **(metrics or {})}
    words = spec if isinstance(spec, str) else repr(plan)
    run_config = RunConfig(
        *(plan, population, made, work or Work(), chosen, asked, name, held_out, public, columns, words, started),
        recording=Recording.of(record),
    )
    _ = run_config.ending
    if chosen.select == "best" and not run_config.ending.known.validated:
        raise UnalikeError(
            "select='best' chooses a round by its score, which must not be that of the test samples, and the clients have no "
            "validation samples; give ua.partition(..., val=0.1), --val 0.1 or ClientData(val=...)"
        )
    first = next(steps_of(run_config.plan, run_config.plan_inputs))  # an error now if the plan lacks something
    if isinstance(first, Stage):
        first.method.check_task(population.task)
        first.method.require(run_config.settings.proxy)
    return run_config


def _context(plan: Plan, population: Population) -> Context:
    """The static facts of the first client with training data, to build and try the model with."""
    method = method_of(plan)
    filled = next((k for k in range(len(population)) if population.sizes[k]), None)
    if filled is None or not method.conditioners:
        return {}
    x, y = population[filled].train
    return method.describe(Batch(torch.as_tensor(x), torch.as_tensor(y)), population.outputs)


def make_model(given: ModelLike, population: Population, seed: int) -> tuple[Model, str]:
    """The model that a user gave, and its name."""
    if isinstance(given, str):
        return Model(build_model(given, population.input_shape, population.outputs, seed)), given
    if isinstance(given, nn.Module):
        return _filled(given), type(given).__name__
    if callable(given):
        try:
            with seeds.isolated(seeds.number(seed, "model")):
                module = given()
        except TypeError as error:
            raise UnalikeError(
                f"model={given!r}: {error}; expected a function that makes a module of nothing"
            ) from error
        if isinstance(module, nn.Module):
            return _filled(module), getattr(given, "__name__", type(module).__name__)
    raise UnalikeError(
        f"model={given!r}: expected a name such as 'mlp', a torch.nn.Module or a function that makes one"
    )


def _filled(module: nn.Module) -> Model:
    """The model of a module; its parameters must exist."""
    if any(map(is_lazy, [*module.parameters(), *module.buffers()])):
        raise UnalikeError(
            "the model has lazy layers, whose size is not known yet; call it once with a few samples first"
        )
    return Model(module)


def _check_executor(text: str) -> None:
    """Whether there are executors of these names, in each process too."""
    call, names = parse_one(text), {*EXECUTORS, "auto", "distributed"}
    if call.name not in names:
        raise unknown("executor", call.name, names)
    if call.name == "distributed" and isinstance(inner := call.parameters.get("inner"), str):
        _check_executor(inner)


def _check_protocols(protocols: Sequence[str], has_test: bool) -> None:
    if not protocols:
        raise UnalikeError(f"found no protocol; expected one or more of {', '.join(PROTOCOLS)}")
    for name in protocols:
        if name not in PROTOCOLS:
            raise unknown("protocol", name, PROTOCOLS)
    if "server" in protocols and not has_test:
        raise UnalikeError(
            "protocol 'server' needs a held-out test set: give test=(x, y), or choose protocol='clients'"
        )


def _check_device(name: str) -> None:
    """Whether there is such a device, found without using it: processes that are started later could not use it any more."""
    try:
        device = torch.device(name)
        count = 1 if device.type == "cpu" else torch.get_device_module(device).device_count()
    except (RuntimeError, AttributeError) as error:
        raise UnalikeError(f"device={name!r} cannot be used: {str(error).splitlines()[0]}") from None
    if (device.index or 0) >= count:
        raise UnalikeError(f"device={name!r} cannot be used: torch finds {count} devices of this kind")


def _check_modes(kind: str) -> None:
    """Refuse modes of torch that hold here but were meant for something else."""
    if torch.is_inference_mode_enabled():
        raise UnalikeError("nothing can be trained inside of torch.inference_mode(); call this outside of it")
    if any(torch.is_autocast_enabled(k) for k in ("cpu", kind)):
        raise UnalikeError(
            "training inside of torch.autocast would round numbers that have to stay exact; call this outside of it, and write "
            "precision='bf16' for faster training"
        )


def _tensors(name: str, found: Pair | None, population: Population) -> tuple[torch.Tensor, torch.Tensor] | None:
    if found is None:
        return None
    x, y = array_checks.pair(found, name)
    if tuple(x.shape[1:]) != population.input_shape:
        shape = list(population.input_shape)
        raise UnalikeError(
            f"{name}: x has shape {list(x.shape)}; expected samples of shape {shape}, as the clients have"
        )
    if not len(y):
        raise UnalikeError(f"{name}: found no sample; expected some, or leave {name} out")
    if population.outputs is not None:
        array_checks.label_range(y, population.outputs, name)
    x, y = x.to(population.x), y.to(population.y)
    if population.plan is not None and not x.is_floating_point():
        x = replace_untrained(x, trained_words(population))  # as the partition did with the clients' own
    return x, y


def _batch(pair: tuple[torch.Tensor, torch.Tensor] | None) -> Batch | None:
    return None if pair is None else Batch(*pair)
