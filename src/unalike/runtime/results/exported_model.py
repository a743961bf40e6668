"""A model as a folder that predicts without this library: `model.pt2` of torch.export, `model.json`, and a script as an example.

The file of torch.export takes encoded samples [n, ...] and gives the probability of each class [n, C], or for regression the
predictions [n]. `model.json` says how a row of a table is encoded. The script needs torch alone.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import torch
from torch import Tensor, nn

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import write_bytes
from unalike.core.inputs import Inputs, is_one_tensor, layout_of, map_inputs, zeros_of
from unalike.core.tasks.registry import find_task
from unalike.core.tasks.task import Task
from unalike.data.columns import MISSING
from unalike.data.sources.delimited import MISSING_TEXTS
from unalike.data.table_encoding import Encoding
from unalike.data.text import PADDING, UNKNOWN, WORD_PATTERN
from unalike.metrics.scoring import Predict

MODEL_FILE = "model.pt2"
FACTS_FILE = "model.json"
SCRIPT_FILE = "predict.py"
SCRIPT_TEMPLATE = Path(__file__).with_name(f"{SCRIPT_FILE}.j2")
"""The script, which encodes rows or reads samples, and writes their predictions."""
COPIED_SETTINGS = ("unalike", "method", "rounds", "seed", "work", "model", "data", "site")
"""The parts of the configuration that are copied."""
COMPARED_BATCHES = (1, 2, 7)
"""Numbers of samples with which an exported model is compared with the model."""
OUTPUT_TOLERANCE = 1e-6
FAILURES = (
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    AssertionError,
    NotImplementedError,
)
"""What torch.export raises for a model that it cannot follow."""


def export_model(
    folder: str | Path,
    predict: Predict,
    config: Mapping[str, Any],
    encoding: Encoding | None,
    client: int | str | None,
) -> Path:
    """Write a model, the encoding of its samples and an example of its use into a folder.

    `predict` is the model, samples [n, ...] -> logits, `client` the client whose model it is. The folder is made if it is
    missing; files of an earlier export are replaced. Raises `UnalikeError` where torch.export cannot follow the model, as where
    its `forward` asks for values in Python, or the exported model predicts something else.
    """
    path = Path(folder)
    task = find_task(config["data"]["task"])
    classes = config["data"].get("classes")
    like = _example(predict, config["data"]["input_shape"])

    # The program comes first: no folder is left behind where torch cannot follow the model.
    program = _program(_Probabilities(predict, task), like)
    path.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():  # about weights that are rows of one tensor
        warnings.simplefilter("ignore", UserWarning)
        torch.export.save(program, path / MODEL_FILE)

    facts: dict[str, Any] = {
        "task": task.spec,
        "classes": classes,
        "output": _output(task, classes),
        "input": _described(like),
    }
    if encoding is not None:
        facts["table"] = _table(encoding)
    copied = {name: config[name] for name in COPIED_SETTINGS if name in config}
    facts["run"] = {"client": client} | copied
    write_bytes(
        path / FACTS_FILE, (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode()
    )
    template = jinja2.Template(
        SCRIPT_TEMPLATE.read_text("utf-8"), trim_blocks=True, keep_trailing_newline=True
    )
    script = template.render(encoding=encoding, several_inputs=not is_one_tensor(like))
    write_bytes(path / SCRIPT_FILE, script.encode())
    return path


def _output(task: Task, classes: Sequence[str] | None) -> str:
    """The output of the exported model, in words."""
    if classes is not None:
        return "probabilities [n, classes]"
    if task.predicts_arrays:
        return "predictions [n, ...] in the shape of the labels"
    is_one_number = task.label_dimensions == 0 or task.label_shape is not None
    return "predictions [n]" if is_one_number else "predictions [n, labels]"


class _Probabilities(nn.Module):
    """A model with the probabilities of its classes, or its predictions, as output."""

    def __init__(self, predict: Predict, task: Task):
        super().__init__()
        self.predict = predict
        self.task = task

    def forward(self, x: Inputs) -> Tensor:
        logits = self.predict(x)
        chances = self.task.probabilities(logits)
        return self.task.predict(logits) if chances is None else chances


def _described(like: Inputs) -> Any:
    """The inputs of the exported model, in plain values: shape and type of one tensor, or of each tensor of a tree."""
    if not is_one_tensor(like):
        return layout_of(like)
    return {"shape": list(like.shape[1:]), "dtype": str(like.dtype).removeprefix("torch.")}


def _example(predict: Predict, layout: Any) -> Inputs:
    """Two samples of zeros, of the type that the model takes: numbers or tokens."""
    x = zeros_of(layout, 2)
    if not is_one_tensor(x):
        return x
    try:
        with torch.no_grad():
            predict(x)
    except (RuntimeError, TypeError):  # an embedding takes whole numbers alone
        return x.long()
    return x


def _program(module: nn.Module, like: Inputs) -> torch.export.ExportedProgram:
    """The module as a program of torch.export for any number of samples, compared with the module on some of them."""
    samples = {n: map_inputs(partial(_unlike_samples, n), like) for n in COMPARED_BATCHES}
    try:
        with torch.no_grad():
            # first: a module may try something in its first call
            wanted = {n: module(x) for n, x in samples.items()}
            count = torch.export.Dim("samples")
            first_dimension: Any = {0: count}
            any_number = (map_inputs(lambda _: first_dimension, like),)
            program = torch.export.export(module.eval(), (samples[2],), dynamic_shapes=any_number)
            found = {n: program.module()(x) for n, x in samples.items()}
    except FAILURES as error:
        lines = [line.strip() for line in str(error).split("\n")]
        why = next((line for line in lines if line), type(error).__name__)
        raise UnalikeError(
            f"torch.export cannot follow the model: {why[:200]}. Expected a forward of tensor operations for any number of "
            "samples: no `if` or `for` that depends on values, no .item(), and x.shape[0] instead of len(x); the weights alone are "
            "in model.safetensors of the run"
        ) from error
    for n, values in wanted.items():
        if not torch.allclose(found[n], values, OUTPUT_TOLERANCE, OUTPUT_TOLERANCE):
            difference = float((found[n] - values).abs().max())
            raise UnalikeError(
                f"the exported model predicts something else for {n} samples (by {difference:.2g}); "
                "expected a forward that depends on its parameters, its buffers and its input alone"
            )
    program.example_inputs = None
    return program


def _unlike_samples(count: int, like: Tensor) -> Tensor:
    """So many samples of zeros; numbers have other values in each, which a model that mixes samples up would show."""
    x = like.new_zeros(count, *like.shape[1:])
    if not x.is_floating_point():
        return x
    return x + torch.linspace(-1, 1, x.numel()).reshape(x.shape)


def _table(encoding: Encoding) -> dict[str, Any]:
    """The encoding of rows as plain values, with what a reader of CSV files must know."""
    facts = {"columns": encoding.names, "missing": list(MISSING_TEXTS), **asdict(encoding)}
    if encoding.words is not None:
        return facts | {"pattern": WORD_PATTERN.pattern, "padding": PADDING, "unknown": UNKNOWN}
    for category, written in zip(encoding.categories, facts["categories"], strict=True):
        written["truth"] = category.truth
    return facts | {"missing_category": MISSING}
