"""Words for clients: the column of the owners where it is a noun, else its values."""

import pytest

from unalike._utils.nouns import several
from unalike.data.partitioning.origin_schemes import client_noun


@pytest.mark.parametrize(
    ("column", "one", "many"),
    [
        ("hospital", "hospital", "hospitals"),
        ("status", "status", "statuses"),
        ("bus", "bus", "buses"),
        ("city", "city", "cities"),
        ("BRANCH", "branch", "branches"),
        ("educ", "educ value", "educ values"),
        ("STORE_ID", "STORE_ID value", "STORE_ID values"),
        # something else that a report counts
        ("seed", "seed value", "seed values"),
    ],
)
def test_client_is_called_by_its_column_in_words_that_have_a_plural(column, one, many):
    for spec in (f"natural(column={column!r})", f"leave_one_out(column={column!r})"):
        assert client_noun(spec) == one
    assert several(one) == many


def test_client_without_a_column_is_a_client():
    assert client_noun("natural") == client_noun("dirichlet(alpha=0.1)") == "client"
    assert client_noun("natural()") == "client"
