"""Quantities of the studies of FedLWS, and the printed numbers of their claims."""

import math

import pytest

from unalike.reporting.charts.figure import Line
from unalike_studies.catalogue import study
from unalike_studies.claim_verdicts import Below
from unalike_studies.claims import oscillation
from unalike_studies.layouts.figures import ParameterHistogram
from unalike_studies.layouts.scatter import DataAgainstUpdates, GapAgainstBound
from unalike_studies.papers.fedlws_factors import factor_claims, mean_factor
from unalike_studies.papers.fedlws_figures import LEARNED, over_degrees
from unalike_studies.published import Printed
from unalike_studies.results import CellResult, Results


def cell(seed=0, method="a", setting="s", options=None, rounds=None, **more):
    return CellResult(
        method, setting, seed, "", "", options or {}, 1.0, "", {}, {}, rounds=rounds or {}, **more
    )


def noted(*series, rounds=(1, 2, 3)):
    names = ("quantity", "layer", "values")
    return {
        "rounds": list(rounds),
        "series": [dict(zip(names, one)) for one in series],
        "thinned": "",
    }


@pytest.mark.parametrize(
    ("name", "beginning", "number"),
    [
        ("fedlws-table1", "LWS makes FedDyn better, CIFAR-10, alpha 0.1", 5.24),
        ("fedlws-table1", "LWS makes FedAvg better, CIFAR-10, alpha 0.1", 3.04),
        (
            "fedlws-fashion",
            "FedAvg with LWS, which needs no proxy samples, is better than FedLAW",
            1.47,
        ),
        ("fedlws-central", "LWS makes FedAvg better, CIFAR-10, alpha 0.1", 3.07),
        ("fedlws-fashion", "LWS makes L-DAWA better", 7.08),
        ("fedlws-news", "LWS makes FedProx better", 10.17),
        (
            "fedlws-resnet",
            "LWS as in the authors' code makes FedAvg better, CIFAR-10, alpha 100",
            0.84,
        ),
        ("fedlws-resnet-cifar100", "LWS makes FedAvg better", 3.82),
        ("fedlws-table7", "A long tail", 7.85),
        ("fedlws-table8", "Model-wise LWS on FedDisco is better than FedDisco, CIFAR-10", 2.45),
        ("fedlws-table8", "Model-wise LWS on FedDisco is worse than FedDisco, CIFAR-100", -0.05),
        ("fedlws-pretrained", "From a pretrained start", 0.99),
        (
            "fedlws-table10",
            "Regularization alone is worse than FedAvg, CIFAR-100, alpha 100",
            -2.57,
        ),
        ("fedlws-table10", "Both terms gain more than each of them alone in sum, CIFAR-10", 1.30),
        ("fedlws-table11", "LWS is better than fixed factors", 1.26),
        ("fedlws-ratio", "Over degrees of heterogeneity", 0.86),
        ("fedlws-table12", "The factor is the printed one, layer 3 of the MLP", 0.968),
    ],
)
def test_claims_have_the_numbers_that_the_paper_prints(name, beginning, number):
    claim = next(claim for claim in study(name).claims if claim.text.startswith(beginning))
    assert claim.is_papers
    assert isinstance(claim.published, Printed) and claim.published.value == pytest.approx(number)


def test_seconds_of_another_machine_are_a_remark():
    [claim] = [claim for claim in study("fedlws-table3").claims if "FedLAW, ViT" in claim.text]
    assert claim.published is None and "-9.59 (0.21 - 9.8, table 3)" in claim.remark


def test_what_the_paper_does_not_say_is_a_question_of_ours():
    """Its table 11 has no constant factor, and its table 5 no CNN. At CIFAR-10 0.1 its FedLAW is better than LWS: a claim."""
    [law] = [claim for claim in study("fedlws-table1").claims if "FedLAW" in claim.text]
    assert law.is_papers and law.expects == Below() and law.published.value == pytest.approx(-0.68)
    ours = {
        "fedlws-table11": "LWS is better than one constant factor",
        "fedlws-table5": "LWS makes FedAvg better, CNN",
    }
    for name, beginning in ours.items():
        [claim] = [claim for claim in study(name).claims if claim.text.startswith(beginning)]
        assert not claim.is_papers and claim.published is None


def test_the_full_scale_has_the_papers_networks_betas_and_values():
    cells = {
        name: study(name).scale("paper").cells
        for name in ("fedlws-table1", "fedlws-fashion", "fedlws-table6")
    }
    networks = {(c.options["data"], c.options["model"]) for c in cells["fedlws-table1"]}
    assert networks == {
        ("cifar10", "resnet20"),
        ("cifar100", "resnet20"),
        ("tiny_imagenet", "resnet18"),
    }
    assert {c.spec for c in cells["fedlws-table1"] if c.method == "FedAvg + LWS"} == {
        "fedavg + lws(beta=0.01)"
    }
    assert {c.spec for c in cells["fedlws-fashion"] if c.method == "FedAvg + LWS"} == {
        "fedavg + lws(beta=0.1)"
    }
    assert {c.options["model"] for c in cells["fedlws-fashion"]} == {"cnn"}
    assert {c.setting.rpartition(" ")[2] for c in cells["fedlws-table6"]} == {"100", "1", "0.1"}
    swept = {"clients": {10, 30, 50}, "participation": {0.1, 0.3, 0.5}}
    for option, values in swept.items():
        assert {
            c.options.get(option, 1) for c in study(f"fedlws-{option}").scale("paper").cells
        } >= values
    assert {
        c.options["work"].get("epochs", 1) for c in study("fedlws-epochs").scale("paper").cells
    } >= {1, 5, 10}


