"""The coordinator's half of secure aggregation: setups, requests for masked summands, and the exchange that unmasks their sum."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import write_bytes
from unalike.core import tree
from unalike.core.codec import Facts
from unalike.core.types import Batch, ClientUpdate, Tree
from unalike.federation.coordinator.exchange import Exchange, Requests
from unalike.federation.coordinator.mailbox import Mailbox, Request
from unalike.federation.coordinator.round_request import (
    RoundRequests,
    SiteReply,
    placeholder_context,
)
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.messages import MaskedTrainRequest, SetupRequest, UnmaskRequest
from unalike.federation.secure_aggregation.arithmetic import SHARE, Words, combine, decode
from unalike.federation.secure_aggregation.masks import agree, mask, raw
from unalike.federation.secure_aggregation.setup import Keys, Setup
from unalike.federation.secure_aggregation.summands import (
    LOSS,
    WEIGHT,
    empty_summand,
    own_weights,
    sums_encoded,
    terms_of,
)
from unalike.methods.plan import Stage
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.stage_state import StageState
from unalike.training.client.client_states import ClientStates
from unalike.training.server.summed_updates import SummedUpdates
from unalike.training.server.updates import decode_update
from unalike.training.validation import check_tree, expected_update
from unalike.training.wire import Item, in_plan

KEY, SIGNATURE = 32, 64
"""Bytes of a site's public key of one purpose, and of its signature of all its keys."""
SEALED = 2 * SHARE + 16
"""Bytes of a site's sealed shares for another site, of one round."""
SETUP_BYTES, MOST_ROUNDS = 2**20, 64
"""Bytes of sealed shares that a site sends in a setup, and rounds of it, at most."""


def masked_wire(federation: Federation, run_config: RunConfig) -> list[Item]:
    """Everything that crosses the wire for a site where all take part, as `ua.wire` lists it: no update leaves but in its mask."""
    sites, steps = len(federation.sites), run_config.outline
    cohort, found = (
        federation.asked(sites),
        [item for item in run_config.wire if item.direction == "down"],
    )
    for stage in (step for step in steps if isinstance(step, Stage) and step.trained):
        state = StageState(run_config, stage, 0, lambda *_: ClientStates({}))
        [group], sample = (
            state.groups.values(),
            Batch(state.population.x[:1], state.population.y[:1]),
        )
        expected = expected_update(
            group.method,
            group.settings,
            group.broadcast([0]).to(0),
            placeholder_context(state),
            sample,
        )
        numbers = sum(t.numel() for t in empty_summand(group, expected).values())
        items = [
            Item("up", "masked summand", 8 * numbers),
            Item("up", "key and sealed shares", KEY + sites * SEALED),
            Item("up", "shares that unmask the sum", cohort * SHARE),
            Item("up", "key and signature of a setup", KEY + SIGNATURE, once=True),
            Item("down", "keys of the sites", sites * KEY),
            Item("down", "sealed shares of the sites", cohort * SEALED),
            Item("down", "keys and signatures of a setup", sites * (KEY + SIGNATURE), once=True),
        ]
        found += [in_plan(stage, item, several=len(steps) > 1) for item in items]
    return found


@dataclass
class MaskingRequests(Requests[Tree]):
    """Requests of one kind; `shapes` are those of the tensors of bytes in an answer."""

    kind: str
    facts: Facts
    tensors: Mapping[str, Tree]
    shapes: Mapping[str, tuple[int, ...]]
    check_answer: Callable[[str, Tree], None] = lambda site, tensors: None

    def request(self, site: str) -> Request:
        return self.kind, self.facts, self.tensors.get(site, {})

    def read(self, site: str, facts: Facts, tensors: Tree) -> Tree:
        check_tree(
            tensors,
            {name: torch.empty(shape, dtype=torch.uint8) for name, shape in self.shapes.items()},
        )
        self.check_answer(site, tensors)
        return tensors


