"""The tables of the clients on every surface, the losers in the decision, and the score of all clients that decides."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import unalike as ua
from unalike.comparison.joining.joined import join
from unalike.metrics.named_metrics import KNOWN
from unalike.reporting import summary_page, wording
from unalike.reporting.client_tables import MAX_LISTED_CLIENTS, clients_of_best, difference_to
from unalike.reporting.export import export, export_clients
from unalike.reporting.html import render

NAMES = ("north", "south", "west")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """FedAvg, Ditto and training alone on three hospitals; in the west the sign of the effect is another, and it is sicker."""
    rng = np.random.default_rng(0)
    rows = []
    for name, count, sign, shift in zip(NAMES, (200, 160, 200), (1, 1, -1), (0.0, 0.3, 1.2)):
        x = rng.normal(size=(count, 3))
        ill = sign * x[:, 0] + shift + rng.normal(0, 0.7, count) > 0.3
        rows.append(
            pd.DataFrame(x, columns=["a", "b", "c"]).assign(
                hospital=name, outcome=np.where(ill, "ill", "fine")
            )
        )
    file = tmp_path_factory.mktemp("data") / "t.csv"
    pd.concat(rows).to_csv(file, index=False)
    return ua.load(file, target="outcome", group="hospital")


@pytest.fixture(scope="module")
def compared(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "out"
    options = {
        "model": "linear",
        "rounds": 6,
        "metric": "roc_auc",
        "seeds": 4,
        "work": ua.Work(lr=0.3),
    }
    return ua.compare(["fedavg", "ditto", "local_only"], data=table, out=folder, **options), folder


def test_every_client_has_samples_positives_interval_and_gains(compared):
    found, folder = compared
    scores = found.client_scores.set_index(["method", "client"])
    assert list(scores.loc["ditto"].index) == [
        *NAMES,
        "mean of the clients",
        "all test samples pooled",
    ]
    clients = found.content().clients
    by_seed = clients[(clients["method"] == "fedavg") & (clients["client"] == "north")]
    assert scores.loc[("fedavg", "north"), "score"] == pytest.approx(by_seed["used_roc_auc"].mean())
    assert scores.loc[("fedavg", "north"), "n_positive"] == by_seed["n_positive"].mean() > 0
    assert scores["to_fedavg"].notna().sum() == 10 and scores["to_local_only"].notna().sum() == 10
    assert scores.loc[("ditto", "west"), "to_fedavg"] > 0.1
    pooled, judged = (
        scores.xs("all test samples pooled", level="client"),
        found.summary.set_index("method"),
    )
    for name in (
        "ditto",
        "local_only",
    ):  # the summary has the same difference with the same interval
        row = judged[judged["protocol"] == "used"].loc[name]
        ends = [row["difference"], row["ci_low"], row["ci_high"]]
        assert list(
            pooled.loc[name, ["to_fedavg", "to_fedavg_low", "to_fedavg_high"]]
        ) == pytest.approx(ends)
    pd.testing.assert_frame_equal(ua.open_comparison(folder).client_scores, found.client_scores)


def test_differences_are_called_gains_only_where_more_is_better():
    titles = [difference_to("fedavg", KNOWN[name]).title for name in ("accuracy", "rmse")]
    assert titles == ["Gain over fedavg", "Difference from fedavg"]


def test_all_surfaces_have_the_table(compared):
    found, _ = compared
    content = found.content()
    [best] = clients_of_best(content)
    assert best.columns[:5] == [
        "Hospital",
        "Test samples",
        "Positives",
        "ROC AUC",
        "95\u00a0% interval",
    ]
    assert "Gain over fedavg" in best.columns and best.rows[2][0].text == "west"
    for text in (str(found), found._repr_html_(), render(content)):
        assert "Every hospital with" in text and "all test samples pooled" in text
    page = render(content)
    assert all(
        f"Every hospital with {label}, mean over 4 seeds" in page for label in content.labels
    )
    block = [("one", content)]
    of_csv = pd.read_csv(io.StringIO(export_clients(block, "csv")))
    assert len(of_csv) == 15 and list(of_csv)[:3] == ["partition", "method", "client"]
    markdown, latex = export_clients(block, "markdown"), export_clients(block, "latex")
    for text in (markdown, latex):
        assert (
            "One: ROC AUC of each hospital with the model that it uses" in text
            and "The intervals hold for other samples of these 3 hospitals" in text
        )
    assert markdown.startswith("One: ROC AUC") and markdown.count("| west |") == 3
    assert (
        r"Gain over local\_only" in latex
        and r"\label{tab:one-clients}" in latex
        and r"\caption{One" in latex
    )
    assert len(json.loads(export(block, "json"))[0]["clients"]) == 15
    with pytest.raises(ua.UnalikeError, match="unknown format 'xml'"):
        export_clients(block, "xml")


def test_losers_are_named_in_the_decision(compared):
    found, _ = compared
    judged = found.judged_by(baseline="local_only", smallest_effect=0.0001)
    decision = judged.decision
    scores = (
        judged.client_scores.set_index(["method", "client"]).loc[decision.best].loc[list(NAMES)]
    )
    lost = scores["to_local_only"][scores["to_local_only"] <= -0.0001].sort_values()
    assert list(decision.losers) == list(lost.index)
    for name, (d, low, high) in decision.losers.items():
        assert (d, low, high) == tuple(
            scores.loc[name, ["to_local_only", "to_local_only_low", "to_local_only_high"]]
        )
        doubt = ", may be chance" if low <= 0 <= high else ""
        between = f" ({decision.metric.interval(low, high)}{doubt})"
        assert f"{name} {decision.metric.difference(d)}{between}" in str(decision)
    assert f"Who loses: {wording.plural(len(lost), 'hospital')} (" in str(decision)


@pytest.mark.parametrize("across", ["clients", "worst"])
def test_another_score_of_all_clients_decides(compared, across):
    found, _ = compared
    other = found.judged_by(across=across)
    used = found.content().clients.groupby(["method", "seed"])["used_roc_auc"]
    wanted = (used.mean() if across == "clients" else used.min()).groupby("method").mean()
    shown = other.summary[other.summary["protocol"] == "used"].set_index("method")["roc_auc"]
    assert shown.to_dict() == pytest.approx(wanted.to_dict())
    word = {
        "clients": "ROC AUC (mean of the hospitals)",
        "worst": "ROC AUC of the worst tenth of clients",
    }[across]
    assert f"Scores are {word} on samples" in join([("one", other)]).page(summary=True)
    assert word in str(other.decision) and word not in str(found.decision)
    # the row that decides has the interval of the summary, here and there another one
    own = found.client_scores.copy()
    decides = own["client"].isin(["all test samples pooled", "mean of the clients"])
    ends = ["to_fedavg_low", "to_fedavg_high"]
    of_alone = ["to_local_only_low", "to_local_only_high"]
    of_baseline = decides & (own["method"] == "fedavg")
    own.loc[of_baseline, of_alone] = other.client_scores.loc[of_baseline, of_alone]
    own.loc[decides, ends] = other.client_scores.loc[decides, ends]
    pd.testing.assert_frame_equal(other.client_scores, own)
    if across == "clients":
        of_mean = other.client_scores.set_index(["client", "method"]).loc["mean of the clients"]
        of_summary = other.summary[other.summary["protocol"] == "used"].set_index("method")
        low, high = of_summary.loc["local_only", ["ci_low", "ci_high"]]
        assert list(of_mean.loc["fedavg", of_alone]) == [-high, -low]
        for name in ("ditto", "local_only"):
            assert list(of_mean.loc[name, ends]) == list(
                of_summary.loc[name, ["ci_low", "ci_high"]]
            )
    assert word in render(other.content())


def test_score_of_the_worst_tenth_is_the_column_of_the_worst_tenth(compared):
    """The score takes the worst tenth in each round anew, so that it may be below that of the clients' means over the rounds."""
    found, _ = compared
    rounds = found.client_rounds
    rounds = rounds.assign(
        **{name: rounds[name] * 0.9 for name in rounds if name.endswith("roc_auc")}
    )
    summary = replace(found, client_rounds=rounds).judged_by(across="worst").summary
    assert summary["worst_decile"].tolist() == pytest.approx(summary["roc_auc"].tolist())
    assert not (found.summary["worst_decile"] == found.summary["roc_auc"]).any()


