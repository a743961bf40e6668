"""A `torch.nn.Module` as a pure function of its parameters and buffers."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from unalike._utils.errors import UnalikeError
from unalike._utils.seeds import isolated
from unalike.core import tree
from unalike.core.functional_module import FunctionalModule
from unalike.core.head_layer import find_head
from unalike.core.layer_chain import LayerChain, layer_chain
from unalike.core.nests import map_tensors
from unalike.core.norm_layers import (
    FORWARD_PASS,
    NORMS,
    STATISTICS,
    BatchNorm,
    ForwardPass,
    WeightedBatchNorm,
)
from unalike.core.pooling_order import pool_first
from unalike.core.types import Context, Output, Tree


class Model:
    """`model(params, x, buffers=...) -> Output`: the module's forward pass as a pure function.

    Features are the input of `module.head`, or of the last linear layer in a module without `head`; in a module with a
    `projection` they are the projection's output (MOON). A module may also return an `Output` itself. A `forward` that takes
    `context` receives the client's static facts.

    It is copied and never changed. Raises `UnalikeError` for a module that cannot be copied, or has hooks on its parameters'
    gradients.
    """

    def __init__(self, module: nn.Module):
        self.params: Tree = {n: p.detach().clone() for n, p in module.named_parameters()}
        self.buffers: Tree = {n: b.detach().clone() for n, b in module.named_buffers()}
        first = {id(t): n for n, t in [*module.named_parameters(), *module.named_buffers()]}
        whole = [
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ]
        held = {n: first[id(t)] for n, t in whole}
        self._entries = {n: held[n] for n in module.state_dict() if n in held}
        self._frozen = {n for n, p in module.named_parameters() if not p.requires_grad}
        self._plain = _copied(module)
        self._training = FunctionalModule(_instrumented(module, training=True))
        self._evaluating = FunctionalModule(_instrumented(module, training=False))
        self._head_prefix, self._head = find_head(module)
        self._norms = {path for path, m in module.named_modules() if isinstance(m, NORMS)}
        self.takes_context = "context" in inspect.signature(module.forward).parameters
        self.precision: Precision = "float32"
        self._format = torch.preserve_format
        self._layouts: dict[
            torch.Size, bool
        ] = {}  # whether images of a shape may be channels-last; copies share it

    def __call__(
        self,
        params: Tree,
        x: Tensor,
        *,
        buffers: Tree,
        context: Context | None = None,
        training: bool = False,
        weight: Tensor | None = None,
    ) -> Output:
        """The forward pass.

        Of samples x [B, ...], with all parameters and buffers by name and the client's static facts `context`. In training,
        `Output.buffers` are new tensors. Rows of weight [B] 0 are padding and do not count in the buffers; None: every row
        counts.
        """
        state = params | ({n: b.clone() for n, b in buffers.items()} if training else buffers)
        call = ForwardPass(weight, mixes=self._format is torch.channels_last)
        token = FORWARD_PASS.set(call)
        try:
            with self._rounded(training, x.device):
                result = (self._training if training else self._evaluating)(
                    state, self._image(x), self._extra(context)
                )
        finally:
            FORWARD_PASS.reset(token)
        output = result if isinstance(result, Output) else Output(_logits(result), call.features)
        if training and self.precision != "float32":
            output = output._replace(logits=output.logits.float(), features=_float(output.features))
        return output._replace(buffers={n: state[n] for n in buffers} if training else buffers)

    def _rounded(self, training: bool, device: torch.device) -> AbstractContextManager[Any]:
        """Autocast for training in bf16: matrix products and convolutions are rounded, parameters and sums stay in float32."""
        if self.precision == "float32" or not training:
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)

    def _image(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=self._format) if self._lays(x) else x

    def rows(self, x: Tensor, index: Tensor) -> Tensor:
        """The samples x[index] in the memory format that the model reads best, fetched and converted in one pass."""
        if not self._lays(x):
            return x.index_select(0, index)
        return x.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)

    def laid_out(self, values: Tree) -> Tree:
        """Parameters in the memory format that the model reads best; arithmetic on parameters of one format is faster, too."""
        return tree.map(
            lambda t: t.contiguous(memory_format=self._format) if self._lays(t) else t, values
        )

    def leaf(self, t: Tensor) -> Tensor:
        """A copy of a parameter to train, in the memory format that the model reads best."""
        return t.clone(
            memory_format=self._format if self._lays(t) else torch.preserve_format
        ).requires_grad_()

    def _lays(self, t: Tensor) -> bool:
        """Whether the tensor is converted to channels-last in this model."""
        return self._format is torch.channels_last and t.dim() == 4

    def at(self, precision: Precision) -> Model:
        """The same model, trained in another precision; evaluation stays in float32."""
        rounded = copy.copy(self)
        rounded.precision = precision
        return rounded

    @cached_property
    def chain_or_reason(self) -> LayerChain | str:
        """The model as a chain of convolutions and linear layers, or the reason why compiled loops cannot train it."""
        if self.takes_context or hasattr(self._plain, "projection"):
            return "it takes facts of clients" if self.takes_context else "it has a projection"
        found = layer_chain(self._plain)
        return (
            found
            if isinstance(found, str) or found.head == self._head_prefix
            else "its head is not its last layer"
        )

    @property
    def chain(self) -> LayerChain | None:
        """The model as a chain of convolutions and linear layers; None for any other model."""
        return None if isinstance(self.chain_or_reason, str) else self.chain_or_reason

    def channels_last(self, x: Tensor, context: Context | None = None) -> Model:
        """The same model with images as [B, H, W, C] in memory, which makes convolutions of one client faster.

        A module that fails with them, because it uses `view` on its activations, is left as it is. This is tried once per shape.
        """
        if not self.convolutional or x.dim() != 4:
            return self
        laid = copy.copy(self)
        laid._format = torch.channels_last
        if x.shape[1:] not in self._layouts:
            self._layouts[x.shape[1:]] = laid._runs(x, context)
        return laid if self._layouts[x.shape[1:]] else self

    def _runs(self, x: Tensor, context: Context | None) -> bool:
        try:
            with torch.no_grad():
                self(
                    {n: self.leaf(p) for n, p in self.params.items()},
                    x,
                    buffers=self.buffers,
                    context=context,
                )
        except (RuntimeError, KeyError):
            return False
        return True

    def _extra(self, context: Context | None) -> dict[str, Any]:
        return {"context": context or {}} if self.takes_context else {}

    def head(self, params: Tree, features: Tensor) -> Tensor:
        """Logits from features [B, D]; head parameters that `params` lacks have their initial values."""
        if self._head is None:
            raise UnalikeError(
                "the model has no head: give the module an attribute `head`, its last layer"
            )
        return functional_call(
            self._head, tree.under(self.params | params, self._head_prefix + "."), features
        )

    @property
    def head_size(self) -> tuple[int, int]:
        """Number of features and of logits of a linear head, (D, C). Raises `UnalikeError` for another head."""
        if not isinstance(self._head, nn.Linear):
            found = (
                "no head" if self._head is None else f"a head of type {type(self._head).__name__}"
            )
            raise UnalikeError(
                f"the model has {found}; expected a linear layer as its attribute `head`"
            )
        return self._head.in_features, self._head.out_features

    def features(
        self, params: Tree, x: Tensor, *, buffers: Tree, context: Context | None = None
    ) -> Tensor:
        """The head's input [B, D] in evaluation mode. Raises `UnalikeError` if the model does not show it."""
        found = self(params, x, buffers=buffers, context=context).features
        if found is None or found.dim() != 2 or found.shape[1] != self.head_size[0]:
            raise UnalikeError(
                f"the model shows {'no features' if found is None else f'features of shape {list(found.shape)}'}; expected "
                f"[batch, {self.head_size[0]}], the input of its head (a `projection` hides it)"
            )
        return found

    def encoder(self, params: Tree, buffers: Tree) -> nn.Module:
        """The module with these values and without its head: it returns the features."""
        module = self.module(params, buffers)
        self.head_size  # noqa: B018  (refuses a model without a linear head)
        parent, _, name = self._head_prefix.rpartition(".")
        setattr(module.get_submodule(parent), name, nn.Identity())
        return module

    def redrawn(self, number: int) -> Tree:
        """Other initial values, drawn from the seed `number` by the modules' `reset_parameters`.

        Modules without that method and frozen parameters keep their values.
        """
        module = self.module(self.params, self.buffers)
        with isolated(number):
            for m in module.modules():
                if callable(reset := getattr(m, "reset_parameters", None)):
                    reset()
        drawn = {n: p.detach().clone().to(self.params[n]) for n, p in module.named_parameters()}
        return {n: p if self.trainable(n) else self.params[n] for n, p in drawn.items()}

    def in_head(self, name: str) -> bool:
        """Whether a parameter or buffer belongs to the head."""
        return self._head is not None and name.startswith(self._head_prefix + ".")

    def in_norm(self, name: str) -> bool:
        """Whether a parameter or buffer belongs to a normalization layer."""
        return name.rpartition(".")[0] in self._norms

    def within(self, group: str, name: str) -> bool:
        """Whether a parameter or buffer belongs to one of the `GROUPS`."""
        return GROUPS[group](self, name)

    def state_dict(self, values: Tree) -> Tree:
        """Parameters and buffers in state-dict order, tied ones under each of their names."""
        return {entry: values[name] for entry, name in self._entries.items()}

    def starting_from(self, entries: Tree) -> Model:
        """The same model with the values of these state-dict entries as initial values; the others keep theirs."""
        found = {self._entries[entry]: t.detach().clone() for entry, t in entries.items()}
        started = copy.copy(self)
        started.params, started.buffers = (
            {n: found.get(n, t) for n, t in v.items()} for v in (self.params, self.buffers)
        )
        return started

    def moved_statistics(self, own: Tree, before: Tree, after: Tree) -> Tree:
        """The buffers that training would have led to from `own`, where it led from `before` to `after`.

        A batch moves the running statistics r of a batch norm with momentum m to (1 - m) r + m s, s being the batch's. So after
        T batches they are after + (1 - m)^T (own - before), and the counter own + T. Other buffers are those of `after`.

        Raises `UnalikeError` for a batch norm with momentum=None, which averages over all batches.
        """
        moved = dict(after)
        norms = {
            f"{path}." if path else "": m
            for path, m in self._plain.named_modules()
            if isinstance(m, BatchNorm)
        }
        for prefix, norm in norms.items():
            mean, variance, count = (prefix + name for name in STATISTICS)
            if count not in after:
                continue
            if norm.momentum is None:
                raise UnalikeError(
                    f"the batch norm {prefix[:-1]!r} has momentum=None; expected a number: with it the statistics of one "
                    "client cannot be told from the average that training began with"
                )
            batches = after[count] - before[count]
            left = (1 - norm.momentum) ** batches.unsqueeze(-1).to(after[mean])
            moved |= {n: after[n] + left * (own[n] - before[n]) for n in (mean, variance)}
            moved[count] = own[count] + batches
        return moved

    def trainable(self, name: str) -> bool:
        """Whether the module itself lets the parameter train (`requires_grad`)."""
        return name not in self._frozen

    @property
    def plain(self) -> nn.Module:
        """The module as it was given, which is never changed."""
        return self._plain

    def module(self, params: Tree, buffers: Tree) -> nn.Module:
        """A plain `nn.Module` of the original class with these values."""
        module = copy.deepcopy(self._plain)
        values = params | buffers
        with torch.no_grad():
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                tensor.copy_(values[name])
        return module

    def counting_padding(self, x: Tensor, context: Context | None = None) -> str | None:
        """The reason why rows of weight 0 would count in training, or None.

        They count in a batch norm with its own `forward`, and in any other module that looks at a batch as a whole. The latter is
        found by a forward pass of two of the samples `x`, with padding and without.
        """
        own = next(
            (type(m).__name__ for m in self._training.module.modules() if isinstance(m, BatchNorm)),
            None,
        )
        if own:
            return f"padding would count in a batch norm with a forward of its own ({own})"
        if any(getattr(m, "scale_grad_by_freq", False) for m in self._plain.modules()):
            return "padding would count in an embedding with scale_grad_by_freq, which counts the words of a batch"
        few, here = (
            x[:2].cpu(),
            self.to("cpu"),
        )  # on a GPU, rounding depends on the size of a batch, too
        padded, facts = (
            torch.cat([few, torch.zeros_like(few)]),
            context and map_tensors(Tensor.cpu, dict(context)),
        )
        first, again, beside = (
            here._forward(rows, len(few), facts, i) for i, rows in enumerate((few, few, padded))
        )
        same = {n for n, t in first.items() if torch.equal(t, again[n])}  # the others are random
        changed = [
            n for n in same if not torch.allclose(first[n], beside[n], 1e-3, 1e-4, equal_nan=True)
        ]
        if not changed:
            return None
        return f"padding would count in {', '.join(sorted(changed))}: the model looks at batches as a whole"

    def unrepeated(self, x: Tensor, context: Context | None = None) -> str | None:
        """The first result that differs when a forward pass in training is repeated with the same random numbers, or None.

        Such a module keeps something that is neither a parameter nor a buffer.
        """
        first, again = (self._forward(x, len(x), context, 0) for _ in range(2))
        return next(
            (
                n
                for n, t in first.items()
                if not torch.allclose(t, again[n], 1e-4, 1e-6, equal_nan=True)
            ),
            None,
        )

    def _forward(self, x: Tensor, real: int, context: Context | None, number: int) -> Tree:
        """Buffers and outputs of a forward pass in training of which only the first `real` rows count, with seed `number`."""
        weight = (torch.arange(len(x), device=x.device) < real).float()
        with isolated(number, x.device), torch.no_grad():
            found = self.at("float32")(
                self.params, x, buffers=self.buffers, context=context, training=True, weight=weight
            )
        return {f"the buffer {n}": b for n, b in found.buffers.items()} | {
            "its outputs": found.logits[:real]
        }

    @cached_property
    def convolutional(self) -> bool:
        """Whether the module contains convolutions."""
        return any(isinstance(m, nn.modules.conv._ConvNd) for m in self._plain.modules())

    @cached_property
    def recurrent(self) -> bool:
        """Whether the module contains layers that go through sequences step by step (RNN, GRU, LSTM)."""
        return any(isinstance(m, nn.RNNBase) for m in self._plain.modules())

    def to(self, device: torch.device | str) -> Model:
        """The same model on another device."""
        moved = copy.copy(self)
        moved.params = {n: p.to(device) for n, p in self.params.items()}
        moved.buffers = {n: b.to(device) for n, b in self.buffers.items()}
        moved._training, moved._evaluating = (
            m.to(device) for m in (self._training, self._evaluating)
        )
        moved._head = None if self._head is None else copy.deepcopy(self._head).to(device)
        return moved


