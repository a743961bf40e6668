"""`ua.compare`: paired seeds, cells that are kept and resumed, and the tables and reports of the result."""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
import types
import warnings
from contextlib import ExitStack
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import nn

import unalike as ua
from unalike.cli.terminal_tables import summary_table
from unalike.comparison.compare import _warnings_of, prepare_experiment
from unalike.comparison.comparison import Comparison
from unalike.comparison.earlier_reports import earlier_reports
from unalike.comparison.seed_plan import SeedPlan, read_seeds, write_seeds
from unalike.data.partitioning.given_clients import ClientsRequest
from unalike.methods.part import registry
from unalike.metrics.columns import TIMES
from unalike.runtime.records.run_directory import RunDirectory


def plain(table):
    return table.drop(columns=[*TIMES], errors="ignore").reset_index(drop=True)


def same(a, b):
    pd.testing.assert_frame_equal(plain(a.rounds), plain(b.rounds), check_exact=True)
    pd.testing.assert_frame_equal(plain(a.clients), plain(b.clients), check_exact=True)


def cells(folder):
    return sorted(p.name for p in (folder / "cells").iterdir())


def test_compare_methods_share_seed_conditions(people, small):
    """A neutral method gives exactly the numbers of FedAvg under every seed; seeds differ."""
    table = small(["fedavg", "fedprox(mu=0)", "scaffold"], people, participation=0.6)
    a, b = (
        table.rounds.query("method == @m").drop(columns=["method", *TIMES])
        for m in ("fedavg", "fedprox(mu=0)")
    )
    pd.testing.assert_frame_equal(
        a.reset_index(drop=True), b.reset_index(drop=True), check_exact=True
    )
    starts = table.rounds.query("round == 0").groupby("seed")["loss"]
    assert starts.nunique().tolist() == [1, 1] and len(set(starts.first())) == 2
    row = table.summary.query("method == 'fedprox(mu=0)'").iloc[0]
    assert row["difference"] == row["ci_low"] == row["ci_high"] == 0


def test_cell_equals_ua_run_with_that_seed(people, small):
    table = small(["fedavg", "ditto"], people, seeds=[4, 2], participation=0.6)
    alone = ua.run(
        "ditto",
        people,
        model="mlp(hidden=(8,))",
        rounds=3,
        seed=2,
        participation=0.6,
        work=ua.Work(batch_size=5, lr=0.1),
    )
    found = table.rounds.query("method == 'ditto' and seed == 2").drop(
        columns=["method", "seed", *TIMES]
    )
    pd.testing.assert_frame_equal(
        found.reset_index(drop=True),
        alone.history.rounds.drop(columns=[*TIMES]),
        check_exact=True,
        check_like=True,
    )


def test_compare_every_seed_draws_its_own_partition(dataset, small):
    table = small(
        ["fedavg", "fedprox"], data=dataset, partition="dirichlet(alpha=0.3, min_size=2)", clients=4
    )
    sizes = table.clients.groupby(["seed", "method"])["n_train"].agg(tuple)
    assert sizes[0, "fedavg"] == sizes[0, "fedprox"] != sizes[1, "fedavg"] == sizes[1, "fedprox"]


def test_summary_equals_hand_computed_numbers(people, small):
    """Mean of the last four of twelve rounds per seed; sd and t interval over seeds; spread and worst decile over clients."""
    table = small(["fedavg", "fedpake"], people, rounds=12, seeds=3, participation=0.6)
    value = {
        (m, s): table.rounds.query("method == @m and seed == @s and round > 8")["accuracy"].mean()
        for m in ("fedavg", "fedpake")
        for s in range(3)
    }
    d = np.array([value["fedpake", s] - value["fedavg", s] for s in range(3)])
    own = np.array([value["fedpake", s] for s in range(3)])
    drawn = table.resampled.pivot(index=["draw", "seed"], columns="method", values="accuracy")
    sampled = (drawn["fedpake"] - drawn["fedavg"]).groupby("draw").mean().std(ddof=1)
    half = np.hypot(
        stats.t.ppf(0.975, 2) * d.std(ddof=1) / np.sqrt(3), stats.norm.ppf(0.975) * sampled
    )
    assert 0.005 < sampled < 0.2  # of 28 test samples
    row = table.summary.query("method == 'fedpake'").iloc[0]
    assert row["accuracy"] == pytest.approx(own.mean()) and row["accuracy_sd"] == pytest.approx(
        own.std(ddof=1)
    )
    assert row["difference"] == pytest.approx(d.mean())
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((d.mean() - half, d.mean() + half))
    clients = table.clients.query("method == 'fedpake'").groupby("seed")["accuracy"]
    assert row["worst_decile"] == pytest.approx(
        clients.min().mean()
    )  # a tenth of five clients is one
    assert row["client_sd"] == pytest.approx(clients.std().mean())
    total = (
        table.rounds.query("method == 'fedpake'")
        .groupby("seed")[["bytes_down", "bytes_up"]]
        .sum()
        .mean()
        / 1e6
    )
    assert (row["mb_down"], row["mb_up"]) == pytest.approx(tuple(total))
    assert table.summary["seeds"].eq(3).all()


def test_client_rows_average_the_rounds_that_count(people, small):
    table = small(["ditto"], people, rounds=12, seeds=1)
    run = ua.run(
        "ditto", people, model="mlp(hidden=(8,))", rounds=12, work=ua.Work(batch_size=5, lr=0.1)
    )
    history = (
        run.history.clients.query("round > 8")
        .groupby("client")[["accuracy", "personal_accuracy"]]
        .mean()
    )
    assert np.allclose(table.clients[["accuracy", "personal_accuracy"]], history, atol=1e-12)
    assert table.clients["client"].tolist() == [c.name for c in people]


def test_summary_with_sparse_evaluation_keeps_bytes(people, small):
    often, rarely = (small(["fedavg"], people, rounds=6, seeds=1, evaluate_every=n) for n in (1, 3))
    for column in ("mb_down", "mb_up"):
        assert often.summary[column].item() == pytest.approx(rarely.summary[column].item())


# --- what is kept --------------------------------------------------------------------------------------------------


def test_compare_finished_cells_are_read(people, small, trained, tmp_path):
    methods = ["fedavg", "ditto", "centralised"]
    first = small(methods, people, out=tmp_path)
    assert len(trained) == 3 * 2 * 3 and len(cells(tmp_path)) == 6
    trained.clear()
    same(first, small(methods, people, out=tmp_path))
    assert not trained
    more = small([*methods, "fedprox"], people, out=tmp_path, seeds=3)
    assert len(trained) == 3 * (2 + 4) and set(more.rounds["seed"]) == {0, 1, 2}


