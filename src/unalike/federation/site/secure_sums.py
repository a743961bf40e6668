"""A site's half of secure aggregation: its keys, the shares of its secrets, its masked summand, and shares that unmask a sum."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from torch import Tensor

from unalike._utils.errors import UnalikeError
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
    encode,
    split,
)
from unalike.federation.secure_aggregation.masks import (
    agree,
    context,
    derive,
    mask,
    public_half,
    raw,
    rows,
    stream,
)
from unalike.federation.secure_aggregation.setup import Keys, Setup, check_sites, keys_digest
from unalike.federation.secure_aggregation.summands import vector
from unalike.federation.security.keys import PrivateKey

MAX_SETUP_ROUNDS = 1000
"""Rounds of a setup, at most."""

PRIVATE_MASK = "private mask"
"""The secret of a site's own mask. Its shares are given for a site whose summand is in the sum."""
MASK_KEY = "mask key"
"""The private key of the masks that a site has in common with others. Its shares are given for a site that dropped out."""
CHANNEL = "channel"
"""The private key that seals shares for another site."""

SECOND_SUM = (
    "a second sum, over other sites than the first; their difference would show single updates:"
)


class SecureSums:
    """A site's secrets of a run and its ledger of sums, in `folder`. All methods raise `Declined`.

    In the ledger, `setup` is the newest one, and all secrets in it are derived from `secret`. `masked` is round -> context of the
    sum that a summand was masked for. `sums` is "step-round" -> setup, and digests of the sites in the sum and of the others, once
    the site gave shares for it. It is written before anything leaves the site: no restart makes it give both kinds of shares for
    one site and round, or shares for two sums of one round.
    """

    def __init__(self, federation: Federation, name: str, key: PrivateKey, folder: Path):
        if not federation.secure_aggregation:
            raise Declined("plan", "a request of secure aggregation, which was not agreed")
        self.federation = federation
        self.name = name
        self.key = key
        self.file = folder / "sums.json"
        self.members_file = folder / "members.safetensors"
        self.ledger: dict[str, Any] = {"sums": {}}
        if self.file.exists():
            self.ledger = json.loads(self.file.read_text())
        self.setup: Setup | None = None
        if "setup" in self.ledger:
            self.setup = Setup(**self.ledger["setup"])

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

        # A later setup begins with a new secret; the same request again gets the same keys.
        if self.setup is None or self.setup.number < setup.number:
            self.members_file.unlink(missing_ok=True)
            self._write(setup=asdict(setup), secret=secrets.token_hex(32), masked={})
            self.setup = setup
        if self.setup != setup or setup.rounds > MAX_SETUP_ROUNDS:
            raise Declined(
                "sum",
                f"setup {setup.number} of {setup.rounds} rounds; the newest one here is {self.setup}",
            )

        # The signature is for this setup alone: nobody can use these keys in another one.
        keys = self._own_keys(setup)
        signature = self.key.sign(setup.signed(self.name, keys))
        return {"keys": keys, "signature": rows([signature])}

    def shares(self, head: Head, asked: SetupRequest, tensors: Tree) -> Tree:
        """For each member its sealed shares of this site's secrets of all rounds, once the members' keys were checked."""
        setup, earlier_keys = self._members(asked.setup)
        keys = self._checked_keys(setup, asked, tensors)

        # A second list would have other shares of the same secrets.
        if earlier_keys and keys_digest(earlier_keys) != keys_digest(keys):
            raise Declined("sum", "a second list of members for one setup")
        write_tensors(self.members_file, keys)

        # Each member gets its shares of both secrets of a round in one message that only it can open.
        channels = [
            self._channel(key, sender=self.name, receiver=name) for name, key in keys.items()
        ]
        sealed_by_round = []
        for slot in range(setup.rounds):
            mask_shares = self._split(PRIVATE_MASK, slot, asked.members)
            key_shares = self._split(MASK_KEY, slot, asked.members)
            sealed = []
            for channel, mask_share, key_share in zip(
                channels, mask_shares, key_shares, strict=True
            ):
                sealed.append(channel.encrypt(_nonce(slot), mask_share + key_share, None))
            sealed_by_round.append(rows(sealed))
        return {"shares": torch.stack(sealed_by_round, 1)}

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

    def _split(self, purpose: str, slot: int, members: Sequence[str]) -> list[bytes]:
        """The members' shares of this site's secret of one purpose, for one round of the setup."""
        least = self.federation.least_sum
        random_key = self._derived("polynomial", purpose, slot, members)
        return split(
            secret=self._derived(purpose, slot),
            threshold=least,
            points=[self.federation.number(name) + 1 for name in members],
            random=stream(random_key, RANDOM_BYTES * (least - 1)),
        )

    # 2. A summand behind its masks.

    def masked(self, head: Head, asked: MaskedTrainRequest, tensors: Tree, terms: Tree) -> Tree:
        """The terms of this site as integers, plus its private mask, plus or minus those that it has in common with the others.

        `tensors` are those of the request that are sent in every round.
        """
        setup, keys = self._members(asked.setup)
        slot = setup.slot(*head.place)
        sum_context = setup.sum_context(head.round, asked, tensors, keys)
        check_sites(asked.cohort, self.federation, keys)

        # Two summands under one mask would show their difference: a round has one summand, for one sum.
        masked = self.ledger["masked"]
        newest = max((int(round) for round in masked), default=-1)
        has_other = masked.get(str(head.round), sum_context) != sum_context
        if self.name not in asked.cohort or head.round < newest or has_other:
            raise Declined(
                "sum",
                f"a second summand for round {head.round}, one before round {newest}, or of others",
            )

        # After a sum of this round was unmasked, in an earlier setup, another one would differ from it by single updates.
        _, alive, _ = self.ledger["sums"].get(_place(head), (0, None, None))
        if alive is not None and alive != context(sorted(asked.cohort)):
            raise Declined("sum", f"{SECOND_SUM} for round {head.round}")

        # The ledger is written before the masked summand exists: a restart in between cannot make a second one.
        try:
            total = encode(vector(terms), len(asked.cohort))
        except UnalikeError as error:
            raise Declined("range", str(error)) from None
        self._write(masked=masked | {str(head.round): sum_context})
        total = self._with_masks(total, asked.cohort, slot, sum_context, keys)
        return {"masked": torch.from_numpy(total.view(np.int64))}

    def _with_masks(
        self, summand: Words, cohort: Sequence[str], slot: int, sum_context: str, keys: Keys
    ) -> Words:
        """The summand behind this site's own mask, and those that vanish from the sum with the summands of the others."""
        length = len(summand)
        masked = summand + mask(self._derived(PRIVATE_MASK, slot), sum_context, length)
        number = self.federation.number
        for name in cohort:
            if name == self.name:
                continue
            common_secret = agree(self._derived(MASK_KEY, slot), keys[name][1 + slot])
            common = mask(common_secret, sum_context, length)
            # Of two sites the one with the smaller number adds the mask, and the other one subtracts it.
            adds = number(self.name) < number(name)
            masked = masked + common if adds else masked - common
        return masked

    # 3. Shares that unmask a sum.

    def unmask(self, head: Head, asked: UnmaskRequest, tensors: Tree) -> Tree:
        """Shares of the private masks of the sites in the sum and of the mask keys of the others; never both of one site."""
        setup, keys = self._members(asked.setup)
        slot = setup.slot(*head.place)
        names = (*asked.alive, *asked.dropped)
        sealed = tensors.get("shares", ())
        check_sites(asked.alive, self.federation, keys)
        check_sites(names, self.federation, keys)

        # One sum for a round, in any setup: the difference of two would show single updates. In one setup the sites that dropped
        # out are the same each time, too.
        this_sum = [
            setup.number,
            context(sorted(asked.alive)),
            context(sorted(asked.dropped)),
        ]
        first_sum = self.ledger["sums"].get(_place(head), this_sum)
        is_same_setup = first_sum[0] == this_sum[0]
        has_other_alive = first_sum[1] != this_sum[1]
        has_other_dropped = first_sum[2] != this_sum[2]
        is_second = has_other_alive or (is_same_setup and has_other_dropped)
        if is_second or len(sealed) != len(names):
            raise Declined("sum", f"{SECOND_SUM} for round {head.round}")
        self._write(sums=self.ledger["sums"] | {_place(head): this_sum})

        shares = []
        for name, sealed_shares in zip(names, sealed, strict=True):
            channel = self._channel(keys[name], sender=name, receiver=self.name)
            try:
                both = channel.decrypt(_nonce(slot), raw(sealed_shares), None)
            except InvalidTag:
                raise Declined("sum", f"the shares of {name} are damaged") from None
            mask_share, key_share = both[:SHARE_BYTES], both[SHARE_BYTES:]
            shares.append(mask_share if name in asked.alive else key_share)
        return {"shares": rows(shares)}

    # Secrets and ledger.

    def _write(self, **changed: Any) -> None:
        self.ledger |= changed
        write_bytes(self.file, json.dumps(self.ledger).encode())

    def _members(self, number: int | None) -> tuple[Setup, Keys]:
        """The newest setup, and the keys of its members, which were checked when they came; none before that."""
        if self.setup is None or number != self.setup.number:
            raise Declined("sum", f"setup {number}; the newest one here is {self.setup}")
        if not self.members_file.exists():
            return self.setup, {}
        keys, _ = read_tensors(self.members_file)
        return self.setup, keys

    def _derived(self, *purpose: Any) -> bytes:
        """A secret of this setup for one purpose."""
        return derive(bytes.fromhex(self.ledger["secret"]), *purpose)

    def _own_keys(self, setup: Setup) -> Tensor:
        """This site's public keys."""
        keys = [public_half(self._derived(CHANNEL))]
        for slot in range(setup.rounds):
            keys.append(public_half(self._derived(MASK_KEY, slot)))
        return rows(keys)

    def _channel(self, key: Tensor, sender: str, receiver: str) -> ChaCha20Poly1305:
        """The cipher of shares from one site to another; each round of the setup is one message."""
        assert self.setup is not None
        common_secret = agree(self._derived(CHANNEL), key[0])
        return ChaCha20Poly1305(derive(common_secret, asdict(self.setup), sender, receiver))


def _place(head: Head) -> str:
    """The step and round of a request, as the ledger names them."""
    return f"{head.stage}-{head.round}"


def _nonce(slot: int) -> bytes:
    """The nonce of the message for one round of a setup."""
    return slot.to_bytes(12, "little")
