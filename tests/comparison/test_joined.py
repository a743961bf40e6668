"""`join`: several comparisons merged, ranked over, or kept apart with a reason."""

from __future__ import annotations

import dataclasses
import json
import re

import pandas as pd
import pytest

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.cli import main
from unalike.comparison.comparison import Comparison
from unalike.comparison.joining.joined import join
from unalike.dashboard.state import Followed
from unalike.metrics.columns import TIMES
from unalike.runtime.records.run_directory import RunDirectory

pytestmark = pytest.mark.slow

MODEL = "mlp(hidden=(8,))"
METHODS = ["fedavg", "fedprox(mu=0.1)", "scaffold"]


@pytest.fixture
def kept(dataset, small, tmp_path):
    """`kept(name, methods, ...)` runs a comparison, keeps it in a folder and reads it back."""

    def make(name, methods=METHODS, partition="dirichlet(alpha=0.5, min_size=2)", **options):
        small(
            methods,
            4,
            data=dataset,
            partition=partition,
            out=tmp_path / name,
            **{"rounds": 2} | options,
        )
        return name, Comparison.load(tmp_path / name)

    return make


def names(joined):
    return [[m["label"] for m in block.comparison.facts.methods] for block in joined.blocks]


def test_join_runs_of_single_methods_equal_the_comparison(kept):
    whole, parts = kept("whole"), [kept(f"part{i}", [method]) for i, method in enumerate(METHODS)]
    joined = join(parts)
    assert (
        names(joined) == [METHODS]
        and joined.blocks[0].letters == "A + B + C"
        and not joined.obstacles
    )
    left, right = (c.rounds.drop(columns=[*TIMES]) for c in (joined.blocks[0].comparison, whole[1]))
    order = ["method", "seed", "round"]
    pd.testing.assert_frame_equal(
        left.sort_values(order).reset_index(drop=True),
        right.sort_values(order).reset_index(drop=True),
    )
    assert joined.blocks[0].comparison.summary["difference"].notna().sum() == 2
    assert "Which method suits" in joined.page()


def test_baseline_is_that_of_every_joined_comparison_or_refused(kept):
    """Runs of single methods have it together."""
    options = {"seeds": [0], "rounds": 1}
    mild = kept("mild", ["fedavg", "scaffold"], partition="iid", **options)
    severe = [kept(method, [method], **options) for method in ("fedavg", "scaffold")]
    joined = join([mild, *severe], baseline="scaffold")
    baselines = [block.comparison.decision.baseline for block in joined.blocks]
    assert baselines == ["scaffold", "scaffold"] and "baseline" not in dict(joined.differences)
    with pytest.raises(UnalikeError, match="found no 'ditto' in mild, which has fedavg and scaff"):
        join([mild, *severe], baseline="ditto")


def test_join_adds_seeds_and_counts_a_shared_cell_once(kept):
    few, more = kept("few", seeds=[0]), kept("more", seeds=[0, 1])
    joined = join([few, more])
    assert len(joined.blocks) == 1 and joined.blocks[0].comparison.summary["seeds"].eq(2).all()
    assert len(joined.blocks[0].comparison.rounds) == len(more[1].rounds)


def test_join_partitions_of_one_study_are_ranked(kept):
    joined = join([kept("mild", partition="iid"), kept("severe")])
    assert len(joined.blocks) == len(joined.pooled) == 2 and joined.ranks is not None
    assert list(joined.ranks.mean.index) == METHODS and joined.ranks.blocks == 2
    assert {name for name, _ in joined.differences} == {"partition", "fingerprint"}
    page = joined.page()
    assert "all partitions of one study" in page and "2 partitions are very few" in page


def test_join_ranks_by_one_score_across_clients(kept):
    (mild, first), (severe, second) = kept("mild", partition="iid"), kept("severe")
    worst = join(
        [(mild, first.judged_by(across="worst")), (severe, second.judged_by(across="worst"))]
    )
    mixed = join([(mild, first.judged_by(across="worst")), (severe, second)])
    pd.testing.assert_frame_equal(mixed.scores, worst.scores)
    assert not worst.scores.equals(join([(mild, first), (severe, second)]).scores)


