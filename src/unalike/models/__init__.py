"""Models by name.

Start at `registry.py`, which builds a model from a spec. `check.py` validates options, `adapter.py` takes
modules of other libraries, `checkpoint.py` reads initial weights; every other module is a family of networks.
Importing this package registers all models.
May import `unalike.core` and `unalike._utils` only.
"""

from unalike.models import (
    adapter,
    checkpoint,
    cnn,
    conditional,
    dense,
    densenet,
    mobilenet,
    resnet,
    text,
    vgg,
    vit,
)
from unalike.models.registry import model, registry

__all__ = [
    "adapter",
    "checkpoint",
    "cnn",
    "conditional",
    "dense",
    "densenet",
    "mobilenet",
    "model",
    "registry",
    "resnet",
    "text",
    "vgg",
    "vit",
]
