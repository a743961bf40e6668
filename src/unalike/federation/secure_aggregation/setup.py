"""A setup of secure aggregation: what the keys of its members are for, and their signatures."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from cryptography.exceptions import InvalidSignature
from torch import Tensor

from unalike.core.codec import checksum
from unalike.core.types import Tree
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.messages import Declined, MaskedTrainRequest
from unalike.federation.secure_aggregation.masks import KEY_BYTES, agree, context, raw
from unalike.federation.security.keys import public_key

Keys = Mapping[str, Tensor]
"""Site -> its public keys [1 + rounds, 32] of a setup: one to seal shares for it, then one for the masks of each round."""


@dataclass(frozen=True)
class Setup:
    """Keys for the rounds `first`, ..., `first + rounds - 1` of a step of a run. Later setups have larger numbers."""

    run: str
    number: int
    step: int
    first: int
    rounds: int
    terms: str

    def slot(self, step: int, round: int) -> int:
        """The place of a round in the setup, from 0. Raises `Declined` for a round that is not there."""
        if step != self.step or not 0 <= round - self.first < self.rounds:
            raise Declined(
                "sum",
                f"round {round} of step {step} is not one that setup {self.number} has keys for",
            )
        return round - self.first

    def signed(self, site: str, keys: Tensor) -> bytes:
        """The bytes that a site signs: the digest of its keys, and of all that they are for."""
        return context("keys", asdict(self), site, checksum({site: keys})).encode()

    def check(self, federation: Federation, site: str, keys: Tensor, signature: Tensor) -> None:
        """Raise `Declined` for a site that is not enrolled, keys that it did not sign for this setup, and keys of small order."""
        # A member is a site of the federation file, so that a coordinator cannot make up sites and open sums with their shares.
        enrolled = federation.site(site)
        are_all_keys = keys.dtype == torch.uint8 and keys.shape == (1 + self.rounds, KEY_BYTES)
        if enrolled is None or enrolled.revoked or not are_all_keys:
            raise Declined(
                "sum",
                f"no site {site[:64]!r} is enrolled, or it has other than {1 + self.rounds} keys",
            )

        # The site itself has made these keys, and for this setup.
        try:
            public_key(enrolled.key).verify(raw(signature), self.signed(site, keys))
        except InvalidSignature:
            raise Declined(
                "sum", f"keys of {site!r} that its enrolled key did not sign for this setup"
            ) from None

        # With a key of small order the common secret would not depend on the other site's key: any private key shows it.
        any_private = bytes(KEY_BYTES)
        try:
            for key in keys:
                agree(any_private, key)
        except ValueError:
            raise Declined(
                "sum", f"a key of {site!r} with which every site would agree on the same secret"
            ) from None

    def sum_context(
        self, place: tuple[int, int], asked: MaskedTrainRequest, model: str, keys: Keys
    ) -> str:
        """Digest of all that the sites of a sum must have in common: the sites, their keys, the model, and what to do with it.

        Masks are derived with it. So a coordinator that sends the sites different models or lists gets noise (model inconsistency,
        Pasquini et al. 2022). `model` is the `model_digest` of the request at this `place`.
        """
        return context("sum", asdict(self), place, asked.common_facts, model, members_digest(keys))


def model_digest(place: tuple[int, int], tensors: Tree, fixed: str) -> str:
    """Digest of the model that a site is sent, whatever the order of its tensors; without a model, of the round at this `place`.

    `tensors` are those that are sent in every round; `fixed` is the digest of the others.
    """
    if not tensors:
        return context("no model", place, fixed)
    return context("model", checksum(dict(sorted(tensors.items()))), fixed)


def check_sites(names: Sequence[str], federation: Federation, keys: Keys) -> None:
    """Raise `Declined` for sites that are too few, not all with keys, or not each once in the order of their enrolment."""
    least = federation.least_sum
    if len(names) < least or not set(names) <= keys.keys() or not is_in_order(names, federation):
        raise Declined(
            "sum",
            f"sites {', '.join(names)[:200]}; expected {least} or more members of the setup, each once, in the order of enrolment",
        )


def is_in_order(names: Sequence[str], federation: Federation) -> bool:
    """Whether enrolled sites are named in the order of the federation file, each once."""
    numbers = [federation.number(name) for name in names]
    return numbers == sorted(set(numbers))


def members_digest(keys: Keys) -> str:
    """Digest of the list of all members with their keys."""
    return context("members", list(keys), checksum(dict(keys)))