@pytest.mark.parametrize(
    "changed",
    [
        {"work": ua.Work(batch_size=5, lr=0.2)},
        {"model": "mlp(hidden=(9,))"},
        {"rounds": 2},
        {"rounds": 4, "stop": "accuracy >= 2"},
        {"participation": 0.5},
        {"protocol": ["clients", "local"]},
    ],
    ids=str,
)
def test_compare_changed_setting_makes_a_new_cell(people, small, trained, tmp_path, changed):
    small(["fedavg"], people, seeds=1, out=tmp_path)
    before = cells(tmp_path)
    trained.clear()
    small(["fedavg"], people, seeds=1, out=tmp_path, **changed)
    assert len(trained) >= 2 and len(cells(tmp_path)) == 2 and set(before) < set(cells(tmp_path))


def test_compare_with_more_rounds_continues_every_cell_and_equals_a_whole_comparison(
    people, small, trained, tmp_path
):
    """Cells are found by what changes their training; the report after fewer rounds is kept, and the way back is a new cell."""
    methods = ["fedavg", "scaffold", "ditto", "clustered(eps1=10.0, eps2=0.0001, warmup=2)"]
    first = small(methods, people, out=tmp_path / "grown")
    names, page = cells(tmp_path / "grown"), (tmp_path / "grown" / "report.html").read_bytes()
    trained.clear()
    with pytest.warns(UserWarning, match=r"other settings \(rounds\): it is kept in .*rounds-3"):
        grown = small(methods, people, rounds=7, out=tmp_path / "grown")
    assert len(trained) == len(methods) * 2 * 4
    assert len(cells(tmp_path / "grown")) == len(names) and not {*names} & {
        *cells(tmp_path / "grown")
    }
    same(grown, small(methods, people, rounds=7))
    [kept] = earlier_reports(tmp_path / "grown")
    same(first, ua.open_comparison(kept))
    assert (kept / "report.html").read_bytes() == page
    trained.clear()
    same(grown, small(methods, people, rounds=7, out=tmp_path / "grown"))
    assert not trained


@pytest.mark.parametrize(
    ("method", "options", "why"),
    [
        ("ccvr", {}, "divides its rounds among stages"),
        ("fedavg", {"evaluate_every": 2}, "round 3 is evaluated only as"),
    ],
)
def test_compare_with_more_rounds_trains_anew_where_fewer_are_no_beginning(
    people, small, trained, tmp_path, method, options, why
):
    small([method], people, seeds=1, out=tmp_path, **options)
    trained.clear()
    with pytest.warns(UserWarning, match=f"6 rounds are trained from the first one on: .*{why}"):
        grown = small([method], people, seeds=1, rounds=6, out=tmp_path, **options)
    assert len(trained) == 6 and len(cells(tmp_path)) == 2
    same(grown, small([method], people, seeds=1, rounds=6, **options))


def test_compare_continues_an_interrupted_cell_with_more_rounds(people, small, tmp_path):
    def interrupt(row, what=""):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(["scaffold"], people, seeds=1, out=tmp_path, progress=interrupt)
    same(
        small(["scaffold"], people, seeds=1, rounds=5, out=tmp_path),
        small(["scaffold"], people, seeds=1, rounds=5),
    )
    assert len(cells(tmp_path)) == 1


@pytest.mark.parametrize("rounds", [3, 4])
def test_compare_goes_on_to_other_cells_and_waits_for_one_that_another_process_writes(
    people, small, tmp_path, rounds
):
    """With more rounds the folder of the busy cell is also the beginning of the new one."""
    methods = ["fedavg", "scaffold"]
    small(["fedavg"], people, seeds=1, out=tmp_path)
    cell, *_ = (tmp_path / "cells").iterdir()
    trained = []
    with ExitStack() as elsewhere:
        elsewhere.enter_context(RunDirectory(cell).held())

        def end_elsewhere(row, what=""):
            trained.append(row["run"])
            elsewhere.close()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shared = small(
                methods, people, seeds=1, rounds=rounds, out=tmp_path, progress=end_elsewhere
            )
    assert trained[0].startswith("scaffold")
    same(shared, small(methods, people, seeds=1, rounds=rounds))


@pytest.mark.parametrize("with_folder", [True, False])
def test_compare_in_several_processes_equals_one(people, small, tmp_path, with_folder):
    methods, options = ["fedavg", "ditto", "scaffold"], {"seeds": 2, "executor": "loop"}
    out = tmp_path / "out" if with_folder else None
    shared = small(methods, people, jobs=3, out=out, **options)
    same(shared, small(methods, people, **options))
    if out is not None:
        assert len(cells(out)) == 6 and (out / "report.html").exists()
        same(shared, ua.open_comparison(out))


def test_compare_with_seeds_added_in_several_processes_equals_one(people, small):
    options = {"seeds": "auto", "min_seeds": 2, "max_seeds": 3, "executor": "loop"}
    same(
        small(["fedavg", "ditto"], people, jobs=2, **options),
        small(["fedavg", "ditto"], people, **options),
    )


def test_compare_in_several_processes_tells_what_failed_in_one(people, small):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 4)

        def forward(self, x):
            # the check before the first round passes two samples
            if torch.is_grad_enabled() and len(x) > 2:
                raise RuntimeError("broken")
            return self.head(x)

    with pytest.raises(RuntimeError, match="broken"):
        small(["fedavg"], people, model=Broken, jobs=2, seeds=1, executor="loop")


def test_jobs_that_cannot_be_honored_are_refused(people):
    with pytest.raises(ua.UnalikeError, match="a race looks at each seed before it goes on"):
        ua.compare(None, people, jobs=2)
    with pytest.raises(ua.UnalikeError, match="jobs=0"):
        ua.compare(["fedavg"], people, jobs=0)


def test_compare_other_weights_of_a_module_are_refused(people, small, trained, tmp_path):
    options = {"seeds": 1, "out": tmp_path, "rounds": 1}
    small(["fedavg"], people, model=nn.Linear(6, 4), **options)
    with pytest.raises(ua.UnalikeError, match="from other initial weights"):
        small(["fedavg"], people, model=nn.Linear(6, 4), **options)
    assert len(cells(tmp_path)) == len(trained) == 1


