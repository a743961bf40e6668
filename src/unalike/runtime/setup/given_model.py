"""The model that a user gave: made, and checked with a few samples before anything is trained."""

from collections.abc import Callable, Collection
from pathlib import Path

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError, warn
from unalike._utils.functions import text_of_function
from unalike._utils.limits import Limit
from unalike.core.head_layer import with_head
from unalike.core.inputs import (
    Inputs,
    first_rows,
    is_one_tensor,
    layout_of,
    map_inputs,
    row_count,
    sample_shape,
)
from unalike.core.losses import COUNTS, class_counts
from unalike.core.model import Model
from unalike.core.model_probes import unrepeatable_result
from unalike.core.nests import tensors_of
from unalike.core.types import Batch, Context, Tree
from unalike.core.work import Work
from unalike.data.population import Population
from unalike.data.sanity import listed
from unalike.methods.plan import Plan, method_of
from unalike.methods.sample_gradients import clipped_sum
from unalike.models.registry import is_named, model_for
from unalike.models.registry import registry as models

ModelLike = str | nn.Module | Callable[[], nn.Module]
ParameterVersions = dict[str, tuple[int, torch.Tensor]]
"""Parameter name -> its version counter, and a copy."""

PROBED_SAMPLES = 8
"""Samples on which the outputs of a model are looked at."""
PROBE_SCALE = 0.1
"""Deviation of the noise that is added to the initial parameters there."""
EQUAL_OUTPUTS = 1e-4
"""Difference of outputs, relative to the largest, up to which they are equal."""


def make_model(given: ModelLike, population: Population, seed: int) -> tuple[Model, str]:
    """The model that a user gave, and its name."""
    if isinstance(given, str):
        module = model_for(given, layout_of(population.x), population.outputs, seed)
        return Model(module), models.spelled(given)
    if isinstance(given, nn.Module):
        return _with_outputs(given, population), _own_name(type(given).__name__)
    if callable(given):
        try:
            with seeds.isolated(seeds.number(seed, "model")):
                module = given()
        except TypeError as error:
            raise UnalikeError(
                f"model={given!r}: {error}; expected a function that makes a module of nothing"
            ) from error
        if isinstance(module, nn.Module):
            name = getattr(given, "__name__", type(module).__name__)
            return _with_outputs(module, population), _own_name(name)
    raise UnalikeError(
        f"model={given!r}: expected a name such as 'mlp', a torch.nn.Module or a function that makes one; for other libraries see "
        f"{Limit.KINDS}"
    )


def _own_name(name: str) -> str:
    """The name of a program's class or function, marked if a model of the catalogue has the same."""
    return f"{name} (own)" if is_named(name) else name


def note_drawn_weights(model: object, start: object, out: str | Path | None) -> None:
    """Warn where a new folder is to hold runs of a module as it is, whose weights another process may not have."""
    if (
        isinstance(model, nn.Module)
        and start is None
        and out is not None
        and not Path(out).exists()
    ):
        warn(
            f"{out} is continued from the same initial weights only: if torch drew those of the module, another process cannot go "
            "on; give a function that makes it (model=Net instead of model=Net()), or call torch.manual_seed(0) before"
        )


def note_averaged_buffers(model: Model, population: Population, context: Context) -> list[str]:
    """A sentence about buffers that training changes and of which it is not known whether an average makes sense."""
    try:
        changed = model.changed_unknown_buffers(_two_samples(population), context)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return []  # it may take no batch of two; what is wrong with it shows when it trains
    if not changed:
        return []
    return [
        f"the model's {listed(changed)} {'is' if len(changed) == 1 else 'are'} averaged over clients, as running statistics "
        "are. An average of directions, codebooks, queues, or of least and largest values is none of these: write "
        "buffers='local' or buffers='first', or compute such values in forward"
    ]


