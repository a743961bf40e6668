"""The role of an attack: what the malicious clients of a simulation train on and send."""

from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Batch, Tree
from unalike.core.views import Cohort, ServerView
from unalike.methods.part import Setup, overrides
from unalike.methods.roles import CohortStep


class Attack(CohortStep):
    """The acts of malicious clients in a simulation; a method has at most one, and a real federation refuses it.

    A run draws them from its seed: `share` of the clients with training samples, the same ones for every attack, those of
    a smaller share among those of a larger one. The scores are those of the other clients: the malicious ones have no test samples.
    Their messages and buffers are what their training makes of them. Limit case: share = 0 is the base method.
    """

    has_own_name: ClassVar[bool] = True
    simulated_only: ClassVar[str] = "an attack on a run with malicious clients"
    share: float

    @property
    def needs(self) -> Literal["sums", "spread", "updates"]:  # type: ignore[override]
        """All updates, where it forges some."""
        return "updates" if self.share and overrides(self, "forge") else "sums"

    @property
    def goal(self) -> int | None:
        """The class that a backdoor makes of samples with its trigger; None for other attacks."""
        return None

    def triggered(self, x: Tensor) -> Tensor:
        """Samples with the trigger of a backdoor, [n, ...] as they are given. Default: unchanged."""
        return x

    def poison(self, data: Batch, classes: int, generator: np.random.Generator) -> Batch:
        """As many samples for a malicious client in the place of its training samples. Called once a run. Default: these.

        Args:
            data: All its training samples.
            classes: Number of classes of the labels; 0 for regression.
            generator: Random numbers for this client.
        """
        return data

    def forge(self, server: ServerView, own: Tree, honest: Tree) -> Tree:
        """Updates that the m malicious clients of a round send, without [m] if all the same. Called on the server once a round.

        Args:
            server: View of the server before the update.
            own: The decoded updates of their own training, [m, ...] each; the default.
            honest: Those of the other clients of the round, [K - m, ...] each.
        """
        return own

    def receive(self, server: ServerView, cohort: Cohort) -> Cohort:
        """The cohort with what its malicious clients send; as it is where the attack forges no update.

        Args:
            server: View of the server before the round's update; its settings say who is malicious.
            cohort: The client updates, decoded.
        """
        if self.needs == "sums" or not cohort.update:
            return cohort
        is_malicious = torch.tensor([k in server.settings.malicious for k in cohort.ids])
        if not is_malicious.any():
            return cohort
        own = tree.row(cohort.update, is_malicious)
        honest = tree.row(cohort.update, ~is_malicious)
        forged = self.forge(server, own, honest)
        rows = is_malicious.nonzero()[:, 0]

        def with_forged(update: Tensor, replacement: Tensor) -> Tensor:
            return update.index_put((rows.to(update.device),), replacement.to(update))

        return cohort.with_update(tree.map(with_forged, cohort.update, forged))

    def shortfall(self, setup: Setup) -> str:
        """The reason: no client is malicious, or sends what is forged, or half or more are, so that no defence can outvote them."""
        count = len(setup.settings.malicious)
        if not count and self.share > 0:
            return f"none of {setup.clients} clients is malicious with share={self.share}"
        if self.needs == "updates" and not setup.sends_updates:
            return "it forges updates, and clients send none"
        if 2 * count >= setup.clients:
            return f"{count} of {setup.clients} clients are malicious: a defence that needs an honest majority cannot hold"
        return ""
