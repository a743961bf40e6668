"""The two private keys of a site, made by the coordinator or at the site, and the public ones that the coordinator enrols."""

import hashlib
import json
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_pem_public_key

from unalike._utils.errors import UnalikeError
from unalike.federation.security import certificates
from unalike.federation.security.keys import new_key, private_text, public_key, public_text

SIGNING, NODE = "site.key", "node.key"
"""Files in a bundle or in a site's folder: the key that signs messages, and that of the connection (OpenSSH)."""


def new_keys() -> tuple[dict[str, bytes], dict[str, str]]:
    """New private keys, by file, and the public ones by file, as text."""
    key, node = new_key(), certificates.node_key()
    private = {SIGNING: private_text(key).encode(), NODE: certificates.openssh(node)}
    return private, {SIGNING: public_text(key), NODE: certificates.public_pem(node).decode()}


def read_private(folder: Path) -> dict[str, bytes]:
    """The private keys that a site has made. Raises `UnalikeError`."""
    try:
        return {name: (folder / name).read_bytes() for name in (SIGNING, NODE)}
    except OSError as error:
        raise UnalikeError(
            f"{folder} holds no keys: {error.strerror}; expected those of `unalike federation keys` (--folder)"
        ) from None


def read_public(path: Path) -> dict[str, str]:
    """The public keys in a file of `unalike federation keys`. Raises `UnalikeError`."""
    try:
        found = json.loads(path.read_text())
        public_key(found[SIGNING])
        load_pem_public_key(found[NODE].encode())
        return {name: found[name] for name in (SIGNING, NODE)}
    except (OSError, ValueError, TypeError, AttributeError, KeyError, UnalikeError) as error:
        raise UnalikeError(
            f"cannot read {path}: {error}; expected the file that `unalike federation keys` made"
        ) from None


def fingerprint(public: dict[str, str]) -> str:
    """128 bits of the SHA-256 of public keys, to be compared by telephone."""
    text = hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()
    return " ".join(text[i : i + 4] for i in range(0, 32, 4))
