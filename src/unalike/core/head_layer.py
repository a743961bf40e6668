"""The head of a module: its attribute `head`, or the linear layer that makes the outputs."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def find_head(module: nn.Module) -> tuple[str, nn.Module | None]:
    """The path and the module of the head: the attribute `head`, or else the linear layer that was registered last."""
    declared = getattr(module, "head", None)
    if isinstance(declared, nn.Module):
        # a wrapper such as peft's answers for a module that lies deeper
        for name, m in module.named_modules():
            if m is declared:
                return name, declared
        return "head", declared

    # the root has no name: a module that is a linear layer itself has no head
    linear = [(name, m) for name, m in module.named_modules() if isinstance(m, nn.Linear) and name]
    if not linear:
        return "", None
    return linear[-1]


def with_head(module: nn.Module, x: Tensor) -> nn.Module:
    """The module; a copy with the attribute `head` where its outputs come from another linear layer than the one registered last.

    That is the last linear layer called whose output reaches the module's output for the samples x [B, ...]: auxiliary layers and
    layers without use are no heads. A module with an attribute `head`, or one that cannot be called with x, is returned as it is.
    """
    if hasattr(module, "head"):
        return module
    try:
        headed = copy.deepcopy(module).eval()
        last = _last_used(headed, x)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, KeyError):
        # what is wrong with it shows when it is checked
        return module
    if last is None or last is find_head(headed)[1]:
        return module
    # no submodule: the parameters keep their names
    headed.__dict__["head"] = last
    return headed.train(module.training)


def _last_used(module: nn.Module, x: Tensor) -> nn.Module | None:
    """The last linear layer that the outputs for x depend on."""
    # hooks see the layers in the order in which they are called
    called: list[tuple[nn.Module, Tensor]] = []

    def record_call(layer: nn.Module, _inputs: Any, output: Tensor) -> None:
        called.append((layer, output))

    layers = [m for m in module.modules() if isinstance(m, nn.Linear)]
    hooks = [layer.register_forward_hook(record_call) for layer in layers]
    with torch.enable_grad():
        result: Any = module(x)
        logits = getattr(result, "logits", result)
        candidates = [(layer, output) for layer, output in called if output.requires_grad]
        outputs = [output for _, output in candidates]
        # outputs that the logits do not depend on get None as their gradient
        gradients: Sequence[Tensor | None] = ()
        if outputs:
            gradients = torch.autograd.grad(logits.sum(), outputs, allow_unused=True)
    for hook in hooks:
        hook.remove()

    last = None
    for (layer, _), gradient in zip(candidates, gradients, strict=True):
        if gradient is not None:
            last = layer
    return last
