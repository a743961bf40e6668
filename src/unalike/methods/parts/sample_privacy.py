"""Example-level differential privacy: a client's updates hardly tell whether a sample was among its training data."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from unalike.core.model import Model
from unalike.core.privacy import ReleaseSampling
from unalike.core.tasks.task import SEPARATE_LOSSES
from unalike.core.types import Tree
from unalike.core.views import ClientView, PartLookup, ServerView, StageSettings
from unalike.core.work import Batches, Work
from unalike.methods.part import Part, Setup, overrides, part
from unalike.methods.parts.second_gradients import SecondGradient
from unalike.methods.privacy import Privacy
from unalike.methods.roles import LocalGradient, Personalizer
from unalike.methods.sample_gradients import PrivateGradients


@part
class DPSGD(Privacy, LocalGradient):
    """g = (sum_b min(1, C / ||g_b||) g_b + N(0, (z C)^2 I)) / B, g_b the gradient of one sample of B: DP-SGD (Abadi et al. 2016).

    It is the gradient of the local loss in every step (algorithm 1), C is `clip`, z the noise multiplier. Terms that a method
    adds to the loss (`fedprox`, `feddyn`, `ditto`) are clipped with it, corrections of the gradient (`scaffold`) are not. A
    gradient whose norm is not finite counts as 0. The data sets of a client are adjacent if a sample's gradients are 0 in one of
    them; numbers of samples are public. All that follows from the steps is protected, also from the server: updates, control
    variates, other messages. Where a client trains a model of its own as well, C bounds both gradients together. Amplification by
    rounds without a client is not claimed. In a federation each site draws its noise and its batches by itself, in secret.

    batches: "shuffled": no sample is in two batches of a pass, so a pass is one Gaussian release with z for each sample, and R
        rounds of E epochs are R E of them. "poisson", as in Abadi et al.: of b batches of a pass, a sample is in each one with
        probability q = 1 / b by itself, so R rounds are R E b releases that are amplified by q. B is n / b, the expected number of
        n samples, and an empty batch is noise. A budget gives the clients with b batches a z of their own.

    z = 0 with an infinite `clip` is the method without it, in shuffled batches.
    """

    name = "dp_sgd"
    has_own_name: ClassVar[bool] = True
    unit: ClassVar[str] = "sample"
    per_sample: ClassVar[bool] = True
    needs_of_task: ClassVar[str] = SEPARATE_LOSSES

    batches: Literal["shuffled", "poisson"] = "shuffled"

    @property
    def draws_own_batches(self) -> bool:
        return self.batches == "poisson"

    def samplings(self, settings: StageSettings) -> Sequence[ReleaseSampling]:
        assert settings.sampling is not None
        passes = max(1, settings.sampling.releases) * settings.work.epochs
        kinds = [1]
        if self.draws_own_batches:
            sizes = settings.sampling.sizes or (1,)
            kinds = sorted({settings.work.batches_per_epoch(n) for n in sizes})
        return [self._sampling(batches, passes) for batches in kinds]

    def _sampling(self, batches: int, passes: int) -> ReleaseSampling:
        """The noise multiplier of a client with so many batches in a pass."""
        draw: Literal["poisson", "all"] = "poisson" if batches > 1 else "all"
        return ReleaseSampling(batches, 1, draw, releases=passes * batches)

    def shortfall(self, setup: Setup) -> str:
        sampling = setup.settings.sampling
        fewest = min(sampling.sizes, default=0) if sampling is not None else 0
        if self.delta * fewest < 1:
            return ""
        return (
            f"delta={self.delta:g} is not below 1 / {fewest}, the training samples of the smallest client: to publish one at "
            "random would satisfy it"
        )

    def broadcast(self, server: ServerView) -> Tree:
        return {} if self.epsilon is None else dict(server.state)

    def draw_batches(
        self, work: Work, rows: np.ndarray, rng: np.random.Generator, settings: StageSettings
    ) -> Batches:
        # others know the seed of a federation, and whoever knows the draw has no amplification
        if settings.secret_noise:
            rng = np.random.default_rng()
        return work.poisson_batches(rows, rng)

    def gradient_rule(self, client: ClientView, work: Work, samples: Tensor) -> PrivateGradients:
        batches = torch.ones_like(samples)
        expected_rows = None
        if self.draws_own_batches:
            batches = (samples / (work.batch_size or samples)).ceil()
            expected_rows = samples / batches
        return PrivateGradients(
            clip=self.clip,
            deviation=self._noise_multiplier(client, batches) * self.clip,
            expected_rows=expected_rows,
            secret=client.settings.secret_noise,
        )

    def _noise_multiplier(self, client: ClientView, batches: Tensor) -> Tensor | float:
        """The noise multiplier of a client's steps: its own, or that of the budget, which the server keeps between rounds."""
        if self.epsilon is None:
            return float(self.multipliers(client.settings))
        kinds = batches.new_tensor([s.units for s in self.samplings(client.settings)])
        multipliers = client.message["noise_multiplier"].to(batches)
        # picks the one of the client's number of batches without control flow on values, which vmap could not follow
        return (multipliers * (kinds == batches)).sum()

    def leaks(self, method: PartLookup, settings: StageSettings) -> list[str]:
        leaks = []
        for p in method.parts:
            why = "" if p is self else _leak(p)
            is_tuned = isinstance(p, Personalizer) and p.tune() is not None
            if not why and is_tuned and settings.secret_noise:
                why = "sites send scores of models that it tunes without noise"
            if why:
                leaks.append(f"{p.name}: {why}")
        if settings.model.buffers:
            leaks.append(
                "batch norm, whose output for a sample depends on the others of its batch: group norm does not"
            )
        if settings.work.criterion is not None and settings.work.criterion.needs_counts:
            leaks.append("the loss, which weighs classes by their counts")
        if settings.work.steps is not None:
            leaks.append("steps=, where whole passes are accounted: epochs= instead")
        return leaks

    def accounted(self, model: Model, buffers: str) -> Callable[[str], bool]:
        return lambda what: not what.endswith("of the training data")


def _leak(p: Part) -> str:
    """The reason why a part sees samples outside the steps; empty if it does not."""
    if p.needs_data or overrides(p, "facts"):
        return "it reads the training data outside the steps"
    if isinstance(p, Personalizer) and not p.vmappable:
        return "it reads the training data before the first step"
    if p.inner_loop is not None:
        return "its inner steps have no noise"
    if isinstance(p, SecondGradient):
        return "its second gradient of a batch has no noise"
    if isinstance(p, Personalizer) and overrides(p, "phases"):
        return "its phases are not accounted"
    return ""
