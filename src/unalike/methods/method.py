"""A method is a sum of parts. Adding methods merges their parts: `fedprox + fednova` is FedMix."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar, get_type_hints

from unalike._utils import spec
from unalike._utils.errors import UnalikeError
from unalike._utils.functions import text_of_function
from unalike._utils.keywords import meant
from unalike._utils.limits import Limit
from unalike.core.losses import COUNTS, class_counts
from unalike.core.model import Model
from unalike.core.tasks.task import Task
from unalike.core.types import Batch, Context, PartTrees, Tree
from unalike.core.views import StageSettings
from unalike.core.work import Work
from unalike.methods.attack import Attack
from unalike.methods.base_plan import Plan
from unalike.methods.compressor import Sparsifier
from unalike.methods.default_parts import BySize, Mean, TaskLoss
from unalike.methods.part import Part, overrides, parameters, registry, spec_text
from unalike.methods.privacy import Privacy
from unalike.methods.roles import (
    Aggregator,
    BaseWeights,
    CohortStep,
    Conditioner,
    Correction,
    LinearAggregator,
    LocalGradient,
    LocalWork,
    Objective,
    Personalizer,
    PersonalModel,
    Phase,
    ServerOptimizer,
    ServerStep,
    TaskObjective,
    Upload,
    Weighting,
)
from unalike.methods.sampler import Sampler
from unalike.methods.screening import Screening

Role = TypeVar("Role")
PartType = TypeVar("PartType", bound=Part)
PartClass = TypeVar("PartClass", bound=type[Part])

DEFAULTS: dict[type[Part], Part] = {
    TaskObjective: TaskLoss(),
    BaseWeights: BySize(),
    Aggregator: Mean(),
}
"""Roles of exactly one part, with the part that stands in until another one takes its place."""

EXCLUSIVE: tuple[type[Part], ...] = (
    Sampler,
    Privacy,
    *DEFAULTS,
    LocalGradient,
    LocalWork,
    PersonalModel,
    Sparsifier,
    ServerOptimizer,
    Attack,
)
"""Roles of at most one part."""

ORDER = (
    Sampler,
    TaskObjective,
    Objective,
    LocalWork,
    Conditioner,
    Personalizer,
    Correction,
    Upload,
    CohortStep,
    BaseWeights,
    Weighting,
    Screening,
    Aggregator,
    ServerStep,
)
"""The canonical order of the parts of a method, which is the order in which a round uses them."""


class Method(Plan):
    """A federated method: an immutable, unordered collection of parts, complete by itself.

    `Method()` is FedAvg. `a + b` merges: equal parts count once, and a default (`task_loss`, `by_size`, `mean`) yields to
    another part of its role. Two different parts of an exclusive role, or one part with two settings, are refused.

    >>> Method.parse("fedprox + fednova") == Method.parse("fedmix")
    True
    """

    def __init__(self, *parts: Part):
        self.parts = _complete(parts)
        self._roles: dict[type, tuple[Any, ...]] = {}

    @classmethod
    def parse(cls, text: str) -> Method:
        """Read spec text such as `"fedprox(mu=0.1) + lws"`; `Method.parse(repr(m)) == m`."""
        methods = [as_method(registry.build(call)) for call in spec.parse(text)]
        return sum(methods, start=cls())

    def __add__(self, other: Method | Part | str) -> Method:
        return Method(*self.parts, *as_method(other).parts)

    def __radd__(self, other: Method | Part | str) -> Method:
        return self + other

    def swap(self, *parts: Method | Part | str) -> Method:
        """This method with `parts` in the place of those of their class or exclusive role.

        >>> Method.parse("fedprox").swap("proximal(mu=1)") == Method.parse("fedprox(mu=1)")
        True
        """
        new: list[Part] = []
        for addition in parts:
            new += _named_parts(addition)
        others = [p for p in self.parts if not _has_rival(p, new)]
        return Method(*others, *new)

    def role(self, role: type[Role]) -> tuple[Role, ...]:
        """The parts of a role, in the order in which they act."""
        if role not in self._roles:
            parts = [p for p in self.parts if isinstance(p, role)]
            self._roles[role] = tuple(sorted(parts, key=lambda p: p.rank))
        return self._roles[role]

    @cached_property
    def sampler(self) -> Sampler | None:
        """The part that chooses the clients of a round; None: the run's option does."""
        return _first(self.role(Sampler))

    @cached_property
    def aggregator(self) -> Aggregator:
        """The one part that combines the updates."""
        return self.role(Aggregator)[0]

    @cached_property
    def attack(self) -> Attack | None:
        """The attack of malicious clients; None: all are honest."""
        return _first(self.role(Attack))

    @cached_property
    def losses(self) -> tuple[Any, ...]:
        """The parts with a term in the local loss."""
        return (*self.role(Objective), *self.role(PersonalModel))

    @cached_property
    def has_task_loss_only(self) -> bool:
        """Whether clients minimize the task's loss and nothing else."""
        return [type(p) for p in self.losses] == [TaskLoss]

    def reports_task_loss(self, work: Work) -> bool:
        """Whether the training loss that a client reports is the task's."""
        return work.loss is None and type(self.losses[0]) is TaskLoss

    @cached_property
    def privacy(self) -> Privacy | None:
        """The part that makes what it releases differentially private."""
        return _first(self.role(Privacy))

    @property
    def protects(self) -> str:
        """The meaning of its epsilon in words; empty where it has none."""
        return "" if self.privacy is None else self.privacy.protects

    @cached_property
    def hides_client_numbers(self) -> bool:
        """Whether clients send no numbers that privacy does not account for, such as losses."""
        return any(p.hides_client_numbers for p in self.parts)

    @cached_property
    def hides_participants(self) -> bool:
        """Whether nobody may know who takes part in a round."""
        return any(p.hides_participants for p in self.parts)

    @cached_property
    def acts_without_clients(self) -> bool:
        """Whether the server half also acts in a round in which no client takes part."""
        return any(p.acts_without_clients for p in self.parts)

    @cached_property
    def releases_once(self) -> bool:
        """Whether a client may send one update of a round only."""
        return any(p.releases_once for p in self.parts)

    @cached_property
    def sums_are_exact(self) -> bool:
        """Whether the server adds messages up as they are, and averages nothing."""
        return any(p.sums_are_exact for p in self.parts)

    @cached_property
    def sums_stay_alike(self) -> bool:
        """Whether what clients send hardly differs from one round to the next."""
        return any(p.sums_stay_alike for p in self.parts)

    @cached_property
    def clients_read_proxy(self) -> bool:
        """Whether clients read the samples of the server, too."""
        return any(p.clients_read_proxy for p in self.parts)

    @cached_property
    def shares_noise(self) -> bool:
        """Whether each client adds its share of the noise of a sum of several updates."""
        return any(p.shares_noise for p in self.parts)

    @cached_property
    def updates_hold_noise(self) -> bool:
        """Whether updates hold noise that the sum of a round counts on."""
        return any(p.updates_hold_noise for p in self.parts)

    @cached_property
    def refuses_large_updates(self) -> bool:
        """Whether what is too large is refused: scaled down, it would bring too little noise, or be the sums of no samples."""
        return self.updates_hold_noise or self.sums_are_exact

    @cached_property
    def sends_finite_values(self) -> bool:
        """Whether what a client sends is finite whatever its samples are."""
        return any(p.sends_finite_values for p in self.parts)

    @cached_property
    def why_no_trials(self) -> str:
        """The reason of the first part that has one why hyperparameters may not be chosen by validation samples of the clients."""
        return next((p.why_no_trials for p in self.parts if p.why_no_trials), "")

    @property
    def federation_notes(self) -> list[str]:
        """The notes of its parts on a run over a network."""
        return [p.federation_note for p in self.parts if p.federation_note]

    @property
    def advice_if_diverged(self) -> list[str]:
        """The advice of its parts where training diverges."""
        return [p.advice_if_diverged for p in self.parts if p.advice_if_diverged]

    @cached_property
    def mixes_models(self) -> bool:
        """Whether a late update counts as its client's model less the current one."""
        return any(p.mixes_models for p in self.parts)

    @cached_property
    def updates_awaited(self) -> float:
        """The number of updates with which the server makes a step; infinite where it awaits all."""
        return min(p.updates_awaited for p in self.parts)

    def least_cohort(self, settings: StageSettings) -> int:
        """The fewest updates that make a round over a network."""
        return max(p.least_cohort(settings) for p in self.parts)

    def least_samples(self, settings: StageSettings) -> int:
        """The fewest training samples with which what a client sends does not tell of single ones."""
        return max(p.least_samples(settings) for p in self.parts)

    @cached_property
    def local_gradient(self) -> LocalGradient | None:
        """The part with a rule of its own for the gradients of local steps; None: they are ordinary ones."""
        return _first(self.role(LocalGradient))

    @cached_property
    def draws_own_batches(self) -> bool:
        """Whether a part draws the local batches itself; some may then be empty."""
        return self.local_gradient is not None and self.local_gradient.draws_own_batches

    @cached_property
    def conditioners(self) -> tuple[Conditioner, ...]:
        """The parts that describe a client to its model."""
        return self.role(Conditioner)

    @cached_property
    def trained_parts(self) -> tuple[Part, ...]:
        """The parts whose client state is optimized with the model."""
        return tuple(p for p in self.parts if p.trains)

    @cached_property
    def parts_with_client_model(self) -> tuple[Part, ...]:
        """The parts whose client state holds a model."""
        return tuple(p for p in self.parts if p.trains or p.keeps_model)

    @cached_property
    def parts_with_linked_states(self) -> tuple[Part, ...]:
        """The parts with a server state that belongs to their client states, as SCAFFOLD's c is the mean of the clients' c_k."""
        return tuple(p for p in self.parts if overrides(p, "client_init") and _has_server_state(p))

    @cached_property
    def personalizer(self) -> Personalizer | None:
        """The part that defines the model a client is evaluated with; None: the shared model."""
        return _first([p for p in self.role(Personalizer) if _has_own_model(p)])

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of local training."""
        ordering = _first([p for p in self.role(Personalizer) if _has_phases(p)])
        return (Phase(),) if ordering is None else ordering.phases()

    @cached_property
    def finetuning_phase(self) -> Phase | None:
        """The fine-tuning before a client is evaluated; None: there is none."""
        return None if self.personalizer is None else self.personalizer.tune()

    @cached_property
    def evaluates_broadcast(self) -> bool:
        """Whether a client's model is made of what the server would send it now, not of its client state alone."""
        if self.personalizer is None:
            return False
        return self.finetuning_phase is not None or self.personalizer.predicts_as_received

    @cached_property
    def finetuning_method(self) -> Method:
        """The method of that fine-tuning: the task's loss alone, on what personalizers and conditioners make of a client."""
        describing = [p for p in self.parts if isinstance(p, Conditioner | Personalizer)]
        parts = [p for p in describing if not isinstance(p, Objective)]
        return _FineTuning(self.finetuning_phase, *parts)

    @cached_property
    def needs_sums_only(self) -> bool:
        """Whether the server needs sums over the client updates only, so that it can add them up as they arrive."""
        return self.combines_by_weighted_sum and all(p.needs == "sums" for p in self.parts)

    @cached_property
    def combines_by_weighted_sum(self) -> bool:
        """Whether its aggregator is a weighted sum of the updates and nothing else."""
        rule = type(self.aggregator)
        hooks = ("final_weights", "combine", "combine_buffers")
        return all(getattr(rule, hook) is getattr(LinearAggregator, hook) for hook in hooks)

    def has_converged(self, part_states: PartTrees) -> bool:
        """Whether further rounds of a model with these server states of the parts would change nothing."""
        return any(p.has_converged(part_states.get(p.name, {})) for p in self.parts)

    def describe(self, data: Batch, outputs: int | None) -> Context:
        """The conditioners' facts of a client with these training samples."""
        return {p.name: p.describe(data, outputs) for p in self.conditioners}

    def is_personal(self, model: Model) -> bool:
        """Whether clients are evaluated with something of their own: a model, fine-tuning, or facts that the model is fed."""
        return self.personalizer is not None or self.is_conditioned(model)

    def is_conditioned(self, model: Model) -> bool:
        """Whether the model is fed facts of the client it predicts for."""
        return model.takes_context and bool(self.conditioners)

    def has_shared_model(self, model: Model) -> bool:
        """Whether clients have a model in common: something is averaged, and all that they train is sent."""
        private = model.params.keys() - self.shared_names(model.params, model)
        if len(private) == len(model.params):
            return False
        for name in private:
            if self.trains(name, model) and any(model.within(p.moves, name) for p in self.phases):
                return False
        return True

    def shares(self, name: str, model: Model) -> bool:
        """Whether a parameter or buffer is sent and averaged. Parameters that the module itself froze are not."""
        return name in self.shared_names([name], model)

    def shared_names(self, names: Iterable[str], model: Model) -> list[str]:
        """The names of parameters or buffers, among these, that are sent and averaged."""
        shared = [n for n in names if model.trainable(n)]
        for part in self.role(Personalizer):
            shared = [n for n in shared if part.shared(n, model)]
        return shared

    def sent_buffers(self, model: Model) -> list[str]:
        """The names of the buffers that clients send: the shared ones but those that follow from the shared parameters."""
        shared = self.shared_names(model.buffers, model)
        return [n for n in shared if n not in model.spectral_buffers]

    def trains(self, name: str, model: Model) -> bool:
        """Whether a parameter ever moves."""
        if not model.trainable(name):
            return False
        return all(p.trainable(name, model) for p in self.role(Personalizer))

    def trained_params(self, model: Model) -> Tree:
        """Initial values of the parameters that ever move: parts keep and send trees of these alone."""
        return {n: w for n, w in model.params.items() if self.trains(n, model)}

    def local_work(self, work: Work) -> Work:
        """The work that clients do under this method."""
        for p in self.role(LocalWork):
            work = p.work(work)
        return work

    @cached_property
    def needs_data(self) -> bool:
        """Whether any part looks at all samples of a client, beside the round's batches."""
        return any(p.needs_data for p in self.parts)

    def has_facts(self, work: Work) -> bool:
        """Whether a part or the loss looks for static facts of a client; else its data need not be gathered for them."""
        if work.criterion is not None and work.criterion.needs_counts:
            return True
        return any(overrides(p, "facts") for p in self.parts)

    @cached_property
    def parts_after_training(self) -> tuple[Part, ...]:
        """The parts that act after local training: on the update, the client state or a message."""
        keeping = {p for p in self.parts_with_client_model if overrides(p, "kept_buffers")}
        return tuple(
            p for p in self.parts if overrides(p, "finish") or isinstance(p, Upload) or p in keeping
        )

    @cached_property
    def parts_after_upload(self) -> tuple[Part, ...]:
        """The parts after training that are given the model that the server decodes from the upload (`sums_sent`)."""
        return tuple(p for p in self.parts if p.sums_sent and self.role(Upload))

    @cached_property
    def returns_update_only(self) -> bool:
        """Whether local training is one phase and its only result is the update."""
        if self.parts_after_training or self.role(Personalizer):
            return False
        return len(self.phases) == 1

    def client_facts(self, data: Batch, settings: StageSettings) -> Context:
        """The static facts of a client with these training samples, by name: those of the loss and of all parts."""
        facts: dict[str, Tree] = {}
        loss = settings.work.criterion
        if loss is not None and loss.needs_counts:
            facts |= {COUNTS: class_counts(data.y, settings.classes)}
        for p in self.parts:
            facts |= p.facts(data, settings)
        return facts

    def shared_facts(self, facts: Context) -> PartTrees:
        """The facts of a client that its parts share with the server, by name. Raises `UnalikeError` for a name that is none."""
        shared = {}
        for p in self.parts:
            for name in p.shares:
                if name not in facts:
                    raise UnalikeError(
                        f"{p.name} shares the fact {name!r}, and its method has the facts {[*facts]}; expected a name that `facts` "
                        "of a part returns"
                    )
                shared[name] = facts[name]
        return shared

    def check_unlike(self, networks: Mapping[str, Model]) -> None:
        """Raise `UnalikeError` where clients have these networks by name, and a part needs equal ones."""
        advice = (
            "clients of unlike networks can share prototypes ('fedproto'), logits on public samples ('fedmd'), a head of one "
            f"shape ('lg_fedavg'), or submodels ('heterofl'); see {Limit.INPUTS}"
        )
        needy = [p.name for p in self.parts if p.unlike_networks == "refused"]
        if needy:
            raise UnalikeError(
                f"{' and '.join(needy)}: found networks that differ, {', '.join(networks)}, expected one for all clients, or a "
                f"method without {' and '.join(needy)}; {advice}"
            )
        if self.aggregator.unlike_networks == "corners":
            return
        first, *_ = networks
        for name, model in networks.items():
            shapes = self._shared_shapes(model)
            wanted = self._shared_shapes(networks[first])
            differing = [n for n in {**wanted, **shapes} if wanted.get(n) != shapes.get(n)]
            if differing:
                parameter = differing[0]
                raise UnalikeError(
                    f"{self!r} averages {parameter}, which has the shape {wanted.get(parameter, 'of no parameter')} in the network "
                    f"{first!r} and {shapes.get(parameter, 'that of no parameter')} in {name!r}; expected equal shapes: {advice}"
                )

    def _shared_shapes(self, model: Model) -> dict[str, list[int]]:
        """Name -> shape of the parameters that are averaged."""
        return {n: [*model.params[n].shape] for n in self.shared_names(model.params, model)}

    def check_task(self, task: Task) -> None:
        """Raise `UnalikeError` for a task that a part is not defined for."""
        for p in self.parts:
            task.require(p.needs_of_task, asker=p.name)

    def check_moved(self, model: Model) -> None:
        """Raise `UnalikeError` where the server moves a parameter that no client trains, and a part has states for the others."""
        trained = self.trained_params(model)
        moved = [n for n in self.shared_names(model.params, model) if n not in trained]
        if not moved:
            return
        for p in self.parts:
            kept = {name.rpartition("/")[2] for name in p.server_init(trained)}
            if not kept.isdisjoint(trained):
                raise UnalikeError(
                    f"{self!r}: the server moves {moved[0]}, which no client trains, and {p.name} has a state for each parameter "
                    f"that clients train, and none for this one; leave {p.name} out"
                )

    def check_sampled(self, model: Model) -> None:
        """Raise `UnalikeError` where the sampler learns from updates, and clients send none."""
        sampler = self.sampler
        if sampler is None or sampler.needs != "updates":
            return
        if not self.shared_names(model.params, model):
            raise UnalikeError(
                f"{sampler.name} learns from the updates of clients, and with {self!r} they send none; leave {sampler.name} "
                "out, or choose another sampler, such as oort"
            )

    def require(self, proxy: object) -> None:
        """Raise `UnalikeError` if a part learns from samples on the server and there are none."""
        needy = [p.name for p in self.parts if p.needs_proxy]
        if needy and proxy is None:
            raise UnalikeError(
                f"{' and '.join(needy)}: found no samples on the server to learn from; "
                "pass proxy=(x, y), a few samples of no client's (on the command line --proxy 0.02)"
            )

    def check_real(self) -> None:
        """Raise `UnalikeError` if a part acts out what only a simulation carries out."""
        for p in self.parts:
            if p.simulated_only:
                raise UnalikeError(
                    f"{p.name} is {p.simulated_only}, which only a simulation carries out; use ua.run ({Limit.FEDERATION})"
                )

    def check_loss(self, work: Work) -> None:
        """Raise `UnalikeError` for a loss that the method would not minimize."""
        for p in self.role(TaskObjective):
            if work.loss is not None and not p.takes_loss:
                raise UnalikeError(
                    f"{p.name} brings the loss that fits the model to the labels, and "
                    f"loss={text_of_function(work.loss)!r} would not be minimized; leave one of them out"
                )

    def check(self, work: Work) -> None:
        """Let each part check the method and the work: raise `UnalikeError`, or warn."""
        self.check_loss(work)
        for p in self.parts:
            p.check(self, work)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Method) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __repr__(self) -> str:
        return " + ".join(spec_text(p) for p in self.parts)


