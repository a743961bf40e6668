"""Adapter for modules whose output is not a tensor of logits."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from unalike._utils.errors import UnalikeError


class Logits(nn.Module):
    """A module of another library as a model: its input by name, its logits by name or position.

    >>> net = Logits(vit, "logits", input="pixel_values")  # doctest: +SKIP

    Args:
        module: The module. Its parameters get the prefix "module.".
        output: Attribute or key of the logits in the module's output, such as "logits", or their position in a tuple.
        input: Name of the argument that takes the samples, such as "pixel_values" or "input_ids"; None: the first argument.
        mask: Name of the argument that takes 1 for tokens and 0 for padding (token 0), such as "attention_mask"; None: none.

    Shapes:
        input: the samples [B, ...], as the module takes them.

    Raises:
        UnalikeError: The output has no such entry, or the entry is not a tensor.
    """

    def __init__(
        self,
        module: nn.Module,
        output: str | int = "logits",
        *,
        input: str | None = None,
        mask: str | None = None,
    ):
        super().__init__()
        if not isinstance(module, nn.Module):
            raise UnalikeError(f"Logits: found {module!r}, expected a torch.nn.Module")
        self.module = module
        self.output = output
        self.input = input
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        named = {} if self.mask is None else {self.mask: (x != 0).long()}
        if self.input is None:
            result = self.module(x, **named)
        else:
            named[self.input] = x
            result = self.module(**named)
        logits = _entry(result, self.output)
        if not isinstance(logits, Tensor):
            raise UnalikeError(
                f"{type(self.module).__name__} returns {_described(result)}; "
                f"expected a tensor at output={self.output!r}: name the entry that "
                "holds the logits"
            )
        return logits


def _entry(result: Any, output: str | int) -> Any:
    """The entry of a module's output with this name or position; None if there is none."""
    if isinstance(output, int):
        if isinstance(result, Sequence) and -len(result) <= output < len(result):
            return result[output]
        return None
    if isinstance(result, Mapping):
        return result.get(output)
    return getattr(result, output, None)


def _described(result: Any) -> str:
    """Type of an output and the names of its entries."""
    kind = type(result).__name__
    if isinstance(result, Mapping):
        names = ", ".join(repr(name) for name in result)
        return f"{kind} with {names or 'nothing'}"
    if isinstance(result, Sequence):
        return f"{kind} of {len(result)}"
    return kind