def test_gap_against_bound_equals_hand_numbers():
    """Two layers with tau 3 and 5, four clients: the bound is sqrt(2 * 8 / 4) = 2. Gaps 1 and 3: slack (1 - 1) / 2.

    Round 3 has no tau of a layer, and round 4 was not evaluated.
    """
    recorded = noted(("tau", "u", [3.0, 3.0, None, 3.0]), ("tau", "v", [5.0, 5.0, 5.0, 5.0]))
    losses = {"loss": [1.5, 0.5, 9.0, None], "train_loss": [0.5, 3.5, 0.0, 0.0]}
    rounds = {"round": [1, 2, 3, 4], "participants": [4] * 4, **losses}
    layout, results = (
        GapAgainstBound("gap"),
        Results((cell(recorded=recorded, rounds=rounds), cell(1))),
    )
    assert layout.points(results.cells[0]) == [(2.0, 1.0), (2.0, 3.0)]
    assert layout.slack("a", "s")(results) == {0: 0.0}
    assert layout.table(results)[1][3:8] == ["2", "2.00", "2.00", "50", "1.50"]
    [plot] = layout.figure(results).plots
    [diagonal] = [mark for mark in plot.marks if isinstance(mark, Line)]
    assert diagonal.x == diagonal.y == [0, 3.0]


def test_gap_against_bound_ranks_rounds():
    recorded = noted(("tau", "u", [1.0, 2.0, 3.0]))
    rounds = {
        "round": [1, 2, 3],
        "participants": [2] * 3,
        "loss": [1.0, 4.0, 100.0],
        "train_loss": [0.0] * 3,
    }
    [_, row] = GapAgainstBound("gap").table(Results((cell(recorded=recorded, rounds=rounds),)))
    assert row[-1] == "1.00"


def test_statements_on_factors_hold_for_factors_that_are_made_so():
    """First round: 0.9, 0.98, 1 with the classifier at 0.9 farthest from the others (by 0.09, v by 0.06); then all tend to 1."""
    recorded = noted(
        ("gamma", "u", [0.98, 0.99, 1.0]),
        ("gamma", "v", [1.0, 1.0, 1.0]),
        ("gamma", "head", [0.9, 0.95, 1]),
    )
    results = Results((cell(recorded=recorded),))
    first, spread, grows = (claim.quantity(results)[0] for claim in factor_claims("a", "s"))
    assert first == pytest.approx(0.09 - 0.06)
    assert spread == pytest.approx(math.sqrt((0.02**2 + 0.04**2 + 0.06**2) / 3))
    assert grows == pytest.approx(0.04)
    assert mean_factor("a", "s", "u", "v")(results) == {0: pytest.approx(0.995)}
    assert mean_factor("a", "s")(results) == {0: pytest.approx((2.97 + 3 + 2.85) / 9)}


def test_mean_between_takes_the_clients_whose_data_differ_so_much():
    """Labels of three clients: 1 0, 1 0 and 0 1."""
    cosines = {(0, 1): 0.8, (0, 2): -0.5, (1, 2): -0.1}
    series = [
        {"quantity": "cosine", "client": i, "other": j, "values": [c]}
        for (i, j), c in cosines.items()
    ]
    found = cell(label_counts=[[4, 0], [2, 0], [0, 3]], recorded={"rounds": [1], "series": series})
    layout, results = DataAgainstUpdates("d"), Results((found,))
    assert layout.mean_between(0, 0.1, "a", "s")(results) == {0: pytest.approx(0.2)}
    assert layout.mean_between(0.9, 1, "a", "s")(results) == {0: pytest.approx(1.3)}
    assert layout.mean_between(0.4, 0.6, "a", "s")(results) == {}


def test_near_zero_is_the_share_within_a_tenth_of_the_limit():
    options = {"histogram": {"limit": 1.0, "bins": 20}}
    results = Results((cell(parameters=[1] * 9 + [5, 6] + [1] * 9, options=options), cell(1)))
    assert ParameterHistogram("share").near_zero("a", "s")(results) == {0: pytest.approx(11 / 29)}


def test_the_correlation_over_degrees_is_that_of_late_means():
    """Second halves of (tau, ratio): (2, 1), (4, 3), (6, 2); r = 1 / 2."""
    cells = []
    for degree, (tau, ratio) in {"x": (2.0, 1.0), "y": (4.0, 3.0), "z": (6.0, 2.0)}.items():
        recorded = noted(("tau", "u", [90.0, tau]), ("ratio", "", [-90.0, ratio]), rounds=(1, 2))
        cells.append(cell(method=LEARNED, setting=degree, recorded=recorded))
    assert over_degrees("xyz")(Results(tuple(cells))) == {0: pytest.approx(0.5)}
    assert over_degrees("xy")(Results(tuple(cells))) == {}


def test_oscillation_is_the_distance_from_neighbours_in_the_second_half():
    """The second half is 0.5, 0.7, 0.4: 0.7 lies 0.25 above the middle of its neighbours."""
    rounds = {"round": [1, 2, 3, 4, 5, 6], "accuracy": [0.0, 0.9, 0.1, 0.5, 0.7, 0.4]}
    results = Results((cell(rounds=rounds),))
    assert oscillation("a", "s")(results) == {0: pytest.approx(0.25)}
