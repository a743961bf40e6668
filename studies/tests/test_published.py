"""The printed numbers: the shipped data, lookups, differences and means."""

import json
from pathlib import Path

import pytest

from unalike import UnalikeError
from unalike_studies.published import Printed, printed, records

SOURCE = Path(__file__).parents[3] / "shared" / "papers" / "published.json"


@pytest.mark.skipif(not SOURCE.exists(), reason="the papers' numbers are not beside the project")
def test_shipped_numbers_are_those_that_were_read_from_the_papers():
    assert records() == json.loads(SOURCE.read_text())


def test_a_number_is_found_by_its_row_and_column():
    found = printed("fedlws", "1", "FedAvg", "CIFAR-10", alpha=0.1)
    assert (found.value, found.deviation, found.level) == (61.04, None, 61.04)
    assert str(found) == "61.04 (61.04, table 1)"
    [place] = found.records
    assert records()[place]["value"] == 61.04
    with_deviation = printed("fedpake", "1", "FedAvg", "CIFAR-10", partition="pathological")
    assert with_deviation.source == "90.79 ± 0.08, table 1" and with_deviation.deviation == 0.08


def test_fractions_become_per_cent():
    assert printed("local-statistics", "1", "global", "EMNIST").value == 84.7


def test_differences_and_means_keep_their_sources():
    with_lws, without = (
        printed("fedlws", "1", name, "CIFAR-10", alpha=0.1) for name in ("FedAvg+LWS", "FedAvg")
    )
    gain = with_lws - without
    assert str(gain) == "3.04 (64.08 - 61.04, table 1)"
    assert gain.level == 61.04 and gain.records == with_lws.records | without.records
    other_table = printed("fedlws", "11", "FedAvg", "CIFAR-10", alpha=0.1)
    assert str(with_lws - other_table) == "4.42 (64.08 - 59.66, table 1 and 11)"
    assert str(Printed.mean(with_lws, without)) == "62.56 (mean of 2 numbers, table 1)"


def test_deviations_of_differences_and_means_add_in_squares():
    one = Printed(2.0, "2, table 1", deviation=3.0)
    other = Printed(1.0, "1, table 1", deviation=4.0)
    assert (one - other).deviation == 5.0 and Printed.mean(one, other).deviation == 2.5
    assert (one - Printed(1.0, "1, table 1")).deviation is None


@pytest.mark.parametrize("alpha", [0.2, None])
def test_a_lookup_that_does_not_name_one_number_is_refused(alpha):
    with pytest.raises(UnalikeError, match="printed numbers have"):
        printed("fedlws", "1", "FedAvg", "CIFAR-10", **({} if alpha is None else {"alpha": alpha}))


def test_illegible_labels_are_never_looked_up():
    damaged = [record for record in records() if not record.get("legible", True)]
    assert damaged
    for record in damaged[:5]:
        with pytest.raises(UnalikeError):
            printed(
                record["paper"],
                record["table"],
                record["method"],
                record["dataset"],
                **record["setting"],
            )
