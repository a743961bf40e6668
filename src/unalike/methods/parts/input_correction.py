"""ComBat's half of a client: the effects of its site on its inputs, which its model takes out of them."""

from typing import ClassVar

import torch
from pydantic import NonNegativeInt

from unalike.core.inputs import one_tensor
from unalike.core.types import Batch, PartTrees, Tree
from unalike.core.views import StageSettings
from unalike.data.harmonization import (
    Harmonization,
    SiteEffects,
    columns_to_correct,
    site_sums,
)
from unalike.methods.part import Setup, part
from unalike.methods.roles import Conditioner

COEFFICIENTS = "coefficients"
SIGMA = "sigma"
"""Names of the frozen parameters with which the model of `combat` holds what all sites have in common."""


@part
class InputCorrection(Conditioner):
    """The shift and the scale of the client's site, [D] each, from its training samples and what all sites have in common.

    It is for the model of `combat`, which takes them out of the samples. A client with fewer than two samples that differ has
    none, nor has any client of another model: shift 0, scale 1. They never leave the client. Source: Johnson et al. 2007.
    """

    name: ClassVar[str] = "input_correction"

    columns: tuple[NonNegativeInt, ...] | None = None
    kept: tuple[NonNegativeInt, ...] = ()

    def facts(self, data: Batch, settings: StageSettings) -> PartTrees:
        params = settings.model.params
        if COEFFICIENTS not in params:
            return super().facts(data, settings)
        x = one_tensor(data.x, self.name)
        columns = columns_to_correct(x.shape[1:], self.columns, self.kept)
        common = Harmonization(columns, self.kept, params[COEFFICIENTS], params[SIGMA])
        effects = common.effects(site_sums(x, columns, self.kept))
        return {self.name: effects._asdict()}

    def describe(self, data: Batch, outputs: int | None) -> Tree:
        """No effects: what the sites have in common is not known."""
        x = one_tensor(data.x, self.name).flatten(1)
        none = torch.zeros(x.shape[1], device=x.device)
        return SiteEffects(shift=none, scale=none + 1)._asdict()

    def shortfall(self, setup: Setup) -> str:
        if COEFFICIENTS in setup.model.params:
            return ""
        return "the model corrects no inputs; that of the plan combat does"
