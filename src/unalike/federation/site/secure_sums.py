"""A site's half of secure aggregation: its keys, the shares of its secrets, its masked summand, and shares that unmask a sum."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from torch import Tensor

from unalike._utils.tensor_files import read_tensors, write_bytes, write_tensors
from unalike.core.types import Tree
from unalike.federation.protocol.envelope import Head
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.messages import (
    Declined,
    MaskedTrainRequest,
    SetupRequest,
    UnmaskRequest,
)
from unalike.federation.secure_aggregation.arithmetic import (
    RANDOM_BYTES,
    SHARE_BYTES,
    Words,
    split,
)
from unalike.federation.secure_aggregation.masks import (
    agree,
    context,
    derive,
    mask,
    pair_context,
    public_half,
    raw,
    rows,
    stream,
)
from unalike.federation.secure_aggregation.setup import (
    Keys,
    Setup,
    check_sites,
    is_in_order,
    members_digest,
    model_digest,
)
from unalike.federation.secure_aggregation.sum_ledger import KnownSum, SumLedger
from unalike.federation.security.keys import PrivateKey

MAX_SETUP_ROUNDS = 1000
"""Rounds of a setup, at most."""
REMEMBERED_ROUNDS = 3
"""Rounds whose summand can be asked for again: a coordinator goes back by at most two, if its newest checkpoint is damaged."""

PRIVATE_MASK = "private mask"
"""The secret of a site's own mask. Its shares are given for a site whose summand is in the sum."""
MASK_KEY = "mask key"
"""The private key of the masks that a site has in common with others. Its shares are given for a site that dropped out."""
CHANNEL = "channel"
"""The private key that seals shares for another site."""

SECOND_SUM = "a second sum, over other sites, of another round or with other weights; the two would show single updates"


@dataclass(frozen=True)
class MaskedRound:
    """The one summand that a site has in a round, for one request and with one `setup`; in the ledger.

    `request` and `model` are digests, `factor` is that of this site's update in the sum. `alive` and `dropped` are the sites in the
    sum and the others, once shares were given for it.
    """

    step: int
    round: int
    setup: int
    request: str
    model: str
    factor: float
    cohort: tuple[str, ...]
    alive: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[int, int]:
        return self.step, self.round


@dataclass(frozen=True)
class OwnSums:
    """The rounds of a step in whose sums this site is, or may be: the newest that it was told of, and later ones that are untold.

    The client state of one of these rounds is the valid one. `contexts` are those of their sums, by the round as text.
    """

    step: int
    counted: int | None = None
    untold: tuple[int, ...] = ()
    contexts: Mapping[str, str] = field(default_factory=dict)

    def begun(self, round: int, context: str) -> Self:
        """The same with a summand of this round, in a sum with this context."""
        contexts = {**self.contexts, str(round): context}
        return replace(self, untold=(*self.untold, round), contexts=contexts)

    def told(self, round: int, is_in: bool) -> Self:
        """The same once the site was told whether it is in the sum of this round."""
        counted = self.counted
        if is_in and (counted is None or counted < round):
            counted = round
        untold = []
        for other in self.untold:
            if other != round and (counted is None or counted < other):
                untold.append(other)
        known = {str(other) for other in (counted, *untold)}
        contexts = {name: context for name, context in self.contexts.items() if name in known}
        return replace(self, counted=counted, untold=tuple(untold), contexts=contexts)


@dataclass(frozen=True)
class Masks:
    """The sources of the masks of a summand: the place of the round in the setup, the context of the sum, and its model."""

    cohort: tuple[str, ...]
    slot: int
    context: str
    model: str
    keys: Keys


