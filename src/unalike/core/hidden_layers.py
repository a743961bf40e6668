"""The hidden layers of a model that is a chain: which tensors hold their units, and which weight reads them."""

from typing import NamedTuple

from torch import nn

from unalike.core.model import Model
from unalike.core.traced_layers import NoSequence, traced_layers

WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers with a row of weights for each of their units: an output, or a channel."""
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
"""Layers that treat each unit by itself, and have a number for each of them."""
UNITWISE = (
    nn.Identity,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Dropout,
    nn.Dropout2d,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
)
"""Layers that treat each unit alike, and have no number of their own for it."""


class HiddenLayer(NamedTuple):
    """A layer whose C units can stand in any order, if all these tensors have them in the same one: the model stays the same.

    Attributes:
        units: Names of the tensors with a row for each unit, [C, ...]: its weight, its bias, and those of a norm behind it.
        reader: Name of the weight of the next layer, [C', C P, ...]: P entries for each unit, its positions where images are
            flattened.
    """

    units: tuple[str, ...]
    reader: str


def hidden_layers(model: Model) -> list[HiddenLayer]:
    """All hidden layers, in order.

    Raises `NoSequence` for a model in which units have no order of their own, such as one with shortcuts or groups of channels.
    """
    layers: list[HiddenLayer] = []
    units: list[str] = []
    for path, layer in traced_layers(model.given_module):
        own = [name for name, t in layer.state_dict(prefix=f"{path}.").items() if t.dim()]
        if isinstance(layer, WEIGHTED) and getattr(layer, "groups", 1) == 1:
            if units:
                layers.append(HiddenLayer(tuple(units), reader=own[0]))
            units = own
        elif isinstance(layer, NORMS) and units and layer.num_features == _rows(model, units[0]):
            units += own
        elif not (isinstance(layer, UNITWISE) or _flattens_samples(layer)):
            raise NoSequence(f"{path} is a {type(layer).__name__}")

    used = [name for layer in layers for name in layer.units]
    if len(used) != len(set(used)) or not set(used) <= model.params.keys() | model.buffers.keys():
        raise NoSequence("layers share parameters, or compute them from others")
    return layers


def _rows(model: Model, name: str) -> int:
    return len(model.params[name]) if name in model.params else 0


def _flattens_samples(layer: nn.Module) -> bool:
    """Whether it makes one row of each sample, in which the entries of a channel stand together."""
    return isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1)
