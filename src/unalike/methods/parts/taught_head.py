"""FedGH: the server trains the head on the clients' mean features of each class."""

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from unalike.core import tree
from unalike.core.tasks.task import CLASS_LOGITS
from unalike.core.types import Tree
from unalike.core.views import ClientView, Cohort, ServerView
from unalike.methods.part import part
from unalike.methods.parts.class_means import class_features, descended_on_means
from unalike.methods.parts.uploads import restore, withhold
from unalike.methods.roles import Aggregator, Upload
from unalike.methods.search_space import LogRange

MEANS = "class.means"
PRESENT = "class.present"
"""Names in a client's message."""


@part
class TaughtHead(Upload, Aggregator):
    """theta <- theta - lr grad CE(head_theta(z_kc), c) on the clients' class means z_kc (FedGH, Yi et al. 2023, eqs. 4 to 6).

    Clients train the head received with their body, but do not send it: what comes up is, for each class that a client has, the
    mean z_kc of its features after training [C, D], and which classes these are [C]. The server makes `epochs` passes of SGD over
    all pairs (z_kc, c), in a random order and batches of `batch_size`, from the head that went down. What else is shared is
    averaged. epochs = 0 or lr = 0 leaves the head as it is.

    The paper takes one pair per step in the order of the clients, PFLlib shuffled batches of 10. Nothing is learned where heads are
    private.
    """

    lr: Annotated[NonNegativeFloat, LogRange(1e-3, 1)] = 0.01
    epochs: NonNegativeInt = 1
    batch_size: PositiveInt = 10

    needs_of_task: ClassVar[str] = CLASS_LOGITS
    rank: ClassVar[int] = Upload.WITHHOLD
    needs_data = True
    special_group = "head"

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        features = class_features(client, client.params)
        present = (features.counts > 0).to(torch.uint8)
        return client.state, {MEANS: features.means, PRESENT: present}

    def encode(self, client: ClientView, update: Tree) -> tuple[Tree, Tree]:
        head = {n for n in client.model.params if client.model.in_head(n)}
        return withhold(update, head), client.state

    def decode(self, update: Tree, params: Tree, round: int) -> Tree:
        return restore(update, params)

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        update = tree.weighted_sum(cohort.update, weights)
        head = {n: w for n, w in server.params.items() if server.settings.model.in_head(n)}
        if not head:
            return update
        # the pairs (z_kc, c) of the classes that clients have
        client, y = cohort.message[PRESENT].nonzero().unbind(1)
        z = cohort.message[MEANS][client, y]
        return update | tree.sub(self._train_head(server, head, z, y), head)

    def _train_head(self, server: ServerView, head: Tree, z: Tensor, y: Tensor) -> Tree:
        """The head after its training on features [n, D] of classes [n]."""
        return descended_on_means(
            lambda w, z, y: F.cross_entropy(server.settings.model.head(w, z), y),
            head,
            z,
            y,
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            generator=server.generator,
        )