CODE = """
import torch, unalike as ua
from torch import nn
from unalike.methods.roles import Objective

class Net(nn.Module):
    def __init__(self, scale=1):
        super().__init__()
        self.layer, self.scale = nn.Linear(6, 4), scale

    def forward(self, x):
        return self.scale * self.layer(x.relu())

@ua.part
class CodeOfMine(Objective):
    def loss(self, client, batch):
        return 1 * client.out(batch).logits.square().mean()

def cost(labels, predicted, logits):
    return 1.0
"""


def test_compare_changed_code_of_a_model_a_part_or_a_metric_makes_new_cells(
    people, small, trained, tmp_path, monkeypatch
):
    list(registry)  # loads the names of the library
    for number, (old, new) in enumerate(
        (("", ""), ("relu", "tanh"), ("1 * client", "2 * client"), ("1.0", "2.0"))
    ):
        monkeypatch.setattr(registry, "_builders", dict(registry._builders))
        registry._builders.pop("code_of_mine", None)
        file = tmp_path / f"own{number}.py"
        file.write_text(CODE.replace(old, new))
        monkeypatch.setitem(sys.modules, "own", own := types.ModuleType("own"))
        own.__file__ = str(file)
        exec(compile(file.read_text(), file, "exec"), vars(own))
        for _ in range(2):
            options = {
                "model": own.Net,
                "metrics": {"cost": own.cost},
                "seeds": 1,
                "rounds": 1,
                "out": tmp_path,
            }
            small({"mine": own.CodeOfMine()}, people, **options)
        assert len(cells(tmp_path)) == len(trained) == number + 1
    small({"mine": own.CodeOfMine()}, people, **options | {"model": partial(own.Net, scale=2)})
    assert len(trained) == 5
    config = RunDirectory(next((tmp_path / "cells").iterdir())).config
    assert config["code"].keys() == {"Net", "CodeOfMine", "cost"}


def test_compare_other_data_make_new_cells(people, small, trained, tmp_path):
    options = {"seeds": 1, "out": tmp_path, "rounds": 1}
    small(["fedavg"], people[:4], model="linear", **options)
    for k in (0, 1):
        small(["fedavg"], people, model="linear", protocol="server", test=people[k].test, **options)
    assert len(cells(tmp_path)) == len(trained) == 3


def test_compare_other_executor_or_label_reuses_the_cell(people, small, trained, tmp_path):
    small(["fedavg"], people, seeds=1, out=tmp_path)
    small(["fedavg"], people, seeds=1, out=tmp_path, executor="loop")
    table = small({"renamed": "fedavg", "again": "fedavg()"}, people, seeds=1, out=tmp_path)
    assert len(trained) == 3 and table.rounds["method"].unique().tolist() == ["renamed", "again"]


def test_compare_cell_of_a_part_that_gained_a_field_since_is_read(people, small, trained, tmp_path):
    """The record of the cell lacks the field, and the folder has another hash."""
    first = small(["fednova"], people, seeds=1, out=tmp_path)
    cell, *_ = (tmp_path / "cells").iterdir()
    older, config = cell.rename(cell.with_name("fednova-seed0-0123456789abcdef")), "config.toml"
    text = (older / config).read_text()
    assert ", normalize_by='series'" in text
    (older / config).write_text(text.replace(", normalize_by='series'", ""))
    trained.clear()
    with pytest.warns(UserWarning, match="began before its method had all fields"):
        same(first, small(["fednova"], people, seeds=1, out=tmp_path))
    assert not trained
    small({"fednova": "fednova(normalize_by='steps')"}, people, seeds=1, out=tmp_path)
    assert len(trained) == 3


def test_compare_methods_and_seeds_have_several_spellings(people, small):
    for methods in (
        "fedavg",
        ["fedavg"],
        (m for m in ["fedavg"]),
        {"fedavg": ua.Method()},
        {"fedavg": "fedavg()"},
    ):
        table = small(methods, people, rounds=1, seeds=np.int64(1))
        assert table.rounds["method"].unique().tolist() == ["fedavg"]
    assert small({1: "fedavg"}, people, rounds=1, seeds=np.arange(2)).rounds["seed"].nunique() == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt])
def test_compare_interrupted_resumes_inside_its_cell(people, small, trained, tmp_path, error):
    methods = ["fedavg", "ditto", "scaffold"]
    whole = small(methods, people, rounds=4, out=tmp_path / "whole")

    def interrupt(row):
        if row["run"] == "ditto (seed 1)" and row["round"] == 2:
            raise error

    trained.clear()
    with pytest.raises(error):
        small(methods, people, rounds=4, out=tmp_path / "cut", progress=interrupt)
    assert len(trained) == 3 * 4 + 4 + 2 and not (tmp_path / "cut" / "report.html").exists()
    trained.clear()
    same(small(methods, people, rounds=4, out=tmp_path / "cut"), whole)
    assert len(trained) == 2 + 4 and trained[0][1] == 2


def test_compare_crash_loses_no_complete_round(people, small, trained, tmp_path):
    def crash(row):
        if row["run"].startswith("ditto") and row["round"] == 2:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        small(["fedavg", "ditto"], people, seeds=1, out=tmp_path, progress=crash)
    trained.clear()
    same(
        small(["fedavg", "ditto"], people, seeds=1, out=tmp_path),
        small(["fedavg", "ditto"], people, seeds=1),
    )
    assert [number for _, number in trained[:2]] == [
        2,
        0,
    ]  # the last round of the cell, then those of the other comparison
    table = small(["fedavg"], people, seeds=1)
    assert (
        list(table.rounds)[:3] == [*list(table.clients)[:2], "round"] == ["method", "seed", "round"]
    )


def test_compare_into_folder_of_a_run_is_refused(people, small, tmp_path):
    run = {"model": "linear", "rounds": 1}
    ua.run("fedavg", people, **run, out=tmp_path / "run")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(ua.UnalikeError, match="holds a single run"):
        small(["fedavg"], people, out=tmp_path / "run")
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    small(["fedavg"], people, out=tmp_path / "comparison")
    with pytest.raises(ua.UnalikeError, match="holds a comparison"):
        ua.run("fedavg", people, **run, out=tmp_path / "comparison")


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (30, "fedprox(mu=0.1) + lws (seed 0)"),
        (29, "fedprox(mu=0.1…+ lws (seed 0)"),
        (20, "fedprox(mu… (seed 0)"),
        (3, "f…)"),
        (1, "…"),
        (-5, "…"),
    ],
)
def test_shortened_long_text_loses_its_middle(room, expected):
    from unalike._utils.progress import shortened

    assert shortened("fedprox(mu=0.1) + lws (seed 0)", room) == expected


