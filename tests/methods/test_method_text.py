"""Methods as text: refusals with a hint, `swap`, and what `repr` prints."""

import pytest

from unalike._utils.errors import UnalikeError
from unalike.methods.method import Method
from unalike.methods.plan import plan


@pytest.mark.parametrize(
    "text, hint",
    [
        ("fedporx", "fedprox"),
        ("fedprox(nu=1)", "mu=0.001"),
        ("fedprox(mu=-1)", "mu=-1"),
        ("fedprox(mu='much')", "mu"),
        ("scaffold(option=3)", "option=3"),
        ("apfl(mixing='both')", "mixing"),
        ("apfl(alpha=1.5)", "alpha"),
        ("feddyn(alpha=0)", "alpha"),
        ("moon(tau=0)", "tau"),
        ("fedsa(micro=0)", "micro"),
        ("fedavgm(momentum=1)", "momentum"),
        ("clip(norm=0)", "norm"),
        ("fedlws(scope='all')", "scope"),
        ("fedlws(clamp=(0.2,))", "clamp"),
        ("proximal(mu=nan)", "mu"),
        ("private(select='tail')", "select"),
        ("fedprox(mu=0.1) + fedprox(mu=0.2)", "different settings"),
        ("fedsa + fednova", "room for one"),
        ("ditto + apfl", "room for one"),
        ("ditto + private", "evaluated"),
        ("centralised + fedprox", "pooled data"),
    ],
)
def test_plan_wrong_method_text_is_refused_with_hint(text, hint):
    with pytest.raises(UnalikeError, match=hint):
        plan(text)


def test_method_swap_replaces_part_of_same_role():
    m = Method.parse("fedprox + scaffold")
    assert m.swap("proximal(mu=1)") == Method.parse("scaffold + fedprox(mu=1)")
    assert Method.parse("fednova + lws").swap("normalized_skew") == Method.parse(
        "normalized_skew + lws"
    )


def test_method_swap_to_default_part_equals_method_with_that_setting():
    assert Method.parse("scaffold").swap("by_size") == Method.parse("scaffold(weighted=True)")


def test_method_repr_with_infinity_in_tuple_parses_to_equal_method():
    [lws] = [p for p in Method.parse("fedlws(clamp=(0.01, 0.2))").parts if p.name == "lws"]
    method = Method(type(lws)(clamp=(0.01, float("inf"))))
    assert Method.parse(repr(method)) == method
