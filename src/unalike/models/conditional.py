"""Models with a statistic of the client's data as further input ("conditioning on local statistics").

The statistic mu is a vector of m numbers, computed once from the client's training data and never sent. It arrives as
`context["conditional"]["statistic"]`, shape [m]; a method provides it: `conditional(statistic="ols")`. m depends on the
statistic: with k numbers per sample and C outputs, `ols` has (k + 1) C numbers, `covariance` k C, `mean` k, `moments(order)`
order k, `label_histogram` C and `pca(components)` components (k + C).
"""

import inspect
import math

import torch
from torch import Tensor, nn

from unalike._utils.errors import UnalikeError
from unalike._utils.spec import Call
from unalike.core.types import Context
from unalike.models import check
from unalike.models.cnn import convolutions
from unalike.models.dense import hidden_layers
from unalike.models.registry import read, registry

PART_KEY = "conditional"
STATISTIC_KEY = "statistic"
"""The keys of a client's statistic in its context."""


def statistic(model: nn.Module, context: Context, length: int, remedy: str | None = None) -> Tensor:
    """Return the client's statistic [m]. Raises `UnalikeError` if there is none or it has another length than `length`."""
    kind = type(model).__name__
    if PART_KEY not in context or STATISTIC_KEY not in context[PART_KEY]:
        raise UnalikeError(
            f"{kind} needs a statistic of each client's data and found none (context "
            f'has {sorted(context)}); add a conditioner to the method, as in "fedavg '
            "+ conditional(statistic='ols')\""
        )
    value = context[PART_KEY][STATISTIC_KEY]
    if tuple(value.shape) == (length,):
        return value
    if remedy is None:
        remedy = f"build the model with statistic={value.numel()}, or choose the statistic it was built for"
    raise UnalikeError(
        f"{kind}: the client's statistic has shape {tuple(value.shape)}, expected "
        f"({length},); {remedy}"
    )


def fitted(name_or_spec: str, context: Context) -> str:
    """Add the length of the client's statistic to a model's spec, if the model has this option and the spec leaves it open.

    >>> fitted("conditional_mlp(hidden=8)", {"conditional": {"statistic": torch.zeros(11)}})
    'conditional_mlp(hidden=8, statistic=11)'
    """
    call = read(name_or_spec)
    value = context.get(PART_KEY, {}).get(STATISTIC_KEY)
    if value is None or "statistic" in call.parameters:
        return name_or_spec
    if "statistic" not in inspect.signature(registry[call.name]).parameters:
        return name_or_spec
    return str(Call(call.name, call.parameters | {"statistic": value.numel()}))


class _Interaction(nn.Module):
    """A linear head without bias on the products of gate(mu) and [x, 1]."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int | None,
        length: int,
        gate: nn.Module,
        gates: int,
    ):
        super().__init__()
        self.length = length
        self.gate = gate
        products = gates * (math.prod(input_shape) + 1)
        self.head = nn.Linear(products, classes or 1, bias=False)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        rows = x.flatten(1)
        rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
        gate = self.gate(statistic(self, context, self.length))
        products = gate[:, None] * rows[:, None]
        return self.head(products.flatten(1))


@registry.register("conditional_linear")
class ConditionalLinear(_Interaction):
    """y = [x, 1]^T W mu with W [k + 1, m] for each output: the client's linear model is linear in its statistic.

    With the statistic `ols` of one output and W = I it is least squares on each client (the paper's equations 1 and 2).

    `statistic` is m; None is (k + 1) C, the length of the least-squares solution of a client.

    Source: conditioning on local statistics.
    Input: float32 [B, ...]. mu: [m].
    """

    def __init__(
        self, input_shape: tuple[int, ...], classes: int | None, *, statistic: int | None = None
    ):
        length = _length("conditional_linear", input_shape, classes, statistic)
        super().__init__(input_shape, classes, length, nn.Identity(), length)


@registry.register("conditional_ensemble")
class ConditionalEnsemble(_Interaction):
    """y = v . softmax(u) with linear `experts` v = [x, 1]^T W_v and mixture weights from u = mu^T W_u.

    `statistic` is m; None is (k + 1) C, the length of the least-squares solution of a client.

    Source: conditioning on local statistics. Limit: experts=1 is `linear`.
    Input: float32 [B, ...]. mu: [m].
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int | None,
        *,
        experts: int = 8,
        statistic: int | None = None,
    ):
        length = _length("conditional_ensemble", input_shape, classes, statistic)
        (count,) = check.widths("conditional_ensemble", "experts", experts)
        gate = nn.Sequential(nn.Linear(length, count, bias=False), nn.Softmax(-1))
        super().__init__(input_shape, classes, length, gate, count)