def note_outputs(model: Model, population: Population, context: Context) -> list[str]:
    """Sentences about outputs of the model that are probabilities, no logits, that are too many, or that no input changes."""
    x = map_inputs(lambda t: t.to("cpu", copy=True), first_rows(population.x, PROBED_SAMPLES))
    if not population.is_here or row_count(x) < 2:
        return []
    # Other parameters than the initial ones: a head may begin with zeros, and so give equal outputs at first.
    draw = torch.Generator().manual_seed(0)
    moved = {}
    for name, w in model.params.items():
        noise = torch.randn(w.shape, generator=draw).to(w) if w.is_floating_point() else 0
        moved[name] = w + noise * PROBE_SCALE
    try:
        with torch.no_grad(), seeds.isolated(0):
            logits = model(moved, x, buffers=model.buffers, context=context).logits
            first = model(moved, first_rows(x, 2), buffers=model.buffers, context=context).logits
    except (RuntimeError, ValueError, IndexError, TypeError):
        return []  # what is wrong with it shows when it trains
    if not logits.isfinite().all():
        return []
    if not torch.allclose(logits[:2], first, rtol=1e-3, atol=1e-4):
        return [
            "the output of the model for a sample depends on the others of its batch, also in evaluation, so that scores and "
            "predictions depend on how samples are put together: look for a softmax or a mean over the axis 0, or for batch norm "
            "without running statistics"
        ]

    size = float(logits.abs().max())
    differ = any(not bool((t == t[0]).all()) for t in tensors_of(x))
    if differ and float((logits - logits[0]).abs().max()) <= EQUAL_OUTPUTS * size:
        return [
            "the outputs of the model do not depend on its input, so that nothing can be learned: look for a softmax over one "
            "output, a normalization with one value in a group (GroupNorm or LayerNorm of a single number), or an input that "
            "forward leaves out"
        ]
    outputs = population.outputs
    larger = _outputs_of_larger(model, moved, x, context)
    are_all_shares = larger is not None and _are_shares(logits) and _are_shares(larger)
    if outputs is None:
        is_sigmoid = are_all_shares and population.classes is not None
        return [_no_logits("between 0 and 1", "sigmoid")] if is_sigmoid else []
    axis = population.task.class_dimension
    if axis is None:
        return []
    found = _of_class_outputs(logits.movedim(1 + axis, 1), outputs)
    if are_all_shares and not found:
        found.append(
            "the outputs of the model are between 0 and 1, as a sigmoid makes them, so that no class gets a probability near 1: "
            "leave the last sigmoid out"
        )
    elif larger is not None and not found and bool((larger >= 0).all() and (larger == 0).any()):
        found.append(
            "the outputs of the model are never negative, as a ReLU makes them, and a class whose output is 0 learns nothing from "
            "a sample: leave the last ReLU out"
        )
    return found


def _of_class_outputs(logits: torch.Tensor, outputs: int) -> list[str]:
    """Sentences about outputs [B, C, ...] that are too many for the classes, or probabilities."""
    found = []
    if logits.shape[1] > outputs:
        found.append(
            f"the model has {logits.shape[1]} outputs for {outputs} classes: no sample is of the others; give it {outputs} "
            "outputs, or name all classes"
        )
    sums = logits.sum(1)
    has_sum_1 = torch.allclose(sums, torch.ones_like(sums), atol=1e-4)
    if outputs > 1 and _are_shares(logits) and has_sum_1:
        found.append(_no_logits("not negative and of sum 1", "softmax"))
    return found


def _are_shares(values: torch.Tensor) -> bool:
    return bool(((values >= 0) & (values <= 1)).all())


def _outputs_of_larger(
    model: Model, params: Tree, x: Inputs, context: Context
) -> torch.Tensor | None:
    """The outputs for inputs that are a thousand times as large, which are large for logits; None for tokens."""
    if not is_one_tensor(x) or not x.is_floating_point():
        return None
    with torch.no_grad(), seeds.isolated(0):
        return model(params, 1000 * x, buffers=model.buffers, context=context).logits


def _no_logits(found: str, layer: str) -> str:
    return (
        f"the outputs of the model are {found}, as a {layer} makes them, and the loss applies one again: it learns slowly and its "
        f"probabilities are wrong; leave the last {layer} out (predictions apply it)"
    )


def _with_outputs(module: nn.Module, population: Population) -> Model:
    """The model of a module, with the head that makes its outputs; its parameters must exist."""
    if any(map(is_lazy, [*module.parameters(), *module.buffers()])):
        raise UnalikeError(
            "the model has lazy layers, whose size is not known yet; call it once with a few samples first"
        )
    return Model(with_head(module, _two_samples(population)))


def example_context(plan: Plan, population: Population) -> Context:
    """The static facts of the first client with training data, to build and try the model with."""
    method = method_of(plan)
    samples = population.example_samples if method.conditioners else None
    return {} if samples is None else method.describe(samples, population.outputs)


