"""Corrections that take the gradient at a second point: where the loss is larger (flat minima), or where the step would lead."""

from typing import Annotated, ClassVar

from pydantic import NonNegativeFloat

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView, PartLookup
from unalike.core.work import Work
from unalike.methods.method import alias
from unalike.methods.part import part
from unalike.methods.roles import Correction, LocalGradient
from unalike.methods.search_space import LinearRange, LogRange

LEAST_LENGTH = 1e-12
"""In place of a length of 0, by which a direction would be divided."""


class SecondGradient(Correction):
    """A correction that replaces the gradient of a step by that at another point; it acts before corrections that add to it."""

    rank: ClassVar[int] = -1

    def check(self, method: PartLookup, work: Work) -> None:
        for rule in method.role(LocalGradient):
            raise UnalikeError(
                f"{method!r}: {rule.name} finds the gradient of a step by a rule of its own, and {self.name} asks for a second "
                "gradient, which that rule does not find; leave one of them out"
            )


@alias("fedsam", "Each step takes the gradient where a batch's loss is larger (Qu et al. 2022).")
@part
class SharpnessAware(SecondGradient):
    """The gradient at v + rho g / ||g|| in place of g, the gradient at v (FedSAM, Qu et al. 2022, algorithm 1).

    Both are gradients of the whole local loss on the batch of the step, so a step has two passes. rho = 0 is FedAvg. Buffers of
    batch norms are those of the first pass. In fluke's code gradients are not set to 0 between steps, so that it climbs along g
    and the last step's gradient together.
    """

    rho: Annotated[NonNegativeFloat, LogRange(1e-3, 0.5)] = 0.05

    def correct(self, client: ClientView, grads: Tree, batch: Batch) -> Tree:
        length = self.rho / tree.norm(grads).clamp_min(LEAST_LENGTH)
        return client.gradient(at=tree.map(lambda g, v: v + length * g, grads, client.params))


@alias(
    "fedlesam",
    "As FedSAM, with the direction in which the shared model came, the same in all steps (Fan et al. 2024).",
)
@part
class EstimatedPerturbation(SecondGradient):
    """The gradient at v + rho (w_k - w) / ||w_k - w|| in place of that at v (FedLESAM, Fan et al. 2024, algorithm 1).

    w is the model received and w_k the one that the client received when it last took part, at first the initial one: the way
    back is taken for that in which the loss of all clients grows. There is no perturbation in the first round; rho = 0 is FedAvg.
    A step computes the gradient at v, too, so the pass that the paper saves is made here. Sent: nothing more; the client state
    is one model.

    In the authors' code the server sends its last update, the same as w_k - w where all clients take part; it reads entry i of
    that flat vector as the direction of the i-th tensor, so that all entries of a tensor move by one number.
    """

    rho: Annotated[NonNegativeFloat, LogRange(1e-3, 0.5)] = 0.05

    def client_init(self, params: Tree) -> Tree:
        return params

    def correct(self, client: ClientView, grads: Tree, batch: Batch) -> Tree:
        w = client.received_params
        back = tree.map(lambda _, w_k, w: w_k - w, grads, client.state, w)
        length = self.rho / tree.norm(back).clamp_min(LEAST_LENGTH)
        return client.gradient(at=tree.map(lambda b, v: v + length * b, back, client.params))

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        # neither what the server alone moves, nor what stays on the client
        return client.state | tree.shared(client.received_params, client.state), {}


@alias(
    "extragradient", "Each step takes the gradient where the step would lead (Korpelevich 1976)."
)
@part
class Lookahead(SecondGradient):
    """The gradient at v - ahead lr g in place of g, the gradient at v (extragradient, Korpelevich 1976). ahead = 0 is FedAvg.

    Both are gradients of the whole local loss on the batch of the step.
    """

    ahead: Annotated[NonNegativeFloat, LinearRange(0, 1)] = 1.0

    def correct(self, client: ClientView, grads: Tree, batch: Batch) -> Tree:
        length = self.ahead * client.lr
        return client.gradient(at=tree.map(lambda g, v: v - length * g, grads, client.params))
