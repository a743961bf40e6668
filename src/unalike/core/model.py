"""A `torch.nn.Module` as a pure function of its parameters and buffers."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from unalike.core import tree
from unalike.core.dense import Chain, chain
from unalike.core.errors import UnalikeError
from unalike.core.seed import isolated
from unalike.core.types import Context, Output, Tree


@dataclass
class _Call:
    """What one forward pass shares with the hooks and norms inside the module."""

    weight: Tensor | None = None
    features: Tensor | None = None
    mixes: bool = False
    """Nothing is stacked: torch's own batch norm takes bf16 activations beside float32 statistics."""


_CALL: ContextVar[_Call] = ContextVar("call")

BatchNorm = nn.modules.batchnorm._BatchNorm
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class Model:
    """`model(params, x, buffers=...) -> Output`: the module's forward pass with nothing hidden.

    Features are the input of `module.head`, or of its last linear layer when it declares no head; a module with a
    `projection` gives the projection's output instead (MOON). A module may also return an `Output` itself, and one whose
    `forward` takes `context` receives the client's static facts. The module given is copied and never changed.
    """

    def __init__(self, module: nn.Module):
        self.params: Tree = {n: p.detach().clone() for n, p in module.named_parameters()}
        self.buffers: Tree = {n: b.detach().clone() for n, b in module.named_buffers()}
        first = {id(t): n for n, t in [*module.named_parameters(), *module.named_buffers()]}
        whole = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        held = {n: first[id(t)] for n, t in whole}
        self._entries = {n: held[n] for n in module.state_dict() if n in held}
        self._frozen = {n for n, p in module.named_parameters() if not p.requires_grad}
        self._plain = copy.deepcopy(module)
        self._training = _Swapped(_instrumented(module, training=True))
        self._evaluating = _Swapped(_instrumented(module, training=False))
        self._head_prefix, self._head = _find_head(module)
        self._norms = {path for path, m in module.named_modules() if isinstance(m, NORMS)}
        self.takes_context = "context" in inspect.signature(module.forward).parameters
        self.precision: Precision = "float32"
        self._format = torch.preserve_format
        self._layouts: dict[torch.Size, bool] = {}  # whether images of a shape may be channels-last; copies share it

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
        """Forward pass on `x` [B, ...]. In training `Output.buffers` are new; rows of weight 0 do not count in them."""
        state = {n: params[n] for n in self.params}
        state |= {n: b.clone() if training else b for n, b in buffers.items()}
        call = _Call(weight, mixes=self._format is torch.channels_last)
        token = _CALL.set(call)
        try:
            with self._rounded(training, x.device):
                result = (self._training if training else self._evaluating)(state, self._image(x), self._extra(context))
        finally:
            _CALL.reset(token)
        output = result if isinstance(result, Output) else Output(_logits(result), call.features)
        if training and self.precision != "float32":
            output = output._replace(logits=output.logits.float(), features=_float(output.features))
        return output._replace(buffers={n: state[n] for n in buffers} if training else buffers)

    def _rounded(self, training: bool, device: torch.device) -> AbstractContextManager[Any]:
        """Training in bf16: products of matrices and convolutions are rounded, parameters and sums stay in float32."""
        if self.precision == "float32" or not training:
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)

    def _image(self, x: Tensor) -> Tensor:
        return (
            x.contiguous(memory_format=self._format)
            if self._format is not torch.preserve_format and x.dim() == 4
            else x
        )

    def leaf(self, t: Tensor) -> Tensor:
        """A copy of a parameter to be trained, as the model's layers read it best."""
        return t.clone(memory_format=self._format if t.dim() == 4 else torch.preserve_format).requires_grad_()

    def at(self, precision: Precision) -> Model:
        """The same model that trains in another precision; it is evaluated in float32."""
        rounded = copy.copy(self)
        rounded.precision = precision
        return rounded

    @cached_property
    def chain(self) -> Chain | None:
        """The model as a chain of linear layers and activations; None if it is anything else."""
        found = None if self.takes_context or hasattr(self._plain, "projection") else chain(self._plain)
        return found if found is not None and found.head == self._head_prefix else None

    def channels_last(self, x: Tensor, context: Context | None = None) -> Model:
        """The same model with images as [B, H, W, C] in memory: faster convolutions where one client trains at a time.

        `x` are samples of a client with the static facts `context`, to try it with, once for each of their shapes: a module that
        asks for another order of its activations is left as it is.
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
                self({n: self.leaf(p) for n, p in self.params.items()}, x, buffers=self.buffers, context=context)
        except (RuntimeError, KeyError):
            return False
        return True

    def _extra(self, context: Context | None) -> dict[str, Any]:
        return {"context": context or {}} if self.takes_context else {}

    def head(self, params: Tree, features: Tensor) -> Tensor:
        """Logits from features [B, D]; `params` holds at least the head's parameters."""
        if self._head is None:
            raise UnalikeError("the model has no head: give the module an attribute `head`, its last layer")
        return functional_call(self._head, tree.under(params, self._head_prefix + "."), features)

    @property
    def head_size(self) -> tuple[int, int]:
        """Features that a linear head takes and logits that it gives, (D, C). Raises `UnalikeError` for another head."""
        if not isinstance(self._head, nn.Linear):
            found = "no head" if self._head is None else f"a head of type {type(self._head).__name__}"
            raise UnalikeError(f"the model has {found}; expected a linear layer as its attribute `head`")
        return self._head.in_features, self._head.out_features

    def features(self, params: Tree, x: Tensor, *, buffers: Tree, context: Context | None = None) -> Tensor:
        """What the head takes, [B, D], in evaluation mode."""
        found = self(params, x, buffers=buffers, context=context).features
        if found is None or found.dim() != 2 or found.shape[1] != self.head_size[0]:
            raise UnalikeError(
                f"the model shows {'no features' if found is None else f'features of shape {list(found.shape)}'}; expected "
                f"[batch, {self.head_size[0]}], the input of its head (a `projection` hides it)"
            )
        return found

    def encoder(self, params: Tree, buffers: Tree) -> nn.Module:
        """The module with these values and without its head: it returns what the head took."""
        module = self.module(params, buffers)
        self.head_size  # noqa: B018  (refuses a model without a linear head)
        parent, _, name = self._head_prefix.rpartition(".")
        setattr(module.get_submodule(parent), name, nn.Identity())
        return module

    def redrawn(self, number: int) -> Tree:
        """Other start values, drawn from the seed `number` by the modules' `reset_parameters`; what has none keeps its values."""
        module = copy.deepcopy(self._plain)
        with isolated(number):
            for m in module.modules():
                if callable(reset := getattr(m, "reset_parameters", None)):
                    reset()
        return {n: p.detach().clone().to(self.params[n]) for n, p in module.named_parameters()}

    def in_head(self, name: str) -> bool:
        """Whether a parameter or buffer belongs to the head."""
        return self._head is not None and name.startswith(self._head_prefix + ".")

    def in_norm(self, name: str) -> bool:
        """Whether a parameter or buffer belongs to a normalisation layer."""
        return name.rpartition(".")[0] in self._norms

    def within(self, group: str, name: str) -> bool:
        """Whether a parameter or buffer belongs to one of the `GROUPS`."""
        return GROUPS[group](self, name)

    def state_dict(self, values: Tree) -> Tree:
        """Parameters and buffers in state-dict order, tied ones under each of their names."""
        return {entry: values[name] for entry, name in self._entries.items()}

    def trainable(self, name: str) -> bool:
        """Whether the module itself lets the parameter train (`requires_grad`)."""
        return name not in self._frozen

    def module(self, params: Tree, buffers: Tree) -> nn.Module:
        """A plain `nn.Module` of the original class with these values."""
        module = copy.deepcopy(self._plain)
        values = params | buffers
        with torch.no_grad():
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                tensor.copy_(values[name])
        return module

    @cached_property
    def unweighted(self) -> str | None:
        """Why rows of weight 0 would count in training, if they would: a batch norm with a `forward` of its own."""
        own = (type(m).__name__ for m in self._training.module.modules() if isinstance(m, BatchNorm))
        found = next(own, None)
        return found and f"padding would count in a batch norm with a forward of its own ({found})"

    @cached_property
    def convolutional(self) -> bool:
        """Whether the module contains convolutions."""
        return any(isinstance(m, nn.modules.conv._ConvNd) for m in self._plain.modules())

    def to(self, device: torch.device | str) -> Model:
        """The same model on another device."""
        moved = copy.copy(self)
        moved.params = {n: p.to(device) for n, p in self.params.items()}
        moved.buffers = {n: b.to(device) for n, b in self.buffers.items()}
        moved._training, moved._evaluating = (m.to(device) for m in (self._training, self._evaluating))
        moved._head = None if self._head is None else copy.deepcopy(self._head).to(device)
        return moved


