"""The data of one client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unalike._utils.errors import UnalikeError
from unalike.data import array_checks
from unalike.data.array_checks import Arrays, Pair


@dataclass(frozen=True, eq=False)
class ClientData:
    """One client's data: `train`, `test` and `val` are (x, y) of tensors or arrays, as in `Dataset`.

    A client without training samples is allowed: it is listed and never selected. Raises `UnalikeError`, which names
    the client, for unequal lengths, numbers that are not finite, kinds of arrays that cannot be used and a name that is no
    text.
    """

    train: Pair
    test: Pair | None = None
    val: Pair | None = None
    name: str | None = None

    if TYPE_CHECKING:  # what is given as arrays is held as tensors

        def __init__(
            self, train: Arrays, test: Arrays | None = None, val: Arrays | None = None, name: str | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.name, str | None):
            raise UnalikeError(
                f"found a client with name={self.name!r}, expected a text: write name={str(self.name)!r}"
            )
        owner = "a client without a name" if self.name is None else f"client {self.name!r}"
        object.__setattr__(self, "train", array_checks.pair(self.train, f"{owner}, train"))
        for part in ("test", "val"):
            if getattr(self, part) is not None:
                object.__setattr__(self, part, array_checks.pair(getattr(self, part), f"{owner}, {part}"))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{part} {len(pair[1])}" for part, pair in self.parts().items())
        return f"<ClientData {self.name or 'without a name'}: {sizes} samples>"

    def parts(self) -> dict[str, Pair]:
        """The parts that the client has, by name."""
        found = {"train": self.train, "test": self.test, "val": self.val}
        return {part: pair for part, pair in found.items() if pair is not None}