@pytest.mark.parametrize(
    ("other", "said"),
    [({"rounds": 3}, "rounds differs (2 in A, 3 in B)"), ({"work": ua.Work(batch_size=5, lr=0.2)}, "lr differs (0.1 in A")],
)  # fmt: skip
def test_join_other_training_is_named_and_not_pooled(kept, other, said):
    joined = join([kept("a"), kept("b", partition="iid", **other)])
    assert len(joined.blocks) == 2 and not joined.pooled and joined.ranks is None
    assert any(said in obstacle for obstacle in joined.obstacles)
    assert "never pooled" in joined.page() and "cannot be compared with each other" in joined.page()


def test_join_odd_folder_stays_apart_at_any_position(kept):
    odd = kept("odd", ["scaffold", "fedavg"], rounds=3, baseline="scaffold")
    joined = join([odd, kept("mild", partition="iid"), kept("severe")])
    assert [block.letters for block in joined.pooled] == [
        "B: mild",
        "C: severe",
    ] and joined.ranks is not None
    page = joined.page()
    assert "2 are partitions of one study. Not in the ranking: 1 comparison." in page
    assert "not all results are pooled" in page and "never pooled" not in page
    assert (
        "Differences to fedavg, paired over 2 partitions" in page
        and "rounds differs (3 in A, 2 in B and C)" in page
    )


def test_join_one_partition_with_two_trainings_is_not_pooled(kept):
    joined = join([kept("a"), kept("b", rounds=3)])
    assert [block.name[-6:] for block in joined.blocks] == [
        "[A: a]",
        "[B: b]",
    ] and not joined.pooled


def test_join_conflicting_cells_are_kept_apart(kept):
    given, comparison = kept("a")
    changed = comparison.rounds.assign(accuracy=comparison.rounds["accuracy"] * 0.5)
    other = dataclasses.replace(comparison, rounds=changed)
    joined = join([(given, comparison), ("b", other)])
    assert (
        len(joined.blocks) == 2
        and "A and B hold different results of" in joined.obstacles[0]
        and not joined.pooled
    )


def test_join_clients_of_other_sizes_are_kept_apart(people, small):
    a, b = small(["fedavg"], people), small(["scaffold"], people[:4])
    assert len(join([("a", a), ("b", b)]).blocks) == 2
    assert len(join([("a", a), ("b", small(["scaffold"], people))]).blocks) == 1


def test_join_program_run_with_comparison_on_the_same_partition(kept, dataset, tmp_path):
    """The settings and the label of a run directory are read in the form of a comparison."""
    table = kept("table")
    people = ua.partition(dataset, "dirichlet(alpha=0.5, min_size=2)", clients=4, seed=0)
    options = {"model": MODEL, "rounds": 2, "work": ua.Work(batch_size=5, lr=0.1)}
    for name, method in (("again", "fedavg"), ("more", "ditto")):
        ua.run(method, people, out=tmp_path / name, **options)
    again, more = ((name, Comparison.load(tmp_path / name)) for name in ("again", "more"))

    same = join([again, table])
    assert names(same) == [METHODS] and not same.obstacles
    assert len(same.blocks[0].comparison.rounds) == len(
        table[1].rounds
    )  # its cell counts once: the numbers agree
    assert {name for name, _ in same.differences} == {
        "seeds",
        "torch",
        "numpy",
        "python",
        "platform",
    }
    assert (
        "Joined from A (again) and B (table), which differ in seeds (0 in A, 0, 1 in B), torch"
        in same.page()
    )

    whole = join([more, table])
    assert (
        names(whole) == [["ditto", *METHODS]]
        and whole.blocks[0].comparison.facts.baseline == "fedavg"
    )
    shared = whole.blocks[0].comparison.summary.query("protocol == 'clients'").set_index("method")
    assert shared["seeds"][["ditto", "fedavg"]].tolist() == [1, 2]


def test_join_program_run_with_comparison_on_given_clients(people, small, tmp_path):
    """Otherwise the same clients would count as two partitions."""
    table = small(["fedavg", "scaffold"], people, seeds=1)
    options = {"model": MODEL, "rounds": 3, "work": ua.Work(batch_size=5, lr=0.1)}
    runs = []
    for method in ("fedavg", "ditto"):
        ua.run(method, people, out=tmp_path / method, **options)
        runs.append((method, Comparison.load(tmp_path / method)))
    assert runs[0][1].clients["client"].tolist() == [person.name for person in people]
    joined = join([("table", table), *runs])
    assert names(joined) == [["fedavg", "scaffold", "ditto"]] and not joined.obstacles
    assert len(joined.blocks[0].comparison.clients) == 3 * len(people)

    x, y = people[0].train
    others = [
        ua.ClientData(train=(x + 1, y), test=people[0].test, name=people[0].name),
        *people[1:],
    ]
    ua.run("ditto", others, out=tmp_path / "others", **options)
    assert (
        len(join([("table", table), ("others", Comparison.load(tmp_path / "others"))]).blocks) == 2
    )


