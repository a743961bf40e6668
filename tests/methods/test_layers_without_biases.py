"""A layer of a network without biases is a module, so that methods that treat layers apart do so there, too."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import unalike as ua
from unalike.core import tree


def shapes(module):
    return tree.layers(dict(module.named_parameters()))


def no_biases(*widths):
    made = []
    for before, after in pairwise(widths):
        made += [nn.Linear(before, after, bias=False), nn.ReLU()]
    return nn.Sequential(*made[:-1])


class Recurrent(nn.Module):
    """A network whose only name that ends in `bias` is the last."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.lstm = nn.LSTM(4, 3)
        self.head = nn.Linear(3, 2)


@pytest.mark.parametrize(
    ("module", "layers"),
    [
        (no_biases(4, 5, 6, 2), ["0.weight", "2.weight", "4.weight"]),
        (nn.Sequential(nn.Conv1d(1, 2, 3, bias=False), nn.GroupNorm(1, 2, affine=False),
                       nn.Conv1d(2, 2, 3, bias=False)), ["0.weight", "2.weight"]),
        (Recurrent(), ["words.weight", "lstm.weight_ih_l0", "head.weight"]),
        (nn.Linear(4, 2), ["weight"]),
        # as in the code of FedLWS: a weight without a bias belongs to the layer that follows it
        (nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 2)), ["0.weight", "2.weight"]),
    ],
)  # fmt: skip
def test_layers_begin_with_these_names(module, layers):
    assert [names[0] for names in shapes(module)] == layers


def clients():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 30, 4)), np.tile(np.arange(30) % 2, (3, 1))
    return [
        ua.ClientData(train=(x[k][:20], y[k][:20]), test=(x[k][20:], y[k][20:])) for k in range(3)
    ]


@pytest.mark.parametrize("method", ["fedlws", "fedlama", "fedala"])
def test_methods_of_layers_find_the_layers(method):
    torch.manual_seed(0)
    run = ua.run(method, clients(), rounds=2, model=no_biases(4, 8, 8, 2), progress=False)
    assert not [note for note in run.notes if "one layer" in note or "no layer is below" in note]
