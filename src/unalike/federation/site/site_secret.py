"""A site's secret, from which it draws noise."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

from unalike._utils.tensor_files import write_bytes

FILE, BYTES = "noise.secret", 32


def site_secret(folder: Path, samples: str) -> bytes:
    """Random bytes that were drawn at this site and never leave it, for the samples with this fingerprint.

    The keys in a bundle would not do: the coordinator made them. Other samples get another secret, since answers with the same
    noise would show by their difference which samples are new.
    """
    file = folder / FILE
    if not file.exists():
        write_bytes(file, secrets.token_bytes(BYTES))  # atomic: half a secret could be guessed
    return hashlib.sha256(file.read_bytes() + samples.encode()).digest()
