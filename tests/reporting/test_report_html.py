"""The HTML of the report: complete, safe, the same every time."""

import dataclasses
import json
import os
import re
import zlib
from base64 import b64decode
from html.parser import HTMLParser

import pytest
from derived_columns import derived

from unalike._utils.errors import UnalikeError
from unalike.metrics.named_metrics import KNOWN
from unalike.reporting import render, write_text
from unalike.reporting.charts import report_charts
from unalike.reporting.charts.palette import looks
from unalike.reporting.charts.plotly_figures import draw
from unalike.reporting.export import export

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


class Document(HTMLParser):
    """Collects the elements, the text of the page and the figures of the charts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.words, self.figures = [], [], {}
        self._open = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        self._open = (tag, attributes)

    def handle_endtag(self, tag):
        self._open = None

    def handle_data(self, data):
        tag, attributes = self._open or ("", {})
        if tag == "script" and attributes.get("type") == "application/json":
            self.figures[attributes["id"]] = json.loads(data)
        elif tag not in ("script", "style"):
            self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def page(content):
    return Document(render(content))


def test_page_sections_are_in_order(page, content):
    questions = [
        "Which method suits",
        "How did training",
        "single clients fare?",
        "data differ?",
        "does it cost?",
        "exactly was run?",
    ]
    places = [page.text.index(question) for question in questions]
    assert places == sorted(places) and len(page.all("h1")) == 1
    for part in (
        content.title,
        content.command,
        *content.versions.values(),
        *content.warnings,
        *content.labels,
    ):
        assert part in page.text
    assert 'model = "mlp"' in page.text and "nan" not in page.text.lower().split()


def test_page_loads_nothing_from_the_network(page):
    targets = [
        attributes[name]
        for _, attributes in page.elements
        for name in ("src", "href")
        if name in attributes
    ]
    assert targets and all(target.startswith("#") for target in targets)
    assert not page.all("link") and not page.all("img") and not page.all("iframe")
    policy = next(meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'")


def test_page_embeds_plotly_once_compressed(content):
    text = render(content)
    (packed,) = re.findall(r'id="plotly">([^<]*)<', text)
    assert (
        "* plotly.js v" in zlib.decompress(b64decode(packed)).decode()[:2000]
        and len(text) < 2_600_000
    )


def test_charts_and_tables_have_text_alternatives(page):
    plots = [attributes for attributes in page.all("div") if attributes.get("class") == "plot"]
    assert len(plots) == len(page.figures) and all(
        plot["role"] == "img" and plot["aria-label"] for plot in plots
    )
    assert len(page.all("figure")) == len(page.all("figcaption")) == 6
    assert len(page.all("table")) == len(page.all("caption")) > 5
    assert all("scope" in heading for heading in page.all("th"))
    identities = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(identities) == len(set(identities))


def test_page_hostile_names_are_escaped(simulate):
    content = simulate(methods=3, rounds=5, hostile=HOSTILE)
    page = Document(render(content))
    assert HOSTILE in page.text and not page.all("img")
    assert len(page.all("script")) == len(page.figures) + 2
    shown = str(page.figures)
    assert "<script" not in shown and "<img" not in shown and "&lt;script&gt;" in shown


def test_render_same_content_gives_same_bytes(simulate):
    assert render(simulate(methods=7, rounds=10)) == render(simulate(methods=7, rounds=10))


@pytest.mark.parametrize(
    "shape",
    [
        {"methods": 1, "clients": 1, "seeds": 1, "rounds": 1},
        {"methods": 3, "regression": True},
        {"methods": 3, "regression": True, "seeds": 1},
        {"methods": 20, "clients": 60, "classes": 40, "seeds": 2, "rounds": 400, "every": 5},
    ],
)
def test_render_any_content_shape_succeeds(simulate, shape):
    page = Document(render(simulate(**shape)))
    assert page.figures and "nan" not in page.text.lower().split()
    for figure in page.figures.values():
        assert figure["data"] and all(
            len(trace.get("x") or trace["z"]) > 0 for trace in figure["data"]
        )


def test_curves_of_long_runs_are_thinned_and_keep_both_ends(simulate):
    content = simulate(methods=2, seeds=2, rounds=1000)
    line = report_charts.over_seeds(
        content.rounds[content.rounds["method"] == "fedavg"], "accuracy"
    )
    assert len(line) == 150 and line["round"].iloc[0] == 0 and line["round"].iloc[-1] == 1000


def test_method_has_the_same_look_in_every_chart(content):
    styles = looks(content.labels)
    figures = [
        report_charts.curves(content.rounds, "accuracy", "accuracy", styles),
        report_charts.distribution(content.clients, "accuracy", "accuracy", styles),
        report_charts.cost(content.rounds, "mb", "MB", "accuracy", "accuracy", styles, 100),
    ]
    for figure in figures:
        colors = {trace.name: trace.line.color for trace in draw(figure).data if trace.name}
        assert colors == {name: styles[name].color for name in colors} and len(colors) == 6


def test_labels_of_many_clients_are_a_heat_map(simulate):
    assert draw(report_charts.labels(simulate(clients=40).label_counts)).data[0].type == "scatter"
    assert draw(report_charts.labels(simulate(clients=41).label_counts)).data[0].type == "heatmap"


def test_page_regression_writes_rmse_in_capitals(simulate):
    page = render(simulate(methods=3, regression=True))
    shown = re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL)
    assert "RMSE against traffic" in shown and "Difference in RMSE to" in shown
    assert "Rmse" not in shown and not re.search(
        r"\brmse\b", shown.replace(simulate(methods=3).config, "")
    )


def test_forest_rmse_marks_left_as_better(simulate):
    table = simulate(methods=2, regression=True).rounds
    frame = table.head(1).assign(method="fedavg", difference=-0.1, ci_low=-0.2, ci_high=0.0)
    figure = report_charts.forest(frame, "fedavg", KNOWN["rmse"], looks(["fedavg"]))
    assert figure.plots[0].x.title.endswith("\n← better · worse →")


def test_write_replaces_the_file_atomically(content, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    assert write_text(render(content), path) == path
    assert path.read_text(encoding="utf-8") == render(content)
    assert os.listdir(tmp_path) == ["report.html"]


def test_write_into_missing_folder_is_refused(content, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnalikeError, match="Not a directory"):
        write_text(render(content), tmp_path / "file" / "report.html")
    with pytest.raises(
        UnalikeError, match=r"cannot write the report to .*No such file or directory"
    ):
        write_text(render(content), tmp_path / "nowhere" / "report.html")


def test_write_to_a_folder_is_refused(content, tmp_path):
    with pytest.raises(UnalikeError, match="Is a directory"):
        write_text(render(content), tmp_path)


def test_write_full_disk_keeps_the_old_report(content, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "report.html"
    path.write_text("old")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UnalikeError, match="No space left on device"):
        write_text(render(content), path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["report.html"]


def test_target_default_is_the_final_mean_of_the_baseline(simulate):
    content = simulate(methods=3, rounds=10)
    assert (
        "the final mean of fedavg, shared model: mean over seeds" in Document(render(content)).text
    )
    far = Document(render(dataclasses.replace(content, target=0.99))).text
    assert (
        "Cost to reach accuracy 99.0 %, shared model: mean over seeds" in far
        and far.count("not reached by 3 of 3") == 3
    )
    baseline = dataclasses.replace(
        simulate(methods=7, rounds=10), baseline="local_only", target=0.5
    )
    assert "Cost to reach accuracy 50.0 %" in Document(render(baseline)).text


def test_page_keeps_the_order_of_methods(simulate):
    content = simulate(methods=4, rounds=5)
    turned = dataclasses.replace(
        content, rounds=content.rounds[::-1], clients=content.clients[::-1]
    )
    page = Document(render(turned))
    order = [t["name"] for t in page.figures["data-curves-0"]["data"] if t.get("name")]
    assert order == content.labels


def test_curves_end_where_the_first_seed_ends(simulate):
    """Seed 1 stopped after round 4: neither the curve nor the cost continues with seed 0 alone."""
    content = simulate(methods=2, seeds=2, rounds=8)
    rounds = content.rounds[(content.rounds["seed"] == 0) | (content.rounds["round"] <= 4)]
    line = report_charts.over_seeds(rounds[rounds["method"] == "fedavg"], "accuracy")
    assert line["round"].tolist() == [0, 1, 2, 3, 4]
    figure = report_charts.cost(
        rounds, "mb", "MB", "accuracy", "accuracy", looks(content.labels), 100
    )
    assert {len(mark.x) for mark in figure.plots[0].marks} == {5}


def test_page_shows_the_data_of_its_seed(simulate):
    content = dataclasses.replace(simulate(methods=2, seeds=3, rounds=4), seed=2)
    clients = content.clients.assign(n_train=100 + content.clients["seed"])
    page = Document(render(dataclasses.replace(content, clients=clients))).text
    assert "Training samples by client and class, seed 2" in page and "Every client, seed 2" in page
    assert "102" in page[page.index("Every client, seed 2") :].split("clinic 2")[0]


def test_page_lists_the_end_of_each_run(simulate):
    ends = [{"method": "fedavg", "seed": 0, "rounds": 4, "why": "patience", "selected": 3}]
    ends += [{"method": "fedavg", "seed": 1, "rounds": 8, "why": "all rounds", "selected": None}]
    page = Document(render(dataclasses.replace(simulate(methods=2, seeds=2, rounds=8), ends=ends)))
    assert "End of each run" in page.text and "patience" in page.text


def test_page_validation_columns_add_only_views(simulate):
    content = simulate(methods=2, rounds=4)
    more = content.rounds.assign(val_accuracy=0.5, personal_val_accuracy=0.5)
    page = Document(render(dataclasses.replace(content, rounds=more, columns=derived(more))))
    plain = Document(render(content))
    assert (
        "Accuracy on validation samples, shared model" in page.text
        and "validation" not in plain.text
    )


def test_export_names_with_special_characters_are_escaped(simulate):
    content = simulate(methods=2, rounds=5)
    label = "a | <b>b</b>\nc > d"
    rounds, clients = (
        t.replace({"method": {"fedavg": label}}) for t in (content.rounds, content.clients)
    )
    methods = [
        dataclasses.replace(m, label=label) if m.label == "fedavg" else m for m in content.methods
    ]
    named = dataclasses.replace(
        content, methods=methods, baseline=label, rounds=rounds, clients=clients
    )
    blocks = [("one", named)]
    lines = [line for line in export(blocks, "markdown").splitlines() if line.startswith("|")]
    assert len(
        {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    ) == 1 and "<b>" not in "".join(lines)
    rows = [line for line in export(blocks, "latex").splitlines() if line.endswith(r"\\")]
    assert rows[1].startswith(r"a $|$ $<$b$>$b$<$/b$>$ c $>$ d & ")


def test_latex_goes_into_a_paper_as_it_is(simulate):
    """A floating table with caption and label; mean and sd in one cell, the best of the candidates in bold, no -0.0."""
    content = simulate(methods=3, seeds=3, rounds=6)
    methods = [
        dataclasses.replace(m, reference="upper reference") if i == 2 else m
        for i, m in enumerate(content.methods)
    ]
    rounds = content.rounds.assign(
        accuracy=content.rounds["method"].map(dict(zip(content.labels, (0.5, 0.4996, 0.9))))
    )
    text = export(
        [("iid_1", dataclasses.replace(content, methods=methods, rounds=rounds))], "latex"
    )
    head, *rows = [line.split(" & ") for line in text.splitlines() if line.endswith(r"\\")]
    assert [cell for cell in head if "Accuracy" in cell or "Difference" in cell] == [
        r"Accuracy (\%)",
        "Difference (points)",
    ]
    cells = {row[0]: row for row in rows}
    assert (
        cells["fedavg"][1] == r"\textbf{50.0 $\pm$ 0.0}"
        and cells[content.labels[2]][1] == r"90.0 $\pm$ 0.0"
    )
    close = rounds.assign(
        accuracy=content.rounds["method"].map(dict(zip(content.labels, (0.5, 0.49999, 0.9))))
    )
    same = export([("iid", dataclasses.replace(content, methods=methods, rounds=close))], "latex")
    assert (
        same.count(r"\textbf{50.0 $\pm$ 0.0}") == 2
    )  # two scores that print alike are both the best
    assert "-0.0" not in text and "$-$0.0" not in text
    assert (
        text.count(r"\caption{Iid\_1: accuracy of the shared model") == 1
        and r"\label{tab:iid-1-clients}" in text
    )
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == text.count(r"\label{")


def test_target_diverged_seed_counts_as_not_reached(simulate):
    content = simulate(methods=2, seeds=3, rounds=6)
    fell = content.labels[1]
    left = content.rounds[(content.rounds["method"] != fell) | (content.rounds["seed"] < 2)]
    ends = [{"method": fell, "seed": 2, "rounds": None, "why": "diverged", "selected": None}]
    text = Document(render(dataclasses.replace(content, rounds=left, ends=ends, target=0.01))).text
    assert "not reached by 1 of 3" in text and "diverged" in text


def test_target_of_diverged_baseline_has_no_table(simulate):
    content = simulate(methods=2, rounds=4, regression=True)
    content.rounds.loc[content.rounds["round"] == 4, "rmse"] = float("inf")
    assert "final mean of" not in render(content)


def test_page_of_one_method_asks_how_well_it_does(simulate):
    text = Document(render(simulate(methods=1))).text
    assert (
        "How well does fedavg do on this data?" in text
        and "Which method" not in text
        and "Comparison of" not in text
    )
