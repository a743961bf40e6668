"""The figures for papers: same colors as the page, same bytes every time, hollow markers off the Pareto front."""

import warnings

import pandas as pd
import pytest
from matplotlib.colors import to_hex

from unalike._utils.errors import UnalikeError
from unalike.metrics.named_metrics import KNOWN
from unalike.reporting import paper_figures
from unalike.reporting.charts import matplotlib_figures, plotly_figures, report_charts
from unalike.reporting.charts.figure import Figure, Line, Points
from unalike.reporting.charts.palette import looks
from unalike.statistics.costs import PAIRS, on_front, tradeoff
from unalike.statistics.ranks import ranks


@pytest.fixture(scope="module")
def joined(simulate):
    """The arguments of `paper_figures.save` as `unalike report` gives them."""
    content = simulate(methods=4, rounds=6)
    scores = pd.DataFrame([[0.1, 0.2, 0.3, 0.4]] * 3, columns=content.labels)
    return [("digits, iid", content)], ranks(scores)


def test_save_repeated_writes_the_same_svg_and_pdf_files(joined, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folders = [paper_figures.save(*joined, tmp_path / name) for name in ("a", "b")]
    names = sorted(path.name for path in folders[0].iterdir())
    assert names == sorted(
        f"{n}.{e}"
        for n in ("clients", "curves", "differences", "pareto", "ranks")
        for e in ("svg", "pdf")
    )
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes() != b""


def test_paper_figures_use_the_colors_of_the_page(simulate):
    content = simulate(methods=4, rounds=6)
    drawn = (
        matplotlib_figures.draw(dict(paper_figures.figures(content))["curves"]).axes[0].get_lines()
    )
    style = looks(content.labels)
    assert {line.get_label(): to_hex(line.get_color()).upper() for line in drawn} == {
        name: look.color for name, look in style.items()
    }


@pytest.mark.parametrize(
    "shape", [{"methods": 7}, {"methods": 3, "regression": True, "seeds": 1}, {"methods": 1}]
)
def test_figures_of_any_content_shape_are_drawn(simulate, shape):
    figures = dict(paper_figures.figures(simulate(rounds=4, **shape)))
    assert len(figures) >= 2
    for figure in figures.values():
        assert matplotlib_figures.draw(figure).axes and plotly_figures.draw(figure).data


def test_pareto_dominated_method_has_hollow_marker(simulate):
    """Scaffold sends twice the bytes for a worse score."""
    content = simulate(methods=5, rounds=6)
    table = tradeoff(content.summary, KNOWN["accuracy"])
    for x, y in PAIRS:
        front = on_front(table, x, y, KNOWN["accuracy"])
        titles = dict.fromkeys(("score", "worst", "mb", "seconds"), "")
        drawn = report_charts.pareto(table, x, y, KNOWN["accuracy"], titles, looks(content.labels))
        hollow = {
            mark.label for mark in drawn.marks if isinstance(mark, Points) and mark.hollow == [True]
        }
        assert hollow == set(table.loc[~front, "method"])
        [line] = [mark for mark in drawn.marks if isinstance(mark, Line)]
        assert len(line.x) == front.sum() > 0
        traces = plotly_figures.draw(Figure([drawn])).data
        assert {
            t.name for t in traces if t.name and t.marker.color == (plotly_figures.TRANSPARENT,)
        } == hollow
    assert "scaffold" in set(
        table.loc[~on_front(table, "mb", "score", KNOWN["accuracy"]), "method"]
    )


FOUR = pd.DataFrame(
    {
        "method": list("abcd"),
        "protocol": "clients",
        "score": [0.7, 0.8, 0.6, 0.8],
        "worst": [0.5, 0.4, 0.3, 0.4],
        "mb": [1.0, 2.0, 3.0, 4.0],
        "seconds": [9.0, 9.0, 1.0, 10.0],
    }
)


@pytest.mark.parametrize(
    ("x", "y", "front"),
    [
        ("score", "worst", "abd"),
        ("mb", "score", "ab"),
        ("seconds", "score", "bc"),
        ("mb", "worst", "a"),
    ],
)
def test_pareto_front_is_that_of_the_two_axes(x, y, front):
    assert "".join(FOUR.loc[on_front(FOUR, x, y, KNOWN["accuracy"]), "method"]) == front


def test_pareto_front_of_errors_has_the_small_ones():
    """Of an RMSE less is better: c is best in both, on average and for the worst tenth."""
    assert list(FOUR.loc[on_front(FOUR, "score", "worst", KNOWN["rmse"]), "method"]) == ["c"]


def test_save_into_a_file_is_refused(joined, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnalikeError, match="cannot write figures"):
        paper_figures.save(*joined, tmp_path / "file")


def test_forest_name_with_dollar_signs_is_drawn_as_text(tmp_path):
    name = "$\\frac$"
    table = pd.DataFrame({"method": [name], "difference": [0.1], "ci_low": [0.0], "ci_high": [0.2]})
    figure = report_charts.forest(table, "fedavg", KNOWN["accuracy"], looks([name]))
    matplotlib_figures.write(figure, tmp_path / "a")
    assert name in (tmp_path / "a.svg").read_text()


def test_tradeoff_scores_equal_up_to_rounding_are_both_on_the_front():
    """RMSE is float32: the same model may give different last bits."""
    scores = {
        "rmse": [185.20276524394, 185.20276524284],
        "worst_decile": [224.7, 224.7],
        "mb_down": 1.0,
        "mb_up": 1.0,
    }
    table = pd.DataFrame(
        {"method": ["fedavg", "ditto"], "protocol": "clients", "seconds": 1.0} | scores
    )
    traded = tradeoff(table, KNOWN["rmse"])
    assert all(on_front(traded, x, y, KNOWN["rmse"]).all() for x, y in PAIRS)


def test_distribution_diverged_method_has_an_empty_row(simulate):
    content = simulate(methods=2, rounds=4, regression=True)
    diverged = [table["method"] == content.labels[1] for table in (content.rounds, content.clients)]
    for table, rows in zip((content.rounds, content.clients), diverged):
        table.loc[rows, "rmse"] = float("inf")
    drawn = matplotlib_figures.draw(dict(paper_figures.figures(content))["clients"]).axes[0]
    assert [label.get_text() for label in drawn.get_yticklabels()] == content.labels
    assert len(drawn.get_lines()) == 4  # one box with its median and two whiskers


def test_save_names_with_equal_slugs_keep_separate_files(joined, tmp_path):
    names = ["北京.npz, iid", "上海.npz, iid", "A.csv, iid", "a.csv, iid"]
    [(_, content)], _ = joined
    folder = paper_figures.save([(name, content) for name in names], None, tmp_path)
    assert len([*folder.glob("*-curves.pdf")]) == len(names)


def test_legend_of_many_methods_does_not_shrink_the_axes(simulate):
    drawn = dict(paper_figures.figures(simulate(methods=40, rounds=4)))
    for name in ("curves", "pareto"):
        figure = matplotlib_figures.draw(drawn[name])
        figure.draw_without_rendering()
        assert figure.axes[0].get_window_extent().height > 1.5 * figure.dpi
