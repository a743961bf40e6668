"""Charts of training: loss, spread over clients, one line per client, accuracy by class and confusions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from unalike.reporting import panels, render
from unalike.reporting.charts import plotly_figures
from unalike.reporting.charts.palette import looks


@pytest.fixture
def detailed(simulate):
    """A comparison of two methods with the scores of three clients by round, and confusions of two classes."""
    content = simulate(methods=2, clients=3, seeds=2, rounds=4)
    rows = [
        (method, seed, number, f"clinic {k + 1}", 0.1 * number + 0.1 * k)
        for method in content.labels
        for seed in (0, 1)
        for number in range(5)
        for k in range(3)
    ]
    by_round = pd.DataFrame(rows, columns=["method", "seed", "round", "client", "accuracy"])
    confusions = [
        {"method": m, "classes": ["cat", "dog"], "counts": [[3, 1], [0, 4]]} for m in content.labels
    ]
    return replace(content, client_rounds=by_round, confusions=confusions)


def views(panel):
    return {view.label: plotly_figures.draw(view.figure) for view in panel.views}


def test_curves_have_training_loss_and_spread_over_clients(detailed):
    found = views(panels.curves(detailed, looks(detailed.labels)))
    spread = found["Spread over clients, shared model"].data[-1]
    assert list(spread.y) == pytest.approx([10.0] * 5)  # the deviation of 0, 10 and 20 %
    expected = (
        detailed.rounds[detailed.rounds["method"] == detailed.labels[-1]]
        .groupby("round")["train_loss"]
        .mean()
    )
    assert list(found["Training loss"].data[-1].y) == pytest.approx(list(expected), rel=1e-5)


def test_client_curves_have_a_line_for_each_client_and_their_mean(detailed):
    found = views(panels.client_curves(detailed, looks(detailed.labels)))
    assert list(found) == detailed.labels
    *clients, mean = found["fedavg"].data
    assert [line.name for line in clients] == ["clinic 1", "clinic 2", "clinic 3"]
    assert list(clients[2].y) == pytest.approx([20, 30, 40, 50, 60]) and list(
        mean.y
    ) == pytest.approx([10, 20, 30, 40, 50])


def test_class_scores_are_the_right_share_of_each_class(detailed):
    [figure] = views(panels.class_scores(detailed, looks(detailed.labels))).values()
    assert [list(trace.y) for trace in figure.data] == [[75.0, 100.0]] * 2


def test_confusion_has_shares_of_each_class_and_counts(detailed):
    found = views(panels.confusions(detailed, looks(detailed.labels)))["fedavg"].data[0]
    assert np.array(found.z).tolist() == [[75, 25], [0, 100]]
    assert found.text[0][1] == "class cat, predicted dog: 1"


def test_captions_say_which_round_the_models_come_from(detailed):
    chosen = replace(
        detailed, ends=[{"method": "fedavg", "seed": 0, "rounds": 2, "why": "", "selected": 1}]
    )
    for made in (panels.class_scores, panels.confusions):
        last, best = (
            made(content, looks(detailed.labels)).caption for content in (detailed, chosen)
        )
        assert "after the last round" in last and "in the round that each run selected" in best


def test_class_without_test_samples_has_no_score(detailed):
    confusions = [{"method": "fedavg", "classes": ["cat", "dog"], "counts": [[3, 1], [0, 0]]}]
    [figure] = views(
        panels.class_scores(replace(detailed, confusions=confusions), looks(detailed.labels))
    ).values()
    assert list(figure.data[0].y) == [75.0]


def test_report_with_and_without_classes_is_complete(detailed, content):
    page = render(detailed)
    assert all(f'id="panel-{key}"' in page for key in ("client-curves", "classes", "confusions"))
    assert "Which classes are hard?" in page
    plain = render(content)
    assert "Which classes are hard?" not in plain and 'id="panel-client-curves"' not in plain


def test_timeline_has_a_bar_for_each_request_in_the_color_of_its_fate(detailed, monkeypatch):
    rows = [
        ("clinic 1", 1, 0.0, 3.0, 0, "trained"),
        ("clinic 1", 2, 4.0, 8.0, 0, "late"),
        ("clinic 2", 1, 0.0, 4.0, 0, "trained"),
    ]
    turns = pd.DataFrame(rows, columns=["client", "round", "begun", "ended", "age", "fate"])
    content = replace(detailed, timeline=turns.assign(method="fedavg", seed=0))
    panel = panels.timeline(content, looks(content.labels))
    [view] = panel.views
    trained, late = plotly_figures.draw(view.figure).data
    assert list(trained.x) == [0, 3, None, 0, 4, None] and list(trained.y) == [
        0,
        0,
        None,
        1,
        1,
        None,
    ]
    assert list(late.x) == [4, 8, None] and late.text[0] == "clinic 1, round 2"
    assert trained.line.color != late.line.color
    assert "2 trained and 1 late" in view.alt and "2 of 3 clients" in panel.caption
    assert 'id="panel-timeline"' in render(content) and 'id="panel-timeline"' not in render(
        detailed
    )

    # of more bars than can be told from each other, those that ended first are drawn
    monkeypatch.setattr(panels.report_charts, "MAX_TURNS", 2)
    short = panels.timeline(content, looks(content.labels))
    [trained] = plotly_figures.draw(short.views[0].figure).data
    assert list(trained.x) == [0, 3, None, 0, 4, None] and "first 2 bars" in short.caption
