"""A site's half of secure aggregation: its keys, the shares of its secrets, its masked summand, and shares that unmask a sum."""

import json
import secrets
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
from unalike.federation.secure_aggregation.arithmetic import RANDOM, SHARE, encode, split
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

MOST_ROUNDS = 1000
"""Rounds of a setup."""
AGAIN = "a second sum, over other sites than the first; their difference would show single updates:"


class SecureSums:
    """A site's secrets of a run and its record of sums, in `folder`. All methods raise `Declined`.

    In the record, `setup` is the newest one, and all secrets in it are derived from `secret`. `masked` is round -> context of the
    sum that a summand was masked for. `sums` is "step-round" -> setup, and digests of the sites in the sum and of the others, once
    the site gave shares for it. It is written before anything leaves the site: no restart makes it give both kinds of shares for
    one site and round, or shares for two sums of one round.
    """

    def __init__(self, federation: Federation, name: str, key: PrivateKey, folder: Path):
        if not federation.secure_aggregation:
            raise Declined("plan", "a request of secure aggregation, which was not agreed")
        self.federation, self.name, self.key = federation, name, key
        self.file, self.members = folder / "sums.json", folder / "members.safetensors"
        self.record: dict[str, Any] = (
            json.loads(self.file.read_text()) if self.file.exists() else {"sums": {}}
        )
        self.setup = Setup(**self.record["setup"]) if "setup" in self.record else None

    def keys(self, head: Head, asked: SetupRequest, tensors: Tree) -> Tree:
        """Public keys for the rounds from this one on. The secret of earlier keys is deleted."""
        setup = Setup(
            head.run, asked.setup, head.stage, head.round, asked.rounds, self.federation.terms
        )
        if self.setup is None or self.setup.number < setup.number:
            self.members.unlink(missing_ok=True)
            self._write(setup=asdict(setup), secret=secrets.token_hex(32), masked={})
            self.setup = setup
        if self.setup != setup or setup.rounds > MOST_ROUNDS:
            raise Declined(
                "sum",
                f"setup {setup.number} of {setup.rounds} rounds; the newest one here is {self.setup}",
            )
        keys = self._own(setup)
        return {"keys": keys, "signature": rows([self.key.sign(setup.signed(self.name, keys))])}

    def shares(self, head: Head, asked: SetupRequest, tensors: Tree) -> Tree:
        """For each member its sealed shares of this site's secrets of all rounds, once the members' keys were checked."""
        (setup, before), least = self._members(asked.setup), self.federation.least_sum
        found = [tensors.get(what, torch.empty(0)) for what in ("keys", "signatures")]
        if not len(found[0]) == len(found[1]) == len(asked.members):
            raise Declined("sum", f"keys or signatures of other than {len(asked.members)} members")
        for name, key, signature in zip(asked.members, *found, strict=True):
            setup.check(self.federation, name, key, signature)
        keys = dict(zip(asked.members, found[0], strict=True))
        check_sites(asked.members, self.federation, keys)
        if self.name not in keys or not keys[self.name].equal(self._own(setup)):
            raise Declined("sum", "the setup has other keys of this site than it made")
        if before and keys_digest(before) != keys_digest(keys):
            raise Declined("sum", "a second list of members for one setup")
        write_tensors(self.members, keys)
        points = [self.federation.number(name) + 1 for name in keys]
        channels = [self._channel(key, self.name, name) for name, key in keys.items()]
        sealed = []
        for slot in range(setup.rounds):
            both = []
            for what in ("private mask", "mask key"):
                random = stream(
                    self._derived("polynomial", what, slot, asked.members), RANDOM * (least - 1)
                )
                both.append(split(self._derived(what, slot), least, points, random))
            pairs = zip(channels, *both, strict=True)
            sealed.append(
                rows(
                    [
                        channel.encrypt(_nonce(slot), one + other, None)
                        for channel, one, other in pairs
                    ]
                )
            )
        return {"shares": torch.stack(sealed, 1)}

    def masked(self, head: Head, asked: MaskedTrainRequest, tensors: Tree, terms: Tree) -> Tree:
        """The terms of this site as integers, plus its private mask, plus or minus those that it has in common with the others.

        `tensors` are those of the request that are sent in every round.
        """
        (setup, keys), number = self._members(asked.setup), self.federation.number
        slot, found = setup.slot(*head.place), setup.sum_context(head.round, asked, tensors, keys)
        check_sites(asked.cohort, self.federation, keys)
        newest = max(map(int, self.record["masked"]), default=-1)
        if (
            self.name not in asked.cohort
            or head.round < newest
            or self.record["masked"].get(str(head.round), found) != found
        ):
            raise Declined(
                "sum",
                f"a second summand for round {head.round}, one before round {newest}, or of others",
            )
        _, alive, _ = self.record["sums"].get(f"{head.stage}-{head.round}", (0, None, None))
        if alive not in (None, context(sorted(asked.cohort))):
            raise Declined("sum", f"{AGAIN} for round {head.round}")
        try:
            total = encode(vector(terms), len(asked.cohort))
        except UnalikeError as error:
            raise Declined("range", str(error)) from None
        self._write(masked=self.record["masked"] | {str(head.round): found})
        total += mask(self._derived("private mask", slot), found, len(total))
        for name in asked.cohort:
            if name != self.name:
                common = mask(
                    agree(self._derived("mask key", slot), keys[name][1 + slot]), found, len(total)
                )
                total = total + common if number(self.name) < number(name) else total - common
        return {"masked": torch.from_numpy(total.view(np.int64))}

    def unmask(self, head: Head, asked: UnmaskRequest, tensors: Tree) -> Tree:
        """Shares of the private masks of the sites in the sum and of the mask keys of the others; never both of one site."""
        (setup, keys), place = self._members(asked.setup), f"{head.stage}-{head.round}"
        slot, names, sealed = (
            setup.slot(*head.place),
            (*asked.alive, *asked.dropped),
            tensors.get("shares", ()),
        )
        check_sites(asked.alive, self.federation, keys)
        check_sites(names, self.federation, keys)
        mine = [setup.number, context(sorted(asked.alive)), context(sorted(asked.dropped))]
        number, alive, dropped = self.record["sums"].get(place, mine)
        if (
            alive != mine[1]
            or (number == mine[0] and dropped != mine[2])
            or len(sealed) != len(names)
        ):
            raise Declined("sum", f"{AGAIN} for round {head.round}")
        self._write(sums=self.record["sums"] | {place: mine})
        found = []
        for i, name in enumerate(names):
            try:
                both = self._channel(keys[name], name, self.name).decrypt(
                    _nonce(slot), raw(sealed[i]), None
                )
            except InvalidTag:
                raise Declined("sum", f"the shares of {name} are damaged") from None
            found.append(both[:SHARE] if i < len(asked.alive) else both[SHARE:])
        return {"shares": rows(found)}

    def _write(self, **changed: Any) -> None:
        self.record |= changed
        write_bytes(self.file, json.dumps(self.record).encode())

    def _members(self, number: int | None) -> tuple[Setup, Keys]:
        """The newest setup, and the keys of its members, which were checked when they came; none before that."""
        if self.setup is None or number != self.setup.number:
            raise Declined("sum", f"setup {number}; the newest one here is {self.setup}")
        return self.setup, read_tensors(self.members)[0] if self.members.exists() else {}

    def _derived(self, *purpose: Any) -> bytes:
        return derive(bytes.fromhex(self.record["secret"]), *purpose)

    def _own(self, setup: Setup) -> Tensor:
        """This site's public keys."""
        private = [("channel",), *(("mask key", slot) for slot in range(setup.rounds))]
        return rows([public_half(self._derived(*purpose)) for purpose in private])

    def _channel(self, key: Tensor, sender: str, receiver: str) -> ChaCha20Poly1305:
        """The cipher of shares from one site to another; each round of the setup is one message."""
        assert self.setup is not None
        return ChaCha20Poly1305(
            derive(agree(self._derived("channel"), key[0]), asdict(self.setup), sender, receiver)
        )


def _nonce(slot: int) -> bytes:
    return slot.to_bytes(12, "little")
