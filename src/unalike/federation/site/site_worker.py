"""A site's request handlers: receive an envelope, check it, do what it asks within the agreed terms, store the reply, send it."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Event, Lock
from typing import Any, TypeVar

import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.journal import Journal, entries
from unalike._utils.spec import parse_one
from unalike.core import tree
from unalike.core.codec import Facts, Limits, Malformed, checksum
from unalike.core.model import Model
from unalike.core.nests import map_tensors
from unalike.core.types import Batch, Broadcast, Tree
from unalike.core.views import Members, ServerState
from unalike.data.client_data import SPLITS, ClientData
from unalike.engine.loop import Loop
from unalike.engine.threads import threads_for
from unalike.federation.protocol.envelope import Envelope, Head, identity, seal, unseal
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.messages import (
    ANSWER,
    NOTICE,
    NOTICES,
    PROTOCOL,
    UNABLE,
    AdmitRequest,
    AgreedRequest,
    ChooseRequest,
    Declined,
    MaskedTrainRequest,
    QueryRequest,
    SetupRequest,
    StepRequest,
    TrainRequest,
    UnmaskRequest,
    printable,
    versions,
)
from unalike.federation.protocol.roster import run_config_of, site_population
from unalike.federation.secure_aggregation.summands import check_summed, own_weights, summand
from unalike.federation.security.keys import PrivateKey, public_key, public_text
from unalike.federation.site.plan_replay import model_of_step, planned_step
from unalike.federation.site.secure_sums import SecureSums
from unalike.federation.site.site_folder import JOURNAL, SiteFolder
from unalike.federation.site.site_policy import NO_RULES, SitePolicy
from unalike.methods.client_query import registry as queries
from unalike.methods.method import Method
from unalike.methods.plan import QueryStep, Stage
from unalike.metrics.metric_sums import MetricSums
from unalike.metrics.scoring import Predict, SharedModel, score
from unalike.runtime.stages.model_group import ModelGroup
from unalike.runtime.stages.query_runner import ask_client
from unalike.training.client.client_states import ClientStates, group_folder
from unalike.training.client.client_update import initial_client_state
from unalike.training.flat_update import flatten_update
from unalike.training.validation import check_tree

Answer = tuple[Facts, Tree]
S = TypeVar("S", bound=StepRequest)

RUN = re.compile(r"[0-9]{20}-[0-9a-f]{16}")
DAY = 24 * 3600 * 10**9
"""Nanoseconds by which a run may be from the future, by this machine's clock."""
FIXED_PREFIXES = ("fixed.", "shared/")
"""Prefixes of the tensors that are sent once for a whole step."""


