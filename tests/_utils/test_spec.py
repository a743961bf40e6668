"""Spec text, the registry, and the check of options against annotations."""

import numpy as np
import pytest
from torch import Tensor

from unalike._utils.errors import InvalidValue, UnalikeError
from unalike._utils.option_types import check_kinds
from unalike._utils.registry import Registry
from unalike._utils.spec import Call, parse, parse_one


def test_parse_names_with_literals_gives_calls():
    assert parse(" a + b(x=1, y=-2.5, z=(1, 'two', None), w=inf) ") == [
        Call("a"),
        Call("b", {"x": 1, "y": -2.5, "z": (1, "two", None), "w": float("inf")}),
    ]
    assert parse_one("a(x=True)") == Call("a", {"x": True})


@pytest.mark.parametrize(
    "text, hint",
    [
        ("", "cannot read '': it is empty; write"),
        ("fedprox(", r"cannot read 'fedprox\(': '\(' was never closed; write"),
        ("fedprox(0.1)", "parameter=value"),
        ("fedprox(**x)", r"\*\*"),
        ("a - b", "is not a name"),
        ("a.b", "is not a name"),
        ("a(x=b)", "not a literal"),
        ("a(x=open('f'))", "not a literal"),
        ("a(x=1)(y=2)", "is not a name"),
        ("3", "is not a name"),
        ("a(x=-'b')", "literal"),
        ("a(x=1, x=2)", "x"),
        ("__import__('os')", "parameter=value"),
        ("a\0", "cannot read"),
        ("a + " * 2_000 + "a", "too many terms"),
        ("a + " * 100_000 + "a", "found 400,001 letters, expected at most 10,000"),
        (f"a(x={'-' * 5_000}1)", "nests too deeply"),
        (f"a(x={'(' * 4_000}1{',)' * 2_000})", "cannot read"),
    ],
)
def test_parse_text_that_is_no_spec_is_refused_with_hint(text, hint):
    with pytest.raises(UnalikeError, match=hint):
        parse(text)


def test_spelling_leaves_texts_that_are_too_long():
    """Files of strangers hold specs: to look up each name of a long one takes minutes, and `parse` refuses it then."""
    names = Registry("thing", home="unalike.core")
    names.register("box")(lambda: None)
    assert names.spelled("BOX + Box") == "box + box"
    long = "BOX + " * 10_000 + "BOX"
    assert names.spelled(long) == long


def test_registry_builder_defined_again_replaces_itself_and_other_builder_is_refused():
    """A notebook's cell runs again; what another function stands for stays refused."""
    names = Registry("thing", home="unalike.core")

    def define(size):
        @names.register("box")
        def box():
            return size

    define(1)
    define(2)
    assert names.build(Call("box")) == 2
    with pytest.raises(UnalikeError, match=r"the thing name 'box' is taken by .*choose another"):
        names.register("box")(lambda: 3)


def test_parse_one_two_names_are_refused():
    with pytest.raises(UnalikeError, match="2 names"):
        parse_one("a + b")


def test_check_kinds_value_unlike_annotation_is_refused():
    def build(
        x: Tensor,
        *,
        n: int = 1,
        pair: tuple[float, int] | None = None,
        more: tuple[str, ...] = (),
        **rest: object,
    ):
        """Built of plain values."""

    check_kinds(build, {"n": np.int64(2), "pair": [1, 2], "more": ("a", "b"), "x": 3, "other": 4})
    for wrong, expected in (
        ({"n": True}, "found n=True, expected a whole number"),
        ({"n": 2.0}, "found n=2.0, expected a whole number"),
        ({"pair": (1, 2, 3)}, r"expected \(a number, a whole number\) or None"),
        ({"pair": (1, 2.5)}, r"expected \(a number, a whole number\) or None"),
        ({"more": "ab"}, r"expected \(a text, \.\.\.\)"),
    ):
        with pytest.raises(InvalidValue, match=expected):
            check_kinds(build, wrong)


def test_check_kinds_unresolvable_annotation_is_not_checked():
    def build(n: "Nowhere" = 1):  # noqa: F821
        """Built of what this module does not import."""

    check_kinds(build, {"n": "text"})
