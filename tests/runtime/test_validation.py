"""Validation samples: scored beside the test samples, and what stops and selects by them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import unalike as ua

ROUGH = ua.Work(batch_size=5, lr=2.0)
"""So large steps that the last round is rarely the best."""


@pytest.fixture(scope="module")
def validated(people):
    """The clients, each validating on what the next one tests on."""
    return [
        ua.ClientData(c.train, c.test, n.test, c.name)
        for c, n in zip(people, people[1:] + people[:1])
    ]


@pytest.fixture(scope="module")
def swapped(people):
    """The same, testing on those samples instead."""
    return [
        ua.ClientData(c.train, n.test, None, c.name)
        for c, n in zip(people, people[1:] + people[:1])
    ]


@pytest.mark.parametrize(
    "spec",
    ["fedavg", "ditto", "fedrep", "fedbabu", "local_only", "ifca(clusters=2)", "centralised"],
)
@pytest.mark.parametrize("protocol", [("clients", "local"), ("local",)])
def test_validation_scores_equal_test_scores_on_same_samples(
    validated, swapped, small, spec, protocol
):
    run = small(spec, validated, protocol=protocol).history
    other = small(spec, swapped, protocol=protocol).history
    for mine, theirs in ((run.rounds, other.rounds), (run.clients, other.clients)):
        columns = [c for c in mine if "val_" in c]
        assert columns and not [c for c in theirs if "val_" in c]
        for column in columns:
            np.testing.assert_allclose(
                mine[column], theirs[column.replace("val_", "")], rtol=1e-5, err_msg=column
            )


def test_server_protocol_takes_validation_scores_from_clients(validated, small):
    run = small("fedavg", validated, protocol=["server", "clients"], test=validated[0].test)
    rounds = run.history.rounds
    assert (rounds["val_accuracy"] == rounds["clients_val_accuracy"]).all()
    assert (rounds["accuracy"] != rounds["clients_accuracy"]).any()


def test_history_without_validation_samples_has_no_validation_columns(people, small):
    run = small("ditto", people)
    assert not [
        c for table in (run.history.rounds, run.history.clients) for c in table if "val_" in c
    ]


@pytest.mark.parametrize(
    "spec", ["fedavg", "scaffold", "ditto", "fedper", "fedbabu", "local_only", "ifca(clusters=2)"]
)
def test_select_best_gives_models_of_a_run_ending_at_that_round(validated, small, spec, tmp_path):
    """Shared and personal models, and everything that clients remember, are those of the selected round."""
    options = {"rounds": 8, "participation": 0.7, "work": ROUGH}
    best = small(spec, validated, select="best", **options)
    rounds = best.history.rounds
    column = "personal_val_accuracy" if "personal_val_accuracy" in rounds else "val_accuracy"
    scores = rounds.loc[1:, column].to_numpy()
    assert best.selected == 1 + scores.argmax() < 8  # else there was nothing to select
    short = small(spec, validated, **options | {"rounds": best.selected})
    kept = small(spec, validated, select="best", out=tmp_path, **options)
    for run in (best, kept, small(spec, validated, select="best", out=tmp_path, **options)):
        for k in range(len(validated)):
            assert all(
                torch.equal(a, b)
                for a, b in zip(run.personal(k).values(), short.personal(k).values())
            )
        if len(run._runner.state.states) == 1:
            assert all(
                torch.equal(a, b) for a, b in zip(run.params.values(), short.params.values())
            )
        assert run.selected == best.selected


@pytest.mark.parametrize("spec", ["ditto", "scaffold"])
def test_select_best_resumed_after_interrupt_selects_same_round_and_models(
    validated, small, spec, tmp_path, monkeypatch
):
    """Interrupted after every round in turn: the same tables, the same selected round, the same models of it."""
    monkeypatch.setattr("unalike.runtime.run_recorder.CHECKPOINT_SECONDS", 0)
    options = {"rounds": 8, "participation": 0.7, "work": ROUGH, "select": "best"}
    whole = small(spec, validated, **options)
    for moment in range(1, 8):

        def pull(row, what="", moment=moment):
            if row["round"] == moment:
                raise KeyboardInterrupt

        folder = tmp_path / str(moment)
        with pytest.raises(KeyboardInterrupt):
            small(spec, validated, out=folder, progress=pull, **options)
        again = small(spec, validated, out=folder, **options)
        assert again.selected == whole.selected
        for k in range(len(validated)):
            assert all(
                torch.equal(a, b)
                for a, b in zip(again.personal(k).values(), whole.personal(k).values())
            )
        longer = small(spec, validated, out=folder, **options | {"rounds": 12})
        assert len(longer.history) == 13
    straight = small(spec, validated, **options | {"rounds": 12})
    assert longer.selected == straight.selected
    assert (
        longer.history.rounds["accuracy"].tolist() == straight.history.rounds["accuracy"].tolist()
    )


def test_validation_based_select_and_stop_without_validation_samples_are_refused(people, small):
    for options in (
        {"select": "best"},
        {"stop": "patience(rounds=2)"},
        {"stop": "val_accuracy > 0.5"},
    ):
        with pytest.raises(ua.UnalikeError, match=r"validation samples|unknown"):
            small("fedavg", people, **options)


def test_patience_rule_ends_run_and_records_the_reason(validated, people, small, tmp_path):
    options = {"stop": "patience(rounds=3, metric='loss')", "work": ROUGH, "out": tmp_path}
    run = small("fedavg", validated, rounds=60, **options)
    losses = run.history.rounds["val_loss"].to_numpy()[1:]
    assert len(losses) < 60 and len(losses) == losses.argmin() + 1 + 3
    assert run.ended == "stop rule: patience(rounds=3, metric='loss')" and any(
        "exploded" in note for note in run.notes
    )
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [e["why"] for e in events if e["event"] in ("stopped", "finished")] == [
        run.ended,
        run.ended,
    ]
    again = small("fedavg", validated, rounds=60, **options)
    assert len(again.history) == len(run.history) and again.ended == run.ended
    on = small("fedavg", validated, rounds=len(losses) + 2, **options | {"stop": None})
    assert len(on.history) == len(losses) + 3 and on.ended == "all rounds done"


def test_stop_rule_on_test_samples_ends_run_with_a_note(people, small):
    with pytest.warns(UserWarning, match=r"'min_accuracy >= 0\.3' reads test samples"):
        run = small("fedavg", people, rounds=60, stop="min_accuracy >= 0.3")
    last = run.history.clients.query("round == round.max()")["accuracy"]
    before = run.history.clients.query("round == round.max() - 1")["accuracy"]
    assert last.min() >= 0.3 > before.min() and len(run.history) < 61
    assert any("flattered" in note for note in run.notes)
    assert not any(
        "flattered" in note for note in small("fedavg", people, rounds=60, stop="bytes >= 1").notes
    )


@pytest.mark.parametrize("metric", ["seconds", "round"])
def test_stop_rule_on_seconds_or_round_ends_run_with_personal_protocol(validated, small, metric):
    run = small("local_only", validated, rounds=5, stop=f"{metric} >= 0", protocol="personal")
    assert len(run.history) == 2


def test_stop_rule_skips_unevaluated_rounds(validated, small):
    run = small(
        "fedavg", validated, rounds=9, evaluate_every=4, stop="accuracy >= 0 or min_accuracy >= 0"
    )
    assert len(run.history) == 5