Precision = Literal["float32", "bf16"]
"""Floating-point precision of training."""

Group = Literal["all", "head", "body", "norm"]
"""Groups of parameters, by the names that users write."""

GROUPS: dict[str, Callable[[Model, str], bool]] = {
    "all": lambda model, name: True,
    "head": Model.in_head,
    "body": lambda model, name: not model.in_head(name),
    "norm": Model.in_norm,
}


def _copied(module: nn.Module) -> nn.Module:
    """A copy of the module. Raises `UnalikeError` if it cannot be copied, or if the copy would train differently."""
    hooks = {
        n: p._backward_hooks or p._post_accumulate_grad_hooks for n, p in module.named_parameters()
    }
    hooked = next((n for n, held in hooks.items() if held), None)
    if hooked is not None:
        raise UnalikeError(
            f"the model's parameter {hooked} has a hook on its gradient, which copies of the model do not have; expected "
            "its effect in forward, such as w * mask + (w * (1 - mask)).detach(), or requires_grad_(False) for the whole parameter"
        )
    try:
        return copy.deepcopy(module)
    except (RuntimeError, TypeError) as error:
        why = str(error).split("\n")[0][:120]
        raise UnalikeError(
            f"the model cannot be copied: {why}; expected no attribute that was computed from parameters: compute it "
            "in forward, and write torch.nn.utils.parametrizations.weight_norm instead of torch.nn.utils.weight_norm"
        ) from None


