"""Every two methods combine, in either order, or say why not by the names of both."""

from itertools import combinations

import pytest
import torch
from every_method import METHODS, federation, rounding
from simulation import distance

from unalike._utils.errors import UnalikeError
from unalike.methods.method import Method

ATTACK = Method.parse("alie")
"""It stands for all attacks, which act in the same place."""
PAIRS = list(
    combinations(
        [m for m in METHODS.values() if m != Method() and (m.attack is None or m == ATTACK)], 2
    )
)


def title(pair):
    return " | ".join("+".join(p.name for p in m.parts if p not in Method().parts) for m in pair)


@pytest.mark.parametrize("pair", PAIRS, ids=title)
def test_pair_of_methods_combines_in_either_order_or_is_refused_by_both_names(pair):
    a, b = pair
    try:
        both = a + b
    except UnalikeError as error:
        with pytest.raises(UnalikeError):
            b + a
        text = str(error)
        assert any(p.name + "(" in text for p in a.parts) and any(
            p.name + "(" in text for p in b.parts
        ), text
        assert "swap" in text
        return
    assert both == b + a and hash(both) == hash(b + a) and repr(both) == repr(b + a)
    assert Method.parse(repr(both)) == both
    assert {p for m in pair for p in m.parts if p not in Method().parts} <= set(both.parts)
    # one round of two clients, one with a single sample; in float64 where the server distils: of so few samples as much of the
    # update may be rounding as a processor's order of sums decides
    distils = rounding(both) != 1e-5
    work = {"epochs": 1, "lr": 0.05, "dtype": torch.float64 if distils else torch.float32}
    one, other = (federation(both, executor, **work) for executor in ("loop", "batched"))
    try:
        one.round([1, 2]), other.round([1, 2])
    except UnalikeError as error:  # what depends on the model is said when it is known
        assert repr(both) in str(error), error
        return
    assert all(t.isfinite().all() for t in one.params.values())
    assert distance(other.params, one.params, one.settings.model.params) < (
        1e-6 if distils else 1e-5
    )
    for drawer, kept in one.memory(1).items():
        torch.testing.assert_close(other.memory(1)[drawer], kept, rtol=1e-4, atol=1e-5)
