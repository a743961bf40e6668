"""The head of a module: its attribute `head`, or the linear layer that makes the outputs."""

import copy
from typing import Any

import torch
from torch import Tensor, nn


def find_head(module: nn.Module) -> tuple[str, nn.Module | None]:
    """The path and the module of the head: the attribute `head`, or else the linear layer that was registered last."""
    declared = getattr(module, "head", None)
    if isinstance(
        declared, nn.Module
    ):  # a wrapper such as peft's answers for a module that lies deeper
        return next((name for name, m in module.named_modules() if m is declared), "head"), declared
    linear = [(name, m) for name, m in module.named_modules() if isinstance(m, nn.Linear) and name]
    return linear[-1] if linear else ("", None)


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
        return module  # what is wrong with it shows when it is checked
    if last is None or last is find_head(headed)[1]:
        return module
    headed.__dict__["head"] = last  # no submodule: the parameters keep their names
    return headed.train(module.training)


def _last_used(module: nn.Module, x: Tensor) -> nn.Module | None:
    """The last linear layer that the outputs for x depend on."""
    called: list[tuple[nn.Module, Tensor]] = []
    hooks = [
        m.register_forward_hook(lambda layer, _inputs, output: called.append((layer, output)))
        for m in module.modules()
        if isinstance(m, nn.Linear)
    ]
    with torch.enable_grad():
        result: Any = module(x)
        logits = getattr(result, "logits", result)
        trained = [(layer, output) for layer, output in reversed(called) if output.requires_grad]
        outputs = [output for _, output in trained]
        gradients = torch.autograd.grad(logits.sum(), outputs, allow_unused=True) if outputs else ()
    for hook in hooks:
        hook.remove()
    return next((layer for (layer, _), g in zip(trained, gradients) if g is not None), None)
