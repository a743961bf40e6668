"""The objective of tuning."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from derived_columns import derived

import unalike as ua
from unalike.runtime.records.history import History
from unalike.tuning.tuning_score import TuningScore

ROUNDS = pd.DataFrame(
    {
        "method": ["a"] * 4 + ["b"] * 4,
        "seed": 0,
        "round": [0, 1, 2, 3] * 2,
        "accuracy": [0.1, 0.5, 0.6, 0.7, np.nan, np.nan, np.nan, np.nan],
        "personal_accuracy": [0.1, 0.6, 0.8, 0.9, 0.2, 0.3, 0.4, 0.5],
        "loss": 1.0,
    }
)
CLIENTS = pd.DataFrame(
    {
        "method": ["a"] * 20 + ["b"] * 20,
        "seed": 0,
        "client": [*range(20)] * 2,
        "accuracy": [*np.arange(20) / 20, *[np.nan] * 20],
        "personal_accuracy": [*np.arange(20) / 40, *np.arange(20) / 20],
        "loss": 1.0,
    }
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, {"a": 0.7, "b": 0.5}),  # b has no shared model: its personal models count
        ("accuracy", {"a": 0.7, "b": 0.5}),
        ("personal_accuracy", {"a": 0.9, "b": 0.5}),
        (
            "worst_decile",
            {"a": 0.025, "b": 0.025},
        ),  # mean of the two worst of 20 clients: 0 and 0.05
        ("personal", {"a": 0.9, "b": 0.5}),
        ("personal_worst_decile", {"a": 0.0125, "b": 0.025}),
    ],
)
def test_objective_scores_runs(text, expected):
    found = TuningScore.parse(text).of_runs(ROUNDS, CLIENTS, derived(ROUNDS))
    assert {method: value for (method, _), value in found.items()} == pytest.approx(expected)


def test_objective_scores_the_newest_round():
    clients = [{"round": 2, "accuracy": v} for v in (0.2, 0.8)]
    history = History(
        [{"round": 2, "accuracy": 0.5, "loss": 1.0}],
        clients,
        derived(["round", "accuracy", "loss"]),
    )
    assert TuningScore.parse(None).of_round(history) == 0.5
    assert TuningScore.parse("worst_decile").of_round(history) == 0.2


def test_metric_of_the_objective_comes_first():
    assert TuningScore.parse("worst_decile_macro_f1").metrics(("roc_auc",)) == (
        "macro_f1",
        "roc_auc",
    )
    assert TuningScore.parse("worst_decile").metrics(("roc_auc",)) == ("roc_auc",)


@pytest.mark.parametrize("text", ["worst_quartile", "personality", "accuracy_worst_decile"])
def test_unknown_objective_is_refused(text):
    with pytest.raises(ua.UnalikeError, match=f"objective='{text}'"):
        TuningScore.parse(text)


@pytest.mark.parametrize("objective", ["worst_decile", "macro_f1", "personal_accuracy"])
def test_tuning_and_decision_go_by_the_objective(tune, objective):
    found = tune(["fedavg", "local_finetune"], objective=objective, trials=2)
    words = {"worst_decile": "accuracy of the worst tenth of clients", "macro_f1": "macro F1"}
    assert found.metric.word == words.get(objective, "accuracy") == found.decision.metric.word
    scores = {one.method: one.after.mean for one in found.ranking}
    own = found.after.summary["protocol"] == (
        "personal" if objective == "personal_accuracy" else "clients"
    )
    table = found.after.summary[own].set_index("method")
    column = {"worst_decile": "worst_decile", "macro_f1": "macro_f1"}.get(objective, "accuracy")
    assert scores["local_finetune"] == pytest.approx(table.loc["local_finetune", column])


def test_the_decision_is_among_all_methods_that_the_table_ranks(tune):
    """fedprox(mu=0) repeats fedavg; local_only has no shared model, and its personal models are ranked and judged."""
    found = tune(["fedavg", "fedprox(mu=0.0)", "local_only"], objective="accuracy", trials=1)
    assert {one.method for one in found.ranking if one.rank_after} == {
        "fedavg",
        "fedprox(mu=0.0)",
        "local_only",
    }
    assert "Nothing to decide" not in found.findings[0] and "local_only" in found.decision.verdicts


def test_regression_is_tuned_downwards():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3)).astype(np.float32)
    data = ua.Dataset("lines", (x, (x @ [1.0, 2.0, 3.0]).astype(np.float32)))
    options = {
        "partition": "iid",
        "clients": 3,
        "model": "linear",
        "trials": 3,
        "rounds": 3,
        "seeds": 1,
    }
    found = ua.tune(["fedavg"], data=data, progress=False, **options)
    finished = [t.score for t in found.trials["fedavg"] if t.end == "finished"]
    best = next(t for t in found.trials["fedavg"] if t.values == found.chosen["fedavg"])
    assert found.metric.name == "rmse" and best.score == min(finished)
