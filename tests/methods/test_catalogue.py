"""Names of papers: a method of one part has the part's fields, types, ranges and defaults."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from unalike._utils.errors import UnalikeError
from unalike.methods.method import Method, alias
from unalike.methods.part import registry
from unalike.methods.parts.objectives import Proximal
from unalike.methods.parts.personalizers import Private


def test_alias_has_signature_and_docstring():
    fedprox = registry["fedprox"]
    assert fedprox.__name__ == "fedprox" and "Li et al. 2020" in inspect.getdoc(fedprox)
    [mu] = inspect.signature(fedprox).parameters.values()
    assert mu.name == "mu" and mu.default == Proximal().mu and mu.annotation.__origin__ is float
    assert fedprox(mu=2) == Method(Proximal(mu=2))


def test_alias_with_a_fixed_field_does_not_take_it():
    assert Method.parse("fedbn") == Method(Private("norm"))
    with pytest.raises(UnalikeError, match=r"fedbn\(select='all'\).*it takes fedbn\(\)"):
        Method.parse("fedbn(select='all')")


@pytest.mark.parametrize(
    "value, why", [("True", "expected a number"), ("'much'", "expected a number"), ("-1", "mu=-1")]
)
def test_alias_with_invalid_value_is_refused_by_its_own_name(value, why):
    with pytest.raises(
        UnalikeError, match=rf"fedprox\(mu={value}\): .*{why}.*it takes fedprox\(mu=0.001\)"
    ):
        Method.parse(f"fedprox(mu={value})")


def test_alias_of_a_taken_name_is_refused():
    with pytest.raises(UnalikeError, match="the method or part name 'fedprox' is taken"):
        alias("fedprox", "Another method.")(Private)


def test_papers_on_parameter_skew_differ_in_the_literal_variant_alone():
    assert Method.parse("fedsa(threshold=0.3, weighted=True)") == Method.parse(
        "fedpake(threshold=0.3, weighted=True)"
    )
    names = [
        Method.parse(f"{paper}(variant='literal')").aggregator.name
        for paper in ("fedsa", "fedpake")
    ]
    assert names == ["literal_sa", "literal_pake"]
    assert inspect.signature(registry["fedsa"]) == inspect.signature(registry["fedpake"])


def test_catalogue_is_complete_whichever_part_is_imported_first():
    code = "import unalike.methods.parts.objectives\nfrom unalike.methods.part import registry\nprint(len(list(registry)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) == len(
        [n for n in registry if registry[n].__module__.startswith("unalike.")]
    )
