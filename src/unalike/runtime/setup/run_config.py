"""The configuration of a run, checked before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from unalike._utils.errors import UnalikeError
from unalike._utils.functions import source_hashes, structure_hash
from unalike._utils.limits import Limit
from unalike._utils.version import __version__
from unalike.core.inputs import is_one_tensor, layout_of, map_inputs
from unalike.core.model import Model
from unalike.core.nests import tensors_of
from unalike.core.option import without_defaults
from unalike.core.options import cohort_size
from unalike.core.privacy import ReleaseSampling
from unalike.core.types import Batch, Context
from unalike.core.views import StageSettings
from unalike.core.work import Work
from unalike.data import array_checks, sanity
from unalike.data.leaks import server_leak_notes
from unalike.data.partitioning.given_clients import Clients
from unalike.data.population import Population
from unalike.data.population_arrays import shape_in_words
from unalike.data.suspect_values import suspect_values
from unalike.data.training_vocabulary import replace_untrained, trained_words
from unalike.methods.method import Method
from unalike.methods.plan import Plan, PlanInputs, Stage, Step, complete_spec, method_of, steps_of
from unalike.metrics.columns import Columns
from unalike.metrics.metrics import Custom, RunMetrics, own_metrics, run_metrics
from unalike.models.checkpoint import Start, start_from
from unalike.models.conditional import fitted
from unalike.models.registry import is_named
from unalike.runtime.records.recording import Hook, Recording
from unalike.runtime.records.run_directory import Config, digest, fingerprint
from unalike.runtime.setup.attackers import (
    columns_of_attack,
    malicious_clients,
    note_on_malicious,
    under_attack,
)
from unalike.runtime.setup.client_networks import (
    ModelOrNetworks,
    Networks,
    check_sums,
    common_start,
    given_networks,
    models_by_name,
)
from unalike.runtime.setup.given_model import (
    check_fit,
    check_loss,
    check_repeats,
    check_single_samples,
    example_context,
    make_model,
    note_averaged_buffers,
    note_outputs,
)
from unalike.runtime.setup.privacy_rules import check_privacy
from unalike.runtime.setup.run_options import NamedPlan, RunOptions, check_inputs, named_plan
from unalike.runtime.setup.stopping import StopRules
from unalike.training.wire import Item, plan_outline, plan_wire

Pair = tuple[Any, Any]
"""Samples and their labels, as arrays or tensors."""
TensorPair = tuple[torch.Tensor, torch.Tensor]
"""Samples and their labels."""
ON_THE_MACHINE = ("executor", "device")
"""Options that change only speed and rounding."""


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides the numbers of a run. A run folder keeps its `description`; `key` is the hash of that.

    `model_name` is the model as the user wrote it; `model_text` adds the length of the client statistics. `method_text` is the
    method as typed: shown, not hashed. `start` says where the initial weights came from; the description has their hash.
    `recording` changes no number and is not hashed. `federated` is the number of updates among which the sites of a federation
    share out noise, at least 1; 0 in a simulation. Where clients have unlike networks, `models` has them by name, `groups` the
    clients of each, and `model` is the first one.
    """

    plan: Plan
    population: Population
    model: Model
    work: Work
    options: RunOptions
    model_name: str
    model_text: str
    test: TensorPair | None = None
    proxy: TensorPair | None = None
    metrics: RunMetrics = field(default_factory=dict)
    method_text: str = ""
    start: Start | None = None
    recording: Recording | None = None
    federated: int = 0
    groups: dict[str, tuple[int, ...]] | None = None
    models: Mapping[str, Model] | None = None

    @cached_property
    def description(self) -> Config:
        """The run in plain values as its folder keeps it, with every option."""
        return self._described(asdict(self.options), self.work.record)

    @cached_property
    def key(self) -> str:
        """The hash of everything that decides the result: of the description, without options that have their default."""
        options = replace(self.options, protocol=self.options.protocols)
        changed = without_defaults(options)
        work = {name: self.work.record[name] for name in without_defaults(self.work)}
        deciding = {name: value for name, value in changed.items() if name not in ON_THE_MACHINE}
        return digest(self._described(deciding, work))

    def _described(self, options: Config, work: Config) -> Config:
        """The run in plain values, with these options and settings of local work."""
        described: Config = {"unalike": __version__, "method": complete_spec(self.plan), **options}
        if "protocol" in options:
            described["protocol"] = list(self.options.protocols)
        if self.metrics:
            described["metrics"] = list(self.metrics)
        described["work"] = work
        described["model"] = self._described_model
        described["data"] = self._described_data
        if self._hashed_sources:
            described["code"] = self._hashed_sources
        return described

    @property
    def _own_module(self) -> nn.Module | None:
        """The module that the user gave; None for a model of the catalogue, whose name says all."""
        return None if is_named(self.model_name) else self.model.given_module

    @cached_property
    def _described_model(self) -> Config:
        """The model in plain values: a fingerprint of its initial values, and of a module of the user's its structure."""
        values = fingerprint(self.model.params | self.model.buffers)
        described: Config = {"name": self.model_text, "fingerprint": values}
        if self._own_module is not None:
            described["structure"] = structure_hash(self._own_module)
        if self.models is not None and self.groups is not None:
            described["networks"] = {
                name: fingerprint(model.params | model.buffers)
                for name, model in self.models.items()
            }
            described["clients"] = {name: list(ids) for name, ids in self.groups.items()}
        return described

    @cached_property
    def _described_data(self) -> Config:
        """The data in plain values: fingerprints of all samples, and the partition where there is one."""
        partition = self.population.plan
        data: Config = {
            "fingerprint": self.population.fingerprint,
            "clients": len(self.population),
            "input_shape": layout_of(self.population.x),
            "outputs": self.population.outputs,
            "label_shape": [*self.population.y.shape[1:]] or None,
            "task": self.population.task.spec,
            "classes": self.population.classes,
        }
        for name, pair in (("test", self.test), ("proxy", self.proxy)):
            if pair is not None:
                data[name] = _fingerprint_of(pair)
        if self.plan_inputs.clusters is not None:
            data["clusters"] = digest({"of": [int(c) for c in self.plan_inputs.clusters]})
        if partition is not None:
            data |= {
                "name": partition.data,
                "partition": partition.spec,
                "partition_seed": partition.seed,
            }
            if partition.val_share:
                data["val"] = partition.val_share
        return data

    @cached_property
    def _hashed_sources(self) -> Config:
        """Name -> hash of the text of each class and function of the user's own that takes part in the run."""
        modules = [] if self._own_module is None else [*self._own_module.modules()]
        formulas = [metric.formula for metric in self.metrics.values()]
        functions = (self.work.loss, self.work.optimizer, self.work.schedule)
        return source_hashes(
            [self.plan, *method_of(self.plan).parts, *functions, *formulas, *modules]
        )

    @cached_property
    def settings(self) -> StageSettings:
        """The settings that stay the same in all rounds."""
        options = self.options
        proxy = _batch(self.proxy)
        if proxy is not None and options.chain is not None:
            # the steps without random draws alone, as for the clients' samples in evaluation
            no_draws = proxy.x.new_zeros(len(proxy.x), 0)
            proxy = proxy._replace(x=options.chain.fixed(proxy.x, no_draws))
        return StageSettings(
            model=self.model,
            task=self.population.task,
            work=self.work,
            seed=options.seed,
            buffers=options.buffers,
            proxy=proxy,
            classes=self.population.class_count,
            sampling=self.sampling,
            secret_noise=bool(self.federated),
            malicious=malicious_clients(method_of(self.plan), self.population.sizes, options.seed),
        )

    @cached_property
    def sampling(self) -> ReleaseSampling:
        """The draw of clients for the rounds, which decides what a round costs a private method."""
        options = self.options
        sizes = self.population.sizes[self.population.sizes > 0]
        eligible = max(1, len(sizes))
        how = self._draw_of_cohorts
        if how == "poisson" and options.participation < 1:
            expected: float = options.participation * eligible
            fewest = 0
        else:
            count = cohort_size(options.participation, eligible)
            expected = count
            fewest = self.federated or count
        # Sites of a federation know the seed, by which each cohort is drawn: to them nothing is random.
        draw = "all" if self.federated or expected == eligible else how
        return ReleaseSampling(
            units=eligible,
            expected=expected,
            draw=draw,
            releases=options.rounds,
            min_contributions=fewest,
            sizes=tuple(np.unique(sizes).tolist()),
        )

    @property
    def _draw_of_cohorts(self) -> Literal["fixed", "poisson"]:
        """The draw of the method's sampler, or else that of the option. Raises `UnalikeError` where both say something."""
        sampler = method_of(self.plan).sampler
        if sampler is None:
            return self.options.sampling
        if self.options.sampling != RunOptions.sampling:
            raise UnalikeError(
                f"found sampling={self.options.sampling!r} and {sampler.name}, which chooses the clients of each round itself; "
                "leave one of them out"
            )
        return sampler.draw

    @cached_property
    def ending(self) -> StopRules:
        """The rules that end the run before its last round."""
        return StopRules(self.options.stop, self.options.budget, self.columns)

    @cached_property
    def columns(self) -> Columns:
        """The columns of scores that the history of the run may have."""
        columns = Columns.of(
            protocols=(*self.options.protocols, "personal"),
            metrics=run_metrics(self.population.task, self.metrics).values(),
            validated=bool(len(self.population.val.values)),
        )
        return columns | columns_of_attack(method_of(self.plan), columns)

    @cached_property
    def warnings(self) -> list[str]:
        """Warnings about a configuration that can be run."""
        found = []
        if not self.options.rounds and not self.plan.useful_untrained:
            found.append(
                "rounds=0 trains nothing: the run holds the initial model and its evaluation; expected 1 or more"
            )
        if not self.population.is_scored(self.options.protocols):
            found.append(
                "no client has a test sample, and no test set is given: the run has no score. Give --split 0.75 or --protocol "
                "server, in Python ua.partition(..., split=0.75), ClientData(test=...), or protocol='server' with test=(x, y)"
            )
        largest = int(self.population.sizes.max(initial=0))
        batch_size = self.work.batch_size or 0
        if batch_size != Work().batch_size and 0 < largest < batch_size:
            found.append(
                f"batch_size={batch_size} is above the {largest} training samples of the largest client: every step takes all "
                "samples of its client"
            )
        if self.start is not None and self.start.partial:
            found.append(f"the run starts from {self.start.path}: {self.start.taken}")
        if self.ending.warning:
            found.append(self.ending.warning)
        context = example_context(self.plan, self.population)
        found += note_outputs(self.model, self.population, context)
        if self.options.buffers == "average":
            found += note_averaged_buffers(self.model, self.population, context)
        return found

    @cached_property
    def data_notes(self) -> tuple[str, ...]:
        """Warnings of the partition, which were given when it was made, and about samples that nothing can be learned from."""
        notes = [] if self.population.plan is None else [*self.population.plan.notes]
        notes += note_on_malicious(self.settings.malicious, self.population)
        notes += _note_on_idle_tests(self.population, self.options.protocols)
        notes += sanity.warnings_of(self.population)
        notes += suspect_values(self.population)
        notes += self.population.leak_notes
        if self.test is not None and self.population.is_here:
            notes += server_leak_notes(self.population.x, self.population.train, self.test[0])
        return tuple(notes)

    @cached_property
    def sanity(self) -> str:
        """The score of a constant prediction, for comparison; empty where the samples are elsewhere."""
        labels = None
        if self.options.protocols[:1] == ("server",) and self.test is not None:
            labels = self.test[1]
        return sanity.constant_prediction(self.population, labels)

    @property
    def plan_inputs(self) -> PlanInputs:
        """The inputs that a plan builds its stages from."""
        population = self.population
        return PlanInputs(
            clients=len(population),
            rounds=self.options.rounds,
            model=self.model,
            seed=self.options.seed,
            samples=int(population.sizes.sum()),
            clusters=population.clusters,
            proxy=_batch(self.proxy),
            task=population.task,
            groups=self.groups,
            models=self.models,
            input_shape=population.input_shape,
        )

    @cached_property
    def outline(self) -> list[Step]:
        """The stages and client queries of the plan, as far as they are known before it runs."""
        return plan_outline(self.plan, self.plan_inputs, self.settings)

    def obstacle(self, rounds: int) -> str:
        """The reason why a run of so many rounds, fewer than these, is not the beginning of this one; empty if it is."""
        shorter = replace(self, options=replace(self.options, rounds=rounds))
        if shorter._rounds_of_steps != self._rounds_of_steps:
            return f"{self.method_text} divides its rounds among stages, so {rounds} rounds are not the beginning of more"
        every = self.options.evaluate_every
        if rounds % every:
            return f"with evaluate_every={every}, round {rounds} is evaluated only as the last one"
        return ""

    @property
    def _rounds_of_steps(self) -> list[int]:
        """The number of rounds of each step of the plan but the last."""
        return [getattr(step, "rounds", 0) for step in self.outline[:-1]]

    @property
    def wire(self) -> list[Item]:
        """The tensors that cross the wire in the steps of the plan."""
        samples = self.population.example_samples

        def client_facts(method: Method) -> Context:
            return {} if samples is None else method.client_facts(samples, self.settings)

        clients = int((self.population.sizes > 0).sum())
        return plan_wire(self.outline, self.settings, client_facts, clients)

    @property
    def device(self) -> torch.device:
        return torch.device(self.options.device)

    def with_network_of(self, client: int) -> RunConfig:
        """The same with one network, that of the client; itself where networks do not differ."""
        if self.models is None or self.groups is None:
            return self
        name = next(name for name, ids in self.groups.items() if client in ids)
        text = str(models_by_name(self.model_text)[name])
        return replace(
            self,
            model=self.models[name],
            model_name=text,
            model_text=text,
            groups=None,
            models=None,
        )

    def here(self, place: int = 0) -> RunConfig:
        """The same with samples and model on the device. Where a name stands for several devices ("cuda"), the `place`-th process
        of a machine uses the `place`-th of them."""
        device = self.device
        if device.type == "cpu":
            return self
        if device.index is None:
            count = torch.get_device_module(device).device_count()
            device = torch.device(device.type, place % count)
        return replace(
            self,
            population=self.population.to(device),
            model=self.model.to(device),
            models=_models_on(device, self.models),
            test=_pair_on(device, self.test),
            proxy=_pair_on(device, self.proxy),
        )


