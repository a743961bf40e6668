"""Across clients the mean of the sites' own scores leads: in the rounds, in the columns, and in what chooses a round."""

import numpy as np
import pytest
from small_federation import SmallFederation, federation_of, make_clients

from unalike._utils.errors import UnalikeError
from unalike.comparison.open_comparison import open_comparison
from unalike.federation.coordinator.terms_check import check_terms_run

SIZES = ((20, 12), (12, 16), (16, 20))


def test_mean_of_the_sites_own_scores_decides(tmp_path):
    clients = make_clients(SIZES)
    terms = {"metric": ("roc_auc",), "rounds": 2}
    pooled = SmallFederation(tmp_path / "pooled", clients, **terms).run().history
    history = SmallFederation(tmp_path / "own", clients, across="clients", **terms).run().history

    by_round = history.clients.groupby("round")["roc_auc"].mean()
    known = history.rounds.set_index("round")["roc_auc"]
    assert known.to_numpy() == pytest.approx(by_round.loc[known.index].to_numpy())
    assert history.columns.metric.word == "ROC AUC (mean of the sites)"
    assert history.headline.startswith("ROC AUC (mean of the sites)")
    # the sites computed the same, and without it accuracy leads
    assert np.isnan(pooled.rounds["roc_auc"]).all() and pooled.columns.metric.name == "accuracy"
    assert pooled.rounds["loss"].equals(history.rounds["loss"])


def test_metric_without_bounds_does_not_decide_across_clients():
    """One site's log loss of 1e30 in all rounds but one chose that round."""
    terms = {"metric": ("log_loss",), "val": 0.3, "select": "best"}
    check_terms_run(federation_of(make_clients(), **terms), {})
    with pytest.raises(
        UnalikeError, match=r"log_loss has no bounds.*expected a metric with bounds"
    ):
        check_terms_run(federation_of(make_clients(), across="clients", **terms), {})


def test_report_across_clients_shows_the_sites_own_scores_of_the_metric_asked_for(tmp_path):
    fed = SmallFederation(tmp_path, make_clients(SIZES), metric=("roc_auc",), rounds=2)
    history = fed.run().history
    comparison = open_comparison(fed.folder / "out").judged_by(across="clients")
    own = [row["roc_auc"] for row in history.last_clients]
    assert comparison.summary["roc_auc"].tolist() == [pytest.approx(np.mean(own))]


def test_across_clients_needs_a_metric():
    with pytest.raises(UnalikeError, match="expected a metric, such as roc_auc"):
        federation_of(make_clients(), across="clients")
