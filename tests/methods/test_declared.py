"""Parts, plans and client queries are declared in one way: a wrong field has the same helpful error in all three."""

import pytest

from unalike._utils.errors import InvalidValue
from unalike.methods.part import Part, overrides
from unalike.methods.parts.control_variates import ControlVariates
from unalike.methods.parts.objectives import Proximal
from unalike.methods.parts.personalizers import ProximalModel
from unalike.methods.plans.clustered import Ifca
from unalike.methods.plans.histograms import ClassCounts


@pytest.mark.parametrize(
    "build, field, meant",
    [
        (ControlVariates, "server_rate", "server_lr"),
        (Ifca, "cluster", "clusters"),
        (ClassCounts, "clases", "classes"),
    ],
)
def test_declared_class_suggests_the_field_for_an_unknown_one(build, field, meant):
    expected = f"{build.__name__} takes no keyword '{field}'; did you mean '{meant}'?"
    with pytest.raises(InvalidValue) as error:
        build(**{field: 3})
    assert str(error.value) == expected
    with pytest.raises(InvalidValue, match=f"'unheard_of'; it takes .*{meant}"):
        build(unheard_of=3)


@pytest.mark.parametrize(
    "build, field",
    [(Proximal, "mu"), (Ifca, "clusters"), (ClassCounts, "classes")],
)
@pytest.mark.parametrize("value, problem", [("many", "'many': input should be"), (-1, "-1: input")])
def test_declared_class_names_the_field_of_a_wrong_value(build, field, value, problem):
    with pytest.raises(InvalidValue, match=f"^{field}={problem}"):
        build(**{field: value})


@pytest.mark.parametrize(
    "made, text",
    [
        (Proximal(mu=1), "Proximal(mu=1.0)"),
        (Ifca(clusters=2), "ifca(clusters=2, method='fedavg')"),
        (ClassCounts(classes=3), "class_counts(classes=3, noise=0.0)"),
    ],
)
def test_declared_class_repr(made, text):
    assert repr(made) == text


def test_overrides_is_true_for_hooks_of_the_class_and_of_its_bases_but_not_of_the_role():
    assert overrides(ControlVariates(), "fold")
    assert overrides(ProximalModel(), "client_init")
    assert not overrides(Proximal(), "fold")
    assert not overrides(Part(), "facts")
