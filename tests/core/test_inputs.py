"""Inputs that are trees of tensors."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import unalike as ua
from unalike.core.inputs import (
    first_rows,
    is_one_tensor,
    join_rows,
    map_inputs,
    row_count,
    sample_bytes,
    sample_shape,
    split_rows,
    take_rows,
)

IMAGES = torch.arange(6.0 * 4).reshape(6, 1, 2, 2)
TOKENS = torch.arange(12).reshape(6, 2)
TREES = {
    "one tensor": IMAGES,
    "tuple": (IMAGES, TOKENS),
    "dictionary": {"image": IMAGES, "tokens": TOKENS},
    "nested": {"image": IMAGES, "texts": (TOKENS, TOKENS + 1)},
}


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)
    return type(a) is type(b) and all(map(equal, a, b))


@pytest.mark.parametrize("x", TREES.values(), ids=TREES)
def test_rows_of_trees_are_taken_cut_and_joined(x):
    assert row_count(x) == 6
    assert equal(take_rows(x, torch.tensor([4, 1])), map_inputs(lambda t: t[[4, 1]], x))
    assert equal(first_rows(x, 2), map_inputs(lambda t: t[:2], x))
    pieces = split_rows(x, [1, 3, 2])
    assert [row_count(piece) for piece in pieces] == [1, 3, 2]
    assert equal(join_rows(pieces), x)
    assert [row_count(piece) for piece in split_rows(x, 4)] == [4, 2]


def test_sizes_of_trees_count_every_tensor():
    assert is_one_tensor(IMAGES) and not is_one_tensor((IMAGES,))
    assert sample_bytes(IMAGES) == 16 and sample_bytes(TREES["tuple"]) == 16 + 16
    assert sample_shape(IMAGES) == (1, 2, 2)
    assert sample_shape(TREES["dictionary"]) == ((1, 2, 2), (2,))


class ImageAndRow(nn.Module):
    """Reads an image and a row of a table."""

    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten())
        self.row = nn.Linear(3, 4)
        self.head = nn.Linear(2 * 4 + 4, 3)

    def forward(self, x):
        return self.head(torch.cat([self.image(x["image"]), self.row(x["row"])], 1))


def population_with_two_inputs():
    generator = torch.Generator().manual_seed(0)
    clients = []
    for rows in (17, 25, 33):
        y = torch.arange(rows) % 3
        placeholder = torch.zeros(rows, 1)
        train, test = (placeholder[8:], y[8:]), (placeholder[:8], y[:8])
        clients.append(ua.ClientData(train=train, test=test))
    population = ua.Population.of(clients)
    y = population.y
    row = torch.randn(len(y), 3, generator=generator) + 2 * nn.functional.one_hot(y, 3)
    image = torch.randn(len(y), 1, 4, 4, generator=generator)
    return replace(population, x={"image": image, "row": row})


def test_model_with_two_inputs_trains_alike_in_loop_and_batched():
    population = population_with_two_inputs()
    torch.manual_seed(0)
    model = ImageAndRow()
    work = ua.Work(batch_size=6, lr=0.1, epochs=2)
    loop, batched = (
        ua.run("fedavg", population, model=model, rounds=3, work=work, executor=executor)
        for executor in ("loop", "batched")
    )
    for name, value in loop.params.items():
        torch.testing.assert_close(batched.params[name], value)
    accuracy = loop.history.rounds["accuracy"]
    assert accuracy.iloc[-1] > accuracy.iloc[0]
