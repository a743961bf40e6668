"""Samplers that prefer clients from which the model has much to learn, by their losses."""

from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveInt

from unalike._utils.validated import validated
from unalike.core.types import Tree
from unalike.methods.part import part
from unalike.methods.sampler import Candidates, Choice, CohortOutcome, Sampler
from unalike.methods.search_space import LinearRange

LOSS = "loss"
"""State [N]: a client's mean training loss in its last round; infinite before its first one."""
TURN = "turn"
"""State [N]: the number of a client's last round, counted from 1; 0 before its first one."""
SECONDS = "seconds"
"""State [N]: the seconds of a client's last round over its share of the local steps; NaN where they are not known."""
GAINS = "gains"
"""State [2]: the statistical utility of all cohorts in the window of rounds before, and in the current one."""
PACE = "pace"
"""State []: the share of the durations that is preferred."""


@part
class PowerOfChoice(Sampler):
    """Of d clients, drawn by size without replacement, the m with the largest losses (Cho et al. 2020, pi_rpow-d).

    F_k is the mean training loss over the local steps in the client's last round, and infinite before its first one: the variant
    of the paper that needs no request of its own, where pi_pow-d asks the d clients for their loss at the current model. Biased
    towards clients with large losses, the more the larger d is: the paper proves faster progress, to a point that is off the
    optimum by the skew of the choice. d = m (or less) is a draw by size. Clients that exaggerate their loss are asked more often.
    Of one that is asked in vain F_k is the least known loss, so that it does not stay the first choice.
    """

    d: Annotated[PositiveInt, LinearRange(2, 50)] = 20

    decides_by: ClassVar[str] = "their losses"
    reads_losses: ClassVar[bool] = True
    federation_note: ClassVar[str] = (
        "power_of_choice asks sites by the losses that they claim: one that exaggerates is asked more often"
    )

    def choice_init(self, clients: int) -> Tree:
        return {LOSS: torch.full((clients,), torch.inf)}

    def choose(self, candidates: Candidates, state: Tree) -> Choice:
        ids = candidates.numbers
        rng = candidates.generator

        # Candidates first: the draw by size keeps chances that do not depend on losses.
        count = min(max(self.d, candidates.size), len(ids))
        drawn = drawn_by(candidates.sizes[ids], count, rng)

        # Losses decide among them; a shuffle before the stable sort breaks ties by chance.
        drawn = rng.permutation(drawn)
        losses = state[LOSS].numpy(force=True)[ids[drawn]]
        largest = np.argsort(-losses, kind="stable")[: candidates.size]
        clients = candidates.at(drawn[largest])
        return Choice(clients, {k: _told(float(state[LOSS][k])) for k in clients})

    def observe(self, outcome: CohortOutcome, state: Tree) -> Tree:
        return {LOSS: _observed_losses(state[LOSS], outcome)}