def _instrumented(module: nn.Module, training: bool) -> nn.Module:
    """A copy for forward passes: batch norms leave padding out (unless they have a `forward` of their own), sequences pool before
    a ReLU, and a hook catches the features."""
    module = copy.deepcopy(module)
    for table in module.modules():
        if isinstance(table, nn.Embedding | nn.EmbeddingBag):
            table.sparse = (
                False  # solvers need dense gradients: momentum and decay change every row
            )
    module.train(
        training
    )  # before norms are replaced: a module's own `train` may look for them, to freeze them
    pool_first(module)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, BatchNorm) and type(child).forward in (
                BatchNorm.forward,
                nn.SyncBatchNorm.forward,
            ):
                setattr(parent, name, WeightedBatchNorm(child))
    projection = getattr(module, "projection", None)
    _, head = find_head(module)
    if isinstance(projection, nn.Module):
        projection.register_forward_hook(lambda _module, _inputs, output: _catch(output))
    elif head is not None:
        head.register_forward_pre_hook(lambda _module, inputs: _catch(inputs[0]))
    return module


def _catch(features: Tensor) -> None:
    call = FORWARD_PASS.get(None)
    if call is not None:
        call.features = features


def _float(features: Tensor | None) -> Tensor | None:
    return None if features is None else features.float()


def _logits(result: Any) -> Tensor:
    if isinstance(result, Tensor):
        return result
    raise UnalikeError(
        f"the model returned {type(result).__name__}; expected a tensor of logits [batch, classes] or an unalike Output: wrap "
        "the module, as in ua.Logits(module, output='logits', input='pixel_values')"
    )
