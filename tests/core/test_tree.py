"""Arithmetic of trees."""

import torch
from simulation import same

from unalike.core import tree


def trees(seed=0, names=("a.weight", "a.bias", "b.weight")):
    gen = torch.Generator().manual_seed(seed)
    return {n: torch.randn(*s, generator=gen) for n, s in zip(names, ((2, 3), (2,), (4,)))}


def test_tree_arithmetic_equals_arithmetic_of_flat_tensors():
    a, b = trees(0), trees(1)
    flat_a, flat_b = tree.flatten(a), tree.flatten(b)
    torch.testing.assert_close(tree.flatten(tree.add(a, b)), flat_a + flat_b)
    torch.testing.assert_close(tree.flatten(tree.sub(a, b)), flat_a - flat_b)
    torch.testing.assert_close(tree.flatten(tree.scale(a, -2)), -2 * flat_a)
    torch.testing.assert_close(tree.dot(a, b), flat_a @ flat_b)
    torch.testing.assert_close(tree.norm(a), flat_a.norm())
    assert (
        tree.dot({}, {}) == 0 and tree.norm({}) == 0 and tree.weighted_sum({}, torch.ones(2)) == {}
    )
    assert same(tree.unflatten(flat_a, a), a)
    assert same(tree.where(torch.tensor(True), a, b), a) and same(
        tree.where(torch.tensor(False), a, b), b
    )
    assert list(tree.add(tree.only(a, ["b.weight"]), b)) == ["b.weight"]
    assert tree.nbytes(a) == 4 * 12 and tree.nbytes(a, b) == 8 * 12


def test_tree_stack_rows_and_weighted_sum_equal_single_trees():
    a, b = trees(0), trees(1)
    both = tree.stack([a, b])
    assert same(tree.row(both, 1), b)
    assert tree.flatten(both, rows=2).shape == (2, 12) and torch.equal(
        tree.flatten(both, rows=2)[1], tree.flatten(b)
    )
    mean = tree.weighted_sum(both, torch.tensor([0.25, 0.75]))
    torch.testing.assert_close(tree.flatten(mean), 0.25 * tree.flatten(a) + 0.75 * tree.flatten(b))


def test_tree_layers_group_parameters_by_module():
    def layers(*names):
        return tree.layers({n: torch.zeros(1) for n in names})

    assert layers("a.weight", "a.bias", "b.weight", "b.bias") == [
        ["a.weight", "a.bias"],
        ["b.weight", "b.bias"],
    ]
    assert layers("conv.weight", "bn.weight", "bn.bias", "head.weight") == [
        ["conv.weight", "bn.weight", "bn.bias"],
        ["head.weight"],
    ]
    assert layers("bias") == [["bias"]] and layers() == []


def test_tree_unpack_of_packed_tree_equals_original():
    drawers = {"part": trees(0), "other.buffers": {"x/y": torch.zeros(1)}}
    assert same(tree.unpack(tree.pack(drawers)), drawers)
