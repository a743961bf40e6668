"""A part is one remedy: a frozen dataclass. Its fields are hyperparameters, its methods are pure functions.

`Part` declares what all parts may have: state on the server and on a client, messages in both directions, facts of a
client's data. All of these are empty by default. The roles in `roles.py` add one verb each.

A round calls the hooks in this order:

    server   broadcast, address
    client   begin -> (loss -> correct -> solver -> project, once a step) -> finish, kept_buffers -> encode
    server   decode -> forge -> weights -> weigh -> screen -> final_weights -> combine -> fold, absorb -> step
"""

import dataclasses
import math
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform

from torch import Tensor

from unalike._utils import spec
from unalike._utils.registry import Registry
from unalike.core.model import Model
from unalike.core.types import Batch, PartTrees, Tree
from unalike.core.views import ClientView, PartLookup, ServerView, StageSettings
from unalike.core.work import Work
from unalike.methods.declared import declared
from unalike.methods.flag_checks import check_flags
from unalike.methods.hook_names import check_hook_arguments, check_hook_names

registry = Registry("method or part", home="unalike.methods.catalogue", group="unalike.parts")
"""All names that spec text may use: parts are named for what they do, methods for their paper."""

P = TypeVar("P", bound=type)


@dataclass_transform(frozen_default=True)
def part(cls: P) -> P:
    """Class decorator: make a frozen, validated dataclass of a part and register it for spec text.

    The name in spec text is the class attribute `name`, or else the class name in snake case.

    Args:
        cls: A subclass of `Part` and of one or more roles. Its annotated fields are the hyperparameters; annotate class
            attributes with `ClassVar`.

    Returns:
        The class as a frozen dataclass. It raises `InvalidValue` for a field out of its range.

    Raises:
        UnalikeError: Another class or function has the same name, a name in the class is nearly that of a hook, a hook has other
            arguments than its role declares, or the class reads what it does not say that it needs.
    """
    check_hook_names(cls, Part)
    check_hook_arguments(cls, Part)
    check_flags(cls, Part)
    return declared(registry)(cls)


class Pull(NamedTuple):
    """A linear term of the gradient: strength * (v - w) + constant, at the parameters v of a client that received w.

    Both stay the same for all steps of a round.

    Attributes:
        strength: Factor of v - w.
        constant: Tree of the shared parameters; a name that it lacks counts as 0.
        momentum: What is added to the momentum with which SGD begins the round (0 without it); as `constant`.
    """

    strength: float = 0.0
    constant: Tree = {}  # noqa: RUF012  (a NamedTuple field is immutable by use)
    momentum: Tree = {}  # noqa: RUF012


class InnerLoop(NamedTuple):
    """Inner gradient steps of a local loss, from the current parameters v on the batch of a step.

        theta <- theta - rate (g(theta) + strength (theta - v))

    With a strength, the loss is the Moreau envelope: its gradient in v is strength (v - theta) (pFedMe). With strength 0 its
    gradient is g(theta) on the rows of odd place, and the steps before use those of even place (Per-FedAvg).

    Attributes:
        steps: Number of steps.
        rate: Their learning rate.
        strength: Factor of theta - v.
    """

    steps: int
    rate: float
    strength: float = 0.0


