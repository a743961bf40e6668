"""The codec's pieces, as between worker processes; its messages are tested with the envelope (tests/federation/test_packing.py)."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from unalike.core.codec import BETWEEN_PROCESSES, Malformed, from_pieces, to_pieces


def received(pieces):
    pieces = iter(pieces)
    return from_pieces(lambda room: room.copy_(next(pieces)))


def test_codec_nested_tensors_round_trip():
    nest = {
        "a": [torch.arange(3), torch.tensor(2.5, dtype=torch.float64), torch.zeros(0, 2)],
        3: {"b": torch.tensor([True, False])},
        "c": None,
        "d": [1, "x", 2.5, True],
        "e": torch.randn(2, 3).to(torch.bfloat16),
    }
    back = received(to_pieces(nest))
    assert list(back) == list(nest) and back["c"] is None and back["d"] == nest["d"]
    for mine, theirs in zip(
        [*back["a"], back[3]["b"], back["e"]], [*nest["a"], nest[3]["b"], nest["e"]]
    ):
        assert (
            mine.dtype == theirs.dtype and mine.shape == theirs.shape and torch.equal(mine, theirs)
        )


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.bool_])
def test_codec_empty_arrays_round_trip(kind):
    """What a worker could not pack it had announced already, and both sides waited for ever."""
    back = received(
        to_pieces({"a": torch.from_numpy(np.concatenate([np.zeros(0, kind)])), "b": torch.ones(2)})
    )
    assert (
        back["a"].shape == (0,) and back["a"].numpy().dtype == kind and back["b"].tolist() == [1, 1]
    )


@pytest.mark.parametrize("beside", [[], [torch.ones(3)]])
def test_codec_expanded_scalar_round_trips(beside):
    """The count of a batch norm of the only client in a chunk has a stride of 0."""
    back = received(to_pieces({"count": torch.tensor(7).expand(1), "beside": beside}))
    assert back["count"].tolist() == [7]


def test_codec_large_tensors_are_sent_without_copy():
    """Small ones share a piece; nothing large is copied to be sent, and each is received into a vector of its own."""
    large, sizes = torch.randn(3, 2**16), (5, 1, 0, 7)
    nest = {
        "a": [torch.arange(n) for n in sizes],
        "b": [large, large.T],
        "c": torch.tensor(True),
        "d": large.half(),
    }
    length, header, *pieces = to_pieces(nest)
    assert len(pieces) == 5
    assert pieces[1].data_ptr() == large.data_ptr() and pieces[1].nbytes == large.nbytes
    back = received([length, header, *pieces])
    assert all(
        torch.equal(a, b) for a, b in zip([*nest["a"], *nest["b"]], [*back["a"], *back["b"]])
    )
    assert torch.equal(back["d"], nest["d"]) and back["c"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["0", "f32", [2**60]], "shape"),
        (["0", "f32", [2**40, 4]], "more than"),
        (["0", "object", [1]], "of type 'object'"),
        (["0", "f32", [-1]], "shape"),
        (["0", "f32"], "not \\[name, dtype, shape\\]"),
    ],
)
def test_codec_impossible_tensor_raises_before_allocation(row, message):
    text = json.dumps(
        {"facts": {"nest": {"t": 0}, "on_device": [False]}, "tensors": [row]}
    ).encode()
    header = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    with pytest.raises(Malformed, match=message):
        received([torch.tensor([len(header)]), header])


@pytest.mark.parametrize("length", [0, -1, BETWEEN_PROCESSES.header + 1])
def test_codec_impossible_header_raises_before_allocation(length):
    with pytest.raises(Malformed, match="header"):
        received([torch.tensor([length])])


def test_codec_numbers_that_are_not_finite_reach_other_processes():
    back = received(to_pieces({"loss": [float("nan"), float("inf")]}))
    assert np.isnan(back["loss"][0]) and back["loss"][1] == np.inf
