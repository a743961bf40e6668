"""Gaussian noise on the combined update."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import NonNegativeFloat

from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import Cohort, ServerView
from unalike.methods.part import part
from unalike.methods.roles import ServerStep


@part
class GaussianNoise(ServerStep):
    """update + std N(0, I), drawn anew in every round on the server, before everything that follows the aggregation.

    With clip(norm=S), uniform weights over K clients and std = z S / K it is the Gaussian mechanism of DP-FedAvg with noise
    multiplier z (McMahan et al. 2018). Messages and buffers get no noise: a privacy budget needs a method without them.
    The noise follows from the run's seed: all sites of a federation know it, and can subtract the noise. std = 0 changes
    nothing.
    """

    published: ClassVar[bool] = True

    std: NonNegativeFloat = 0.001
    rank: ClassVar[int] = ServerStep.NOISE

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        generator = server.generator
        noisy = tree.map(
            # drawn on the CPU, so that every device sees the same numbers
            lambda u: u + self.std * torch.randn(u.shape, generator=generator, dtype=u.dtype).to(u.device),
            update,
        )
        return noisy, server.state
