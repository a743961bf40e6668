"""What a method sends."""

from simulation import mlp

import unalike as ua
from unalike.methods.method import Method


def test_wire_of_scaffold_lists_every_item_down_and_up():
    """SCAFFOLD: the model and c down, the update and the change of c_i up, and four numbers."""
    items = ua.wire(Method.parse("scaffold"), mlp())
    size = sum(4 * p.numel() for p in mlp().parameters())
    assert [(i.direction, i.bytes) for i in items] == [
        ("down", size),
        ("down", size),
        ("up", size),
        ("up", size),
        ("up", 16),
    ]
    assert ua.wire(Method.parse("local_only"), mlp()) == []
