"""The role of an upload that takes fewer bytes."""

from abc import abstractmethod
from typing import ClassVar

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import ClientView, PartLookup
from unalike.core.work import Work
from unalike.methods.roles import Upload


class Compressor(Upload):
    """A lossy encoding, in fewer bytes.

    With `error_feedback`, what was lost stays on the client and joins its next update: e <- (update + e) - decoded (Seide et al.
    2014; Karimireddy et al. 2019). The client state then holds one model.
    """

    has_own_name: ClassVar[bool] = True
    error_feedback: bool

    @abstractmethod
    def compress(self, client: ClientView, update: Tree, state: Tree) -> tuple[Tree, Tree]:
        """The tensors to send for an update with its error, and the client state but for the error. No default."""

    def client_init(self, params: Tree) -> Tree:
        """The error, 0 at first; nothing without error feedback."""
        return tree.zeros(params) if self.error_feedback else {}

    def encode(self, client: ClientView, update: Tree) -> tuple[Tree, Tree]:
        """Compress the update, with the error of the round before."""
        state = client.state
        if not self.error_feedback:
            return self.compress(client, update, state)
        shared = tree.shared(update, state)
        update = update | {n: u + state[n] for n, u in shared.items()}
        encoded, state = self.compress(client, update, state)
        # the server decodes updates of several clients, [K, ...]; here K = 1
        decoded = self.decode(tree.map(lambda t: t[None], encoded), update, client.round)
        errors = {n: update[n] - decoded[n][0] for n in shared}
        return encoded, state | errors

    def check(self, method: PartLookup, work: Work) -> None:
        """Refuse error feedback of what another part has compressed before."""
        first = method.role(Compressor)[0]
        if self.error_feedback and first is not self:
            raise UnalikeError(
                f"{self.name} gets what {first.name} left; give error_feedback=True to {first.name} alone"
            )


class Sparsifier(Compressor):
    """A compressor to fewer numbers; a method has at most one."""

    rank: ClassVar[int] = Upload.SPARSIFY