@registry.register("conditional_mlp")
class ConditionalMLP(nn.Module):
    """MLP([x, mu]): the statistic is appended to the input.

    `statistic` is m; None is (k + 1) C, the length of the least-squares solution of a client.

    Source: conditioning on local statistics.
    Input: float32 [B, ...]. mu: [m].
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int | None,
        *,
        hidden: int | tuple[int, ...] = (200, 200),
        statistic: int | None = None,
    ):
        super().__init__()
        self.length = _length("conditional_mlp", input_shape, classes, statistic)
        inputs = math.prod(input_shape) + self.length
        widths = [inputs, *check.widths("conditional_mlp", "hidden", hidden)]
        self.body = nn.Sequential(*hidden_layers(widths))
        self.head = nn.Linear(widths[-1], classes or 1)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        mu = statistic(self, context, self.length)
        inputs = torch.cat([x.flatten(1), mu.expand(x.shape[0], -1)], 1)
        return self.head(self.body(inputs))


@registry.register("conditional_cnn")
class ConditionalCNN(nn.Module):
    """`cnn` with the principal components of the client's [pixels, one-hot label] as further input.

    mu holds `components` vectors, each of k pixels and then C labels. The pixels are further input channels; the labels are
    appended to the features before the dense layer, as the paper does not say where they enter.

    Source: conditioning on local statistics.
    Input: float32 [B, channels, height, width]. mu: [components (k + C)].
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int | None,
        *,
        components: int = 1,
        channels: int | tuple[int, ...] = (32, 64, 64),
        hidden: int = 64,
        norm: str | None = None,
    ):
        super().__init__()
        self.image = check.images("conditional_cnn", input_shape)
        in_channels, *sides = self.image
        (self.components,) = check.widths("conditional_cnn", "components", components)
        self.labels = classes or 1
        widths = check.widths("conditional_cnn", "channels", channels, least=1)
        (units,) = check.widths("conditional_cnn", "hidden", hidden)
        self.convolutions, area = convolutions(
            in_channels * (1 + self.components), sides, widths, norm, padding=None
        )
        width = area * widths[-1] + self.components * self.labels
        self.hidden = nn.Sequential(nn.Linear(width, units), nn.ReLU())
        self.head = nn.Linear(units, classes or 1)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        in_channels, height, width = self.image
        pixels = math.prod(self.image)
        remedy = f"condition it by conditional(statistic='pca', components={self.components}), as it was built"
        mu = statistic(self, context, self.components * (pixels + self.labels), remedy)
        vectors = mu.unflatten(0, (self.components, -1))
        # The pixels of the components are further channels, equal for all samples of the client.
        channels = vectors[:, :pixels].reshape(self.components * in_channels, height, width)
        channels = channels.expand(x.shape[0], -1, -1, -1)
        features = self.convolutions(torch.cat([x, channels], 1)).flatten(1)
        labels = vectors[:, pixels:].flatten().expand(x.shape[0], -1)
        return self.head(self.hidden(torch.cat([features, labels], 1)))


def _length(
    model: str, input_shape: tuple[int, ...], classes: int | None, length: int | None
) -> int:
    """The length of the statistic: as given, or that of the least-squares solution of a client."""
    if length is None:
        length = (math.prod(input_shape) + 1) * (classes or 1)
    (length,) = check.widths(model, "statistic", length)
    return length