class SiteWorker:
    """One site of a federation.

    It answers requests that the coordinator signed, of the newest run, under the terms of its own copy of the federation file. The
    methods and queries are those of the plan that is installed here; nothing leaves the site but what these declare
    (`ua.wire(method, model)`) and the sums and counts of its metrics. Its state is in `folder` and is written before a reply is
    sent, so the process may be killed at any moment. A new run removes the files of all runs but the last two. A run continues
    only with the samples that the site was admitted with. `device` is where the site trains; it is not reported to anybody.
    `log` gets the reason when a request is declined. `policy` are the site's own rules. Every answer and every request
    that was declined is an entry of `journal`. `done` is set when the coordinator says that all runs are finished.
    """

    def __init__(
        self,
        federation: Federation,
        name: str,
        key: PrivateKey,
        data: ClientData,
        folder: Path | str,
        device: str = "cpu",
        log: Callable[[str], None] = lambda line: None,
        policy: SitePolicy = NO_RULES,
    ):
        self.federation, self.name, self.key, self.log = federation, name, key, log
        self.folder, self.policy = SiteFolder(Path(folder)), policy
        self.journal, self.done = Journal(self.folder.path / JOURNAL), Event()
        self.number = federation.number(name)
        if public_text(key) != federation.sites[self.number].key:
            raise UnalikeError(
                f"the private key is not that of {name!r} in the federation file; use the site's own bundle"
            )
        self.coordinator = public_key(federation.coordinator)
        self.limits = Limits(bytes=federation.message_bytes)
        self.agreed, self._data, self._device = federation.variants, data, device
        self._groups: dict[tuple[str, int, int], ModelGroup] = {}
        self._lock = Lock()
        self._begin_with(federation)

    def _begin_with(self, federation: Federation) -> None:
        """Go on with runs of this method and seed, which are among those agreed on."""
        name, enrolled = self.name, federation.sites[self.number]
        data = self.policy.allowed(
            self._data, federation.method, federation.data.task == "classification"
        )
        population = site_population(federation, self.number, data)
        if len(population.train[self.number]) > enrolled.samples:
            raise UnalikeError(
                f"{name!r} has {len(population.train[self.number])} training samples and is enrolled for {enrolled.samples}; "
                "use fewer, or ask the coordinator for a larger number"
            )
        self.samples = population.fingerprint
        # a plan is outlined with proxy samples; a site never uses these
        proxy = (population.x, population.y)
        self.run_config = run_config_of(
            federation, population, proxy=proxy, device=self._device
        ).here()
        self.population, self.federation, self.terms = (
            self.run_config.population,
            federation,
            federation.terms,
        )
        for planned in self.run_config.outline if federation.secure_aggregation else ():
            check_summed(planned, self.run_config.settings)

    def handle(self, message: bytes) -> bytes:
        """Answer a request; a repeated request gets the same bytes. One request at a time."""
        with self._lock, threads_for(self.run_config.model):
            head, answers = Head("unknown", 0, 0, self.name, "request"), ""
            try:
                request = unseal(message, self.coordinator, self.limits)
                head, answers = request.head, request.digest
                self._check_head(head)
                if head.run not in self.folder.runs():
                    self.policy.check_new_run(self._begun.values(), time.time())
                self.folder.make_room(head.run)
                anew = head.kind in MASKING
                replies = self.folder.replies(head.run, public_text(self.key))
                reply = None if anew else replies.find(request)
                if reply is None:
                    before = 0 if anew else len(replies.of_round(request))
                    self.policy.check_request(head.round, self.federation.rounds, before)
                    facts, tensors = HANDLERS[head.kind](self, request)
                    tensors = tree.map(Tensor.cpu, tensors)
                    reply = seal(
                        replace(head, kind=ANSWER, answers=answers), facts, tensors, self.key
                    )
                    done = {
                        "trained": _is_update(tensors),
                        "evaluated": sorted(facts.get("tallies", ())),
                    }
                    self._write_down(
                        "answered",
                        message,
                        head,
                        answers,
                        **done,
                        sent=len(reply),
                        reply=identity(reply),
                    )
                    self._begun.setdefault(head.run, time.time())
                    if not anew:
                        replies.store(request, reply)
                return reply
            except (
                Exception
            ) as error:  # a failed request must not stop the site from answering the next one
                known = isinstance(error, UnalikeError | OSError)
                why = printable(str(error) if known else f"{type(error).__name__}: {error}")
                self.log(f"declined a request: {why}")
                is_disk = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
                code = error.code if isinstance(error, Declined) else "disk" if is_disk else "error"
                with suppress(UnalikeError):  # a full disk
                    self._write_down("declined", message, head, answers, code=code, why=why[:1000])
                return seal(
                    replace(head, kind=UNABLE, answers=answers), {"code": code}, {}, self.key
                )

    @cached_property
    def _begun(self) -> dict[str, float]:
        """Run -> when its first request was answered, by the journal, which is read once."""
        return {
            e["run"]: e["time"]
            for e in reversed([*entries(self.journal.path)])
            if e["event"] == "answered"
        }

    # 1. Check the request.

    def _check_head(self, head: Head) -> None:
        if head.site != self.name:
            raise Malformed(f"a request to {head.site!r}; this is {self.name!r}")
        if head.kind not in HANDLERS:
            raise Malformed(
                f"a request of the kind {head.kind!r}; expected one of {', '.join(HANDLERS)}"
            )
        if (
            not RUN.fullmatch(head.run) or int(head.run[:20]) > time.time_ns() + DAY
        ):  # it would end all real runs
            raise Malformed(
                f"a run {head.run}; expected the time at which it began in 20 digits, and a random number"
            )
        newest = max(self.folder.runs(), default="")
        if head.run < newest:
            raise Declined("over", f"run {head.run} is over: {newest} is newer; a replay?")

    def _write_down(
        self, event: str, message: bytes, head: Head, request: str, **facts: Any
    ) -> None:
        """Add an entry to the journal."""
        place = {"run": head.run, "step": head.stage, "round": head.round, "kind": head.kind}
        self.journal.add(event, **place, request=request, received=len(message), **facts)

    def _opened(self, request: Envelope, kind: type[S]) -> tuple[S, Tree]:
        """The request's facts, checked against the terms and the samples at admission; and its tensors."""
        facts, tensors = request.open(self.limits)
        step, admitted = kind.read(facts), self.folder.admitted(request.head.run)
        self._check_terms(step)
        most = sum(site.samples for site in self.federation.sites)
        if step.samples > most and not self.federation.open:
            raise Declined(
                "plan", f"{step.samples} training samples of all sites; expected at most {most}"
            )
        if not admitted:  # a run that went back to an earlier round admits nobody anew
            self.folder.admit(request.head.run, self.samples, self.policy.of_samples)
        elif admitted[0] != self.samples:
            now = self.policy.of_samples
            rules = [
                f" and with {then} in site.toml (now {now})" for then in admitted[1:] if then != now
            ]
            raise Declined(
                "samples",
                f"the samples of {self.name!r} are not those that it was admitted to this run with; join with the data that the "
                f"run began with{''.join(rules)}, or ask the coordinator for a new run",
            )
        return step, tensors

    def _check_terms(self, asked: AgreedRequest) -> None:
        if asked.terms != self.terms and asked.terms in self.agreed:
            self._begin_with(self.agreed[asked.terms])
        if asked.terms != self.terms:
            raise Declined(
                "terms",
                "the coordinator runs other terms than this site agreed to (method, model, work, seed, data, protocol, sites); "
                "compare the federation files",
            )

    def _check_round(self, step: TrainRequest, group: ModelGroup, messages: set[str]) -> None:
        """Raise `Declined` for what a round of the agreed method does not have."""
        settings, protocols = group.settings, {*self.federation.protocol}
        shown = {"clients"} if protocols & {"clients", "server"} else set()
        shown |= {"personal"} if group.method.is_personal(settings.model) else set()
        parts, lr = {part.name for part in group.method.parts}, settings.work.lr_at(step.round)
        for what, found, expected in (
            ("messages of", messages, parts),
            ("evaluations of", {*step.evaluate}, shown),
            ("evaluations of", {"local"} if step.local else set(), protocols),
            ("a learning rate of", {step.lr}, {lr}),
        ):
            if found - expected:
                odd, usual = (
                    ", ".join(map(str, sorted(s, key=str))) for s in (found - expected, expected)
                )
                raise Declined(
                    "plan", f"{what} {odd} in round {step.round}; expected {usual or 'none'}"
                )

    # 2. Do what it asks: one handler for each kind of request.

    def _admit(self, request: Envelope) -> Answer:
        facts, _ = request.open(self.limits)
        if (theirs := dict(facts.get("versions") or {}).get("protocol")) != PROTOCOL:
            raise Declined(
                "version", f"the coordinator speaks protocol {theirs}; this site speaks {PROTOCOL}"
            )
        self._check_terms(AdmitRequest.read(facts))
        self.folder.admit(request.head.run, self.samples, self.policy.of_samples)
        return {split: len(self._rows(split)) for split in SPLITS} | {"versions": versions()}, {}

    def _note(self, request: Envelope) -> Answer:
        facts, _ = request.open(self.limits)
        if facts.get("what") not in NOTICES:
            raise Malformed(f"a notice {str(facts)[:80]!a}; expected one of {', '.join(NOTICES)}")
        self.log(NOTICES[str(facts["what"])])
        if facts["what"] in ("next", "finished") and self.folder.has_model:
            home = self.folder.path.parent
            self.log(
                f"this site's model of the last round is kept: `unalike evaluate {home}`, `unalike predict {home}`"
            )
        if facts["what"] == "finished":
            self.done.set()
        return {}, {}

    def _train(self, request: Envelope) -> Answer:
        step, tensors = self._opened(
            request, MaskedTrainRequest if self.federation.secure_aggregation else TrainRequest
        )
        sent = {n: t for n, t in tensors.items() if not n.startswith(FIXED_PREFIXES)}
        me, update = self.number, None
        tensors = self._with_fixed(request, step, tensors)
        group, broadcast = self._broadcast(request, step, tree.unpack(self._on_device(tensors)))
        group.state = ServerState(broadcast.round, broadcast.params, broadcast.buffers, {})
        group.accepted = _accepted_rounds(me, step.accepted)
        group.client_states.keep_rounds_from(broadcast.round)
        group.client_states.drop_other_versions(group.accepted)
        models = {name: PREDICTS[name](group, me, broadcast) for name in step.evaluate}
        sums = {name: self._metric_sums(predict) for name, predict in models.items()}
        if models:
            self._keep_model(request, group, models.get("personal") or models["clients"])
        if step.train:
            if group.method.privacy is not None:
                self._check_first_update(request)
            update = map_tensors(
                lambda t: t[0], group.executor.run(broadcast, [me], group.accepted)
            )
            group.client_states.save({me: broadcast.round})
        if update is not None and step.local:
            group.accepted = {me: broadcast.round}
            sums["local"] = self._metric_sums(group.local_model(me, group.state, update))
        if update is None:
            return {"tallies": sums}, {}
        if not isinstance(step, MaskedTrainRequest):
            return {"tallies": sums}, flatten_update(update)
        weights = own_weights(group, [me], Members(step.clients, float(step.samples)))
        return {"tallies": sums}, self._sums(request).masked(
            request.head, step, sent, summand(group, update, weights)
        )

    def _check_first_update(self, request: Envelope) -> None:
        """Raise `Declined` where an update for this round may have left: a reply is stored before it is sent."""
        for file in self.folder.replies(request.head.run, public_text(self.key)).of_round(request):
            if _is_update(unseal(file.read_bytes(), self.key.public_key()).open()[1]):
                raise Declined(
                    "released",
                    f"a second update for round {request.head.round} of a private method",
                )

    def _mask(self, request: Envelope) -> Answer:
        """Answer a request of secure aggregation that needs no samples."""
        facts, tensors = request.open(self.limits)
        kind, answer = MASKING[request.head.kind]
        asked = kind.read(facts)
        self._check_terms(asked)
        return {}, answer(self._sums(request), request.head, asked, tensors)

    def _sums(self, request: Envelope) -> SecureSums:
        return SecureSums(
            self.federation, self.name, self.key, self.folder.path / request.head.run / "sums"
        )

    def _keep_model(self, request: Envelope, group: ModelGroup, predict: Predict) -> None:
        """Keep the model that was evaluated for the site's own use: its personal model where it has one, else the shared model.

        Not kept are a model that needs facts of the client beside the sample, and the models of a run whose best round is chosen.
        """
        model = group.settings.model
        if group.method.is_conditioned(model) or self.federation.select == "best":
            return
        if isinstance(predict, SharedModel):
            values = model.state_dict(predict.params | predict.buffers)
        else:
            values = group.personal(self.number, None)
        run, encoding = request.head.run, self.federation.data.encoding
        self.folder.write_model(run, self.run_config, self.name, values, encoding)

    def _ask(self, request: Envelope) -> Answer:
        asked, tensors = self._opened(request, QueryRequest)
        planned_step(self.run_config, request.head.stage, asked.query, QueryStep, asked)
        return {}, self._query_answers(asked, tree.unpack(tensors), ["model"])[0]

    def _choose(self, request: Envelope) -> Answer:
        """The number of the model with the smallest answer; the answers themselves stay here."""
        asked, tensors = self._opened(request, ChooseRequest)
        planned_step(self.run_config, request.head.stage, asked.query, Stage, asked)
        models = tree.unpack(tensors)
        if len(models) != asked.groups:
            raise Malformed(
                f"a choice among {asked.groups} models, of which {len(models)} came; expected all of them"
            )
        answers = self._query_answers(asked, models, [str(i) for i in range(asked.groups)])
        numbers = [float(number) for answer in answers for number in answer.values()]
        return {"choice": min(range(len(numbers)), key=numbers.__getitem__)}, {}

    def _query_answers(
        self, asked: QueryRequest, models: dict[str, Tree], names: list[str]
    ) -> list[Tree]:
        """The answers to a query about each of the named models."""
        query = queries.build(parse_one(asked.query))
        model = model_of_step(self.run_config, asked)
        settings, chain = (
            replace(self.run_config.settings, model=model),
            self.run_config.options.chain,
        )
        answers, secret = [], self.folder.secret(self.samples)
        for name in names:
            values = _received(model.params | model.buffers, self._on_device(models.get(name, {})))
            state = ServerState(
                0, tree.only(values, model.params), tree.only(values, model.buffers), {}
            )
            answers.append(
                ask_client(query, settings, state, self.population, self.number, chain, secret)
            )
        return answers

    def _broadcast(
        self, request: Envelope, step: TrainRequest, trees: dict[str, Tree]
    ) -> tuple[ModelGroup, Broadcast]:
        """This site's model group, and the broadcast to it."""
        group = self._group(request, step, trees)
        model = group.settings.model
        params = _received(model.params, trees.get("params", {}) | trees.get("fixed.params", {}))
        buffers = _received(
            model.buffers, trees.get("buffers", {}) | trees.get("fixed.buffers", {})
        )
        messages = {
            n.removeprefix("messages."): t for n, t in trees.items() if n.startswith("messages.")
        }
        self._check_round(step, group, {*messages})
        return group, Broadcast(step.round, params, buffers, messages, step.lr)

    def _group(self, request: Envelope, asked: TrainRequest, trees: dict[str, Tree]) -> ModelGroup:
        run, step, number = key = request.head.run, request.head.stage, asked.group
        if key not in self._groups:
            self._groups = {
                k: g for k, g in self._groups.items() if k[:2] == key[:2]
            }  # drop those of earlier steps
            planned = planned_step(self.run_config, step, asked.method, Stage, asked).shared
            shared, method = None, Method.parse(asked.method)
            if "shared" in trees:
                shared = Batch(trees["shared"]["x"], trees["shared"]["y"])
            found, expected = (
                0 if public is None else len(public.y) for public in (shared, planned)
            )
            if found != expected:
                raise Declined("plan", f"{found} public samples to train on; expected {expected}")
            derived = asked.derived
            model = (
                _initial_model(model_of_step(self.run_config, asked), trees)
                if derived
                else self.run_config.model
            )
            stage = Stage("site", method, 1, {"own": (self.number,)}, model=model, shared=shared)
            work = method.local_work(self.run_config.work)
            settings = replace(self.run_config.settings, model=model, work=work, proxy=None)
            source = self.population if shared is None else self.population.with_shared(shared)
            folder = group_folder(self.folder.path / run, step, number)
            client_states = ClientStates(initial_client_state(method, settings), folder)
            members = Members(1, float(source.sizes[self.number]))
            group = ModelGroup(
                stage, settings, source, members, client_states, self.run_config.options.chain
            )
            group.executor = Loop(group.client_pool)
            group.client_states.keep_rounds_from(asked.round)
            group.client_states.use_versions(_accepted_rounds(self.number, asked.accepted))
            self._groups[key] = group
        return self._groups[key]

    def _metric_sums(self, predict: Predict) -> dict[str, Any]:
        chain = self.run_config.options.chain
        predict = predict if chain is None else chain.fixed.before(predict)
        population, chosen, sums = self.population, self.run_config.metrics, {}
        for split in ("test", "val"):
            rows = self._rows(split)
            index = torch.from_numpy(rows)
            scores = score(
                population.task,
                predict,
                population.x[index],
                population.y[index],
                rows,
                logits=bool(chosen),
            )
            sums[split] = (
                MetricSums.of(population.task, scores, chosen).rounded(self.policy.digits).plain()
            )
        return sums

    def _rows(self, split: str) -> Any:
        return getattr(self.population, split)[self.number]

    def _on_device(self, tensors: Tree) -> Tree:
        return tree.map(lambda t: t.to(self.population.x.device), tensors)

    def _with_fixed(self, request: Envelope, step: TrainRequest, tensors: Tree) -> Tree:
        """The tensors with those that are sent once for the whole step, which are on disk if this request does not bring them."""
        if not step.fixed:
            return tensors
        received = {n: t for n, t in tensors.items() if n.startswith(FIXED_PREFIXES)}
        if received:  # nothing is written for a step that was not agreed on
            planned_step(self.run_config, request.head.stage, step.method, Stage, step)
        fixed = self.folder.fixed_tensors(request.head.run, request.head.stage, received)
        if checksum(fixed) != step.fixed:
            raise Malformed(
                "the fixed tensors of this step do not have the digest in the request; expected them to be sent again"
            )
        return tensors | fixed