def configure_run(
    spec: object,
    clients: Clients,
    *,
    model: ModelOrNetworks,
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
    """Check the inputs of one run and prepare it, for callers that read no data in between. Raises `UnalikeError`."""
    method = named_plan(spec)
    checked = check_inputs(
        [method],
        model=model,
        start=start,
        start_partial=start_partial,
        work=work,
        has_test=test is not None,
        record=record,
        **options,
    )
    return prepare_run(
        method,
        clients,
        checked,
        model=model,
        start=start,
        start_partial=start_partial,
        work=work,
        test=test,
        proxy=proxy,
        metrics=metrics,
        record=record,
        federated=federated,
    )


def prepare_run(
    method: NamedPlan,
    clients: Clients,
    options: RunOptions,
    *,
    model: ModelOrNetworks,
    start: str | Path | None = None,
    start_partial: bool = False,
    work: Work | None = None,
    test: Pair | None = None,
    proxy: Pair | None = None,
    metrics: Custom | None = None,
    record: str | Hook | Recording | None = None,
    federated: int = 0,
) -> RunConfig:
    """Prepare a run of inputs that `check_inputs` passed: make its model, and check all that needs the data.

    `federated` as in `RunConfig`. Raises `UnalikeError`.
    """
    plan = method.plan
    population = clients if isinstance(clients, Population) else Population.of(clients)
    population = under_attack(population, method_of(plan), options.seed)

    # The model is tried on two samples: what does not fit would otherwise fail in the middle of the first round.
    context = example_context(plan, population)
    networks = given_networks(model)
    _check_networks(networks, plan, start=start, protocols=options.protocols)
    made_models = {}
    texts = {}
    started = None
    for name, given in models_by_name(model).items():
        architecture = fitted(given, context) if isinstance(given, str) else given
        made, texts[name] = make_model(architecture, population, options.seed)
        if start is not None:
            made, started = start_from(made, start, start_partial)
        check_fit(made, population, context)
        if not isinstance(given, str):
            check_repeats(made, population, context)
        made_models[name] = made.to("cpu").at(options.precision)
    if networks is not None:
        method_of(plan).check_unlike(made_models)
        made_models = common_start(method_of(plan), made_models)
    made, *_ = made_models.values()
    model_text, *_ = texts.values()
    if networks is not None:
        model_text = str(networks)
    _check_transform(options, population)

    # The configuration stays on the CPU; each process that trains moves it to its own device (`RunConfig.here`).
    population = population.to("cpu")
    work = (work or Work()).over(options.rounds)
    for one in made_models.values():
        check_loss(work, one, population, context)

    groups = None
    if networks is not None:
        # a site of a federation does not know how many samples the others have
        may_train = np.full(len(population), federated > 0) | (population.sizes > 0)
        groups = networks.clients(
            population,
            may_train=may_train,
            devices=options.device_model,
            seed=options.seed,
        )

    named = {m.name: m.of(population.task, population.classes) for m in options.chosen_metrics}
    recording = Recording.of(record)
    if plan.needs_products:
        recording = replace(recording or Recording(), products=True)
    run_config = RunConfig(
        plan=plan,
        population=population,
        model=made,
        work=work,
        options=options,
        model_name=model if isinstance(model, str) else model_text,
        model_text=model_text,
        test=_tensors("test", test, population),
        proxy=_tensors("proxy", proxy, population),
        metrics=named | own_metrics(metrics),
        method_text=method.text,
        start=started,
        recording=recording,
        federated=federated,
        groups=groups,
        models=None if networks is None else made_models,
    )
    _check_rules(run_config)
    _check_first_stage(run_config)
    if run_config.models is not None:
        check_sums(method_of(plan), run_config.settings, run_config.models)
    _check_tested(run_config)
    # Last, since it asks what crosses the wire, which only a run that is possible can say.
    check_privacy(
        method.text, run_config.outline, run_config.wire, run_config.settings, run_config.options
    )
    privacy = method_of(plan).privacy
    if privacy is not None and privacy.per_sample:
        check_single_samples(made, population, context, privacy.name)
    return run_config


def _check_networks(
    networks: Networks | None,
    plan: Plan,
    *,
    start: str | Path | None,
    protocols: Sequence[str],
) -> None:
    """Raise `UnalikeError` for what clients of unlike networks cannot do."""
    if networks is None:
        return
    found = ""
    if not isinstance(plan, Method):
        found = f"{plan!r}, a plan with stages of its own"
    elif start is not None:
        found = "start, the weights of one network"
    elif "server" in protocols:
        found = "the protocol 'server', which evaluates one model of all clients"
    if found:
        raise UnalikeError(
            f"found the networks {', '.join(networks.models)} beside {found}; expected a method alone: leave it out, or give one "
            f"model ({Limit.INPUTS})"
        )


def _check_transform(options: RunOptions, population: Population) -> None:
    """Raise `UnalikeError` if the transform of training batches cannot be used on the samples."""
    if options.chain is None:
        return
    if not is_one_tensor(population.x) or population.x.dim() != 4:
        shape = list(population.input_shape)
        raise UnalikeError(
            f"transform={options.transform!r} is for images; found samples of shape {shape}: leave it out ({Limit.INPUTS})"
        )
    if options.chain.draws and population.task.predicts_arrays:
        raise UnalikeError(
            f"transform={options.transform!r} changes images at random and leaves their labels as they are, which for the task "
            f"{population.task.name} are as large as the images; transform both before the run, or keep normalize alone"
        )
    options.chain(population.x[:1], torch.zeros(1, options.chain.draws))


def _check_rules(run_config: RunConfig) -> None:
    """Raise `UnalikeError` if a rule that ends the run, or chooses its round, reads a score that there is not."""
    _ = run_config.ending
    if run_config.options.select == "best" and not run_config.columns.validated:
        raise UnalikeError(
            "select='best' chooses a round by its score, which must not be that of the test samples, and the clients have no "
            "validation samples; give ua.partition(..., val=0.1), --val 0.1 or ClientData(val=...)"
        )


def _check_first_stage(run_config: RunConfig) -> None:
    """Raise `UnalikeError` if the plan, or the method of its first stage, lacks something that it needs."""
    first = next(steps_of(run_config.plan, run_config.plan_inputs))
    if isinstance(first, Stage):
        first.method.check_task(run_config.population.task)
        first.method.check_loss(run_config.work)
        model = first.model or run_config.model
        first.method.check_moved(model)
        first.method.check_sampled(model)
        first.method.require(run_config.settings.proxy)


def _check_tested(run_config: RunConfig) -> None:
    """Raise `UnalikeError` if only clients that never train are tested (`leave_one_out`), and the method has no model for them."""
    population = run_config.population
    tested = population.test.sizes > 0
    if not tested.any() or population.sizes[tested].any():
        return
    stages = [step for step in run_config.outline if isinstance(step, Stage)]
    if not stages:
        return
    last = stages[-1]
    groups = len(last.members(len(population)))
    model = last.model or run_config.model
    why = last.why_no_single_model(model, run_config.options.buffers, groups)
    if not why and run_config.plan.divides:
        why = "makes groups of clients by what they train"
    if why:
        raise UnalikeError(
            f"only clients that never train are tested, and {run_config.method_text} {why}; so it has no model for them: leave it "
            "out, or name a partition in which clients test their own samples, such as natural"
        )


def _note_on_idle_tests(population: Population, protocols: Sequence[str]) -> list[str]:
    """A sentence where a division set samples of the clients apart as tests, and only the server's test set is scored."""
    plan = population.plan
    idle = len(population.test.values)
    if tuple(protocols) != ("server",) or plan is None or plan.split == 1 or not idle:
        return []
    return [
        f"the protocol server scores none of the {idle} test samples of the clients, and nobody trains on them either; with "
        "--split 1, in Python split=1.0, clients train on them, too"
    ]


def _tensors(name: str, found: Pair | None, population: Population) -> TensorPair | None:
    """The server's samples that a user gave, as tensors like those of the clients. Raises `UnalikeError` for others."""
    if found is None:
        return None
    task = None if population.task_to_name is None else population.task
    x, y = array_checks.pair(found, name, task)
    if layout_of(x) != layout_of(population.x):
        raise UnalikeError(
            f"{name}: x has samples of shape {layout_of(x)}; expected samples of shape {layout_of(population.x)}, as the clients "
            "have"
        )
    if not len(y):
        raise UnalikeError(f"{name}: found no sample; expected some, or leave {name} out")
    array_checks.check_labels(population.task, y, population.classes, name)
    if y.shape[1:] != population.y.shape[1:]:
        raise UnalikeError(
            f"{name}: labels are {shape_in_words(y)}, expected {shape_in_words(population.y)}, as the clients have"
        )
    y = y.to(population.y)
    if not is_one_tensor(x):
        return map_inputs(lambda t: t.to(y.device), x), y
    x = x.to(population.x)
    if population.plan is not None and not x.is_floating_point():
        # as the partition did with the clients' own
        x = replace_untrained(x, trained_words(population))
    return x, y


def _fingerprint_of(pair: TensorPair) -> str:
    """The hash of samples and labels; the arrays of a tree are numbered, since the layout of the inputs has their names."""
    x, y = pair
    if is_one_tensor(x):
        return fingerprint({"x": x, "y": y})
    arrays = {f"x{number}": values for number, values in enumerate(tensors_of(x))}
    return fingerprint(arrays | {"y": y})


def _batch(pair: TensorPair | None) -> Batch | None:
    if pair is None:
        return None
    x, y = pair
    return Batch(x, y)


def _models_on(
    device: torch.device, models: Mapping[str, Model] | None
) -> Mapping[str, Model] | None:
    if models is None:
        return None
    return {name: model.to(device) for name, model in models.items()}


def _pair_on(device: torch.device, pair: TensorPair | None) -> TensorPair | None:
    if pair is None:
        return None
    x, y = pair
    return map_inputs(lambda t: t.to(device), x), y.to(device)