class SecureAggregation:
    """Setups and sums of a step of a run.

    Keys and shares are exchanged once for many rounds, again after these, after a restart, and where a site comes that has none.
    Sites give shares for one sum of a round. So `file` holds the sites of the newest sum before it is unmasked: a coordinator that
    was killed meanwhile asks these again, and no others. `sent` counts bytes "down" and "up" of setups and unmasking.
    """

    def __init__(self, mailbox: Mailbox, state: StageState, file: Path, sent: Counter[str]):
        self.mailbox, self.file, self.least = mailbox, file, mailbox.federation.least_sum
        self.state, self._sent = state, sent
        self.setup: Setup | None = None
        self.keys: Keys = {}
        self._sealed: dict[str, Tensor] = {}
        """Member that has shared its secrets -> its sealed shares [members, rounds, bytes]."""
        self._used = -1

    def enough(self, asked: int) -> int:
        """Number of answers that make the sum of this round."""
        return max(self.least, self.mailbox.federation.enough(asked), len(self._summed()))

    def _summed(self) -> set[str]:
        """The sites of the sum of this round, if it may have been unmasked already; else none."""
        found = json.loads(self.file.read_text()) if self.file.exists() else {}
        return (
            {*found["alive"]} if found.get("of") == [self.mailbox.run, *self.state.place] else set()
        )

    def cohort(self, drawn: set[int]) -> tuple[str, ...]:
        """The sites of the clients `drawn` that have keys for a sum of this round; a new setup is made where one is due."""
        setup, (step, round), sites = self.setup, self.state.place, self.mailbox.federation.sites
        asked = self._summed() or {sites[k].name for k in drawn}
        lasts = (
            setup is not None
            and setup.step == step
            and self._used < round < setup.first + setup.rounds
        )
        if not lasts or (asked & {*self.mailbox.transport.sites()}) - self._sealed.keys():
            self._begin([sites[k].name for k in self.state.eligible], asked)
        self._used = round
        return tuple(name for name in self.keys if name in asked & self._sealed.keys())

    def _begin(self, sites: Sequence[str], asked: set[str]) -> None:
        """Make a new setup: keys, then shares."""
        federation, rounds_left = self.mailbox.federation, self.state.stage.rounds - self.state.done
        rounds = max(1, min(rounds_left, MOST_ROUNDS, SETUP_BYTES // (SEALED * len(sites))))
        number = max(time.time_ns(), 0 if self.setup is None else self.setup.number + 1)
        setup = self.setup = Setup(
            self.mailbox.run, number, *self.state.place, rounds, federation.terms
        )

        def signed(site: str, tensors: Tree) -> None:
            setup.check(federation, site, tensors["keys"], tensors["signature"])

        facts = SetupRequest(federation.terms, number, rounds).facts
        shapes: dict[str, tuple[int, ...]] = {
            "keys": (1 + rounds, KEY),
            "signature": (1, SIGNATURE),
        }
        answers = self._answers(MaskingRequests("keys", facts, {}, shapes, signed), sites, asked)
        found = {site: answers[site] for site in sites if site in answers}
        self.keys = {site: answer["keys"] for site, answer in found.items()}
        lists = {"keys": torch.stack([*self.keys.values()])}
        lists["signatures"] = torch.stack([answer["signature"] for answer in found.values()])
        facts = SetupRequest(federation.terms, number, rounds, tuple(found)).facts
        shapes = {"shares": (len(found), rounds, SEALED)}
        requests = MaskingRequests("shares", facts, dict.fromkeys(found, lists), shapes)
        answers = self._answers(requests, [*found], asked & found.keys())
        self._sealed = {site: answer["shares"] for site, answer in answers.items()}
        self.mailbox.event(
            "setup", round=self.mailbox.number, members=sorted(self._sealed), rounds=rounds
        )

    def _answers(
        self, asked: MaskingRequests, sites: Sequence[str], counted: set[str]
    ) -> dict[str, Tree]:
        enough = (lambda count: self.least) if asked.kind == "unmask" else self.enough
        answers = (
            Exchange(self.mailbox, self.state.place, asked, [*sites], counted, enough=enough)
            .run()
            .values
        )
        self._sent["down"] += sum(tree.nbytes(asked.tensors.get(site, {})) for site in sites)
        self._sent["up"] += sum(map(tree.nbytes, answers.values()))
        return answers

    def unmask(
        self, context: str, cohort: Sequence[str], alive: Sequence[str], total: Words
    ) -> Words:
        """The sum of the summands of the sites `alive`, which are `total` while they are masked, for a sum with this context."""
        assert self.setup is not None
        write_bytes(
            self.file,
            json.dumps(
                {"of": [self.mailbox.run, *self.state.place], "alive": list(alive)}
            ).encode(),
        )
        slot, federation, size = (
            self.setup.slot(*self.state.place),
            self.mailbox.federation,
            len(total),
        )
        dropped = [site for site in cohort if site not in alive]
        names, column = [*alive, *dropped], {site: i for i, site in enumerate(self.keys)}
        sealed = {}
        for to in self._sealed:
            sealed[to] = {
                "shares": torch.stack([self._sealed[site][column[to], slot] for site in names])
            }
        facts = UnmaskRequest(
            federation.terms, self.setup.number, tuple(alive), tuple(dropped)
        ).facts
        requests = MaskingRequests("unmask", facts, sealed, {"shares": (len(names), SHARE)})
        answers = self._answers(requests, [*sealed], {*sealed})
        shares = {
            federation.number(site) + 1: answer["shares"]
            for site, answer in [*answers.items()][: self.least]
        }
        for i, site in enumerate(names):
            secret = combine({x: raw(found[i]) for x, found in shares.items()})
            if site in alive:
                total = total - mask(secret, context, size)
            for other in alive if site in dropped else ():
                common = mask(agree(secret, self.keys[other][1 + slot]), context, size)
                total = (
                    total - common
                    if federation.number(other) < federation.number(site)
                    else total + common
                )
        return total


class MaskedRequests(RoundRequests):
    """As `RoundRequests`; the sites `cohort` answer with masked summands, which are added up as they arrive and not kept."""

    def __init__(self, secure: SecureAggregation, cohort: tuple[str, ...], *arguments: Any):
        super().__init__(*arguments)
        self._secure, self._cohort, self._total = secure, cohort, np.zeros(0, np.uint64)
        [self._group] = self._state.groups.values()
        self._like: Tree = {}

    def request(self, site: str) -> Request:
        kind, facts, tensors = super().request(site)
        setup, clients = self._secure.setup, self._group.members.clients
        return (
            kind,
            facts | {"setup": setup and setup.number, "clients": clients, "cohort": self._cohort},
            tensors,
        )

    def store(self, site: str, value: SiteReply) -> SiteReply:
        if value.client_update is None:
            return value
        [masked] = value.client_update.update.values()
        words = masked.numpy().view(np.uint64)
        self._total = self._total + words if len(self._total) else words
        return value._replace(client_update=value.client_update.numbers, sent=masked.nbytes)

    def outliers(self, values: Mapping[str, SiteReply]) -> Mapping[str, str]:
        return {}

    def substitutes(self, attempt: int, lacking: int) -> Sequence[str]:
        return ()

    def _checked(self, client: int, tensors: Tree) -> ClientUpdate:
        self._like = self._like or empty_summand(self._group, self._expected_update(client))
        check_tree(
            tensors,
            {"masked": torch.empty(sum(t.numel() for t in self._like.values()), dtype=torch.int64)},
        )
        return (
            self._group.client_pool.expected([client], self._group.members)
            .one(client)
            ._replace(update=tensors)
        )

    def updates(self, alive: Sequence[str]) -> SummedUpdates:
        """The sums over the sites `alive`, which are unmasked now. Raises `UnalikeError` for a sum with other weights."""
        assert self._secure.setup is not None
        group, ids = self._group, [self._clients[site] for site in alive]
        asked = MaskedTrainRequest.read(self.request(alive[0])[1])
        sent = self._sent(self.plan.group(ids[0]).broadcast)
        context = self._secure.setup.sum_context(
            self._secure.state.place[1], asked, sent, self._secure.keys
        )
        terms = terms_of(
            decode(self._secure.unmask(context, self._cohort, alive, self._total)), self._like
        )
        weights = own_weights(group, ids, group.members)
        weight, wanted = float(terms.pop(WEIGHT)), float(weights.weights.double().sum())
        if abs(weight - wanted) > 1e-5 * wanted:
            raise UnalikeError(
                f"the sum over {', '.join(alive)} has the weight {weight:.6g}, by their samples {wanted:.6g}: a site sent false "
                "shares or another weight, and a sum does not say which: go back by `unalike federation rollback`, and revoke it"
            )
        numbers = group.client_pool.expected(ids, group.members).stacked
        numbers = numbers._replace(
            loss=torch.full_like(numbers.size, float(terms.pop(LOSS) / numbers.size.sum()))
        )
        trees = tree.unpack(terms)
        folded = {
            name.removeprefix("folded."): t
            for name, t in trees.items()
            if name.startswith("folded.")
        }
        update = trees.get("update", {})
        if sums_encoded(group.method):
            update = decode_update(group.method, update, group.state)
        return SummedUpdates(
            ids=tuple(ids),
            numbers=numbers,
            update=update,
            buffers=trees.get("buffers", {}),
            folded=folded,
            used_weights=weights,
        )
