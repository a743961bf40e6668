"""ComBat over the clients of a federation: their inputs lose what their site adds, then a method trains."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from unalike.core import tree
from unalike.core.inputs import one_tensor
from unalike.core.model import Model
from unalike.core.types import Context, Output, Tree
from unalike.core.views import ServerState
from unalike.data.harmonization import (
    Harmonization,
    SiteEffects,
    SiteSums,
    columns_to_correct,
    estimate,
    site_sums,
)
from unalike.methods.client_query import ClientQuery, QueryInputs, client_query
from unalike.methods.method import Method
from unalike.methods.parts.input_correction import InputCorrection
from unalike.methods.plan import PlanInputs, PlanSteps, QueryStep, Stage
from unalike.methods.plans.staged_plan import (
    MethodText,
    StagedPlan,
    of_samples_alone,
    staged_plan,
)


@client_query
class HarmonizationSums(ClientQuery):
    """Means and sums of products of the training samples, about the means: the fields of `SiteSums`.

    `width` is the number of columns of the samples.
    """

    name: ClassVar[str] = "harmonization_sums"
    needs_model: ClassVar[bool] = False

    width: PositiveInt
    columns: tuple[NonNegativeInt, ...] | None = None
    kept: tuple[NonNegativeInt, ...] = ()

    def answer(self, inputs: QueryInputs) -> Tree:
        rows = [one_tensor(b.x, self.name).cpu() for b in inputs.batches]
        x = torch.cat(rows) if rows else torch.zeros(0, self.width)
        columns = columns_to_correct(x.shape[1:], self.columns, self.kept)
        return site_sums(x, columns, self.kept)._asdict()

    def why_impossible(self, answer: Tree, samples: int) -> str:
        sums = SiteSums(**answer)
        if int(sums.rows) != samples:
            return f"sums of {int(sums.rows)} samples; expected {samples}"
        return "a negative sum of squares" if (sums.residual < 0).any() else ""


class HarmonizedModel(nn.Module):
    """`module` of samples [B, D] without the effects of their site, which are a fact of the client."""

    def __init__(self, module: nn.Module, common: Harmonization):
        super().__init__()
        self.coefficients = nn.Parameter(common.coefficients, requires_grad=False)
        self.sigma = nn.Parameter(common.sigma, requires_grad=False)
        self.module = module
        self.columns = common.columns
        self.kept = common.kept

    @property
    def head(self) -> Tensor | nn.Module:
        """The head of the module."""
        return self.module.head

    @property
    def projection(self) -> Tensor | nn.Module:
        """The projection of the module (MOON)."""
        return self.module.projection

    def forward(self, x: Tensor, context: Context) -> Tensor | Output:
        """The output of the module for the corrected samples."""
        common = Harmonization(self.columns, self.kept, self.coefficients, self.sigma)
        effects = SiteEffects(**context[InputCorrection.name])
        result: Tensor | Output = self.module(common.corrected(x, effects))
        return result


@staged_plan
class Combat(StagedPlan):
    """ComBat (Johnson et al. 2007), then `method`: inputs lose the shift and the scale that their site gives to columns.

    Every client sends sums of its training samples once; the server makes of them what all sites have in common, and sends that
    back. With it each client finds the effects of its own site, as ComBat does on the pooled samples, and takes them out of all
    its samples, in training and evaluation. `kept` are the positions of columns whose effect on others stays, such as the age;
    `columns` those that are corrected, by default all others.

    A client with fewer than two training samples that differ keeps its inputs. Samples of the server come from no site, so the
    protocol `server` is refused; predictions need the training samples of the client whose site measured. Limit: without effects of
    sites in the inputs it is nearly `method`.
    """

    columns: tuple[NonNegativeInt, ...] | None = None
    kept: tuple[NonNegativeInt, ...] = ()
    method: MethodText = "fedavg"

    def stages(self, plan_inputs: PlanInputs) -> PlanSteps:
        of_samples_alone(self, plan_inputs.model)
        columns = columns_to_correct(plan_inputs.input_shape, self.columns, self.kept)
        [width] = plan_inputs.input_shape
        method = Method.parse(self.method) + InputCorrection(self.columns, self.kept)

        query = HarmonizationSums(width, self.columns, self.kept)
        answers = yield QueryStep("sums", query)
        rows = range(len(answers.clients))
        sums = [SiteSums(**tree.row(answers.tree, row)) for row in rows]
        common = estimate(sums, width, columns, self.kept)

        given = plan_inputs.model
        module = HarmonizedModel(given.module(given.params, given.buffers), common)
        model = Model(module.to(next(iter(given.params.values()))))
        start = {"all": ServerState(0, model.params, model.buffers, {})}
        yield Stage("train", method, plan_inputs.rounds, model=model, start=start)