class SecureSums:
    """A site's secrets of a run and its ledger of summands, in `folder`. All methods raise `Declined`.

    In the ledger, `setup` is the newest one, and all secrets in it are derived from `secret`. `rounds` are the newest rounds with a
    summand (`MaskedRound`), `own_sums` those whose client state may be the valid one (`OwnSums`). It is written before anything
    leaves the site: no restart and no setup makes it mask two summands for one round, give both kinds of shares for one site, or
    shares for two sums. `unmasked` has the sums of all runs: over one model there is one, or as many as the site's rule
    `sums_per_model` says.
    """

    def __init__(
        self,
        federation: Federation,
        name: str,
        key: PrivateKey,
        folder: Path,
        unmasked: SumLedger,
        sums_per_model: int = 1,
    ):
        if not federation.secure_aggregation:
            raise Declined("plan", "a request of secure aggregation, which was not agreed")
        self.federation = federation
        self.name = name
        self.key = key
        self.unmasked = unmasked
        self.sums_per_model = sums_per_model
        self.file = folder / "sums.json"
        self.members_file = folder / "members.safetensors"
        self.shares_file = folder / "shares.safetensors"
        self.ledger: dict[str, Any] = {}
        if self.file.exists():
            self.ledger = json.loads(self.file.read_text())
        self.setup: Setup | None = None
        if "setup" in self.ledger:
            self.setup = Setup(**self.ledger["setup"])
        self.rounds: list[MaskedRound] = []
        for fields in self.ledger.get("rounds", ()):
            lists = {name: tuple(fields[name]) for name in ("cohort", "alive", "dropped")}
            self.rounds.append(MaskedRound(**(fields | lists)))

    # 1. A setup: keys, then shares of the secrets behind them.

    def keys(self, head: Head, asked: SetupRequest, tensors: Tree) -> Tree:
        """Public keys for the rounds from this one on. The secret of earlier keys is deleted."""
        setup = Setup(
            run=head.run,
            number=asked.setup,
            step=head.stage,
            first=head.round,
            rounds=asked.rounds,
            terms=self.federation.terms,
        )
        is_later = self.setup is None or self.setup.number < setup.number
        if setup.rounds > MAX_SETUP_ROUNDS or not (is_later or self.setup == setup):
            raise Declined(
                "sum",
                f"setup {setup.number} of {setup.rounds} rounds; the newest one here is {self.setup}",
            )

        # A later setup begins with a new secret; the same request again gets the same keys.
        if is_later:
            self._write(setup=asdict(setup), secret=secrets.token_hex(32))
            self.setup = setup

        # The signature is for this setup alone: nobody can use these keys in another one.
        keys = self._own_keys(setup)
        signature = self.key.sign(setup.signed(self.name, keys))
        return {"keys": keys, "signature": rows([signature])}

    def shares(self, head: Head, asked: SetupRequest, tensors: Tree) -> Tree:
        """For each member its sealed shares of this site's secrets of all rounds, once the members' keys were checked."""
        setup = self._setup(asked.setup)
        keys = self._checked_keys(setup, asked, tensors)
        members = members_digest(keys)
        about = {"setup": setup.number, "members": members}

        # Shares are made and sealed once. A second list would have other shares of the same secrets.
        sealed, earlier = self._stored(self.shares_file)
        if not sealed:
            sealed = {"shares": self._sealed_shares(setup, keys, members)}
            write_tensors(self.shares_file, sealed, about)
        elif earlier != about:
            raise Declined("sum", "a second list of members for one setup")
        write_tensors(self.members_file, keys, about)
        return sealed

    def opened(self, head: Head, asked: SetupRequest, tensors: Tree) -> Tree:
        """For each member whether this site can open what it sealed for it, in all rounds; nobody else can tell."""
        self._setup(asked.setup)
        keys = self._members()
        check_sites(asked.members, self.federation, keys)
        sealed = tensors.get("shares", ())
        if len(sealed) != len(asked.members):
            raise Declined("sum", f"shares of other than {len(asked.members)} members")
        members = members_digest(keys)
        is_open = []
        for name, by_round in zip(asked.members, sealed, strict=True):
            channel = self._channel(keys[name], members, sender=name, receiver=self.name)
            opened = [_open(channel, slot, message) for slot, message in enumerate(by_round)]
            is_open.append(None not in opened)
        return {"opened": torch.tensor(is_open, dtype=torch.uint8)}

    def _sealed_shares(self, setup: Setup, keys: Keys, members: str) -> Tensor:
        """For each member and round the shares of both secrets in one message that only this member can open."""
        names = list(keys)
        channels = []
        for name, key in keys.items():
            channels.append(self._channel(key, members, sender=self.name, receiver=name))
        sealed_by_round = []
        for slot in range(setup.rounds):
            mask_shares = self._split(PRIVATE_MASK, slot, names, members)
            key_shares = self._split(MASK_KEY, slot, names, members)
            sealed = []
            for channel, mask_share, key_share in zip(
                channels, mask_shares, key_shares, strict=True
            ):
                sealed.append(channel.encrypt(_nonce(slot), mask_share + key_share, None))
            sealed_by_round.append(rows(sealed))
        return torch.stack(sealed_by_round, 1)

    def _checked_keys(self, setup: Setup, asked: SetupRequest, tensors: Tree) -> Tree:
        """The keys of the members of a setup, each signed by its site, among them this site's own."""
        members = asked.members
        public_keys = tensors.get("keys", torch.empty(0))
        signatures = tensors.get("signatures", torch.empty(0))
        if not len(public_keys) == len(signatures) == len(members):
            raise Declined("sum", f"keys or signatures of other than {len(members)} members")
        for name, key, signature in zip(members, public_keys, signatures, strict=True):
            setup.check(self.federation, name, key, signature)
        keys = dict(zip(members, public_keys, strict=True))
        check_sites(members, self.federation, keys)
        if self.name not in keys or not keys[self.name].equal(self._own_keys(setup)):
            raise Declined("sum", "the setup has other keys of this site than it made")
        return keys

    def _split(self, purpose: str, slot: int, names: Sequence[str], members: str) -> list[bytes]:
        """The shares of these members of this site's secret of one purpose, for one round of the setup."""
        least = self.federation.least_sum
        random_key = self._derived("polynomial", purpose, slot, members)
        return split(
            secret=self._derived(purpose, slot),
            threshold=least,
            points=[self.federation.number(name) + 1 for name in names],
            random=stream(random_key, RANDOM_BYTES * (least - 1)),
        )

    # 2. A summand behind its masks.

    def begin_summand(
        self,
        head: Head,
        asked: MaskedTrainRequest,
        tensors: Tree,
        *,
        keeps_states: bool,
        factor: float,
    ) -> Masks:
        """The masks of this site's summand of a round, for this request and no other; no sample was read until now.

        `tensors` are those of the request that are sent in every round. Where the site `keeps_states`, from which the summand
        follows, the masks cancel only among sites that were sent the same in all sums that these rest on. `factor` is that of the
        site's update in the sum.
        """
        setup = self._setup(asked.setup)
        keys = self._members()
        slot = setup.slot(*head.place)
        check_sites(asked.cohort, self.federation, keys)
        if self.name not in asked.cohort:
            raise Declined("sum", f"a sum without this site in round {head.round}")

        # Two summands under one mask, or of two requests under two, would show how the samples differ in what they answer to each.
        model = model_digest(head.place, tensors, asked.fixed)
        begun = MaskedRound(
            step=head.stage,
            round=head.round,
            setup=setup.number,
            request=context("request", asdict(head), asked.facts, model),
            model=model,
            factor=factor,
            cohort=asked.cohort,
        )
        earlier = self._summand_at(head.place)
        newest = max((earlier.place for earlier in self.rounds), default=(0, 0))
        if earlier is None and head.place < newest:
            raise Declined("sum", f"a summand for round {head.round}, which is over")
        if earlier is not None and earlier.request != begun.request:
            raise Declined("sum", f"a second summand for round {head.round}, of another request")

        # Two sums over one model, for which this site alone begins from two of its client states, would show what these add.
        own_sums = self._own_sums(head.stage)
        if earlier is None and asked.accepted not in (own_sums.counted, *own_sums.untold):
            raise Declined(
                "sum",
                f"the client state of round {asked.accepted} in round {head.round}; the newest sum with this site is that of round "
                f"{own_sums.counted}",
            )

        # What a site keeps of a sum was trained on the model of that sum: sites with other ones have another history.
        history = ""
        if keeps_states:
            history = own_sums.contexts.get(str(asked.accepted), "")
        if earlier is None and asked.history != history:
            raise Declined(
                "sum",
                f"another history in round {head.round} than that of the sum of round {asked.accepted}",
            )

        # A sum over this model was unmasked, in this run or an earlier one: only the same sum can be had again.
        known = self.unmasked.sums_over(model)
        is_known = any(
            (same.place, same.factor) == (head.place, factor)
            and set(same.sites) <= set(asked.cohort)
            for same in known
        )
        if len(known) >= self.sums_per_model and not is_known:
            raise self._second_sum(head, known)

        # The ledger is written before the site trains: a restart in between cannot make it begin another summand.
        sum_context = setup.sum_context(head.place, asked, model, keys)
        if earlier is None:
            self._write_round(begun, own_sums.begun(head.round, sum_context))
        return Masks(cohort=asked.cohort, slot=slot, context=sum_context, model=model, keys=keys)

    def leave_history(self, head: Head) -> None:
        """Be in no further sum of the step: a site whose summand was idle has another client state than the others expect."""
        own_sums = self._own_sums(head.stage)
        contexts = {**own_sums.contexts, str(head.round): secrets.token_hex(32)}
        self._write(own_sums=asdict(replace(own_sums, contexts=contexts)))

    def masked(self, masks: Masks, words: Words) -> Tree:
        """The words of a summand, plus the private mask, plus or minus the masks in common with the other sites."""
        length = len(words)
        total = words + mask(self._derived(PRIVATE_MASK, masks.slot), masks.context, length)
        number = self.federation.number
        for name in masks.cohort:
            if name == self.name:
                continue
            other_key = masks.keys[name][1 + masks.slot]
            common_secret = agree(self._derived(MASK_KEY, masks.slot), other_key)
            of_pair = pair_context(masks.context, self.name, name)
            common = mask(common_secret, of_pair, length)
            # Of two sites the one with the smaller number adds the mask, and the other one subtracts it.
            adds = number(self.name) < number(name)
            total = total + common if adds else total - common
        return {"masked": torch.from_numpy(total.view(np.int64))}

    # 3. Shares that unmask a sum.

    def unmask(self, head: Head, asked: UnmaskRequest, tensors: Tree) -> Tree:
        """Shares of the private masks of the sites in the sum and of the mask keys of the others; never both of one site.

        Of a site whose sealed shares cannot be opened they are zeros.
        """
        setup = self._setup(asked.setup)
        keys = self._members()
        slot = setup.slot(*head.place)
        check_sites(asked.alive, self.federation, keys)

        # Who gives shares has a summand of its own in this sum, or sent one: so it knows the model that the sum is over.
        summand = self._summand_at(head.place)
        names = (*asked.alive, *asked.dropped)
        sealed = tensors.get("shares", ())
        if summand is None or summand.setup != setup.number or len(sealed) != len(names):
            raise Declined("sum", f"shares for a sum of round {head.round} without this site")
        is_cohort = len(names) == len(summand.cohort) and set(names) == set(summand.cohort)
        if not is_cohort or not is_in_order(asked.dropped, self.federation):
            raise Declined(
                "sum", f"shares of other sites than the cohort of round {head.round}, each once"
            )

        # One sum for a round, and one over a model: the difference of two would show single updates.
        known = self.unmasked.sums_over(summand.model)
        this = KnownSum(asked.alive, head.place, summand.factor)
        is_new = this not in known
        has_other_sites = bool(summand.alive) and summand.alive != asked.alive
        if has_other_sites or (is_new and len(known) >= self.sums_per_model):
            raise self._second_sum(head, known)
        self.unmasked.add(summand.model, this)
        if not summand.alive:
            own_sums = self._own_sums(head.stage).told(head.round, self.name in asked.alive)
            told = replace(summand, alive=asked.alive, dropped=asked.dropped)
            self._write_round(told, own_sums)

        members = members_digest(keys)
        shares = []
        is_open = []
        for name, sealed_shares in zip(names, sealed, strict=True):
            channel = self._channel(keys[name], members, sender=name, receiver=self.name)
            opened = _open(channel, slot, sealed_shares)
            both = opened or bytes(2 * SHARE_BYTES)
            mask_share, key_share = both[:SHARE_BYTES], both[SHARE_BYTES:]
            shares.append(mask_share if name in asked.alive else key_share)
            is_open.append(opened is not None)
        return {"shares": rows(shares), "opened": torch.tensor(is_open, dtype=torch.uint8)}

    def _second_sum(self, head: Head, known: Sequence[KnownSum]) -> Declined:
        """The refusal of a sum over other sites, or with other weights, than those `known` over its model."""
        lists = "; ".join(", ".join(same.sites) for same in known)
        return Declined(
            "sum",
            f"{SECOND_SUM}: round {head.round}; the sites of the sums so far: {lists[:200] or 'none'} (site.toml: sums_per_model)",
        )

    # Secrets and ledger.

    def _write(self, **changed: Any) -> None:
        self.ledger |= changed
        write_bytes(self.file, json.dumps(self.ledger).encode())

    def _write_round(self, masked_round: MaskedRound, own_sums: OwnSums) -> None:
        """Write a round into the ledger, in the place of what it has of this round; the oldest ones are removed."""
        others = [other for other in self.rounds if other.place != masked_round.place]
        in_order = sorted([*others, masked_round], key=lambda of_round: of_round.place)
        self.rounds = in_order[-REMEMBERED_ROUNDS:]
        self._write(
            rounds=[asdict(of_round) for of_round in self.rounds], own_sums=asdict(own_sums)
        )

    def _own_sums(self, step: int) -> OwnSums:
        """The rounds of a step in whose sums this site is."""
        kept = self.ledger.get("own_sums")
        if kept is None or kept["step"] != step:
            return OwnSums(step)
        return OwnSums(step, kept["counted"], tuple(kept["untold"]), kept["contexts"])

    def _summand_at(self, place: tuple[int, int]) -> MaskedRound | None:
        """The round at this place in the ledger; None if it has none."""
        return next((of_round for of_round in self.rounds if of_round.place == place), None)

    def _setup(self, number: int | None) -> Setup:
        """The newest setup, if it has this number and was made under the terms of now."""
        setup = self.setup
        if setup is None or number != setup.number or setup.terms != self.federation.terms:
            raise Declined("sum", f"setup {number}; the newest one here is {setup}")
        return setup

    def _members(self) -> Keys:
        """The keys of the members of the newest setup, which were checked when they came; none before that."""
        keys, _ = self._stored(self.members_file)
        return keys

    def _stored(self, file: Path) -> tuple[Tree, dict[str, Any]]:
        """The tensors of a file of the newest setup, and the facts beside them; nothing where it is of an earlier one."""
        assert self.setup is not None
        if not file.exists():
            return {}, {}
        tensors, facts = read_tensors(file)
        return (tensors, facts) if facts["setup"] == self.setup.number else ({}, {})

    def _derived(self, *purpose: Any) -> bytes:
        """A secret of this setup for one purpose."""
        return derive(bytes.fromhex(self.ledger["secret"]), *purpose)

    def _own_keys(self, setup: Setup) -> Tensor:
        """This site's public keys."""
        keys = [public_half(self._derived(CHANNEL))]
        for slot in range(setup.rounds):
            keys.append(public_half(self._derived(MASK_KEY, slot)))
        return rows(keys)

    def _channel(self, key: Tensor, members: str, sender: str, receiver: str) -> ChaCha20Poly1305:
        """The cipher of shares from one site to another; each round of the setup is one message.

        `members` is the digest of the whole list: another list, or another order of it, has other keys.
        """
        assert self.setup is not None
        common_secret = agree(self._derived(CHANNEL), key[0])
        return ChaCha20Poly1305(
            derive(common_secret, asdict(self.setup), members, sender, receiver)
        )


def _open(channel: ChaCha20Poly1305, slot: int, sealed: Tensor) -> bytes | None:
    """Both shares of one round in a sealed message; None where its sender did not seal it for this site and round."""
    try:
        both = channel.decrypt(_nonce(slot), raw(sealed), None)
    except InvalidTag:
        return None
    return both if len(both) == 2 * SHARE_BYTES else None


def _nonce(slot: int) -> bytes:
    """The nonce of the message for one round of a setup."""
    return slot.to_bytes(12, "little")