def check_fit(model: Model, population: Population, context: Context) -> None:
    """Make one forward pass on two samples.

    Raises `UnalikeError` where the model does not fit the data, or its outputs have no gradient.
    """
    dtypes = _check_dtypes(model)

    # What forward writes over would change from one pass to the next; version counters of tensors show it.
    x = _telling_samples(population)
    sample_versions = _versions(x)
    versions = _parameter_versions(model)
    leaves = {n: w.detach().requires_grad_(model.trainable(n)) for n, w in model.params.items()}
    try:
        with torch.enable_grad():
            logits = model(leaves, x, buffers=model.buffers, context=context).logits
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        if isinstance(error, UnalikeError):
            raise
        advice = _advice(x, dtypes, error)
        raise UnalikeError(
            f"the model cannot take samples of shape {list(sample_shape(x))}: {error}{advice}"
        ) from error
    if _versions(x) != sample_versions:
        raise UnalikeError(
            "the model writes over the samples that it is given, so that every pass would change the data; expected a forward that "
            "leaves its input alone: write x = x - mean instead of x -= mean, and no inplace=True in the first layer"
        )
    _check_parameters_unchanged(model, versions)
    if not logits.requires_grad:
        raise UnalikeError(
            "the outputs of the model have no gradient, so that nothing can be trained; expected a forward without "
            "torch.no_grad(), .detach(), .item(), argmax or NumPy"
        )
    _check_outputs(logits.detach(), row_count(x), population)


def _check_dtypes(model: Model) -> list[str]:
    """The dtypes of the parameters that train.

    Raises `UnalikeError` where there is none, or one of them is too coarse, and for complex numbers, which have no order.
    """
    for name, values in (model.params | model.buffers).items():
        if values.is_complex():
            raise UnalikeError(
                f"the model's {name} holds complex numbers, expected real ones; keep torch.view_as_real(t) and compute with "
                "torch.view_as_complex(t)"
            )
    dtypes = {}
    for name, values in model.params.items():
        if model.trainable(name):
            dtypes[name] = str(values.dtype).removeprefix("torch.")
    if not dtypes:
        raise UnalikeError(
            "the model has no parameter that trains; expected one that requires a gradient"
        )
    for name, dtype in dtypes.items():
        if dtype not in ("float32", "float64"):
            raise UnalikeError(
                f"the model's parameter {name} is {dtype}, expected float32, or small steps would be rounded away; give "
                "module.float(), and precision='bf16' for speed"
            )
    return [*dtypes.values()]


def _check_outputs(logits: torch.Tensor, samples: int, population: Population) -> None:
    """Raise `UnalikeError` unless each sample has the outputs of the task: one per class, or without classes one output."""
    task, classes, label_shape = population.task, population.class_count, population.y.shape[1:]
    if len(logits) == samples and task.takes_outputs(logits.shape[1:], classes, label_shape):
        return
    shape = [samples, *task.output_shape(classes, label_shape)]
    meaning = task.outputs_in_words
    if not meaning and population.outputs is not None:
        meaning = "one per class"
    elif not meaning:
        meaning = "one per sample: float labels mean regression and bool labels binary, integer labels make classes"
    raise UnalikeError(
        f"the model gives outputs of shape {list(logits.shape)} for {samples} samples; expected {shape}, {meaning}"
    )


def check_loss(work: Work, model: Model, population: Population, context: Context) -> None:
    """Compute the loss of two samples. Raises `UnalikeError` for one that does not fit the task, or cannot be minimized."""
    loss = work.criterion
    if loss is None:
        return
    name = f"loss={text_of_function(work.loss)!r}"
    try:
        loss.check(population.task, population.outputs or 2)
    except UnalikeError as error:
        raise UnalikeError(f"{name}: {error}") from None
    # Two samples and the gradient of their loss: what cannot be minimized shows here, not in the first step.
    leaves = {n: w.detach().requires_grad_(model.trainable(n)) for n, w in model.params.items()}
    batch = Batch(_two_samples(population), population.y[:2].to("cpu"))
    facts = {COUNTS: class_counts(batch.y, population.outputs)} if loss.needs_counts else {}
    output = model(leaves, batch.x, buffers=model.buffers, context=context)
    try:
        value = loss.mean(output.logits, batch, facts)
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
        if isinstance(error, UnalikeError):
            raise
        shapes = f"outputs of shape {list(output.logits.shape)} and labels of shape {list(batch.y.shape)}"
        raise UnalikeError(f"{name} fails on {shapes}: {error or type(error).__name__}") from error
    if not value.requires_grad:
        raise UnalikeError(
            f"{name} has no gradient; expected operations of torch on the outputs, without .item(), "
            ".detach(), argmax or NumPy"
        )


def check_repeats(model: Model, population: Population, context: Context) -> None:
    """Make a forward pass in training twice. Raises `UnalikeError` for a module that is no function of its parameters, its buffers
    and torch's random numbers.
    """
    versions = _parameter_versions(model)
    try:
        changed = unrepeatable_result(model, _two_samples(population), context)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return  # it may take no batch of two; what is wrong with it shows when it trains
    _check_parameters_unchanged(model, versions)
    if changed is not None:
        raise UnalikeError(
            f"the model gives other values for {changed} when the same samples are trained on again, so that they would depend on "
            "the order of clients; keep what changes in buffers (register_buffer), and use torch's random numbers alone"
        )