def test_progress_of_resumed_comparison_counts_earlier_rounds(people, small, tmp_path):
    from unalike._utils.progress import printed_lines

    lines = printed_lines(8, "comparing")
    small(["fedavg"], people, rounds=2, out=tmp_path)
    small(["fedavg"], people, rounds=2, out=tmp_path, progress=lambda row: lines(row, row["run"]))
    assert lines.rounds_of_run == {"fedavg (seed 0)": 2, "fedavg (seed 1)": 2}


def test_progress_of_a_run_and_of_a_comparison_is_called_with_a_row(people, small):
    """One signature; where there are several runs, the row names its own."""
    of_run, of_comparison = [], []
    ua.run("fedavg", people, model="linear", rounds=2, progress=of_run.append)
    small(["fedavg", "ditto"], people, rounds=1, seeds=1, progress=of_comparison.append)
    assert [row["round"] for row in of_run] == [1, 2] and "run" not in of_run[0]
    assert [row["run"] for row in of_comparison] == ["fedavg (seed 0)", "ditto (seed 0)"]
    assert {*of_comparison[0]} - {"run"} == {*of_run[0]}


@pytest.mark.parametrize(
    "protocol", ["personal", "local", ["local", "clients"], ["server", "personal", "clients"]]
)
def test_compare_no_column_mixes_protocols(people, small, protocol):
    """Columns without a prefix are those of the shared model, whichever protocol comes first; each protocol has its own rows."""
    table = small(["fedavg", "ditto"], people, protocol=protocol, test=people[0].test)
    asked = {protocol} if isinstance(protocol, str) else set(protocol)
    plain_one = "server" if "server" in asked else "clients"
    rows = table.summary.set_index(["method", "protocol"])["accuracy"]
    assert set(rows["fedavg"].index) == (asked | {plain_one, "used"}) - {"personal"}
    assert set(rows["ditto"].index) == asked | {plain_one, "personal", "used"}
    assert rows["ditto", "used"] == rows["ditto", "personal"] != rows["ditto", plain_one]
    assert table.columns.unprefixed_protocol == plain_one == table.content().unprefixed_protocol
    alone = small(
        ["ditto"],
        people,
        protocol="clients" if plain_one == "clients" else ["server"],
        test=people[0].test,
    )
    assert (
        alone.rounds["accuracy"].tolist()
        == table.rounds.query("method == 'ditto'")["accuracy"].tolist()
    )


def test_summary_server_and_clients_are_two_rows(people, small):
    """One shared model, two test sets: pooled over the clients, and held out at the server."""
    table = small(["fedavg"], people, seeds=1, protocol=["server", "clients"], test=people[3].test)
    row = table.rounds.iloc[-1]
    own = table.clients.query("client == 'site3'").iloc[0]  # of three rounds, the last one counts
    assert np.isclose(row["accuracy"], own["clients_accuracy"])
    assert row["accuracy"] != row["clients_accuracy"] and table.clients["accuracy"].isna().all()


def test_compare_select_best_scores_the_selected_round(people, small, tmp_path):
    """Summary and client table show the scores of the round with the best validation score, and the report says so."""
    chosen_by = [ua.ClientData(c.train, c.test, c.test, c.name) for c in people]
    options = {"rounds": 6, "select": "best", "out": tmp_path / "out"}
    table = small(["fedavg", "ditto"], chosen_by, **options)
    for (method, _), run in table.rounds.groupby(["method", "seed"]):
        scored = run.query("round > 0")
        for prefix in ("", "personal_")[
            : 1 + (method == "ditto")
        ]:  # each protocol by its own validation score
            best = scored["round"].iloc[scored[f"{prefix}val_accuracy"].to_numpy().argmax()]
            assert run.loc[run[f"{prefix}selected"].eq(True), "round"].tolist() == [best]
    picked = table.rounds[table.rounds["selected"]].groupby("method")["accuracy"].mean()
    summary = table.summary.query("protocol == 'clients'").set_index("method")["accuracy"]
    assert np.allclose(summary, picked[summary.index])
    pooled = table.clients.assign(hits=table.clients["accuracy"] * table.clients["n_test"]).groupby(
        ["method", "seed"]
    )
    by_clients = pooled["hits"].sum() / pooled["n_test"].sum()
    picked = table.rounds[table.rounds["selected"]].set_index(["method", "seed"])["accuracy"]
    assert np.allclose(by_clients, picked[by_clients.index])
    same(table, Comparison.load(tmp_path / "out"))
    same(table, small(["fedavg", "ditto"], chosen_by, **options))


def test_compare_budget_compares_at_equal_cost(people, small):
    """SCAFFOLD sends twice as much, so the same bytes allow half the rounds."""
    twelve = small(["fedavg"], people, seeds=1, rounds=12).rounds
    budget = f"{(twelve['bytes_down'] + twelve['bytes_up']).sum() / 1e6} MB"
    table = small(["fedavg", "scaffold"], people, seeds=1, rounds=50, budget=budget)
    assert table.rounds.groupby("method")["round"].max().to_dict() == {"fedavg": 12, "scaffold": 6}
    assert tomllib.loads(table.facts.config)["budget"] == budget


def test_comparison_saved_and_loaded_is_equal(people, small, tmp_path):
    table = small(
        {"plain": "fedavg", "own models": "ditto"},
        people,
        out=tmp_path / "out",
        baseline="own models",
    )
    for loaded in (Comparison.load(tmp_path / "out"), Comparison.load(str(tmp_path / "out"))):
        same(table, loaded)
        assert loaded.facts == table.facts
        pd.testing.assert_frame_equal(loaded.summary, table.summary)
    with pytest.raises(ua.UnalikeError, match="holds no finished comparison"):
        Comparison.load(tmp_path)
    with pytest.raises(ua.UnalikeError, match="missing does not exist; give a folder"):
        Comparison.load(tmp_path / "missing")
    (tmp_path / "out" / "rounds.parquet").write_bytes(b"hello")
    with pytest.raises(
        ua.UnalikeError, match=r"holds no finished comparison or run \(rounds.parquet: .*Parquet"
    ):
        Comparison.load(tmp_path / "out")