def test_join_program_run_with_other_settings_stays_apart(kept, dataset, tmp_path):
    table = kept("table")
    people = ua.partition(dataset, "dirichlet(alpha=0.5, min_size=2)", clients=4, seed=7)
    for name, lr in (("work", 0.2), ("clients", 0.1)):
        ua.run(
            "fedavg",
            people,
            model=MODEL,
            rounds=2,
            work=ua.Work(batch_size=5, lr=lr),
            out=tmp_path / name,
        )
    work, clients = (join([(n, Comparison.load(tmp_path / n)), table]) for n in ("work", "clients"))
    assert (
        work.obstacles == ["lr differs (0.2 in A, 0.1 in B)"]
        and len(work.blocks) == 2
        and not work.pooled
    )
    assert (
        "fingerprint" in dict(clients.differences)
        and not clients.obstacles
        and len(clients.blocks) == 2
    )
    assert clients.ranks is None  # one shared method cannot be ranked
    assert (
        "cannot be compared with each other" in work.page()
        and "too few partitions" in clients.page()
    )


def test_join_unfinished_run_is_shown_and_not_joined(kept, dataset, tmp_path):
    whole = kept("whole", rounds=3)
    people = ua.partition(dataset, "dirichlet(alpha=0.5, min_size=2)", clients=4, seed=0)

    def interrupted(row, what=""):
        if row["round"] == 2:
            raise KeyboardInterrupt

    for name, spec in (("one", "ditto"), ("two", "fedprox(mu=1)")):
        with pytest.raises(KeyboardInterrupt):
            ua.run(
                spec,
                people,
                model=MODEL,
                rounds=3,
                work=ua.Work(batch_size=5, lr=0.1),
                out=tmp_path / name,
                progress=interrupted,
            )
    one, two = ((name, Comparison.load(tmp_path / name)) for name in ("one", "two"))
    assert one[1].facts.unfinished == "2 of 3 rounds" and not whole[1].facts.unfinished
    alone = join([one])
    assert "This run is unfinished: 2 of 3 rounds are done" in alone.page()
    assert alone.blocks[0].name.endswith(" (unfinished: 2 of 3 rounds)")
    assert "call ua.run" not in alone.page() and "continues from here" in alone.page()

    joined = join([one, two, whole])
    assert len(joined.blocks) == 3 and not joined.pooled
    assert joined.obstacles == [
        f"{x} is unfinished (2 of 3 rounds), so nothing is joined with it" for x in "AB"
    ]
    assert "A is unfinished (2 of 3 rounds)" in joined.page()


def test_page_of_diverged_run_states_the_reason(dataset, tmp_path):
    people = ua.partition(dataset, "dirichlet(alpha=0.5, min_size=2)", clients=4, seed=0)
    for _ in range(2):  # a second attempt gives the same error
        with pytest.raises(ua.UnalikeError, match="Training diverged"):
            ua.run("fedavg", people, model=MODEL, rounds=3, work=ua.Work(lr=1e30), out=tmp_path)
        directory = RunDirectory(tmp_path)
        assert directory.events[-1]["event"] == "diverged" and not directory.finished
        assert directory.diverged.startswith(
            f"round {directory.round + 1}: no client sent a usable update; the first, '"
        )
    comparison = Comparison.load(tmp_path)
    facts, page = comparison.facts, join([("run", comparison)]).page()
    assert "diverged" in facts.command and directory.diverged in facts.notes[1]
    assert "The run cannot continue with its settings" in page
    assert Followed(tmp_path).state()["state"] == "diverged"


