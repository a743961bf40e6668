"""The coordinator's half of secure aggregation: setups, requests for masked summands, and the exchange that unmasks their sum."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import read_tensors, write_bytes, write_tensors
from unalike.core import tree
from unalike.core.codec import Facts
from unalike.core.types import ClientUpdate, Tree
from unalike.federation.coordinator.exchange import Exchange, Requests
from unalike.federation.coordinator.mailbox import Mailbox, Place, Request
from unalike.federation.coordinator.round_request import (
    RoundRequests,
    SiteReply,
    placeholder_context,
    placeholder_sample,
)
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.messages import MaskedTrainRequest, SetupRequest, UnmaskRequest
from unalike.federation.secure_aggregation.arithmetic import SHARE_BYTES, Words, combine, decode
from unalike.federation.secure_aggregation.masks import KEY_BYTES, agree, mask, pair_context, raw
from unalike.federation.secure_aggregation.setup import Keys, Setup
from unalike.federation.secure_aggregation.sum_ledger import KnownSum, SumLedger
from unalike.federation.secure_aggregation.summands import (
    IDLE,
    LOSS,
    WEIGHT,
    empty_summand,
    keeps_client_states,
    own_weights,
    terms_of,
)
from unalike.methods.plan import Stage
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.model_group import ModelGroup
from unalike.runtime.stages.stage_state import StageState
from unalike.training.client.client_states import ClientStates
from unalike.training.server.summed_updates import SummedUpdates
from unalike.training.server.updates import decode_update
from unalike.training.validation import check_tree, expected_update
from unalike.training.wire import Item, in_plan

SIGNATURE_BYTES = 64
"""Bytes of a site's signature of all its keys."""
SEALED_BYTES = 2 * SHARE_BYTES + 16
"""Bytes of a site's sealed shares for another site, of one round."""
MAX_SETUP_BYTES = 2**20
"""Bytes of sealed shares that a site sends in a setup, at most."""
MAX_SETUP_ROUNDS = 64
"""Rounds of a setup, at most."""
REMEMBERED_SUMS = 3
"""Sums that can be asked for again: a run goes back by at most two rounds, if its newest checkpoint is damaged."""
WEIGHT_ROUNDING = 1e-5
"""The share by which the weight of a sum may differ from what the sites' samples make of it."""

WITHOUT_A_SITE = (
    "revoke it, and go back by `unalike federation rollback`; the others must allow a second sum over that model (sums_per_model "
    "in site.toml)"
)


def masked_wire(federation: Federation, run_config: RunConfig) -> list[Item]:
    """Everything that crosses the wire for a site where all take part, as `ua.wire` lists it: no update leaves but in its mask."""
    sites = len(federation.sites)
    cohort = federation.cohort_size(sites)
    steps = run_config.outline
    # What sites receive is as without masks; what leaves them is listed below.
    items = [item for item in run_config.wire if item.direction == "down"]
    for stage in steps:
        if not (isinstance(stage, Stage) and stage.trained):
            continue
        state = StageState(run_config, stage, 0, lambda *_: ClientStates({}))
        [group] = state.groups.values()
        expected = expected_update(
            method=group.method,
            settings=group.settings,
            broadcast=group.broadcast([0]).to(0),
            context=placeholder_context(state),
            sample=placeholder_sample(state),
        )
        numbers = sum(t.numel() for t in empty_summand(group, expected).values())
        keys_and_signature = KEY_BYTES + SIGNATURE_BYTES
        of_masks = [
            Item("up", "masked summand", 8 * numbers),
            Item("up", "key and sealed shares", KEY_BYTES + sites * SEALED_BYTES),
            Item("up", "shares that unmask the sum", cohort * (SHARE_BYTES + 1)),
            Item("up", "key and signature of a setup", keys_and_signature + sites, once=True),
            Item("down", "keys of the sites", sites * KEY_BYTES),
            Item("down", "sealed shares of the sites", (sites + cohort) * SEALED_BYTES),
            Item("down", "keys and signatures of a setup", sites * keys_and_signature, once=True),
        ]
        items += [in_plan(stage, item, several=len(steps) > 1) for item in of_masks]
    return items


