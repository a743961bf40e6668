"""Studies: cells, stored results, resumption, reports and the ledger."""

import math
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from string import ascii_letters, digits
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from unalike import UnalikeError
from unalike.runtime.round_loop import execute
from unalike_studies.catalogue import STUDIES, study
from unalike_studies.cells import CLASS_ACCURACY
from unalike_studies.claim_verdicts import LEAST_SEEDS, NOT_RUN, Above, Below, Same
from unalike_studies.claims import (
    ACCURACY,
    Claim,
    after_round,
    best,
    gain,
    mean,
    peak,
    question,
    score,
)
from unalike_studies.layouts.tables import MethodTable
from unalike_studies.ledger import CLAIMS, OVERVIEW, QUESTIONS, entries, pages, results_of
from unalike_studies.papers.fedlws_figures import PEARSON
from unalike_studies.published import Printed, printed
from unalike_studies.recorded_numbers import MEAN
from unalike_studies.report import write_report
from unalike_studies.result_files import ESTIMATES, FOLDER, digests, gather, read, save
from unalike_studies.results import CellResult, Results
from unalike_studies.run_study import PARTIAL, missing, run_cell, run_cells
from unalike_studies.study import Scale, Study, Variant

ROOT = Path(__file__).parents[2]
COMMON = {
    "data": "quadratic",
    "partition": "natural",
    "split": 1.0,
    "merge": False,
    "protocol": "server",
}
COMMON |= {"model": "linear", "rounds": 3, "work": {"batch_size": 60, "lr": 0.001}}


def stored(folder, cell):
    return next(iter(read(folder, [cell]).cells), None)


@pytest.fixture
def small():
    """A study of two equal methods and a third in two settings, which runs in a moment."""
    methods = {
        "FedAvg": "fedavg",
        "again": "fedprox(mu=0)",
        "SGD": Variant("fedavg", {"work": {"lr": 0.01}}),
    }
    settings = {"unequal": {}, "equal": {"data": "quadratic(sizes=(60, 60), optima=(10.0, 0.0))"}}
    claims = (
        Claim(
            "mu = 0 is FedAvg",
            gain("again", "FedAvg", "unequal", "rmse"),
            Same(1e-6),
            unit="rmse",
            scale=1,
        ),
        Claim(
            "A larger rate is worse",
            gain("SGD", "FedAvg", "unequal", "rmse"),
            Above(),
            unit="rmse",
            scale=1,
        ),
    )
    scales = {"small": Scale(methods, settings, COMMON, reduced="everything")}
    return Study(
        "toy-table1",
        "A toy",
        "Nobody, 2026",
        scales,
        claims,
        (MethodTable("Rmse", "rmse", scale=1),),
    )


def test_run_cells_stores_each_result_and_runs_none_twice(small, tmp_path):
    cells = small.scale("small").cells
    assert len(cells) == 3 * 2 * 3
    first = list(run_cells({tmp_path: cells[:4]}))
    [written] = tmp_path.glob("*.parquet")
    before = written.read_bytes()
    assert digests(tmp_path) == {cell.digest for cell in cells[:4]}
    rest = list(run_cells({tmp_path: cells}))
    assert len(first) + len(rest) == len(cells) and not missing(cells, tmp_path)
    assert written.read_bytes() == before and len(list(tmp_path.glob("*.parquet"))) == 2


def test_stored_result_holds_what_the_cell_was(small, tmp_path):
    [cell, *_] = small.scale("small").cells
    [result] = run_cells({tmp_path: [cell]})
    found = stored(tmp_path, cell)
    assert (found.method, found.setting, found.seed, found.digest) == (
        "FedAvg",
        "unequal",
        0,
        cell.digest,
    )
    assert found.rounds["round"] == [0, 1, 2, 3] and found.seconds > 0 and found.versions["unalike"]
    assert found.rounds["rmse"] == result.rounds["rmse"] and found.clients == result.clients


def test_stored_result_of_another_digest_is_run_again(small, tmp_path):
    [cell, *_] = small.scale("small").cells
    list(run_cells({tmp_path: [cell]}))
    other = replace(cell, options={**cell.options, "rounds": 4})
    assert stored(tmp_path, other) is None and missing([other], tmp_path) == [other]


