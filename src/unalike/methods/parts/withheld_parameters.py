"""Withheld parameters: an empty tensor is sent in their place, and the server reads zeros."""

from __future__ import annotations

from collections.abc import Set

from unalike.core.types import Tree

NOTHING = ":nothing"


def withheld(update: Tree, names: Set[str]) -> Tree:
    """The update with an empty tensor for each of these parameters, whatever uploads before made of them."""
    kept = {n: u for n, u in update.items() if n.split(":")[0] not in names}
    held = {n.split(":")[0]: u for n, u in update.items() if n not in kept}
    return kept | {n + NOTHING: u.new_zeros(0) for n, u in held.items()}


def restored(update: Tree, params: Tree) -> Tree:
    """The stacked update with zeros [K, ...] in the place of what was withheld."""
    zeros = {n.removesuffix(NOTHING): u for n, u in update.items() if n.endswith(NOTHING)}
    kept = {n: u for n, u in update.items() if not n.endswith(NOTHING)}
    return kept | {n: params[n].new_zeros(len(u), *params[n].shape) for n, u in zeros.items()}
