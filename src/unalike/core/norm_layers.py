"""Batch normalization that leaves padding out, and the context of a forward pass that it reads."""

from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unalike._utils.errors import UnalikeError
from unalike.core.types import Tree


@dataclass
class ForwardPass:
    """Values of one forward pass for the hooks and norms inside the module.

    `weight` is 0 for rows of padding, `features` the input of the head, set by a hook. `mixes`: nothing is stacked, so torch's
    own batch norm takes bf16 activations beside float32 statistics.
    """

    weight: Tensor | None = None
    features: Tensor | None = None
    mixes: bool = False


FORWARD_PASS: ContextVar[ForwardPass] = ContextVar("call")

BatchNorm = nn.modules.batchnorm._BatchNorm
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers of a batch norm."""
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class WeightedBatchNorm(nn.Module):
    """Batch normalization whose statistics ignore rows of weight 0; otherwise torch's own, with the same parameter names.

    A channel with a single value has variance 0: it is normalized to 0 instead of refused, so that a client with one sample
    can train. Such a batch, the last one of 33 samples in batches of 32, leaves the running statistics as they are.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, norm: BatchNorm):
        super().__init__()
        self.training = norm.training
        self.eps = norm.eps
        self.momentum = norm.momentum
        self.weight = norm.weight
        self.bias = norm.bias
        for name in STATISTICS:
            self.register_buffer(name, getattr(norm, name))

    def forward(self, x: Tensor) -> Tensor:
        forward_pass = FORWARD_PASS.get(ForwardPass())
        weight = forward_pass.weight
        tracked = self.running_mean is not None
        # statistics are never rounded; torch's own kernel sums in float32
        if x.dtype == torch.bfloat16 and not (forward_pass.mixes and weight is None):
            x = x.float()

        if not self.training and tracked:
            return self._torch_norm(x, training=False, momentum=0.0)
        # torch's own kernel where it gives the same: no padding, more than one value a channel, a fixed momentum
        momentum = self.momentum if tracked else 0.0
        if weight is None and momentum is not None and x.numel() > x.shape[1]:
            if tracked:
                self.num_batches_tracked.add_(1)
            return self._torch_norm(x, training=True, momentum=momentum)

        weight = x.new_ones(x.shape[0]) if weight is None else weight.to(x.dtype)
        return self._weighted_norm(x, weight)

    def _torch_norm(self, x: Tensor, training: bool, momentum: float) -> Tensor:
        mean, variance = self.running_mean, self.running_var
        return F.batch_norm(x, mean, variance, self.weight, self.bias, training, momentum, self.eps)

    def _weighted_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Normalization by the mean and the variance of the rows with weight 1, which move the running statistics."""
        w = weight.reshape(-1, *[1] * (x.dim() - 1))
        by_channel = (1, -1, *[1] * (x.dim() - 2))
        over = [d for d in range(x.dim()) if d != 1]
        values_per_row = x[0].numel() // x.shape[1]
        count = (weight.sum() * values_per_row).clamp_min(1)

        mean = (w * x).sum(over) / count
        # padding stays 0: it must not grow from layer to layer
        centred = w * (x - mean.reshape(by_channel))
        variance = centred.square().sum(over) / count
        if self.running_mean is not None:
            self._move_statistics(mean.detach(), variance.detach(), count)

        normal = centred * (variance.reshape(by_channel) + self.eps).rsqrt()
        if self.weight is None:
            return normal
        return normal * self.weight.reshape(by_channel) + self.bias.reshape(by_channel)

    def _move_statistics(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Move the running statistics towards those of a batch; one value says nothing of the variance and moves nothing."""
        unbiased = variance * count / (count - 1).clamp_min(1)
        several = count > 1
        self.num_batches_tracked.add_(several)
        rate: Tensor | float
        if self.momentum is None:
            rate = 1.0 / self.num_batches_tracked.clamp_min(1)
        else:
            rate = self.momentum
        rate = rate * several.to(mean)
        self.running_mean.add_(rate * (mean - self.running_mean))
        self.running_var.add_(rate * (unbiased - self.running_var))


def moved_statistics(module: nn.Module, own: Tree, before: Tree, after: Tree) -> Tree:
    """The buffers that training would have led to from `own`, where it led from `before` to `after`.

    A batch moves the running statistics r of a batch norm with momentum m to (1 - m) r + m s, s being the batch's. So after
    T batches they are after + (1 - m)^T (own - before), and the counter own + T. Other buffers are those of `after`.

    Raises `UnalikeError` for a batch norm with momentum=None, which averages over all batches.
    """
    moved = dict(after)
    for path, norm in module.named_modules():
        if not isinstance(norm, BatchNorm):
            continue
        prefix = f"{path}." if path else ""
        mean, variance, count = (prefix + name for name in STATISTICS)
        if count not in after:
            continue
        if norm.momentum is None:
            raise UnalikeError(
                f"the batch norm {path!r} has momentum=None; expected a number: with it the statistics of one "
                "client cannot be told from the average that training began with"
            )
        batches = after[count] - before[count]
        remaining = (1 - norm.momentum) ** batches.unsqueeze(-1).to(after[mean])
        for name in (mean, variance):
            moved[name] = after[name] + remaining * (own[name] - before[name])
        moved[count] = own[count] + batches
    return moved
