"""Parameter-skew aggregation (FedSA and FedPake): clients that agree on a parameter are grouped before it is averaged.

One tensor of M parameters over K clients, W [K, M]:

    mu = mean_k W, D = (W - mu)^2, sd = sqrt(mean_k D)
    cv = sd / |mu|, min-max normalized over the tensor         coefficient of variation
    cv <= threshold: low, the new value is mu;  cv > threshold: high, and then for each such parameter m

      client        1    2    3    4    5    6      (K = 6)
      W            .10  .11  .30  .31  .70  .72     mu = .373
      D            .07  .07  .01  .00  .11  .12
      micro-class   3    3    1    1    4    4      of C = `micro` classes of equal width between min D and max D
      macro-class   1    1    2    2    3    3      of up to S = `macro` clusters of clients, see below
      mean of W    [.105  ] [.305  ] [.710  ]
      new value = alpha_1 * .105 + alpha_2 * .305 + alpha_3 * .710

The macro-classes are the same for all high parameters of the tensor: they cluster clients by the share of high parameters on
which their micro-classes agree. alpha_s belongs to a parameter and a macro-class s. It counts the high parameters that have the
same modal micro-class in s as this one, so that frequent patterns weigh more.

The two papers describe one method with different typographic slips, and none of its readings is without fault:

- `LiteralPake` and `LiteralSA`, as printed, lose the scale of the model and weigh clients by their order.
- `NormalizedSkew`, the default of both names, keeps the scale. It is the plain mean on all but about .3 % of the parameters.
- `ConsistentSkew` takes the absolute value from one paper and the weights from the other one.
- `ScaledSkew` also scales the squared deviations, and gives each group of similar clients the same weight.

Left out are other scalings of squared deviations: by the largest or the mean one of the parameter, to their ranks or logarithms.
"""

from abc import abstractmethod
from types import ModuleType
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from unalike._utils.errors import warn
from unalike._utils.validated import validated
from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.update_spread import column_moments
from unalike.core.views import Cohort, PartLookup, ServerView
from unalike.core.work import Work
from unalike.methods.notes import listening, note
from unalike.methods.part import Setup, part
from unalike.methods.parts.skew_classes import (
    CLASS_DTYPE,
    SkewDecision,
    agreements,
    classes_in_range,
    cluster,
    modal_class,
    places_of,
    random_macro_classes,
    weights_by_client,
)
from unalike.methods.roles import Aggregator
from unalike.methods.search_space import LinearRange

Assignment = Literal["measured", "random_micro", "random_macro", "random_modal", "random"]
Scope = Literal["tensor", "layer", "model"]
Normalization = Literal["range", "rank"]
RANDOM_MICRO = ("random_micro", "random")
"""Assignments that draw the micro-classes at random."""
RANDOM_MACRO = ("random_macro", "random")
"""Assignments that draw the macro-classes at random."""