class Setup(NamedTuple):
    """Model, work and clients that the parts of a method meet in a stage; see `Part.shortfall`.

    Attributes:
        settings: Settings of the stage.
        participants: Number of clients in a round, of the group that has fewest.
        clients: Number of clients with training samples.
        rounds: Number of rounds of the run.
        steps: Fewest and most local steps of a client in a round.
        evaluate_every: Number of rounds between evaluations.
        one_class: Number of clients whose training samples have one class; 0 if that is not known.
        networks: Number of networks that clients have.
        updates_may_be_late: Whether an update may count in a later round than it was asked for.
        sends_updates: Whether clients send updates of parameters.
    """

    settings: StageSettings
    participants: int
    clients: int
    rounds: int
    steps: tuple[int, int]
    evaluate_every: int = 1
    one_class: int = 0
    networks: int = 1
    updates_may_be_late: bool = False
    sends_updates: bool = True

    @property
    def model(self) -> Model:
        """The model of the stage."""
        return self.settings.model

    def lacks(self, group: str) -> str:
        """The fault of a model in which a group or pattern of names cannot be treated differently from the rest; empty if it can.

        Either the model has no such parameters, or no others that train.
        """
        model = self.model
        what = GROUP_WORDS.get(group, f"parameter with a name like {group!r}")
        if not any(model.within(group, n) for n in (*model.params, *model.buffers)):
            return f"the model has no {what}"
        trained = [n for n in model.params if model.trainable(n)]
        if group != "all" and all(model.within(group, n) for n in trained):
            return f"no parameter trains beside the model's {what}"
        return ""


GROUP_WORDS: dict[str, str] = {
    "all": "parameter",
    "head": "head",
    "body": "body below a head",
    "norm": "normalization layer",
    "bias": "bias",
}


