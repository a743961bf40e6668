"""Stop rules and budgets."""

from __future__ import annotations

import math

import pytest

import unalike as ua
from unalike.metrics.columns import Columns
from unalike.metrics.named_metrics import KNOWN, Metric, own_metric
from unalike.runtime.records.history import History
from unalike.runtime.setup.stopping import Budget, best_row, column_for, stop_rule

METRICS = [KNOWN[name] for name in ("loss", "accuracy", "macro_f1")]
PLAIN = Columns.of(("clients", "personal"), METRICS, False)
VALIDATED = Columns.of(("clients", "personal"), METRICS, True)
SERVER = Columns.of(("server", "clients", "personal"), METRICS, False)


def history(*accuracies, clients=(), **columns):
    """A history with row 0 and a row for each accuracy; every round takes 2 s, 10 bytes up and 5 bytes down."""
    made = History()
    for r, value in enumerate((0.1, *accuracies)):
        cost = {
            "seconds": 2.0 * (r > 0),
            "bytes_up": 10 * (r > 0),
            "bytes_down": 5 * (r > 0),
            "train_loss": 1 / (r + 1),
        }
        row = {"round": r, "accuracy": value, "loss": 1 - value, **cost} | {
            k: v[r] for k, v in columns.items()
        }
        made.add(row, [{"round": r, "client": k, "accuracy": a} for k, a in enumerate(clients)])
    return made


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("accuracy >= 0.7", True),
        ("accuracy > 0.7", False),
        ("loss <= 0.31", True),
        ("loss < 0.2", False),
        ("min_accuracy >= 0.5", True),
        ("min_accuracy >= 0.6", False),
        ("max_accuracy >= 0.9", True),
        ("mean_accuracy >= 0.7", True),
        ("std_accuracy <= 0.1", False),
        ("round >= 3", True),
        ("seconds >= 6", True),
        ("seconds > 6", False),
        ("bytes >= 45", True),
        ("bytes_up > 30", False),
        ("bytes_down >= 15", True),
        ("train_loss < 0.26", True),
        ("accuracy >= 0.9 or round >= 3", True),
        ("accuracy >= 0.9 and round >= 3", False),
        ("accuracy >= 0.6 and (round >= 9 or min_accuracy > 0.4)", True),
        ("personal_accuracy >= 0", False),  # not recorded, so NaN
    ],
)
def test_stop_rule_reads_the_newest_row(text, found):
    assert stop_rule(text, PLAIN)(history(0.5, 0.6, 0.7, clients=(0.5, 0.7, 0.9))) is found


def test_stop_rule_reads_validation_scores_if_present():
    seen = history(0.9, 0.9, val_accuracy=[0.1, 0.5, 0.6], personal_val_accuracy=[0.1, 0.8, 0.7])
    assert not stop_rule("accuracy >= 0.7", VALIDATED)(seen)
    assert stop_rule("accuracy >= 0.6", VALIDATED)(seen) and stop_rule(
        "val_accuracy >= 0.6", VALIDATED
    )(seen)
    assert stop_rule("personal_accuracy >= 0.7", VALIDATED)(seen)
    assert not stop_rule("personal_val_accuracy >= 0.75", VALIDATED)(seen)


def test_stop_rule_without_shared_model_reads_personal_models():
    nothing = math.nan
    seen = history(nothing, nothing, nothing, personal_accuracy=[0.1, 0.8, 0.7, 0.7])
    assert stop_rule("accuracy >= 0.7", PLAIN)(seen) and not stop_rule("accuracy > 0.7", PLAIN)(
        seen
    )
    for row in seen.rows:
        row |= {"val_accuracy": nothing, "personal_val_accuracy": row["personal_accuracy"]}
    assert stop_rule("patience(rounds=2)", VALIDATED)(seen) and not stop_rule(
        "patience(rounds=3)", VALIDATED
    )(seen)


def test_known_columns_first_protocol_has_plain_columns():
    assert (
        column_for("server_accuracy", SERVER).name
        == column_for("accuracy", SERVER).name
        == "accuracy"
    )
    assert column_for("clients_accuracy", SERVER).name == "clients_accuracy"
    assert (
        column_for("local_accuracy", SERVER) is None and column_for("val_accuracy", SERVER) is None
    )
    assert (
        column_for("accuracy", VALIDATED).name
        == column_for("val_accuracy", VALIDATED).name
        == "val_accuracy"
    )


