"""Parameters that neither train nor are sent."""

from __future__ import annotations

from typing import ClassVar, Literal

from unalike.core.model import Model
from unalike.methods.part import part
from unalike.methods.roles import Personalizer


@part
class Fixed(Personalizer):
    """The `select`ed part of the model, "head" or "body", neither trains nor is sent; its buffers are not averaged either.

    Unlike a private part it is the same on all clients: what the run, or a stage of a plan, started with.
    """

    published: ClassVar[bool] = True

    select: Literal["head", "body"] = "head"

    def trainable(self, name: str, model: Model) -> bool:
        return model.in_head(name) != (self.select == "head")

    def shared(self, name: str, model: Model) -> bool:
        return self.trainable(name, model)
