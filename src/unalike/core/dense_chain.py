"""Recognize models that are chains of linear layers and activations.

The compiled loops (`engine.dense`) train such models without torch; all others are trained by torch.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from torch import Tensor, fx, nn

ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.Sigmoid)


@dataclass(frozen=True)
class DenseLayer:
    """h <- f(h W^T + b): the names of the parameters W and b, and the type of the module f (None: the identity)."""

    weight: str
    bias: str | None
    activation: type[nn.Module] | None = None


@dataclass(frozen=True)
class DenseChain:
    """Linear layers one after the other; `flattens`: each sample is flattened before the first one."""

    layers: tuple[DenseLayer, ...]
    flattens: bool

    def takes(self, x: Tensor) -> bool:
        """Whether samples `x` [B, ...] are rows for the first layer."""
        return self.flattens or x.dim() == 2

    @property
    def head(self) -> str:
        """The path of the last layer."""
        return self.layers[-1].weight.rpartition(".")[0]


def dense_chain(module: nn.Module) -> DenseChain | None:
    """The module as a chain; None if it is anything else in training mode.

    The module is traced, so `forward` may be written in any way.
    """
    if any(map(_hooked, module.modules())):
        return None
    try:
        nodes, last = _trace(module)
    except Exception:  # a user's `forward` may raise anything when its input has no values
        return None
    modules = dict(module.named_modules())
    layers: list[DenseLayer] = []
    flattens = False
    for before, node in pairwise(nodes):
        if node.op != "call_module" or node.args != (before,) or node.kwargs or len(before.users) != 1:
            return None
        owner, path = modules[node.target], f"{node.target}."
        if type(owner) is nn.Flatten and (owner.start_dim, owner.end_dim) == (1, -1) and not layers:
            flattens = True
        elif type(owner) is nn.Linear:
            layers.append(DenseLayer(f"{path}weight", None if owner.bias is None else f"{path}bias"))
        elif type(owner) in ACTIVATIONS and layers and layers[-1].activation is None:
            layers[-1] = replace(layers[-1], activation=type(owner))
        elif not (type(owner) is nn.Identity or (type(owner) is nn.Dropout and not owner.p)):
            return None
    names = [n for layer in layers for n in (layer.weight, layer.bias) if n is not None]
    # tied weights appear twice in `names` and once in the module: they make no chain, since their gradients would have to be added
    whole = names == [n for n, _ in module.named_parameters()] and not [*module.buffers()]
    plain = len(nodes) > 1 and nodes[0].op == "placeholder" and last is nodes[-1]
    return DenseChain(tuple(layers), flattens) if layers and whole and plain and layers[-1].activation is None else None


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