@pytest.mark.parametrize("table", ["rounds", "clients"])
def test_damaged_cell_is_named_and_run_again_once_it_is_deleted(people, small, tmp_path, table):
    first = small(["fedavg"], people, out=tmp_path)
    cell, *_ = (tmp_path / "cells").iterdir()
    file = cell / f"{table}.parquet"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(
        ua.UnalikeError,
        match=f"cannot read {file}: .*Parquet.*, or delete the folder {cell}: this cell is",
    ):
        small(["fedavg"], people, out=tmp_path)
    shutil.rmtree(cell)
    same(first, small(["fedavg"], people, out=tmp_path))


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({"methods": "fedavg"}, "methods='fedavg': input should be a valid array"),
        ({"methods": []}, "no methods"),
        (
            {"methods": [{"label": "fedavg", "spec": "fedavg"}]},
            "an entry of methods lacks protocols",
        ),
        (
            {"ends": [{"method": "fedavg", "seed": 0}]},
            "an entry of ends lacks rounds, selected, why",
        ),
        ({"config": "rounds ="}, "config: Invalid value"),
        ({"config": ["rounds"]}, "config=.*: input should be a valid string"),
        ({"partition": None}, "partition=None: "),
        ({"versions": None}, "versions=None: "),
    ],
)
def test_load_edited_facts_are_refused(people, small, tmp_path, edit, expected):
    small(["fedavg"], people, seeds=1, rounds=1, out=tmp_path)
    file = tmp_path / "comparison.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | edit))
    with pytest.raises(
        ua.UnalikeError, match=rf"holds no finished comparison or run \(comparison.json: {expected}"
    ):
        Comparison.load(tmp_path)


@pytest.mark.parametrize(
    ("table", "column"), [("rounds", "round"), ("clients", "n_train"), ("clients", "client")]
)
def test_load_table_without_a_column_is_refused(people, small, tmp_path, table, column):
    small(["fedavg"], people, seeds=1, rounds=1, out=tmp_path)
    file = tmp_path / f"{table}.parquet"
    pd.read_parquet(file).drop(columns=column).to_parquet(file)
    with pytest.raises(ua.UnalikeError, match=f"{table}.parquet lacks {column}"):
        Comparison.load(tmp_path)


