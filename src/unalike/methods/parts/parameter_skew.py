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
from dataclasses import dataclass, field
from itertools import chain
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
from unalike.methods.roles import Aggregator
from unalike.methods.search_space import LinearRange

CLASS = torch.int16
"""Data type of micro-classes."""
TIE = 1e-12
"""Similarities closer than this are equal."""
Assignment = Literal["measured", "random_micro", "random_macro", "random_modal", "random"]
Scope = Literal["tensor", "layer", "model"]
Normalization = Literal["range", "rank"]
RANDOM_MICRO = ("random_micro", "random")
RANDOM_MACRO = ("random_macro", "random")


@dataclass(frozen=True)
class SkewDecision:
    """The decision of the rule on one tensor: on its high parameters, since all others take the mean.

    `high` [H] are the places of the high parameters in the flat tensor, `micro` [K, H] the micro-class of each client at each
    of them, 0 for none (None where no parameter is high), `macro` the clients of each macro-class, and `alpha` [S, H] the
    weight of each at each high parameter (None where there is no macro-class).
    """

    high: Tensor
    micro: Tensor | None = None
    macro: list[list[int]] = field(default_factory=list)
    alpha: Tensor | None = None

    def applied(self, w: Tensor, u: Tensor, mean: Tensor, weights: Tensor) -> Tensor:
        """The update [M]: `mean`, and at the high parameters sum_s alpha_s * (mean of macro-class s) - w, from u [K, M]."""
        if self.alpha is None:
            return mean
        values = w[self.high] + u.index_select(1, self.high)
        means = torch.stack(
            [_shares(weights[members]).to(values.dtype) @ values[members] for members in self.macro]
        )
        new = (self.alpha.to(values.dtype) * means).sum(0)
        return mean.index_copy(0, self.high, new - w[self.high])