@dataclass
class MaskingRequests(Requests[Tree]):
    """Requests of one kind for keys or shares; `shapes` are those of the tensors of bytes in an answer.

    `tensors` are those for each site. `check_answer` raises an `UnalikeError` for an answer that cannot be used.
    """

    kind: str
    facts: Facts
    tensors: Mapping[str, Tree]
    shapes: Mapping[str, tuple[int, ...]]
    check_answer: Callable[[str, Tree], None] = lambda site, tensors: None

    def request(self, site: str) -> Request:
        return Request(self.kind, self.facts, self.tensors.get(site, {}))

    def read(self, site: str, facts: Facts, tensors: Tree) -> Tree:
        expected = {}
        for name, shape in self.shapes.items():
            expected[name] = torch.empty(shape, dtype=torch.uint8)
        check_tree(tensors, expected)
        self.check_answer(site, tensors)
        return tensors


@dataclass(frozen=True)
class MaskedSum:
    """A sum that sites were asked for: its place, the number of the setup that has its keys, and what the requests say.

    Masks are between the sites of the `cohort`, which evaluate the model under the protocols `evaluate`. `history` is the context
    of the sum whose client states are valid; `context` that of this sum, known once the requests for it are made.
    """

    step: int
    round: int
    setup: int
    cohort: tuple[str, ...]
    evaluate: tuple[str, ...]
    history: str
    context: str = ""

    @property
    def place(self) -> Place:
        return self.step, self.round


