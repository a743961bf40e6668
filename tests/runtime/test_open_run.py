"""`ua.open_run`: a run from its folder is the run that `ua.run` returned."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import unalike as ua
from unalike.runtime.records.run_directory import plain


def same_trees(a, b):
    assert list(a) == list(b) and all(torch.equal(a[n], b[n]) for n in a)


def same_runs(run, opened, clients):
    for left, right in (
        (run.history.rounds, opened.history.rounds),
        (run.history.clients, opened.history.clients),
    ):
        pd.testing.assert_frame_equal(left, right, check_dtype=False)
    for k in range(clients):
        same_trees(run.personal(k), opened.personal(k))
    assert (run.method, plain(run.config), run.notes, run.ended, run.selected) == (
        opened.method,
        plain(opened.config),
        opened.notes,
        opened.ended,
        opened.selected,
    )
    assert repr(run) == repr(opened)


@pytest.mark.parametrize(
    "spec", ["fedprox(mu=0.1)", "scaffold", "fedrep", "ditto", "fedadam", "local_only"]
)
def test_open_run_gives_history_and_models_of_the_run(people, small, tmp_path, spec):
    run = small(spec, people, out=tmp_path / "run")
    opened = ua.open_run(tmp_path / "run")
    same_runs(run, opened, len(people))
    same_trees(run.params, opened.params)
    x = torch.randn(3, 6)
    assert torch.equal(run.module().eval()(x), opened.module().eval()(x))


def test_open_run_of_several_labels_builds_their_outputs(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    some = ua.ClientData(train=(x, x[:, :2]), test=(x, x[:, :2]))
    run = ua.run("fedavg", [some], model="linear", rounds=1, out=tmp_path / "run")
    np.testing.assert_array_equal(ua.open_run(tmp_path / "run").predict(x), run.predict(x))


def test_open_run_repr_names_the_method_as_typed(people, small, tmp_path):
    run = small("fedprox(mu=0.1) + lws", people, out=tmp_path / "run")
    accuracy = f"accuracy {100 * run.history.last['accuracy']:.1f}\u00a0%"
    assert (
        repr(ua.open_run(tmp_path / "run"))
        == f"<Run of fedprox(mu=0.1) + lws on 6 clients, 3 rounds, {accuracy}>"
    )


@pytest.mark.parametrize("spec", ["ifca(clusters=2)", "ccvr", "centralised"])
def test_open_run_of_several_models_or_stages(crowd, small, tmp_path, spec):
    run = small(spec, crowd, rounds=4, out=tmp_path / "run")
    opened = ua.open_run(tmp_path / "run")
    assert run._runner.state.stage.name == opened._runner.state.stage.name
    for name, state in run._runner.state.states.items():
        same_trees(state.params, opened._runner.state.states[name].params)
    same_runs(run, opened, len(crowd))


def test_open_run_best_round_is_the_selected_one(tmp_path):
    clients = ua.partition(ua.load("digits"), "iid", clients=3, val=0.2)
    run = ua.run(
        "fedavg",
        clients,
        model="linear",
        rounds=5,
        select="best",
        out=tmp_path / "run",
        progress=False,
    )
    opened = ua.open_run(tmp_path / "run")
    assert run.selected is not None and opened.selected == run.selected
    same_trees(run.params, opened.params)
    assert opened.run_config.population.names[0] == clients.names[0]


def test_open_run_full_batch_local_buffers_and_program_model(people, tmp_path):
    made = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4))
    options = {"rounds": 2, "buffers": "local", "work": ua.Work(batch_size=None), "progress": False}
    run = ua.run("fedavg", people[:2], model=made, out=tmp_path / "run", **options)
    with pytest.raises(
        ua.UnalikeError, match=r"cannot build the model.*give it: ua.open_run\(folder, model=...\)"
    ):
        ua.open_run(tmp_path / "run")
    opened = ua.open_run(tmp_path / "run", model=made)
    same_runs(run, opened, 2)
    assert opened.run_config.work == run.run_config.work
    with pytest.raises(ua.UnalikeError, match="give the model of the run"):
        ua.open_run(
            tmp_path / "run",
            model=nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 4)),
        )


def test_open_run_writes_nothing(people, small, tmp_path):
    small("ditto", people, out=tmp_path / "run")
    before = {f: (f.stat().st_mtime_ns, f.stat().st_size) for f in tmp_path.rglob("*")}
    ua.open_run(tmp_path / "run").personal(0)
    assert {f: (f.stat().st_mtime_ns, f.stat().st_size) for f in tmp_path.rglob("*")} == before


def test_open_run_fine_tuned_model_needs_samples(people, small, tmp_path):
    small("fine_tuned", people, out=tmp_path / "run")
    with pytest.raises(ua.UnalikeError, match="makes a client's model of its samples"):
        ua.open_run(tmp_path / "run").personal(0)


def test_open_run_unfinished_stands_at_its_last_checkpoint(people, small, tmp_path):
    def interrupt(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small("fedavg", people, out=tmp_path / "run", stop=interrupt)
    opened = ua.open_run(tmp_path / "run")
    assert opened.ended == "not finished" and opened.history.last["round"] == 2
    same_trees(opened.params, small("fedavg", people, rounds=2).params)


def test_open_run_other_folders_are_refused(people, tmp_path):
    with pytest.raises(ua.UnalikeError, match="holds no run with a checkpoint"):
        ua.open_run(tmp_path)
    ua.compare(
        ["fedavg"],
        people,
        model="linear",
        rounds=1,
        seeds=1,
        out=tmp_path / "results",
        progress=False,
    )
    with pytest.raises(ua.UnalikeError, match=r"opened with ua\.open_comparison"):
        ua.open_run(tmp_path / "results")


def test_open_comparison_gives_its_table(people, tmp_path):
    table = ua.compare(
        {"plain": "fedavg", "prox": "fedprox"},
        people,
        model="linear",
        rounds=2,
        seeds=2,
        out=tmp_path / "r",
        progress=False,
    )
    opened = ua.open_comparison(tmp_path / "r")
    pd.testing.assert_frame_equal(table.summary, opened.summary)
    assert repr(opened) == repr(table) == "<Comparison of plain, prox on your clients, 2 seeds>"
    cell = ua.open_run(next((tmp_path / "r" / "cells").iterdir()))
    assert np.isfinite(cell.history.rounds["loss"]).all()


def linear():
    return nn.Linear(6, 4)


def test_open_run_own_model_named_like_one_of_the_catalogue_is_not_taken_for_it(people, tmp_path):
    options = {"rounds": 1, "progress": False}
    for model, name in ((nn.Linear(6, 4), "Linear"), (linear, r"linear \(own\)")):
        ua.run("fedavg", people[:2], model=model, out=tmp_path / name, **options)
        with pytest.raises(ua.UnalikeError, match=f"{name} is the class or function of a program"):
            ua.open_run(tmp_path / name)
    ua.run("FedAvg", people[:2], model="Linear", out=tmp_path / "named", **options)
    assert ua.open_run(tmp_path / "named").run_config.model_name == "linear"
