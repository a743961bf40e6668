"""The stored runs of methods on many tasks, and the tables of the page that are made from them."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from planted_runs import planted_runs

from unalike_studies.recommendation import judgement
from unalike_studies.recommendation.judgement import HELD_OUT
from unalike_studies.recommendation.regret import regrets
from unalike_studies.recommendation.stored_runs import METHODS, StoredRuns

PAGE = Path(__file__).parents[2] / "docs/explanation/which_method.md"
OWNERS_POLICIES = ("always FedAvg", "best on average", "nearest task", "forecast", "sure gain")
"""The columns of the page's table of regrets on the data of real owners."""


@pytest.fixture(scope="module")
def planted():
    return planted_runs()


def test_shipped_runs_have_every_method_and_finite_features():
    runs = StoredRuns.read()
    assert np.isfinite(runs.features).all() and (runs.gains("accuracy")["FedAvg"] == 0).all()
    assert runs.made.scores("accuracy").notna().all().all() and set(runs.made.tasks["metric"]) == {
        "accuracy"
    }
    absent = runs.natural.scores("accuracy").isna()
    assert (
        absent[["FedPake", "IFCA"]].all().all()
        and not absent.drop(columns=["FedPake", "IFCA"]).any().any()
    )


def test_shipped_runs_have_the_ten_data_sets_with_owners_in_their_own_metrics():
    natural = StoredRuns.read().natural
    assert natural.tasks.groupby("metric").size().to_dict() == {
        "accuracy": 1,
        "rmse": 4,
        "roc_auc": 5,
    }
    assert (natural.table.groupby(["task", "method"])["seed"].nunique() == 5).all()
    assert natural.table["accuracy"].notna().equals(natural.table["rmse"].isna())


def test_errors_count_as_shares_of_those_of_fedavg(planted):
    table = planted.natural.table
    errors = {"FedAvg": 4.0, "Ditto": 3.0, "SCAFFOLD": np.inf}
    runs = StoredRuns(table.assign(metric="rmse", rmse=table["method"].map(errors).fillna(5.0)))
    gains = runs.gains("accuracy").iloc[0]
    assert gains[["FedAvg", "Ditto", "SCAFFOLD", "FedDyn"]].tolist() == pytest.approx(
        [0, 0.25, -1.0, -0.25]
    )


def test_the_table_of_regrets_with_real_owners_of_the_page_is_computed_from_the_shipped_runs():
    page = PAGE.read_text().replace("*", "")
    runs = StoredRuns.read()
    for choice, held_out in (
        ("learned from all others", "owners"),
        ("learned from tasks without owners", "owners, unknown kind"),
    ):
        found = 100 * regrets(runs, "accuracy", tuple(METHODS), HELD_OUT[held_out])
        rest = found[runs.natural.tasks["data"].to_numpy() != "smartwatch"]
        row = next(
            line for line in page.splitlines() if line.startswith(f"| all methods, {choice} |")
        )
        for policy, cell in zip(OWNERS_POLICIES, row.split(" | ")[1:], strict=True):
            expected = f"{found[policy].mean():.1f}, {rest[policy].mean():.1f}"
            assert cell.strip(" |") == expected, (row, policy)


def test_the_other_regrets_with_real_owners_of_the_page_are_those_of_the_shipped_judgement():
    lines = PAGE.read_text().splitlines()
    for choice, objective, names in (
        ("shared models", "accuracy", "shared"),
        ("all methods, worst tenth of the clients", "worst_decile", "any"),
        ("shared models, worst tenth of the clients", "worst_decile", "shared"),
    ):
        regret = judgement.read(objective, names).regret["owners"]
        assert regret["sure gain"] == regret["always FedAvg"]
        shown = [
            f"{100 * regret[policy].mean:.1f}"
            for policy in ("always FedAvg", "best on average", "forecast")
        ]
        assert f"| {' | '.join([choice, *shown])} |" in lines


def test_the_table_of_regrets_of_the_page_is_that_of_the_shipped_judgement():
    page = PAGE.read_text().replace("*", "")
    choices = {"any": "all methods", "shared": "shared models"}
    for (names, choice), (objective, score) in product(
        choices.items(), {"accuracy": "accuracy", "worst_decile": "worst decile"}.items()
    ):
        found = judgement.read(objective, names)
        assert f"the {found.tasks} stored tasks" in page
        row = next(
            line
            for line in page.splitlines()
            if line.startswith(f"| {choice}, {score} | data sets |")
        )
        for policy, cell in zip(
            ("always FedAvg", "best on average", "forecast"), row.split(" | ")[2:], strict=True
        ):
            e = found.regret["data"][policy]
            assert (
                cell.strip(" |") == f"{100 * e.mean:.1f} ({100 * e.low:.1f} to {100 * e.high:.1f})"
            ), (row, policy)
