"""Rows 15 and 16: any bytes are a message or raise `Malformed`, and memory is in proportion to their length."""

from __future__ import annotations

import contextlib
import json
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_federation import key_of

from unalike.core.codec import DTYPES, Limits, Malformed, pack, read_json, unpack
from unalike.federation.protocol.envelope import Head, digest, identity, seal, unseal

KEY = key_of(1)
TENSORS = {
    "update/w": torch.randn(5, 3, generator=torch.Generator().manual_seed(0)),
    "update/empty": torch.zeros(0, 4),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "flags": torch.tensor([True, False]),
    "places": torch.arange(4, dtype=torch.int32),
}
FACTS = {"tallies": {"clients": {"test": {"n": 3, "loss": 1.5, "true": [1, 2]}}}, "none": None}
BODY = pack(FACTS, TENSORS)
MESSAGE = seal(Head("run", 1, 2, "site", "answer", digest(b"order")), FACTS, TENSORS, KEY)
AMPLIFICATION, SMALL = 60, 300_000
"""Memory of a JSON header of many small lists as Python objects, relative to its bytes; and a constant for error messages."""


def read(body: bytes) -> None:
    facts, tensors = unpack(body, Limits(bytes=2**20))
    assert isinstance(facts, dict)
    assert sum(t.numel() * t.element_size() for t in tensors.values()) <= len(body)


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Change, cut or repeat some bytes, or enlarge a number in the header."""
    found = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at, length = int(rng.integers(len(found) + 1)), int(rng.integers(1, 20))
        match int(rng.integers(7)):
            case 0:
                found[at : at + 1] = bytes([int(rng.integers(256))])
            case 1:
                del found[at:]
            case 2:
                found[at:at] = rng.bytes(length)
            case 3:
                found[at:at] = found[at : at + length] * int(rng.integers(1, 50))
            case 4:
                del found[at : at + length]
            case 5:  # a number of the header
                digits = [i for i, b in enumerate(found[:400]) if chr(b).isdigit()]
                if digits:
                    i = int(rng.choice(digits))
                    found[i : i + 1] = [
                        b"-1",
                        b"1e999",
                        b"9" * 30,
                        b"0.5",
                        b"NaN",
                        b"[[[[",
                        b"null",
                    ][int(rng.integers(7))]
            case 6:
                found[:8] = int(rng.integers(0, 2**40)).to_bytes(8, "little")
        if not found:
            break
    return bytes(found)


def grafted(data: bytes, rng: np.random.Generator) -> bytes:
    """The body with a changed header and its correct length, to pass the length check."""
    length = int.from_bytes(data[:8], "little")
    header = mutated(data[8 : 8 + length], rng)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def attacks(seed: int) -> None:
    """Five inputs for both decoders."""
    rng = np.random.default_rng(seed)
    for body in (mutated(BODY, rng), grafted(BODY, rng), rng.bytes(int(rng.integers(0, 300)))):
        with contextlib.suppress(Malformed):
            read(body)
    for message in (mutated(MESSAGE, rng), MESSAGE[:10] + mutated(MESSAGE[10:], rng)):
        with contextlib.suppress(Malformed):
            assert unseal(message, KEY.public_key()).body == BODY


FIVE_TIMES = settings(max_examples=5 * settings.default.max_examples)


@FIVE_TIMES
@given(st.integers(0, 2**63))
def test_decoder_mutated_inputs_raise_only_malformed(seed):
    attacks(seed)


@pytest.mark.slow
@settings(max_examples=20_000)
@given(st.integers(0, 2**63))
def test_decoder_100000_mutated_inputs_raise_only_malformed(seed):
    attacks(seed)


@FIVE_TIMES
@given(st.binary(max_size=600))
def test_decoder_any_bytes_raise_only_malformed(data):
    for decoder in (read, lambda b: unseal(b, KEY.public_key()), identity):
        with contextlib.suppress(Malformed):
            decoder(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
ROWS = st.lists(
    st.lists(
        st.sampled_from([*DTYPES, "name", "object"])
        | st.lists(st.integers(-2, 2**70), max_size=9)
        | JSON,
        max_size=4,
    )
)


@FIVE_TIMES
@given(JSON | st.fixed_dictionaries({"facts": JSON, "tensors": ROWS}), st.binary(max_size=64))
def test_decoder_meaningless_json_headers_raise_only_malformed(header, data):
    """Any JSON as header, and as a head that is correctly signed."""
    text = json.dumps(header).encode()
    with contextlib.suppress(Malformed):
        read(len(text).to_bytes(8, "little") + text + data)
    signed = b"UNALIKE1" + len(text).to_bytes(2, "little") + text
    with contextlib.suppress(Malformed):
        unseal(signed + KEY.sign(signed) + data, KEY.public_key())


def peak(body: bytes) -> int:
    """Peak memory in bytes of decoding."""
    tracemalloc.start()
    try:
        read(body)
    except Malformed:
        pass
    finally:
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return found


def framed(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


BOMBS = {
    "lying length": b"\xff" * 8 + b"{}",
    "shape whose product overflows": framed(
        b'{"facts":{},"tensors":[["a","f64",[4294967296,4294967296,4294967296]]]}'
    ),
    "shape of a terabyte": framed(
        b'{"facts":{},"tensors":[["a","f64",[1000000,1000000]]]}', b"x" * 8
    ),
    "a product of zero": framed(b'{"facts":{},"tensors":[["a","f64",[1000000,1000000,0]]]}'),
    "a product that overflows before its zero": framed(
        b'{"facts":{},"tensors":[["a","u8",[1000000,1000000,1000000,1000000,0]]]}'
    ),
    "a million tensors": framed(b'{"facts":{},"tensors":[' + b'["","f32",[]],' * 60_000 + b"0]}"),
    "deep": framed(b"[" * 500_000),
    "deep objects": framed(b'{"a":' * 100_000),
    "a number of a million digits": framed(b'{"facts":{"a":' + b"9" * 900_000 + b'},"tensors":[]}'),
    "a long name": framed(
        json.dumps({"facts": {}, "tensors": [["a" * 10**5, "u8", []]]}).encode(), b"x"
    ),
    "a header beyond its limit": framed(b" " * (2**20 + 1)),
    "more bytes than allowed": b"x" * (2**20 + 1),
}


@pytest.mark.parametrize("name", BOMBS)
def test_decoder_bombs_use_memory_in_proportion_to_length(name):
    bomb = BOMBS[name]
    assert peak(bomb) <= AMPLIFICATION * len(bomb) + SMALL


@FIVE_TIMES
@given(st.integers(0, 2**63))
def test_decoder_memory_is_in_proportion_to_input(seed):
    rng = np.random.default_rng(seed)
    for body in (mutated(BODY, rng), grafted(BODY, rng)):
        assert peak(body) <= AMPLIFICATION * len(body) + SMALL


def test_read_json_half_surrogate_pair_is_refused():
    with pytest.raises(Malformed, match="surrogates not allowed"):
        read_json(b'{"why":"\\ud800"}')
    assert read_json(b'{"why":"\\ud83d\\ude00"}') == {"why": "\U0001f600"}


def test_unpack_returns_packed_contents():
    facts, tensors = unpack(BODY)
    assert facts == FACTS and list(tensors) == list(TENSORS)
    for name, t in TENSORS.items():
        assert tensors[name].dtype == t.dtype and torch.equal(tensors[name], t)
    for dtype in DTYPES.values():
        t = torch.ones(3, 2, dtype=dtype)
        assert torch.equal(unpack(pack({}, {"t": t}))[1]["t"], t)
    assert pack(FACTS, TENSORS) == BODY
    assert identity(MESSAGE) == unseal(MESSAGE, KEY.public_key()).digest


def test_unseal_any_changed_byte_is_refused():
    for at in range(len(MESSAGE)):
        with pytest.raises(Malformed):
            unseal(MESSAGE[:at] + bytes([MESSAGE[at] ^ 1]) + MESSAGE[at + 1 :], KEY.public_key())
