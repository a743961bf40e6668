"""A site: it keeps its data, does what the coordinator orders within the terms that it agreed to, and remembers it on disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError, unknown
from unalike._utils.spec import parse_one
from unalike._utils.tensor_files import read_tensors, sweep, write_bytes, write_tensors
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.types import Batch, Broadcast, Tree
from unalike.core.views import ServerState
from unalike.data.client_data import ClientData
from unalike.engine.threads import threads_for
from unalike.federation.coordinator.mailbox import ANSWER
from unalike.federation.protocol.envelope import Envelope, Head, seal, unseal
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.messages import AdmitRequest, ChooseRequest, QueryRequest, StepRequest, TrainRequest
from unalike.federation.protocol.packing import Facts, Limits, Malformed, checksum
from unalike.federation.protocol.printable import printable
from unalike.federation.protocol.roster import PARTS, alone, run_config_of
from unalike.federation.security.keys import PrivateKey, public_key, public_text
from unalike.federation.site.plan_replay import agreed, model_of
from unalike.federation.site.reply_cache import ReplyCache
from unalike.methods.client_query import registry as questions
from unalike.methods.method import Method
from unalike.methods.plan import Stage
from unalike.metrics.metric_sums import MetricSums
from unalike.metrics.scoring import Predict, score
from unalike.runtime.model_group import ModelGroup
from unalike.runtime.query_runner import ask_client, with_shared
from unalike.training.validation import check_tree, flat

Answer = tuple[Facts, Tree]
S = TypeVar("S", bound=StepRequest)

RUNS = 2
"""Runs whose memory a site keeps: the one that goes on and the one before."""
FIXED = ("fixed.", "shared/")
"""How the names begin of what stays the same for a whole step."""


class SiteWorker:
    """One site of a federation.

    It answers requests that the coordinator signed, of the newest run, under the terms of its own copy of the federation file:
    the methods and questions are those that the plan installed here has, and nothing else leaves it than what these say
    (`method.wire()`) and the sums and counts of its metrics. What it remembers lies in `folder`, and is written before it
    answers, so it may be killed at any moment. What it remembered of runs before the last two is removed when a new one begins.
    A run goes on with the samples that the site was admitted with. It trains on its own `device`, which nobody else is told.
    `tell` hears why a request was declined.
    """

    def __init__(
        self,
        federation: Federation,
        name: str,
        key: PrivateKey,
        data: ClientData,
        folder: Path | str,
        device: str = "cpu",
        tell: Callable[[str], None] = lambda line: None,
    ):
        self.federation, self.name, self.key, self.folder = federation, name, key, Path(folder)
        self.tell = tell
        self.number = federation.number(name)
        enrolled = federation.sites[self.number]
        if public_text(key) != enrolled.key:
            raise UnalikeError(
                f"the private key is not that of {name!r} in the federation file; use the site's own bundle"
            )
        self.coordinator = public_key(federation.coordinator)
        self.limits = Limits(bytes=federation.message_bytes)
        own = alone(federation, self.number, data)
        if len(own.train[self.number]) > enrolled.samples:
            raise UnalikeError(
                f"{name!r} has {len(own.train[self.number])} training samples and is enrolled for {enrolled.samples}; "
                "use fewer, or ask the coordinator for a larger number"
            )
        self.samples = own.fingerprint
        # a plan is laid out by samples that nobody uses
        self.run_config = run_config_of(federation, own, proxy=(own.x, own.y), device=device).here()
        self.population = self.run_config.population
        self.agreed = agreed(self.run_config)
        self._groups: dict[tuple[str, int, int], ModelGroup] = {}
        self._lock = Lock()
        sweep(self.folder)

    def handle(self, message: bytes) -> bytes:
        """The answer to a request; the same for the same request. One at a time."""
        with self._lock, threads_for(self.run_config.model):
            head = Head("unknown", 0, 0, self.name, "request")
            answers = ""
            try:
                request = unseal(message, self.coordinator, self.limits)
                head, answers = request.head, request.digest
                replies = self._replies(request)
                found = replies.find(request)
                if found is None:
                    facts, tensors = DESK[head.kind](self, request)
                    sent = tree.map(Tensor.cpu, tensors)
                    found = seal(replace(head, kind=ANSWER, answers=answers), facts, sent, self.key)
                    replies.keep(request, found)
                return found
            except Exception as error:  # whatever goes wrong with a request, the site is there for the next one
                known = isinstance(error, UnalikeError | OSError)
                why = printable(str(error) if known else f"{type(error).__name__}: {error}")
                self.tell(f"declined a request: {why}")
                return seal(replace(head, kind="unable", answers=answers), {"why": why[:1000]}, {}, self.key)

    def _replies(self, request: Envelope) -> ReplyCache:
        head = request.head
        if head.site != self.name:
            raise Malformed(f"a request to {head.site!r}; this is {self.name!r}")
        if head.kind not in DESK:
            raise Malformed(f"a request of the kind {head.kind!r}; expected one of {', '.join(DESK)}")
        known = sorted(f.name for f in self.folder.glob("*") if f.is_dir())
        if known and head.run < known[-1]:
            raise UnalikeError(f"run {head.run} is over: {known[-1]} is newer; a replay?")
        if head.run not in known:
            for old in known[: max(0, len(known) - RUNS + 1)]:
                shutil.rmtree(self.folder / old, ignore_errors=True)
        return ReplyCache(self.folder / head.run / "replies" / public_text(self.key)[:16])  # another key signs anew

    def _admit(self, request: Envelope) -> Answer:
        facts, _ = request.open(self.limits)
        self._check_terms(AdmitRequest.read(facts))
        write_bytes(self._admitted(request), self.samples.encode())
        return {part: len(self._rows(part)) for part in PARTS}, {}

    def _train(self, request: Envelope) -> Answer:
        asked, tensors = self._opened(request, TrainRequest)
        me, report = self.number, None
        group, broadcast = self._ordered(request, asked, tree.unpack(self._here(self._whole(request, asked, tensors))))
        group.state = ServerState(broadcast.round, broadcast.params, broadcast.buffers, {})
        group.accepted = _standing(me, asked.accepted)
        group.client_states.keep_from(broadcast.round)
        group.client_states.prune(group.accepted)
        tallies = {name: self._tallies(_known(name)(group, me, broadcast)) for name in asked.evaluate}
        if asked.train:
            report = group.executor.run(broadcast, [me], group.accepted, asked.population).one(me)
            group.client_states.save({me: broadcast.round})
        if report is not None and asked.local:
            group.accepted = {me: broadcast.round}
            tallies["local"] = self._tallies(group.local_model(me, group.state, report))
        return {"tallies": tallies}, {} if report is None else flat(report)

    def _ask(self, request: Envelope) -> Answer:
        asked, tensors = self._opened(request, QueryRequest)
        return {}, self._answers(asked, tree.unpack(tensors), ["model"])[0]

    def _choose(self, request: Envelope) -> Answer:
        """Its choice alone leaves the site."""
        asked, tensors = self._opened(request, ChooseRequest)
        answers = self._answers(asked, tree.unpack(tensors), [str(i) for i in range(asked.groups)])
        numbers = [float(number) for answer in answers for number in answer.values()]
        return {"choice": min(range(len(numbers)), key=numbers.__getitem__)}, {}

    def _answers(self, asked: QueryRequest, found: dict[str, Tree], part_trees: list[str]) -> list[Tree]:
        """The answers about the models in these drawers."""
        query = questions.build(parse_one(self._check_agreed(asked.query)))
        model = model_of(self.run_config, asked)
        settings, chain = replace(self.run_config.settings, model=model), self.run_config.options.chain
        answers = []
        for own_tree in part_trees:
            values = _filled(model.params | model.buffers, self._here(found.get(own_tree, {})))
            state = ServerState(0, tree.only(values, model.params), tree.only(values, model.buffers), {})
            answers.append(ask_client(query, settings, state, self.population, self.number, chain))
        return answers

    def _here(self, tensors: Tree) -> Tree:
        """Where the site computes."""
        return tree.map(lambda t: t.to(self.population.x.device), tensors)

    def _opened(self, request: Envelope, kind: type[S]) -> tuple[S, Tree]:
        """What is asked of the samples that this site was admitted with, within the terms, and what came with it."""
        facts, tensors = request.open(self.limits)
        asked, file = kind.read(facts), self._admitted(request)
        self._check_terms(asked)
        if file.exists() and file.read_text() != self.samples:
            raise UnalikeError(
                f"the samples of {self.name!r} are not those that it was admitted to this run with; join with the data that the "
                "run began with, or ask the coordinator for a new run"
            )
        return asked, tensors

    def _admitted(self, request: Envelope) -> Path:
        return self.folder / request.head.run / "samples"

    def _check_terms(self, asked: AdmitRequest) -> None:
        if asked.terms != self.federation.terms:
            raise UnalikeError(
                "the coordinator runs other terms than this site agreed to (method, model, work, seed, data, protocol, sites); "
                "compare the federation files"
            )

    def _check_agreed(self, text: str) -> str:
        if text not in self.agreed:
            raise UnalikeError(f"{text} is not among what this site agreed to: {'; '.join(sorted(self.agreed))}")
        return text

    def _whole(self, request: Envelope, asked: TrainRequest, tensors: Tree) -> Tree:
        """The order with what came once for the whole step, which is kept on disk before it is answered."""
        file = self.folder / request.head.run / f"stage-{request.head.stage}" / "fixed.safetensors"
        fixed = {n: t for n, t in tensors.items() if n.startswith(FIXED)}
        if not asked.fixed:
            return tensors
        if fixed:
            write_tensors(file, fixed)
        else:
            fixed, _ = read_tensors(file)
        if checksum(fixed) != asked.fixed:
            raise Malformed("what stays the same in this step is not what the order says; expected to be sent it anew")
        return tensors | fixed

    def _ordered(self, request: Envelope, asked: TrainRequest, found: dict[str, Tree]) -> tuple[ModelGroup, Broadcast]:
        """This site's group, and the order in it."""
        group = self._group(request, asked, Method.parse(self._check_agreed(asked.method)), found)
        model = group.settings.model
        params, buffers = (
            _filled(model.params, found.get("params", {}) | found.get("fixed.params", {})),
            _filled(model.buffers, found.get("buffers", {}) | found.get("fixed.buffers", {})),
        )
        messages = {n.removeprefix("messages."): t for n, t in found.items() if n.startswith("messages.")}
        return group, Broadcast(asked.round, params, buffers, messages, asked.lr)

    def _group(self, request: Envelope, asked: TrainRequest, method: Method, found: dict[str, Tree]) -> ModelGroup:
        run, stage, number = place = request.head.run, request.head.stage, asked.group
        if place not in self._groups:
            shared = Batch(found["shared"]["x"], found["shared"]["y"]) if "shared" in found else None
            model = _begun(model_of(self.run_config, asked), found) if asked.derived else self.run_config.model
            alone = Stage("site", method, 1, {"own": (self.number,)}, model=model, shared=shared)
            settings = replace(
                self.run_config.settings, model=model, work=method.local_work(self.run_config.work), proxy=None
            )
            source = self.population if shared is None else with_shared(self.population, shared)
            folder = self.folder / run / f"stage-{stage}" / f"group-{number:04d}"
            self._groups = {
                k: g for k, g in self._groups.items() if k[:2] == place[:2]
            }  # without those of steps that are over
            self._groups[place] = ModelGroup(
                alone, settings, source, lambda: "loop", folder, self.run_config.options.chain
            )
            self._groups[place].client_states.keep_from(asked.round)
            self._groups[place].client_states.adopt(_standing(self.number, asked.accepted))
        return self._groups[place]

    def _tallies(self, predict: Predict) -> dict[str, Any]:
        chain = self.run_config.options.chain
        chosen = predict if chain is None else chain.fixed.before(predict)
        own, found = self.population, {}
        for part in ("test", "val"):
            rows = self._rows(part)
            index = torch.from_numpy(rows)
            scores = score(own.task, chosen, own.x[index], own.y[index], rows)
            found[part] = MetricSums.of(own.task, scores).plain()
        return found

    def _rows(self, part: str) -> Any:
        return getattr(self.population, part)[self.number]


