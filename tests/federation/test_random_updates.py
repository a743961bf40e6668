"""Random updates, correctly signed by an enrolled site, are refused: they neither end the run nor change the model."""

from __future__ import annotations

import json

import numpy as np
import torch
from small_federation import SmallFederation, key_of, make_clients, states

from unalike.federation.protocol.envelope import seal

NASTY = [
    None,
    True,
    -1,
    0,
    1e308,
    -0.0,
    2**70,
    "",
    "x" * 300,
    [],
    {},
    [[]],
    {"n": {}},
    [None],
    "\ud800",
]


def mangled(value, rng):
    """A JSON value with a random change."""
    if rng.random() < 0.3:
        return NASTY[int(rng.integers(len(NASTY)))]
    if isinstance(value, dict) and value:
        key = str(rng.choice(list(value)))
        if rng.random() < 0.2:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: mangled(value[key], rng)}
    if isinstance(value, list) and value:
        at = int(rng.integers(len(value)))
        return [*value[:at], mangled(value[at], rng), *value[at + 1 :]]
    return NASTY[int(rng.integers(len(NASTY)))]


def twisted(tensors, rng):
    """Tensors with random changes of names, types, shapes or values."""
    if not tensors or rng.random() < 0.1:
        return {
            str(rng.choice(["", "/", "a", "update", "update/", "messages./", "x" * 100]))
            or "e": torch.zeros(2)
        }
    name = str(rng.choice(list(tensors)))
    t = tensors[name]
    other = [
        lambda: t.double(), lambda: t.to(torch.int8), lambda: t > 0, lambda: t.flatten(), lambda: t[None],
        lambda: t.new_zeros(0), lambda: t * float("nan") if t.is_floating_point() else t[None],
        lambda: t * 1e30 * 1e30 if t.is_floating_point() else t[None], lambda: t.to(torch.bfloat16), lambda: t.reshape(-1)[:1],
    ]  # fmt: skip
    changed = tensors | {name: other[int(rng.integers(len(other)))]()}
    if rng.random() < 0.3:
        changed[name + "/more"] = t
    if rng.random() < 0.2:
        del changed[name]
    return changed


def test_fifty_rounds_of_random_updates_give_finite_model(tmp_path):
    clients = make_clients(((20, 8), (12, 6), (16, 6)))
    fed = SmallFederation(
        tmp_path, clients, "scaffold + feddisco", rounds=50, quorum=2, guard=5.0, deadline=20.0
    )
    rng = np.random.default_rng(0)
    stages = []

    def change(head, facts, tensors):
        stages.append(head.stage)
        if not head.stage:
            return None
        if rng.random() < 0.5:
            facts = mangled(facts, rng)
        else:
            tensors = twisted(tensors, rng)
        try:
            json.dumps(facts, allow_nan=False).encode()
            return seal(head, facts, tensors, key_of(2))
        except (ValueError, TypeError):
            return seal(head, {"facts": "none"}, tensors, key_of(2))

    fed.corrupt("site2", change)
    run = fed.run()
    assert len(run.history) == 51
    assert all(t.isfinite().all() for t in states(run)["all"].values())
    assert (run.history.rounds["participants"][1:] >= 2).all()
    assert len(fed.events("refused")) > 37
