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


def is_combined(method):
    """Whether the method is one to combine: not FedAvg, to which all others add, nor one that is a method by itself."""
    if method == Method() or any(part.stands_alone for part in method.parts):
        return False
    return method.attack is None or method == ATTACK


COMBINED = [method for method in METHODS.values() if is_combined(method)]


def own_parts(method):
    """The parts that a method adds to FedAvg."""
    return [part for part in method.parts if part not in Method().parts]


def title(methods):
    names = ["+".join(part.name for part in own_parts(method)) for method in methods]
    return " | ".join(names)


def roles(method):
    """The names of the roles that a method adds to FedAvg: where its code runs."""
    bases = [base for part in own_parts(method) for base in type(part).__mro__]
    return tuple(sorted({base.__name__ for base in bases if base.__module__.endswith(".roles")}))


def combine(methods):
    """Both methods in one, or None where they are refused."""
    a, b = methods
    try:
        return a + b
    except UnalikeError:
        return None


def representatives():
    """A pair of methods for every two sets of roles that combine: of those that represent fewest other sets."""
    by_roles = {}
    for pair in combinations(COMBINED, 2):
        if combine(pair) is not None:
            place = tuple(sorted(map(roles, pair)))
            by_roles.setdefault(place, []).append(pair)
    times_chosen = dict.fromkeys(COMBINED, 0)
    chosen = []
    for pairs in by_roles.values():
        pair = min(pairs, key=lambda pair: sum(times_chosen[method] for method in pair))
        chosen.append(pair)
        for method in pair:
            times_chosen[method] += 1
    assert min(times_chosen.values()) > 0
    return chosen


REPRESENTATIVES = representatives()
OTHERS = [pair for pair in combinations(COMBINED, 2) if pair not in REPRESENTATIVES]
PLAYED = [
    *(pytest.param(pair, id=title(pair)) for pair in REPRESENTATIVES),
    *(pytest.param(pair, id=title(pair), marks=pytest.mark.exhaustive) for pair in OTHERS),
]


@pytest.mark.parametrize("method", COMBINED, ids=lambda method: title([method]))
def test_method_combines_with_others_in_either_order_or_is_refused_by_both_names(method):
    for other in COMBINED:
        if other == method:
            continue
        try:
            both = method + other
        except UnalikeError as error:
            with pytest.raises(UnalikeError):
                other + method
            text = str(error)
            for refused in (method, other):
                assert any(part.name + "(" in text for part in refused.parts), text
            assert "swap" in text
            continue
        reverse = other + method
        assert both == reverse and hash(both) == hash(reverse) and repr(both) == repr(reverse)
        assert Method.parse(repr(both)) == both
        assert set(own_parts(method) + own_parts(other)) <= set(both.parts)


@pytest.mark.parametrize("pair", PLAYED)
def test_round_of_two_methods_together_is_the_same_in_both_executors(pair):
    """One round of two clients, one with a single sample."""
    both = combine(pair)
    if both is None:
        return
    # in float64 where the server distils: of so few samples as much of the update may be rounding as a processor's order of sums
    # decides
    distils = rounding(both) != 1e-5
    work = {"epochs": 1, "lr": 0.05, "dtype": torch.float64 if distils else torch.float32}
    try:
        one, other = (federation(both, executor, **work) for executor in ("loop", "batched"))
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
