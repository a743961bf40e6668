"""A site: it keeps its data, does what the coordinator orders within the terms that it agreed to, and remembers it on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from unalike.core import tree
from unalike.core.checkpoint import sweep
from unalike.core.client import Setting
from unalike.core.errors import UnalikeError
from unalike.core.method import Method
from unalike.core.plan import Stage, Survey
from unalike.core.question import Question
from unalike.core.question import registry as questions
from unalike.core.server import State
from unalike.core.spec import parse_one
from unalike.core.types import Batch, Order, Tree
from unalike.core.validate import check_tree, flat
from unalike.data import ClientData, Population
from unalike.deploy.envelope import Envelope, Head, seal, unseal
from unalike.deploy.federation import Federation
from unalike.deploy.keys import PrivateKey, public_key, public_text
from unalike.deploy.packing import Facts, Limits, Malformed
from unalike.deploy.replay import agreed, model_of
from unalike.deploy.replies import Replies
from unalike.deploy.roster import PARTS, alone, job_of
from unalike.executors.threads import threads_for
from unalike.group import Group
from unalike.results.evaluation import Predict, score
from unalike.results.tally import Tally
from unalike.survey import ask, with_shared

Answer = tuple[Facts, Tree]


class Trainer:
    """One site of a federation.

    It answers requests that the coordinator signed, of the newest run, under the terms of its own copy of the federation file:
    the methods and questions are those that the plan installed here has, and nothing else leaves it than what these say
    (`method.wire()`) and the sums and counts of its metrics. What it remembers lies in `folder`, and is written before it
    answers, so it may be killed at any moment.
    """

    def __init__(self, federation: Federation, name: str, key: PrivateKey, data: ClientData, folder: Path | str):
        self.federation, self.name, self.key, self.folder = federation, name, key, Path(folder)
        self.number = federation.number(name)
        enrolled = federation.sites[self.number]
        if public_text(key) != enrolled.key:
            raise UnalikeError(f"the private key is not that of {name!r} in the federation file; use the site's own bundle")
        self.coordinator = public_key(federation.coordinator)
        self.limits = Limits(bytes=federation.message_bytes)
        self.population = alone(federation, self.number, data)
        if len(self._rows("train")) > enrolled.samples:
            raise UnalikeError(
                f"{name!r} has {len(self._rows('train'))} training samples and is enrolled for {enrolled.samples}; "
                "use fewer, or ask the coordinator for a larger number"
            )
        own = self.population
        self.job = job_of(federation, own, proxy=(own.x, own.y))  # a plan is laid out by samples that nobody uses
        self.agreed = agreed(self.job)
        self._groups: dict[tuple[str, int, int], Group] = {}
        self._lock = Lock()
        sweep(self.folder)

    def handle(self, message: bytes) -> bytes:
        """The answer to a request; the same for the same request. One at a time."""
        with self._lock, threads_for(self.job.model):
            head = Head("unknown", 0, 0, self.name, "request")
            answers = ""
            try:
                request = unseal(message, self.coordinator, self.limits)
                head, answers = request.head, request.digest
                replies = self._replies(request)
                found = replies.find(request)
                if found is None:
                    facts, tensors = DESK[head.kind](self, request)
                    found = seal(replace(head, kind="answer", answers=answers), facts, tensors, self.key)
                    replies.keep(request, found)
                return found
            except (UnalikeError, OSError) as error:
                return seal(replace(head, kind="unable", answers=answers), {"why": str(error)[:1000]}, {}, self.key)

    def _replies(self, request: Envelope) -> Replies:
        head = request.head
        if head.site != self.name:
            raise Malformed(f"a request to {head.site!r}; this is {self.name!r}")
        if head.kind not in DESK:
            raise Malformed(f"a request of the kind {head.kind!r}; expected one of {', '.join(DESK)}")
        newest = max((f.name for f in self.folder.glob("*") if f.is_dir()), default="")
        if head.run < newest:
            raise UnalikeError(f"run {head.run} is over: {newest} is newer; a replay?")
        return Replies(self.folder / head.run / "replies")

    def _admit(self, request: Envelope) -> Answer:
        facts, _ = request.open(self.limits)
        self._check_terms(facts)
        return {part: len(self._rows(part)) for part in PARTS}, {}

    def _train(self, request: Envelope) -> Answer:
        facts, tensors = request.open(self.limits)
        group, order, accepted = self._ordered(request, facts, tensors)
        me, report = self.number, None
        group.state = State(order.round, order.params, order.buffers, {})
        group.accepted = {} if accepted is None else {me: accepted}
        group.memories.prune(group.accepted)
        tallies = {name: self._tallies(PREDICTS[name](group, me, order)) for name in facts["evaluate"]}
        if facts["train"]:
            report = group.executor.run(order, [me], group.accepted, facts["population"]).one(me)
            group.memories.save({me: order.round})
        if report is not None and facts["local"]:
            group.accepted = {me: order.round}
            tallies["local"] = self._tallies(group.local_model(me, group.state, report))
        return {"tallies": tallies}, {} if report is None else flat(report)

    def _ask(self, request: Envelope) -> Answer:
        facts, tensors = request.open(self.limits)
        self._check_terms(facts)
        model, found = model_of(self.job, facts), tree.unpack(tensors)
        question, setting = self._question(facts), replace(self.job.setting, model=model)
        values = model.params | model.buffers | found.get("model", {})
        state = State(0, tree.only(values, model.params), tree.only(values, model.buffers), {})
        return {}, ask(question, setting, state, self.population, self.number, self.job.options.chain)

    def _choose(self, request: Envelope) -> Answer:
        """Its choice alone leaves the site."""
        facts, tensors = request.open(self.limits)
        self._check_terms(facts)
        model, found, losses = model_of(self.job, facts), tree.unpack(tensors), []
        question, setting = self._question(facts), replace(self.job.setting, model=model)
        for place in range(len(facts["groups"])):
            values = model.params | model.buffers | found.get(str(place), {})
            state = State(0, tree.only(values, model.params), tree.only(values, model.buffers), {})
            answer = ask(question, setting, state, self.population, self.number, self.job.options.chain)
            losses += [float(number) for number in answer.values()]
        return {"choice": min(range(len(losses)), key=losses.__getitem__)}, {}

    def _check_terms(self, facts: Facts) -> None:
        if facts.get("terms") != self.federation.terms:
            raise UnalikeError(
                "the coordinator runs other terms than this site agreed to (method, model, work, seed, data, protocol, sites); "
                "compare the federation files"
            )

    def _check_agreed(self, text: str) -> str:
        if text not in self.agreed:
            raise UnalikeError(f"{text} is not among what this site agreed to: {'; '.join(sorted(self.agreed))}")
        return text

    def _question(self, facts: Facts) -> Question:
        return questions.build(parse_one(self._check_agreed(facts["question"])))

    def _ordered(self, request: Envelope, facts: Facts, tensors: Tree) -> tuple[Group, Order, int | None]:
        """The group, the order in it and the round that this site's last accepted report in the group is of."""
        self._check_terms(facts)
        method = Method.parse(self._check_agreed(facts["method"]))
        found = tree.unpack(tensors)
        group = self._group(request, facts, method, found)
        mail = {n.removeprefix("mail."): t for n, t in found.items() if n.startswith("mail.")}
        model, sent = group.setting.model, {}
        for what, own in (("params", model.params), ("buffers", model.buffers)):
            given = found.get(what, {})
            check_tree(given, tree.only(own, [n for n in own if n in given]))
            sent[what] = own | given
        order = Order(int(facts["round"]), sent["params"], sent["buffers"], mail, float(facts["lr"]))
        return group, order, facts["accepted"]

    def _group(self, request: Envelope, facts: Facts, method: Method, found: dict[str, Tree]) -> Group:
        number, name = facts["group"]
        place = request.head.run, request.head.stage, int(number)
        if place not in self._groups:
            shared = Batch(**found["shared"]) if "shared" in found else None
            model = model_of(self.job, facts)
            stage = Stage("site", method, 1, {name: (self.number,)}, model=model, shared=shared)
            setting = replace(self.job.setting, model=model, work=method.local_work(self.job.work), proxy=None)
            source = self.population if shared is None else with_shared(self.population, shared)
            folder = self.folder / place[0] / f"stage-{place[1]}" / f"group-{place[2]:04d}"
            self._groups = {k: g for k, g in self._groups.items() if k[:2] == place[:2]}  # of steps that are over
            self._groups[place] = Group(stage, setting, source, "loop", 1, folder, self.job.options.chain)
            accepted = facts["accepted"]
            self._groups[place].memories.adopt({} if accepted is None else {self.number: accepted})
        return self._groups[place]

    def _tallies(self, predict: Predict) -> dict[str, Any]:
        chain = self.job.options.chain
        chosen = predict if chain is None else chain.fixed.before(predict)
        own, found = self.population, {}
        for part in ("test", "val"):
            rows = self._rows(part)
            index = torch.from_numpy(rows)
            scores = score(own.task, chosen, own.x[index], own.y[index], rows)
            found[part] = Tally.of(own.task, scores).plain()
        return found

    def _rows(self, part: str) -> Any:
        return getattr(self.population, part)[self.number]


def _personal(group: Group, me: int, order: Order) -> Predict:
    [(_, predict)] = group.personal_models([me], order if group.method.tuning is not None else None)
    return predict


PREDICTS: dict[str, Callable[[Group, int, Order], Predict]] = {
    "clients": lambda group, me, order: group.shared_model(me),
    "personal": _personal,
}
"""Protocol -> the model that it looks at, before training."""

DESK: dict[str, Callable[[Trainer, Envelope], Answer]] = {
    "admit": Trainer._admit,
    "train": Trainer._train,
    "ask": Trainer._ask,
    "choose": Trainer._choose,
}
"""Kind of a request -> who sees to it."""
