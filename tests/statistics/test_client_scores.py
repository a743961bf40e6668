"""Scores of single clients: means, intervals, differences to other methods, and the score of all clients that decides."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from unalike import UnalikeError
from unalike.metrics.columns import Columns
from unalike.metrics.named_metrics import KNOWN, read
from unalike.statistics.client_scores import ACROSS, MEAN, POOLED, client_scores, scored_across
from unalike.statistics.moderated_t import moderated_t
from unalike.statistics.verdicts import Rules

COLUMNS = Columns.of(["clients"], [*read(["roc_auc"]), KNOWN["loss"]])
COLUMN = COLUMNS.get("clients")
GAIN = {"north": 0.05, "south": -0.04, "west": 0.0}


def tables(seeds=5):
    """Two methods on three hospitals; "ditto" gains what `GAIN` says, with noise; "west" has one class in seed 0."""
    rng = np.random.default_rng(0)
    clients, rounds = [], []
    for seed in range(seeds):
        base = rng.normal(0.7, 0.05, 3)
        for method in ("fedavg", "ditto"):
            for k, (name, gain) in enumerate(GAIN.items()):
                score = base[k] + (gain + rng.normal(0, 0.01)) * (method == "ditto")
                score = np.nan if (name, seed) == ("west", 0) else score
                row = {
                    "method": method,
                    "seed": seed,
                    "client": name,
                    "n_train": 30,
                    "n_test": 10 + k + seed % 2,
                }
                clients.append(row | {"n_positive": 4 + k, "roc_auc": score})
            rounds.append(
                {
                    "method": method,
                    "seed": seed,
                    "round": 1,
                    "roc_auc": 0.9 + 0.01 * (method == "ditto"),
                    "loss": 1.0,
                }
            )
    return pd.DataFrame(rounds), pd.DataFrame(clients)


def test_rows_have_means_intervals_and_differences_of_the_same_seeds():
    rounds, clients = tables()
    found = client_scores(rounds, clients, COLUMN, ["fedavg"], Rules("fedavg")).set_index(
        ["method", "client"]
    )
    assert list(found.loc["ditto"].index) == ["north", "south", "west", MEAN, POOLED]
    wide = clients.pivot(index=["method", "seed"], columns="client", values="roc_auc")
    for name in GAIN:
        own, d = (
            wide.loc["ditto", name].dropna(),
            (wide.loc["ditto"] - wide.loc["fedavg"])[name].dropna(),
        )
        row = found.loc["ditto", name]
        assert row["score"] == pytest.approx(own.mean()) and row["to_fedavg"] == pytest.approx(
            d.mean()
        )
        half = stats.t.ppf(0.975, len(d) - 1) * d.std(ddof=1) / len(d) ** 0.5
        assert (row["to_fedavg_low"], row["to_fedavg_high"]) == pytest.approx(
            (d.mean() - half, d.mean() + half)
        )
    assert (
        found.loc[("ditto", "west"), "seeds"] == 4 and found.loc[("ditto", "north"), "seeds"] == 5
    )
    assert found.loc[("ditto", "north"), ["n_test", "n_positive"]].tolist() == [10.4, 4.0]
    assert found.loc[("ditto", POOLED), "n_positive"] == 15 and np.isnan(
        found.loc[("ditto", MEAN), "n_test"]
    )
    assert found.loc["fedavg"]["to_fedavg"].isna().all()


def test_an_interval_of_differences_ends_where_the_metric_does():
    rounds, clients = tables(seeds=2)
    clients.loc[clients["method"] == "ditto", "roc_auc"] = clients["seed"].map({0: 0.1, 1: 0.9})
    found = client_scores(rounds, clients, COLUMN, ["fedavg"], Rules("fedavg")).set_index(
        ["method", "client"]
    )
    assert found.loc[("ditto", "north"), ["to_fedavg_low", "to_fedavg_high"]].tolist() == [-1, 1]


def test_the_mean_is_that_of_the_clients_and_pooled_is_that_of_the_samples():
    rounds, clients = tables()
    found = client_scores(rounds, clients, COLUMN, ["fedavg"], Rules("fedavg")).set_index(
        ["method", "client"]
    )
    by_seed = clients[clients["method"] == "ditto"].groupby("seed")["roc_auc"].mean()
    assert found.loc[("ditto", MEAN), "score"] == pytest.approx(by_seed.mean())
    assert found.loc[("ditto", POOLED), "score"] == pytest.approx(0.91)
    assert found.loc[("ditto", POOLED), "to_fedavg"] == pytest.approx(0.01)


def test_overlapping_training_sets_widen_the_intervals_and_bounds_hold():
    rounds, clients = tables()
    plain, wide = (
        client_scores(rounds, clients, COLUMN, ["fedavg"], Rules("fedavg", overlap=o))
        for o in (0.0, 1 / 3)
    )
    d = clients.pivot(index=["method", "seed"], columns="client", values="roc_auc")
    values = (d.loc["ditto"] - d.loc["fedavg"])[["north"]].to_numpy()
    expected = moderated_t(values, overlap=1 / 3)
    row = wide[(wide["method"] == "ditto") & (wide["client"] == "north")].iloc[0]
    assert row["to_fedavg_low"] == pytest.approx(float(expected.low[0]))
    assert ((wide["high"] - wide["low"]) >= (plain["high"] - plain["low"]) - 1e-12)[
        plain["low"].notna()
    ].all()
    high = client_scores(
        rounds, clients.assign(roc_auc=1 - clients["roc_auc"] / 50), COLUMN, [], Rules("fedavg")
    )
    assert high["high"].max() <= 1.0


def test_one_seed_has_scores_without_intervals():
    rounds, clients = tables(seeds=1)
    found = client_scores(rounds, clients, COLUMN, ["fedavg"], Rules("fedavg"))
    assert (found["score"].isna() == (found["client"] == "west")).all() and found[
        "low"
    ].isna().all()
    assert found.loc[found["client"] == "west", ["seeds", "n_test"]].values.tolist() == [
        [0, 12],
        [0, 12],
    ]


def test_across_replaces_the_score_of_each_round():
    rounds, clients = tables()
    by_round = clients.assign(round=1)
    for across, of in (("clients", lambda own: own.mean()), ("worst", lambda own: own.min())):
        changed, columns = scored_across(across, rounds, by_round, COLUMNS)
        wanted = clients.groupby(["method", "seed"])["roc_auc"].agg(of)
        assert changed.set_index(["method", "seed"])[
            "roc_auc"
        ].sort_index().to_list() == pytest.approx(wanted.sort_index().to_list())
        assert columns.metric.name == "roc_auc" and columns.metric.sign == 1
        assert columns.metric.title in ("ROC AUC, mean of clients", "ROC AUC of the worst tenth")
        assert (changed["loss"] == rounds["loss"]).all()
    assert list(ACROSS) == ["pooled", "clients", "worst"]
    with pytest.raises(UnalikeError, match="unknown value of across 'mean'"):
        scored_across("mean", rounds, by_round, COLUMNS)
    with pytest.raises(UnalikeError, match="at most 100 clients"):
        scored_across("clients", rounds, None, COLUMNS)
