"""Linear models and multilayer perceptrons, which read a sample as one row of numbers."""

import math
from itertools import pairwise

from torch import Tensor, nn

from unalike.models import check
from unalike.models.registry import registry


@registry.register("logistic")
@registry.register("linear")
class Linear(nn.Module):
    """Flatten, then one linear layer: softmax regression, or with one output linear or logistic regression.

    7,850 parameters for 1x28x28 images and 10 classes.
    Input: float32 [B, ...].
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int | None):
        super().__init__()
        self.body = nn.Flatten()
        self.head = nn.Linear(math.prod(input_shape), classes or 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@registry.register("mlp")
class MLP(nn.Module):
    """Flatten, then a linear layer and ReLU for each width in `hidden`, then the head.

    199,210 parameters for 1x28x28 images and 10 classes. Limit: hidden=() is `linear`.
    Input: float32 [B, ...].
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int | None,
        *,
        hidden: int | tuple[int, ...] = (200, 200),
    ):
        super().__init__()
        widths = [math.prod(input_shape), *check.widths("mlp", "hidden", hidden)]
        layers = hidden_layers(widths)
        self.body = nn.Sequential(nn.Flatten(), *layers)
        self.head = nn.Linear(widths[-1], classes or 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@registry.register("two_nn")
def two_nn(input_shape: tuple[int, ...], classes: int | None) -> MLP:
    """The 2NN of McMahan et al. 2017: two hidden layers of 200 units, 199,210 parameters on MNIST. Also written "2nn"."""
    return MLP(input_shape, classes, hidden=(200, 200))


def hidden_layers(widths: list[int]) -> list[nn.Module]:
    """Make a linear layer and ReLU for each step from one width to the next."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers
