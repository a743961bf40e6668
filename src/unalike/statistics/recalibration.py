"""Recalibration of the risks of a model on the samples of a place where it was not trained."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field, FiniteFloat

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import write_bytes
from unalike._utils.validated import validated
from unalike.core.inputs import Inputs
from unalike.core.tasks.task import Task
from unalike.metrics.scoring import Predict
from unalike.statistics.risks import MIN_SAMPLES_OF_CLASS, SMALLEST_RISK, Risks

LEAST_NEW_RISK = 1e-12
"""Recalibrated risks closer to 0 or 1 count as this."""


@validated
class Recalibration:
    """logit(new risk) = intercept + slope * logit(risk) (Cox, 1958; Steyerberg, 2019, section 20.2).

    Intercept 0 and slope 1 leave risks as they are. The order of samples, and so the area under the ROC curve, stays the same.
    `positive` names the class whose risk it is, `data` the table, with `samples` of which `positives` are of this class, and
    `model` is the hash of the model's configuration. Raises `InvalidValue` for numbers that are not finite, and a slope of 0 or
    below, which would reverse the order.
    """

    intercept: FiniteFloat
    slope: Annotated[FiniteFloat, Field(gt=0)]
    positive: str
    data: str
    samples: int
    positives: int
    model: str

    @classmethod
    def fit(cls, risks: Risks, positive: str, data: str, model: str) -> "Recalibration":
        """The logistic regression of the outcomes on the logits of the risks.

        Raises `UnalikeError` for fewer than ten samples of a class, and where the fit is not finite or has no positive slope.
        """
        count = len(risks.outcome)
        positives = int(risks.outcome.sum())
        if not risks.enough:
            raise UnalikeError(
                f"{data} has {count} samples, {positives} of them {positive!r}: expected at least {MIN_SAMPLES_OF_CLASS} of "
                "each class for a recalibration"
            )
        intercept, slope = risks.recalibration()
        if math.isnan(slope) or slope <= 0:
            found = "no finite fit" if math.isnan(slope) else f"a slope of {slope:.3g}"
            raise UnalikeError(
                f"the risks cannot be recalibrated on {data}: found {found}, expected a slope above 0; there the model does "
                "not tell the classes apart as it should, so do not use it there"
            )
        return cls(intercept, slope, positive, data, count, positives, model)

    @classmethod
    def load(cls, path: Path) -> "Recalibration":
        """Read a file that `save` wrote. Raises `UnalikeError` for another one."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise UnalikeError(
                f"{path} is no recalibration ({error}); write one with `unalike evaluate FOLDER --data TABLE --recalibrate FILE`"
            ) from None

    def save(self, path: Path) -> None:
        """Write it as JSON. Raises `UnalikeError` if the file exists or cannot be written."""
        if path.exists():
            raise UnalikeError(f"{path} exists; remove it, or give another file")
        write_bytes(path, json.dumps(asdict(self), indent=1).encode() + b"\n")

    def check(self, positive: str, model: str, path: Path) -> None:
        """Raise `UnalikeError` if it was fitted for another class or another model."""
        if positive != self.positive:
            raise UnalikeError(
                f"{path} recalibrates the risk of {self.positive!r}; the model gives that of {positive!r}"
            )
        if model != self.model:
            raise UnalikeError(
                f"{path} was fitted with another model; write one for this model: `unalike evaluate FOLDER --data TABLE "
                "--recalibrate FILE`, with the same --client"
            )

    def after(self, predict: Predict, task: Task) -> Predict:
        """The predictions of a model of two classes, with recalibrated risks."""

        def recalibrated(x: Inputs) -> torch.Tensor:
            logits = predict(x)
            probabilities = task.probabilities(logits)
            assert probabilities is not None
            risk = probabilities[:, 1].cpu().double().clip(SMALLEST_RISK, 1 - SMALLEST_RISK)
            new_risk = torch.sigmoid(self.intercept + self.slope * torch.logit(risk))
            # a steep slope may round to 0 and 1, which have no logit
            new_risk = new_risk.clip(LEAST_NEW_RISK, 1 - LEAST_NEW_RISK)
            new_logits = task.logits_of(torch.stack([1 - new_risk, new_risk], 1))
            assert new_logits is not None
            return new_logits.to(logits.dtype)

        return recalibrated
