"""Copies of a user's module: one that is kept as it is, and one that is prepared for forward passes."""

import copy

from torch import Tensor, nn

from unalike._utils.errors import UnalikeError
from unalike.core.head_layer import find_head
from unalike.core.norm_layers import FORWARD_PASS, BatchNorm, WeightedBatchNorm
from unalike.core.pooling_order import pool_first

TORCH_FORWARDS = (BatchNorm.forward, nn.SyncBatchNorm.forward)
"""The `forward` methods of batch norms that `WeightedBatchNorm` computes; a class with another one keeps it."""


def copied_module(module: nn.Module) -> nn.Module:
    """A copy of the module. Raises `UnalikeError` if it cannot be copied, or if the copy would train differently."""
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise UnalikeError(
                f"the model's parameter {name} has a hook on its gradient, which copies of the model do not have; "
                "expected its effect in forward, such as w * mask + (w * (1 - mask)).detach(), or requires_grad_(False) "
                "for the whole parameter"
            )
    try:
        return copy.deepcopy(module)
    except (RuntimeError, TypeError) as error:
        why = str(error).split("\n")[0][:120]
        raise UnalikeError(
            f"the model cannot be copied: {why}; expected no attribute that was computed from parameters: compute it "
            "in forward, and write torch.nn.utils.parametrizations.weight_norm instead of torch.nn.utils.weight_norm"
        ) from None


def forward_module(module: nn.Module, training: bool) -> nn.Module:
    """A copy for forward passes, in training or in evaluation mode.

    Its batch norms leave padding out (unless they have a `forward` of their own), its sequences pool before a ReLU, and a hook
    keeps the features.
    """
    module = copy.deepcopy(module)
    # solvers need dense gradients: momentum and decay change every row
    for table in module.modules():
        if isinstance(table, nn.Embedding | nn.EmbeddingBag):
            table.sparse = False
    # before norms are replaced: a module's own `train` may look for them, to freeze them
    module.train(training)
    pool_first(module)
    _replace_norms(module)
    _keep_features(module)
    return module


def _replace_norms(module: nn.Module) -> None:
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, BatchNorm) and type(child).forward in TORCH_FORWARDS:
                setattr(parent, name, WeightedBatchNorm(child))


def _keep_features(module: nn.Module) -> None:
    """Hook the forward pass: features are the output of the `projection`, or else the input of the head."""
    projection = getattr(module, "projection", None)
    _, head = find_head(module)
    if isinstance(projection, nn.Module):
        projection.register_forward_hook(lambda _module, _inputs, output: _keep(output))
    elif head is not None:
        head.register_forward_pre_hook(lambda _module, inputs: _keep(inputs[0]))


def _keep(features: Tensor) -> None:
    forward_pass = FORWARD_PASS.get(None)
    if forward_pass is not None:
        forward_pass.features = features