@validated
class ParameterSkew(Aggregator):
    """All readings of the papers have these parameters:

    - threshold: a parameter is high if its normalized coefficient of variation exceeds this; 1 or more gives the plain mean.
    - normalize_by: normalize it to [0, 1] by its range over the tensor, as printed, or to its rank: the share of parameters that
        have a smaller one. By rank, threshold = .2 makes 80 % of the parameters high.
    - similarity: least similarity for a client to join a macro-class once there are `macro` of them.
    - micro, macro: numbers C of micro-classes and S of macro-classes.
    - weighted: multiply alpha_s by the sum of the weights in macro-class s.
    - scope: normalize and cluster by tensor, by layer (weights with bias and norm, as `lws` does), or over the model as one tensor.
    - assignment: the papers' ablation: micro-classes, macro-classes or both ("random") are drawn at random in every round from the
        seed, each class with the same probability, instead of measured. "random_modal" draws the modal micro-class of each
        macro-class, so that the printed alphas sum to about 1 / C.
    """

    threshold: Annotated[NonNegativeFloat, LinearRange(0.05, 0.5)] = 0.2
    similarity: Annotated[float, LinearRange(0, 0.8)] = 0.2
    micro: PositiveInt = 4
    macro: PositiveInt = 4
    weighted: bool = False
    scope: Scope = "tensor"
    assignment: Assignment = "measured"
    normalize_by: Normalization = "range"

    pairs_first: ClassVar[bool]
    """On a tie, two single clients form a new macro-class before one joins an existing one; False: the other way round."""
    compares_all: ClassVar[bool]
    """The similarity of clients counts all parameters; False: the high ones only."""

    def variation(self, sd: Tensor, mu: Tensor) -> Tensor:
        """Coefficient of variation sd / |mu| [M] from sd [M] and mu [M]; mu holds no 0."""
        return sd / mu.abs()

    def shortfall(self, setup: Setup) -> str:
        k = setup.participants
        if self.threshold < 1 and k < self.macro:
            return (
                f"{k} clients take part in a round, fewer than macro={self.macro} classes of them"
            )
        return ""

    @abstractmethod
    def micro_classes(self, d: Tensor, low: Tensor, top: Tensor) -> Tensor:
        """Micro-classes 1..C, or 0 for none, of squared deviations d [K, M]; `low` and `top` are the extremes over the tensor."""

    @abstractmethod
    def alpha(self, counts: Tensor, modal: Tensor, high: int, share: Tensor) -> Tensor:
        """alpha [S, H] of the macro-classes at the high parameters.

        From the number of high parameters with each modal micro-class, `counts` [S, C + 1], the `modal` micro-class of each
        high parameter [S, H], their number H, and the sum of the weights in each macro-class `share` [S], or ones.
        """

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        generator = server.generator
        loops = tree.column_loops(cohort.update)
        combined: Tree = {}
        high = 0
        for names in tree.scopes(self.scope, server.settings.model.params, cohort.update):
            params = tree.only(server.params, names)
            w = tree.flatten(params)
            u = tree.flatten(tree.only(cohort.update, names), rows=len(cohort.ids))
            mean, decision = self._decide_on(w, u, weights, generator, loops)
            self._note(decision, len(w), weights, names[0])
            combined |= tree.unflatten(decision.applied(w, u, mean, weights), params)
            high += len(decision.high)
        count = sum(value.numel() for value in combined.values())
        note("high", high / max(1, count), part=self.name)
        return tree.only(combined, list(cohort.update))

    def decide(
        self, params: Tree, update: Tree, weights: Tensor, generator: torch.Generator | None = None
    ) -> dict[str, SkewDecision]:
        """Decide on each single parameter: its classes, its clusters of clients, and their weights.

        From the shared parameters w [*shape], the updates w_k - w [K, *shape] and the weights p_k [K]; `generator` draws the
        random classes of `assignment`. Returns name of the tensor (of the first one of a layer or model, with that scope) ->
        its decision.
        """
        generator = generator or torch.Generator()
        decisions = {}
        for names in tree.scopes(self.scope, params, update):
            w = tree.flatten(tree.only(params, names))
            u = tree.flatten(tree.only(update, names), rows=len(weights))
            _, decisions[names[0]] = self._decide_on(w, u, weights, generator)
        return decisions

    def _decide_on(
        self,
        w: Tensor,
        u: Tensor,
        weights: Tensor,
        generator: torch.Generator,
        loops: ModuleType | None = None,
    ) -> tuple[Tensor, SkewDecision]:
        """The mean [M] of the clients' updates u [K, M] of the parameters w [M], and what becomes of the high ones."""
        mean, sd, low, top = column_moments(u, weights.to(u.dtype), loops)
        high = self._is_high(sd, w + mean).nonzero().squeeze(1)
        if len(u) == 1 or not len(high):
            return mean, SkewDecision(high)
        # micro-classes are made at the high parameters alone, of which there are few
        micro = self._micro((u.index_select(1, high) - mean[high]).square_(), low, top, generator)

        # macro-classes are the same for all of them, so they follow from how often clients agree
        if self.assignment in RANDOM_MACRO:
            macro = random_macro_classes(len(u), self.macro, generator)
        else:
            compared = micro
            if self.compares_all and self.assignment not in RANDOM_MICRO:
                compared = self._micro_everywhere(u, mean, low, top)
            macro = self._macro_classes(self._similarity(compared, len(high)))

        alpha = self._alpha(micro, macro, weights.to(u.dtype), generator) if macro else None
        return mean, SkewDecision(high, micro, macro, alpha)

    def _micro_everywhere(self, u: Tensor, mean: Tensor, low: Tensor, top: Tensor) -> Tensor:
        """Measured micro-classes at all parameters, not the high ones alone, [K, M]; block by block, as u is large."""
        blocks = []
        for block in tree.blocks(u):
            d = (u[:, block] - mean[block]).square_()
            blocks.append(self.micro_classes(d, low, top))
        return torch.cat(blocks, 1)

    def _note(self, decision: SkewDecision, count: int, weights: Tensor, layer: str) -> None:
        """Note the share of high parameters among `count`, and means over them."""
        note("high", len(decision.high) / max(1, count), part=self.name, layer=layer)
        if not listening() or decision.micro is None:
            return
        note("micro_class", decision.micro.float().mean(1), part=self.name, layer=layer)
        note("macro_class", places_of(decision.macro, len(weights)), part=self.name, layer=layer)
        if decision.alpha is None:
            return
        note("alpha_sum", decision.alpha.sum(0).mean(), part=self.name, layer=layer)
        alpha = weights_by_client(decision.alpha.mean(1), decision.macro, weights)
        note("alpha", alpha, part=self.name, layer=layer)

    def _micro(self, d: Tensor, low: Tensor, top: Tensor, generator: torch.Generator) -> Tensor:
        """Micro-classes of the squared deviations d [K, H] at the high parameters."""
        if self.assignment not in RANDOM_MICRO:
            return self.micro_classes(d, low, top)
        return torch.randint(1, self.micro + 1, d.shape, generator=generator).to(
            d.device, CLASS_DTYPE
        )

    def _is_high(self, sd: Tensor, mu: Tensor) -> Tensor:
        """Whether each parameter is high, [M]. With mu = 0, where cv is undefined, it is high if clients differ at all."""
        if self.threshold >= 1:
            return torch.zeros_like(mu, dtype=torch.bool)
        defined = mu != 0
        if defined.all():
            return self._exceeds_threshold(self.variation(sd, mu))
        high = sd > 0
        high[defined] = self._exceeds_threshold(self.variation(sd[defined], mu[defined]))
        return high

    def _exceeds_threshold(self, cv: Tensor) -> Tensor:
        """Whether the normalized coefficient of variation exceeds the threshold; nowhere if it is constant."""
        if not cv.numel() or not cv.max() > cv.min():
            return torch.zeros_like(cv, dtype=torch.bool)
        if self.normalize_by == "rank":
            rank = int(self.threshold * len(cv)) + 1
            return cv > cv.kthvalue(rank).values
        low = cv.min()
        return (cv - low).div_(cv.max() - low) > self.threshold

    def _similarity(self, classes: Tensor, high: int) -> Tensor:
        """Similarity of clients a and b, [K, K]: 1 - (number of parameters whose micro-classes differ) / H."""
        differ = classes.shape[1] - agreements(classes, self.micro)
        # float32 would make similarities differ by more than TIE
        return 1 - tree.exact(differ) / high

    def _macro_classes(self, similarity: Tensor) -> list[list[int]]:
        """The macro-classes as lists of clients, from the similarity [K, K]."""
        return cluster(
            np.asarray(similarity.tolist()),
            most=self.macro,
            least_similarity=self.similarity,
            pairs_first=self.pairs_first,
        )

    def _alpha(
        self, micro: Tensor, macro: list[list[int]], weights: Tensor, generator: torch.Generator
    ) -> Tensor:
        """alpha [S, H] from the micro-classes [K, H] at the high parameters."""
        modal = torch.stack([modal_class(micro[members], self.micro) for members in macro])
        if self.assignment == "random_modal":
            modal = torch.randint(1, self.micro + 1, modal.shape, generator=generator).to(modal)
        counts = torch.stack([m.bincount(minlength=self.micro + 1) for m in modal])
        share = torch.stack([weights[members].sum() for members in macro])
        if not self.weighted:
            share = torch.ones_like(share)
        return self.alpha(counts, modal, micro.shape[1], share)


