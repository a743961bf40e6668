"""CReFF: the server learns features whose gradients are those of the clients' features, and trains the head on them again."""

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from torch.func import grad, jacrev, vmap

from unalike._utils import seeds
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.tasks.task import CLASS_LOGITS
from unalike.core.types import Tree
from unalike.core.views import ClientView, ServerView, StageSettings
from unalike.methods.method import alias
from unalike.methods.part import part
from unalike.methods.parts.class_means import SUMS_OF_CLASSES, membership
from unalike.methods.roles import Personalizer
from unalike.methods.search_space import LogRange, OneOf

FEATURES = "class.features"
SEEN = "class.seen"
HEAD = "head of "
"""Names in the server state: the features [C, M, D], 1 for each class that a client had [C], the prefix of the retrained head's."""
PRESENT = "class.present"
GRADIENT = "gradient of "
"""Names in a client's message: 1 for each class that it has [C], and the prefix of its gradients [C, *shape]."""
TINY = 1e-6
"""Added to a product of lengths, which may be 0."""


@alias(
    "creff",
    "The head is trained again on features that the server learns from gradients (Shang et al. 2022).",
)
@part
class FederatedFeatures(Personalizer):
    """FedAvg, evaluated with a head that was trained on M = `samples` features of each class (CReFF, Shang et al. 2022).

    Clients receive the retrained head and send, for each class c that they have, the gradient in it of the mean loss of their
    samples of c, at the features of the body received [C, *shape], and which classes these are [C]. The server takes the mean over
    the clients that have c, and moves its features by `steps` gradient steps of size `match_lr` down

        sum_c sum_r 1 - cos(row r of their gradient, row r of the clients' gradient), a bias being one row.

    Then it trains the model's initial head on the features of the classes seen so far: `epochs` full-batch steps of size `lr`.
    The shared model, with its head, is FedAvg's (protocol `clients`); `personal` has its body under the retrained
    head, the same for all clients. epochs = 0 evaluates the initial head.

    The authors' code takes the mean of ten augmented draws of 32 samples of a class, here it is all samples once; it trains a new
    random head in batches of 32, with lr = 0.01. It reads `args.feature` where its options define `lr_feature`, and so
    ends with an error before the first round.
    """

    needs_of_task: ClassVar[str] = CLASS_LOGITS
    needs_data = True
    special_group = "head"
    predicts_as_received = True
    sums_show_clients = SUMS_OF_CLASSES

    samples: Annotated[PositiveInt, OneOf(10, 100)] = 100
    steps: NonNegativeInt = 100
    match_lr: Annotated[PositiveFloat, LogRange(1e-2, 1)] = 0.1
    epochs: NonNegativeInt = 300
    lr: Annotated[PositiveFloat, LogRange(1e-2, 1)] = 0.1

    def server_open(self, settings: StageSettings) -> Tree:
        model = settings.model
        head = _initial_head(model)
        width, classes = model.head_size
        generator = torch.Generator().manual_seed(seeds.number(settings.seed, self.name))
        features = torch.randn(classes, self.samples, width, generator=generator)
        features = features.to(next(iter(model.params.values())))
        state = {FEATURES: features, SEEN: features.new_zeros(classes)}
        return state | tree.prefixed(HEAD, head)

    def broadcast(self, server: ServerView) -> Tree:
        return tree.under(server.state, HEAD)

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        head, model = client.message, client.model
        body = client.initial_params | client.received_params
        _, classes = model.head_size
        like = next(iter(client.received_params.values()))
        counts = like.new_zeros(classes)
        sums = tree.map(lambda w: like.new_zeros(classes, *w.shape), head)
        for batch in client.data.whole:
            z = model.features(
                body, batch.x, buffers=client.initial_buffers, context=client.context
            )
            member = membership(batch, classes).to(z.dtype)

            def losses(
                w: Tree, z: Tensor = z, y: Tensor = batch.y, member: Tensor = member
            ) -> Tensor:
                """The sum of the losses of each class, [C]."""
                return member.T @ F.cross_entropy(model.head(w, z), y, reduction="none")

            sums = tree.add(sums, jacrev(losses)(head))
            counts = counts + member.sum(0)
        means = _over_classes(sums, counts)
        message = {PRESENT: counts.clamp_max(1)}
        return client.state, message | tree.prefixed(GRADIENT, means)

    def why_impossible(self, message: Tree, samples: int) -> str:
        present = message[PRESENT]
        is_flag = (present == 0) | (present == 1)
        return "" if bool(is_flag.all()) else "classes that are neither there (1) nor not (0)"

    def fold(self, update: Tree, message: Tree, importance: Tensor) -> Tree:
        return message

    def absorb(self, server: ServerView, folded: Tree) -> Tree:
        model = server.settings.model
        clients = folded[PRESENT]
        wanted = _over_classes(tree.under(folded, GRADIENT), clients)
        has_gradient = clients.clamp_max(1)
        seen = torch.maximum(server.state[SEEN], has_gradient)

        # the features follow the gradients in the head with which clients took them, and only then a new head is trained
        z = server.state[FEATURES]
        old_head = tree.under(server.state, HEAD)
        slope = grad(lambda z: _mismatch(model, old_head, z, wanted, has_gradient))
        for _ in range(self.steps):
            z = z - self.match_lr * slope(z)
        head = self._train_head(model, z, seen)
        return {FEATURES: z, SEEN: seen} | tree.prefixed(HEAD, head)

    def _train_head(self, model: Model, z: Tensor, seen: Tensor) -> Tree:
        """The head after its training on features [C, M, D] of the classes seen [C]."""
        head = _initial_head(model)
        y = torch.arange(len(z), device=z.device)
        slope = grad(lambda w: (seen * _losses(model, w, z, y)).sum() / seen.sum())
        for _ in range(self.epochs):
            head = tree.map(lambda w, g: w - self.lr * g, head, slope(head))
        return head

    def personal(self, model: Model, params: Tree, state: Tree) -> Tree:
        return params | tree.shared(state, params)


