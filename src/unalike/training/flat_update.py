"""A client update as one flat tree: the form in which it goes to another process, over a network, and to disk."""

from unalike.core import tree
from unalike.core.types import ClientUpdate, PartTrees, Tree

NUMBERS = ("size", "steps", "weight", "loss")
"""The fields of a client update that are one tensor each."""
MESSAGES = "messages."
SHARED = "shared."
"""Prefixes of the trees of parts, of which an update has several."""


def flatten_update(client_update: ClientUpdate) -> Tree:
    """`update/<parameter>`, `buffers/<buffer>`, `messages.<part>/<name>`, `shared.<fact>/<name>`, and each number by its name."""
    trees = {"update": client_update.update, "buffers": client_update.buffers}
    for part, message in client_update.messages.items():
        trees[MESSAGES + part] = message
    for fact, values in client_update.shared.items():
        trees[SHARED + fact] = values
    numbers = {name: getattr(client_update, name) for name in NUMBERS}
    return tree.pack(trees) | numbers


def restore_update(flat: Tree) -> ClientUpdate:
    """The inverse of `flatten_update`."""
    trees = tree.unpack({name: t for name, t in flat.items() if name not in NUMBERS})
    return ClientUpdate(
        update=trees.get("update", {}),
        buffers=trees.get("buffers", {}),
        messages=_of_kind(trees, MESSAGES),
        size=flat["size"],
        steps=flat["steps"],
        weight=flat["weight"],
        loss=flat["loss"],
        shared=_of_kind(trees, SHARED),
    )


def _of_kind(trees: PartTrees, prefix: str) -> PartTrees:
    return {name.removeprefix(prefix): t for name, t in trees.items() if name.startswith(prefix)}
