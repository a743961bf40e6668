"""A `torch.nn.Module` as a pure function of its parameters and buffers."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from unalike._utils.errors import UnalikeError
from unalike._utils.seeds import isolated
from unalike.core import tree
from unalike.core.buffers import singular_vectors, spectral_buffers, unknown_buffers
from unalike.core.functional_module import FunctionalModule
from unalike.core.head_layer import find_head
from unalike.core.inputs import Inputs, is_one_tensor, map_inputs
from unalike.core.memory_layout import MemoryLayout
from unalike.core.module_surgery import copied_module, forward_module
from unalike.core.norm_layers import FORWARD_PASS, NORMS, ForwardPass, moved_statistics
from unalike.core.types import Context, Output, Tree


class Model:
    """`model(params, x, buffers=...) -> Output`: the module's forward pass as a pure function.

    Features are the input of `module.head`, or of the last linear layer in a module without `head`; in a module with a
    `projection` they are the projection's output (MOON). A module may also return an `Output` itself. A `forward` that takes
    `context` receives the client's static facts.

    It is copied and never changed. Raises `UnalikeError` for a module that cannot be copied, or has hooks on its parameters'
    gradients.

    Attributes:
        params: Initial values of all parameters, [*shape] each, in the order of the module.
        buffers: Initial values of all buffers, [*shape] each.
        head_path: Path of the head in the module: `head.weight` is in the head `head`. Empty without a head.
        takes_context: Whether `forward` takes `context`, the client's static facts.
    """

    def __init__(self, module: nn.Module):
        self.params: Tree = {n: p.detach().clone() for n, p in module.named_parameters()}
        self.buffers: Tree = {n: b.detach().clone() for n, b in module.named_buffers()}
        self._entries = _state_dict_entries(module)
        self._frozen = {n for n, p in module.named_parameters() if not p.requires_grad}
        self._norms = {path for path, m in module.named_modules() if isinstance(m, NORMS)}
        self.head_path, self._head = find_head(module)  # an empty path without a head

        self._given_module = copied_module(module)
        self.spectral_buffers = spectral_buffers(self._given_module)
        self._training = FunctionalModule(forward_module(module, training=True))
        self._evaluating = FunctionalModule(forward_module(module, training=False))
        self.takes_context = "context" in inspect.signature(module.forward).parameters

        self.precision: Precision = "float32"
        self.layout = MemoryLayout()
        # whether images of a shape may be channels-last; copies of the model share it, so that each shape is tried once
        self._takes_channels_last: dict[torch.Size, bool] = {}

    # ---- forward pass ----

    def __call__(
        self,
        params: Tree,
        x: Inputs,
        *,
        buffers: Tree,
        context: Context | None = None,
        training: bool = False,
        weight: Tensor | None = None,
    ) -> Output:
        """The forward pass.

        Of samples x [B, ...] (a tree goes to the module as it is), with all parameters and buffers by name and the client's
        static facts `context`. In training, `Output.buffers` are new tensors. Rows of weight [B] 0 are padding and do not count in
        the buffers; None: every row counts.
        """
        # the module writes new running statistics into `state`: in training into copies, so that the caller's stay
        if training:
            state = params | {name: b.clone() for name, b in buffers.items()}
        else:
            state = params | buffers
        module = self._training if training else self._evaluating
        extra = {"context": context or {}} if self.takes_context else {}

        # hooks and norms inside the module read the weights from the context, and leave the features there
        forward_pass = ForwardPass(weight, mixes=self.layout.channels_last)
        token = FORWARD_PASS.set(forward_pass)
        try:
            with self._autocast(training, params):
                result = module(state, map_inputs(self.layout.of, x), extra)
        finally:
            FORWARD_PASS.reset(token)

        if isinstance(result, Output):
            output = result
        else:
            output = Output(_logits(result), forward_pass.features)
        if not training:
            return output._replace(buffers=buffers)
        # losses are never computed in a rounded precision
        if self.precision != "float32":
            output = output._replace(logits=output.logits.float(), features=_float(output.features))
        return output._replace(buffers={name: state[name] for name in buffers})

    def _autocast(self, training: bool, params: Tree) -> AbstractContextManager[Any]:
        """Autocast for training in bf16: matrix products and convolutions are rounded, parameters and sums stay in float32."""
        if self.precision == "float32" or not training:
            return nullcontext()
        device = next(iter(params.values())).device
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)

    def features(
        self, params: Tree, x: Inputs, *, buffers: Tree, context: Context | None = None
    ) -> Tensor:
        """The head's input [B, D] in evaluation mode. Raises `UnalikeError` if the model does not show it."""
        features = self(params, x, buffers=buffers, context=context).features
        size = self.head_size[0]
        if features is None:
            raise _hidden_features("no features", size)
        if features.dim() != 2 or features.shape[1] != size:
            raise _hidden_features(f"features of shape {list(features.shape)}", size)
        return features

    def head(self, params: Tree, features: Tensor) -> Tensor:
        """Logits from features [B, D]; head parameters that `params` lacks have their initial values."""
        if self._head is None:
            raise UnalikeError(
                "the model has no head: give the module an attribute `head`, its last layer"
            )
        values = tree.under(self.params | params, self.head_path + ".")
        return functional_call(self._head, values, features)

    @property
    def head_size(self) -> tuple[int, int]:
        """Number of features and of logits of a linear head, (D, C). Raises `UnalikeError` for another head."""
        head = self._head
        if isinstance(head, nn.Linear):
            return head.in_features, head.out_features
        found = "no head" if head is None else f"a head of type {type(head).__name__}"
        raise UnalikeError(
            f"the model has {found}; expected a linear layer as its attribute `head`"
        )

    # ---- groups of parameters ----

    def in_head(self, name: str) -> bool:
        """Whether a parameter or buffer belongs to the head."""
        return self._head is not None and name.startswith(self.head_path + ".")

    def in_norm(self, name: str) -> bool:
        """Whether a parameter or buffer belongs to a normalization layer."""
        return name.rpartition(".")[0] in self._norms

    def within(self, group: str, name: str) -> bool:
        """Whether a parameter or buffer belongs to one of the `GROUPS`, or has a name like a pattern such as "encoder.*"."""
        if group in GROUPS:
            return GROUPS[group](self, name)
        return fnmatchcase(name, group)

    def trainable(self, name: str) -> bool:
        """Whether the module itself lets the parameter train (`requires_grad`)."""
        return name not in self._frozen

    # ---- values ----

    def state_dict(self, values: Tree) -> Tree:
        """Parameters and buffers in state-dict order, tied ones under each of their names."""
        return {entry: values[name] for entry, name in self._entries.items()}

    def starting_from(self, entries: Tree) -> Model:
        """The same model with the values of these state-dict entries as initial values; the others keep theirs."""
        values = {self._entries[entry]: t.detach().clone() for entry, t in entries.items()}
        return self.with_initial(values)

    def with_initial(self, values: Tree) -> Model:
        """The same model with these initial values of parameters and buffers; the others keep theirs."""
        model = copy.copy(self)
        model.params = {name: values.get(name, t) for name, t in self.params.items()}
        model.buffers = {name: values.get(name, t) for name, t in self.buffers.items()}
        return model

    def redrawn(self, number: int) -> Tree:
        """Other initial values, drawn from the seed `number` by the modules' `reset_parameters`.

        Modules without that method and frozen parameters keep their values.
        """
        module = self.module(self.params, self.buffers)
        with isolated(number):
            for m in module.modules():
                reset = getattr(m, "reset_parameters", None)
                if callable(reset):
                    reset()
        values = dict(self.params)
        for name, p in module.named_parameters():
            if self.trainable(name):
                values[name] = p.detach().clone().to(self.params[name])
        return values

    def moved_statistics(self, own: Tree, before: Tree, after: Tree) -> Tree:
        """The buffers that training would have led to from `own`, where it led from `before` to `after`.

        See `norm_layers.moved_statistics`.
        """
        return moved_statistics(self._given_module, own, before, after)

    def singular_vectors(self, params: Tree, buffers: Tree) -> Tree:
        """The buffers that follow from the parameters: the vectors of spectral norms, see `buffers.singular_vectors`."""
        if not self.spectral_buffers:
            return {}
        vectors = singular_vectors(self.module(params, buffers))
        return {name: vector.to(buffers[name]) for name, vector in vectors.items()}

    def changed_unknown_buffers(self, x: Inputs, context: Context | None = None) -> list[str]:
        """The names of buffers that a forward pass in training changes, and of which it is not known how they are averaged."""
        unknown = unknown_buffers(self._given_module)
        if not unknown:
            return []
        with torch.no_grad(), isolated(0):
            output = self(self.params, x, buffers=self.buffers, context=context, training=True)
        return [n for n in unknown if not torch.equal(output.buffers[n], self.buffers[n])]

    # ---- modules ----

    @property
    def given_module(self) -> nn.Module:
        """The module as it was given, which is never changed."""
        return self._given_module

    @property
    def training_module(self) -> nn.Module:
        """The module as it is prepared for forward passes in training, which is never changed."""
        return self._training.module

    def module(self, params: Tree, buffers: Tree) -> nn.Module:
        """A plain `nn.Module` of the original class with these values."""
        module = copy.deepcopy(self._given_module)
        values = params | buffers
        with torch.no_grad():
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                tensor.copy_(values[name])
        return module

    def encoder(self, params: Tree, buffers: Tree) -> nn.Module:
        """The module with these values and without its head: it returns the features."""
        module = self.module(params, buffers)
        self.head_size  # noqa: B018  (refuses a model without a linear head)
        parent, _, name = self.head_path.rpartition(".")
        setattr(module.get_submodule(parent), name, nn.Identity())
        return module

    @cached_property
    def convolutional(self) -> bool:
        """Whether the module contains convolutions."""
        modules = self._given_module.modules()
        return any(isinstance(m, nn.modules.conv._ConvNd) for m in modules)

    @cached_property
    def recurrent(self) -> bool:
        """Whether the module contains layers that go through sequences step by step (RNN, GRU, LSTM)."""
        return any(isinstance(m, nn.RNNBase) for m in self._given_module.modules())

    # ---- the same model in another precision, layout or place ----

    def at(self, precision: Precision) -> Model:
        """The same model, trained in another precision; evaluation stays in float32."""
        model = copy.copy(self)
        model.precision = precision
        return model

    def channels_last(self, x: Inputs, context: Context | None = None) -> Model:
        """The same model with images as [B, H, W, C] in memory, which makes convolutions of one client faster.

        A module that fails with them, because it uses `view` on its activations, is left as it is. This is tried once per shape.
        """
        if not self.convolutional or not is_one_tensor(x) or x.dim() != 4:
            return self
        model = copy.copy(self)
        model.layout = replace(self.layout, channels_last=True)
        shape = x.shape[1:]
        if shape not in self._takes_channels_last:
            self._takes_channels_last[shape] = model._runs(x, context)
        return model if self._takes_channels_last[shape] else self

    def _runs(self, x: Tensor, context: Context | None) -> bool:
        """Whether a forward pass raises no error."""
        params = {name: self.layout.leaf(p) for name, p in self.params.items()}
        try:
            with torch.no_grad():
                self(params, x, buffers=self.buffers, context=context)
        except (RuntimeError, KeyError):
            return False
        return True

    def to(self, device: torch.device | str) -> Model:
        """The same model on another device."""
        model = copy.copy(self)
        model.params = {name: p.to(device) for name, p in self.params.items()}
        model.buffers = {name: b.to(device) for name, b in self.buffers.items()}
        model._training = self._training.to(device)
        model._evaluating = self._evaluating.to(device)
        if self._head is not None:
            model._head = copy.deepcopy(self._head).to(device)
        return model


