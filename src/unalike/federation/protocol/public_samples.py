"""Public samples that sites predict with their own models: what the terms say of them, and the check of those at hand."""

import re
from typing import Annotated, Self

import pydantic
from pydantic import PositiveInt

from unalike._utils.errors import UnalikeError
from unalike._utils.validated import validated
from unalike.core.codec import checksum
from unalike.core.inputs import Inputs, tensors_by_place, with_tensors_by_place
from unalike.core.types import Tree
from unalike.data.array_checks import Pair

PUBLIC_FILE = "public.safetensors"
"""The file of the public samples in a bundle."""


def _check_digest(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ValueError("expected the 64 hexadecimal digits of a SHA-256")
    return text


@validated
class PublicSamples:
    """The terms about public samples: their number, and the SHA-256 of their names, types, shapes and values.

    Nothing but these samples is predicted for a method that asks for predictions of the sites' own models.
    """

    samples: PositiveInt
    sha256: Annotated[str, pydantic.AfterValidator(_check_digest)]

    @classmethod
    def of(cls, samples: Pair) -> Self:
        """The terms about these samples (x, y)."""
        _, y = samples
        return cls(len(y), _digest(samples))

    def check(self, found: Pair | None) -> None:
        """Raise `UnalikeError` for other samples than the agreed ones."""
        if found is None:
            raise UnalikeError(
                f"the terms name {self.samples} public samples, and they are missing; expected the file {PUBLIC_FILE} of the "
                "bundle: ask for it again"
            )
        digest = _digest(found)
        if digest != self.sha256:
            _, y = found
            raise UnalikeError(
                f"found {len(y)} public samples with the SHA-256 {digest}; expected the agreed {self.samples} with {self.sha256}: "
                "ask for the bundle again, and compare the fingerprint of the federation"
            )


def tensors_of_samples(samples: Pair) -> Tree:
    """The arrays of samples (x, y) by their places, as they are in a file."""
    x, y = samples
    return tensors_by_place(x) | {"y": y}


def samples_of_tensors(tensors: Tree, like: Inputs) -> Pair:
    """The samples in a file whose inputs are a tree as `like`. Raises `UnalikeError` for others."""
    missing = {*tensors_by_place(like), "y"} - tensors.keys()
    if missing:
        raise UnalikeError(f"found samples without {', '.join(sorted(missing))}; expected them")
    return with_tensors_by_place(like, tensors), tensors["y"]


def _digest(samples: Pair) -> str:
    tensors = tensors_of_samples(samples)
    return checksum({name: tensors[name].cpu() for name in sorted(tensors)})
