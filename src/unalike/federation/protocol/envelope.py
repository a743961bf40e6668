"""Signed messages. The head states the run, step, round, site, kind and, in a reply, the request that it answers.

    magic (8 bytes) | length of the head (2 bytes, little endian) | head, JSON | Ed25519 signature (64 bytes) | body

The signature covers everything before it, and the head holds the digest and the length of the body. So a changed byte anywhere is
detected, and a signature cannot be reused in another run, round or reply. There is no timestamp: equal contents give equal bytes.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass

from cryptography.exceptions import InvalidSignature

from unalike.core.codec import Facts, Limits, Malformed, pack, read_json, unpack
from unalike.core.types import Tree
from unalike.federation.security.keys import PrivateKey, PublicKey

MAGIC = b"UNALIKE1"
SIGNATURE_BYTES = 64
LENGTH_BYTES = 2
"""Bytes of the number that says how long the head is."""
MAX_HEAD_BYTES = 4096
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Valid names of runs, sites and kinds. They are safe as file names; nothing else from a message becomes part of a path."""
DIGEST_PATTERN = re.compile(r"(?:[0-9a-f]{64})?")
"""A digest, or none."""


@dataclass(frozen=True)
class Head:
    """The signed head of a message. `answers` is the digest of the request that a reply answers, "" in a request."""

    run: str
    stage: int
    round: int
    site: str
    kind: str
    answers: str = ""

    def __post_init__(self) -> None:
        for what in ("run", "site", "kind"):
            value = getattr(self, what)
            if not isinstance(value, str) or not NAME_PATTERN.fullmatch(value):
                raise Malformed(
                    f"{what} {str(value)[:80]!a}; expected a name of 1 to 64 letters, digits, '.', '_', '-'"
                )
        for what in ("stage", "round"):
            value = getattr(self, what)
            if type(value) is not int or not 0 <= value < 2**31:
                raise Malformed(f"{what} {str(value)[:40]!a}; expected a number from 0 to 2**31")
        if not isinstance(self.answers, str) or not DIGEST_PATTERN.fullmatch(self.answers):
            raise Malformed("`answers` is not a digest")

    @property
    def place(self) -> tuple[int, int]:
        """(stage, round); it never decreases during a run."""
        return self.stage, self.round


@dataclass(frozen=True)
class Envelope:
    """A message with a valid signature. `digest` is its `identity`."""

    head: Head
    body: bytes | memoryview
    digest: str

    def open(self, limits: Limits = Limits()) -> tuple[Facts, Tree]:  # noqa: B008  (immutable)
        """The facts and tensors in the body. Raises `Malformed`."""
        return unpack(self.body, limits)


def seal(head: Head, facts: Facts, tensors: Tree, key: PrivateKey) -> bytes:
    """Build and sign a message."""
    body = pack(facts, tensors)
    fields = asdict(head) | {"bytes": len(body), "body": digest(body)}
    text = json.dumps(fields, separators=(",", ":")).encode()
    signed = MAGIC + len(text).to_bytes(LENGTH_BYTES, "little") + text
    return b"".join([signed, key.sign(signed), body])


def unseal(message: bytes, key: PublicKey, limits: Limits = Limits()) -> Envelope:  # noqa: B008  (immutable)
    """Verify that the owner of `key` signed the message and that nothing was changed. Raises `Malformed`."""
    # 1. It has the form and size of a message. Nothing in it is read yet but the length of the head.
    if len(message) > limits.bytes:
        raise Malformed(f"{len(message)} bytes; expected at most {limits.bytes}")
    start = len(MAGIC) + LENGTH_BYTES
    if message[: len(MAGIC)] != MAGIC or len(message) < start:
        raise Malformed("not a message of a federation")
    end = _end_of_head(message)
    if end - start > MAX_HEAD_BYTES or len(message) < end + SIGNATURE_BYTES:
        raise Malformed(
            f"a head of {end - start} bytes in a message of {len(message)}; expected at most {MAX_HEAD_BYTES}"
        )

    # 2. The signature comes before any parsing: only the owner of the key can give the parser something to read.
    try:
        key.verify(message[end : end + SIGNATURE_BYTES], message[:end])
    except InvalidSignature:
        raise Malformed("the signature is not by the key that was enrolled") from None

    # 3. The body is the one that the head was signed with.
    fields = read_json(message[start:end])
    body = memoryview(message)[end + SIGNATURE_BYTES :]
    signed_body = (fields.pop("bytes", None), fields.pop("body", None))
    if signed_body != (len(body), digest(body)):
        raise Malformed("the body is not the one that was signed")

    # 4. The head has the fields of a head, each of its kind.
    try:
        head = Head(**fields)
    except TypeError:
        raise Malformed(
            f"a head with the fields {', '.join(fields)[:200]!a}; expected {', '.join(Head.__annotations__)}"
        ) from None
    return Envelope(head, body, digest=identity(message))


def identity(message: bytes) -> str:
    """The digest of a message, over head and signature only: the head contains the digest of the body."""
    return digest(message[: _end_of_head(message) + SIGNATURE_BYTES])


def _end_of_head(message: bytes) -> int:
    """The place behind the head, by the length in front of it."""
    start = len(MAGIC) + LENGTH_BYTES
    return start + int.from_bytes(message[len(MAGIC) : start], "little")


def digest(data: bytes | memoryview) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