class _FineTuning(Method):
    """A method whose only phase is the fine-tuning of another one."""

    def __init__(self, phase: Phase | None, *parts: Part):
        super().__init__(*parts)
        self._phase = phase

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        return () if self._phase is None else (self._phase,)


def _first(parts: Sequence[PartType]) -> PartType | None:
    return parts[0] if parts else None


def alias(name: str, summary: str, **fixed: Any) -> Callable[[PartClass], PartClass]:
    """Class decorator: register the method that consists of one part, under the name of its paper.

    Its parameters are the part's fields, with their types and defaults.

    Args:
        name: Name in spec text.
        summary: Docstring of the method: what it does, and its paper.
        fixed: Fields that the name decides; they are no parameters.

    Returns:
        A decorator that returns the class as it is.

    Raises:
        UnalikeError: Another method or part has the same name.
    """

    def register(cls: PartClass) -> PartClass:
        def build(**fields: Any) -> Method:
            return Method(cls(**fixed, **fields))

        # the method shows the signature of the part, but for the fields that its name decides
        types = get_type_hints(cls, include_extras=True)
        parameters = [
            p.replace(annotation=types[field])
            for field, p in inspect.signature(cls).parameters.items()
            if field not in fixed
        ]
        signature = inspect.Signature(parameters, return_annotation=Method)
        build.__name__ = name
        build.__qualname__ = name
        build.__module__ = cls.__module__
        build.__doc__ = summary
        build.__signature__ = signature  # type: ignore[attr-defined]
        registry.register(name)(build)
        return cls

    return register