Precision = Literal["float32", "bf16"]
"""Floating-point precision of training."""

Group = Literal["all", "head", "body", "norm", "bias"]
"""Groups of parameters, by the names that users write."""

GROUPS: dict[str, Callable[[Model, str], bool]] = {
    "all": lambda model, name: True,
    "head": Model.in_head,
    "body": lambda model, name: not model.in_head(name),
    "norm": Model.in_norm,
    "bias": lambda model, name: name.rpartition(".")[2] == "bias",
}


def _state_dict_entries(module: nn.Module) -> dict[str, str]:
    """The entries of the module's state dict -> the name that `params` or `buffers` have the tensor by.

    Tied tensors have several entries and one name, the first.
    """
    first_name: dict[int, str] = {}
    for name, t in [*module.named_parameters(), *module.named_buffers()]:
        first_name[id(t)] = name

    names: dict[str, str] = {}
    for entry, parameter in module.named_parameters(remove_duplicate=False):
        names[entry] = first_name[id(parameter)]
    for entry, buffer in module.named_buffers(remove_duplicate=False):
        names[entry] = first_name[id(buffer)]
    # buffers that are not persistent are in no state dict
    return {entry: names[entry] for entry in module.state_dict() if entry in names}


def _hidden_features(found: str, size: int) -> UnalikeError:
    return UnalikeError(
        f"the model shows {found}; expected [batch, {size}], the input of its head (a `projection` hides it)"
    )


def _float(features: Tensor | None) -> Tensor | None:
    return None if features is None else features.float()


def _logits(result: Any) -> Tensor:
    if isinstance(result, Tensor):
        return result
    raise UnalikeError(
        f"the model returned {type(result).__name__}; expected a tensor of logits [batch, classes] or an unalike Output: wrap "
        "the module, as in ua.Logits(module, output='logits', input='pixel_values')"
    )