@pytest.mark.parametrize(
    ("values", "options", "ends"),
    [
        ((0.5, 0.6, 0.6, 0.6), "rounds=2", [False, False, False, True]),
        ((0.5, 0.6, 0.61, 0.62), "rounds=2, delta=0.05", [False, False, False, True]),
        ((0.5, math.nan, math.nan, 0.6), "rounds=2", [False, False, True, False]),
        ((0.5, 0.4, 0.51, 0.4), "2", [False, False, False, False]),
        (
            (0.5, 0.6, 0.7, 0.8),
            'rounds=1, metric="loss"',
            [False, True, True, True],
        ),  # the loss below rises
    ],
)
def test_patience_counts_rounds_since_the_best(values, options, ends):
    rule, losses = stop_rule(f"patience({options})", VALIDATED), [1.0, 1.0, 1.1, 1.2, 1.3]
    for n, wanted in enumerate(ends, 1):
        assert rule(history(*values[:n], val_accuracy=[0.9, *values], val_loss=losses)) is wanted, n


def test_patience_restarts_in_every_stage():
    """A stage with a new head starts below the best score of the stage before."""
    seen = history(0.5, 0.5, 0.5, 0.5, val_accuracy=[0.1, 0.8, 0.5, 0.6, 0.6])
    rules = [stop_rule(f"patience(rounds={n})", VALIDATED) for n in (1, 2, 3)]
    assert [rule(seen) for rule in rules] == [True, True, True]
    for row, stage in zip(seen.rows, [math.nan, math.nan, 1, 1, 1], strict=True):
        row["stage"] = stage
    assert [rule(seen) for rule in rules] == [True, False, False]


def test_patience_on_user_metric_needs_a_direction():
    """With less=True a falling metric never ends the run; with less=False it ends two rounds after the best."""
    own = Columns.of(("clients",), [*METRICS, own_metric("cost")], True)
    seen = history(0.5, 0.6, 0.7, val_cost=[9.0, 8.0, 7.0, 6.0])
    assert not stop_rule('patience(2, metric="cost", less=True)', own)(seen)
    assert stop_rule('patience(2, metric="cost", less=False)', own)(seen)
    for text in (
        'patience(2, metric="cost")',
        "patience(2, less=True)",
        'patience(2, metric="loss", less=False)',
    ):
        with pytest.raises(
            ua.UnalikeError, match="less=True or less=False for a metric of one's own"
        ):
            stop_rule(text, own)
    with pytest.raises(ua.UnalikeError, match="is no rule"):
        stop_rule('patience(2, metric="cost", less="yes")', own)


def test_patience_on_registered_metric_goes_by_its_sign():
    """A falling metric never ends the run where lower is better, and ends it two rounds after the best where higher is."""
    seen = history(0.5, 0.6, 0.7, val_cost=[9.0, 8.0, 7.0, 6.0])
    for sign, wanted in ((-1, False), (+1, True)):
        columns = Columns.of(("clients",), [Metric("cost", sign, "Cost", "cost"), *METRICS], True)
        assert stop_rule("patience(2)", columns)(seen) is wanted


def test_best_row_skips_round_zero_and_takes_first_of_ties():
    seen = history(0.5, 0.7, 0.7, 0.6)
    seen.rows[0]["accuracy"] = 0.99
    assert best_row(seen.rows, PLAIN.named("accuracy"))["round"] == 2
    assert best_row(seen.rows, PLAIN.named("loss"))["round"] == 2
    assert best_row([], PLAIN.named("accuracy")) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accuracy", "is no rule"),
        ("accuracy >=", "is no rule"),
        ("0.8 <= accuracy <= 0.9", "is no rule"),
        ("accuracy == 0.8", "compares in a way"),
        ("accuracy >= loss", "expected a number"),
        ("acuracy >= 0.8", "'acuracy' is unknown; expected one of loss, accuracy"),
        ("val_accuracy >= 0.8", "is unknown"),
        ("__import__('os').system('true')", "is no rule"),
        ("patience()", r"expected patience\(rounds=10\)"),
        ("patience(rounds=0)", "is no rule"),
        ("patience(rounds=3, metric='speed')", "no metric 'speed'"),
        ("patience(rounds=3)", "no validation samples|the clients have no"),
    ],
)
def test_stop_rule_invalid_text_is_refused(text, message):
    with pytest.raises(ua.UnalikeError, match=message):
        stop_rule(text, PLAIN)


@pytest.mark.parametrize(
    ("text", "rounds"),
    [
        ("2 rounds", 2),
        ("4 s", 2),
        ("5s", 2),
        ("0.1 min", 3),
        ("45e0 kB", 99),
        ("0.00003 MB", 2),
        ("0.000001 MB", 1),
    ],
)
def test_budget_ends_before_it_is_exceeded(text, rounds):
    """Each round costs 2 s and 15 bytes; the first round is always run."""
    ends = [n for n in range(12) if Budget(text).spent(history(*[0.5] * n))]
    assert (ends[0] if ends else 99) == rounds


@pytest.mark.parametrize(
    "text", ["", "10", "MB", "-3 s", "0 s", "3 parsecs", "1e999999 lightyears"]
)
def test_budget_invalid_text_is_refused(text):
    with pytest.raises(ua.UnalikeError, match="expected rounds, time, bytes or epsilon"):
        Budget(text)