def test_join_federations_need_the_same_name(people, small):
    """Only the names and sizes of a federation's clients are known, so its name identifies them."""

    def federated(method, name):
        table = small([method], people)
        facts = dataclasses.replace(
            table.facts,
            config=f'federation = "{name}"\n{table.facts.config}',
            partition={"clients": len(people)},
            label_counts=None,
        )
        return name, dataclasses.replace(table, facts=facts)

    assert names(join([federated("fedavg", "north"), federated("scaffold", "north")])) == [
        ["fedavg", "scaffold"]
    ]
    apart = join([federated("fedavg", "north"), federated("scaffold", "south")])
    assert (
        len(apart.blocks) == 2
        and ("federation", ["north", "south"]) in apart.differences
        and not apart.obstacles
    )


def test_joined_page_uses_the_same_colors_for_every_block(kept):
    page = join([kept("mild", partition="iid"), kept("severe", [METHODS[2], METHODS[0]])]).page()
    figures = {
        name: json.loads(text)
        for name, text in re.findall(
            r'<script type="application/json" id="data-([^"]+)">(.*?)</script>', page, re.S
        )
    }
    assert {"over-0", "over-0-narrow"} | {
        f"{kind}-{i}-0" for kind in ("curves", "clients") for i in (0, 1)
    } <= {*figures}
    colors = {
        (trace["name"], trace["line"]["color"])
        for name, figure in figures.items()
        for trace in figure["data"]
        if trace.get("name") and "line" in trace
    }
    assert len(colors) == len(METHODS)


def test_join_ambiguous_label_is_not_ranked(kept):
    mild = kept(
        "mild", {"fedavg": "fedavg", "ours": "fedavgm", "scaffold": "scaffold"}, partition="iid"
    )
    severe = kept("severe", {"fedavg": "fedavg", "ours": "fedprox(mu=50)", "scaffold": "scaffold"})
    joined = join([mild, severe])
    assert list(joined.ranks.mean.index) == ["fedavg", "scaffold"]
    assert (
        joined.obstacles[0].startswith("ours stands for 2 methods (")
        and "mu=50" in joined.obstacles[0]
    )
    assert (
        joined.obstacles[0].endswith("), so it is not ranked")
        and "ours stands for 2 methods" in joined.page()
    )


def test_join_ranks_use_seeds_that_all_methods_have(kept):
    """Another seed has another partition, so its scores cannot be compared."""
    both, alone = kept("both", ["fedavg"], seeds=[0, 1]), kept("alone", ["scaffold"], seeds=[0])
    joined = join([kept("mild", ["fedavg", "scaffold"], partition="iid", seeds=[0]), both, alone])
    assert len(joined.blocks) == 2
    paired = both[1].rounds.query("seed == 0")["accuracy"].iloc[-1]
    assert joined.scores["fedavg"].iloc[1] == pytest.approx(paired)
    assert joined.scores["fedavg"].iloc[1] != pytest.approx(both[1].summary["accuracy"].iloc[0])
    apart = join(
        [
            kept("mild", ["fedavg", "scaffold"], partition="iid", seeds=[0]),
            kept("one", ["fedavg"], seeds=[1]),
            alone,
        ]
    )
    assert apart.ranks is None


def test_joined_page_shows_the_target_in_every_part(kept):
    joined = join([kept("mild", partition="iid"), kept("severe")])
    assert (
        joined.page(target=0.123).count("<span>Cost to reach accuracy 12.3\u00a0%, shared model")
        == 2
    )
    assert "Cost to reach" not in joined.page()


def test_joined_page_repeated_is_identical(kept):
    pair = [kept("mild", partition="iid"), kept("severe")]
    assert join(pair).page() == join(pair).page()


def test_join_nothing_is_refused():
    with pytest.raises(UnalikeError, match="nothing to join"):
        join([])


@pytest.mark.parametrize("format", ["markdown", "csv", "latex"])
def test_export_has_one_row_per_method_and_no_path(kept, tmp_path, monkeypatch, capsys, format):
    kept("mild", partition="iid"), kept("severe")
    words = [
        "unalike",
        "report",
        str(tmp_path / "mild"),
        str(tmp_path / "severe"),
        "--format",
        format,
    ]
    texts = []
    for _ in range(2):
        monkeypatch.setattr("sys.argv", words)
        with pytest.raises(SystemExit) as left:
            main()
        assert not left.value.code
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and str(tmp_path) not in texts[0] and "nan" not in texts[0]
    methods = "|".join(map(re.escape, METHODS))
    rows = [
        line
        for line in texts[0].splitlines()
        if re.search(rf"(^|, ?|\| )({methods})( [|&]|,)", line)
    ]
    assert len(rows) == 2 * len(METHODS)
    assert texts[0].count(r"\caption{") == 2 * (format == "latex")


