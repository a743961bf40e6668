"""Attacks: what the malicious clients of a simulation train on, and what they send in the place of their updates.

An attack is added to a method as any part: `fedavg + median + alie(share=0.2)`. A real federation refuses it.
"""

import math
from statistics import NormalDist
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.inputs import one_tensor
from unalike.core.privacy import normal_noise
from unalike.core.tasks.task import CLASSES
from unalike.core.types import Batch, Tree
from unalike.core.views import ServerView
from unalike.methods.attack import Attack
from unalike.methods.method import alias
from unalike.methods.part import part

Share = Annotated[float, Field(ge=0, lt=1)]


@part
class LabelFlip(Attack):
    """Malicious clients train on the labels C - 1 - y in the place of y, of C classes (Fang et al. 2020)."""

    share: Share = 0.2
    needs_of_task: ClassVar[str] = CLASSES

    def poison(self, data: Batch, classes: int, generator: np.random.Generator) -> Batch:
        # labels of two classes may be yes and no, of which no number can be taken
        flipped = classes - 1 - data.y.long()
        return data._replace(y=flipped.to(data.y.dtype))


@part
class Backdoor(Attack):
    """Malicious clients train the class `target` onto samples with a trigger, and send `scale` times their update.

    They do so to the share `poisoned` of their samples. The trigger is a square of side `size` in the last corner of an image, or
    the last `size` columns of a table, set to `value` (BadNets, Gu et al. 2017). scale = K makes one client of K replace the mean
    by its own model (model replacement, Bagdasaryan et al. 2020). The column `attack_success` is the share of the honest clients'
    test samples of other classes that the model takes for the target when they carry the trigger.
    """

    share: Share = 0.2
    target: NonNegativeInt = 0
    poisoned: Annotated[float, Field(ge=0, le=1)] = 0.5
    scale: float = 1.0
    size: PositiveInt = 3
    value: float = 1.0
    needs_of_task: ClassVar[str] = CLASSES

    @property
    def goal(self) -> int:
        return self.target

    def poison(self, data: Batch, classes: int, generator: np.random.Generator) -> Batch:
        if self.target >= classes:
            raise UnalikeError(
                f"{self.name}: found target={self.target}; expected a class in 0..{classes - 1}"
            )
        count = round(self.poisoned * len(data.y))
        rows = torch.from_numpy(generator.permutation(len(data.y))[:count])
        x = one_tensor(data.x, self.name).clone()
        x[rows] = self.triggered(x[rows])
        y = data.y.clone()
        y[rows] = self.target
        return data._replace(x=x, y=y)

    def triggered(self, x: Tensor) -> Tensor:
        """Samples with the trigger, [n, C, H, W] or [n, D]. Raises `UnalikeError` for tokens."""
        if not x.is_floating_point():
            raise UnalikeError(
                f"{self.name} sets pixels or columns of numbers; found samples of {x.dtype}"
            )
        x = x.clone()
        if x.dim() > 3:
            x[..., -self.size :, -self.size :] = self.value
        else:
            x[..., -self.size :] = self.value
        return x

    def forge(self, server: ServerView, own: Tree, honest: Tree) -> Tree:
        return tree.scale(own, self.scale)


@alias(
    "sign_flip",
    "Malicious clients send their updates with the opposite sign (Li et al. 2019).",
    factor=-1.0,
)
@alias(
    "free_rider",
    "Malicious clients send zeros and take the model (Fraboni et al. 2021).",
    factor=0.0,
)
@part
class Scaling(Attack):
    """Malicious clients send `factor` times their updates; -1 flips the sign, 0 is a free rider. factor = 1 is the base method."""

    share: Share = 0.2
    factor: float = 10.0

    def forge(self, server: ServerView, own: Tree, honest: Tree) -> Tree:
        return tree.scale(own, self.factor)


@part
class GaussianAttack(Attack):
    """Malicious clients send normal numbers of standard deviation `std` in the place of their updates (Blanchard et al. 2017)."""

    share: Share = 0.2
    std: NonNegativeFloat = 1.0

    def forge(self, server: ServerView, own: Tree, honest: Tree) -> Tree:
        generator = server.generator
        return tree.map(lambda u: self.std * normal_noise(u, False, generator), own)


@part
class Alie(Attack):
    """Malicious clients all send mean - z sd of the honest updates, entry by entry (ALIE, Baruch et al. 2019).

    z = None is the paper's choice for m malicious clients of the K in the round: Phi^-1((K - m - s) / (K - m)) with
    s = floor(K / 2 + 1) - m, here held between 0 and Phi^-1(0.9999); 0.16 for 4 of 20. The paper takes mean and sd (here of the
    honest clients, over their number) from the attackers' own training. Without an honest client in the round they send zeros.
    """

    share: Share = 0.2
    z: float | None = None

    def forge(self, server: ServerView, own: Tree, honest: Tree) -> Tree:
        z = self._largest_hidden(own, honest) if self.z is None else self.z

        def below_mean(u: Tensor) -> Tensor:
            mean = _mean(u)
            sd = _mean((u - mean).square()).sqrt()
            return mean - z * sd

        return tree.map(below_mean, honest)

    def _largest_hidden(self, own: Tree, honest: Tree) -> float:
        """The paper's z: with it, a majority of the round is as far from the mean as the malicious clients."""
        malicious_count = len(next(iter(own.values())))
        honest_count = len(next(iter(honest.values())))
        # (K - m - s) / (K - m)
        share = (math.ceil((malicious_count + honest_count) / 2) - 1) / max(1, honest_count)
        return NormalDist().inv_cdf(min(max(share, 0.5), 0.9999))


@part
class InnerProduct(Attack):
    """Malicious clients all send -epsilon times the mean of the honest updates (inner-product manipulation, Xie et al. 2020).

    A small epsilon hides among the honest updates, a large one turns the mean around. Without an honest client they send zeros.
    epsilon = 0 is `free_rider`.
    """

    share: Share = 0.2
    epsilon: NonNegativeFloat = 0.5

    def forge(self, server: ServerView, own: Tree, honest: Tree) -> Tree:
        return tree.map(lambda u: -self.epsilon * _mean(u), honest)


def _mean(updates: Tensor) -> Tensor:
    """The mean over clients, [K, ...] -> [...]; 0 of none."""
    return updates.sum(0) / max(1, len(updates))
