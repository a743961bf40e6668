"""Columns of scores: what each measures, its names, how it is stored."""

from __future__ import annotations

import json
import math

import pytest

from unalike._utils.errors import UnalikeError
from unalike.core.tasks.registry import find_task
from unalike.metrics.columns import COLUMNS_FILE, TEST, VALIDATION, Columns
from unalike.metrics.metrics import run_metrics
from unalike.metrics.named_metrics import KNOWN, Metric, own_metric, read

COST = Metric("cost", -1, "Cost", "cost", low=0.0, high=math.inf)
COLUMNS = Columns.of(
    ("server", "clients", "personal"),
    run_metrics(find_task("classification"), {"cost": COST}).values(),
    True,
)


def test_names_carry_protocol_and_split_but_for_the_first_protocol():
    found = {(c.protocol, c.split): c.name for c in COLUMNS.all if c.metric == COST}
    assert found == {
        ("server", TEST): "cost",
        ("server", VALIDATION): "val_cost",
        ("clients", TEST): "clients_cost",
        ("clients", VALIDATION): "clients_val_cost",
        ("personal", TEST): "personal_cost",
        ("personal", VALIDATION): "personal_val_cost",
    }
    assert COLUMNS.get("personal", split=VALIDATION).label == "personal validation cost"
    assert [c.selected for c in COLUMNS.scores] == [
        "selected",
        "clients_selected",
        "personal_selected",
    ]


def test_chosen_metric_decides_whatever_its_direction_and_unknown_directions_do_not():
    assert COLUMNS.metric == COST and COLUMNS.further[0] == KNOWN["accuracy"]
    own = Columns.of(
        ("clients",), run_metrics(find_task("regression"), {"cost": own_metric("cost")}).values()
    )
    assert own.metric == KNOWN["rmse"] and own.metrics[-1].sign == 0
    with pytest.raises(UnalikeError, match="no metric decides: found loss"):
        _ = Columns.of(("clients",), [KNOWN["loss"]]).metric


def test_columns_are_read_as_they_were_stored(tmp_path):
    chosen = {"cost": COST} | {
        m.name: m for m in read(["sensitivity_at(specificity=0.9)", "brier_score"])
    }
    columns = Columns.of(
        ("personal", "clients"),
        run_metrics(find_task("binary"), chosen | {"mine": own_metric("mine")}).values(),
    )
    columns.save(tmp_path)
    found = Columns.load(tmp_path)
    assert [(c.name, c.protocol, c.split, c.unprefixed) for c in found.all] == [
        (c.name, c.protocol, c.split, c.unprefixed) for c in columns.all
    ]
    assert [m.stored_fields for m in found.metrics] == [m.stored_fields for m in columns.metrics]
    json.loads((tmp_path / COLUMNS_FILE).read_text(), parse_constant=pytest.fail)
    (tmp_path / COLUMNS_FILE).write_text("{}")
    with pytest.raises(UnalikeError, match=r"cannot read .*columns.json"):
        Columns.load(tmp_path)


def test_row_is_shown_by_the_first_score_with_a_number_and_by_the_loss_last():
    nothing = math.nan
    assert COLUMNS.text({"cost": 3.0, "accuracy": 0.341}) == "cost 3.00"
    assert COLUMNS.text({"cost": nothing, "accuracy": 0.341, "loss": 1.0}) == "accuracy 34.1\u00a0%"
    assert (
        COLUMNS.text({"accuracy": nothing, "personal_accuracy": 0.5, "loss": 1.0})
        == "personal accuracy 50.0\u00a0%"
    )
    assert (
        COLUMNS.text({"accuracy": nothing, "loss": 1.0}) == "loss 1.00"
        and COLUMNS.text({"round": 1}) == ""
    )


def test_used_columns_stand_beside_personal_ones():
    used = [c for c in COLUMNS.with_models_in_use().all if c.protocol == "used"]
    assert {c.name for c in used} >= {"used_cost", "used_val_cost", "used_loss"} and used[
        0
    ].selected == "used_selected"


@pytest.mark.parametrize(
    "name", ["val_cost", "personal_cost", "min_cost", "selected", "round", "method", "not a name"]
)
def test_metric_whose_column_could_be_taken_for_another_is_refused(name):
    with pytest.raises(UnalikeError, match="found the name"):
        Columns.of(("clients",), [Metric(name, 1, "x", "x")])