@part
class NormalizedSkew(ParameterSkew):
    """cv = sd / |mu|; micro-classes of D min-max normalized over the tensor; alphas normalized to sum 1 over the macro-classes.

    It keeps the scale of the model. threshold >= 1 is uniform FedAvg, and so is normalize_by="range" on all but about .3 % of the
    parameters, because a few with mu near 0 have by far the largest cv; `record="server"` notes the share of each tensor as `high`.
    """

    pairs_first: ClassVar[bool] = False
    compares_all: ClassVar[bool] = False

    def check(self, method: PartLookup, work: Work) -> None:
        if self.normalize_by == "range" and self.threshold < 1:
            warn(
                f"{self.name} (fedsa, fedpake) equals uniform FedAvg on nearly all parameters: about .3 % are high; "
                "record='server' notes the share in this run, and normalize_by='rank' makes 1 - threshold of them high",
            )

    def micro_classes(self, d: Tensor, low: Tensor, top: Tensor) -> Tensor:
        return classes_in_range(d, low, top, self.micro)

    def alpha(self, counts: Tensor, modal: Tensor, high: int, share: Tensor) -> Tensor:
        alpha = counts.gather(1, modal) * share[:, None]
        total = alpha.sum(0)
        return torch.where(total > 0, alpha / total, 1 / len(alpha))