@validated
class UtilitySampler(Sampler):
    """Clients drawn by statistical x system utility, and new ones (Oort, Lai et al. 2021, algorithm 1); `Oort` has the formula."""

    exploration: Annotated[float, Field(ge=0, le=1)] = 0.9
    decay: Annotated[float, Field(gt=0, le=1)] = 0.98
    least_exploration: Annotated[float, Field(ge=0, le=1)] = 0.2
    alpha: Annotated[NonNegativeFloat, LinearRange(0, 5)] = 2.0
    cutoff: Annotated[float, Field(gt=0, le=1)] = 0.95
    window: PositiveInt = 20

    decides_by: ClassVar[str] = "their losses and seconds"
    reads_losses: ClassVar[bool] = True
    federation_note: ClassVar[str] = (
        "oort asks sites by the losses that they claim: one that exaggerates is asked more often"
    )
    FIRST_PACE: ClassVar[float] = 0.3
    PACE_STEP: ClassVar[float] = 0.05
    UNCERTAINTY: ClassVar[float] = 0.1

    def choice_init(self, clients: int) -> Tree:
        return {
            LOSS: torch.full((clients,), torch.inf),
            TURN: torch.zeros(clients, dtype=torch.int64),
            SECONDS: torch.full((clients,), torch.nan),
            GAINS: torch.zeros(2),
            PACE: torch.tensor(self.FIRST_PACE),
        }

    def choose(self, candidates: Candidates, state: Tree) -> Choice:
        ids = candidates.numbers
        rng = candidates.generator
        turns = state[TURN].numpy(force=True)[ids]
        new = np.flatnonzero(turns == 0)
        known = np.flatnonzero(turns > 0)

        # The cohort is divided between new and known clients; where one kind is short, the other fills up.
        share = max(self.least_exploration, self.exploration * self.decay**candidates.round)
        wanted_new = min(len(new), round(share * candidates.size))
        known_count = min(len(known), candidates.size - wanted_new)
        explored = rng.choice(new, candidates.size - known_count, replace=False)

        # Near-best clients are drawn, not the very best taken: utilities are old, and a wrong one must not stay on top.
        utilities = self._utilities(candidates, ids[known], state)
        is_near_best = np.ones(len(known), bool)
        if known_count:
            last_that_fits = np.sort(utilities)[-known_count]
            is_near_best = utilities >= self.cutoff * last_that_fits
        near_best = np.flatnonzero(is_near_best)
        exploited = near_best[drawn_by(utilities[near_best], known_count, rng)]

        reasons = dict.fromkeys(ids[explored].tolist(), "new")
        for k, utility in zip(ids[known[exploited]].tolist(), utilities[exploited].tolist()):
            reasons[k] = f"utility {utility:.3g}"
        clients = sorted(reasons)
        return Choice(clients, reasons, self.shares_of_steps(clients, state))

    def shares_of_steps(self, clients: list[int], state: Tree) -> dict[int, float]:
        """The share of its local steps that each client of a cohort is asked to make. Default: empty, all make all."""
        return {}

    def _utilities(self, candidates: Candidates, ids: np.ndarray, state: Tree) -> np.ndarray:
        """U_k of known clients, [K]."""
        if not len(ids):
            return np.zeros(0)
        losses = state[LOSS].numpy(force=True)[ids]
        gains = candidates.sizes[ids] * losses.clip(min=0)
        turns = state[TURN].numpy(force=True)[ids]
        current = candidates.round + 1
        scaled = gains / max(gains.max(), np.finfo(np.float32).tiny)
        utilities = scaled + np.sqrt(self.UNCERTAINTY * np.log(current) / turns)

        all_seconds = state[SECONDS].numpy(force=True)
        if np.isnan(all_seconds).all():
            return utilities
        preferred = np.nanquantile(all_seconds, min(1.0, float(state[PACE])))
        seconds = all_seconds[ids]
        # a client without known seconds is not slow: the comparison with NaN is False
        penalty = np.where(seconds > preferred, (preferred / seconds) ** self.alpha, 1.0)
        return utilities * penalty

    def observe(self, outcome: CohortOutcome, state: Tree) -> Tree:
        before, current = state[GAINS].tolist()
        current += float((outcome.sizes * outcome.losses).sum())
        pace = state[PACE]
        if (outcome.round + 1) % self.window == 0:
            if current < before:
                pace = pace + self.PACE_STEP
            before = current
            current = 0.0
        losses = _observed_losses(state[LOSS], outcome)
        # Who has a loss now is new no more, also one that was asked in vain.
        asked = np.union1d(outcome.asked, outcome.ids)
        known = asked[losses.isfinite().numpy()[asked]]
        turns = np.full(len(known), outcome.round + 1)
        return {
            LOSS: losses,
            TURN: _updated(state[TURN], known, turns),
            SECONDS: _updated(state[SECONDS], outcome.ids, outcome.seconds / outcome.shares),
            GAINS: torch.tensor([before, current]),
            PACE: pace,
        }


