"""Coverage-guided fuzzing of the decoders of network messages: envelope, body, and the JSON of head and header.

    python benchmarks/fuzz_envelope.py [INPUTS]      100,000 by default; needs atheris (`pip install atheris`)

An input is a message, a body, or a header that is framed or signed correctly, so that the fuzzer passes length and signature
checks. Any exception but `Malformed` is a crash, and so is more than 512 MB of memory (including torch).
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from pathlib import Path

try:
    import atheris
except ImportError:
    sys.exit(
        "found no atheris; install it (pip install atheris), or run tests/federation/test_packing.py, which does not need it"
    )

with atheris.instrument_imports(include=["unalike.federation", "unalike.core.codec", "json"]):
    import torch

    from unalike.core.codec import Limits, Malformed, pack, unpack
    from unalike.federation.protocol.envelope import MAGIC, Head, digest, identity, seal, unseal
    from unalike.federation.security.keys import private_key

KEY = private_key(f"{1:064x}")
LIMITS = Limits(bytes=2**20)
FACTS = {"tallies": {"clients": {"test": {"n": 3, "loss": 1.5, "true": [1, 2]}}}, "none": None}
TENSORS = {
    "update/w": torch.ones(5, 3),
    "flags": torch.tensor([True, False]),
    "empty": torch.zeros(0, 4),
}


def body(data: bytes) -> None:
    _, tensors = unpack(data, LIMITS)
    assert sum(t.numel() * t.element_size() for t in tensors.values()) <= len(data)


def header(data: bytes) -> None:
    text, _, rest = data.partition(b"\n")
    body(len(text).to_bytes(8, "little") + text + rest)


def message(data: bytes) -> None:
    with suppress(Malformed):
        identity(data)
    unseal(data, KEY.public_key(), LIMITS).open(LIMITS)


def signed(data: bytes) -> None:
    """A head, a newline and the body, signed with the enrolled key."""
    text, _, rest = data.partition(b"\n")
    start = MAGIC + (len(text) % 2**16).to_bytes(2, "little") + text
    message(start + KEY.sign(start) + rest)


TARGETS = (body, header, message, signed)


def one(data: bytes) -> None:
    if data:
        with suppress(Malformed):
            TARGETS[data[0] % len(TARGETS)](data[1:])


def seeds(folder: Path) -> None:
    """Valid inputs for each target, to start from."""
    whole = pack(FACTS, TENSORS)
    length = 8 + int.from_bytes(whole[:8], "little")
    sealed = seal(Head("run", 1, 2, "site", "answer", digest(b"order")), FACTS, TENSORS, KEY)
    start = len(MAGIC) + 2
    end = start + int.from_bytes(sealed[len(MAGIC) : start], "little")
    inputs = (
        whole,
        whole[8:length] + b"\n" + whole[length:],
        sealed,
        sealed[start:end] + b"\n" + whole,
    )
    for number, data in enumerate(inputs):
        (folder / str(number)).write_bytes(bytes([number]) + data)


if __name__ == "__main__":
    inputs = sys.argv[1] if len(sys.argv) > 1 else "100000"
    with tempfile.TemporaryDirectory() as corpus:
        seeds(Path(corpus))
        limits = ["-rss_limit_mb=512", "-max_len=4096", "-timeout=10", "-print_final_stats=1"]
        atheris.Setup([sys.argv[0], f"-atheris_runs={inputs}", *limits, corpus], one)
        atheris.Fuzz()
