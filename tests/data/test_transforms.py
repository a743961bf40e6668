import numpy as np
import pytest
import torch
from torch.func import vmap

from unalike._utils.errors import UnalikeError
from unalike.data.transforms import transform

ALL = transform("normalize(mean=(0.4, 0.5, 0.6), std=0.2) + crop(padding=2) + flip")


def test_transform_of_stacked_clients_equals_each_client_alone():
    x = torch.rand(3, 5, 3, 8, 6)
    u = torch.stack([ALL.numbers(seed=1, round=2, client=k, samples=5) for k in range(3)])
    alone = torch.stack([ALL(x[k], u[k]) for k in range(3)])
    assert alone.shape == x.shape
    assert torch.equal(ALL(x, u), alone) and torch.equal(vmap(ALL)(x, u), alone)


def test_numbers_depend_on_seed_round_and_client():
    chain = transform("crop + flip")
    first = chain.numbers(0, 1, 2, samples=4)
    assert torch.equal(first, chain.numbers(0, 1, 2, samples=9)[:4])
    others = [chain.numbers(*path, samples=4) for path in ((1, 1, 2), (0, 2, 2), (0, 1, 3))]
    assert not any(torch.equal(first, other) for other in others)
    assert first.min() >= 0 and first.max() < 1


def test_crop_shifts_and_fills_with_zeros():
    crop, x = transform("crop(padding=1)"), torch.arange(1.0, 10).reshape(1, 1, 3, 3)
    assert torch.equal(crop(x, torch.tensor([[0.5, 0.5]])), x)
    up_left = crop(x, torch.tensor([[0.0, 0.0]]))[0, 0]
    assert up_left.tolist() == [[0, 0, 0], [0, 1, 2], [0, 4, 5]]
    down = crop(x, torch.tensor([[0.99, 0.5]]))[0, 0]
    assert down.tolist() == [[4, 5, 6], [7, 8, 9], [0, 0, 0]]


def test_crop_offsets_are_uniform():
    u = transform("crop").numbers(0, 0, 0, samples=9000)
    counts = np.bincount((u * 9).floor().long().numpy()[:, 0], minlength=9)
    assert counts.min() > 850 and counts.max() < 1150


def test_flip_with_p_zero_and_one_never_and_always_flips():
    x, u = torch.rand(2, 1, 2, 3), torch.tensor([[0.2], [0.7]])
    flipped = transform("flip")(x, u)
    assert torch.equal(flipped[0], x[0].flip(-1)) and torch.equal(flipped[1], x[1])
    assert torch.equal(transform("flip(p=0)")(x, u), x) and torch.equal(
        transform("flip(p=1)")(x, u), x.flip(-1)
    )
    assert torch.equal(transform("crop(padding=0)")(x, torch.rand(2, 2)), x)


def test_fixed_keeps_transforms_without_draws():
    x = torch.rand(2, 3, 4, 4)
    expected = (x - torch.tensor([0.4, 0.5, 0.6]).reshape(3, 1, 1)) / 0.2
    assert ALL.draws == 3 and ALL.fixed.draws == 0
    assert torch.allclose(ALL.fixed(x, torch.empty(2, 0)), expected)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("crop(padding=-1)", "padding=-1"),
        ("flip(p=2)", "p=2"),
        ("normalize(std=0)", "std=0"),
        ("blur", "unknown transform"),
        ("flip(q=1)", "it takes flip"),
        ("crop(padding=1.5)", "found padding=1.5, expected a whole number"),
        ("flip(p='a')", "found p='a', expected a number"),
        ("normalize(mean='a')", r"found mean='a', expected a number or \(a number, \.\.\.\)"),
        ("normalize(mean=(1, 'a'))", r"found mean=\(1, 'a'\)"),
        ("normalize(std=())", r"found std=\(\), expected numbers above 0"),
    ],
)
def test_transform_with_invalid_spec_raises(spec, message):
    with pytest.raises(UnalikeError, match=message):
        transform(spec)


def test_normalize_with_wrong_number_of_channels_raises():
    with pytest.raises(
        UnalikeError, match="found 2 numbers, expected 1 or one for each of 3 channels"
    ):
        transform("normalize(mean=(0.1, 0.2))")(torch.rand(1, 3, 2, 2), torch.empty(1, 0))