class SecureAggregation:
    """Setups and sums of a step of a run.

    Keys and shares are exchanged once for many rounds, again after these, and where a site comes that has none. A site answers one
    request for a summand in a round. So what a request is made of is in files before it leaves: a coordinator that was killed
    meanwhile makes the same one. `file` has the number of the newest setup and the newest sums, a file beside it keys and sealed
    shares. Sites give shares for one sum over a model, in any run: `unmasked` has the sites of all sums before they are unmasked;
    these are asked again, and no others. `wire_bytes` counts bytes "down" and "up" of setups and unmasking.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        state: StageState,
        file: Path,
        unmasked: SumLedger,
        wire_bytes: Counter[str],
    ):
        self.mailbox = mailbox
        self.state = state
        self.file = file
        self.setup_file = file.with_name("secure_setup.safetensors")
        self.unmasked = unmasked
        self.least = mailbox.federation.least_sum
        self.setup: Setup | None = None
        self.keys: Keys = {}
        self._wire_bytes = wire_bytes
        self._sealed: dict[str, Tensor] = {}
        """Member that has shared its secrets -> its sealed shares [members, rounds, bytes]."""
        self._number = 0
        """The number of the last setup, of whatever run."""
        self._sums: list[MaskedSum] = []
        """The newest sums that sites of this run were asked for."""
        self.unusable: dict[str, str] = {}
        """Site -> why no sum can rest on its shares; it is in no setup from then on."""
        self._needed = 0
        """The sites that must answer, where a sum over the model may have been unmasked already."""
        self._load()

    def _load(self) -> None:
        """Go on with the sums and the setup of an earlier process, if they are of this run."""
        if self.file.exists():
            written = json.loads(self.file.read_text())
            self._number = written["number"]
            if written["run"] == self.mailbox.run:
                for fields in written["sums"]:
                    lists = {name: tuple(fields[name]) for name in ("cohort", "evaluate")}
                    self._sums.append(MaskedSum(**(fields | lists)))
        if not self.setup_file.exists():
            return
        tensors, facts = read_tensors(self.setup_file)
        setup = Setup(**facts)
        of_now = (self.mailbox.run, self.mailbox.federation.terms, self.state.place[0])
        if (setup.run, setup.terms, setup.step) == of_now:
            self.setup = setup
            self.keys = tree.under(tensors, "keys/")
            self._sealed = tree.under(tensors, "sealed/")

    def _write(self) -> None:
        sums = [asdict(masked_sum) for masked_sum in self._sums]
        written = {"run": self.mailbox.run, "number": self._number, "sums": sums}
        write_bytes(self.file, json.dumps(written).encode())

    def answers_needed(self, asked: int) -> int:
        """Number of answers that make the sum of this round."""
        by_quorum = self.mailbox.federation.answers_needed(asked)
        return max(self.least, by_quorum, self._needed)

    def begin_sum(
        self, clients: set[int], model: str, evaluate: tuple[str, ...]
    ) -> tuple[MaskedSum, tuple[str, ...]]:
        """The sum of this round over the sites of these clients, and those of its cohort that are to be in it.

        A sum that sites were asked for before is the same again. A new setup is made where one is due.
        """
        # Where shares for a sum over this model may have left the sites, no other one can be had, unless a site of it was revoked.
        sites = self.mailbox.federation.sites
        wanted = {sites[client].name for client in clients}
        revoked = {site.name for site in sites if site.revoked}
        self._needed = 0
        for known in self.unmasked.sums_over(model):
            if revoked.isdisjoint(known.sites):
                wanted = set(known.sites)
                self._needed = len(wanted)

        masked_sum = self._begun_sum()
        if masked_sum is None:
            # A setup has keys for its rounds, each for one sum; a site that was away when it was made has none.
            if not self._has_unused_keys() or self._some_lack_keys(wanted):
                eligible = [sites[client].name for client in self.state.eligible]
                self._begin_setup([site for site in eligible if site not in self.unusable], wanted)
            assert self.setup is not None
            step, round = self.state.place
            members = (name for name in self.keys if name in wanted and name in self._sealed)
            cohort = tuple(members)
            masked_sum = MaskedSum(
                step=step,
                round=round,
                setup=self.setup.number,
                cohort=cohort,
                evaluate=evaluate,
                history=self._history(cohort),
            )
            self._remember(masked_sum)
        asked = (name for name in masked_sum.cohort if name in wanted and name not in revoked)
        return masked_sum, tuple(asked)

    def _history(self, cohort: Sequence[str]) -> str:
        """The context of the sum whose client states are valid; empty before the first one, and where sites keep no states."""
        [group] = self.state.groups.values()
        if not keeps_client_states(group.method, group.settings):
            return ""
        # all sites are in each sum of such a method, so that the valid states are of one round
        client_of = self.mailbox.client_of
        [accepted] = {group.accepted.get(client_of[site]) for site in cohort}
        if accepted is None:
            return ""
        place = (self.state.place[0], accepted)
        [valid] = (known for known in self._sums if known.place == place)
        return valid.context

    def _remember(self, masked_sum: MaskedSum) -> None:
        """Write a sum down, in the place of what is known of it; the oldest ones are removed."""
        others = [known for known in self._sums if known.place != masked_sum.place]
        self._sums = [*others, masked_sum][-REMEMBERED_SUMS:]
        self._write()

    def _begun_sum(self) -> MaskedSum | None:
        """The sum of this round that sites were asked for, if the setup is still the one with its keys."""
        for masked_sum in self._sums:
            is_of_setup = self.setup is not None and masked_sum.setup == self.setup.number
            if masked_sum.place == self.state.place and is_of_setup:
                return masked_sum
        return None

    def _has_unused_keys(self) -> bool:
        """Whether the setup has keys for this round that were not asked for yet."""
        setup = self.setup
        if setup is None:
            return False
        step, round = self.state.place
        newest = max((masked_sum.place for masked_sum in self._sums), default=(0, 0))
        is_covered = setup.first <= round < setup.first + setup.rounds
        return setup.step == step and newest < self.state.place and is_covered

    def _some_lack_keys(self, sites: set[str]) -> bool:
        """Whether one of these sites could take part if it had keys."""
        is_waited_for = self.mailbox.silent_sites.is_waited_for
        connected = sites & set(self.mailbox.transport.sites())
        lacking = connected - self._sealed.keys() - self.unusable.keys()
        return any(is_waited_for(site) for site in lacking)

    def _begin_setup(self, sites: Sequence[str], counted: set[str]) -> None:
        """Make a new setup: keys, then shares. A quorum of the sites that are `counted` must take part."""
        federation = self.mailbox.federation
        rounds_left = self.state.stage.rounds - self.state.done
        rounds_in_size = MAX_SETUP_BYTES // (SEALED_BYTES * len(sites))
        rounds = max(1, min(rounds_left, MAX_SETUP_ROUNDS, rounds_in_size))

        # Sites decline a setup whose number is not above that of the last one: each attempt has a number of its own.
        self._number += 1
        self._write()
        step, first = self.state.place
        setup = Setup(
            run=self.mailbox.run,
            number=self._number,
            step=step,
            first=first,
            rounds=rounds,
            terms=federation.terms,
        )
        self.setup = setup

        # 1. Each site makes keys for this setup and signs them.
        def check_signature(site: str, tensors: Tree) -> None:
            setup.check(federation, site, tensors["keys"], tensors["signature"])

        request = SetupRequest(terms=federation.terms, setup=setup.number, rounds=rounds)
        key_requests = MaskingRequests(
            kind="keys",
            facts=request.facts,
            tensors={},
            shapes={"keys": (1 + rounds, KEY_BYTES), "signature": (1, SIGNATURE_BYTES)},
            check_answer=check_signature,
        )
        answers = self._exchange(key_requests, sites, counted)
        members = [site for site in sites if site in answers]
        self.keys = {site: answers[site]["keys"] for site in members}

        # 2. Each of them gets all keys with their signatures, and seals shares of its own secrets for each other one.
        all_keys = {
            "keys": torch.stack([answers[site]["keys"] for site in members]),
            "signatures": torch.stack([answers[site]["signature"] for site in members]),
        }
        request = SetupRequest(
            terms=federation.terms, setup=setup.number, rounds=rounds, members=tuple(members)
        )
        share_requests = MaskingRequests(
            kind="shares",
            facts=request.facts,
            tensors=dict.fromkeys(members, all_keys),
            shapes={"shares": (len(members), rounds, SEALED_BYTES)},
        )
        answers = self._exchange(share_requests, members, counted & set(members))
        self._sealed = {site: answers[site]["shares"] for site in members if site in answers}

        # 3. Each of them says whose shares it can open. What too few can open would end a sum that rests on it.
        self._leave_out_unusable(setup)
        tensors = tree.pack({"keys": dict(self.keys), "sealed": self._sealed})
        write_tensors(self.setup_file, tensors, asdict(setup))
        self.mailbox.event(
            "setup", round=self.mailbox.number, members=sorted(self._sealed), rounds=rounds
        )

    def _leave_out_unusable(self, setup: Setup) -> None:
        """Name the sites whose shares fewer than the threshold can open, and go on without them.

        Raises `UnalikeError` where the others are fewer than the threshold.
        """
        senders = list(self._sealed)
        request = SetupRequest(
            terms=setup.terms, setup=setup.number, rounds=setup.rounds, members=tuple(senders)
        )
        open_requests = MaskingRequests(
            kind="open",
            facts=request.facts,
            tensors={site: {"shares": self._sealed_for(site, senders)} for site in senders},
            shapes={"opened": (len(senders),)},
        )
        answers = self._exchange(open_requests, senders, set(senders))
        for i, sender in enumerate(senders):
            shut_out = [site for site, answer in answers.items() if not answer["opened"][i]]
            # who has not answered yet does not say that it cannot open them
            if len(senders) - len(shut_out) >= self.least:
                continue
            why = f"the shares that it sealed cannot be opened by {', '.join(shut_out)}"
            self.mailbox.report("refused", sender, why)
            self.unusable[sender] = why
            del self._sealed[sender]
        if len(self._sealed) < self.least:
            reasons = "; ".join(f"{site}: {why}" for site, why in self.unusable.items())
            raise UnalikeError(
                f"found {len(self._sealed)} sites with shares that others can open; expected {self.least}, the threshold "
                f"({reasons}): either a site sealed no shares, or others say so falsely; begin a federation without it"
            )

    def _sealed_for(self, receiver: str, senders: Sequence[str]) -> Tensor:
        """The messages that these sites sealed for one, [senders, rounds, bytes]."""
        column = list(self.keys).index(receiver)
        return torch.stack([self._sealed[sender][column] for sender in senders])

    def _exchange(
        self, requests: MaskingRequests, sites: Sequence[str], counted: set[str]
    ) -> dict[str, Tree]:
        """The answers of sites to requests for keys or shares."""
        answers_needed = self.answers_needed
        if requests.kind in ("open", "unmask"):
            answers_needed = self._answers_that_unmask
        answers = (
            Exchange(
                mailbox=self.mailbox,
                place=self.state.place,
                requests=requests,
                sites=list(sites),
                counted=counted,
                answers_needed=answers_needed,
            )
            .run()
            .values
        )
        self._wire_bytes["down"] += sum(tree.nbytes(requests.tensors.get(s, {})) for s in sites)
        self._wire_bytes["up"] += sum(tree.nbytes(answer) for answer in answers.values())
        return answers

    def _answers_that_unmask(self, asked: int) -> int:
        """Number of answers with shares that unmask a sum, however many sites are asked."""
        return self.least

    def unmask(
        self, context: str, model: str, cohort: Sequence[str], alive: Sequence[str], total: Words
    ) -> Words:
        """The sum of the summands of the sites `alive`, which are `total` while they are masked, for a sum with this context.

        It is over this `model`, a digest.
        """
        assert self.setup is not None
        # Before a share leaves a site, it is written down which sum it is for.
        masked_sum = self._begun_sum()
        assert masked_sum is not None, "sites were asked for this sum"
        self._remember(replace(masked_sum, context=context))
        self.unmasked.add(model, KnownSum(tuple(alive), self.state.place))

        dropped = [site for site in cohort if site not in alive]
        secrets = self._secrets(alive, dropped)
        slot = self.setup.slot(*self.state.place)
        number = self.mailbox.federation.number
        size = len(total)
        for site, secret in secrets.items():
            # A site in the sum has added its private mask.
            if site in alive:
                total = total - mask(secret, context, size)
                continue

            # For a site that dropped out, the others have added or subtracted masks that its own summand would have canceled.
            for other in alive:
                common_secret = agree(secret, self.keys[other][1 + slot])
                common = mask(common_secret, pair_context(context, site, other), size)
                other_has_added = number(other) < number(site)
                total = total - common if other_has_added else total + common
        return total

    def _secrets(self, alive: Sequence[str], dropped: Sequence[str]) -> dict[str, bytes]:
        """The secrets behind the masks of this round: the private masks of the sites `alive`, the mask keys of those `dropped`.

        Raises `UnalikeError` where too few sites open the shares of one.
        """
        assert self.setup is not None
        federation = self.mailbox.federation
        slot = self.setup.slot(*self.state.place)
        names = [*alive, *dropped]

        # Each site that was asked for a summand opens what these sites have sealed for it in the setup.
        sealed = {}
        for receiver in sorted(names, key=federation.number):
            sealed[receiver] = {"shares": self._sealed_for(receiver, names)[:, slot]}
        request = UnmaskRequest(
            terms=federation.terms,
            setup=self.setup.number,
            alive=tuple(alive),
            dropped=tuple(dropped),
        )
        requests = MaskingRequests(
            kind="unmask",
            facts=request.facts,
            tensors=sealed,
            shapes={"shares": (len(names), SHARE_BYTES), "opened": (len(names),)},
        )
        revoked = {site.name for site in federation.sites if site.revoked}
        receivers = [site for site in sealed if site not in revoked]
        answers = self._exchange(requests, sites=receivers, counted=set(receivers))

        # The threshold is enough: more shares of a secret would give the same one.
        secrets = {}
        for i, name in enumerate(names):
            shares: dict[int, bytes] = {}
            for site, answer in answers.items():
                if answer["opened"][i] and len(shares) < self.least:
                    shares[federation.number(site) + 1] = raw(answer["shares"][i])
            if len(shares) < self.least:
                raise UnalikeError(
                    f"{len(shares)} sites open the shares of {name}; expected {self.least}, the threshold: start again when more "
                    f"are connected, or {WITHOUT_A_SITE}"
                )
            secrets[name] = combine(shares)
        return secrets


@dataclass(kw_only=True, eq=False)
class MaskedRequests(RoundRequests):
    """As `RoundRequests`; sites of the `masked_cohort` answer with masked summands, which are added up as they arrive and not kept.

    `model` is the digest of the model that they train, `history` the context of the sum whose client states are valid.
    """

    secure: SecureAggregation
    masked_cohort: tuple[str, ...]
    model: str
    history: str
    _total: Words = field(default_factory=lambda: np.zeros(0, np.uint64), init=False)
    """The sum of the summands so far, modulo 2^64."""
    _empty_summand: Tree = field(default_factory=dict, init=False)
    """Zeros with the names, shapes and types of the terms of a summand."""

    @property
    def _group(self) -> ModelGroup:
        """The model group of all sites: a sum is over all of them, so that there is one."""
        [group] = self.state.groups.values()
        return group

    def request(self, site: str) -> Request:
        kind, facts, tensors = super().request(site)
        setup = self.secure.setup
        masking = {
            "setup": None if setup is None else setup.number,
            "clients": self._group.members.clients,
            "cohort": self.masked_cohort,
            "history": self.history,
        }
        return Request(kind, facts | masking, tensors)

    def store(self, site: str, value: SiteReply) -> SiteReply:
        if value.client_update is None:
            return value
        [masked] = value.client_update.update.values()
        words = masked.numpy().view(np.uint64)
        self._total = self._total + words if len(self._total) else words
        return value._replace(client_update=value.client_update.numbers, update_bytes=masked.nbytes)

    def outliers(self, values: Mapping[str, SiteReply]) -> Mapping[str, str]:
        """None: summands in their masks cannot be compared."""
        return {}

    def substitutes(self, attempt: int, lacking: int) -> Sequence[str]:
        """None: the masks of a sum are between the sites that were asked first."""
        return ()

    def _update_in(self, client: int, tensors: Tree) -> ClientUpdate:
        """The masked summand in these tensors, beside the numbers that the client must have."""
        if not self._empty_summand:
            self._empty_summand = empty_summand(self._group, self._expected_update(client))
        numbers = sum(t.numel() for t in self._empty_summand.values())
        check_tree(tensors, {"masked": torch.empty(numbers, dtype=torch.int64)})
        expected = self._group.client_pool.expected([client], self._group.members)
        return expected.one(client)._replace(update=tensors)

    def updates(self, alive: Sequence[str]) -> SummedUpdates:
        """The sums over the sites `alive`, which are unmasked now. Raises `UnalikeError` for a sum with other weights."""
        assert self.secure.setup is not None
        group = self._group
        ids = [self.mailbox.client_of[site] for site in alive]

        # The masks were derived from what the sites have in common: their requests of this round.
        _, facts, _ = self.request(alive[0])
        asked = MaskedTrainRequest.read(facts)
        context = self.secure.setup.sum_context(
            place=self.secure.state.place, asked=asked, model=self.model, keys=self.secure.keys
        )
        total = self.secure.unmask(context, self.model, self.masked_cohort, alive, self._total)
        terms = terms_of(decode(total), self._empty_summand)

        # A false summand or share changes the weight, too. Which site sent it, a sum does not say.
        weights = own_weights(group, ids, group.members)
        weight = float(terms.pop(WEIGHT))
        wanted = float(weights.weights.double().sum())
        idle = float(terms.pop(IDLE))
        is_count = idle.is_integer() and 0 <= idle <= len(ids)
        if abs(weight - wanted) > WEIGHT_ROUNDING * wanted or not is_count:
            raise UnalikeError(
                f"the sum over {', '.join(alive)} has the weight {weight:.6g}, by their samples {wanted:.6g}, and {idle:.6g} idle "
                f"summands: a site sent false shares or another weight, and a sum does not say which: {WITHOUT_A_SITE}"
            )
        self._check_idle(int(idle), len(ids))

        # Of each site only the mean loss of all is known.
        numbers = group.client_pool.expected(ids, group.members).stacked
        mean_loss = float(terms.pop(LOSS) / numbers.size.sum())
        numbers = numbers._replace(loss=torch.full_like(numbers.size, mean_loss))

        trees = tree.unpack(terms)
        folded = {}
        for name, term in trees.items():
            if name.startswith("folded."):
                folded[name.removeprefix("folded.")] = term
        update = decode_update(group.method, trees.get("update", {}), group.state)
        return SummedUpdates(
            ids=tuple(ids),
            numbers=numbers,
            update=update,
            buffers=trees.get("buffers", {}),
            folded=folded,
            used_weights=weights,
        )

    def _check_idle(self, idle: int, sites: int) -> None:
        """Raise `UnalikeError` for a sum with idle summands, whose other terms are random."""
        if not idle:
            return
        self.mailbox.event("idle summands", round=self.mailbox.number, idle=idle, sites=sites)
        raise UnalikeError(
            f"round {self.mailbox.number}: training failed at {idle} of {sites} sites, or gave values that a sum cannot hold, and "
            "the sum of the others is not shown, since it could be that of a single site. The journals of the sites say where and "
            "why: try a smaller learning rate, or scaled data, in a new federation; where it was the machine of one site, go back "
            "by `unalike federation rollback`"
        )
