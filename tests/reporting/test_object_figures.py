"""Runs, histories, clients and comparisons draw and show themselves, and progress in a notebook."""

from __future__ import annotations

import copy
import subprocess
import sys
from base64 import b64decode
from types import SimpleNamespace

import numpy as np
import plotly.io as pio
import pytest

import unalike as ua
from unalike._utils import notebook
from unalike._utils.notebook import bubbles, sparkline, table
from unalike._utils.progress import progress_reporting


@pytest.fixture(scope="module")
def clients():
    return ua.partition(ua.load("digits"), "dirichlet(alpha=0.3)", clients=4)


@pytest.fixture(scope="module")
def run(clients):
    return ua.run("fedprox(mu=0.1)", clients, model="linear", rounds=3, progress=False)


@pytest.fixture(scope="module")
def comparison(clients):
    return ua.compare(
        ["fedavg", "fedadam"], clients, model="linear", rounds=3, seeds=2, progress=False
    )


def test_run_and_history_plot_the_score_of_every_round(run):
    for figure in (run.plot(), run.history.plot()):
        [line] = figure.data
        assert list(line.x) == [0, 1, 2, 3]
        np.testing.assert_allclose(line.y, run.history.rounds["accuracy"], rtol=1e-5)
    assert run.plot("loss").layout.yaxis.title.text == "loss"
    with pytest.raises(
        ua.UnalikeError, match="unknown metric of this run 'acuracy'; did you mean 'accuracy'"
    ):
        run.plot("acuracy")


def test_clients_plot_a_bubble_for_each_class_that_a_client_has(clients):
    [marks] = clients.plot().data
    assert sum(marks.marker.size) == clients.sizes.sum()


def test_clients_of_a_regression_have_nothing_to_plot():
    people = [ua.ClientData(train=(np.ones((3, 2), np.float32), np.arange(3, dtype=np.float32)))]
    with pytest.raises(ua.UnalikeError, match="numbers and not classes"):
        ua.Population.of(people).plot()
    assert ua.Population.of(people)._repr_html_().startswith("<p>&lt;Population of 1 clients")


def test_comparison_plots_decision_curves_and_clients(comparison):
    [mark] = comparison.plot().data
    row = comparison.summary.set_index("method").loc["fedadam"]
    np.testing.assert_allclose(mark.x, [100 * row["difference"]], atol=1e-4)
    lines = [
        trace
        for trace in comparison.plot("curves").data
        if trace.mode == "lines+markers" or trace.name
    ]
    assert {"fedavg", "fedadam"} <= {str(trace.name) for trace in lines}
    assert len(comparison.plot("clients").data) == 2
    with pytest.raises(ua.UnalikeError, match="did you mean 'curves'"):
        comparison.plot("curve")
    with pytest.raises(ua.UnalikeError, match="nothing to draw for 'curves'"):
        comparison.plot("curves", protocol="personal")


def test_comparison_plots_the_models_of_a_protocol(clients):
    table = ua.compare(["fedavg", "fedrep"], clients, rounds=2, seeds=1, progress=False)
    shared, personal = (table.plot("curves", protocol=name) for name in ("clients", "personal"))
    assert {trace.name for trace in shared.data} == {"fedavg"} and {
        trace.name for trace in personal.data
    } == {"fedrep"}


def test_objects_show_themselves_with_the_method_as_typed(run, clients, comparison):
    assert "fedprox(mu=0.1)" in run._repr_html_() and "<svg" in run._repr_html_()
    assert (
        "<polyline" in run.history._repr_html_()
        and "balanced_accuracy" in run.history._repr_html_()
    )
    score = run.history.columns.shown(run.history.last)
    assert (
        f"<td>{score.metric.text(score.value(run.history.last))}</td>" in run.history._repr_html_()
    )
    assert clients._repr_html_().count("<circle") == (clients.plan.counts > 0).sum()
    shown = comparison._repr_html_()
    assert "fedavg, fedadam on digits" in shown and ">fedadam</td>" in shown


def test_html_escapes_what_it_shows():
    assert "<b>" not in table(["<b>"], [["<b>"]]) + bubbles([[1]], ["<b>"], ["<b>"]) + sparkline(
        [1, 2], "<b>", str
    )


def test_sparkline_of_two_numbers_rises_over_its_whole_height():
    assert 'points="4.0,44.0 236.0,4.0"' in sparkline([0.25, 0.75], "accuracy", str)
    assert (
        sparkline([0.5], "accuracy", str) == sparkline([float("nan"), 0.5], "accuracy", str) == ""
    )


def test_progress_in_a_notebook_is_html_that_is_removed_at_the_end(monkeypatch):
    shown = []
    handle = SimpleNamespace(update=shown.append)
    display = SimpleNamespace(
        HTML=str, display=lambda html, display_id: shown.append(html) or handle
    )
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    assert notebook.in_notebook()
    with progress_reporting(None, 2, "training") as report:
        report({"round": 1, "headline": "accuracy 50.0 %"}, "fedavg")
        report({"round": 2, "headline": "accuracy 75.0 %"}, "fedavg")
    assert shown[0] == '<progress value="0" max="2"></progress> 0 of 2 rounds training'
    assert (
        shown[-2]
        == '<progress value="2" max="2"></progress> 2 of 2 rounds training fedavg accuracy 75.0 %'
    )
    assert shown[-1] == ""


def test_in_notebook_without_ipython_does_not_import_it():
    code = "import sys; from unalike._utils.notebook import in_notebook; print(in_notebook(), 'IPython' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("renderer", ["plotly_mimetype+notebook_connected", "colab"])
def test_figure_has_an_image_for_exports_until_it_is_changed(run, monkeypatch, renderer):
    """A notebook that is exported to HTML shows HTML before an image; a notebook that knows nothing else keeps Plotly's."""
    monkeypatch.setattr(pio.renderers, "default", renderer)
    figure = run.plot()
    bundle = figure._repr_mimebundle_()
    assert ("text/html" in bundle) == (renderer == "colab") and figure._repr_html_ is None
    assert b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert "image/png" not in copy.deepcopy(figure).update_layout(title="mine")._repr_mimebundle_()
    figure.update_layout(title="mine")
    assert "image/png" not in figure._repr_mimebundle_()