def test_a_report_of_a_folder_takes_the_score_across_clients_once(compared):
    found, _ = compared
    other = found.judged_by(across="worst")
    joined = join([("out", other)])
    word = other.decision.metric.word
    assert joined.page() == render(other.content()) and joined.page(
        summary=True
    ) == summary_page.render(other.content())
    assert joined.page(summary=True).count(f"Scores are {word} on samples") == 1
    assert (
        f"{word} (%) of one hospital" not in joined.page()
        and "ROC AUC (%) of one hospital" in joined.page()
    )


@pytest.mark.parametrize("factor", [0.3, 1.0])
def test_a_weak_worst_client_is_no_failed_training(compared, factor):
    """Whether anything was learned is a question to all test samples, whatever score across the clients decides."""
    found, _ = compared
    rounds = found.client_rounds.copy()
    rounds.loc[
        rounds["client"] == "west", [name for name in rounds if name.endswith("roc_auc")]
    ] *= factor
    other = replace(found, client_rounds=rounds).judged_by(across="worst")
    assert other.decision.reason == ""
    assert not any("No better than always" in text for text in other.findings.cautions)


def test_clients_without_a_score_in_some_seeds_show_how_many_they_have(compared):
    found, _ = compared
    clients, names = (
        found.clients.copy(),
        [name for name in found.clients if name.endswith("roc_auc")],
    )
    clients.loc[(clients["client"] == "west") & (clients["seed"] == 0), names] = np.nan
    [best] = clients_of_best(replace(found, clients=clients).content())
    assert [row[best.columns.index("Seeds")].text for row in best.rows] == ["4", "4", "3", "4", "4"]


def test_pooled_gain_that_the_clients_do_not_have_is_said(compared, simulate):
    """The caution appears exactly where both differences matter and have different signs."""
    found, _ = compared
    texts = found.findings.cautions
    row = found.client_scores.set_index(["method", "client"]).loc[
        (found.decision.best, "mean of the clients")
    ]
    differs = row["to_fedavg"] * found.decision.difference < 0
    assert any("To decide by that mean: --across clients" in text for text in texts) == bool(
        differs
    )
    content = simulate(methods=3)
    assert content.client_scores.empty  # the folder does not say that seeds have the same clients


def test_partitions_that_differ_by_seed_have_no_clients_in_common(tmp_path):
    found = ua.compare(
        ["fedavg", "fedprox"], data="digits", clients=3, model="linear", rounds=1, seeds=2
    )
    assert (
        found.client_scores.empty
        and found.decision.losers is None
        and not clients_of_best(found.content())
    )
    with pytest.raises(ua.UnalikeError, match="the same clients under all seeds"):
        export_clients([("one", found.content())], "csv")
    with pytest.raises(ua.UnalikeError, match="unknown value of across 'median'"):
        ua.compare(
            ["fedavg", "fedprox"],
            data="digits",
            clients=3,
            model="linear",
            rounds=1,
            seeds=2,
            across="median",
        )
    assert MAX_LISTED_CLIENTS >= 30
