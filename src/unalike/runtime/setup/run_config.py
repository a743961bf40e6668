"""The configuration of a run, checked before anything is trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unalike._utils.errors import UnalikeError
from unalike._utils.functions import sources, structure
from unalike._utils.version import __version__
from unalike.core.model import Model
from unalike.core.options import cohort_size
from unalike.core.privacy import ReleaseSampling
from unalike.core.types import Batch
from unalike.core.views import StageSettings
from unalike.core.work import Work
from unalike.data import array_checks, sanity
from unalike.data.partitioning.given_clients import Clients
from unalike.data.population import Population
from unalike.data.sanity import listed
from unalike.data.training_vocabulary import replace_untrained, trained_words
from unalike.methods.plan import Plan, PlanInputs, Stage, Step, complete_spec, method_of, steps_of
from unalike.methods.plan import plan as plan_of
from unalike.metrics.columns import TEST, Column, Columns
from unalike.metrics.metrics import Custom, RunMetrics, own_metrics, run_metrics
from unalike.metrics.named_metrics import ATTACK_SUCCESS
from unalike.models.checkpoint import Start, start_from
from unalike.models.conditional import fitted
from unalike.models.registry import is_named
from unalike.runtime.records.recording import Hook, Recording
from unalike.runtime.records.run_directory import Config, digest, fingerprint
from unalike.runtime.setup.attackers import malicious_clients, under_attack
from unalike.runtime.setup.given_model import (
    ModelLike,
    check_fit,
    check_loss,
    check_repeats,
    example_context,
    make_model,
)
from unalike.runtime.setup.privacy_rules import check_privacy
from unalike.runtime.setup.run_options import RunOptions, check_inputs
from unalike.runtime.setup.stopping import StopRules
from unalike.training.wire import Item, plan_outline, plan_wire

Pair = tuple[Any, Any]
"""Samples and their labels, as arrays or tensors."""
NEWER = (("metric", ()), ("sampling", "fixed"))
"""Options with a value that records leave out, as records of older versions do."""


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides the numbers of a run. A run folder keeps `record`; `key` is its hash.

    `model_name` is the model as the user wrote it; `model_text` adds the length of the client statistics. `asked` is the method
    as typed: shown, not hashed. `start` says where the initial weights came from; their hash is in `record`. `recording` changes no
    number and is not hashed. `federated` is the number of updates that complete a round of a federation; 0 in a simulation.
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
    metrics: RunMetrics = field(default_factory=dict)
    asked: str = ""
    start: Start | None = None
    recording: Recording | None = None
    federated: int = 0

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
            data |= {
                "name": partition.data,
                "partition": partition.spec,
                "partition_seed": partition.seed,
            }
            data |= {"val": partition.val_share} if partition.val_share else {}
        module, work = None if is_named(self.model_name) else self.model.plain, self.work
        formulas = [metric.formula for metric in self.metrics.values()]
        used = (
            self.plan,
            *method_of(self.plan).parts,
            work.loss,
            work.optimizer,
            work.schedule,
            *formulas,
        )
        code = sources([*used, *(module.modules() if module else ())])
        return {
            "unalike": __version__,
            "method": complete_spec(self.plan),
            **{
                name: value
                for name, value in asdict(self.options).items()
                if (name, value) not in NEWER
            },
            "protocol": list(self.options.protocols),
            **({"metrics": list(self.metrics)} if self.metrics else {}),
            "work": self.work.record,
            "model": {
                "name": self.model_text,
                "fingerprint": fingerprint(self.model.params | self.model.buffers),
                **({"structure": structure(module)} if module else {}),
            },
            "data": data,
            **({"code": code} if code else {}),
        }

    @cached_property
    def settings(self) -> StageSettings:
        """The settings that stay the same in all rounds."""
        classes = None if self.population.classes is None else len(self.population.classes)
        proxy, chain = _batch(self.proxy), self.options.chain
        if proxy is not None and chain is not None:  # as the clients' samples in evaluation
            fixed = chain.fixed
            proxy = proxy._replace(x=fixed(proxy.x, proxy.x.new_zeros(len(proxy.x), 0)))
        options = self.options
        return StageSettings(
            *(
                self.model,
                self.population.task,
                self.work,
                options.seed,
                options.buffers,
                proxy,
                classes,
            ),
            sampling=self.sampling,
            secret_noise=bool(self.federated),
            malicious=malicious_clients(method_of(self.plan), self.population.sizes, options.seed),
        )

    @cached_property
    def sampling(self) -> ReleaseSampling:
        """The part that clients take in the rounds. Sites of a federation know the seed, by which each cohort is drawn."""
        sizes, options = self.population.sizes[self.population.sizes > 0], self.options
        eligible = max(1, len(sizes))
        poisson = options.sampling == "poisson" and options.participation < 1
        count = cohort_size(options.participation, eligible)
        expected, fewest = (
            (options.participation * eligible, 0) if poisson else (count, self.federated or count)
        )
        draw = "all" if self.federated or expected == eligible else options.sampling
        return ReleaseSampling(
            eligible, expected, draw, options.rounds, fewest, tuple(np.unique(sizes).tolist())
        )

    @cached_property
    def ending(self) -> StopRules:
        """The rules that end the run before its last round."""
        return StopRules(self.options.stop, self.options.budget, self.columns)

    @cached_property
    def columns(self) -> Columns:
        """The columns of scores that the history of the run may have."""
        metrics, attack = (
            run_metrics(self.population.task, self.metrics).values(),
            method_of(self.plan).attack,
        )
        found = Columns.of(
            (*self.options.protocols, "personal"), metrics, bool(len(self.population.val.values))
        )
        if attack is None or attack.goal is None:
            return found
        own = [p for p in found.protocols if p != "server"]
        return found | Columns(
            tuple(Column(p, TEST, ATTACK_SUCCESS, p == found.unprefixed_protocol) for p in own)
        )

    @property
    def warnings(self) -> list[str]:
        """Warnings about a configuration that can be run."""
        nothing = "rounds=0 trains nothing: the run holds the initial model and its evaluation; expected 1 or more"
        useless = not self.options.rounds and not getattr(self.plan, "useful_untrained", False)
        found = [nothing] if useless else []
        if not self.population.is_scored(self.options.protocols):
            found.append(
                "no client has a test sample, and no test set is given: the run has no score. Give ua.partition(..., split=0.75), "
                "ClientData(test=...), or protocol='server' with test=(x, y)"
            )
        largest, batch = int(self.population.sizes.max(initial=0)), self.work.batch_size or 0
        if batch != Work().batch_size and 0 < largest < batch:
            found.append(
                f"batch_size={batch} is above the {largest} training samples of the largest client: every step takes all samples "
                "of its client"
            )
        if self.start is not None and self.start.partial:
            found.append(f"the run starts from {self.start.path}: {self.start.taken}")
        return found + ([self.ending.warning] if self.ending.warning else [])

    @cached_property
    def data_notes(self) -> tuple[str, ...]:
        """Warnings of the partition, which were given when it was made, and about samples that nothing can be learned from."""
        given = () if self.population.plan is None else self.population.plan.notes
        names = [self.population.names[k] for k in sorted(self.settings.malicious)]
        if names:
            few = f"{listed(names)} of {len(self.population)} clients are malicious"
            given = (*given, f"{few}, and the scores are those of the others")
        return (*given, *sanity.warnings_of(self.population))

    @cached_property
    def sanity(self) -> str:
        """The score of a constant prediction, for comparison; empty where the samples are elsewhere."""
        in_use = self.options.protocols[:1] == ("server",) and self.test is not None
        return sanity.constant_prediction(
            self.population, self.test[1] if in_use and self.test else None
        )

    @property
    def plan_inputs(self) -> PlanInputs:
        """The inputs that a plan builds its stages from."""
        population, options = self.population, self.options
        samples, clusters = int(population.sizes.sum()), population.clusters
        proxy = _batch(self.proxy)
        return PlanInputs(
            len(population),
            options.rounds,
            self.model,
            options.seed,
            samples,
            clusters,
            proxy,
            population.task,
        )

    @cached_property
    def outline(self) -> list[Step]:
        """The stages and client queries of the plan, as far as they are known before it runs."""
        return plan_outline(self.plan, self.plan_inputs)

    def obstacle(self, rounds: int) -> str:
        """The reason why a run of so many rounds, fewer than these, is not the beginning of this one; empty if it is."""
        shorter = replace(self, options=replace(self.options, rounds=rounds))
        before, own = (
            [getattr(step, "rounds", 0) for step in config.outline[:-1]]
            for config in (shorter, self)
        )
        if before != own:
            return f"{self.asked} divides its rounds among stages, so {rounds} rounds are not the beginning of more"
        every = self.options.evaluate_every
        return (
            f"with evaluate_every={every}, round {rounds} is evaluated only as the last one"
            if rounds % every
            else ""
        )

    @property
    def wire(self) -> list[Item]:
        """The tensors that cross the wire in them."""
        some = next((Batch(*c.train) for c in self.population if len(c.train[1])), None)
        return plan_wire(
            self.outline, self.model, lambda m: {} if some is None else m.facts(some, self.settings)
        )

    @property
    def key(self) -> str:
        return digest({k: v for k, v in self.record.items() if k not in ("executor", "device")})

    @property
    def device(self) -> torch.device:
        return torch.device(self.options.device)

    def here(self, place: int = 0) -> RunConfig:
        """The same with samples and model on the device. Where a name stands for several devices ("cuda"), the `place`-th process
        of a machine uses the `place`-th of them."""
        device = self.device
        if device.type == "cpu":
            return self
        if device.index is None:
            device = torch.device(
                device.type, place % torch.get_device_module(device).device_count()
            )
        test, proxy = (
            pair and (pair[0].to(device), pair[1].to(device)) for pair in (self.test, self.proxy)
        )
        population, model = self.population.to(device), self.model.to(device)
        return replace(self, population=population, model=model, test=test, proxy=proxy)


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
    federated: int = 0,
    **options: Any,
) -> RunConfig:
    """Check everything that can be checked before training; `federated` as in `RunConfig`. Raises `UnalikeError`."""
    chosen = check_inputs([spec], model=model, work=work, has_test=test is not None, **options)
    plan = plan_of(spec)
    population = clients if isinstance(clients, Population) else Population.of(clients)
    population = under_attack(population, method_of(plan), chosen.seed)
    context = example_context(plan, population)
    made, name = make_model(
        fitted(model, context) if isinstance(model, str) else model, population, chosen.seed
    )
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
        chosen.chain(
            population.x[:1], torch.zeros(1, chosen.chain.draws)
        )  # an error now, not in the first round
    population, made = population.to("cpu"), made.to("cpu").at(chosen.precision)
    held_out, public = _tensors("test", test, population), _tensors("proxy", proxy, population)
    named = {m.name: m.of(population.task, population.classes) for m in chosen.chosen_metrics}
    columns = named | own_metrics(metrics)
    words = spec if isinstance(spec, str) else repr(plan)
    work = (work or Work()).over(chosen.rounds)
    check_loss(work, made, population, context)
    recording = Recording.of(record)
    if getattr(plan, "needs_products", False):
        recording = replace(recording or Recording(), products=True)
    given = (
        plan,
        population,
        made,
        work,
        chosen,
        asked,
        name,
        held_out,
        public,
        columns,
        words,
        started,
        recording,
    )
    run_config = RunConfig(*given, federated=federated)
    _ = run_config.ending
    if chosen.select == "best" and not run_config.columns.validated:
        raise UnalikeError(
            "select='best' chooses a round by its score, which must not be that of the test samples, and the clients have no "
            "validation samples; give ua.partition(..., val=0.1), --val 0.1 or ClientData(val=...)"
        )
    first = next(
        steps_of(run_config.plan, run_config.plan_inputs)
    )  # an error now if the plan lacks something
    if isinstance(first, Stage):
        first.method.check_task(population.task)
        first.method.check_loss(work)
        first.method.require(run_config.settings.proxy)
    _check_tested(run_config)
    check_privacy(words, run_config.outline, run_config.wire, run_config.settings, chosen)
    return run_config


def _check_tested(run_config: RunConfig) -> None:
    """Raise `UnalikeError` if only clients that never train are tested (`leave_one_out`), and the method has no model for them."""
    population, tested = run_config.population, run_config.population.test.sizes > 0
    if not tested.any() or population.sizes[tested].any():
        return
    for last in [step for step in run_config.outline if isinstance(step, Stage)][-1:]:
        groups = len(last.members(len(population)))
        divided = (
            "makes groups of clients by what they train"
            if getattr(run_config.plan, "divides", False)
            else ""
        )
        if (
            why := last.why_no_single_model(
                last.model or run_config.model, run_config.options.buffers, groups
            )
            or divided
        ):
            raise UnalikeError(
                f"only clients that never train are tested, and {run_config.asked} {why}; so it has no model for them: leave it "
                "out, or name a partition in which clients test their own samples, such as natural"
            )


def _tensors(
    name: str, found: Pair | None, population: Population
) -> tuple[torch.Tensor, torch.Tensor] | None:
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
        x = replace_untrained(
            x, trained_words(population)
        )  # as the partition did with the clients' own
    return x, y


def _batch(pair: tuple[torch.Tensor, torch.Tensor] | None) -> Batch | None:
    return None if pair is None else Batch(*pair)