Precision = Literal["float32", "bf16"]
"""In what a model trains."""

Group = Literal["all", "head", "body", "norm"]
"""What a person may call parts of a model."""

GROUPS: dict[str, Callable[[Model, str], bool]] = {
    "all": lambda model, name: True,
    "head": Model.in_head,
    "body": lambda model, name: not model.in_head(name),
    "norm": Model.in_norm,
}


class _Swapped:
    """A module called with other parameters and buffers than its own, by several threads at once if need be.

    The same as `torch.func.functional_call`, with the places of the tensors looked up once instead of in every call, which
    matters for small models. Tied tensors have several places. Buffers that the module assigns anew are written to `state`.
    """

    def __init__(self, module: nn.Module):
        self.module = module
        self._idle: list[_Places] = []

    def __call__(self, state: Tree, x: Tensor, extra: dict[str, Any]) -> Any:
        try:
            mine = self._idle.pop()
        except IndexError:  # the first call, or other threads are calling it
            same = {id(t): t for t in [*self.module.parameters(), *self.module.buffers()]}
            mine = _Places(copy.deepcopy(self.module, same))
        try:
            return mine.call(state, x, extra)
        finally:
            self._idle.append(mine)

    def to(self, device: torch.device | str) -> _Swapped:
        return _Swapped(copy.deepcopy(self.module).to(device))


