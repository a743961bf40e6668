"""The model in use: personal where a method trains one, else shared."""

import math

import pandas as pd
import pytest
from derived_columns import derived

from unalike.statistics.models_in_use import personal_methods, protocol_in_use, with_models_in_use
from unalike.statistics.summary import summary
from unalike.statistics.verdicts import BASELINE, CANDIDATE, Rules

UNKNOWN = (math.nan, math.nan)
SHARED = {"fedavg": (0.5, 0.6), "ditto": (0.5, 0.6), "fedper": UNKNOWN, "fedprox": (0.55, 0.652)}
PERSONAL = {"fedavg": UNKNOWN, "ditto": (0.7, 0.9), "fedper": (0.6, 0.6), "fedprox": UNKNOWN}


def table(methods, plain="clients", shared=None):
    """Two seeds of one round; the columns of the protocol `plain` have no prefix."""
    front = {"clients": "clients_", "personal": "personal_"} | {plain: ""}
    rows = []
    for name in methods:
        for seed in (0, 1):
            row = {
                "method": name,
                "seed": seed,
                "round": 1,
                "seconds": 1.0,
                "bytes_down": 10,
                "bytes_up": 10,
            }
            row |= {"accuracy": math.nan, front["personal"] + "accuracy": PERSONAL[name][seed]}
            rows.append(
                row | {shared or front["clients"] + "accuracy": SHARED[name][seed]} | {"loss": 1.0}
            )
    return pd.DataFrame(rows)


def in_use(rounds, plain="clients"):
    return protocol_in_use(rounds, derived(rounds, plain))


def test_the_protocol_is_used_only_where_methods_differ_in_kind():
    assert in_use(table(["fedavg"])) == "clients"
    assert in_use(table(["fedavg", "ditto", "fedper"])) == "used"
    assert in_use(table(["ditto", "fedper"])) == "personal"
    rounds = table(["fedavg", "ditto", "fedper"])
    assert personal_methods(rounds, derived(rounds)) == ["ditto", "fedper"]


def test_scores_on_the_servers_test_set_are_not_mixed_with_those_of_clients():
    assert (
        in_use(table(["fedavg", "ditto"], plain="server", shared="accuracy"), "server") == "server"
    )
    both = table(["fedavg", "ditto"], plain="server").assign(accuracy=0.4)
    assert in_use(both, "server") == "used"
    used = with_models_in_use(both, ["ditto"], derived(both, "server"))
    assert used["used_accuracy"].tolist() == [0.5, 0.6, 0.7, 0.9]


def test_the_columns_of_the_models_in_use():
    rounds = table(["fedavg", "ditto", "fedper"]).assign(
        personal_loss=2.0, selected=True, personal_selected=False
    )
    used = with_models_in_use(rounds, ["ditto", "fedper"], derived(rounds))
    assert used["used_accuracy"].tolist() == [0.5, 0.6, 0.7, 0.9, 0.6, 0.6]
    assert used["used_loss"].tolist() == [1, 1, 2, 2, 2, 2]
    assert used["used_selected"].tolist() == [True] * 2 + [False] * 4
    assert used.drop(columns=["used_accuracy", "used_loss", "used_selected"]).equals(rounds)


def test_the_summary_compares_personal_models_with_shared_ones():
    rounds = table(["fedavg", "ditto", "fedper"])
    rounds = with_models_in_use(rounds, ["ditto", "fedper"], derived(rounds))
    clients = rounds[["method", "seed", "used_accuracy", "accuracy"]].assign(client=0)
    found = summary(rounds, clients, derived(rounds), Rules("fedavg"))
    found = found[found["protocol"] == "used"].set_index("method")
    assert found["role"].to_dict() == {"fedavg": BASELINE, "ditto": CANDIDATE, "fedper": CANDIDATE}
    assert found["difference"].to_dict() == pytest.approx(
        {"fedavg": math.nan, "ditto": 0.25, "fedper": 0.05}, nan_ok=True
    )


def test_one_difference_has_one_interval_under_every_protocol():
    """FedProx has the shared model in both families; beside Ditto's personal model its p is corrected, and so it is everywhere."""
    rounds = table(["fedavg", "ditto", "fedprox"])
    rounds = with_models_in_use(rounds, ["ditto"], derived(rounds))
    clients = rounds[["method", "seed", "used_accuracy", "accuracy"]].assign(client=0)
    found = summary(rounds, clients, derived(rounds), Rules("fedavg")).set_index("method")
    shared = found[found["protocol"] == "clients"]
    used = found[found["protocol"] == "used"]
    assert used.loc["fedprox", "p_holm"] > used.loc["fedprox", "p"]
    columns = ["difference", "ci_low", "ci_high", "p", "p_holm", "verdict"]
    pd.testing.assert_series_equal(shared.loc["fedprox", columns], used.loc["fedprox", columns])
    # Ditto's two models are two differences
    assert shared.loc["ditto", "ci_low"] != used.loc["ditto", "ci_low"]
