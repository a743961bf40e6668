"""The two private keys of a site, made by the coordinator or at the site, and the public ones that the coordinator enrols."""

import hashlib
import json
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_pem_public_key

from unalike._utils.errors import UnalikeError
from unalike.federation.security import certificates
from unalike.federation.security.keys import new_key, private_text, public_key, public_text

SIGNING = "site.key"
"""The file in a bundle or in a site's folder with the key that signs messages."""
NODE = "node.key"
"""The file beside it with the key of the connection (OpenSSH)."""


def new_keys() -> tuple[dict[str, bytes], dict[str, str]]:
    """New private keys, by file, and the public ones by file, as text."""
    signing_key = new_key()
    node_key = certificates.node_key()
    private = {
        SIGNING: private_text(signing_key).encode(),
        NODE: certificates.openssh(node_key),
    }
    public = {
        SIGNING: public_text(signing_key),
        NODE: certificates.public_pem(node_key).decode(),
    }
    return private, public


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
        keys = json.loads(path.read_text())
        # parsed for their errors
        public_key(keys[SIGNING])
        load_pem_public_key(keys[NODE].encode())
        return {name: keys[name] for name in (SIGNING, NODE)}
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
        RecursionError,
        UnalikeError,
    ) as error:
        raise UnalikeError(
            f"cannot read {path}: {error}; expected the file that `unalike federation keys` made"
        ) from None


def fingerprint(public: dict[str, str]) -> str:
    """128 bits of the SHA-256 of public keys, to be compared by telephone."""
    content = json.dumps(public, sort_keys=True).encode()
    digits = hashlib.sha256(content).hexdigest()
    return " ".join(digits[i : i + 4] for i in range(0, 32, 4))