@validated
class ParameterSkew(Aggregator):
    """All readings of the papers have these parameters:

    - threshold: a parameter is high if its normalized coefficient of variation exceeds this; 1 or more gives the plain mean.
    - normalize_by: normalize it to [0, 1] by its range over the tensor, as printed, or to its rank: the share of parameters that
        have a smaller one. By rank, threshold = .2 makes 80 % of the parameters high; by range it is about .3 %.
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
        k, lost = setup.participants, self.threshold < 1
        return (
            f"{k} clients take part in a round, fewer than macro={self.macro} classes of them"
            if lost and k < self.macro
            else ""
        )

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
        generator, loops, high = server.generator, tree.column_loops(cohort.update), 0
        moved: Tree = {}
        for names in tree.scopes(self.scope, server.settings.model.params, cohort.update):
            w, u = tree.only(server.params, names), tree.only(cohort.update, names)
            rows, old = tree.flatten(u, rows=len(cohort.ids)), tree.flatten(w)
            mean, decision = self._decided(old, rows, weights, generator, loops)
            self._note(decision, len(old), weights, names[0])
            moved |= tree.unflatten(decision.applied(old, rows, mean, weights), w)
            high += len(decision.high)
        note("high", high / max(1, sum(value.numel() for value in moved.values())), part=self.name)
        return tree.only(moved, list(cohort.update))

    def decide(
        self, params: Tree, update: Tree, weights: Tensor, generator: torch.Generator | None = None
    ) -> dict[str, SkewDecision]:
        """Decide on each single parameter: its classes, its clusters of clients, and their weights.

        From the shared parameters w [*shape], the updates w_k - w [K, *shape] and the weights p_k [K]; `generator` draws the
        random classes of `assignment`. Returns name of the tensor (of the first one of a layer or model, with that scope) ->
        its decision.
        """
        generator, decisions = generator or torch.Generator(), {}
        for names in tree.scopes(self.scope, params, update):
            rows = tree.flatten(tree.only(update, names), rows=len(weights))
            _, decisions[names[0]] = self._decided(
                tree.flatten(tree.only(params, names)), rows, weights, generator
            )
        return decisions

    def _decided(
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
        micro = self._micro((u.index_select(1, high) - mean[high]).square_(), low, top, generator)
        if self.assignment in RANDOM_MACRO:
            macro = _random_macro(len(u), self.macro, generator)
        else:
            compared = micro
            if (
                self.compares_all and self.assignment not in RANDOM_MICRO
            ):  # micro-classes at all parameters, [K, M]
                parts = (
                    self.micro_classes((u[:, at] - mean[at]).square_(), low, top)
                    for at in tree.blocks(u)
                )
                compared = torch.cat([*parts], 1)
            macro = self._macro_classes(self._similarity(compared, len(high)))
        alpha = self._alpha(micro, macro, weights.to(u.dtype), generator) if macro else None
        return mean, SkewDecision(high, micro, macro, alpha)

    def _note(self, decision: SkewDecision, count: int, weights: Tensor, layer: str) -> None:
        """Note the share of high parameters among `count`, and means over them."""
        note("high", len(decision.high) / max(1, count), part=self.name, layer=layer)
        if not listening() or decision.micro is None:
            return
        note("micro_class", decision.micro.float().mean(1), part=self.name, layer=layer)
        note("macro_class", _members(decision.macro, len(weights)), part=self.name, layer=layer)
        if decision.alpha is not None:
            note("alpha_sum", decision.alpha.sum(0).mean(), part=self.name, layer=layer)
            note(
                "alpha",
                _by_client(decision.alpha.mean(1), decision.macro, weights),
                part=self.name,
                layer=layer,
            )

    def _micro(self, d: Tensor, low: Tensor, top: Tensor, generator: torch.Generator) -> Tensor:
        """Micro-classes of the squared deviations d [K, H] at the high parameters."""
        if self.assignment in RANDOM_MICRO:
            return torch.randint(1, self.micro + 1, d.shape, generator=generator).to(
                d.device, CLASS
            )
        return self.micro_classes(d, low, top)

    def _is_high(self, sd: Tensor, mu: Tensor) -> Tensor:
        """Whether each parameter is high, [M]. With mu = 0, where cv is undefined, it is high if clients differ at all."""
        if self.threshold >= 1:
            return torch.zeros_like(mu, dtype=torch.bool)
        if (mu != 0).all():
            return self._above(self.variation(sd, mu))
        defined, high = mu != 0, sd > 0
        high[defined] = self._above(self.variation(sd[defined], mu[defined]))
        return high

    def _above(self, cv: Tensor) -> Tensor:
        """Whether the normalized coefficient of variation exceeds the threshold; nowhere if it is constant."""
        if not cv.numel() or not cv.max() > cv.min():
            return torch.zeros_like(cv, dtype=torch.bool)
        if self.normalize_by == "rank":
            return cv > cv.kthvalue(int(self.threshold * len(cv)) + 1).values
        low = cv.min()
        return (cv - low).div_(cv.max() - low) > self.threshold

    def _similarity(self, micro: Tensor, high: int) -> Tensor:
        """Similarity of clients a and b, [K, K]: 1 - (number of parameters whose micro-classes differ) / H."""
        agree = torch.zeros(len(micro), len(micro), dtype=torch.int64, device=micro.device)
        for at in tree.blocks(micro):
            for c in range(self.micro + 1):
                members = (micro[:, at] == c).float()
                agree += (members @ members.T).long()
        # float32 would make similarities differ by more than TIE
        return 1 - tree.exact(micro.shape[1] - agree) / high

    def _macro_classes(self, similar: Tensor) -> list[list[int]]:
        """The macro-classes as lists of clients, from the similarity [K, K]: greedy clustering with average linkage.

        Each turn takes the most similar of two moves: a client joins a macro-class (similarity: mean over its members), or two
        single clients form a new one. With `macro` classes, clients join while their similarity exceeds `similarity`.
        Clients that are left over count in no macro-class.
        """
        near = np.asarray(similar.tolist())
        pairs = np.where(np.tri(len(near), dtype=bool), -np.inf, near)
        classes, sums = list[list[int]](), np.empty((len(near), 0))
        while True:
            room = len(classes) < self.macro
            join, (k, i) = _best(sums / [len(c) for c in classes])
            pair, both = _best(pairs if room else pairs[:0])
            if pair > join + (-TIE if self.pairs_first else TIE):
                classes.append([*both])
                sums = np.column_stack((sums, near[:, both].sum(1)))
            elif join > -np.inf and (room or join > self.similarity):
                classes[i].append(k)
                sums[:, i] += near[:, k]
            else:
                return classes
            taken = [*chain(*classes)]
            sums[taken] = pairs[taken] = pairs[:, taken] = -np.inf

    def _alpha(
        self, micro: Tensor, macro: list[list[int]], weights: Tensor, generator: torch.Generator
    ) -> Tensor:
        """alpha [S, H] from the micro-classes [K, H] at the high parameters."""
        modal = torch.stack([_mode(micro[members], self.micro) for members in macro])
        if self.assignment == "random_modal":
            modal = torch.randint(1, self.micro + 1, modal.shape, generator=generator).to(modal)
        counts = torch.stack([m.bincount(minlength=self.micro + 1) for m in modal])
        share = torch.stack([weights[members].sum() for members in macro])
        return self.alpha(
            counts, modal, micro.shape[1], share if self.weighted else torch.ones_like(share)
        )


@part
class NormalizedSkew(ParameterSkew):
    """cv = sd / |mu|; micro-classes of D min-max normalized over the tensor; alphas normalized to sum 1 over the macro-classes.

    It keeps the scale of the model, and is the plain mean where all clients agree. threshold >= 1 is uniform FedAvg. With
    normalize_by="range" it is uniform FedAvg on all but about .3 % of the parameters, because a few with mu near 0 have by far the
    largest cv; `record="server"` notes the share of each tensor as `high`.
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
        return _classes_in_range(d, low, top, self.micro)

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
        return torch.where(raw <= self.micro, raw, 0).to(CLASS)

    def divisor(self, high: int) -> int:
        """Divisor of the counts of `high` parameters: S H (FedPake, eq. 11)."""
        return self.macro * high

    def alpha(self, counts: Tensor, modal: Tensor, high: int, share: Tensor) -> Tensor:
        return torch.where(
            modal > 0, counts.gather(1, modal) * share[:, None] / self.divisor(high), 0.0
        )


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
        return _classes_in_range(d, low, top, self.micro)


