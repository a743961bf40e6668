"""`ua.tune`: the same budget for all methods, validation samples only, comparisons on fresh seeds, resumption."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

import unalike as ua
from unalike.tuning.ranking import Ranked, Score
from unalike.tuning.trial import FINISHED, PRUNED
from unalike.tuning.tuning import _order


def plain(trials):
    """Trials without their times."""
    return {
        label: [(t.number, t.values, list(t.scores), t.score, t.end) for t in own]
        for label, own in trials.items()
    }


def test_every_method_gets_the_same_budget_and_its_given_values_first(tune):
    found = tune(["fedavg", "fedprox(mu=0.5)"])
    assert {label: [t.number for t in own] for label, own in found.trials.items()} == {
        "fedavg": [0, 1, 2],
        "fedprox(mu=0.5)": [0, 1, 2],
    }
    assert found.trials["fedavg"][0].values == {"lr": 0.01}
    assert found.trials["fedprox(mu=0.5)"][0].values == {"lr": 0.01, "proximal.mu": 0.5}


def test_random_trials_try_the_same_learning_rates_for_all_methods(tune):
    rates = [[t.values["lr"] for t in own] for own in tune().trials.values()]
    assert rates[0] == rates[1] and len(set(rates[0])) == 3


def test_chosen_values_are_those_of_the_best_finished_trial(tune):
    found = tune()
    for label, own in found.trials.items():
        best = max((t for t in own if t.end == FINISHED), key=lambda t: (t.score, -t.number))
        assert found.chosen[label] == best.values
    lrs = {m["label"]: m["work"] for m in found.after.facts.methods}
    assert lrs["fedavg"] == "" and found.after.facts.methods[1]["spec"].startswith(
        "task_loss() + proximal(mu="
    )
    assert [t.score for t in found.trials["fedavg"]] == [
        sum(s for _, s in t.scores[-1:]) for t in found.trials["fedavg"]
    ]


def test_comparisons_use_seeds_on_which_nothing_was_tuned(tune):
    found = tune(seed=3)
    assert (
        sorted(found.before.rounds["seed"].unique())
        == [4, 5]
        == sorted(found.after.rounds["seed"].unique())
    )
    assert (
        set(found.before.rounds["method"])
        == {"fedavg", "fedprox"}
        == set(found.after.rounds["method"])
    )


def test_before_has_the_given_values_and_after_the_chosen_ones(tune, dataset):
    found = tune(["fedavg"])
    lr = found.chosen["fedavg"]["lr"]
    assert lr != 0.01
    direct = ua.compare(
        ["fedavg"],
        data=dataset,
        partition="iid",
        clients=3,
        model="linear",
        rounds=4,
        seeds=[1, 2],
        val=0.2,
        work=ua.Work(lr=lr, batch_size=10),
    )
    # the same seeds and values, on another split of the clients' samples into training and test samples
    ours, theirs = (
        t.clients.groupby("seed")[["n_train", "n_test"]].sum().sum(axis=1)
        for t in (found.after, direct)
    )
    assert (
        found.after.facts.config.count(f"lr = {lr}") == 1
        and ours.index.tolist() == theirs.index.tolist()
    )


def test_test_samples_do_not_influence_trials(samples):
    """With other labels of all test samples, the trials are the same to the last bit."""
    x, y = samples(150)
    clients = ua.partition(ua.Dataset("blobs", (x, y)), "iid", clients=3, val=0.2)
    spoilt = y.copy()
    tests = np.unique(clients.test.values)
    spoilt[tests] = (y[tests] + 1) % 3
    other = ua.partition(ua.Dataset("blobs", (x, spoilt)), "iid", clients=3, val=0.2)
    assert (np.unique(other.test.values) == tests).all()
    options = {"model": "linear", "trials": 3, "rounds": 3, "seeds": 1, "progress": False}
    found = [ua.tune(["fedavg"], population, **options) for population in (clients, other)]
    assert plain(found[0].trials) == plain(found[1].trials)
    scores = [one.after.summary["accuracy"].iloc[0] for one in found]
    assert scores[0] != scores[1], "the comparison does see them"


def test_comparison_tests_on_samples_that_no_trial_saw(dataset):
    from unalike.data.partitioning.given_clients import ClientsRequest

    request = ClientsRequest(4, dataset, None, "dirichlet(alpha=1)", val=0.25)
    tuned_on = request.read(needs_test=False).of(0)
    fresh = ClientsRequest(4, dataset, None, "dirichlet(alpha=1)", val=0.25, tests_of=0).read(
        needs_test=False
    )
    seen = {*tuned_on.train.values, *tuned_on.val.values}
    for seed in (1, 2):
        clients, drawn = fresh.of(seed), request.read(needs_test=False).of(seed)
        assert {*clients.test.values} == {*tuned_on.test.values} and not {
            *clients.test.values
        } & seen
        roles = [clients.train, clients.val, clients.test]
        assert sorted(np.concatenate([part.values for part in roles])) == list(range(150))
        for k in range(4):
            before = np.concatenate([part[k] for part in (drawn.train, drawn.val, drawn.test)])
            assert {*before} == {*np.concatenate([part[k] for part in roles])}, (
                "every client keeps its samples"
            )


def test_jobs_1_is_deterministic(tune):
    assert plain(tune().trials) == plain(tune().trials)
    assert plain(tune(seed=1).trials) != plain(tune().trials)


def test_hopeless_trials_are_stopped_early_and_never_chosen(tune):
    found = tune(["fedavg"], trials=12, rounds=10, seeds=1)
    pruned = [t for t in found.trials["fedavg"] if t.end == PRUNED]
    assert pruned and all(2 <= t.rounds < 10 for t in pruned)
    saved = sum(10 - t.rounds for t in pruned)
    assert f"saved {saved} of 120 rounds" in found.findings[-1]
    assert not any(t.values == found.chosen["fedavg"] for t in pruned)
    whole = tune(["fedavg"], trials=12, rounds=10, seeds=1, prune=False)
    assert {t.rounds for t in whole.trials["fedavg"]} == {10}


def test_budget_in_seconds_ends_the_trials_of_a_method(tune):
    found = tune(budget_seconds=1e-6)
    assert [len(own) for own in found.trials.values()] == [1, 1]


def test_diverged_trials_are_counted_and_not_chosen(tune, tmp_path):
    found = tune(["fedavg", "fedavgm(lr=1e300)"], trials=2)
    first, second = found.trials["fedavgm(lr=1e300)"]
    assert (
        first.score is None
        and first.end == "diverged"
        and found.chosen["fedavgm(lr=1e300)"] == second.values
    )
    ranks = {one.method: one.rank_before for one in found.ranking}
    assert ranks == {"fedavg": 1, "fedavgm(lr=1e300)": None} and "1 diverged" in found.findings[-1]
    assert found.save(tmp_path).stat().st_size > 1e6


def test_methods_that_share_the_first_rank_are_all_named():
    def ranked(*ranks):
        one = Score.of([0.5])
        return [Ranked(name, one, one, one, *own) for name, own in zip("ab", ranks)]

    text = "Tuning does not change the ranking:"
    assert _order(ranked((1, 1), (1, 1))) == f"{text} a and b are first before and after it."
    assert _order(ranked((1, 1), (1, 2))) == f"{text} a and b are first before it, a after it."
    assert _order(ranked((1, 1), (2, 2))) == f"{text} a is first before and after it."
    assert (
        _order(ranked((2, 1), (1, 2)))
        == "Tuning turns 1 of 1 pair of methods round: b is first before it, a after it."
    )


def test_references_are_tuned_and_have_no_rank(tune):
    found = tune(["fedavg", "fedprox", "centralised"], trials=2)
    assert {one.method: one.rank_after is None for one in found.ranking}["centralised"]
    assert found.ranking[-1].method == "centralised" and found.ranking[-1].after.mean > 0
    assert "centralised" not in found.findings[1]


def test_shared_model_of_a_personal_method_is_noted(tune):
    note = "The shared model of ditto was tuned"
    assert any(note in text for text in tune(["fedavg", "ditto"], trials=1, seeds=1).notes)
    assert not any(
        note in text
        for text in tune(["fedavg", "ditto"], trials=1, seeds=1, objective="personal").notes
    )


def test_folder_keeps_trials_and_more_trials_continue_it(tune, tmp_path):
    first = tune(out=tmp_path)
    files = sorted((tmp_path / "trials").rglob("*.json"))
    assert len(files) == 6
    times = [file.stat().st_mtime_ns for file in files]
    more = tune(out=tmp_path, trials=4)
    assert [file.stat().st_mtime_ns for file in files] == times
    assert plain({k: own[:3] for k, own in more.trials.items()}) == plain(first.trials)
    assert plain(more.trials) == plain(tune(trials=4).trials), "as if all had been run at once"
    kept = json.loads((tmp_path / "tuning.json").read_text())
    assert kept["chosen"] == more.chosen and len(kept["trials"]["fedavg"]) == 4
    assert (
        "<html" in (tmp_path / "tuning.html").read_text()
        and (tmp_path / "after" / "report.html").exists()
    )


def test_damaged_trial_is_named(tune, tmp_path):
    tune(["fedavg"], out=tmp_path, trials=1)
    file = next((tmp_path / "trials").rglob("*.json"))
    file.write_text("{")
    with pytest.raises(ua.UnalikeError, match=r"0000\.json.*delete it"):
        tune(["fedavg"], out=tmp_path, trials=1)


SCRIPT = """
import numpy as np, warnings, unalike as ua
if __name__ == "__main__":
    warnings.simplefilter("ignore")
    y = np.arange(150) % 3
    x = (np.random.default_rng(0).normal(size=(150, 3)) + np.eye(3)[y]).astype(np.float32)
    found = ua.tune(["fedavg", "fedprox"], data=ua.Dataset("blobs", (x, y)), partition="iid", clients=3, model="linear",
                    trials=4, rounds=10, seeds=1, work=ua.Work(lr=0.01, batch_size=2), out={out!r}, progress=False, jobs={jobs})
    print(found.chosen)
