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
        self.module, self.output, self.input, self.mask = module, output, input, mask

    def forward(self, x: Tensor) -> Tensor:
        masks = {} if self.mask is None else {self.mask: (x != 0).long()}
        result = (
            self.module(x, **masks)
            if self.input is None
            else self.module(**{self.input: x}, **masks)
        )
        logits = _entry(result, self.output)
        if not isinstance(logits, Tensor):
            raise UnalikeError(
                f"{type(self.module).__name__} returns {_described(result)}; expected a tensor at output={self.output!r}: "
                "name the entry that holds the logits"
            )
        return logits


def _entry(result: Any, output: str | int) -> Any:
    if isinstance(output, int):
        return (
            result[output]
            if isinstance(result, Sequence) and -len(result) <= output < len(result)
            else None
        )
    return result.get(output) if isinstance(result, Mapping) else getattr(result, output, None)


def _described(result: Any) -> str:
    """Type of an output and the names of its entries."""
    kind = type(result).__name__
    if isinstance(result, Mapping):
        return f"{kind} with {', '.join(map(repr, result)) or 'nothing'}"
    if isinstance(result, Sequence):
        return f"{kind} of {len(result)}"
    return kind
