"""Client-level differential privacy: the released models hardly tell whether a client took part."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.privacy import ReleaseSampling, normal_noise
from unalike.core.types import Tree
from unalike.core.views import ClientView, Cohort, PartLookup, ServerView, StageSettings
from unalike.core.work import Work
from unalike.methods.default_parts import BySize
from unalike.methods.part import Part, Setup, overrides, part
from unalike.methods.parts.weights import Uniform
from unalike.methods.privacy import Privacy
from unalike.methods.roles import (
    BaseWeights,
    Conditioner,
    LinearAggregator,
    Personalizer,
    ServerStep,
    Upload,
    Weighting,
)


@part
class ClientDP(Upload, LinearAggregator, ServerStep, Privacy):
    """w+ = w + (sum_k min(1, C / ||u_k||) u_k + N(0, (z C)^2 I)) / m, u_k = w_k - w: DP-FedAvg (McMahan et al. 2018, algorithm 1).

    C is `clip`, z the noise multiplier, m the expected number of clients in a round: all clients count the same, since weights by
    size would tell sizes. The released models of all rounds are (epsilon, delta)-differentially private towards everybody but the
    server; docs/how_to/privacy.md says against whom, and what epsilon does not cover.

    quantile: the bound adapts, C <- C exp(-clip_lr (b - quantile)), b the noised share of updates with a norm below C (Andrew et
        al. 2021, algorithm 1). The deviation of the noise on the count of them is s = m / 20, as in the paper, or z in a small
        cohort; that on the sum of updates becomes (z^-2 - (2 s)^-2)^(-1/2) C, so that both together cost what z costs.
    where: "server" adds the noise, or each "site" its share, of variance (z C)^2 / m: then the server sees noised updates alone,
        but each of them is protected by z / sqrt(m) only, unless a secure aggregation hides it. For z towards the server give
        z sqrt(m), which costs sqrt(m) times the error. In a federation the m of this share is `noise_shares`, to which sites agree.

    An update whose norm is not finite counts as 0.

    z = 0 with an infinite `clip` is the unweighted mean. Deviation from McMahan et al.: the last layer counts as the others, and
    one bound holds for the whole update.
    """

    name = "client_dp"
    has_own_name: ClassVar[bool] = True
    unit: ClassVar[str] = "client"
    rank: ClassVar[int] = ServerStep.NOISE
    additive: ClassVar[bool] = True

    quantile: float | None = Field(default=None, gt=0, lt=1)
    clip_lr: PositiveFloat = 0.2
    where: Literal["server", "site"] = "server"

    @property
    def shares_noise(self) -> bool:
        return self.where == "site"

    def samplings(self, settings: StageSettings) -> Sequence[ReleaseSampling]:
        """The part that clients take in the rounds, without draws where the server, which makes them, is to learn nothing."""
        assert settings.sampling is not None
        if not self.shares_noise:
            return [settings.sampling]
        return [replace(settings.sampling, draw="all")]

    def leaks(self, method: PartLookup, settings: StageSettings) -> list[str]:
        leaks = []
        for p in method.parts:
            why = "" if p is self else self._leak(p)
            if why:
                leaks.append(f"{p.name}: {why}")
        if settings.model.buffers and settings.buffers != "local":
            names = ", ".join([*settings.model.buffers][:2])
            leaks.append(
                f"buffers of the model ({names}): buffers='local' keeps them at the clients, group norm has none"
            )
        if self.shares_noise and settings.secret_noise:
            leaks += _scored_models(method, settings)
        return leaks

    def accounted(self, model: Model, buffers: str) -> Callable[[str], bool]:
        items = {"update", "counts", f"message of {self.name}"}
        if buffers == "local":
            items.add("buffers")
        return items.__contains__

    def _leak(self, p: Part) -> str:
        """The reason why a part is not accounted; empty if it is."""
        if p.shares:
            return f"it sends {', '.join(p.shares)} of the training data"
        if p.needs_messages:
            return "it sends messages of the clients"
        if p.needs != "sums" or overrides(p, "fold"):
            return "its server half reads the updates without noise"
        if isinstance(p, Conditioner) and p.pooled:
            return "it describes the data of all clients"
        is_base = isinstance(p, BaseWeights) and p not in REPLACED_WEIGHTS
        if is_base or isinstance(p, Weighting):
            return "its weights follow from the clients' data"
        if isinstance(p, Upload) and (self.shares_noise or not p.shortens):
            return "it may change the norm of an update after it was clipped, or its noise"
        return ""

    def check(self, method: PartLookup, work: Work) -> None:
        super().check(method, work)
        if self.shares_noise and self.epsilon is not None:
            raise UnalikeError(
                f"{self.name}: found epsilon={self.epsilon:g} with where='site'; expected noise_multiplier, which sites agree to"
            )

    def shortfall(self, setup: Setup) -> str:
        if not self.delta * setup.clients < 1:
            return f"delta={self.delta:g} is not below 1 / {setup.clients} clients: to publish one at random would satisfy it"
        return ""

    def least_cohort(self, settings: StageSettings) -> int:
        if settings.sampling is None or not self.shares_noise:
            return 1
        return max(1, settings.sampling.min_contributions)

    def largest_update(self, server_state: Tree) -> float:
        if self.shares_noise:
            return math.inf
        return float(server_state.get("clip", self.clip))

    def server_open(self, settings: StageSettings) -> Tree:
        state = super().server_open(settings)
        if self.quantile is None:
            return state
        return state | {"clip": torch.tensor(self.clip), "below": torch.tensor(0.0)}

    def broadcast(self, server: ServerView) -> Tree:
        if self.quantile is None:
            return {}
        return {"clip": server.state["clip"]}

    @property
    def needs_messages(self) -> bool:
        """Whether the bound follows the clients' norms."""
        return self.quantile is not None

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        if self.quantile is None:
            return client.state, {}
        norm = tree.norm({n: client.params[n] - w for n, w in client.received_params.items()})
        # +- 1/2 in place of 1 and 0 halves the sensitivity of the count
        below = (norm <= self._received_bound(client)).to(norm.dtype) - 0.5
        if self.shares_noise:
            settings = client.settings
            deviation = self._deviation_of_count(float(self.multipliers(settings)), settings, 1)
            share = deviation / self.least_cohort(settings) ** 0.5
            below = below + share * normal_noise(below, settings.secret_noise)
        return client.state, {"below": below}

    def encode(self, client: ClientView, update: Tree) -> tuple[Tree, Tree]:
        bound: Tensor | float = self.clip
        if self.quantile is not None:
            bound = self._received_bound(client).clamp(MIN_BOUND, MAX_BOUND)
        update = tree.bounded(update, bound)
        if self.shares_noise:
            settings = client.settings
            z = self._multiplier_of_sum(float(self.multipliers(settings)), settings, 1)
            share = z * bound / self.least_cohort(settings) ** 0.5
            update = tree.map(lambda u: u + share * normal_noise(u, settings.secret_noise), update)
        return update, client.state

    def why_impossible(self, message: Tree, samples: int) -> str:
        # with where="site" the count has its share of the noise
        if self.quantile is None or self.shares_noise or abs(float(message["below"])) == 0.5:
            return ""
        return f"{float(message['below']):g} updates below the bound; expected 1/2 or -1/2"

    def _received_bound(self, client: ClientView) -> Tensor:
        """The bound that the server sent. Raises `UnalikeError` for more than one number.

        With many of them a client would send as many copies of its update, each with noise of its own: their mean has none.
        """
        bound = client.message["clip"]
        if bound.dim():
            raise UnalikeError(
                f"{self.name}: found a bound of shape {list(bound.shape)} from the server; expected one number"
            )
        return bound

    def coefficients(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        return torch.full_like(weights, 1 / _expected(server.settings, len(cohort.ids)))

    def fold(self, update: Tree, message: Tree, importance: Tensor) -> Tree:
        return message

    def absorb(self, server: ServerView, folded: Tree) -> Tree:
        return server.state | folded

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        state = server.state
        settings = server.settings
        generator = server.generator
        z = float(state["noise_multiplier"])
        m = _expected(settings, len(cohort.ids))
        bound = state.get("clip", torch.tensor(self.clip))

        # of the mean; sites have added their shares already
        deviation = 0.0
        if self.where == "server":
            deviation = self._multiplier_of_sum(z, settings, m) * float(bound) / m
        if deviation:
            update = tree.map(
                lambda u: u + deviation * normal_noise(u, settings.secret_noise, generator), update
            )
        if self.quantile is None:
            return update, state

        # the bound follows the quantile of the norms, from the noised share of updates below it
        count = state["below"]
        if self.where == "server":
            noise = normal_noise(count, settings.secret_noise, generator)
            count = count + self._deviation_of_count(z, settings, m) * noise
        share_below = count / m + 0.5
        # what sites have noised themselves is checked by nobody: in a round no more than all of them move the bound
        if self.shares_noise:
            share_below = share_below.clamp(0, 1)
        bound = bound * (-self.clip_lr * (share_below - self.quantile)).exp()
        return update, state | {"clip": bound, "below": torch.zeros_like(count)}

    def _deviation_of_count(self, z: float, settings: StageSettings, m: float) -> float:
        """The deviation of the noise on the count of updates below the bound; its sensitivity is 1/2."""
        if not z:
            return 0.0
        return max(_expected(settings, m) / 20, z)

    def _multiplier_of_sum(self, z: float, settings: StageSettings, m: float) -> float:
        """The noise multiplier of the sum of updates."""
        if self.quantile is None or not z:
            return z
        s = self._deviation_of_count(z, settings, m)
        return (z**-2 - (2 * s) ** -2) ** -0.5


def _scored_models(method: PartLookup, settings: StageSettings) -> list[str]:
    """The facts that show in the scores that a site sends: models that it trained without noise, and facts of its samples."""
    leaks = [
        f"{p.name}: sites send scores of their own models, which were trained without noise"
        for p in method.role(Personalizer)
    ]
    leaks += [
        f"{p.name}: sites send scores of models that read facts of their training data"
        for p in method.role(Conditioner)
    ]
    if settings.model.buffers:
        leaks.append("buffers of the model, which are in the scores that sites send")
    return leaks


MIN_BOUND = 1e-5
MAX_BOUND = 1e5
"""The bounds that a client takes from a server.

With smaller ones its share of the noise would be rounded away before it is added to a masked sum, in steps of 2^-32; with larger
ones a share might not fit into a sum.
"""

REPLACED_WEIGHTS = (BySize(), Uniform())
"""Weights that the equal ones of the sum replace."""


def _expected(settings: StageSettings, participants: float) -> float:
    """The expected number of clients in a round; that of the cohort where nothing else is known."""
    return participants if settings.sampling is None else settings.sampling.expected
