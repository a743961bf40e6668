"""Runs are followed from their first row to their end, a resumed run is continued, and a failing tracker stops nothing."""

from __future__ import annotations

import warnings

import pytest

import unalike as ua
from unalike._utils import errors
from unalike._utils.errors import UnalikeError
from unalike.tracking.tracking import flat


def test_tracker_sees_config_and_every_row_of_a_run(train, recording):
    run = train(track=recording, work=ua.Work(lr=0.25))
    (tracked,) = recording.runs
    assert tracked.name == "fedavg (seed 0)" and tracked.folder is None and tracked.known_as is None
    assert tracked.config["work.lr"] == 0.25 and tracked.config["data.clients"] == 3
    assert [row["round"] for row in recording.rows[0]] == [0, 1, 2]
    kinds = {
        name: type(recording.rows[0][1][name])
        for name in ("round", "participants", "accuracy", "seconds")
    }
    assert kinds == {"round": int, "participants": int, "accuracy": float, "seconds": float}
    assert [row["accuracy"] for row in recording.rows[0]] == list(run.history.rounds["accuracy"])
    assert recording.ends == [([], True)]


def test_tracker_gets_no_value_of_a_round_without_evaluation(train, recording):
    train(track=recording, rounds=3, evaluate_every=3)
    assert ["accuracy" in row for row in recording.rows[0]] == [True, False, False, True]
    assert "train_loss" not in recording.rows[0][0]  # nothing was trained: NaN


def test_tracker_of_a_run_with_a_folder_gets_the_model(train, recording, tmp_path):
    train(track=[recording], out=tmp_path)
    assert recording.ends == [(["model.safetensors"], True)]


def test_tracker_of_a_resumed_run_continues_its_run_and_gets_all_rounds(train, recording, tmp_path):
    train(track=recording, out=tmp_path)
    train(track=recording, out=tmp_path)  # is only read
    assert len(recording.runs) == 1
    train(track=recording, out=tmp_path, rounds=4)
    assert [run.known_as for run in recording.runs] == [None, "run 1"]
    assert [row["round"] for row in recording.rows[1]] == [0, 1, 2, 3, 4]
    assert recording.rows[1][:3] == recording.rows[0]


def test_run_that_an_error_ends_is_not_finished_in_the_tracker(train, recording):
    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(track=recording, stop=stop)
    assert recording.ends == [([], False)]


@pytest.mark.parametrize("name", ["begin", "log", "end"])
def test_tracker_that_fails_warns_once_and_the_run_is_the_same(name, train, recording, clients):
    def fail(*arguments):
        raise RuntimeError("no space left")

    setattr(recording, name, fail)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run = train(track=recording)
    texts = [str(w.message) for w in seen if "Recording" in str(w.message)]
    assert texts == [
        "Recording fails and is left out, the run goes on without it (RuntimeError: no space left)"
    ]
    assert all((run.params[name] == tensor).all() for name, tensor in train().params.items())


@pytest.mark.parametrize(
    "track, words",
    [
        ("tensorbord", "unknown tracker 'tensorbord'; did you mean 'tensorboard'?"),
        ("tensorboard(dir='x')", "it takes tensorboard(folder=None)"),
        (
            [3],
            "track: found 3, expected text such as 'tensorboard', or an object with the methods begin, log and end",
        ),
        ("wandb(mode='ofline')", "expected one of online, offline, disabled"),
    ],
)
def test_track_that_cannot_be_used_is_refused_before_data_is_read(track, words, monkeypatch):
    monkeypatch.setattr(errors, "find_spec", lambda name: object())
    for ask in (ua.run, lambda method, **more: ua.compare([method], **more)):
        with pytest.raises(UnalikeError) as refused:
            ask("fedavg", data="no such data", track=track)
        assert words in str(refused.value)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_track_without_its_extra_names_the_extra(name, monkeypatch):
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(UnalikeError, match=rf"pip install 'unalike\[{name}\]'"):
        ua.run("fedavg", data="no such data", track=name)


def test_comparison_is_tracked_as_a_group_of_runs_with_its_report(clients, recording, tmp_path):
    out = tmp_path / "first try"
    options = {
        "model": "linear",
        "rounds": 1,
        "seeds": 2,
        "progress": False,
        "out": out,
        "track": recording,
    }
    ua.compare(["fedavg", "fedprox(mu=0.1)"], clients, **options)
    names = [run.name for run in recording.runs]
    cells = [
        f"{method} (seed {seed})" for seed in (0, 1) for method in ("fedavg", "fedprox(mu=0.1)")
    ]
    assert names == [*cells, "comparison"] and {run.group for run in recording.runs} == {
        "first try"
    }
    assert [len(rows) for rows in recording.rows] == [2, 2, 2, 2, 0]
    assert recording.ends == [(["model.safetensors"], True)] * 4 + [(["report.html"], True)]


def test_flat_config_has_dots_in_names_and_no_missing_values():
    assert flat({"a": {"b": {"c": 1}, "d": None}, "e": (1, 2)}) == {"a.b.c": 1, "e": "1, 2"}
