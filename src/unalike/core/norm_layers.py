"""Batch normalization that leaves padding out, and the context of a forward pass that it reads."""

from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
        self.eps, self.momentum = norm.eps, norm.momentum
        self.weight, self.bias = norm.weight, norm.bias
        for name in STATISTICS:
            self.register_buffer(name, getattr(norm, name))

    def forward(self, x: Tensor) -> Tensor:
        tracked, call = self.running_mean is not None, FORWARD_PASS.get(ForwardPass())
        weight = call.weight
        if x.dtype == torch.bfloat16 and not (call.mixes and weight is None):
            x = x.float()  # statistics are never rounded; torch's own kernel sums in float32
        if not self.training and tracked:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        rate = self.momentum if tracked else 0.0
        if weight is None and rate is not None and x.numel() > x.shape[1]:
            if tracked:
                self.num_batches_tracked.add_(1)
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, True, rate, self.eps
            )
        return self._weighted(x, x.new_ones(x.shape[0]) if weight is None else weight.to(x.dtype))

    def _weighted(self, x: Tensor, weight: Tensor) -> Tensor:
        w = weight.reshape(-1, *[1] * (x.dim() - 1))
        over = [d for d in range(x.dim()) if d != 1]
        count = (weight.sum() * (x[0].numel() // x.shape[1])).clamp_min(1)
        shape = (1, -1, *[1] * (x.dim() - 2))
        mean = (w * x).sum(over) / count
        centred = w * (
            x - mean.reshape(shape)
        )  # padding stays 0: it must not grow from layer to layer
        variance = centred.square().sum(over) / count
        if self.running_mean is not None:
            unbiased = variance.detach() * count / (count - 1).clamp_min(1)
            several = count > 1  # one value says nothing of the variance
            self.num_batches_tracked.add_(several)
            rate = (
                1.0 / self.num_batches_tracked.clamp_min(1)
                if self.momentum is None
                else self.momentum
            )
            rate = rate * several.to(x)
            self.running_mean.add_(rate * (mean.detach() - self.running_mean))
            self.running_var.add_(rate * (unbiased - self.running_var))
        normal = centred * (variance.reshape(shape) + self.eps).rsqrt()
        if self.weight is None:
            return normal
        return normal * self.weight.reshape(shape) + self.bias.reshape(shape)
