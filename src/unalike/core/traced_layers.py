"""Trace the layers that a module applies one after another, however its `forward` spells them.

`nn.ReLU()(x)`, `F.relu(x)`, `torch.relu(x)` and `x.relu()` are one layer.
"""

import copy
import operator
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

from torch import fx, nn

Layer = tuple[str, nn.Module]
"""The path of a layer in the module, or the name of a function or method, and the layer as one of torch's modules."""


class NoSequence(Exception):
    """A module applies no sequence of layers; the text is the reason."""


def traced_layers(module: nn.Module) -> list[Layer]:
    """The layers of the module in training mode, in order. Raises `NoSequence`.

    The module is traced without values: flattening may be written as `x.view(len, -1)` with the size of the batch or -1.
    """
    if any(map(_hooked, module.modules())):
        raise NoSequence("it has hooks")
    try:
        nodes, last = _trace(module)
    except Exception as error:  # a user's `forward` may raise anything when its input has no values
        raise NoSequence(
            f"its forward cannot be traced: {error or type(error).__name__}".split("\n")[0]
        ) from None
    sizes = {node for node in nodes if _is_size(node)}
    steps, modules = [node for node in nodes if node not in sizes], dict(module.named_modules())
    if last is not steps[-1] or steps[0].op != "placeholder":
        raise NoSequence("its output is not that of its last operation")
    for before, node in pairwise(steps):
        if node.args[:1] != (before,) or len(before.users.keys() - sizes) != 1:
            raise NoSequence(f"{node.name} takes more than the output of the operation before it")
    return [_layer(node, modules) for node in steps[1:]]


def _layer(node: fx.Node, modules: dict[str, nn.Module]) -> Layer:
    """The operation as a layer."""
    args = node.args[1:]
    if node.op == "call_module":
        name = str(node.target)
        if args or node.kwargs:
            raise NoSequence(f"{name} takes more than the output of the layer before it")
        return name, modules[name]
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    try:
        return name, LAYERS[name.removesuffix("_")](*args, **node.kwargs)
    except (KeyError, TypeError, ValueError):
        raise NoSequence(f"they have no layer for {name} with these arguments") from None


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


def _rows(*shape: Any) -> nn.Module:
    """A reshape to [batch, features], the batch as its size or -1. Raises `ValueError` for another shape."""
    rows, features = shape[0] if len(shape) == 1 else shape
    by_size, by_features = isinstance(rows, fx.Node), rows == -1 and features != -1
    if isinstance(features, fx.Node) or not (by_size or by_features):
        raise ValueError
    return nn.Flatten()


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> nn.Module:
    return nn.Dropout(p * training, inplace)


def _max_pool(kernel_size: Any, stride: Any = None, padding: Any = 0, **more: Any) -> nn.Module:
    return nn.MaxPool2d(kernel_size, stride, padding, **more)


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "flatten": _flatten,
    "view": _rows,
    "reshape": _rows,
    "dropout": _dropout,
    "max_pool2d": _max_pool,
}
"""A function of torch or a method of tensors, without the underscore of its in-place form -> its layer."""


def _is_size(node: fx.Node) -> bool:
    """Whether the node is a shape, or its first entry: the number of samples in the batch."""
    if node.op == "call_method":
        return node.target == "size" and node.args[1:] in ((), (0,))
    if node.target is getattr:
        return node.args[1:] == ("shape",)
    owner = node.args[0] if node.args else None
    return (
        node.target is operator.getitem
        and node.args[1:] == (0,)
        and isinstance(owner, fx.Node)
        and _is_size(owner)
    )


def _trace(module: nn.Module) -> tuple[list[fx.Node], fx.Node]:
    """The operations of `forward` in order, each of torch's own layers as one node, and the node that it returns.

    The layers of a copy are replaced by functions that record their calls. `fx.Tracer` itself would replace
    `nn.Module.__call__` for all threads while it traces.
    """
    shared = {id(t): t for t in (*module.parameters(), *module.buffers())}
    copied, graph = copy.deepcopy(module, shared).train(), fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)

    def recorded(path: str, *args: Any, **kwargs: Any) -> fx.Proxy:
        return tracer.create_proxy("call_module", path, args, kwargs)

    for path, inner in copied.named_modules():
        if path and fx.Tracer().is_leaf_module(inner, path):
            inner.forward = partial(recorded, path)
    result = copied(tracer.proxy(graph.placeholder("x")))
    return [*graph.nodes], result.node


def _hooked(module: nn.Module) -> bool:
    forward = module._forward_hooks or module._forward_pre_hooks
    return bool(forward or module._backward_hooks or module._backward_pre_hooks)
