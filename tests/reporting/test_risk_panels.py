"""Calibration, ROC and decision curves by client on the page, and their absence where they cannot be drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import unalike as ua
from unalike.comparison.joining.joined import join
from unalike.comparison.joining.merging import merge
from unalike.reporting.charts.palette import looks
from unalike.reporting.html import render
from unalike.reporting.risk_panels import explanation, risk_panels, risk_table
from unalike.statistics.risks import Risks


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """Three hospitals with 40, 30 and 8 test samples a seed."""
    rng, rows = np.random.default_rng(0), []
    for name, count in (("north", 160), ("south", 120), ("tiny", 32)):
        x = rng.normal(size=(count, 2))
        ill = x[:, 0] + rng.normal(0, 1, count) > 0
        rows.append(
            pd.DataFrame(x, columns=["a", "b"]).assign(
                hospital=name, outcome=np.where(ill, "ill", "fine")
            )
        )
    file = tmp_path_factory.mktemp("data") / "t.csv"
    pd.concat(rows).to_csv(file, index=False)
    return ua.load(file, target="outcome", group="hospital")


@pytest.fixture(scope="module")
def compared(hospitals, tmp_path_factory):
    options = {
        "model": "linear",
        "rounds": 4,
        "metric": "roc_auc",
        "seeds": 2,
        "split": 0.25,
        "work": ua.Work(lr=0.3),
    }
    folder = tmp_path_factory.mktemp("results") / "out"
    return ua.compare(["fedavg", "ditto"], data=hospitals, out=folder, **options), folder


def test_stored_risks_are_those_that_the_scores_are_made_of(compared):
    found, folder = compared
    assert list(found.risks) == ["method", "seed", "client", "outcome", "risk"]
    last = found.rounds[found.rounds["round"] == 4].set_index(["method", "seed"])
    for (method, seed), own in found.risks.groupby(["method", "seed"]):
        area = last.loc[(method, seed), "personal_roc_auc" if method == "ditto" else "roc_auc"]
        ranks = own["risk"].rank()
        n = own["outcome"].sum()
        assert (ranks[own["outcome"] == 1].sum() - n * (n + 1) / 2) / n / (
            len(own) - n
        ) == pytest.approx(area)
    pd.testing.assert_frame_equal(ua.open_comparison(folder).risks, found.risks)
    pd.testing.assert_frame_equal(merge([found, found]).risks, found.risks)


def test_every_hospital_has_a_row_and_the_large_ones_curves(compared):
    content = compared[0].content()
    panels = risk_panels(content, looks(content.labels))
    assert [view.label for view in panels["calibration"].views] == [
        "north",
        "south",
        "all test samples pooled",
    ]
    # pooled over hospitals, an ROC curve would reward knowing the hospital
    assert [view.label for view in panels["roc"].views] == [
        "north",
        "south",
        "mean of the hospitals",
    ]
    assert [view.label for view in panels["net_benefit"].views] == [
        "north",
        "south",
        "all test samples pooled",
        "mean of the hospitals",
    ]
    table = risk_table(content, looks(content.labels))
    mean = "mean of the hospitals with the score (2 of 3 have all)"  # tiny has a Brier score alone
    assert [row[0].text for row in table.rows] == ["north"] * 2 + ["south"] * 2 + ["tiny"] * 2 + [
        "all test samples pooled"
    ] * 2 + [mean] * 2
    by_title = dict(zip(table.columns, table.rows[4]))
    assert by_title["Calibration slope"].text == "–" and by_title["Brier score"].text != "–"
    counts = dict(
        zip(table.columns, table.rows[-1])
    )  # a mean of the clients has no sum of their samples
    assert (
        counts["Positives"].text == counts["Others"].text == "–"
        and counts["Brier score"].text != "–"
    )
    assert "No curves for tiny: fewer than 10 positives" in explanation(content)
    own = content.risks[
        (content.risks["client"] == "north") & (content.risks["method"] == table.rows[0][1].text)
    ]
    risks = Risks(*(own[name].to_numpy() for name in ("outcome", "risk", "seed")))
    assert dict(zip(table.columns, table.rows[0]))["Brier score"].value == pytest.approx(
        risks.brier
    )
    sensitivity = dict(zip(table.columns, table.rows[0]))["Sensitivity at 90\u00a0% specificity"]
    assert sensitivity.value == pytest.approx(risks.sensitivity(0.9)[0])


def test_folders_without_risks_say_so_and_other_outcomes_say_nothing(compared, simulate):
    without = replace(compared[0], risks=None).content()
    assert "were not kept" in explanation(without) and risk_table(without, {}) is None
    assert "were not kept" in render(without) and "panel-roc" not in render(without)
    assert explanation(simulate()) == "" and 'id="risks"' not in render(simulate())


def test_folder_of_a_single_run_keeps_risks_and_positives(compared, hospitals, tmp_path):
    options = {
        "model": "linear",
        "rounds": 4,
        "metric": "roc_auc",
        "split": 0.25,
        "work": ua.Work(lr=0.3),
    }
    ua.run("ditto", data=hospitals, seed=0, out=tmp_path, progress=False, **options)
    found, same = (
        ua.open_comparison(tmp_path),
        compared[0].risks.query("method == 'ditto' and seed == 0"),
    )
    pd.testing.assert_frame_equal(found.risks, same.reset_index(drop=True))
    content = found.content()
    assert [view.label for view in risk_panels(content, looks(content.labels))["roc"].views][
        :2
    ] == ["north", "south"]
    positives = same.groupby("client")["outcome"].sum()
    scores = found.client_scores.set_index("client")
    assert scores.loc[positives.index, "n_positive"].tolist() == positives.tolist()
    ua.run("ditto", data=hospitals, seed=0, out=tmp_path, progress=False, **options | {"rounds": 5})
    assert not ua.open_comparison(tmp_path).risks.equals(
        found.risks
    )  # a run that goes on has those of its last round
    (tmp_path / "events.jsonl").write_text('{"event": "begun", "time": 0}\n')
    assert (
        ua.open_comparison(tmp_path).risks is None
    )  # those of an unfinished run are of another round than its scores


def test_joined_page_has_the_table_of_the_clients(compared):
    page = join([("a", compared[0])]).page()
    assert "Every hospital with" in page


@pytest.mark.browser
def test_curves_are_drawn_in_a_browser(compared, browser, tmp_path):
    page, complaints = browser.new_page(viewport={"width": 1280, "height": 900}), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(compared[0].report(tmp_path / "report.html").as_uri())
    for key in ("calibration", "roc", "net-benefit"):
        panel = page.locator(f"#panel-{key}")
        for label in panel.locator(".views label").all():
            label.click()
            panel.locator(".plot:visible svg.main-svg").first.wait_for()
            assert panel.locator(".plot:visible .scatterlayer .trace").count() >= 3
    page.close()
    assert complaints == []


def test_sensitivity_is_shown_at_the_specificity_of_the_headline_metric(hospitals, tmp_path):
    options = {
        "rounds": 1,
        "seeds": 1,
        "model": "linear",
        "metric": "sensitivity_at(specificity=0.75)",
    }
    found = ua.compare(["fedavg"], data=hospitals, out=tmp_path, **options)
    for content in (found.content(), ua.open_comparison(tmp_path).content()):
        assert content.specificity == 0.75
        assert (
            "Sensitivity at 75\u00a0% specificity"
            in risk_table(content, looks(content.labels)).columns
        )
