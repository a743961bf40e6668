"""FedRoD: a further head of the client's own corrects the shared model's logits."""

from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.types import Batch, Context, Output, Tree
from unalike.core.views import ClientView
from unalike.methods.part import part
from unalike.methods.roles import PersonalModel


@part
class PersonalHead(PersonalModel):
    """Logits u + h_k(z): those of the shared model and of the client's own head h_k on its features z (FedRoD, Chen and Chao 2022).

    h_k starts as the shared head, stays on the client and is trained in the same steps by the task's loss at u + h_k(z), in which u
    and z are constant: what is shared trains as without this part, bit by bit. Heads are linear; the paper's hypernetwork,
    which makes heads for new clients, is left out. PFLlib and fluke do the same; FL-bench predicts with h_k alone, and lets its
    loss train the body, too.
    """

    special_group = "head"

    def keeps(self, name: str, model: Model) -> bool:
        return model.in_head(name)

    def client_init(self, params: Tree) -> Tree:
        return params

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        shared = client.out(batch)
        corrected = self._corrected(client.model, shared, client.state)
        return client.task_loss(corrected, batch)

    def predict(
        self, model: Model, shared: Tree, state: Tree, own: Tree, x: Tensor, context: Context
    ) -> Output:
        buffers = tree.only(shared, model.buffers)
        output = model(shared, x, buffers=buffers, context=context)
        return self._corrected(model, output, state)

    def _corrected(self, model: Model, output: Output, head: Tree) -> Output:
        """The output with u + h_k(z), in which u and z are constant."""
        if output.features is None:
            raise UnalikeError(
                "personal_head needs the input of the model's head, and the model shows none; give the module an attribute `head`"
            )
        own = model.head(head, output.features.detach())
        return output._replace(logits=output.logits.detach() + own)