@part
class Oort(UtilitySampler):
    """Clients by statistical x system utility, and new ones (Oort, Lai et al. 2021, algorithm 1).

        U_k = n_k F_k / max_j n_j F_j + sqrt(0.1 log r / r_k),   U_k <- U_k (T / t_k)^alpha where t_k > T

    n_k are samples, F_k the mean training loss of the client's last round r_k (0 for a negative one), r the current round, t_k its
    seconds. A share max(least_exploration, exploration * decay^r) of the cohort are clients of which no update has come, the others
    are drawn by U_k among those with at least `cutoff` times the utility of the last that would fit. The pacer: T is a quantile of
    the known t_k, 0.3 at first; it rises by 0.05 after `window` rounds whose cohorts had less statistical utility than those of the
    window before. Without simulated devices or a network nobody has seconds, and utility is statistical.

    Biased towards clients with much loss and fast devices. exploration = least_exploration = 1 with more clients than are ever
    asked is `uniform_cohort`; alpha = 0 ignores seconds.

    Deviations: n_k F_k stands for the paper's |B| sqrt(mean of squared losses), which clients would have to send (equal where all
    samples of a client have one loss); it is scaled by its maximum, where the authors' code uses minimum and 95th percentile; new
    clients are drawn with equal chances, not by speed; nobody is left out after many rounds; T is a quantile, as in the authors'
    code; of a client that is asked in vain F_k is the least known loss, so that it does not stay new.
    """


@part
class PyramidFL(UtilitySampler):
    """Clients as in Oort, of which those that would wait for the slowest make more local steps (PyramidFL, Li et al. 2022).

    Between clients: U_k of `oort`. Within the cohort S, with t_k the seconds in which client k makes the share b = `least_share` of
    its local steps, it is asked for the share

        s_k = min(1, b (1 + beta (max_j t_j - t_k) / t_k)),   j, k in S

    so that with beta = 1 all are done with the slowest one. t_k is b times the seconds of its last round over its share in that
    round. Clients whose seconds are not known make the share b; where nobody's are, as in the first round or without simulated
    devices, all make all steps.

    Biased as `oort`, and towards clients that make many steps: `fednova` and `fedmix` correct for the latter. least_share = 1 is
    `oort`; with beta = 0 all known clients make the share b.

    Deviations: the authors' code lets fast clients make up to 11 times the usual steps; here b stands for these, and nobody makes
    more than those of the run. All seconds count as training, so that s_k comes near its value over some rounds where sending takes
    long. The code also leaves 10 % to 60 % of the parameters out of uploads, the more the smaller a client's update is among those
    of the cohort; here uploads are those of the method.
    """

    least_share: Annotated[float, Field(gt=0, le=1), LinearRange(0.1, 1)] = 0.2
    beta: Annotated[float, Field(ge=0, le=1), LinearRange(0, 1)] = 1.0

    name: ClassVar[str] = "pyramidfl"
    sets_work: ClassVar[bool] = True
    simulated_only: ClassVar[str] = "a choice of local steps by client"

    def shares_of_steps(self, clients: list[int], state: Tree) -> dict[int, float]:
        seconds = self.least_share * state[SECONDS].numpy(force=True)[clients]
        if np.isnan(seconds).all():
            return {}
        # a client without known seconds must not make the others wait for it
        seconds = np.where(np.isnan(seconds), np.nanmax(seconds), seconds)
        slack = (seconds.max() - seconds) / seconds
        shares = np.minimum(1, self.least_share * (1 + self.beta * slack))
        return dict(zip(clients, shares.tolist()))


def drawn_by(weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """The places of `count` of these, drawn one after the other in proportion to their weights, without replacement.

    By exponential waiting times (Efraimidis and Spirakis 2006): those of weight 0 come last.
    """
    waits = rng.exponential(size=len(weights))
    with np.errstate(divide="ignore"):
        return np.argsort(waits / weights, kind="stable")[:count]


def _updated(values: torch.Tensor, ids: np.ndarray, new: np.ndarray) -> torch.Tensor:
    """The values [N] with new ones for these clients."""
    updated = values.clone()
    updated[torch.from_numpy(ids)] = torch.from_numpy(new).to(values)
    return updated


def _observed_losses(losses: torch.Tensor, outcome: CohortOutcome) -> torch.Tensor:
    """The losses [N] after a round; of clients that were asked in vain the least of the known ones, infinite without any."""
    observed = _updated(losses, outcome.ids, outcome.losses)
    known = observed[observed.isfinite()]
    if len(known):
        in_vain = np.setdiff1d(outcome.asked, outcome.ids)
        observed[torch.from_numpy(in_vain)] = known.min()
    return observed


def _told(loss: float) -> str:
    """The reason for a client of this last loss."""
    return "new" if loss == np.inf else f"loss {loss:.3g}"