"""


def script(out, jobs=1):
    code = SCRIPT.format(out=str(out), jobs=jobs)
    file = out.parent / f"{out.name}.py"
    file.write_text(code)
    return [sys.executable, str(file)]


@pytest.mark.slow
def test_killed_tuning_goes_on_where_it_was(tmp_path):
    process = subprocess.Popen(script(tmp_path / "killed"))
    trials = tmp_path / "killed" / "trials"
    deadline = time.monotonic() + 120
    while (
        len(list(trials.rglob("*.json"))) < 3
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.002)
    process.kill()
    process.wait()
    left = {file: file.read_bytes() for file in trials.rglob("*.json")}
    assert 3 <= len(left) < 8, "killed between two trials"
    again = subprocess.run(script(tmp_path / "killed"), check=True, capture_output=True, text=True)
    whole = subprocess.run(script(tmp_path / "whole"), check=True, capture_output=True, text=True)
    assert all(file.read_bytes() == content for file, content in left.items()), (
        "no finished trial ran again"
    )
    assert again.stdout == whole.stdout


@pytest.mark.slow
def test_two_processes_run_all_trials(tmp_path):
    found = subprocess.run(
        script(tmp_path / "two", jobs=2), check=True, capture_output=True, text=True
    )
    kept = json.loads((tmp_path / "two" / "tuning.json").read_text())
    assert [len(own) for own in kept["trials"].values()] == [4, 4] and "fedprox" in found.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val": 0.0}, r"validation samples.*val=0\.2"),
        ({"trials": 0}, "trials=0"),
        ({"jobs": 1.5}, "jobs=1.5"),
        ({"budget_seconds": 0}, "budget_seconds=0"),
        ({"objective": "acuracy"}, "objective='acuracy'.*'accuracy'"),
        ({"trails": 3}, "trails.*trials"),
        ({"methods": ["fedavg", "fedavg"]}, "listed twice"),
    ],
)
def test_wrong_arguments_are_refused_before_training(tune, options, message):
    with pytest.raises(ua.UnalikeError, match=message):
        tune(**options)


def test_missing_optuna_names_the_extra(tune, monkeypatch):
    from unalike._utils import errors

    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(
        ua.UnalikeError,
        match=r"tuning needs optuna; install the extra: pip install 'unalike\[tune\]'",
    ):
        tune()


@pytest.mark.slow
def test_processes_of_a_killed_tuning_end_with_it(tmp_path):
    process = subprocess.Popen(script(tmp_path / "killed", jobs=2), start_new_session=True)
    deadline = time.monotonic() + 120
    while (
        not list(tmp_path.rglob("trials/*/*.json"))
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    assert len(group(process.pid)) > 2, "two processes work for it"
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while group(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert group(process.pid) == []


def group(leader):
    """The numbers of the processes of a group that have not ended."""
    living = [
        process
        for process in psutil.process_iter(["status"])
        if process.info["status"] != psutil.STATUS_ZOMBIE
    ]
    return [process.pid for process in living if _group_of(process.pid) == leader]


def _group_of(pid):
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def test_after_tuning_the_test_samples_of_owners_are_the_same_and_their_variance_counts():
    """The interval is about other samples, and the headline is the decision of the comparison, for which methods differ."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3)).astype(np.float32)
    y = (x[:, 0] + rng.normal(size=120) > 0).astype(int)
    data = ua.Dataset("visits", (x, y), groups={"hospital": np.repeat(["a", "b", "c"], 40)})
    methods, options = (
        ["fedavg", "fedprox(mu=0.5)", "local_only"],
        {"model": "linear", "rounds": 3, "progress": False},
    )
    found = ua.tune(
        methods, data=data, folds=4, trials=1, seeds=3, work=ua.Work(lr=0.05), **options
    )
    after = found.after
    assert after.facts.sampling.redrawn == "training" and after.facts.sampling.folds is None
    assert after.content().about == (
        "The intervals hold for other test samples of these 3 hospitals and other training runs; 3 seeds on the same samples, "
        "the test samples resampled."
    )
    assert after.clients.groupby("seed")["n_test"].max().tolist() == [10, 10, 10]  # a fold of four
    ours, theirs = found.decision, after.decision
    for name in (
        "best",
        "difference",
        "interval",
        "shrunken",
        "probability_best",
        "verdicts",
        "rivals",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