def check_single_samples(model: Model, population: Population, context: Context, name: str) -> None:
    """Raise `UnalikeError` unless the model has a gradient for each sample by itself, which the part `name` asks for.

    It has none where the output for a sample depends on the others of its batch.
    """
    x = map_inputs(lambda t: t.to("cpu", copy=True), first_rows(population.x, PROBED_SAMPLES))
    batch = Batch(x, population.y[: row_count(x)].to("cpu"))
    advice = f"{name} takes the gradient of each sample by itself; use group or layer norm in the place of batch norm"
    for training in (False, True):
        try:
            together = _seeded_logits(model, x, context, training)
            alone = _seeded_logits(model, first_rows(x, 1), context, training)
        except (RuntimeError, ValueError) as error:
            raise UnalikeError(f"the model cannot take one sample ({error}); {advice}") from error
        # dropout draws other numbers for other shapes: then evaluation alone tells
        is_random = training and not torch.equal(
            together, _seeded_logits(model, x, context, training, seed=1)
        )
        if not is_random and not torch.allclose(together[:1], alone, rtol=1e-3, atol=1e-4):
            raise UnalikeError(
                f"the output of the model for a sample depends on the others of its batch, as batch norm without running "
                f"statistics makes it; {advice}"
            )

    def loss(params: Tree, row: Batch) -> torch.Tensor:
        output = model(params, row.x, buffers=model.buffers, context=context, training=True)
        return population.task.batch_loss(output.logits, row)

    try:
        with torch.no_grad(), seeds.isolated(0):
            clipped_sum(loss, model.params, batch, clip=1.0)
    except RuntimeError as error:
        recurrent = "; write nn.LSTM in the place of nn.GRU and nn.RNN" if model.recurrent else ""
        raise UnalikeError(
            f"torch has no gradients of single samples for a layer of the model ({str(error).splitlines()[0]}), which {name} asks "
            f"for{recurrent}"
        ) from error


def _seeded_logits(
    model: Model, x: Inputs, context: Context, training: bool, seed: int = 0
) -> torch.Tensor:
    """The logits of samples, with random numbers of a seed."""
    with torch.no_grad(), seeds.isolated(seed):
        output = model(model.params, x, buffers=model.buffers, context=context, training=training)
    return output.logits


def _advice(x: Inputs, trained: Collection[str], error: Exception) -> str:
    """Advice where samples and parameters have different dtypes, or words have numbers beyond the vocabulary."""
    if is_one_tensor(x) and not x.is_floating_point():
        if isinstance(error, IndexError):
            return f"; the largest number of a word is {int(x.max())}, which needs a vocabulary of {int(x.max()) + 1} or more"
        return "; these are whole numbers: words need --model textcnn (model='textcnn'), amounts x.astype('float32')"
    return "; its parameters are float64: give module.float()" if "float64" in trained else ""


def _two_samples(population: Population) -> Inputs:
    return map_inputs(lambda t: t[:2].to("cpu", copy=True), population.x)


def _telling_samples(population: Population) -> Inputs:
    """Two samples; of whole numbers, one holds the largest, for which a vocabulary may be too small."""
    x = population.x
    if not is_one_tensor(x) or x.is_floating_point() or len(x) < 2:
        return _two_samples(population)
    return x[[0, int(x.argmax()) // x[0].numel()]].to("cpu", copy=True)


def _versions(x: Inputs) -> list[int]:
    """The number of times that each tensor was written over."""
    return [t._version for t in tensors_of(x)]


def _parameter_versions(model: Model) -> ParameterVersions:
    return {n: (w._version, w.clone()) for n, w in model.params.items()}


def _check_parameters_unchanged(model: Model, versions: ParameterVersions) -> None:
    """Raise `UnalikeError` where a parameter was written over since."""
    now = model.params
    written = next(
        (
            n
            for n, (version, w) in versions.items()
            if now[n]._version != version or not torch.equal(now[n], w)
        ),
        None,
    )
    if written is not None:
        raise UnalikeError(
            f"the model writes over its parameter {written} in forward, so that evaluation would change what is trained; expected "
            "a forward that leaves parameters alone: write F.linear(x, self.weight.clamp(-1, 1)), not self.weight.clamp_(-1, 1), "
            "F.normalize of what an embedding gives instead of its max_norm, and keep in a buffer what forward itself updates"
        )
