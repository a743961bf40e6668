"""Chains of linear layers and activations, stacked over clients: one batched matrix product per layer and direction.

`torch.vmap` of an ordinary layer and its gradient spends more time on its own bookkeeping than small models compute.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx, nn

from unalike.core.solvers import Direct
from unalike.core.types import Tree


@dataclass(frozen=True)
class Activation:
    """h <- f(h) in place, and f'(z) g from g and f(z)."""

    apply: Callable[[Tensor], Tensor]
    back: Callable[[Tensor, Tensor], Tensor]


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation(Tensor.relu_, lambda g, h: torch.ops.aten.threshold_backward(g, h, 0)),
    nn.Tanh: Activation(Tensor.tanh_, torch.ops.aten.tanh_backward),
    nn.Sigmoid: Activation(Tensor.sigmoid_, torch.ops.aten.sigmoid_backward),
}


@dataclass(frozen=True)
class DenseLayer:
    """h <- f(h W^T + b). `weight` and `bias` are the parameters' names."""

    weight: str
    bias: str | None
    activation: Activation | None = None


@dataclass(frozen=True)
class DenseChain:
    """Layers one after the other; the features are what the last one takes."""

    layers: tuple[DenseLayer, ...]
    flattens: bool

    def takes(self, x: Tensor) -> bool:
        """Whether samples `x` [B, ...] are rows for the first layer."""
        return self.flattens or x.dim() == 2

    @property
    def head(self) -> str:
        """The path of the last layer."""
        return self.layers[-1].weight.rpartition(".")[0]

    def values(self, params: Tree, x: Tensor) -> list[Tensor]:
        """What every layer takes, and the logits: [K, B, D] each, of `x` [K, B, ...] and stacked parameters [K, ...]."""
        found = [x.flatten(2)]
        for layer in self.layers:
            w = params[layer.weight].transpose(1, 2)
            bias = None if layer.bias is None else params[layer.bias].unsqueeze(1)
            h = torch.bmm(found[-1], w) if bias is None else torch.baddbmm(bias, found[-1], w)
            found.append(h if layer.activation is None else layer.activation.apply(h))
        return found

    def gradients(
        self, params: Tree, values: Sequence[Tensor], logits: Tensor, features: Tensor | None, names: Tree
    ) -> Tree:
        """The gradients of the parameters in `names`, from those of the logits and of the features."""
        found: Tree = {}
        for layer, g, h in self._backwards(params, values, logits, features, names):
            if layer.weight in names:
                found[layer.weight] = torch.bmm(g.transpose(1, 2), h)
            if layer.bias is not None and layer.bias in names:
                found[layer.bias] = g.sum(1)
        return {n: found[n] for n in names}

    def add_gradients(
        self, direct: Direct, params: Tree, values: Sequence[Tensor], logits: Tensor, features: Tensor | None
    ) -> None:
        """The same, each into where it belongs while it is made: one product less to write and to read again."""
        onto, keep = direct
        for layer, g, h in self._backwards(params, values, logits, features, onto):
            if layer.weight in onto:
                onto[layer.weight].baddbmm_(g.transpose(1, 2), h, beta=keep)
            if layer.bias is not None and layer.bias in onto:
                onto[layer.bias].mul_(keep).add_(g.sum(1))

    def _backwards(
        self, params: Tree, values: Sequence[Tensor], logits: Tensor, features: Tensor | None, names: Tree
    ) -> Iterator[tuple[DenseLayer, Tensor, Tensor]]:
        """From the last layer to the lowest of `names`: the gradient of what it gives before its activation, and what it takes."""
        g, last = logits, len(self.layers) - 1
        lowest = min((i for i, layer in enumerate(self.layers) if {layer.weight, layer.bias} & names.keys()), default=0)
        for i in range(last, lowest - 1, -1):
            layer = self.layers[i]
            if layer.activation is not None:
                g = layer.activation.back(g, values[i + 1])
            here = g
            if i > lowest:
                g = torch.bmm(g, params[layer.weight])
            if i == last and i > lowest and features is not None:
                g = g + features
            yield layer, here, values[i]


def dense_chain(module: nn.Module) -> DenseChain | None:
    """The module as a chain, if that is all it is in training: it is traced, so that any way of writing `forward` will do."""
    if any(map(_hooked, module.modules())):
        return None
    try:
        nodes, last = _trace(module)
    except Exception:  # whatever a stranger's `forward` raises when it is given no numbers
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
            layers[-1] = replace(layers[-1], activation=ACTIVATIONS[type(owner)])
        elif not (type(owner) is nn.Identity or (type(owner) is nn.Dropout and not owner.p)):
            return None
    names = [n for layer in layers for n in (layer.weight, layer.bias) if n is not None]
    # with one name each: layers with tied weights, whose gradients would have to be added up, are no chain
    whole = names == [n for n, _ in module.named_parameters()] and not [*module.buffers()]
    plain = len(nodes) > 1 and nodes[0].op == "placeholder" and last is nodes[-1]
    return DenseChain(tuple(layers), flattens) if layers and whole and plain and layers[-1].activation is None else None


def _trace(module: nn.Module) -> tuple[list[fx.Node], fx.Node]:
    """What `forward` does with its input, in order, torch's own layers as one node each; and what it returns.

    Only a copy of the module knows of it: `fx.Tracer` replaces `nn.Module.__call__` for all threads while it traces.
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
