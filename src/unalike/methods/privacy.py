"""The role of a part that gives differential privacy."""

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.validated import validated
from unalike.core.model import Model
from unalike.core.privacy import (
    Accountant,
    Release,
    ReleaseSampling,
    epsilon_of,
    noise_multiplier_of,
)
from unalike.core.types import Tree
from unalike.core.views import PartLookup, StageSettings
from unalike.core.work import Work
from unalike.methods.part import Part
from unalike.metrics.failures import LESS_NOISE


@validated
class Privacy(Part):
    """Differential privacy with Gaussian noise; a method has at most one such part.

    epsilon: budget of epsilon over the rounds of the run, from which the noise multiplier follows (extra `privacy`).
    noise_multiplier: the noise multiplier z, instead of a budget; 1 if neither is given, and 0 adds no noise.
    delta: probability that the bound epsilon may fail, at most 0.5; it should be well below 1 / number of those who are protected,
        and a run notes where it is not.
    clip: largest L2 norm C of a contribution.
    accountant: "rdp", or "pld", which is tighter and slow, for Poisson samples.
    """

    hides_client_numbers: ClassVar[bool] = True
    acts_without_clients: ClassVar[bool] = True
    releases_once: ClassVar[bool] = True
    updates_hold_noise: ClassVar[bool] = True
    sends_finite_values: ClassVar[bool] = True
    why_no_trials: ClassVar[str] = (
        "trials are chosen by the clients' validation samples, which epsilon does not cover; tune the method without its privacy "
        "on public data, and give the values that were found"
    )
    federation_note: ClassVar[str] = (
        "epsilon is about training: it does not cover what evaluations tell the coordinator of each site's test samples"
    )
    advice_if_diverged: ClassVar[str] = LESS_NOISE

    unit: ClassVar[str]
    """Who is protected: a client, or a sample.

    Without it: an error where the meaning of epsilon is told.
    """

    per_sample: ClassVar[bool] = False
    """Whether each sample's gradient is clipped and noised in local steps, instead of the update.

    Without it: no, and the draw of the clients amplifies epsilon.
    """

    epsilon: PositiveFloat | None = None
    noise_multiplier: NonNegativeFloat | None = None
    delta: float = Field(default=1e-5, gt=0, le=0.5)
    clip: PositiveFloat = 1.0
    accountant: Accountant = "rdp"

    @property
    def protects(self) -> str:
        """The meaning of its epsilon: `at delta 1e-05 for each client`."""
        return f"at delta {self.delta:g} for each {self.unit}"

    @property
    def hides_participants(self) -> bool:
        """True where clients are protected: the draw of the cohort amplifies epsilon only while nobody knows it."""
        return not self.per_sample

    def samplings(self, settings: StageSettings) -> Sequence[ReleaseSampling]:
        """The sampling of contributions for each release. No default.

        Args:
            settings: Settings of the stage; `settings.sampling` is how clients take part in its rounds.

        Returns:
            For each kind of contributions a sampling, with the number of releases that are planned. Epsilon is the largest.
        """
        raise NotImplementedError

    def leaks(self, method: PartLookup, settings: StageSettings) -> list[str]:
        """The things that leave the clients beside the accounted sums, in words; empty if nothing does. No default.

        Args:
            method: The method with all its parts.
            settings: Settings of the stage.
        """
        raise NotImplementedError

    def accounted(self, model: Model, buffers: str) -> Callable[[str], bool]:
        """Whether an item that clients send, as `ua.wire` describes it, is accounted. No default.

        Args:
            model: The model.
            buffers: Handling of its buffers.
        """
        raise NotImplementedError

    def multipliers(self, settings: StageSettings) -> Tensor:
        """The noise multiplier, or of a budget that of each kind; NaN where no rounds share the budget, as in `ua.wire`."""
        if self.epsilon is None:
            multipliers = [1.0 if self.noise_multiplier is None else self.noise_multiplier]
        elif settings.sampling is None:
            multipliers = [math.nan]
        else:
            multipliers = [
                noise_multiplier_of(self.epsilon, kind, self.delta, self.accountant)
                for kind in self.samplings(settings)
            ]
        return torch.tensor(multipliers, dtype=torch.float64)

    def server_open(self, settings: StageSettings) -> Tree:
        """The noise multipliers, which a run that is resumed or extended keeps."""
        return {"noise_multiplier": self.multipliers(settings)}

    def spent(self, settings: StageSettings, multipliers: Tensor, rounds: int) -> float:
        """Epsilon after so many rounds, at `delta`.

        Args:
            settings: Settings of the stage.
            multipliers: The noise multipliers of the rounds.
            rounds: Number of rounds.
        """
        assert settings.sampling is not None
        share = rounds / max(1, settings.sampling.releases)
        kinds = self.samplings(settings)
        epsilons = []
        for z, kind in zip(multipliers.expand(len(kinds)).tolist(), kinds, strict=True):
            releases = round(kind.releases * share)
            epsilons.append(epsilon_of(z, kind, releases, self.delta, self.accountant))
        return max(epsilons)

    def release_of_round(self, settings: StageSettings) -> Release:
        """The releases of one client with the update of a round, as epsilon counts them.

        Args:
            settings: Settings of the stage, as that client has them: `settings.sampling.sizes` is its own number of samples.
        """
        assert settings.sampling is not None
        [kind] = self.samplings(settings)
        [z] = self.multipliers(settings).tolist()
        rounds = max(1, settings.sampling.releases)
        return Release(
            noise_multiplier=z,
            draw=kind.draw,
            share=kind.expected / kind.units,
            count=kind.releases // rounds,
        )

    def check(self, method: PartLookup, work: Work) -> None:
        """Raise `UnalikeError` for a budget beside a noise multiplier."""
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise UnalikeError(
                f"{self.name}: found epsilon={self.epsilon:g} and noise_multiplier={self.noise_multiplier:g}; expected one of "
                "them, as each follows from the other"
            )
