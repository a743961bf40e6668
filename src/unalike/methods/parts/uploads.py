"""A bound on the update before it is sent, parameters that are withheld, and noise on the sum of all updates."""

from collections.abc import Set
from typing import ClassVar

from pydantic import NonNegativeFloat, PositiveFloat

from unalike.core import tree
from unalike.core.privacy import normal_noise
from unalike.core.types import Tree
from unalike.core.views import ClientView, Cohort, ServerView
from unalike.methods.part import part
from unalike.methods.roles import ServerStep, Upload


@part
class Clip(Upload):
    """update <- update * min(1, norm / ||update||): no client moves the model further than `norm`. norm = inf changes nothing.

    It gives no privacy by itself; `client_dp` clips, adds noise and accounts both.
    """

    has_own_name: ClassVar[bool] = True

    norm: PositiveFloat = 1.0
    rank: ClassVar[int] = Upload.CLIP
    additive: ClassVar[bool] = True

    @property
    def shortens(self) -> bool:
        return True

    def encode(self, client: ClientView, update: Tree) -> tuple[Tree, Tree]:
        return tree.clipped(update, self.norm), client.state


NOTHING = ":nothing"
"""Suffix of the empty tensor that stands for a withheld parameter: the server reads zeros."""


def withhold(update: Tree, names: Set[str]) -> Tree:
    """The update with an empty tensor for each of these parameters, whatever uploads before made of them."""
    others: Tree = {}
    empty: Tree = {}
    for key, u in update.items():
        # an upload before may have made `w:values` and `w:places` of w
        name = key.split(":")[0]
        if name in names:
            empty[name + NOTHING] = u.new_zeros(0)
        else:
            others[key] = u
    return others | empty


def restore(update: Tree, params: Tree) -> Tree:
    """The stacked update with zeros [K, ...] in the place of what was withheld."""
    values: Tree = {}
    zeros: Tree = {}
    for key, u in update.items():
        if key.endswith(NOTHING):
            name = key.removesuffix(NOTHING)
            zeros[name] = params[name].new_zeros(len(u), *params[name].shape)
        else:
            values[key] = u
    return values | zeros


@part
class GaussianNoise(ServerStep):
    """update + std N(0, I), drawn anew in every round on the server, before everything that follows the aggregation.

    It makes models robust to what it hides, without an account: `client_dp` is the part for a privacy budget. The noise follows
    from the run's seed: all sites of a federation know it, and can subtract the noise. std = 0 changes nothing.
    """

    has_own_name: ClassVar[bool] = True

    std: NonNegativeFloat = 0.001
    rank: ClassVar[int] = ServerStep.NOISE

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        generator = server.generator
        update = tree.map(lambda u: u + self.std * normal_noise(u, False, generator), update)
        return update, server.state
