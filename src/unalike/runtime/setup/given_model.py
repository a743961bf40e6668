"""The model that a user gave: made, and checked with a few samples before anything is trained."""

from collections.abc import Callable, Collection
from pathlib import Path

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError, warn
from unalike._utils.functions import recorded
from unalike.core.head_layer import with_head
from unalike.core.losses import COUNTS, class_counts
from unalike.core.model import Model
from unalike.core.model_probes import unrepeatable_result
from unalike.core.types import Batch, Context
from unalike.core.work import Work
from unalike.data.population import Population
from unalike.methods.plan import Plan, method_of
from unalike.models.registry import is_named
from unalike.models.registry import model as build_model
from unalike.models.registry import registry as models

ModelLike = str | nn.Module | Callable[[], nn.Module]
Held = dict[str, tuple[int, torch.Tensor]]
"""Parameter name -> its version counter, and a copy."""


def make_model(given: ModelLike, population: Population, seed: int) -> tuple[Model, str]:
    """The model that a user gave, and its name."""
    if isinstance(given, str):
        return Model(
            build_model(given, population.input_shape, population.outputs, seed)
        ), models.spelled(given)
    if isinstance(given, nn.Module):
        return _filled(given, population), _own_name(type(given).__name__)
    if callable(given):
        try:
            with seeds.isolated(seeds.number(seed, "model")):
                module = given()
        except TypeError as error:
            raise UnalikeError(
                f"model={given!r}: {error}; expected a function that makes a module of nothing"
            ) from error
        if isinstance(module, nn.Module):
            return _filled(module, population), _own_name(
                getattr(given, "__name__", type(module).__name__)
            )
    raise UnalikeError(
        f"model={given!r}: expected a name such as 'mlp', a torch.nn.Module or a function that makes one"
    )


def _own_name(name: str) -> str:
    """The name of a program's class or function, marked if a model of the catalogue has the same."""
    return f"{name} (own)" if is_named(name) else name


def note_drawn_weights(model: ModelLike, start: object, out: str | Path | None) -> None:
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


def _filled(module: nn.Module, population: Population) -> Model:
    """The model of a module, with the head that makes its outputs; its parameters must exist."""
    if any(map(is_lazy, [*module.parameters(), *module.buffers()])):
        raise UnalikeError(
            "the model has lazy layers, whose size is not known yet; call it once with a few samples first"
        )
    return Model(with_head(module, _few(population)))


def example_context(plan: Plan, population: Population) -> Context:
    """The static facts of the first client with training data, to build and try the model with."""
    method = method_of(plan)
    filled = next((k for k in range(len(population)) if population.sizes[k]), None)
    if filled is None or not method.conditioners:
        return {}
    x, y = population[filled].train
    return method.describe(Batch(torch.as_tensor(x), torch.as_tensor(y)), population.outputs)


def check_fit(model: Model, population: Population, context: Context) -> None:
    """Make one forward pass on two samples. Raises `UnalikeError` where the model does not fit the data."""
    trained = {
        n: str(w.dtype).removeprefix("torch.")
        for n, w in model.params.items()
        if model.trainable(n)
    }
    if not trained:
        raise UnalikeError(
            "the model has no parameter that trains; expected one that requires a gradient"
        )
    odd = next((n for n, kind in trained.items() if kind not in ("float32", "float64")), None)
    if odd is not None:
        raise UnalikeError(
            f"the model's parameter {odd} is {trained[odd]}, expected float32, or small steps would be rounded away; give "
            "module.float(), and precision='bf16' for speed"
        )
    x, held = _telling(population), _held(model)
    before = x._version
    try:
        with torch.no_grad():
            logits = model(model.params, x, buffers=model.buffers, context=context).logits
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        if isinstance(error, UnalikeError):
            raise
        raise UnalikeError(
            f"the model cannot take samples of shape {list(x.shape[1:])}: {error}{_other_kind(x, trained.values(), error)}"
        ) from error
    if x._version != before:
        raise UnalikeError(
            "the model writes over the samples that it is given, so that every pass would change the data; expected a forward that "
            "leaves its input alone: write x = x - mean instead of x -= mean, and no inplace=True in the first layer"
        )
    _leaves_alone(model, held)
    wanted = population.outputs
    fits = (
        logits.numel() == len(x)
        if wanted is None
        else logits.dim() == 2 and logits.shape[1] >= wanted
    )
    if len(logits) != len(x) or not fits:
        kinds = "float labels mean regression and bool labels binary, integer labels make classes"
        raise UnalikeError(
            f"the model gives outputs of shape {list(logits.shape)} for {len(x)} samples; expected [{len(x)}, {wanted or 1}], "
            + ("one per class" if wanted else f"one per sample: {kinds}")
        )


def check_loss(work: Work, model: Model, population: Population, context: Context) -> None:
    """Compute the loss of two samples. Raises `UnalikeError` for one that does not fit the task, or cannot be minimized."""
    loss = work.criterion
    if loss is None:
        return
    name = f"loss={recorded(work.loss)!r}"
    try:
        loss.check(population.task, population.outputs or 2)
    except UnalikeError as error:
        raise UnalikeError(f"{name}: {error}") from None
    leaves = {n: w.detach().requires_grad_(model.trainable(n)) for n, w in model.params.items()}
    batch = Batch(_few(population), population.y[:2].to("cpu"))
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
    held = _held(model)
    try:
        changed = unrepeatable_result(model, _few(population), context)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return  # it may take no batch of two; what is wrong with it shows when it trains
    _leaves_alone(model, held)
    if changed is not None:
        raise UnalikeError(
            f"the model gives other values for {changed} when the same samples are trained on again, so that they would depend on "
            "the order of clients; keep what changes in buffers (register_buffer), and use torch's random numbers alone"
        )


def _other_kind(x: torch.Tensor, trained: Collection[str], error: Exception) -> str:
    """Advice where samples and parameters have different dtypes, or words have numbers beyond the vocabulary."""
    if not x.is_floating_point():
        if isinstance(error, IndexError):
            return f"; the largest number of a word is {int(x.max())}, which needs a vocabulary of {int(x.max()) + 1} or more"
        return "; these are whole numbers: words need --model textcnn (model='textcnn'), amounts x.astype('float32')"
    return "; its parameters are float64: give module.float()" if "float64" in trained else ""


def _few(population: Population) -> torch.Tensor:
    return population.x[:2].to("cpu", copy=True)


def _telling(population: Population) -> torch.Tensor:
    """Two samples; of whole numbers, one holds the largest, for which a vocabulary may be too small."""
    x = population.x
    if x.is_floating_point() or len(x) < 2:
        return _few(population)
    return x[[0, int(x.argmax()) // x[0].numel()]].to("cpu", copy=True)


def _held(model: Model) -> Held:
    return {n: (w._version, w.clone()) for n, w in model.params.items()}


def _leaves_alone(model: Model, held: Held) -> None:
    """Raise `UnalikeError` where a parameter was written over since."""
    now = model.params
    written = next(
        (n for n, (v, w) in held.items() if now[n]._version != v or not torch.equal(now[n], w)),
        None,
    )
    if written is not None:
        raise UnalikeError(
            f"the model writes over its parameter {written} in forward, so that evaluation would change what is trained; expected "
            "a forward that leaves parameters alone: write F.linear(x, self.weight.clamp(-1, 1)), not self.weight.clamp_(-1, 1), "
            "F.normalize of what an embedding gives instead of its max_norm, and keep in a buffer what forward itself updates"
        )