class _Places:
    """Where a module keeps its tensors."""

    def __init__(self, module: nn.Module):
        self.module = module
        first: dict[Tensor, str] = {}
        self.places: list[tuple[dict[str, Any], str, str]] = []
        for path, owner in module.named_modules():
            for held in (owner._parameters, owner._buffers):
                for name, tensor in held.items():
                    if tensor is not None:
                        full = first.setdefault(tensor, f"{path}.{name}" if path else name)
                        self.places.append((held, name, full))
        self.own = [held[name] for held, name, _ in self.places]

    def call(self, state: Tree, x: Tensor, extra: dict[str, Any]) -> Any:
        try:
            for held, name, full in self.places:
                held[name] = state[full]
            result = self.module(x, **extra)
            for held, name, full in self.places:
                state[full] = held[name]
        finally:
            for (held, name, _), own in zip(self.places, self.own, strict=True):
                held[name] = own
        return result


class WeightedBatchNorm(nn.Module):
    """Batch normalisation whose statistics ignore rows of weight 0; otherwise torch's own, with the same parameter names.

    A channel with a single value has variance 0: it is normalised to 0 instead of refused, so that a client with one sample
    can train.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, norm: BatchNorm):
        super().__init__()
        self.training = norm.training
        self.eps, self.momentum = norm.eps, norm.momentum
        self.weight, self.bias = norm.weight, norm.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(norm, name))

    def forward(self, x: Tensor) -> Tensor:
        tracked = self.running_mean is not None
        if not self.training and tracked:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        rate = self._count() if tracked else 0.0
        call = _CALL.get(_Call())
        weight = call.weight
        if x.dtype == torch.bfloat16 and not (call.mixes and weight is None):
            x = x.float()  # statistics are never rounded; torch's own kernel sums in float32
        if weight is None and isinstance(rate, float) and x.numel() > x.shape[1]:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, True, rate, self.eps)
        return self._weighted(x, x.new_ones(x.shape[0]) if weight is None else weight.to(x.dtype), rate)

    def _count(self) -> float | Tensor:
        self.num_batches_tracked.add_(1)
        return self.momentum if self.momentum is not None else 1.0 / self.num_batches_tracked

    def _weighted(self, x: Tensor, weight: Tensor, rate: float | Tensor) -> Tensor:
        w = weight.reshape(-1, *[1] * (x.dim() - 1))
        over = [d for d in range(x.dim()) if d != 1]
        count = (weight.sum() * (x[0].numel() // x.shape[1])).clamp_min(1)
        shape = (1, -1, *[1] * (x.dim() - 2))
        mean = (w * x).sum(over) / count
        centred = w * (x - mean.reshape(shape))  # padding stays 0: it must not grow from layer to layer
        variance = centred.square().sum(over) / count
        if self.running_mean is not None:
            unbiased = variance.detach() * count / (count - 1).clamp_min(1)
            self.running_mean.add_(rate * (mean.detach() - self.running_mean))
            self.running_var.add_(rate * (unbiased - self.running_var))
        normal = centred * (variance.reshape(shape) + self.eps).rsqrt()
        if self.weight is None:
            return normal
        return normal * self.weight.reshape(shape) + self.bias.reshape(shape)


def _instrumented(module: nn.Module, training: bool) -> nn.Module:
    """A copy with weighted batch norms, but where they have a `forward` of their own, and a hook that catches the features."""
    module = copy.deepcopy(module)
    module.train(training)  # before norms are replaced: a module's own `train` may look for them, to freeze them
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, BatchNorm) and type(child).forward in (BatchNorm.forward, nn.SyncBatchNorm.forward):
                setattr(parent, name, WeightedBatchNorm(child))
    projection = getattr(module, "projection", None)
    _, head = _find_head(module)
    if isinstance(projection, nn.Module):
        projection.register_forward_hook(lambda _module, _inputs, output: _catch(output))
    elif head is not None:
        head.register_forward_pre_hook(lambda _module, inputs: _catch(inputs[0]))
    return module


def _catch(features: Tensor) -> None:
    call = _CALL.get(None)
    if call is not None:
        call.features = features


def _find_head(module: nn.Module) -> tuple[str, nn.Module | None]:
    declared = getattr(module, "head", None)
    if isinstance(declared, nn.Module):
        return "head", declared
    linear = [(name, m) for name, m in module.named_modules() if isinstance(m, nn.Linear) and name]
    return linear[-1] if linear else ("", None)


def _float(features: Tensor | None) -> Tensor | None:
    return None if features is None else features.float()


def _logits(result: Any) -> Tensor:
    if isinstance(result, Tensor):
        return result
    raise UnalikeError(
        f"the model returned {type(result).__name__}; expected a tensor of logits [batch, classes] or an unalike Output"
    )