class LiteralSkew(ParameterSkew):
    """Micro-classes as printed: class i for (i-1)/C < D <= i/C of the raw D; none (alpha 0) for D = 0 and D > 1.

    alpha = count / `divisor`, count being the number of high parameters with the same modal micro-class in the macro-class.
    """

    pairs_first: ClassVar[bool] = True
    origin: ClassVar[str] = "the rule as printed"
    weighs: ClassVar[str] = "clients by their order"

    def check(self, method: PartLookup, work: Work) -> None:
        warn(
            f"{self.name} is {self.origin}, which can lose the scale of the model and weighs {self.weighs}; "
            "variant='normalized' does neither",
        )

    def micro_classes(self, d: Tensor, low: Tensor, top: Tensor) -> Tensor:
        raw = (self.micro * d).ceil()
        return torch.where(raw <= self.micro, raw, 0).to(CLASS_DTYPE)

    def divisor(self, high: int) -> int:
        """Divisor of the counts of `high` parameters: S H (FedPake, eq. 11)."""
        return self.macro * high

    def alpha(self, counts: Tensor, modal: Tensor, high: int, share: Tensor) -> Tensor:
        alpha = counts.gather(1, modal) * share[:, None] / self.divisor(high)
        return torch.where(modal > 0, alpha, 0.0)


@part
class LiteralPake(LiteralSkew):
    """FedPake as printed: cv = sd / mu without absolute value, clients compared at all parameters, alpha = count / (S H).

    The sum of the alphas is at most 1. Where it is less, the high parameters shrink in every round:

    - where micro-classes differ;
    - where S > K / 2: only floor(K / 2) macro-classes form, and each counts 1 / S. Nine clients and S = 8 give the sum 1/2;
    - where D = 0 for all clients, because none changes the parameter: it is in no micro-class, and if it is high, which cv = 0
      allows where other parameters have mu < 0, it becomes 0.

    Where all micro-classes are alike, as in most layers, ties decide: all macro-classes but the first one have two clients each,
    and the first one has all others.
    """

    compares_all: ClassVar[bool] = True

    def variation(self, sd: Tensor, mu: Tensor) -> Tensor:
        return sd / mu


@part
class LiteralSA(LiteralSkew):
    """FedSA as printed: cv = sd / |mu|, clients compared at high parameters, alpha = count / (S C), which grows with H."""

    name = "literal_sa"
    compares_all: ClassVar[bool] = False

    def divisor(self, high: int) -> int:
        return self.macro * self.micro


@part
class ConsistentSkew(LiteralSkew):
    """The one reading that fits both papers: cv = sd / |mu| (FedSA, eq. 4), the rest as FedPake prints it (eq. 6, 8 and 11).

    With normalize_by="range" few parameters are high. Where micro-classes of all clients are alike, ties decide the
    macro-classes, as in `LiteralPake`, and the alphas sum to 1 if there are S of them.
    """

    compares_all: ClassVar[bool] = True
    origin: ClassVar[str] = (
        "a reading that neither paper prints (|mu| from FedSA, weights from FedPake)"
    )


@part
class ScaledSkew(LiteralSkew):
    """`ConsistentSkew` with squared deviations that are min-max scaled over the tensor before they are divided into micro-classes.

    Micro-classes then differ, and clients with similar data find together. Each of the S macro-classes has a weight near 1 / S,
    however many clients it has: groups of clients count alike. Clients are compared at the high parameters, as in FedSA, so that
    their similarity is a share. normalize_by="rank" makes it act on 1 - threshold of the parameters, which then lose the scale of
    the model: where micro-classes differ, the alphas sum to less than 1.
    """

    compares_all: ClassVar[bool] = False
    origin: ClassVar[str] = (
        "a reading that neither paper prints (`consistent` with scaled squared deviations)"
    )
    weighs: ClassVar[str] = "groups of similar clients alike"

    def micro_classes(self, d: Tensor, low: Tensor, top: Tensor) -> Tensor:
        return classes_in_range(d, low, top, self.micro)