def _is_update(tensors: Tree) -> bool:
    """Whether a reply has an update, in clear or masked."""
    return not {"size", "masked"}.isdisjoint(tensors)


def _accepted_rounds(client: int, accepted: int | None) -> dict[int, int]:
    return {} if accepted is None else {client: accepted}


def _received(values: Tree, received: Tree) -> Tree:
    """The site's own values, replaced by the received ones; names, shapes and types must match. Raises `UnalikeError`."""
    check_tree(received, {n: values.get(n, t.new_empty(0, 0)) for n, t in received.items()})
    return values | received


def _initial_model(model: Model, trees: dict[str, Tree]) -> Model:
    """A model that the plan made, with the values at the start of the step: client states start from those not averaged."""
    params = _received(model.params, trees.get("fixed.params", {}))
    buffers = _received(model.buffers, trees.get("buffers", {}) | trees.get("fixed.buffers", {}))
    return Model(model.module(params, buffers))


def _personal(group: ModelGroup, me: int, broadcast: Broadcast) -> Predict:
    [(_, predict)] = group.personal_models(
        [me], broadcast if group.method.evaluates_broadcast else None
    )
    return predict


PREDICTS: dict[str, Callable[[ModelGroup, int, Broadcast], Predict]] = {
    "clients": lambda group, me, broadcast: group.shared_model(me),
    "personal": _personal,
}
"""Protocol -> the model that it evaluates before training."""

MASKING: dict[str, tuple[type[Any], Callable[..., Tree]]] = {
    "keys": (SetupRequest, SecureSums.keys),
    "shares": (SetupRequest, SecureSums.shares),
    "unmask": (UnmaskRequest, SecureSums.unmask),
}
"""Kinds of requests that are answered anew when they are repeated, with the same bytes; they count for no rule of the site."""

HANDLERS: dict[str, Callable[[SiteWorker, Envelope], Answer]] = {
    NOTICE: SiteWorker._note,
    "admit": SiteWorker._admit,
    "train": SiteWorker._train,
    "ask": SiteWorker._ask,
    "choose": SiteWorker._choose,
    **dict.fromkeys(MASKING, SiteWorker._mask),
}
"""Kind of a request -> its handler."""
