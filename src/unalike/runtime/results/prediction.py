"""New samples, and their predictions: a table of the prediction and for classes the probability of each, or an array of masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from unalike._utils.errors import UnalikeError
from unalike.core.inputs import Inputs, layout_of, map_inputs
from unalike.core.tasks.task import TWO_CLASSES, Task
from unalike.data import array_checks
from unalike.data.columns import named_once, require_columns
from unalike.data.dataset import Dataset
from unalike.data.sources.load import load, table_at
from unalike.data.sources.table_files import new_rows, opened
from unalike.data.table_encoding import Encoding
from unalike.metrics.scoring import Predict, outputs

if TYPE_CHECKING:
    import pandas as pd

PREDICTION = "prediction"
"""The column of the predictions."""
PROBABILITY = "probability_"
"""The start of the names of the columns with the probabilities of the classes."""


def shared_model_note(config: Mapping[str, Any]) -> str:
    """A note on predictions of the shared model of a run where clients have models of their own."""
    own = "the run's clients have models of their own: --client NAME, in Python client='NAME', takes one"
    if "federation" in config:
        own = "each site has a model of its own: there, `unalike evaluate` and `unalike predict` with the site's folder take it"
    return f"this is the shared model, the only one for a client that never trained; {own}"


@dataclass(frozen=True)
class NewSamples:
    """Samples to predict: x [n, ...], their index (None: 0, 1, ...), and columns that go along into the table of predictions.

    `targets` name the columns that are predicted, where these are several.
    """

    x: Inputs
    index: Any = None
    kept: dict[str, Any] = field(default_factory=dict)
    targets: Sequence[str] = ()

    def to(self, device: torch.device) -> NewSamples:
        """The same on a device."""
        return replace(self, x=map_inputs(lambda t: t.to(device), self.x))

    def predictions(
        self,
        predict: Predict,
        task: Task,
        classes: Sequence[str] | None,
        threshold: float | None = None,
    ) -> pd.DataFrame | np.ndarray:
        """The predictions as `table` makes them, or as an array [n, ...] where they are no cells of a table, such as masks."""
        if not task.predicts_arrays:
            return self.table(predict, task, classes, threshold)
        if threshold is not None:
            raise _no_threshold(threshold, task)
        arrays = [task.predict(logits) for logits in outputs(predict, self.x)]
        return torch.cat(arrays).numpy(force=True)

    def table(
        self,
        predict: Predict,
        task: Task,
        classes: Sequence[str] | None,
        threshold: float | None = None,
    ) -> pd.DataFrame:
        """The table of predictions: the kept columns, `prediction`, and `probability_CLASS` for each class.

        Of classes the prediction is the name, of regression a number in the unit of the target, of other tasks what they say. Of
        several labels or amounts there is a column `prediction_TARGET` for each, or `prediction_0`, ... without names. With a
        `threshold` it is the second of two classes where that one's probability is at least as large. Raises `UnalikeError` for a
        threshold without two classes.
        """
        import pandas as pd

        logits = torch.cat([*outputs(predict, self.x)])
        predicted = task.predict(logits).numpy(force=True)
        probabilities = task.probabilities(logits)
        if threshold is not None:
            if probabilities is None or not task.offers(TWO_CLASSES):
                raise _no_threshold(threshold, task)
            predicted = (probabilities[:, 1] >= threshold).numpy(force=True)
        columns = self.kept | self._by_target(predicted)
        if probabilities is not None:
            names = list(classes or map(str, range(probabilities.shape[1])))
            columns[PREDICTION] = [names[int(k)] for k in predicted]
            for k, name in enumerate(names):
                columns[PROBABILITY + name] = probabilities[:, k].numpy(force=True)
        table = pd.DataFrame(columns, index=self.index)
        return table.rename_axis(index="sample" if self.index is None else None)

    def _by_target(self, predicted: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of predictions [n], or [n, L] of several targets."""
        if predicted.ndim == 1:
            return {PREDICTION: predicted}
        names = self.targets or range(predicted.shape[1])
        return {
            f"{PREDICTION}_{name}": column for name, column in zip(names, predicted.T, strict=True)
        }


def _no_threshold(threshold: float, task: Task) -> UnalikeError:
    return UnalikeError(
        f"found a threshold of {threshold:g} for a task of {task.name} that has not two classes; leave it out"
    )


def new_samples(
    data: Any,
    encoding: Encoding | None,
    layout: Any,
    keep: Sequence[str] = (),
    data_dir: str | Path | None = None,
    date: Sequence[str] = (),
    **dialect: str | None,
) -> NewSamples:
    """The samples to predict.

    The arguments are those of `Run.predict`, with the encoding of the run's table (None if its data was no table), the `layout_of`
    its samples, and of a file of a table the columns of `date` that it writes in its own way, and its `dialect` (see `opened`).

    Raises `UnalikeError` for a table that lacks columns, or where the run had none, and for samples of another
    shape.
    """
    keep = [keep] if isinstance(keep, str) else list(keep)
    if hasattr(data, "iloc"):
        return _rows(data, data.index, encoding, keep, "the table")
    if (
        isinstance(data, str | Path)
        and (path := table_at(str(data), data_dir)) is not None
        and encoding is not None
    ):
        frame = opened(path, encoding, keep, **dialect)
        return _rows(frame, None, encoding.dated(frame, date, path.name), keep, path.name)
    for name, value in ({"keep": keep, "date": list(date)} | dialect).items():
        if value:
            raise UnalikeError(
                f"found {name}={value!r} for data that is no table; leave it out: predictions keep the order of the samples"
            )
    if isinstance(data, str | Path):
        data = load(data, data_dir)
    x = data.merged()[0] if isinstance(data, Dataset) else array_checks.inputs(data, "the samples")
    if layout_of(x) != layout:
        raise UnalikeError(f"the samples have shape {layout_of(x)}, the model takes {layout}")
    return NewSamples(x)


def _rows(
    frame: Any, index: Any, encoding: Encoding | None, keep: list[str], where: str
) -> NewSamples:
    """The rows of a table."""
    if encoding is None:
        raise UnalikeError(
            f"{where} cannot be read: the run's data was no table; give the samples as an array"
        )
    frame = frame.rename(columns=str)
    named_once(list(frame), where)
    require_columns(frame, keep, where)
    x = new_rows(frame, encoding, where)
    for name in keep:
        if name == PREDICTION or name.startswith((f"{PREDICTION}_", PROBABILITY)):
            raise UnalikeError(
                f"{where}: the column {name!r} has the name of a column of predictions; rename it to keep it"
            )
    kept = {name: frame[name].to_numpy() for name in keep}
    targets = encoding.target if isinstance(encoding.target, tuple) else ()
    return NewSamples(x, index, kept, targets)