def _named_parts(thing: Method | Part | str) -> list[Part]:
    """The parts that are named explicitly: all of a spec's own parts, and the parts of a method that are no defaults."""
    if isinstance(thing, Part):
        return [thing]
    if isinstance(thing, str):
        parts: list[Part] = []
        for call in spec.parse(thing):
            parts += _named_parts(registry.build(call))
        return parts
    return [p for p in as_method(thing).parts if p not in DEFAULTS.values()]


def as_method(thing: object) -> Method:
    """The method that a method, a part or spec text stands for. Raises `UnalikeError` for anything else."""
    if isinstance(thing, Method):
        return thing
    if isinstance(thing, Part):
        return Method(thing)
    if isinstance(thing, str):
        return Method.parse(thing)
    if isinstance(thing, Plan):
        raise cannot_be_added(thing)
    raise UnalikeError(
        f"{thing!r} cannot be part of a method; expected a part, a method or spec text"
    )


def cannot_be_added(plan: Plan) -> UnalikeError:
    """The error for a plan of several stages where a part or a method is expected."""
    return UnalikeError(
        f"{plan!r} is a plan with stages of its own and cannot be added to a method; run it by itself"
    )


def _complete(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The parts of a method in canonical order, each once, with the defaults. Raises `UnalikeError` where they do not combine."""
    for part in parts:
        if not isinstance(part, Part):
            raise UnalikeError(f"a method is made of parts; found {part!r}")
        _check_class(part)
    complete = list(dict.fromkeys(parts))

    # equal parts count once, so parts of one name that are left have different settings
    for part in complete:
        for other in complete:
            if other != part and other.name == part.name:
                raise _conflict(part, other, "the same part with different settings")

    for role in EXCLUSIVE:
        complete = _with_one_of(role, complete)

    loner = _first([p for p in complete if p.stands_alone])
    others = [p for p in complete if p is not loner and p not in DEFAULTS.values()]
    if loner is not None and others:
        why = f"{loner.name} is a method by itself, in which no other part has a say"
        raise _conflict(loner, others[0], why)

    # these two are no roles: only some personalizers have a model of the client, or phases
    owners = [p for p in complete if _has_own_model(p)]
    if len(owners) > 1:
        raise _conflict(owners[0], owners[1], "each defines what a client is evaluated with")
    ordering = [p for p in complete if _has_phases(p)]
    if len(ordering) > 1:
        raise _conflict(ordering[0], ordering[1], "each orders the training")
    return tuple(sorted(complete, key=_place))


def _with_one_of(role: type[Part], parts: list[Part]) -> list[Part]:
    """The parts with at most one of an exclusive role: its default stands in for none, and yields to another one."""
    default = DEFAULTS.get(role)
    rivals = [p for p in parts if isinstance(p, role)]
    chosen = [p for p in rivals if p != default]
    if len(chosen) > 1:
        why = f"two parts of the role {role.__name__}, which has room for one"
        if any(isinstance(p, Privacy) for p in chosen):
            why += "; epsilon is known for a sum with equal, fixed weights alone"
        raise _conflict(chosen[0], chosen[1], why)
    if chosen:
        return [p for p in parts if p not in rivals or p is chosen[0]]
    if default is not None and not rivals:
        return [*parts, default]
    return parts


def _check_class(part: Part) -> None:
    """Raise `UnalikeError` for a class without `@part` or a hook of its role, and for a field that no record of a run can hold."""
    cls = type(part)
    if "name" not in vars(cls):
        raise UnalikeError(
            f"found {cls.__name__}, a subclass of Part without a name of its own; write @ua.part above the class"
        )

    # roles are no ABCs, so Python itself accepts a class that lacks a hook
    for hook in dir(cls):
        if getattr(getattr(cls, hook), "__isabstractmethod__", False):
            near = meant(hook, vars(cls))
            advice = f"write def {hook}(self, ...) in the class"
            if near:
                advice = f"write `{hook}` instead of `{near}`"
            raise UnalikeError(f"{part.name} has no `{hook}`, which its role asks for; {advice}")

    # spec text, which names the part in records, holds literals only
    fields = parameters(part) if hasattr(part, "__dataclass_fields__") else dict[str, Any]()
    for name, value in fields.items():
        if not _is_literal(value):
            raise UnalikeError(
                f"{part.name}: {name}={value!r} is {type(value).__name__}; expected a number, text, True, False, None or a tuple "
                "of them, which the record of a run can hold: what is computed belongs in the part's methods"
            )


def _is_literal(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_literal(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)


def _has_server_state(part: Part) -> bool:
    return overrides(part, "server_init") or overrides(part, "server_open")


def _has_own_model(part: Part) -> bool:
    if not isinstance(part, Personalizer):
        return False
    hooks = ("personal", "predict", "tune")
    return part.keeps_model or any(overrides(part, hook) for hook in hooks)


def _has_phases(part: Part) -> bool:
    return isinstance(part, Personalizer) and overrides(part, "phases")


def _place(part: Part) -> tuple[int, int, str]:
    """The sort key of the canonical order: the first of its roles, its rank, its name."""
    places = [place for place, role in enumerate(ORDER) if isinstance(part, role)]
    first_role = places[0] if places else len(ORDER)
    return first_role, part.rank, part.name


def _has_rival(old: Part, new: Sequence[Part]) -> bool:
    return any(_are_rivals(old, n) for n in new)


def _are_rivals(a: Part, b: Part) -> bool:
    """Whether a method has room for one of the two only."""
    if a.name == b.name:
        return True
    return any(isinstance(a, role) and isinstance(b, role) for role in EXCLUSIVE)


def _conflict(a: Part, b: Part, why: str) -> UnalikeError:
    return UnalikeError(
        f"cannot combine {spec_text(a)} and {spec_text(b)}: {why}. Keep one of them; in Python "
        f"method.swap('{b.name}(...)') replaces it"
    )
