"""The figures for paper: the page's colours, the same bytes every time, hollow where a method is beaten."""

import warnings

import pandas as pd
import pytest
from matplotlib import rc_context
from matplotlib.colors import to_hex

from unalike._utils.errors import UnalikeError
from unalike.metrics.inference import ranks
from unalike.metrics.statistics import METRICS, summary
from unalike.reporting.charts import paper_figures, plotly_charts
from unalike.reporting.charts.palette import looks
from unalike.reporting.tradeoff import tradeoff


@pytest.fixture(scope="module")
def joined(simulate):
    """The arguments of `paper_figures.save` as `unalike report` gives them."""
    content = simulate(methods=4, rounds=6)
    scores = pd.DataFrame([[0.1, 0.2, 0.3, 0.4]] * 3, columns=content.labels)
    return [("digits, iid", content)], ranks(scores)


def test_every_figure_is_written_twice_and_the_same_every_time(joined, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folders = [paper_figures.save(*joined, tmp_path / name) for name in ("a", "b")]
    names = sorted(path.name for path in folders[0].iterdir())
    assert names == sorted(
        f"{n}.{e}" for n in ("clients", "curves", "differences", "pareto", "ranks") for e in ("svg", "pdf")
    )
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes() != b""


def test_colours_are_those_of_the_page(simulate):
    content = simulate(methods=4, rounds=6)
    drawn = dict(paper_figures.figures(content))["curves"].axes[0].get_lines()
    style = looks(content.labels)
    assert {line.get_label(): to_hex(line.get_color()).upper() for line in drawn} == {
        name: look.colour for name, look in style.items()
    }


@pytest.mark.parametrize("shape", [{"methods": 7}, {"methods": 3, "regression": True, "seeds": 1}, {"methods": 1}])
def test_every_shape_is_drawn(simulate, shape):
    assert len(dict(paper_figures.figures(simulate(rounds=4, **shape)))) >= 2


def test_a_method_that_is_beaten_in_all_three_is_hollow(simulate):
    """Scaffold pays twice the bytes for a worse score."""
    content = simulate(methods=5, rounds=6)
    table = tradeoff(summary(content.rounds, content.clients, content.baseline), METRICS[0])
    front = table.set_index("method")["front"]
    assert not front["scaffold"] and front.any()
    figure = plotly_charts.pareto(table, "score", "worst", ("a", "b"), looks(content.labels), {})
    hollow = {trace.meta for trace in figure.data if trace.marker.color == "rgba(0,0,0,0)"}
    assert hollow == set(front.index[~front])


def test_a_file_is_not_a_folder(joined, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnalikeError, match="cannot write figures"):
        paper_figures.save(*joined, tmp_path / "file")


def test_a_name_is_never_read_as_mathematics(tmp_path):
    name = "$\\frac$"
    table = pd.DataFrame({"method": [name], "difference": [0.1], "ci_low": [0.0], "ci_high": [0.2]})
    with rc_context(paper_figures.STYLE):
        paper_figures.forest(table, "fedavg", METRICS[0], looks([name])).savefig(tmp_path / "a.svg")
    assert name in (tmp_path / "a.svg").read_text()


def test_methods_that_differ_by_rounding_alone_stand_on_the_front_together():
    """RMSE is float32: one and the same model need not have it to the last bit."""
    scores = {"rmse": [185.20276524394, 185.20276524284], "worst_decile": [224.7, 224.7], "mb_down": 1.0, "mb_up": 1.0}
    table = pd.DataFrame({"method": ["fedavg", "ditto"], "protocol": "clients"} | scores)
    assert tradeoff(table, METRICS[1])["front"].all()


def test_what_diverged_leaves_an_empty_row(simulate):
    content = simulate(methods=2, rounds=4, regression=True)
    diverged = [table["method"] == content.labels[1] for table in (content.rounds, content.clients)]
    for table, rows in zip((content.rounds, content.clients), diverged):
        table.loc[rows, "rmse"] = float("inf")
    drawn = dict(paper_figures.figures(content))["clients"].axes[0]
    assert [label.get_text() for label in drawn.get_yticklabels()] == content.labels
    assert len(drawn.get_lines()) == 4  # one box with its median and two whiskers


def test_blocks_whose_names_differ_in_letters_that_file_names_lack_keep_their_figures(joined, tmp_path):
    names = ["北京.npz, iid", "上海.npz, iid", "A.csv, iid", "a.csv, iid"]
    [(_, content)], _ = joined
    folder = paper_figures.save([(name, content) for name in names], None, tmp_path)
    assert len([*folder.glob("*-curves.pdf")]) == len(names)


def test_the_names_of_many_methods_leave_room_for_the_axes(simulate):
    drawn = dict(paper_figures.figures(simulate(methods=40, rounds=4)))
    for name in ("curves", "pareto"):
        drawn[name].draw_without_rendering()
        assert drawn[name].axes[0].get_window_extent().height > 1.5 * drawn[name].dpi
