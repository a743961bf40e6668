"""Models by name.

Start at `registry.py`, which builds a model from a spec. `check.py` validates options; every other module is a family of networks.
Importing this package registers all models.
May import `unalike.core` and `unalike._utils` only.
"""

from unalike.models import cnn, conditional, dense, densenet, resnet, textcnn, vit
from unalike.models.registry import model, registry

__all__ = ["cnn", "conditional", "dense", "densenet", "model", "registry", "resnet", "textcnn", "vit"]
