"""The ordinary gradient rules: of one client by autograd, and of stacked clients by functional gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.func import grad_and_value

from unalike.core.types import Batch, PartTrees
from unalike.methods.gradient_rule import StepLoss, StepValues


class LeafGradients(Protocol):
    """Computes the gradients of a value in the leaves of its graph; None for a leaf that it does not depend on."""

    def __call__(self, value: Tensor, leaves: list[Tensor]) -> Sequence[Tensor | None]: ...


def by_grad(value: Tensor, leaves: list[Tensor]) -> Sequence[Tensor | None]:
    """The gradients of these leaves alone: a part may bring a model of its own, whose parameters must get none."""
    return torch.autograd.grad(value, leaves, allow_unused=True)


def by_backward(value: Tensor, leaves: list[Tensor]) -> Sequence[Tensor | None]:
    """The same where the graph has no other leaves: `backward` does not search the graph first (3 % of a recurrent step)."""
    value.backward()
    grads = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return grads


@dataclass(frozen=True)
class AutogradRule:
    """Ordinary autograd, which is faster than functional gradients for one client."""

    gradients_of: LeafGradients

    allows_more_gradients: ClassVar[bool] = True
    counts_empty_batches: ClassVar[bool] = False

    def gradients(
        self, loss: StepLoss, variables: PartTrees, batch: Batch
    ) -> tuple[PartTrees, StepValues]:
        leaves = _leaves_of(variables)
        with torch.enable_grad():
            total, values = loss(leaves, batch)
        flat = [leaf for model in leaves.values() for leaf in model.values()]
        gradients = [
            torch.zeros_like(leaf) if gradient is None else gradient
            for gradient, leaf in zip(self.gradients_of(total, flat), flat, strict=True)
        ]
        rest = iter(gradients)
        grads = {}
        for model, tensors in leaves.items():
            grads[model] = {name: next(rest) for name in tensors}
        return grads, values

    def rows_of(self, batch: Batch) -> Tensor | float:
        return batch.rows


@dataclass(frozen=True)
class StackedRule:
    """Functional gradients, which `torch.vmap` can stack."""

    allows_more_gradients: ClassVar[bool] = True
    counts_empty_batches: ClassVar[bool] = False

    def gradients(
        self, loss: StepLoss, variables: PartTrees, batch: Batch
    ) -> tuple[PartTrees, StepValues]:
        loss_of_variables = partial(loss, batch=batch)
        grads, (_, values) = grad_and_value(loss_of_variables, has_aux=True)(variables)
        return grads, values

    def rows_of(self, batch: Batch) -> Tensor | float:
        return batch.rows


def _leaves_of(variables: PartTrees) -> PartTrees:
    """The variables as leaves of a new graph."""
    return {
        model: {
            n: t if t.requires_grad else t.detach().requires_grad_() for n, t in tensors.items()
        }
        for model, tensors in variables.items()
    }