def test_damaged_result_says_which_file(small, tmp_path):
    [cell, *_] = small.scale("small").cells
    (tmp_path / "cells-1.parquet").write_text("{")
    with pytest.raises(UnalikeError, match=r"cells-1.parquet.*delete it"):
        stored(tmp_path, cell)


def test_file_of_something_else_is_refused(tmp_path):
    pd.DataFrame({"digest": ["a"], "flavor": ["sour"]}).to_parquet(tmp_path / "mine.parquet")
    with pytest.raises(
        UnalikeError, match=r"mine.parquet has the columns digest, flavor, not those of results"
    ):
        digests(tmp_path)


def result(seed, **more):
    rounds = {"round": [0, 1], "accuracy": [None, 0.1 + 0.2], "stage": [1, 1]}
    return CellResult(
        "a",
        "s",
        seed,
        f"{seed:016}",
        "",
        {"work": {"lr": None}},
        1.5,
        "",
        {},
        {},
        **{"rounds": rounds, **more},
    )


def cell_of(result):
    return SimpleNamespace(method=result.method, setting=result.setting, digest=result.digest)


def test_results_of_different_columns_are_stored_as_they_are(tmp_path):
    series = [
        {"quantity": "gamma", "layer": "w", "values": [0.5, None]},
        {"quantity": "cosine", "client": MEAN, "values": [1e-300]},
    ]
    results = [
        result(
            0,
            curves=[[0.5, None], []],
            recorded={"rounds": [1, 2], "series": series, "thinned": ""},
        ),
        result(
            1,
            clients={"client": ["x"], "n_test": [3], "rmse": [2.0]},
            notes=["careful"],
            label_counts=[[1, 2]],
        ),
        result(2, rounds={}),
    ]
    for one in results:
        save(one, tmp_path)
    for _ in range(2):
        assert read(tmp_path, map(cell_of, results)) == Results(tuple(results))
        gather(tmp_path)
    [file] = tmp_path.glob("*.parquet")
    gather(tmp_path, "*.parquet")
    assert list(tmp_path.glob("*.parquet")) == [file]


def test_number_that_is_not_finite_is_stored_as_unknown(tmp_path):
    save(result(0, rounds={"round": [0, 1, 2], "loss": [1.0, math.nan, math.inf]}), tmp_path)
    assert read(tmp_path, [cell_of(result(0))]).cells[0].rounds["loss"] == [1.0, None, None]


def test_files_of_two_machines_are_read_together_and_gathered_without_loss(tmp_path):
    """What git makes of two branches that each add results: the files of both."""
    machines = tmp_path / "one", tmp_path / "two"
    results = [result(seed) for seed in range(6)]
    for machine, own in zip(machines, (results[:4], results[2:])):
        for one in own:
            save(one, machine)
        gather(machine)
    both = tmp_path / "both"
    both.mkdir()
    for machine in machines:
        for file in machine.iterdir():
            shutil.copy(file, both)
    assert len(list(both.iterdir())) == 2 and read(both, map(cell_of, results)) == Results(
        tuple(results)
    )
    gather(both, "*.parquet")
    assert len(list(both.iterdir())) == 1 and read(both, map(cell_of, results)) == Results(
        tuple(results)
    )


