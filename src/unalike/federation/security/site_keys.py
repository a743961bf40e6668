"""The two private keys of a site, made by the coordinator or at the site, and the public ones that the coordinator enrols."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePublicKey
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
        # parsed for their errors, and written in one form: two texts of one key would be two sites with one connection
        public_key(keys[SIGNING])
        node = load_pem_public_key(keys[NODE].encode())
        if not isinstance(node, EllipticCurvePublicKey) or not isinstance(node.curve, SECP384R1):
            raise ValueError(f"{NODE} is no key of the curve P-384")
        return {SIGNING: keys[SIGNING], NODE: certificates.as_pem(node).decode()}
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


def check_connection_keys(key_of: Mapping[str, str]) -> None:
    """Raise `UnalikeError` for two sites with one connection key: whoever has a public key could take the other one's place."""
    owner_of: dict[str, str] = {}
    for site, key in key_of.items():
        other = owner_of.setdefault(key, site)
        if other != site:
            raise UnalikeError(
                f"{site} and {other} have one connection key; expected two: ask both for the file that `unalike federation keys` "
                "made at their site, and compare the fingerprints by telephone"
            )


def fingerprint(public: dict[str, str]) -> str:
    """128 bits of the SHA-256 of public keys, to be compared by telephone."""
    content = json.dumps(public, sort_keys=True).encode()
    digits = hashlib.sha256(content).hexdigest()
    return " ".join(digits[i : i + 4] for i in range(0, 32, 4))