def _classes_in_range(d: Tensor, low: Tensor, top: Tensor, micro: int) -> Tensor:
    """Micro-classes 1..C of equal width between `low` and `top`."""
    scaled = (d - low) / (top - low) if top > low else torch.zeros_like(d)
    return (micro * scaled).ceil().clamp(1, micro).to(CLASS)


def _members(macro: list[list[int]], clients: int) -> Tensor:
    """The macro-class of each client, [K]; -1 for a client in none."""
    places = torch.full((clients,), -1)
    for s, members in enumerate(macro):
        places[members] = s
    return places


def _random_macro(clients: int, macro: int, generator: torch.Generator) -> list[list[int]]:
    """At most `macro` macro-classes; each client is put into one of them at random."""
    drawn = torch.randint(macro, (clients,), generator=generator).tolist()
    classes = [[k for k in range(clients) if drawn[k] == s] for s in range(macro)]
    return [members for members in classes if members]


def _by_client(alpha: Tensor, macro: list[list[int]], weights: Tensor) -> Tensor:
    """The weight of each client, [K]: its share in its macro-class times the alpha of that; 0 for a client in none."""
    result = torch.zeros_like(weights)
    for s, members in enumerate(macro):
        result[members] = alpha[s].to(weights) * _shares(weights[members])
    return result


def _shares(weights: Tensor) -> Tensor:
    """The weights over their sum; equal weights if all are 0 (clients that FedDisco leaves out)."""
    total = weights.sum()
    return weights / total if total else torch.full_like(weights, 1 / len(weights))


def _best(similar: np.ndarray) -> tuple[float, tuple[int, int]]:
    """The highest similarity and its place in a matrix, the first one among equals; -inf if the matrix is empty."""
    if not similar.size:
        return -np.inf, (0, 0)
    place = int((similar > similar.max() - TIE).argmax())
    return float(similar.flat[place]), divmod(place, similar.shape[1])


def _mode(classes: Tensor, micro: int) -> Tensor:
    """Most frequent micro-class of each column of [k, H]; the smallest among equals."""
    most, mode = (classes == 0).sum(0, dtype=CLASS), torch.zeros_like(classes[0])
    for c in range(1, micro + 1):
        count = (classes == c).sum(0, dtype=CLASS)
        mode, most = mode.masked_fill_(count > most, c), torch.maximum(most, count)
    return mode.long()
