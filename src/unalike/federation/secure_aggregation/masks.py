"""Keys and masks: X25519 between two sites, HKDF for each purpose, ChaCha20 as the stream of a mask."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from unalike.federation.secure_aggregation.arithmetic import Words

KEY_BYTES = 32
"""Bytes of a key, private, public or derived."""
PROTOCOL = "unalike secure aggregation 1"
"""Part of every digest, so that none of them can come from another protocol."""


def context(*facts: Any) -> str:
    """Digest of plain facts."""
    return hashlib.sha256(json.dumps([PROTOCOL, *facts]).encode()).hexdigest()


def derive(secret: bytes, *purpose: Any) -> bytes:
    """A key of 32 bytes for one purpose (HKDF with SHA-256, RFC 5869); those of different purposes are independent."""
    info = context(*purpose).encode()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)


def public_half(private: bytes) -> bytes:
    """The public key of an X25519 private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: Tensor) -> bytes:
    """The secret that two sites have in common (X25519, RFC 7748). Raises `ValueError` for a public key of small order."""
    own_key = X25519PrivateKey.from_private_bytes(private)
    other_key = X25519PublicKey.from_public_bytes(raw(public))
    return own_key.exchange(other_key)


def stream(key: bytes, length: int) -> bytes:
    """`length` bytes of ChaCha20's stream (RFC 8439). A key may have one use only."""
    # Counter and nonce are zero: the key is what differs from one use to the next.
    cipher = Cipher(ChaCha20(key, nonce=bytes(16)), mode=None)
    return cipher.encryptor().update(bytes(length))


def mask(secret: bytes, sum_context: str, length: int) -> Words:
    """The mask [length] that a secret gives in one sum."""
    key = derive(secret, sum_context)
    return np.frombuffer(stream(key, 8 * length), np.uint64)


def pair_context(sum_context: str, site: str, other: str) -> str:
    """Digest of a sum and of two of its sites, in either order: the context of the mask that they have in common.

    Without the names a site that signs another one's public key as its own would have masks that cancel those of the other.
    """
    return context("pair", sum_context, sorted((site, other)))


def raw(tensor: Tensor) -> bytes:
    """The bytes in a tensor."""
    return tensor.numpy().tobytes()


def rows(data: Sequence[bytes]) -> Tensor:
    """Rows of equal length as a tensor [n, length] of bytes."""
    joined = bytearray(b"".join(data))
    return torch.frombuffer(joined, dtype=torch.uint8).reshape(len(data), -1)