def test_report_shows_the_data_of_the_first_seed(small, dataset, tmp_path):
    small(["fedavg"], 4, data=dataset, seeds=[3, 1], rounds=1, out=tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "by client and class, seed 3." in page and "Every client, seed 3" in page


def test_compare_partition_that_falls_short_is_noted_once(small, dataset):
    with pytest.warns(UserWarning, match="even: 4 of 4 clients get fewer") as caught:
        table = small(["fedavg"], 4, data=dataset, partition="even(size=400)", seeds=2, rounds=1)
    assert len([w for w in caught if "get fewer" in str(w.message)]) == 1
    assert len([note for note in table.facts.notes if "get fewer" in note]) == 1


def test_compare_warning_of_some_seeds_names_them():
    class Given:
        def of(self, seed):
            for text in ["every seed", *["some seeds"] * (seed != 1), *["one seed"] * (seed == 1)]:
                warnings.warn(text, UserWarning, stacklevel=1)

    with pytest.warns(UserWarning) as caught:
        found = _warnings_of(Given(), [0, 1, 2])
    assert [*found.items()] == [
        ("every seed", "every seed"),
        ("some seeds", "some seeds (seeds 0, 2)"),
        ("one seed", "one seed (seed 1)"),
    ]
    assert [str(w.message) for w in caught] == [*found.values()]


def test_compare_other_settings_in_the_same_folder_keep_the_earlier_report(people, small, tmp_path):
    """Each report with other settings has a name of its own, once, whatever came between."""
    slow, fast = (ua.Work(batch_size=5, lr=lr) for lr in (0.1, 0.2))
    first = small(["fedavg"], people, work=slow, out=tmp_path)
    for work, seeds, kept in [(fast, 2, ["lr-0.1"]), (slow, 3, ["lr-0.1", "lr-0.2"])]:
        with pytest.warns(
            UserWarning, match=r"a comparison with other settings \(.*lr.*\): it is kept in .*lr-0"
        ):
            small(["fedavg"], people, work=work, seeds=seeds, out=tmp_path)
        assert [place.name for place in earlier_reports(tmp_path)] == kept
    same(first, ua.open_comparison(tmp_path / "reports" / "lr-0.1"))
    for lr, name in [(fast, "seeds-3-lr-0.1"), (slow, "lr-0.2")]:
        with pytest.warns(UserWarning, match="other settings"):
            small(["fedavg"], people, work=lr, seeds=2 if lr is fast else 3, out=tmp_path)
        assert (tmp_path / "reports" / name).exists()
    assert len(earlier_reports(tmp_path)) == 3


def test_compare_with_more_methods_or_seeds_does_not_warn(people, small, tmp_path, recwarn):
    for methods, seeds in [
        (["fedavg"], 2),
        (["fedavg"], 2),
        (["fedavg", "ditto"], 3),
        (["fedavg", "ditto"], [2, 0, 1, 7]),
    ]:
        small(methods, people, seeds=seeds, out=tmp_path)
    assert not recwarn.list and not earlier_reports(tmp_path)
    with pytest.warns(UserWarning, match=r"other settings \(method\)"):
        small(["ditto", "fedavg"], people, seeds=[0, 1, 2, 7], out=tmp_path)  # another baseline


def test_report_shows_every_label(people, small, tmp_path):
    table = small(
        {"plain & simple": "fedavg", "own": "ditto", "alone": "local_only"}, people, out=tmp_path
    )
    text = (tmp_path / "report.html").read_text()
    assert "plain &amp; simple" in text and "own" in text and "alone" in text
    assert table.report(tmp_path / "again.html", title="For the board").exists()
    assert "For the board" in (tmp_path / "again.html").read_text()


def test_report_of_references_only_is_written(people, small, tmp_path):
    table = small(["local_only"], people, seeds=1, out=tmp_path)
    assert (
        table.summary["protocol"].tolist() == ["personal"] and (tmp_path / "report.html").exists()
    )
    small(["centralised"], people, seeds=1, out=tmp_path)


# --- labels, baselines, what fails ---------------------------------------------------------------------------------


def test_compare_mapping_gives_labels(people, small):
    table = small({"A": "fedavg", "B": ua.Method.parse("fedprox(mu=0.1)")}, people)
    assert table.rounds["method"].unique().tolist() == ["A", "B"] and table.facts.baseline == "A"
    assert tomllib.loads(table.facts.config)["method"] == [
        "fedavg",
        repr(ua.Method.parse("fedprox(mu=0.1)")),
    ]


def test_compare_given_baseline_is_used(dataset, people, small):
    table = small(["fedavg", "fedprox"], people, baseline="fedprox")
    rows = table.summary.set_index("method")
    assert np.isnan(rows.loc["fedprox", "difference"]) and not np.isnan(
        rows.loc["fedavg", "difference"]
    )
    assert tomllib.loads(table.facts.config)["baseline"] == "fedprox"
    named = small({"A": "fedavg", "B": "fedprox"}, people, baseline="B", seeds=1)
    assert tomllib.loads(named.facts.config)["baseline"] == "fedprox"
    with pytest.raises(ua.UnalikeError, match="baseline 'ditto' is none of the methods"):
        small(["fedavg"], people, baseline="ditto")


@pytest.mark.parametrize(
    "methods, options, message",
    [
        ([], {}, "expected at least one of each"),
        (["fedavg"], {"seeds": 0}, "expected at least one of each"),
        (["fedavg"], {"seeds": [1, 1]}, "seed is listed twice"),
        (["fedavg"], {"seeds": [-1]}, "seed"),
        (["fedavg", "fedavg"], {}, "listed twice"),
        (["fedavg", "fednva"], {}, "did you mean 'fednova'"),
        (["fedprox(mo=1)"], {}, "it takes fedprox"),
        (["fedpake + fedlws + fednova"], {}, "swap"),
        (["fedavg"], {"model": "mpl"}, "did you mean 'mlp'"),
        (["fedavg"], {"data": "digits"}, "both data= and clients"),
        (["fedavg"], {"epochs": 3}, "epochs"),
        (["fedavg"], {"rounds": 0}, "expected 1 or more"),
        (["fedavg"], {"val": 0.1}, "val=0.1 beside clients"),
        (["fedavg"], {"partition": "iid"}, "partition='iid' beside clients"),
    ],
)
def test_compare_invalid_arguments_are_refused_before_training(
    people, small, trained, methods, options, message
):
    with pytest.raises(ua.UnalikeError, match=message):
        small(methods, people, **options)
    assert not trained


def test_compare_draws_test_samples_of_clients_without_any_under_each_seed(people, small):
    untested = [ua.ClientData(train=c.train) for c in people]
    table = small(["fedavg"], untested, seeds=2)
    sizes = table.clients[["n_train", "n_test"]].drop_duplicates()
    assert (sizes["n_train"] == np.maximum(1, (0.75 * sizes.sum(axis=1)).astype(int))).all()
    assert table.rounds.groupby("seed")["loss"].last().nunique() == 2
    assert (
        len(small(["fedavg"], untested, protocol="server", test=people[0].test, seeds=1).summary)
        == 1
    )


def test_compare_of_clients_with_test_samples_keeps_them_unless_a_share_or_folds_are_given(
    people, small
):
    tested = [ua.ClientData(train=c.train, test=c.test) for c in people]
    tests = {}
    for name, options in (("kept", {}), ("split", {"split": 0.5}), ("folds", {"folds": 2})):
        given = ClientsRequest(tested, **options).read(needs_test=False, compared=True)
        tests[name] = [given.of(seed) for seed in (0, 1)]
    first, second = tests["kept"]
    assert first is second
    for name in ("split", "folds"):
        first, second = tests[name]
        assert [a + b for a, b in zip(first.sizes, first.test.sizes)] == [
            len(c.train[1]) + len(c.test[1]) for c in people
        ]
        assert set(first.test.values) != set(second.test.values)
    assert not set(tests["folds"][0].test.values) & set(tests["folds"][1].test.values)


def test_last_line_says_what_the_interval_is_about(people, dataset, small, tmp_path):
    x, y = dataset.merged()
    site = np.arange(len(y)) % 3
    owners = ua.Dataset("sites", (x, y), groups={"site": site})
    divided = ClientsRequest(3, dataset, partition="iid", tests_of=0)
    as_tuned = prepare_experiment(
        ["fedavg"], divided, SeedPlan.of([1, 2]), model="linear", rounds=1
    )
    subjects = {
        "this test set only: other partitions and other training runs; 2 seeds divide the same test samples.": (
            as_tuned.run(None, lambda row, what="": None)
        ),
        "other samples of these 3 sites and other training runs; 2 divisions into training and test samples.": small(
            ["fedavg"], data=owners
        ),
        "2 folds of repeated 4-fold cross-validation.": small(["fedavg"], data=owners, folds=4),
        "other partitions of this data set and other training runs": small(
            ["fedavg"], 3, data=dataset, partition="iid"
        ),
        "other test samples of these 5 clients and other training runs": small(
            ["fedavg"], people, out=tmp_path / "c"
        ),
        "One seed: there is no interval.": small(["fedavg"], people, seeds=1),
    }
    for text, table in subjects.items():
        assert text in table.findings.about and str(table).endswith(table.findings.about)
    overlaps = [table.facts.sampling.overlap for table in subjects.values()]
    assert overlaps == pytest.approx([0, 1 / 3, 1 / 3, 0, 0, 0], abs=0.01)


def test_compare_without_data_or_with_impossible_partition_is_refused(dataset, small):
    with pytest.raises(ua.UnalikeError, match="found no data"):
        small(["fedavg"])
    with pytest.raises(ua.UnalikeError, match="clients"):
        small(["fedavg"], data=dataset, clients=5000)


@pytest.fixture(scope="module")
def wild():
    """Regression data on which a huge step diverges at once."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 6)).astype(np.float32)
    return [
        ua.ClientData(train=(x[i::4], x[i::4].sum(1)), test=(x[i::4], x[i::4].sum(1)))
        for i in range(4)
    ]


def test_compare_diverged_method_is_noted_and_left_out(wild, small, tmp_path):
    methods = {"wild": "fedavgm(lr=1e30)", "tame": "fedavg"}
    work = ua.Work(batch_size=5, lr=0.01)
    table = small(methods, wild, model="linear", work=work, out=tmp_path, rounds=8)
    assert set(table.rounds["method"]) == {"tame"} and table.facts.baseline == "tame"
    assert [m["label"] for m in table.facts.methods] == ["tame"]
    assert any(note.startswith("wild, seed 0, is left out: round") for note in table.facts.notes)
    assert {(e["method"], e["why"]) for e in table.facts.ends} == {
        ("wild", "diverged"),
        ("tame", "all rounds done"),
    }
    assert table.facts.notes[0] == (
        "the baseline wild diverged under every seed: all methods are compared with tame instead"
    )
    assert "is left out" in (tmp_path / "report.html").read_text()
    with pytest.raises(ua.UnalikeError, match="every method diverged"):
        small({"wild": "fedavgm(lr=1e30)"}, wild, model="linear", work=work, rounds=8)


def test_compare_regression_uses_rmse(wild, small, tmp_path):
    table = small(["fedavg", "ditto"], wild, work=ua.Work(batch_size=5, lr=0.01), out=tmp_path)
    assert "rmse" in table.summary and table.summary["rmse"].notna().all() and "RMSE" in str(table)


@pytest.mark.parametrize(
    "text, numbers",
    [("3", [0, 1, 2]), ("0,1,4", [0, 1, 4]), ("4,", [4]), ("1", [0]), ("2, 5", [2, 5])],
)
def test_read_seeds_inverts_write_seeds(text, numbers):
    assert read_seeds(text) == numbers == read_seeds(write_seeds(numbers))


@pytest.mark.parametrize("seeds", ["12", 1.5, [0, 0.5], None])
def test_compare_seeds_of_wrong_type_are_refused(people, small, seeds):
    with pytest.raises(
        ua.UnalikeError, match=r"seeds=.*: expected how many \(3\), which \(\[0, 1, 4\]\) or"
    ):
        small(["fedavg"], people, seeds=seeds)


def test_read_seeds_invalid_text_is_refused():
    for text in ("x", "", ",", "1.5"):
        with pytest.raises(ua.UnalikeError, match="how many"):
            read_seeds(text)


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("a.md", "| method |"),
        ("a.tex", "% "),
        ("a.csv", "partition,method"),
        ("a.json", "[\n"),
        ("a.HTML", "<!doctype"),
    ],
)
def test_report_has_the_format_of_its_name(people, small, tmp_path, name, starts):
    table = small(["fedavg", "ditto"], people, rounds=1)
    text = table.report(str(tmp_path / name)).read_text("utf-8")
    assert (
        next(line for line in text.splitlines() if line and "Mean of the last" not in line) in text
    )
    assert starts.lower() in text.lower() and ("</html>" in text) == (name == "a.HTML")


def test_report_of_another_format_is_refused(people, small, tmp_path):
    table = small(["fedavg"], people, rounds=1, seeds=1)
    with pytest.raises(ua.UnalikeError, match=r"ending of a report's file.*\.docx"):
        table.report(tmp_path / "a.docx")
    with pytest.raises(ua.UnalikeError, match="is a table, without title and summary"):
        table.report(tmp_path / "a.md", title="Ours")
    assert not list(tmp_path.iterdir())


def test_comparison_is_saved_into_a_folder_by_its_name(people, small, tmp_path):
    table = small(["fedavg"], people, rounds=1, seeds=1)
    table.save(str(tmp_path / "new" / "folder"))
    same(table, ua.open_comparison(tmp_path / "new" / "folder"))


def test_facts_are_valid_json(people, small, tmp_path):
    small(["fedavg", "scaffold"], people, out=tmp_path)
    facts = json.loads((tmp_path / "comparison.json").read_text())
    assert facts["baseline"] == "fedavg" and facts["clients"] == [c.name for c in people]
    assert {w["method"] for w in facts["wire"]} == {"fedavg", "scaffold"}
    assert facts["command"].startswith("# the clients came from a program")


def test_run_facts_give_a_report(people, tmp_path):
    from unalike.comparison.comparison_json_of_cells import save_run_facts

    run = ua.run("ditto", people, model="linear", rounds=2, seed=3, out=tmp_path)
    save_run_facts(run, "mine", {})
    loaded = Comparison.load(tmp_path)
    assert loaded.rounds["method"].unique().tolist() == ["mine"] and loaded.facts.seed == 3
    assert read_seeds(tomllib.loads(loaded.facts.config)["seeds"]) == [3]
    assert "mine" in loaded.report(tmp_path / "report.html").read_text()


def test_load_program_run_has_the_method_as_label(people, tmp_path):
    """The label is the method as last written, for an unfinished run and for one that a program finished."""

    def run(method, until=None):
        def interrupted(row, what=""):
            if row["round"] == until:
                raise KeyboardInterrupt

        ua.run(method, people, model="linear", rounds=3, out=tmp_path, progress=interrupted)

    def method():
        loaded = Comparison.load(tmp_path)
        assert loaded.facts.methods[0]["spec"] == "task_loss() + by_size() + mean()"
        assert loaded.rounds["method"].unique().tolist() == [loaded.facts.baseline]
        return loaded.facts.methods[0]["label"]

    with pytest.raises(KeyboardInterrupt):
        run("fedavg", 2)
    assert method() == "fedavg"
    run("fedavg")
    assert method() == "fedavg"
    run("by_size + mean")
    assert method() == "by_size + mean"


def test_load_continued_run_ignores_old_facts(people, tmp_path):
    """The facts are those of two rounds; the run continues, is interrupted after four, and a program finishes it."""
    from unalike.comparison.comparison_json_of_cells import save_run_facts

    def run(rounds, until):
        def interrupted(row, what=""):
            if row["round"] == until:
                raise KeyboardInterrupt

        return ua.run(
            "ditto", people, model="linear", rounds=rounds, out=tmp_path, progress=interrupted
        )

    save_run_facts(run(2, None), "mine", {"data": "digits"})
    assert "--rounds 2" in Comparison.load(tmp_path).facts.command
    with pytest.raises(KeyboardInterrupt):
        run(10, 4)
    begun = Comparison.load(tmp_path).facts
    assert (
        begun.unfinished == "4 of 10 rounds"
        and "unfinished" in begun.command
        and "rounds = 10" in begun.config
    )
    run(10, None)
    done = Comparison.load(tmp_path).facts
    assert not done.unfinished and "rounds = 10" in done.config and "--rounds 2" not in done.command


@pytest.mark.parametrize("spec", ["fedavg", "ditto", "local_only"])
def test_load_program_run_has_a_report(tmp_path, spec):
    clients = ua.partition(ua.load("digits"), "iid", clients=3)
    ua.run(spec, clients, model="mlp(hidden=(8,))", rounds=2, out=tmp_path)
    kept = Comparison.load(tmp_path)
    page = kept.report(tmp_path / "report.html").read_text()
    assert (
        "ua.run(" in page
        and "client-0" in page
        and repr(ua.Method.parse(spec)) in kept.facts.methods[0]["spec"]
    )
    assert (
        set(kept.summary["protocol"])
        == {"fedavg": {"clients"}, "ditto": {"clients", "personal"}, "local_only": {"personal"}}[
            spec
        ]
    )


def test_load_program_run_has_its_end(tmp_path):
    """A finished run has the same `ends` as a comparison of the same cell; an unfinished run has none."""
    clients = ua.partition(ua.load("digits"), "iid", clients=3, val=0.3)
    options = {
        "model": "linear",
        "rounds": 9,
        "select": "best",
        "stop": "patience(rounds=2)",
        "work": ua.Work(lr=0.5),
    }

    def interrupted(row, what=""):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ua.run("ditto", clients, out=tmp_path, progress=interrupted, **options)
    assert Comparison.load(tmp_path).facts.ends == []
    run = ua.run("ditto", clients, out=tmp_path, **options)
    kept = Comparison.load(tmp_path)
    assert kept.facts.ends == ua.compare(["ditto"], clients, seeds=1, **options).facts.ends
    assert kept.facts.ends[0]["selected"] == run.selected and kept.facts.ends[0]["why"] == run.ended
    assert "End of each run" in kept.report(tmp_path / "report.html").read_text()


@pytest.mark.parametrize("tested, options", [(True, {"protocol": "personal"}), (False, {})])
def test_report_of_run_without_score_is_refused(tmp_path, people, tested, options):
    clients = people if tested else [ua.ClientData(c.train) for c in people]
    ua.run("fedavg", clients, model="linear", rounds=1, out=tmp_path, **options)
    with pytest.raises(
        ua.UnalikeError, match="no round has a score to report; expected clients with test samples"
    ):
        Comparison.load(tmp_path).report(tmp_path / "report.html")


def test_compare_plan_is_scored_by_its_last_stage(small, people, tmp_path):
    """The result of CCVR is the calibrated model; its earlier rounds are those of the method that it calibrates."""
    ccvr = "ccvr(steps=5)"
    table = small(["fedavg", ccvr], people, rounds=4, seeds=1, out=tmp_path)
    work = ua.Work(batch_size=5, lr=0.1)
    run = ua.run(ccvr, people, model="mlp(hidden=(8,))", rounds=4, work=work, out=tmp_path / "run")
    last = run.history.last["accuracy"]
    assert last != run.history.rounds["accuracy"].iloc[-2]
    for found in (table, Comparison.load(tmp_path), Comparison.load(tmp_path / "run")):
        scores = found.summary.set_index("method")["accuracy"]
        assert scores[scores.index != "fedavg"].to_list() == [last]
    clients = run.history.clients.query("round == 4")["accuracy"].to_list()
    assert table.clients[table.clients["method"] == ccvr]["accuracy"].to_list() == pytest.approx(
        clients, nan_ok=True
    )


def test_compare_budget_between_evaluations_keeps_every_method(small, people, capsys):
    table = small(
        ["fedavg", "scaffold"], people, rounds=40, seeds=1, evaluate_every=10, budget="12 rounds"
    )
    assert table.summary["method"].to_list() == ["fedavg", "scaffold"]
    for _, own in table.rounds.groupby("method"):
        assert own.dropna(subset="accuracy")["round"].to_list() == [0, 10, 12]
    few = small(["fedavg"], people, rounds=40, seeds=1, evaluate_every=10, budget="3 rounds")
    assert few.summary["accuracy"].notna().all()
    summary_table(few)
    assert "fedavg ended by: budget of 3 rounds spent\n" in capsys.readouterr().out


def test_facts_of_program_arguments_have_no_command(small):
    def net():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    options = {"data": "digits", "rounds": 1, "seeds": 1}
    table = small(
        ["fedavg"],
        3,
        model=net,
        metrics={"zeros": lambda y, p, logits: float((p == 0).mean())},
        **options,
    )
    assert table.facts.command.startswith(
        "# model, metrics came from a program: call ua.compare(...)"
    )
    assert small(["fedavg"], 3, **options).facts.command.startswith("unalike compare --data digits")


def test_compare_keeps_clients_by_round_and_confusions(people, small, tmp_path):
    table = small(["fedavg", "local_only"], people, out=tmp_path)
    own = table.client_rounds.query("method == 'fedavg' and seed == 1 and round == 2")
    assert list(own["client"]) == [f"site{k}" for k in range(5)]
    last = table.rounds.query("method == 'fedavg'").groupby("seed")["accuracy"].last()
    assert set(table.client_rounds.columns) == {
        "method",
        "seed",
        "round",
        "client",
        "accuracy",
        "personal_accuracy",
    }
    confusion = {entry["method"]: np.array(entry["counts"]) for entry in table.facts.confusions}
    tested = 8 + 6 + 3 + 6 + 5
    assert set(confusion) == {"fedavg", "local_only"} and all(
        c.sum() == 2 * tested for c in confusion.values()
    )
    assert confusion["fedavg"].trace() / (2 * tested) == pytest.approx(last.mean())
    loaded = Comparison.load(tmp_path)
    pd.testing.assert_frame_equal(loaded.client_rounds, table.client_rounds)
    assert loaded.facts.confusions == table.facts.confusions


@pytest.mark.parametrize(
    ("spec", "column"), [("fedavg", "accuracy"), ("ditto", "personal_accuracy")]
)
def test_run_confusion_counts_the_test_samples_of_the_models_in_use(people, spec, column):
    run = ua.run(spec, people, model="mlp(hidden=(8,))", rounds=2, progress=False)
    counts = run.confusion()
    assert counts.to_numpy().trace() / counts.to_numpy().sum() == pytest.approx(
        run.history.last[column]
    )
    with pytest.raises(ua.UnalikeError, match="no test sample with a class"):
        ua.run(
            "fedavg", data="linear_clusters(clients=2)", model="linear", rounds=1, progress=False
        ).confusion()


def test_compare_gives_methods_local_training_of_their_own(people, small):
    works = {"fedavg": ua.Work(batch_size=5, lr=0.1), "slow": ua.Work(batch_size=5, lr=0.001)}
    both = small({"fedavg": "fedavg", "slow": "fedavg"}, people, work=works)
    alone = small({"slow": "fedavg"}, people, work=works["slow"])
    pd.testing.assert_frame_equal(
        plain(both.rounds[both.rounds["method"] == "slow"]), plain(alone.rounds), check_exact=True
    )
    assert [m["work"] for m in both.facts.methods] == ["", "lr=0.001"]
    assert both.facts.command.startswith("# work by method came from a program")
    assert "slow: Work(epochs=1" in tomllib.loads(both.facts.config)["work"], (
        "no flag, so that --config refuses the file"
    )


def test_compare_refuses_local_training_of_an_unknown_method(people, small):
    with pytest.raises(ua.UnalikeError, match=r"local training.*'fedavgg'.*fedavg"):
        small(["fedavg"], people, work={"fedavgg": ua.Work()})
    with pytest.raises(ua.UnalikeError, match=r"work=0\.1: expected ua\.Work"):
        small(["fedavg"], people, work={"fedavg": 0.1})