def test_export_to_json_has_the_decision_and_every_number(kept, tmp_path, monkeypatch, capsys):
    kept("mild", partition="iid")
    monkeypatch.setattr(
        "sys.argv", ["unalike", "report", str(tmp_path / "mild"), "--format", "json"]
    )
    with pytest.raises(SystemExit):
        main()
    (block,) = json.loads(capsys.readouterr().out)
    table = Comparison.load(tmp_path / "mild")
    assert (
        block["decision"]["answer"] == table.decision.answer
        and block["decision"]["best"] == table.decision.best
    )
    assert (
        block["decision"]["verdicts"] == table.decision.verdicts
        and "seconds" not in block["decision"]["cost"]
    )
    assert [row["loss"] for row in block["summary"]] == table.summary["loss"].tolist()


def test_report_writes_figures_and_tables_to_given_paths(kept, tmp_path, monkeypatch, capsys):
    kept("one", partition="iid")
    table = tmp_path / "table.csv"
    words = [
        "report",
        tmp_path / "one",
        "--format",
        "csv",
        "--out",
        table,
        "--figures",
        tmp_path / "figures",
    ]
    monkeypatch.setattr("sys.argv", ["unalike", *map(str, words)])
    with pytest.raises(SystemExit):
        main()
    again = Comparison.load(tmp_path / "one").summary["loss"].tolist()
    assert (
        pd.read_csv(table, float_precision="round_trip")["loss"].tolist() == again
    )  # nothing is rounded
    assert (
        len(pd.read_csv(table)) == len(METHODS) and (tmp_path / "figures" / "pareto.svg").exists()
    )
    monkeypatch.setattr(
        "sys.argv", ["unalike", "report", str(tmp_path / "one"), "--format", "markdwn"]
    )
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2 and "did you mean 'markdown'" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["unalike", "report", str(tmp_path / "one"), "--table", "wide"])
    with pytest.raises(SystemExit) as left:
        main()
    assert (
        left.value.code == 2 and "found --table wide with --format html" in capsys.readouterr().err
    )


def test_summary_names_the_server_protocol(people, small):
    table = small(["fedavg", "ditto"], people, protocol=["server", "clients"], test=people[0].test)
    assert list(zip(table.summary["method"], table.summary["protocol"])) == [
        ("fedavg", "server"),
        ("fedavg", "clients"),
        ("fedavg", "used"),
        ("ditto", "server"),
        ("ditto", "clients"),
        ("ditto", "personal"),
        ("ditto", "used"),
    ]
    own = table.rounds.query("method == 'fedavg' and round == 3")[
        "accuracy"
    ]  # the last round under each of two seeds
    assert table.summary["accuracy"].iloc[0] == pytest.approx(own.mean())
    page = join([("a", table)]).page()
    assert "Shared model, server&#39;s test set: " in page and "Shared model: " in page


@pytest.mark.parametrize(("flag", "value"), [("--target", "0.5"), ("--title", "Mine")])
def test_report_page_flags_with_a_table_are_refused(
    kept, tmp_path, monkeypatch, capsys, flag, value
):
    kept("one", partition="iid")
    words = ["unalike", "report", str(tmp_path / "one"), "--format", "csv", flag, value]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capsys.readouterr()
    assert left.value.code == 2 and not out and f"found {flag} with --format csv" in err


PLAN = "fedconcat(clusters=2, encoder_rounds=1)"


@pytest.mark.parametrize(
    ("first", "second", "options"),
    [
        (
            ["fedavg", "fedper"],
            ["fedavg", "scaffold"],
            {"val": 0.3, "select": "best"},
        ),  # a round is selected, or there is none
        (["fedavg", PLAN], [PLAN, "ccvr"], {}),  # its stages are numbered, or there are none
        ([PLAN, "ditto"], ["ditto", PLAN], {}),
    ],
)
def test_join_cell_is_independent_of_other_cells(kept, first, second, options):
    joined = join([kept("a", first, seeds=1, **options), kept("b", second, seeds=1, **options)])
    assert names(joined) == [list(dict.fromkeys([*first, *second]))] and not joined.obstacles
