"""Ed25519 keys as text: 64 hexadecimal digits each."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey as PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey as PublicKey

from unalike._utils.errors import UnalikeError

__all__ = [
    "PrivateKey",
    "PublicKey",
    "new_key",
    "private_key",
    "private_text",
    "public_key",
    "public_text",
]


KEY_BYTES = 32


def new_key() -> PrivateKey:
    return PrivateKey.generate()


def public_text(key: PrivateKey | PublicKey) -> str:
    """The public key as text."""
    half = key.public_key() if isinstance(key, PrivateKey) else key
    return half.public_bytes_raw().hex()


def private_text(key: PrivateKey) -> str:
    """The private key as text, which must be kept secret."""
    return key.private_bytes_raw().hex()


def public_key(text: str) -> PublicKey:
    """Parse a public key. Raises `UnalikeError`."""
    return PublicKey.from_public_bytes(_raw(text))


def private_key(text: str) -> PrivateKey:
    """Parse a private key. Raises `UnalikeError`."""
    return PrivateKey.from_private_bytes(_raw(text))


def _raw(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != KEY_BYTES:
        raise UnalikeError("a key that cannot be read; expected 64 hexadecimal digits") from None
    return raw
