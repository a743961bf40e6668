"""Forward passes that try a model out: whether padding would count in it, and whether it gives the same results again."""

import torch
from torch import Tensor

from unalike._utils.seeds import isolated
from unalike.core.inputs import Inputs, first_rows, join_rows, map_inputs, row_count
from unalike.core.model import Model
from unalike.core.nests import map_tensors
from unalike.core.norm_layers import BatchNorm
from unalike.core.types import Context, Tree


def why_padding_counts(model: Model, x: Inputs, context: Context | None = None) -> str | None:
    """The reason why rows of weight 0 would count in training, or None.

    They count in a batch norm with its own `forward`, and in any other module that looks at a batch as a whole. The latter is
    found by a forward pass of two of the samples `x`, with padding and without.
    """
    for m in model.training_module.modules():
        if isinstance(m, BatchNorm):
            name = type(m).__name__
            return f"padding would count in a batch norm with a forward of its own ({name})"
    if any(getattr(m, "scale_grad_by_freq", False) for m in model.given_module.modules()):
        return "padding would count in an embedding with scale_grad_by_freq, which counts the words of a batch"
    # on a GPU, rounding depends on the size of a batch, too
    few = map_inputs(Tensor.cpu, first_rows(x, 2))
    count = row_count(few)
    model = model.to("cpu")
    context = context and map_tensors(Tensor.cpu, dict(context))

    alone = _results(model, few, count, context, seed=0)
    repeated = _results(model, few, count, context, seed=1)
    with_padding = join_rows([few, map_inputs(torch.zeros_like, few)])
    padded = _results(model, with_padding, count, context, seed=2)

    # results that differ by seed are random, and say nothing about padding
    changed = [
        name
        for name, t in alone.items()
        if torch.equal(t, repeated[name])
        and not torch.allclose(t, padded[name], 1e-3, 1e-4, equal_nan=True)
    ]
    if not changed:
        return None
    return f"padding would count in {', '.join(sorted(changed))}: the model looks at batches as a whole"


def unrepeatable_result(model: Model, x: Inputs, context: Context | None = None) -> str | None:
    """The first result that differs when a forward pass in training is repeated with the same random numbers, or None.

    Such a module keeps something that is neither a parameter nor a buffer.
    """
    count = row_count(x)
    first = _results(model, x, count, context, seed=0)
    again = _results(model, x, count, context, seed=0)
    for name, t in first.items():
        if not torch.allclose(t, again[name], 1e-4, 1e-6, equal_nan=True):
            return name
    return None


def _results(model: Model, x: Inputs, real: int, context: Context | None, seed: int) -> Tree:
    """Buffers and outputs, by what they are called, of a forward pass in training; only the first `real` rows count."""
    device = next(iter(model.params.values())).device
    weight = (torch.arange(row_count(x), device=device) < real).float()
    with isolated(seed, device), torch.no_grad():
        output = model.at("float32")(
            model.params, x, buffers=model.buffers, context=context, training=True, weight=weight
        )
    results = {f"the buffer {name}": b for name, b in output.buffers.items()}
    results["its outputs"] = output.logits[:real]
    return results