def _initial_head(model: Model) -> Tree:
    return {n: w for n, w in model.params.items() if model.in_head(n) and model.trainable(n)}


def _over_classes(sums: Tree, counts: Tensor) -> Tree:
    """sums [C, *shape] / counts [C]; 0 for a class without any."""
    some = counts.clamp_min(1)
    return tree.map(lambda g: g / some.view(-1, *[1] * (g.dim() - 1)), sums)


def _loss_of_class(model: Model, head: Tree, z: Tensor, y: Tensor) -> Tensor:
    """The mean loss of features z [M, D] of the class y []."""
    return F.cross_entropy(model.head(head, z), y.expand(len(z)))


OF_CLASSES = (None, None, 0, 0)
"""The features of a class [C, M, D] enter the loss of this class [C] alone."""
_losses = vmap(_loss_of_class, OF_CLASSES)
_gradients = vmap(grad(_loss_of_class, argnums=1), OF_CLASSES)


def _mismatch(model: Model, head: Tree, z: Tensor, wanted: Tree, counts: Tensor) -> Tensor:
    """sum_c counts_c sum_r 1 - cos of the rows of the gradients of features z [C, M, D], and the wanted ones [C, *shape]."""
    gradients = _gradients(model, head, z, torch.arange(len(z), device=z.device))
    total = torch.zeros_like(counts)
    for name, gradient in gradients.items():
        rows = gradient if gradient.dim() > 2 else gradient[:, None]
        wanted_rows = wanted[name].view_as(rows)
        lengths = rows.norm(dim=2) * wanted_rows.norm(dim=2) + TINY
        total = total + (1 - (rows * wanted_rows).sum(2) / lengths).sum(1)
    return (counts * total).sum()
