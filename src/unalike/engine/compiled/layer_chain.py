"""Recognize models that are chains of layers: convolutions with max pooling, then linear layers, each with an activation.

The compiled loops (`engine.compiled`) train such models without torch; all others are trained by torch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from unalike.core.model import Model
from unalike.core.traced_layers import NoSequence, traced_layers

ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.Sigmoid)


@dataclass(frozen=True)
class Convolution:
    """h <- relu(pool(h * W + b)): a convolution with stride 1, max pooling of `pool` x `pool` positions, and ReLU if `rectified`.

    `weight` and `bias` are the names of W [filters, channels, kernel, kernel] and b (None without one); `kernel`, `padding` and
    `pool` are in pixels, 1 is no pooling.
    """

    weight: str
    bias: str | None
    channels: int
    filters: int
    kernel: int
    padding: int = 0
    pool: int = 1
    rectified: bool = False

    def side(self, before: int) -> int:
        """The height or width of the output for an input of this height or width."""
        return (before + 2 * self.padding - self.kernel + 1) // self.pool


@dataclass(frozen=True)
class DenseLayer:
    """h <- f(h W^T + b): the names of the parameters W and b, and the type of the module f (None: the identity)."""

    weight: str
    bias: str | None
    activation: type[nn.Module] | None = None


@dataclass(frozen=True)
class LayerChain:
    """Convolutions, if any, and then linear layers; `flattens`: each sample is flattened before the first linear layer.

    `width` is the number of inputs of the first linear layer.
    """

    convolutions: tuple[Convolution, ...]
    layers: tuple[DenseLayer, ...]
    flattens: bool
    width: int

    def takes(self, x: Tensor) -> bool:
        """Whether samples `x` [B, ...] suit the first layer, images with its channels or rows, and fill the first linear one."""
        sample = x.shape[1:]
        if not self.convolutions:
            is_flat = self.flattens or x.dim() == 2
            return is_flat and math.prod(sample) == self.width
        first = self.convolutions[0]
        last = self.convolutions[-1]
        if x.dim() != 4 or x.shape[1] != first.channels:
            return False
        height, width = self.sides(sample)[-1]
        return last.filters * height * width == self.width

    def sides(self, sample: Sequence[int]) -> list[tuple[int, int]]:
        """Height and width of the images before each convolution and after the last one, for a sample of this shape."""
        found = [(sample[1], sample[2])] if self.convolutions else []
        for layer in self.convolutions:
            found.append((layer.side(found[-1][0]), layer.side(found[-1][1])))
        return found

    def products(self, sample: Sequence[int], parameters: int) -> int:
        """Products of numbers and weights in a forward pass of a sample of this shape.

        Each parameter takes part once in a linear layer, and once at every position in a convolution.
        """
        found = parameters
        for layer, (height, width) in zip(self.convolutions, self.sides(sample)[1:]):
            weights = layer.filters * layer.channels * layer.kernel**2
            found += weights * (height * width * layer.pool**2 - 1)
        return found

    def activations(self, sample: Sequence[int]) -> int:
        """Numbers in the images before and after all convolutions, for a sample of this shape."""
        channels = [layer.channels for layer in self.convolutions]
        channels += [layer.filters for layer in self.convolutions[-1:]]
        return sum(c * height * width for c, (height, width) in zip(channels, self.sides(sample)))

    @property
    def names(self) -> tuple[tuple[str, str | None], ...]:
        """Weight and bias of each layer."""
        return (
            *((c.weight, c.bias) for c in self.convolutions),
            *((d.weight, d.bias) for d in self.layers),
        )

    @property
    def head(self) -> str:
        """The path of the last layer."""
        return self.layers[-1].weight.rpartition(".")[0]


_CHAINS: WeakKeyDictionary[Model, LayerChain | str] = WeakKeyDictionary()
"""What `chain_or_reason` found before: tracing a model takes milliseconds."""


def chain_or_reason(model: Model) -> LayerChain | str:
    """The model as a chain of convolutions and linear layers, or the reason why compiled loops cannot train it."""
    if model not in _CHAINS:
        _CHAINS[model] = _find_chain(model)
    return _CHAINS[model]


def chain_of(model: Model) -> LayerChain | None:
    """The model as a chain of convolutions and linear layers; None for any other model."""
    chain = chain_or_reason(model)
    return None if isinstance(chain, str) else chain


def _find_chain(model: Model) -> LayerChain | str:
    if model.takes_context:
        return "it takes facts of clients"
    if hasattr(model.given_module, "projection"):
        return "it has a projection"
    chain = layer_chain(model.given_module)
    if isinstance(chain, LayerChain) and chain.head != model.head_path:
        return "its head is not its last layer"
    return chain


def layer_chain(module: nn.Module) -> LayerChain | str:
    """The module as a chain, or the reason why compiled loops cannot train it.

    The module is traced in training mode, so `forward` may be written in any way.
    """
    try:
        found = traced_layers(module)
    except NoSequence as error:
        return str(error)
    convolutions: list[Convolution] = []
    layers: list[DenseLayer] = []
    flattens, width = False, 0
    for name, owner in found:
        path = f"{name}."
        if type(owner) is nn.Identity or (type(owner) is nn.Dropout and not owner.p):
            continue
        if type(owner) is nn.Flatten and (owner.start_dim, owner.end_dim) == (1, -1) and not layers:
            flattens = True
        elif type(owner) is nn.Linear and flattens >= bool(convolutions):
            width = width or owner.in_features
            layers.append(
                DenseLayer(f"{path}weight", None if owner.bias is None else f"{path}bias")
            )
        elif type(owner) in ACTIVATIONS and layers and layers[-1].activation is None:
            layers[-1] = replace(layers[-1], activation=type(owner))
        elif flattens or layers or not _extend(convolutions, owner, path):
            return f"they have no {owner} in the place of {name}".split("\n")[0]
    chain = LayerChain(tuple(convolutions), tuple(layers), flattens, width)
    if not layers or layers[-1].activation is not None:
        return "its last layer is not linear"
    # tied weights appear twice in `names` and once in the module: they make no chain, since their gradients would have to be added
    if [n for pair in chain.names for n in pair if n is not None] != [
        n for n, _ in module.named_parameters()
    ]:
        return "its parameters are not those of its layers, once each and in order"
    return "it has buffers" if [*module.buffers()] else chain


def _extend(convolutions: list[Convolution], owner: nn.Module, path: str) -> bool:
    """Add a convolution to the list, or ReLU or max pooling to its last entry; False if the compiled loops lack the layer."""
    if type(owner) is nn.Conv2d:
        (side, across), (padding, beside) = owner.kernel_size, _pair(owner.padding)
        usual = {*owner.stride, *owner.dilation, owner.groups} == {
            1
        } and owner.padding_mode == "zeros"
        if not usual or side != across or padding != beside or padding < 0:
            return False
        bias = None if owner.bias is None else f"{path}bias"
        convolutions.append(
            Convolution(f"{path}weight", bias, owner.in_channels, owner.out_channels, side, padding)
        )
    elif not convolutions:
        return False
    elif type(owner) is nn.ReLU and not convolutions[-1].rectified:
        convolutions[-1] = replace(convolutions[-1], rectified=True)
    elif type(owner) is nn.MaxPool2d and convolutions[-1].pool == 1 and (side := _window(owner)):
        convolutions[-1] = replace(convolutions[-1], pool=side)
    else:
        return False
    return True


def _pair(padding: str | tuple[int, ...]) -> tuple[int, ...]:
    """Padding of height and width; negative where a word stands for it."""
    return (-1, -1) if isinstance(padding, str) else padding


def _window(pool: nn.MaxPool2d) -> int:
    """The side of a pooling's windows if they are squares that touch; else 0."""
    sides = {
        n
        for given in (pool.kernel_size, pool.stride)
        for n in (given if isinstance(given, tuple) else (given,))
    }
    usual = (
        not pool.ceil_mode
        and not pool.return_indices
        and pool.dilation in (1, (1, 1))
        and pool.padding in (0, (0, 0))
    )
    return sides.pop() if usual and len(sides) == 1 else 0