def test_gather_that_is_killed_before_it_removes_files_loses_and_doubles_nothing(
    tmp_path, monkeypatch
):
    results = [result(seed) for seed in range(3)]
    for one in results:
        save(one, tmp_path)

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "unlink", killed)
        gather(tmp_path)
    assert len(list(tmp_path.iterdir())) == 4 and read(tmp_path, map(cell_of, results)) == Results(
        tuple(results)
    )
    gather(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1 and read(tmp_path, map(cell_of, results)) == Results(
        tuple(results)
    )


def test_gather_on_a_full_disk_leaves_every_result(tmp_path, monkeypatch):
    results = [result(seed) for seed in range(3)]
    for one in results:
        save(one, tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(UnalikeError, match="No space left"):
        patched.setattr("os.fsync", full)
        gather(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3 and read(tmp_path, map(cell_of, results)) == Results(
        tuple(results)
    )


def test_process_that_is_killed_loses_at_most_the_running_cell(small, tmp_path):
    """The cells that had ended before `kill -9` are not run again."""
    script = (
        "import os, sys, pickle\n"
        "from pathlib import Path\n"
        "from unalike_studies.run_study import run_cells\n"
        "cells = pickle.load(sys.stdin.buffer)\n"
        "for number, _ in enumerate(run_cells({Path(sys.argv[1]): cells}), 1):\n"
        "    if number == 3: os.kill(os.getpid(), 9)\n"
    )
    cells = small.scale("small").cells[:5]
    done = subprocess.run([sys.executable, "-c", script, tmp_path], input=pickle.dumps(cells))
    assert done.returncode == -9 and digests(tmp_path) == {cell.digest for cell in cells[:3]}
    rest = list(run_cells({tmp_path: cells}))
    assert (
        len(rest) == 2
        and not missing(cells, tmp_path)
        and len(list(tmp_path.glob("*.parquet"))) == 1
    )


def test_cell_of_another_study_with_the_same_digest_is_copied_whatever_its_labels(small, tmp_path):
    [cell, *_] = small.scale("small").cells
    [first] = run_cells({tmp_path / "one" / "small": [cell]})
    renamed = replace(cell, method="baseline", setting="here")
    [again] = run_cells({tmp_path / "two" / "small": [renamed]}, root=tmp_path)
    assert again == stored(tmp_path / "two" / "small", renamed)
    assert replace(again, method=cell.method, setting=cell.setting) == stored(
        tmp_path / "one" / "small", cell
    )
    assert again.seconds == first.seconds


def test_cell_that_two_studies_share_is_run_once(small, tmp_path, monkeypatch):
    [cell, *_] = small.scale("small").cells
    renamed = replace(cell, method="baseline")
    runs = []
    monkeypatch.setattr(
        "unalike_studies.run_study.execute", lambda *a, **k: runs.append(a) or execute(*a, **k)
    )
    results = list(run_cells({tmp_path / "one": [cell], tmp_path / "two": [renamed]}))
    assert len(runs) == 1 and [result.method for result in results] == ["FedAvg", "baseline"]
    assert not missing([cell], tmp_path / "one") and not missing([renamed], tmp_path / "two")


def test_cell_that_another_process_has_run_meanwhile_is_not_run_again(small, tmp_path, monkeypatch):
    first, second, *_ = small.scale("small").cells
    runs = []

    def both(run_config, out):
        runs.append(out)
        if len(runs) == 1:
            run_cell(second, tmp_path)
        return execute(run_config, out=out)

    monkeypatch.setattr("unalike_studies.run_study.execute", both)
    assert [result.digest for result in run_cells({tmp_path: [first, second]})] == [first.digest]
    assert len(runs) == 2 and not missing([first, second], tmp_path)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_cell_that_cannot_be_run_leaves_the_others_to_run(small, tmp_path, jobs):
    [cell, other, *_] = small.scale("small").cells
    broken = replace(cell, setting="elsewhere", options={**cell.options, "data": "no_such_data"})
    error = "1 of 2 cells cannot be run; FedAvg, elsewhere, seed 0: .*no_such_data"
    with pytest.raises(UnalikeError, match=error), pytest.warns(UserWarning, match="no_such_data"):
        list(run_cells({tmp_path: [broken, other]}, jobs=jobs))
    assert missing([broken, other], tmp_path) == [broken]


def test_interrupted_cell_goes_on_from_its_checkpoint(small, tmp_path, monkeypatch):
    [cell, *_] = small.scale("small").cells
    whole = run_cell(cell, tmp_path / "whole")
    partial = tmp_path / "cut" / PARTIAL / cell.digest

    def interrupt(run_config, out):
        def stop(row, what=""):
            if row["round"] == 2:
                raise KeyboardInterrupt

        return execute(run_config, out=out, progress=stop)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("unalike_studies.run_study.execute", interrupt)
        run_cell(cell, tmp_path / "cut")
    assert (partial / "rounds.parquet").exists() and stored(tmp_path / "cut", cell) is None
    resumed = run_cell(cell, tmp_path / "cut")
    assert resumed.rounds["rmse"] == whole.rounds["rmse"] and not partial.exists()


@pytest.mark.slow
@pytest.mark.study
@pytest.mark.filterwarnings(
    "ignore::UserWarning"
)  # studies show what their methods and partitions warn of
@pytest.mark.parametrize("name", STUDIES)
def test_smoke_scale_runs_and_is_reported(name, tmp_path):
    folder = tmp_path / name / "smoke"
    cells = study(name).scale("smoke").cells
    assert all(result.ended for result in run_cells({folder: cells}))
    text, files = write_report(study(name), "smoke", folder)
    assert f"{len(cells)} of {len(cells)} cells" in text and all(
        file.stat().st_size for file in files
    )


def test_clients_that_get_fewer_samples_are_noted_in_result_and_report(small, tmp_path):
    few = {
        "data": "digits",
        "partition": "even(size=2000)",
        "clients": 3,
        "rounds": 1,
        "model": "linear",
        "protocol": "clients",
    }
    scale = Scale({"FedAvg": "fedavg"}, {"all": {}}, few, seeds=(0,))
    with pytest.warns(UserWarning, match="get fewer"):
        [result] = run_cells({tmp_path: scale.cells})
    assert sum("even: 3 of 3 clients get fewer samples" in note for note in result.notes) == 1
    text, _ = write_report(replace(small, scales={"small": scale}, claims=()), "small", tmp_path)
    assert "## Warnings" in text and "| 1 of 1 | even: 3 of 3 clients get fewer" in text
    page = (tmp_path / "report.html").read_text()
    assert (
        f"<title>{small.title}</title>" in page
        and page.count("<h1>") == 1
        and "even: 3 of 3 clients get fewer" in page
    )


def test_diverged_cell_is_a_result_that_is_infinitely_bad(small, tmp_path):
    scale = Scale(
        {"FedAvg": "fedavg"}, {"all": {"work": {"lr": 1e9}}}, COMMON | {"rounds": 20}, seeds=(0,)
    )
    [result] = run_cells({tmp_path: scale.cells})
    assert result.ended == "diverged" and result.notes and result.score("rmse", 1) == math.inf


def test_scale_with_unknown_option_is_refused():
    with pytest.raises(UnalikeError, match="'batchsize'"):
        _ = Scale({"FedAvg": "fedavg"}, {"all": {"batchsize": 3}}, COMMON).cells


def test_digest_changes_with_options_and_not_with_labels():
    def digest(label, **options):
        [cell] = Scale({label: "fedavg"}, {"all": options}, COMMON, seeds=(0,)).cells
        return cell.digest

    assert digest("a") == digest("b") == digest("a", executor="loop") == digest("a", device="cuda")
    assert len({digest("a"), digest("a", rounds=4), digest("a", work={"lr": 0.5})}) == 3


def test_ledger_gives_verdicts_from_three_seeds_on(small, tmp_path):
    folder = tmp_path / "toy-table1" / "small"
    list(run_cells({folder: [cell for cell in small.scale("small").cells if cell.seed < 2]}))
    assert [entry.finding.verdict for entry in entries(small, results_of(small, tmp_path))] == [
        NOT_RUN,
        NOT_RUN,
    ]
    list(run_cells({folder: small.scale("small").cells}))
    same, better = entries(small, results_of(small, tmp_path))
    assert same.finding.verdict == "reproduced" and same.finding.mean == 0
    assert better.finding.verdict in ("reproduced", "against") and better.finding.seeds == 3
    text = pages([small], tmp_path)[CLAIMS]
    row = "| mu = 0 is FedAvg | no number | 0 rmse | 0 to 0 | 0 | - | 0 ± 1e-06 | 3 | small | reproduced | - |"
    assert row in text
    assert "Scale small: 18 of 18 cells took " in text and "Reduced: everything." in text
    assert "estimated" not in text


def test_ledger_and_report_show_the_estimated_seconds_of_the_stored_cells(small, tmp_path):
    folder = tmp_path / "toy-table1" / "small"
    list(
        run_cells(
            {
                folder: [
                    cell
                    for cell in small.scale("small").cells
                    if cell.setting == "equal" and cell.seed < 2
                ]
            }
        )
    )
    (folder / ESTIMATES).write_text('{"FedAvg, equal": 3.0, "FedAvg, unequal": 50.0}')
    for text in (pages([small], tmp_path)[CLAIMS], write_report(small, "small", folder)[0]):
        assert "6 of 18 cells took " in text and "; estimated were 6 for 2 of them." in text
    (folder / ESTIMATES).write_text(
        '{"FedAvg, equal": 3.0, "again, equal": 4.0, "SGD, equal": 1.0}'
    )
    assert "estimated were 16." in pages([small], tmp_path)[CLAIMS]


def test_ledger_without_results_says_not_run(small, tmp_path):
    found = pages([small], tmp_path)
    assert found[CLAIMS].count("| not run | - |") == 2 and "toy-table1" not in found[QUESTIONS]


def test_ledger_separates_claims_from_questions_and_names_what_the_verdicts_rest_on(
    small, tmp_path
):
    unlike = replace(small.scale("small"), unlike="another optimum")
    asked = question(
        "Is a larger rate better?", gain("SGD", "FedAvg", "unequal", "rmse"), Below(), "rmse", 1
    )
    wrong = Claim(
        "A larger rate is worse", asked.quantity, Above(), Printed(5.0, "5, table 1"), "rmse", 1
    )
    study = replace(small, scales={"small": unlike}, claims=(wrong, asked))
    list(run_cells({tmp_path / small.name / "small": unlike.cells}))
    found = pages([study], tmp_path)
    gains = asked.quantity(results_of(study, tmp_path)["small"])
    assert max(gains.values()) < 0, "the larger rate must be better under every seed"
    assert (
        "| A larger rate is worse | 5 (5, table 1) |" in found[CLAIMS]
        and "Is a larger" not in found[CLAIMS]
    )
    assert "| above ours | above 0 | 3 | small | against | - |" in found[CLAIMS]
    assert (
        "| Is a larger rate better? | - |" in found[QUESTIONS]
        and "is worse" not in found[QUESTIONS]
    )
    assert "| 3 | another optimum |" in found[OVERVIEW] and "quadratic" in found[OVERVIEW]


def test_ledger_counts_own_methods_coverage_and_repeated_claims_once(small, tmp_path):
    number = printed("fedlws", "1", "FedAvg+LWS", "CIFAR-10", alpha=0.1)
    quantity = gain("SGD", "FedAvg", "unequal", "rmse")
    own = Claim("Ours is better", quantity, Below(), number, "rmse", 1, for_own_method=True)
    again = replace(own, text="Ours is better, said again")
    asked = question("Is a larger rate better?", quantity, Below(), "rmse", 1)
    asked_otherwise = question("Is a smaller rate worse?", quantity, Below(), "rmse", 1)
    study = replace(small, claims=(own, again, asked, asked, asked_otherwise))
    list(run_cells({tmp_path / small.name / "small": small.scale("small").cells}))
    found = pages([study], tmp_path)
    assert "Ours is better |" in found[CLAIMS] and "said again" not in found[CLAIMS]
    assert found[QUESTIONS].count("Is a larger rate better?") == 1
    assert found[QUESTIONS].count("Is a smaller rate worse?") == 1
    own_table, _, rest = found[OVERVIEW].partition("## How much is judged?")
    [row] = [line for line in own_table.splitlines() if line.startswith("| all |")]
    assert sum(int(count) for count in row.strip("| ").split(" | ")[1:]) == 1
    coverage = next(line for line in rest.splitlines() if line.startswith("| fedlws |"))
    assert coverage.startswith("| fedlws | 1 |") and "table 1: 1 of 143" in coverage


@pytest.mark.parametrize("bounded", [ACCURACY, PEARSON], ids=lambda kind: kind["unit"])
def test_claims_about_one_accuracy_or_a_correlation_have_its_bounds(bounded):
    claims = [claim for one in STUDIES.values() for claim in one.claims]
    bounds = {claim.bounds for claim in claims if claim.unit == bounded["unit"]}
    assert bounds == {bounded["bounds"]}


def test_value_after_a_round_needs_that_round_to_be_evaluated():
    rounds = {"round": [0, 2, 4], "loss": [3.0, 2.0, None]}
    results = Results((CellResult("a", "s", 5, "", "", {}, 1.0, "", {}, {}, rounds=rounds),))
    found = {number: after_round(number, "a", "s", "loss")(results) for number in (2, 3, 4)}
    assert found == {2: {5: 2.0}, 3: {}, 4: {}} and after_round(2, "b", "s", "loss")(results) == {}


def test_best_is_the_method_of_the_largest_mean_and_needs_all_seeds():
    def result(method, seed, value):
        rounds = {"round": [0, 1], "accuracy": [0.0, value]}
        return CellResult(method, "all", seed, "", "", {}, 1.0, "", {}, {}, rounds=rounds)

    cells = (result("a", 0, 0.1), result("a", 1, 0.4), result("b", 0, 0.3), result("b", 1, 0.3))
    quantity = best(score("a", "all"), score("b", "all"))
    assert quantity(Results(cells)) == {0: 0.3, 1: 0.3}
    assert quantity(Results(cells[:3])) == {}


def test_mean_averages_quantities_under_the_seeds_that_all_of_them_have():
    quantity = mean(lambda results: {0: 1.0, 1: 2.0}, lambda results: {1: 4.0, 2: 8.0})
    assert quantity(Results(())) == {1: 3.0}


def test_peak_is_the_best_round_after_the_start():
    rounds = {"round": [0, 1, 2, 3], "accuracy": [0.9, 0.2, 0.6, None]}
    results = Results((CellResult("a", "s", 4, "", "", {}, 1.0, "", {}, {}, rounds=rounds),))
    assert peak("a", "s")(results) == {4: 0.6}


def test_cell_with_proxy_holds_out_a_share_of_the_test_samples_of_each_class():
    common = {
        "data": "digits",
        "partition": "iid",
        "merge": False,
        "protocol": "server",
        "proxy": 0.1,
    }
    common |= {"model": "linear"}
    [cell] = Scale({"FedLAW": "fedlaw"}, {"all": {}}, common, seeds=(0,)).cells
    run_config = cell.prepare()
    assert run_config.proxy[1].bincount().tolist() == [4] * 10  # 355 test samples
    assert len(run_config.test[1]) == 355 - 40


def test_cell_with_proxy_test_learns_from_the_test_samples():
    common = {
        "data": "digits",
        "partition": "iid",
        "merge": False,
        "protocol": "server",
        "proxy": "test",
    }
    common |= {"model": "linear"}
    [cell] = Scale({"learned": "fedavg + learned_shrinking"}, {"all": {}}, common, seeds=(0,)).cells
    run_config = cell.prepare()
    assert torch.equal(run_config.proxy[0], run_config.test[0])


def test_pretrained_cell_starts_from_samples_that_clients_lack():
    common = {
        "data": "digits",
        "partition": "iid",
        "merge": False,
        "protocol": "server",
        "split": 1.0,
        "clients": 3,
    }
    common |= {
        "model": "linear",
        "work": {"lr": 0.5, "batch_size": 20},
        "pretrain": {"share": 0.25, "epochs": 3},
    }
    [cell] = Scale({"FedAvg": "fedavg"}, {"all": {}}, common | {"rounds": 0}, seeds=(0,)).cells
    run_config = cell.prepare()
    assert (
        run_config.population.sizes.sum() == 1442 - round(0.25 * 1442)
        and len(run_config.test[1]) == 355
    )
    assert execute(run_config).history.rounds["accuracy"][0] > 0.7
    assert (
        cell.prepare().description["model"] == run_config.description["model"]
    )  # so that an interrupted cell goes on


def test_method_table_has_published_numbers_in_columns_of_their_own():
    rounds = {"round": [1], "accuracy": [0.5]}
    cells = tuple(
        CellResult("a", "s", seed, "", "", {}, 1.0, "", {}, {}, rounds=rounds) for seed in (0, 1)
    )
    table = MethodTable("t", published={("a", "s"): "51.0"}).table(Results(cells))
    assert table == [["method", "s", "s, published"], ["a", "50.00 ± 0.00 (2)", "51.0"]]


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_smoke_and_paper_scales_with_distinct_cells(name):
    for scale in (study(name).scale(scale) for scale in ("smoke", "small", "paper")):
        names = [str(cell) for cell in scale.cells]
        assert names and len(set(names)) == len(names)


RECORDED = {
    "aggregation_seconds": [0.1, 0.2, 0.3],
    "tau": [1.0, 2.0, 3.0],
    "ratio": [1.0, 2.0, 4.0],
}
RECORDED |= {
    m + q: [0.4, 0.5, 0.6]
    for m in ("", "matched_")
    for q in ("skewness", "cv", "squared_deviation", "squared_deviation_range")
}
RECORDED |= {"high": [0.1, 0.2, 0.3], "alpha_sum": [0.5, 1.0, 1.0], "macro_class": [0.0, 0.0, 0.0]}
COSINES = [
    {"quantity": "cosine", "client": i, "other": j, "values": [c] * 3}
    for i, j, c in ((0, 1, 0.5), (0, 2, 0.2), (1, 2, 0), (0, 3, 0.9))
]
ENTRIES = [
    {"quantity": "parameter", "layer": "w[0]", "client": k, "values": [v] * 3}
    for k, v in enumerate((0.1, 0.2, 0.6))
] + [{"quantity": "parameter", "layer": "w[0]", "values": [0.3] * 3}]

LAYERS = (
    "stem.0.weight",
    "body.1.weight",
    "body.3.weight",
    "x.attention.qkv.weight",
    "x.expand.weight",
    "head.weight",
)
FACTORS = [{"quantity": "gamma", "layer": layer, "values": [0.9, 0.95, 0.99]} for layer in LAYERS]


@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_is_about_cells_that_exist(name):
    """With a made-up result in every cell, each claim has as many values as there are seeds."""
    for scale in ("small", "paper"):
        cells = study(name).scale(scale).cells
        measured = (
            "accuracy",
            "server_accuracy",
            "local_accuracy",
            "personal_accuracy",
            "rmse",
            "loss",
            "train_loss",
        )
        measured += ("macro_f1", "attack_success", "bytes_down", "bytes_up")
        of_classes = (CLASS_ACCURACY + character for character in digits + ascii_letters)
        columns = {c: [0.0, 0.25, 0.5, 0.5, 0.5, 0.5] for c in (*measured, "seconds", *of_classes)}
        columns |= {"round": [0, 1, 2, 3, 4, 15], "participants": [2] * 6}
        series = (
            [{"quantity": q, "values": v} for q, v in RECORDED.items()]
            + COSINES
            + ENTRIES
            + FACTORS
        )
        more = {
            "recorded": {"rounds": [1, 2, 3], "series": series},
            "label_counts": [[2, 2], [4, 0], [0, 3], [3, 3]],
        }
        more |= {"clients": {"accuracy": [0.5, 0.7]}, "curves": [[0.5] * 12] * 5}
        more["parameters"] = [1] * 50
        more["transport"] = [[0.0, 1.0, 2.0], [1.0, 0.0, 1.5], [2.0, 1.5, 0.0]]
        found = tuple(
            CellResult(
                c.method,
                c.setting,
                c.seed,
                "",
                "",
                dict(c.options),
                1.0,
                "",
                {},
                {},
                rounds=columns,
                **more,
            )
            for c in cells
        )
        for claim in study(name).claims:
            assert claim.finding(Results(found)).seeds >= LEAST_SEEDS, claim.text


def test_unknown_study_is_answered_with_the_nearest_names():
    with pytest.raises(UnalikeError, match="fedmix-figure4"):
        study("fedmix-figur4")


def test_committed_results_are_readable_and_belong_to_their_studies():
    """One file a study and scale; no verdict of the ledger rests on anything else than a stored result."""
    folders = {path.parent for path in (ROOT / FOLDER).glob("*/*/*.parquet")}
    assert folders
    for folder in folders:
        cells = study(folder.parent.name).scale(folder.name).cells
        assert digests(folder) <= {cell.digest for cell in cells}, "run `unalike study gather`"
        assert len(list(folder.glob("*.parquet"))) == 1, "run `unalike study gather`"
        assert len(read(folder, cells)) == len(digests(folder))


def test_ledger_pages_are_those_of_the_committed_results():
    for name, text in pages(STUDIES.values(), ROOT / FOLDER).items():
        assert (ROOT / "docs" / name).read_text() == text, "run `unalike study ledger`"