class Part:
    """State, messages and facts that every role shares. Every hook has a default that does nothing.

    A part never changes: state is a return value, and tensors that a hook is given are not written to. A part sees its own
    state and messages only. Client hooks run under `torch.vmap` in stacked executors: they use tensor operations, no Python
    control flow on values.
    """

    name: ClassVar[str]
    """Name in spec text, and key of the part's state and messages.

    Without it: the class name in snake case.
    """
    has_own_name: ClassVar[bool] = False
    """Papers know the part by its own name.

    Without it: `unalike list methods` shows only methods made of it.
    """
    rank: ClassVar[int] = 0
    """Place in a chained role: lower ranks act first, equal ones in the order of their names.

    Without it: 0. A correction that asks for another gradient after others have acted needs a negative one.
    """
    trains: ClassVar[bool] = False
    """The client state is optimized with the model, by a solver of its own (Ditto, APFL).

    Without it: the client state is constant in all steps.
    """
    keeps_model: ClassVar[bool] = False
    """The client keeps a model with its buffers (MOON). `trains` implies it.

    Without it: a class with `kept_buffers` is refused.
    """
    shares: ClassVar[tuple[str, ...]] = ()
    """Names of the `facts` that clients send.

    Without it: a look at `cohort.shared` is an error.
    """
    needs: ClassVar[Literal["sums", "spread", "updates"]] = "sums"
    """What the server half reads: "sums" over clients (`fold`), "spread", also the distance of each update from their mean
    (`cohort.spread`), or "updates", every single one (`cohort.update`).

    Without it: a look at more than the sums is an error.
    """
    needs_steps: ClassVar[bool] = False
    """The server half reads the clients' numbers of steps: `ua.aggregate` asks for them.

    Without it: a class that reads `cohort.steps` is refused.
    """
    sends_changes: ClassVar[bool] = False
    """Messages move what all clients follow, as updates do: changes of states that the server adds up, gradients of its momentum.

    Without it: a coordinator leaves messages ten times the room of an update.
    """
    updates_point_alike: ClassVar[bool] = False
    """Drift is taken out of local steps, so that updates of honest clients point alike, however much their samples differ.

    Without it: a coordinator compares the directions of large updates alone.
    """
    sums_are_exact: ClassVar[bool] = False
    """The server adds messages up as they are, and nothing is averaged: with one scaled, the result is that of no samples.

    Without it: a coordinator scales large updates and messages down, instead of refusing messages that are too large.
    """
    sums_sent: ClassVar[bool] = False
    """`finish` is given the model that the server decodes from the upload.

    Without it: an error beside an upload, for a part with states on both sides and no message.
    """
    sums_stay_alike: ClassVar[bool] = False
    """The sums of two rounds show a client that is in one of them, as messages hardly change.

    Without it: a secure aggregation accepts sums over fewer clients than all.
    """
    update_again: ClassVar[Literal["", "as it is", "by steps"]] = ""
    """What the server sums holds each update a second time: with the same factor, or divided by the client's local steps.

    Without it: a secure aggregation accepts clients of unequal steps, though two sums with other factors show their updates.
    """
    needs_of_task: ClassVar[str] = ""
    """The trait of its tasks, such as `CLASSES` of `core/tasks/task.py`.

    Without it: it runs on every task.
    """
    stands_alone: ClassVar[bool] = False
    """It is a method by itself, without other parts.

    Without it: it can be combined with others.
    """
    needs_proxy: ClassVar[bool] = False
    """It learns on the server from `server.proxy`.

    Without it: an error where there are no such samples comes in the first round, not before.
    """
    clients_read_proxy: ClassVar[bool] = False
    """Its client half reads these samples, too, as `client.settings.proxy`: the terms of a federation name them.

    Without it: sites have none of them.
    """
    mixes_models: ClassVar[bool] = False
    """The server half combines trained models: a late update counts as its client's model less the current one.

    Without it: as that model less the one which the client was sent.
    """
    hides_client_numbers: ClassVar[bool] = False
    """Clients send no number outside its account, such as the training loss. `Privacy` has it.

    Without it: they send it.
    """
    acts_without_clients: ClassVar[bool] = False
    """The server half also acts in rounds without clients, on zeros. `Privacy` has it.

    Without it: such a round changes nothing.
    """
    releases_once: ClassVar[bool] = False
    """A client sends one update of a round: a second would tell more. `Privacy` has it.

    Without it: a site that is asked twice trains twice.
    """
    updates_hold_noise: ClassVar[bool] = False
    """Updates hold noise that their sum counts on. `Privacy` has it.

    Without it: a coordinator scales large updates down.
    """
    sends_finite_values: ClassVar[bool] = False
    """Values sent are finite whatever the samples are. `Privacy` has it.

    Without it: an update that is not finite is refused, and the client named.
    """
    unlike_networks: ClassVar[Literal["refused", "equal shapes", "corners"]] = "refused"
    """Where clients' networks differ, its server half works with what has "equal shapes" in all of them, or also with the leading
    "corners" of larger tensors.

    Without it: such clients are refused.
    """
    simulated_only: ClassVar[str] = ""
    """What no real federation does, such as "an attack". `Attack` has it.

    Without it: federations accept it.
    """
    why_no_trials: ClassVar[str] = ""
    """Why the clients' validation samples may not choose hyperparameters.

    Without it: they may.
    """
    federation_note: ClassVar[str] = ""
    """A note of a run over a network.

    Without it: none.
    """
    advice_if_diverged: ClassVar[str] = ""
    """Its own advice where training diverges.

    Without it: none.
    """

    @property
    def needs_messages(self) -> bool:
        """Whether the server half reads what `finish` sends: `ua.aggregate` asks for it.

        Without it: yes with `finish`, and `fold` or every update, unless `sums_sent`.
        """
        reads_clients = overrides(self, "fold") or self.needs == "updates"
        return overrides(self, "finish") and reads_clients and not self.sums_sent

    @property
    def hides_participants(self) -> bool:
        """Whether nobody may know who takes part in a round. `Privacy` has it.

        Without it: no.
        """
        return False

    @property
    def shares_noise(self) -> bool:
        """Whether each client adds a share of the noise of a sum.

        Without it: no.
        """
        return False

    @property
    def updates_awaited(self) -> float:
        """The number of updates with which the server makes a step, where devices are simulated; others count when they come.

        Without it: the server awaits all updates of a round.
        """
        return math.inf

    def least_cohort(self, settings: StageSettings) -> int:
        """The fewest updates that make a round over a network. Default: 1.

        Args:
            settings: Settings of the stage.
        """
        return 1

    def least_samples(self, settings: StageSettings) -> int:
        """The fewest training samples with which what a client sends does not tell of single ones. Default: 0.

        Args:
            settings: Settings of the stage.
        """
        return 0

    def largest_update(self, server_state: Tree) -> float:
        """The largest norm that an update can have once a client has bounded it; a server refuses others. Default: infinite.

        Args:
            server_state: The part's server state when the client was asked.
        """
        return math.inf

    @property
    def sums_show_clients(self) -> str:
        """The message of which even a sum shows the addends, and how to do without it.

        Without it: a secure aggregation accepts the part.
        """
        return ""

    def why_impossible(self, message: Tree, samples: int) -> str:
        """The reason why no client with so many samples sends this message; empty if one may. Default: empty.

        A server refuses such a message. It has the names, shapes and types that `finish` sends, and finite values.

        Args:
            message: What a client says that `finish` of this part sent.
            samples: Number of its training samples.
        """
        return ""

    @property
    def special_group(self) -> str | None:
        """The group of parameters, or pattern of names, that it treats differently; a run notes its absence.

        Without it: none.
        """
        return None

    @property
    def needs_data(self) -> bool:
        """Whether it reads all local samples (`client.data.whole`, in random order).

        Without it: a look at them is an error.
        """
        return False

    def server_init(self, params: Tree) -> Tree:
        """Server state before the first round. Called once a stage. Default: empty.

        Args:
            params: Initial values of the parameters that clients train. Frozen ones are in `server.settings.model.params`.

        Returns:
            Any tree; its names and shapes stay the same in all rounds.
        """
        return {}

    def server_open(self, settings: StageSettings) -> Tree:
        """More server state before the first round, for a part that needs the model or the seed. Default: empty.

        Args:
            settings: Model, task, work and seed of the stage.

        Returns:
            Any tree; it is joined with that of `server_init`.
        """
        return {}

    def facts(self, data: Batch, settings: StageSettings) -> PartTrees:
        """Static facts of a client, by name. Called once per client and stage. Default: none.

        The model and the client hooks read them in `client.context`. Only the facts named in `shares` leave the client.

        Args:
            data: All training samples of the client, `x` [n, ...] and `y` [n, ...].
            settings: Settings of the stage.

        Returns:
            Name of a fact -> its tree, with the same names and shapes on all clients.
        """
        return {}

    def client_init(self, params: Tree) -> Tree:
        """Client state before the client's first participation. Default: empty.

        Args:
            params: Initial values of the parameters that the client trains and for which `keeps` holds. Frozen ones are in
                `client.initial_params`.

        Returns:
            Any tree; its names and shapes stay the same in all rounds and are equal on all clients.
        """
        return {}

    def keeps(self, name: str, model: Model) -> bool:
        """Whether `client_init` is given this parameter, if clients train it. Default: True."""
        return True

    def broadcast(self, server: ServerView) -> Tree:
        """Message to all clients of the round. Called once a round, before training. Default: none.

        Args:
            server: View of the server before the round; `server.state` is this part's own.

        Returns:
            Any tree. Clients read it as `client.message`.
        """
        return {}

    def address(self, server: ServerView, client: int) -> Tree:
        """Message to one client. Called once per client, after `broadcast`. Default: none.

        Args:
            server: View of the server before the round.
            client: Number of the client.

        Returns:
            A tree with the same names and shapes for all clients, merged into `client.message`.
        """
        return {}

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        """New client state and message to the server. Called after local training. Default: the old state, no message.

        Args:
            client: View of the client; `client.params` are the parameters after training, `client.steps` the steps made.

        Returns:
            (client state, message). The message may not hold parameters that are private: they are taken out.
        """
        return client.state, {}

    def kept_buffers(self, client: ClientView, own: Tree) -> Tree:
        """The buffers to keep of a model that is not trained beside the shared one. Called after `finish`, with `keeps_model`.

        Args:
            client: View of the client after training; `client.initial_buffers` are the shared model's buffers before training.
            own: The buffers kept before.

        Returns:
            A tree like `own`. Default: the shared model's buffers after training.
        """
        return client.buffers

    def pull(self, client: ClientView) -> Pull:
        """The gradient that `loss` or `correct` adds, where it is linear in v - w. With it compiled loops can train the method.

        For a part with `trains` it is what `loss` adds to the gradient of the task's loss at its own model v.

        Implement it only where it equals `loss` or `correct`; a contract test compares the two.

        Args:
            client: View of the client at the start of a phase.

        Returns:
            The linear term.

        Raises:
            NotImplementedError: The default; such a part is trained step by step.
        """
        raise NotImplementedError

    @property
    def inner_loop(self) -> InnerLoop | None:
        """Inner gradient steps of an objective's `loss` (Per-FedAvg, pFedMe), for compiled loops.

        With a strength, `finish` runs them with the gradient of all local samples, and returns their end as client state.

        Without it: clients train step by step.
        """
        return None

    def project(self, client: ClientView, grads: Tree, stepped: Tree) -> Tree:
        """For a part with `trains`: constrain its client state after a solver step. Default: `stepped` as it is.

        Args:
            client: View of the client before the step.
            grads: Gradients of the client state.
            stepped: Client state after the solver step.

        Returns:
            The client state to go on with (APFL keeps its weight in [0, 1]).
        """
        return stepped

    def fold(self, update: Tree, message: Tree, importance: Tensor) -> Tree:
        """The summand of one client for `absorb`; the caller sums over the cohort. Default: nothing.

        Args:
            update: Decoded update w_k - w of one client (no leading [K]).
            message: Message that `finish` of this part sent.
            importance: N p_k, p_k the client's weight in the objective over all N clients (`BaseWeights.importance`), [].

        Returns:
            A tree of tensors to sum. It is called under `torch.vmap`.
        """
        return {}

    def absorb(self, server: ServerView, folded: Tree) -> Tree:
        """New server state from sums over the cohort. Called once a round, before the server steps. Default: unchanged.

        Args:
            server: View of the server before the update is applied.
            folded: Sum of `fold` over the cohort; empty if `fold` is not implemented.

        Returns:
            The new server state.
        """
        return server.state

    def has_converged(self, server_state: Tree) -> bool:
        """Whether further rounds would change nothing, so that the stage ends. Called after each round. Default: no.

        Args:
            server_state: The part's server state after the round.
        """
        return False

    def needs_rate(self, method: PartLookup) -> bool:
        """Whether the server half uses the clients' learning rate, given the other parts of the method."""
        return False

    def check(self, method: PartLookup, work: Work) -> None:
        """Check the method and the local work before a run. Default: accept.

        Args:
            method: The method with all its parts.
            work: Local work that the user asked for.

        Raises:
            UnalikeError: The combination has no meaning. Warn instead where a combination is only known to mislead.
        """

    def shortfall(self, setup: Setup) -> str:
        """The reason why the part cannot do what its name says with this model and these clients; empty if it can.

        Called once a stage, before its first round; a run notes it. Where one client takes part in a round, or clients do not take
        part again, the run says so for all parts at once.

        Args:
            setup: Model, work and clients of the stage.

        Returns:
            A clause such as "the model has no normalization layer". The default looks for `special_group` in the model.
        """
        if self.special_group is None:
            return ""
        return setup.lacks(self.special_group)


def spec_text(named: Any) -> str:
    """The spec text of a part, a plan or a client query: its name with all its fields."""
    return str(spec.Call(named.name, parameters(named)))


def parameters(part: Part) -> dict[str, Any]:
    """Field name -> value of a part, in the order of the class."""
    names = [field.name for field in dataclasses.fields(part)]  # type: ignore[arg-type]
    return {name: getattr(part, name) for name in names}


def overrides(part: Part, hook: str) -> bool:
    """Whether a part does something in a hook: its class, or a base of it, replaces the default of the role that has the hook."""
    definitions = [vars(cls)[hook] for cls in type(part).__mro__ if hook in vars(cls)]
    in_effect, default = definitions[0], definitions[-1]
    return in_effect is not default