def _standing(me: int, accepted: int | None) -> dict[int, int]:
    return {} if accepted is None else {me: accepted}


def _filled(own: Tree, given: Tree) -> Tree:
    """The site's own values with those that it received, which must be of the same kind."""
    check_tree(given, {n: own.get(n, t.new_empty(0, 0)) for n, t in given.items()})
    return own | given


def _begun(model: Model, found: dict[str, Tree]) -> Model:
    """A model that the plan made with the values that the step began with: memories begin with those that are not averaged."""
    params = _filled(model.params, found.get("fixed.params", {}))
    buffers = _filled(model.buffers, found.get("buffers", {}) | found.get("fixed.buffers", {}))
    return Model(model.module(params, buffers))


def _known(protocol: str) -> Callable[[ModelGroup, int, Broadcast], Predict]:
    if protocol not in PREDICTS:
        raise unknown("protocol of a site", protocol, PREDICTS)
    return PREDICTS[protocol]


def _personal(group: ModelGroup, me: int, broadcast: Broadcast) -> Predict:
    [(_, predict)] = group.personal_models([me], broadcast if group.method.tuning is not None else None)
    return predict


PREDICTS: dict[str, Callable[[ModelGroup, int, Broadcast], Predict]] = {
    "clients": lambda group, me, broadcast: group.shared_model(me),
    "personal": _personal,
}
"""Protocol -> the model that it looks at, before training."""

DESK: dict[str, Callable[[SiteWorker, Envelope], Answer]] = {
    "admit": SiteWorker._admit,
    "train": SiteWorker._train,
    "ask": SiteWorker._ask,
    "choose": SiteWorker._choose,
}
"""Kind of a request -> who sees to it."""
