"""Every command: exit status, files, output, and messages for invalid input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib

import numpy as np
import pandas as pd
import pytest
from evaluated_scores import scores
from safetensors.torch import load_file

import unalike as ua
from unalike.comparison.comparison import Comparison
from unalike.metrics.columns import TIMES
from unalike.runtime import round_loop

COMMANDS = ["compare", "run", "report", "partition", "evaluate", "predict", "list"]


def test_version_flag_prints_the_version(cli):
    assert cli("--version") == (0, f"{ua.__version__}\n", "")


@pytest.mark.parametrize(
    "command",
    [
        [],
        *([c] for c in COMMANDS),
        *(["list", c] for c in ("methods", "partitions", "transforms", "models", "data")),
    ],
)
def test_help_of_every_command_has_an_example(cli, command):
    code, out, _ = cli(*command, "--help")
    example = " ".join(["unalike", *command])
    assert code == 0
    assert sum(line.strip().startswith(example) for line in out.splitlines()) >= 1, out


def test_no_command_prints_the_help(cli):
    code, out, err = cli()
    assert code == 2 and "unalike compare --data digits" in out + err


def test_run_with_out_keeps_and_extends_the_run(cli, small, tmp_path):
    out = tmp_path / "run"
    code, text, progress = cli(
        "run",
        *small,
        "--method",
        "ditto",
        "--protocol",
        "clients",
        "--protocol",
        "local",
        "--out",
        out,
    )
    assert code == 0 and "accuracy" in text and "personal accuracy" in text and str(out) in text
    assert "ditto: 3/3 rounds" in progress and "\x1b" not in progress
    names = {p.name for p in out.iterdir()}
    assert names >= {
        "config.toml",
        "plan.json",
        "rounds.parquet",
        "clients.parquet",
        "events.jsonl",
        "model.safetensors",
        "checkpoints",
    }
    config = tomllib.loads((out / "config.toml").read_text())
    assert (
        config["rounds"] == 3
        and config["work"]["lr"] == 0.1
        and config["protocol"] == ["clients", "local"]
    )

    code, text, progress = cli(
        "run",
        *small,
        "--method",
        "ditto",
        "--protocol",
        "clients",
        "--protocol",
        "local",
        "--out",
        out,
    )
    assert code == 0 and progress == ""  # read, not trained
    assert (
        cli(
            "run",
            *small[:-1],
            5,
            "--method",
            "ditto",
            "--protocol",
            "clients",
            "--protocol",
            "local",
            "--out",
            out,
        )[0]
        == 0
    )
    assert pd.read_parquet(out / "rounds.parquet")["round"].tolist() == list(range(6))

    assert cli("report", out)[0] == 0 and "ditto" in (out / "report.html").read_text()


def test_run_equals_ua_run(cli, small, samples, tmp_path):
    flags = [
        "--method",
        "fedprox(mu=0.1) + lws",
        "--seed",
        2,
        "--participation",
        0.7,
        "--batch-size",
        8,
        "--lr",
        0.1,
        "--epochs",
        2,
    ]
    assert cli("run", *small, *flags, "--out", tmp_path)[0] == 0
    people = ua.partition(ua.load(samples), "dirichlet(alpha=0.5, min_size=2)", clients=3, seed=2)
    work = ua.Work(batch_size=8, lr=0.1, epochs=2)
    run = ua.run(
        "fedprox(mu=0.1) + lws",
        people,
        model="linear",
        rounds=3,
        seed=2,
        participation=0.7,
        work=work,
    )
    kept = pd.read_parquet(tmp_path / "rounds.parquet")
    pd.testing.assert_frame_equal(
        kept.drop(columns=[*TIMES]), run.history.rounds.drop(columns=[*TIMES]), check_exact=True
    )
    # the same folder serves both
    again = ua.run(
        "fedprox(mu=0.1) + lws",
        people,
        model="linear",
        rounds=4,
        seed=2,
        participation=0.7,
        work=work,
        out=tmp_path,
    )
    assert len(again.history) == 5


def test_run_notes_appear_in_output_and_report(cli, small, tmp_path):
    for _ in range(2):  # the second time it is read
        code, text, _ = cli("run", *small, "--stop", "accuracy > 0", "--out", tmp_path)
        assert code == 0 and "note: the stop rule" in text and cli("report", tmp_path)[0] == 0
        assert "final score is flattered" in (tmp_path / "report.html").read_text()
    (tmp_path / "comparison.json").unlink()  # as a program leaves it
    assert any("flattered" in note for note in Comparison.load(tmp_path).facts.notes)


def test_run_full_batches_and_steps_are_recorded(cli, small, tmp_path):
    assert cli("run", *small, "--batch-size", "full", "--steps", 2, "--out", tmp_path)[0] == 0
    work = tomllib.loads((tmp_path / "config.toml").read_text())["work"]
    assert "batch_size" not in work and work["steps"] == 2


def test_run_and_compare_keep_what_record_asks_for(cli, small, tmp_path):
    run = [*small, "--method", "fedavg + lws", "--record", "server + updates"]
    assert cli("run", *run, "--out", tmp_path / "run")[0] == 0
    table = pd.read_parquet(tmp_path / "run" / "records.parquet")
    assert set(table["round"]) == {1, 2, 3} and {"gamma", "weight", "update_norm", "cosine"} <= set(
        table["quantity"]
    )
    code, _, _ = cli(
        "compare",
        *small,
        "--method",
        "fedavg",
        "--seeds",
        2,
        "--record",
        "server",
        "--out",
        tmp_path / "c",
    )
    assert code == 0 and len(list(tmp_path.glob("c/cells/*/records.parquet"))) == 2


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (["--record", "sever", "--out", "x"], "did you mean 'server'"),
        (["--record", "server"], "--out"),
    ],
)
def test_run_record_that_cannot_be_kept_is_refused(cli, small, flags, hint):
    code, _, err = cli("run", *small, *flags)
    assert code == 2 and hint in err


def test_compare_config_repeats_the_comparison(cli, small, tmp_path):
    methods = ["--method", "fedavg", "--method", "fedprox(mu=0.1) + lws", "--method", "local_only"]
    flags = [
        *small,
        *methods,
        "--seeds",
        2,
        "--baseline",
        "fedprox(mu=0.1) + lws",
        "--participation",
        0.7,
    ]
    code, text, progress = cli("compare", *flags, "--out", tmp_path / "a")
    assert code == 0 and "compared with fedprox(mu=0.1) + lws" in text and "personal" in text
    assert "18/18 rounds" in progress and "(seed 1)" in progress and "\x1b" not in progress
    assert all(m in (tmp_path / "a" / "report.html").read_text() for m in methods[1::2])

    code, *_ = cli("compare", "--config", tmp_path / "a" / "config.toml", "--out", tmp_path / "b")
    one, two = (Comparison.load(tmp_path / name) for name in "ab")
    assert code == 0 and one.facts == two.facts
    for table in ("rounds", "clients"):
        a, b = (getattr(c, table).drop(columns=[*TIMES], errors="ignore") for c in (one, two))
        pd.testing.assert_frame_equal(a, b, check_exact=True)

    code, text, progress = cli("compare", *flags, "--out", tmp_path / "a")
    assert code == 0 and "18/18 rounds" in progress  # read, not trained
    code, text, _ = cli(
        "report", tmp_path / "a", "--out", tmp_path / "page.html", "--title", "Five & more"
    )
    assert code == 0 and "Five &amp; more" in (tmp_path / "page.html").read_text()


def test_compare_command_in_the_report_repeats_it(cli, small, tmp_path):
    import shlex

    assert (
        cli(
            "compare",
            *small,
            "--method",
            "fedavg",
            "--method",
            "ditto",
            "--seeds",
            "1,",
            "--nesterov",
            "--momentum",
            0.9,
            "--out",
            tmp_path / "a",
        )[0]
        == 0
    )
    first = Comparison.load(tmp_path / "a")
    words = shlex.split(first.facts.command)
    assert words[0] == "unalike" and cli(*words[1:], "--out", tmp_path / "b")[0] == 0
    again = Comparison.load(tmp_path / "b")
    a, b = (c.rounds.drop(columns=[*TIMES]) for c in (first, again))
    pd.testing.assert_frame_equal(a, b, check_exact=True)
    assert a["seed"].unique().tolist() == [1]


def test_command_with_a_plan_repeats_the_run(cli, samples, tmp_path):
    import shlex

    plan = tmp_path / "plan.json"
    assert (
        cli("partition", "--data", samples, "--clients", 3, "--partition", "iid", "--save", plan)[0]
        == 0
    )
    flags = ["--data", samples, "--plan", plan, "--model", "linear", "--rounds", 2]
    for command, out in (
        (["run", "--method", "fedavg"], "run"),
        (["compare", "--method", "fedavg", "--seeds", 2], "compare"),
    ):
        assert cli(*command, *flags, "--out", tmp_path / out)[0] == 0
        first = Comparison.load(tmp_path / out)
        words = shlex.split(first.facts.command)[1:]
        assert "--plan" in words and cli(*words, "--out", tmp_path / f"{out}-again")[0] == 0
        again = Comparison.load(tmp_path / f"{out}-again")
        assert again.rounds["loss"].tolist() == first.rounds["loss"].tolist()


def test_partition_prints_and_saves_the_plan(cli, samples, tmp_path):
    plan = tmp_path / "plan.json"
    code, text, _ = cli(
        "partition", "--data", samples, "--clients", 4, "--partition", "iid", "--save", plan
    )
    assert code == 0 and "client-3" in text and json.loads(plan.read_text())["clients"] == 4
    assert cli("partition", "--data", samples, "--plan", plan)[0] == 0
    code, _, err = cli(
        "partition", "--data", samples, "--plan", plan, "--figure", tmp_path / "x.foo"
    )
    assert code == 2 and "x.foo cannot be drawn" in err and ".svg" in err
    for command in ("partition", "run", "compare"):
        for flag, value in (("--val", 0.1), ("--partition", "iid"), ("--clients", 3)):
            code, _, err = cli(command, "--data", samples, "--plan", plan, flag, value)
            assert code == 2 and f"{flag[2:]}={value!r} beside a plan" in err
    code, _, err = cli("partition", "--data", samples, "--plan", plan, "--seed", 3)
    assert code == 2 and "seed=3 beside a plan" in err


def test_partition_prints_class_names(cli, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.eye(40), y=[0] * 20 + [1] * 20, classes=["ill", "well"])
    code, text, _ = cli(
        "partition",
        "--data",
        tmp_path / "a.npz",
        "--clients",
        2,
        "--partition",
        "pathological(classes=1)",
    )
    assert code == 0 and "ill (100%)" in text and "well (100%)" in text


def test_run_prints_commands_with_quoted_paths(cli, small, tmp_path):
    folder = tmp_path / "two words"
    code, text, _ = cli("run", *small, "--out", folder)
    assert code == 0 and f"`unalike report '{folder}'`" in " ".join(text.split())


def test_evaluate_and_predict_use_the_kept_model(cli, small, samples, tmp_path):
    run, csv = tmp_path / "run", tmp_path / "p.csv"
    assert cli("run", *small, "--out", run)[0] == 0
    code, text, _ = cli("evaluate", run)
    last = pd.read_parquet(run / "rounds.parquet").iloc[-1]
    assert code == 0 and f"{100 * last['accuracy']:.1f}\u00a0%" in text and "client-2" in text
    assert cli("evaluate", run, "--data", samples)[0] == 0
    assert cli("predict", run, "--data", samples, "--out", csv)[0] == 0
    table = pd.read_csv(csv)
    chances = table[[f"probability_{k}" for k in range(4)]].to_numpy()
    assert list(table)[:2] == ["sample", "prediction"] and table.shape == (120, 6)
    assert (chances.argmax(1) == table["prediction"]).all() and chances.sum(1) == pytest.approx(1)
    for flags, message in (
        (["--out", csv], "p.csv exists, and"),
        (
            ["--date", "seen", "--out", tmp_path / "new.csv"],
            "found date=['seen'] for data that is no",
        ),
    ):
        code, _, err = cli("predict", run, "--data", samples, *flags)
        assert code == 2 and message in " ".join(err.split()), err


def test_evaluate_without_a_shared_model_is_refused(cli, small, tmp_path):
    batch_norm = [
        "--buffers",
        "local",
        "--model",
        "cnn(channels=(3,), norm='batch')",
        "--data",
        "digits",
        "--clients",
        3,
    ]
    for name, flags, why in (
        ("heads", [*small, "--method", "fedper"], "train and never send"),
        (
            "staged",
            [*small, "--method", "data_sharing(fraction=0, method='fedper')"],
            "train and never send",
        ),
        ("norms", ["--rounds", 1, *batch_norm], "statistics of their own"),
    ):
        assert cli("run", *flags, "--out", tmp_path / name)[0] == 0
        code, _, err = cli("evaluate", tmp_path / name)
        assert code == 2 and why in err and "--client" in err
        config = tmp_path / name / "config.toml"  # no program has the client models of a federation
        config.write_text('federation = "hospitals"\n' + config.read_text())
        code, _, err = cli("evaluate", tmp_path / name)
        assert code == 2 and why in err and "ua.run" not in err


def test_evaluate_centralised_with_local_norms_works(cli, tmp_path):
    flags = [
        "--method",
        "centralised",
        "--buffers",
        "local",
        "--model",
        "cnn(channels=(3,), norm='batch')",
    ]
    run = tmp_path / "run"
    assert (
        cli("run", "--data", "digits", "--clients", 3, "--rounds", 1, *flags, "--out", run)[0] == 0
    )
    code, text, err = cli("evaluate", run)
    assert code == 0, err
    assert scores(text)["accuracy"] == as_printed(
        pd.read_parquet(run / "rounds.parquet")["accuracy"].iloc[-1]
    )


def patients(file, older=0.0, kinds=("ill", "well"), seed=0):
    """A table of patients; those with high pressure are ill. `older` shifts age and pressure, as in another hospital."""
    rng = np.random.default_rng(seed)
    pressure, ward = (
        rng.normal(130, 10, 200) + older,
        rng.choice(["a", "b"] if not older else ["b", "c"], 200),
    )
    label = np.where(pressure > 130, *kinds)
    frame = pd.DataFrame(
        {
            "age": rng.normal(60, 8, 200) + older,
            "pressure": pressure,
            "ward": ward,
            "outcome": label,
        }
    )
    frame.to_csv(file, index=False)
    return f"file(path={file!r}, target='outcome')"


def as_printed(share):
    """A share to the digits that tables show: `91.2 %`."""
    return pytest.approx(float(f"{100 * share:.1f}") / 100, abs=1e-9)


def trained(cli, out, data, *more):
    flags = [
        "--partition",
        "iid",
        "--clients",
        2,
        "--rounds",
        10,
        "--lr",
        0.5,
        "--model",
        "linear",
        *more,
    ]
    code, _, err = cli("run", "--data", data, *flags, "--out", out)
    assert code == 0, err
    return out


def test_evaluate_other_tables_are_encoded_as_in_the_run(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # short names, which are not folded
    run = trained(cli, tmp_path / "run", patients("p.csv"))
    other = patients("new.csv", older=15, seed=1)
    x, y = ua.load(other, encoding=ua.load(patients("p.csv")).encoding).merged()
    model = ua.model("linear", (4,), 2)
    model.load_state_dict(load_file(run / "model.safetensors"))
    right = as_printed((model(x).argmax(1) == y).float().mean().item())
    code, text, err = cli("evaluate", run, "--data", other)
    assert code == 0, err
    assert scores(text)["accuracy"] == right and scores(text)["accuracy"] > 0.9
    frame = pd.read_csv("new.csv")  # a table needs no target; rows are in its order
    frame.assign(age=12 * frame["age"]).to_csv("months.csv", index=False)
    assert (
        "months.csv: the column 'age' has a mean"
        in cli("evaluate", run, "--data", tmp_path / "months.csv")[2]
    )
    frame.drop(columns="outcome").to_csv("unknown (1).csv", index=False)
    for data, out in ((other, "labelled.csv"), (tmp_path / "unknown (1).csv", "out.csv")):
        assert cli("predict", run, "--data", data, "--out", tmp_path / out)[0] == 0
        found = pd.read_csv(out)["prediction"]
        assert (found == frame["outcome"]).mean() == right
    (run / "encoding.json").unlink()
    for command in ("evaluate", "predict"):
        code, _, err = cli(command, run, "--data", other)
        assert code == 2 and "does not say how to read one" in err
    assert cli("evaluate", run)[0] == 0
    trained(cli, run, patients("p.csv"))
    assert cli("evaluate", run, "--data", other)[:2] == (0, text)


def test_evaluate_cell_of_a_comparison_works(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = [
        "--partition",
        "iid",
        "--clients",
        2,
        "--rounds",
        10,
        "--lr",
        0.5,
        "--model",
        "linear",
        "--seeds",
        1,
    ]
    assert (
        cli("compare", "--data", patients("p.csv"), *flags, "--method", "fedavg", "--out", "both")[
            0
        ]
        == 0
    )
    [cell] = (tmp_path / "both" / "cells").iterdir()
    for more in ([], ["--data", patients("new.csv", older=15, seed=1)]):
        code, text, err = cli("evaluate", cell, *more)
        assert code == 0 and scores(text)["accuracy"] > 0.9, err


def test_predict_binary_writes_probabilities(cli, tmp_path, monkeypatch):
    """Scores of `evaluate` follow from the predicted probabilities: scikit-learn gives the same ROC AUC."""
    from sklearn.metrics import roc_auc_score

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    y = x[:, 0] + rng.normal(size=120) > 0
    np.savez("b.npz", x=x, y=y)
    run = trained(cli, tmp_path / "run", "b.npz", "--rounds", 3)
    assert cli("predict", run, "--data", "b.npz", "--out", "p.csv")[0] == 0
    table = pd.read_csv("p.csv")
    assert list(table) == ["sample", "prediction", "probability_False", "probability_True"]
    chance = table["probability_True"]
    assert (table["prediction"] == (chance > 0.5)).all() and table[
        "probability_False"
    ].to_numpy() == pytest.approx(1 - chance)
    code, text, _ = cli("evaluate", run, "--data", "b.npz")
    assert code == 0 and scores(text)["ROC AUC"] == as_printed(roc_auc_score(y, chance))


def test_evaluate_run_of_a_program_needs_named_data(cli, samples, tmp_path):
    for data, code in ((samples, 2), ("digits", 0)):
        out = tmp_path / str(code)
        ua.run(
            "fedavg",
            ua.partition(ua.load(data), "iid", clients=3, seed=1),
            model="linear",
            rounds=1,
            out=out,
        )
        found, _, err = cli("evaluate", out)
        assert found == code and ("does not say where its data came from" in err) == bool(code), err
    assert cli("evaluate", tmp_path / "2", "--data", samples)[0] == 0


def test_evaluate_matches_labels_by_name(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # short names, which are not folded
    run = trained(cli, tmp_path / "run", patients("p.csv"))
    frame = pd.read_csv("p.csv")
    frame[frame["outcome"] == "well"].to_csv("one.csv", index=False)
    code, text, err = cli("evaluate", run, "--data", "file(path='one.csv', target='outcome')")
    assert code == 0 and scores(text)["accuracy"] > 0.9, err
    for kinds, said in (
        (("dead", "well"), "found the classes 'dead'"),
        ((1, 0), "found the classes '0', '1'"),
    ):
        code, _, err = cli("evaluate", run, "--data", patients("typo.csv", kinds=kinds))
        assert code == 2 and said in err and "'ill', 'well'" in err
    code, _, err = cli("evaluate", run, "--data", patients("cost.csv", kinds=(1.5, 0.5)))
    assert code == 2 and "holds fractions; expected whole numbers for classes" in err
    many = write(tmp_path, x=np.ones((8, 4), np.float32), y=np.arange(8) % 4)
    code, _, err = cli("evaluate", run, "--data", many)
    assert code == 2 and "found the classes '0', '1', '2', '3'" in err


@pytest.mark.parametrize(
    "kinds, whole, column, why",
    [
        (
            (10.5, 9),
            (10, 9),
            "RMSE",
            "the target 'outcome' holds texts; expected numbers for regression",
        ),
        (
            (True, False),
            (1, 0),
            "accuracy",
            "found the classes 'ill', 'well'; expected those of the run",
        ),
    ],
)
def test_evaluate_integer_labels_match_numeric_labels(
    cli, tmp_path, monkeypatch, kinds, whole, column, why
):
    monkeypatch.chdir(tmp_path)
    run = trained(cli, tmp_path / "run", patients("p.csv", kinds=kinds), "--lr", 0.05)
    found = []
    for values in (kinds, whole):
        code, text, err = cli("evaluate", run, "--data", patients("same.csv", kinds=values))
        assert code == 0, err
        found.append(scores(text)[column])
    assert found[0] == pytest.approx(found[1], abs=0.5)  # numbered 1 and 0, both would be 9 too low
    code, _, err = cli("evaluate", run, "--data", patients("same.csv"))
    assert code == 2 and why in err


def test_evaluate_texts_use_the_vocabulary_of_the_run(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # short names, which are not folded
    rng = np.random.default_rng(0)
    kinds = {"good": ["superb", "fine"], "bad": ["awful", "grim", "nasty"]}
    rows = [
        (" ".join(rng.choice(["the", "film", *kinds[k]], 6)) + f" {kinds[k][0]}", k)
        for k in ["good", "bad"] * 60
    ]

    def file(name, rows):
        pd.DataFrame(rows, columns=["review", "stars"]).to_csv(name, index=False)
        return f"file(path={name!r}, target='stars', text='review', length=8, vocabulary=50)"

    own = file("own.csv", rows)
    model = "textcnn(vocabulary=50, embedding=8, filters=8, widths=(1, 2))"
    run = trained(cli, tmp_path / "run", own, "--model", model)
    for data in (
        own,
        file("new.csv", [("awful grim words", "bad"), ("the superb superb film", "good")]),
    ):
        code, text, err = cli("evaluate", run, "--data", data)
        assert code == 0 and scores(text)["accuracy"] > 0.95, err
    x, y = ua.load(own).merged()
    tokens = write(tmp_path, x=x.numpy(), y=y.numpy())
    code, text, err = cli("evaluate", run, "--data", tokens)
    assert code == 0 and scores(text)["accuracy"] > 0.95, err


def test_server_samples_use_the_vocabulary_of_the_clients(cli, tmp_path):
    """Word w determines the class; the clients' training samples have other frequent words than the file."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % 4
    x = np.stack([rng.integers(2, 40, 400), y + 40, rng.integers(2, 40, 400)], 1)
    tokens = write(tmp_path, x=x, y=y)
    model = "textcnn(vocabulary=50, embedding=8, filters=8, widths=(1, 2))"
    flags = (
        "--protocol",
        "server",
        "--test",
        0.3,
        "--partition",
        "dirichlet(alpha=0.1)",
        "--lr",
        0.5,
        "--clients",
        4,
    )
    code, _, err = cli(
        "run", "--data", tokens, "--model", model, *flags, "--rounds", 20, "--out", tmp_path / "run"
    )
    assert code == 0, err
    history = pd.read_parquet(tmp_path / "run" / "rounds.parquet")
    assert history["accuracy"].iloc[-1] > 0.95


@pytest.mark.parametrize(
    "what, name",
    [("methods", "fedpake"), ("partitions", "dirichlet"), ("models", "mlp"), ("data", "digits")],
)
def test_list_prints_names(cli, what, name):
    code, out, _ = cli("list", what)
    assert code == 0 and name in out


def narrow(monkeypatch, columns):
    """Set the width of the terminal."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")


def plain(shown):
    return re.sub(r"\x1b\[[0-9;]*m", "", shown)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_list_narrow_terminal_breaks_no_name(cli, monkeypatch, columns):
    wide = cli("list", "methods")[1]
    narrow(monkeypatch, columns)
    shown = plain(cli("list", "methods")[1])
    assert max(map(len, shown.splitlines())) <= columns
    for word in ("cluster_oracle(method='fedavg')", "temperature=1.0)", "McMahan"):
        assert word in wide and word in shown


def test_summary_wider_than_the_terminal_continues_below(small, tmp_path, cli, monkeypatch):
    """Columns that do not fit follow in further tables with the method names; no word or number is broken."""
    words = (
        "compare",
        "--method",
        "fedavg",
        "--method",
        "scaffold",
        "--lr",
        0.05,
        "--seeds",
        2,
        "--out",
        tmp_path,
        *small,
    )
    assert cli(*words)[0] == 0
    narrow(monkeypatch, 70)
    lines = plain(cli(*words)[1]).partition("report: ")[0].splitlines()
    rows = [line.split() for line in lines if re.match(r"(fedavg|scaffold)  ", line)]
    assert [row[0] for row in rows] == ["fedavg", "scaffold"] * 3 and max(map(len, lines)) <= 70
    heads = [
        word
        for i, line in enumerate(lines)
        if line.startswith("Method ")
        for word in " ".join(lines[i - 1 : i + 1]).split()
    ]
    for name in (
        "Accuracy",
        "Difference",
        "interval",
        "corrected",
        "best",
        "Worst",
        "MB",
        "Time",
        "Seeds",
    ):
        assert heads.count(name) == 1


def test_list_prints_brackets(cli):
    assert "y = [x, 1]^T W mu" in cli("list", "models")[1]


@pytest.mark.parametrize("columns, width", [(None, 160), (90, 90)])
def test_output_that_is_piped_has_the_width_of_columns(cli, monkeypatch, columns, width):
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    assert 0.8 * width < max(map(len, cli("list", "methods")[1].splitlines())) <= width


@pytest.mark.parametrize(
    "what, name, words",
    [
        ("models", "CNN", ["cnn(channels=(32, 64, 64)", "122,570 parameters"]),
        ("partitions", "rotation", ["rotation("]),
        ("metrics", "roc_auc", ["Area under the ROC curve"]),
        ("methods", "FedProx", ["fedprox(mu=0.001)", "In units of the model", "Combines with"]),
        (
            "methods",
            "apfl",
            [
                "the personal model has mixed parameters",
                "a = 0 is FedAvg's model, a = 1 local",
            ],
        ),
        (
            "methods",
            "fedpake",
            [
                "alphas normalized to sum 1",
                "threshold: a parameter is high if",
                "macro: numbers C of",
            ],
        ),
        (
            "methods",
            "literal_sa",
            ["which grows with H", "Micro-classes as printed", "similarity: least"],
        ),
        ("methods", "fedgen", ["On the server, `steps` Adam steps", "fade by 0.98 a round"]),
        ("methods", "fedyogi", ["at a bounded pace", "w+ = w + lr m / (sqrt(v) + tau)"]),
    ],
)
def test_list_describes_one_name_in_full(cli, what, name, words):
    code, out, err = cli("list", what, name)
    assert code == 0, err
    assert all(word in out for word in words)


def test_list_of_an_unknown_name_suggests_one(cli):
    code, _, err = cli("list", "partitions", "rotatoin")
    assert code == 2 and "unknown partition 'rotatoin'; did you mean 'rotation'?" in err


def test_misspelt_command_is_suggested_once(cli):
    code, _, err = cli("comapre")
    assert code == 2 and err.count("Did you mean 'compare'?") == 1


def test_short_flag_of_help_works_everywhere(cli):
    for words in ((), ("compare",), ("list", "models"), ("federation", "up")):
        assert "Show this message and exit." in cli(*words, "-h")[1]


@pytest.mark.parametrize(
    "words", [("list", "methods"), ("list", "partitions"), ("partition", "--clients", 3)]
)
def test_tables_are_printed_as_json(cli, words):
    code, out, err = cli(*words, "--json")
    assert code == 0, err
    assert json.loads(out)


def test_run_and_compare_print_json_alone(cli, small, tmp_path):
    code, out, err = cli("run", *small, "--json", "--out", tmp_path / "run")
    found = json.loads(out)
    assert (
        code == 0
        and found["rounds"] == 3
        and 0 <= found["row"]["accuracy"] <= 1
        and "kept in" in err
    )
    table = pd.read_parquet(tmp_path / "run" / "rounds.parquet")
    assert found["row"]["accuracy"] == table["accuracy"].iloc[-1]
    assert found["all rounds"]["bytes_up"] == table["bytes_up"].sum()
    words = (
        "compare",
        "--method",
        "FedAvg",
        "--method",
        "SCAFFOLD",
        "--seeds",
        2,
        "--out",
        tmp_path / "c",
        *small,
    )
    code, out, err = cli(*words, "--json")
    (block,) = json.loads(out)
    assert (
        code == 0
        and [row["method"] for row in block["summary"]] == ["fedavg", "scaffold"]
        and "report: " in err
    )
    assert (
        json.loads(cli("report", tmp_path / "c", "--format", "json")[1])[0]["summary"]
        == block["summary"]
    )


def test_estimate_is_printed_as_json(cli, small):
    code, out, err = cli("run", *small, "--dry-run", "--json")
    assert code == 0, err
    assert [cost["method"] for cost in json.loads(out)["costs"]] == ["fedavg"]


def test_names_are_read_in_any_case(cli, small, tmp_path):
    flags = [word if word != "linear" else "Linear" for word in small]
    flags[flags.index("dirichlet(alpha=0.5, min_size=2)")] = "Dirichlet(alpha=0.5, min_size=2)"
    words = (
        "compare",
        "--method",
        "FedAvg",
        "--method",
        "FedProx(mu=0.1) + LWS",
        "--baseline",
        "FEDAVG",
        *flags,
    )
    code, _, err = cli(*words, "--out", tmp_path)
    assert code == 0, err
    facts = json.loads((tmp_path / "comparison.json").read_text())
    assert [method["label"] for method in facts["methods"]] == ["fedavg", "fedprox(mu=0.1) + lws"]
    assert facts["baseline"] == "fedavg" and facts["partition"]["partition"].startswith(
        "dirichlet(alpha=0.5"
    )


@pytest.mark.parametrize(
    "typed, expected",
    [
        ("unalike comp", ["compare"]),
        ("unalike run --method fedprox", ["fedprox"]),
        ("unalike compare --method scaf", ["scaffold"]),
        ("unalike compare --partition dir", ["dirichlet"]),
        ("unalike tune --model lin", ["linear"]),
        ("unalike evaluate x --metric roc", ["roc_auc"]),
        ("unalike diagnose --data dig", ["digits"]),
        ("unalike list models lin", ["linear"]),
    ],
)
def test_shells_complete_commands_and_values(cli, monkeypatch, typed, expected):
    monkeypatch.setenv("_UNALIKE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    assert cli()[1].split() == expected


# --- config files --------------------------------------------------------------------------------------------------


def config(folder, **values):
    import tomli_w

    file = folder / "flags.toml"
    file.write_text(tomli_w.dumps(values))
    return file


def test_config_flag_overrides_file_overrides_default(cli, samples, tmp_path):
    values = {
        "data": str(samples),
        "partition": "iid",
        "clients": 3,
        "model": "linear",
        "rounds": 2,
        "batch-size": 7,
        "lr": 0.2,
    }
    file = config(tmp_path, **values, nesterov=True, momentum=0.5)
    for where in (["--config", file, "--lr", 0.3], ["--lr", 0.3, "--config", file]):
        out = tmp_path / str(where.index("--lr"))
        assert cli("run", *where, "--out", out)[0] == 0
        kept = tomllib.loads((out / "config.toml").read_text())
        assert (
            kept["work"] | {"lr": 0.3, "batch_size": 7, "nesterov": True, "epochs": 1}
            == kept["work"]
            and kept["rounds"] == 2
        )


@pytest.mark.parametrize("method", ["fedprox", ["fedavg", "fedprox"]])
def test_config_accepts_one_method_or_several(cli, small, tmp_path, method):
    file = config(tmp_path, method=method, seeds=1)
    assert cli("compare", *small, "--config", file, "--out", tmp_path / "out")[0] == 0
    found = Comparison.load(tmp_path / "out").rounds["method"].unique().tolist()
    assert found == ([method] if isinstance(method, str) else method)


@pytest.mark.parametrize(
    "text, message",
    [
        ("ruonds = 3", "unknown flag 'ruonds'; did you mean 'rounds'"),
        ("rounds = 'many'", "many"),
        ("= 3", "cannot read"),
        ("rounds = [1, 2]", "rounds"),
    ],
)
def test_config_invalid_file_is_refused(cli, small, tmp_path, text, message):
    (tmp_path / "f.toml").write_text(text)
    words = small[: small.index("--rounds")]
    code, _, err = cli("run", *words, "--config", tmp_path / "f.toml")
    assert code == 2 and message in err
    assert cli("run", *words, "--config", tmp_path / "none.toml")[0] == 2


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--method", "fedpak"], "did you mean 'fedpake'"),
        (["--method", "fedprox(mo=1)"], "it takes fedprox(mu=0.001)"),
        (["--method", "fedprox(mu='x')"], "mu"),
        (["--method", "fedprox(mu=-1)"], "mu=-1"),
        (["--method", "fedpake + fednova"], "swap"),
        (["--method", "fedprox(mu=1) + fedprox(mu=2)"], "swap"),
        (["--method", "fedavg +"], "fedavg +"),
        (["--method", "__import__('os')"], "__import__"),
        (["--model", "mpl"], "did you mean 'mlp'"),
        (["--model", "mlp(hidden=0)"], "hidden"),
        (["--model", "cnn"], "cnn"),
        (["--partition", "dirichlat"], "did you mean 'dirichlet'"),
        (["--partition", "dirichlet(alpha=-1)"], "alpha"),
        (["--clients", 0], "client"),
        (["--clients", 500], "500"),
        (["--partition", "dirichlet(alpha=0.1, min_size=60)"], "min_size"),
        (["--data", "digit"], "did you mean 'digits'"),
        (["--data", "none.npz"], "none.npz"),
        (["--plan", "none.json"], "none.json"),
        (["--protocol", "sever"], "did you mean 'server'"),
        (["--select", "best"], "give ua.partition(..., val=0.1), --val 0.1"),
        (["--stop", "acuracy > 1"], "'acuracy' is unknown"),
        (["--budget", "ten"], "'30 rounds', '10 min', '2 h simulated', '500 MB'"),
        (["--executor", "bached"], "did you mean 'batched'"),
        (["--device", "cuda:99"], "cuda:99"),
        (["--buffers", "mine"], "buffers"),
        (["--lr", 0], "lr"),
        (["--rounds", -1], "rounds"),
        (["--rounds", "many"], "--rounds"),
        (["--batch-size", "half"], "batch_size"),
        (["--participation", 1.5], "participation"),
        (["--seed", -1], "seed"),
        (["--optimizer", "sdg"], "optimizer"),
        (["--nesterov"], "momentum"),
        (["--ruonds", 3], "--rounds"),
        (["--out", "/proc/nowhere/run"], "/proc/nowhere/run"),
        (["--lr", 1e30, "--model", "mlp", "--rounds", 40], "smaller learning rate"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_invalid_input_prints_one_message(cli, small, flags, message):
    code, out, err = cli("run", *small, *flags)
    assert code == 2 and message in err, err
    assert out == "" and len(err.strip().splitlines()) <= 5


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--nesterov"], "error: nesterov needs a momentum above 0\n"),
        (
            ["--method", "fedavgm(nesterov=True, dampening=0.1)"],
            "dampening=0.1): nesterov goes without dampening",
        ),
        (
            ["--method", "zzz"],
            "unknown method or part 'zzz'; `unalike list` shows those that are known; your own",
        ),
        (
            ["--method", "ifca(method='fedavgg')"],
            "method='fedavgg': unknown method or part 'fedavgg'",
        ),
    ],
    ids=str,
)
def test_invalid_work_prints_the_message_of_the_class(cli, small, flags, message):
    code, _, err = cli("run", *small, *flags)
    assert code == 2 and message in err, err


def write(folder, **arrays):
    np.savez(folder / "bad.npz", **arrays)
    return folder / "bad.npz"


def test_invalid_data_prints_one_message(cli, small, tmp_path):
    x, y = np.ones((40, 6), np.float32), np.arange(40) % 4
    nan = x.copy()
    nan[7, 2] = np.nan
    cases = {
        "NaN": {"x": nan, "y": y},
        "labels lie in 0..3": {"x": x, "y": y, "classes": np.array(["a", "b"])},
        "labels lie in -1..2": {"x": x, "y": y - 1},
        "40 inputs and 39 labels": {"x": x, "y": y[:-1]},
        "x": {"z": x},
    }
    for message, arrays in cases.items():
        code, out, err = cli("run", *small, "--data", write(tmp_path, **arrays))
        assert (code, out) == (2, "") and message in err, (message, err)
    (tmp_path / "bad.npz").write_bytes(b"hello")
    assert cli("run", *small, "--data", tmp_path / "bad.npz")[0] == 2


def test_table_without_target_is_refused(cli, small, tmp_path):
    table = tmp_path / "patients.csv"
    pd.DataFrame({"age": range(20), "weight": range(20, 40), "ill": [0, 1] * 10}).to_csv(
        table, index=False
    )
    code, _, err = cli("run", *small, "--data", table)
    assert (
        code == 2
        and "the columns age, weight, ill; name the one to predict, with --target COLUMN" in err
    )
    assert cli("run", *small, "--data", table, "--target", "ill", "--partition", "iid")[0] == 0


def test_run_into_folder_of_another_run_is_refused(cli, small, tmp_path):
    assert cli("run", *small, "--out", tmp_path)[0] == 0
    code, _, err = cli("run", *small, "--lr", 0.2, "--method", "fedprox", "--out", tmp_path)
    assert code == 2 and "work.lr is 0.1 there and 0.2 here" in err and "method is" in err


@pytest.mark.parametrize(
    "words",
    [
        ["report", "NOWHERE"],
        ["evaluate", "NOWHERE"],
        ["predict", "NOWHERE", "--data", "digits"],
        ["partition", "--clients", "3", "--partition", "iid", "--save", "/proc/nowhere/plan.json"],
        ["compare", "--seeds", "x"],
        ["compare", "--seeds", "1,1"],
        ["compare", "--baseline", "fedsgd"],
        ["list", "method"],
        ["compre"],
    ],
    ids=" ".join,
)
def test_commands_on_invalid_folders_are_refused(cli, tmp_path, words):
    code, _, err = cli(*(str(tmp_path / "none") if w == "NOWHERE" else w for w in words))
    assert code == 2 and err.strip()


@pytest.mark.parametrize(
    "flag, name", [("--figure", "plan.png"), ("--export", "split"), ("--save", "plan.json")]
)
def test_partition_unwritable_output_is_refused(cli, flag, name):
    code, _, err = cli(
        "partition", "--clients", 3, "--partition", "iid", flag, f"/proc/nowhere/{name}"
    )
    assert (
        code == 2
        and f"cannot write /proc/nowhere/{name}: " in err
        and "choose another folder" in err
    ), err


@pytest.mark.parametrize("method", ["ditto", "fedper"])
def test_client_names_the_personal_model_that_is_used(cli, small, samples, tmp_path, method):
    """Its score on the client's own test samples is the one that the history has; the shared model is used only with a note."""
    run = tmp_path / "run"
    assert cli("run", *small, "--method", method, "--out", run)[0] == 0
    row = ua.open_run(run).history.last_clients[1]
    code, text, err = cli("evaluate", run, "--client", "client-1")
    assert code == 0, err
    assert scores(text)["accuracy"] == as_printed(row["personal_accuracy"])
    assert cli("evaluate", run, "--client", 1)[:2] == (0, text)
    assert (
        cli("predict", run, "--data", samples, "--client", 1, "--out", tmp_path / "0.csv")[0] == 0
    )
    code, text, err = cli("predict", run, "--data", samples, "--out", tmp_path / "1.csv")
    assert (code, "a client that never trained" in err) == (
        (0, True) if method == "ditto" else (2, False)
    )
    assert ("of the shared model" in text) == (method == "ditto")
    assert method == "ditto" or "name a client with --client" in err
    code, _, err = cli(
        "predict", run, "--data", samples, "--client", "nobody", "--out", tmp_path / "2.csv"
    )
    assert code == 2 and "unknown client 'nobody'" in err


def test_model_that_does_not_fit_the_data_is_refused(cli, small, tmp_path):
    run = tmp_path / "run"
    assert cli("run", *small, "--method", "fedavg", "--out", run)[0] == 0
    other = write(tmp_path, x=np.ones((8, 5), np.float32), y=np.arange(8) % 4)
    for command in ("evaluate", "predict"):
        code, _, err = cli(command, run, "--data", other)
        assert code == 2 and "shape [5]" in err
    assert cli("predict", run, "--data", other, "--out", "/proc/nowhere/p.csv")[0] == 2


def test_full_disk_prints_one_message(cli, small, tmp_path):
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=16k", "none", tmp_path], stderr=-3
        ).returncode
    ):
        pytest.skip("cannot mount a small file system here")
    try:
        for command in (["run"], ["compare", "--method", "fedavg", "--seeds", "1"]):
            code, _, err = cli(*command, *small, "--out", tmp_path / command[0])
            assert code == 2 and "No space left" in err
        assert not list(tmp_path.rglob("*.part"))
    finally:
        subprocess.run(["umount", tmp_path])


def test_compare_one_seed_names_no_winner(cli, small, tmp_path):
    code, text, _ = cli(
        "compare",
        *small,
        "--method",
        "fedavg",
        "--method",
        "fedsgd",
        "--seeds",
        1,
        "--out",
        tmp_path,
    )
    assert code == 0 and "One seed cannot show a difference" in text


def test_dry_run_prints_the_cost_and_trains_nothing(cli, small, tmp_path):
    out = tmp_path / "foreseen"
    code, shown, err = cli(
        "compare", *small, "--method", "fedavg", "--method", "scaffold", "--dry-run", "--out", out
    )
    assert code == 0, err
    assert "MB of memory" in shown and "scaffold" in shown and not (out / "cells").exists()
    assert [c["method"] for c in json.loads((out / "estimate.json").read_text())["costs"]] == [
        "fedavg",
        "scaffold",
    ]
    code, shown, _ = cli("run", *small, "--dry-run")
    assert code == 0 and "one run will take at most about" in shown


@pytest.mark.parametrize("test", [(), ("--test", 0.5)])
def test_server_protocol_tests_on_held_out_samples(cli, small, tmp_path, test):
    out = tmp_path / "run"
    flags = ["--protocol", "server", "--protocol", "clients", *test]
    code, _, err = cli("run", *small, *flags, "--out", out)
    assert code == 0, err
    rounds = pd.read_parquet(out / "rounds.parquet")
    assert (rounds["accuracy"] != rounds["clients_accuracy"]).any() and rounds[
        "accuracy"
    ].notna().all()
    code, _, err = cli("evaluate", out)
    assert code == 0, err


def test_run_prints_the_selected_round(cli, small, tmp_path):
    code, text, _ = cli(
        "run", *small, "--rounds", 9, "--lr", 9, "--val", 0.3, "--select", "best", "--out", tmp_path
    )
    rounds = pd.read_parquet(tmp_path / "rounds.parquet").set_index("round")
    [best] = rounds.index[rounds["selected"]]
    assert code == 0 and best < 9 and rounds["accuracy"][best] != rounds["accuracy"][9]
    said = " ".join(text.split())
    assert (
        f"selected of 9 rounds: round {best}," in said
        and f" accuracy {100 * rounds['accuracy'][best]:.1f} %," in said
    )


def test_run_stop_and_select_flags_work(cli, small, tmp_path):
    out = tmp_path / "runs"
    flags = [
        "--val",
        0.3,
        "--select",
        "best",
        "--stop",
        "patience(rounds=1)",
        "--budget",
        "9 rounds",
        "--seeds",
        1,
    ]
    code, shown, err = cli("compare", *small, "--method", "fedavg", *flags, "--out", out)
    assert code == 0 and "best validation score" in shown, err
    assert pd.read_parquet(out / "rounds.parquet")["selected"].sum() == 1
    code, shown, err = cli("compare", "--config", out / "config.toml", "--out", out)
    assert code == 0, err
    assert len(list((out / "cells").iterdir())) == 1  # the same cell, read back


def test_run_and_compare_start_from_a_finished_run(cli, small, tmp_path):
    first, second, table = tmp_path / "first", tmp_path / "second", tmp_path / "table"
    assert cli("run", *small, "--out", first)[0] == 0
    assert cli("run", *small, "--start", first, "--out", second)[0] == 0
    ends, begins = (pd.read_parquet(f / "rounds.parquet")["accuracy"] for f in (first, second))
    assert begins.iloc[0] == ends.iloc[-1]
    code, _, _ = cli(
        "compare", *small, "--method", "fedavg", "--seeds", "1", "--start", first, "--out", table
    )
    facts = json.loads((table / "comparison.json").read_text())
    assert code == 0 and f"--start {first}" in facts["command"]
    code, out, _ = cli("compare", "--config", table / "config.toml", "--out", table)
    assert code == 0 and "fedavg" in out


def test_partial_start_on_the_command_line_says_what_was_taken(cli, small, tmp_path):
    first = tmp_path / "first"
    assert cli("run", *small, "--out", first)[0] == 0
    other = [word if word != "linear" else "mlp(hidden=(6,))" for word in small]
    code, _, err = cli("run", *other, "--start", first)
    assert code == 2 and "--start-partial" in err
    code, out, err = cli("run", *other, "--start", first, "--start-partial")
    assert (
        code == 0
        and "2 of 4 tensors; left as initialized: body.1.weight, body.1.bias"
        in re.sub(r"\s+", " ", out + err)
    )


def test_export_writes_a_folder_with_an_example(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = trained(cli, tmp_path / "run", patients("p.csv"), "--method", "ditto")
    code, text, err = cli("export", run, "--out", "model")
    assert (
        code == 0
        and "python model/predict.py new.csv" in text
        and "a client that never trained" in err
    )
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == [
        "model.json",
        "model.pt2",
        "predict.py",
    ]
    assert cli("export", run, "--client", "client-1", "--out", "model")[0] == 0
    facts = json.loads((tmp_path / "model" / "model.json").read_text())
    assert facts["run"]["client"] == "client-1" and facts["table"]["columns"] == [
        "age",
        "pressure",
        "ward",
    ]
    code, _, err = cli("export", tmp_path, "--out", "other")
    assert code == 2 and "holds no finished run" in err
    for command in ("predict", "evaluate"):
        code, _, err = cli(command, "model", "--data", "p.csv")
        assert code == 2 and "`python model/predict.py FILE`; this command takes the folder" in err


def test_interrupted_run_says_what_is_kept_and_evaluate_that_it_is_unfinished(
    cli, small, tmp_path, monkeypatch
):
    one_round = round_loop.run_round

    def interrupt(clients, updates=None):
        if clients.state.done:
            raise KeyboardInterrupt
        return one_round(clients, updates)

    monkeypatch.setattr(round_loop, "run_round", interrupt)
    code, _, err = cli("run", *small)
    assert code == 130 and "interrupted; nothing was kept: with --out FOLDER" in err
    code, _, err = cli("run", *small, "--out", tmp_path / "cut")
    assert (
        code == 130
        and f"interrupted; the same command continues from what is kept in {tmp_path / 'cut'}"
        in err
    )
    code, _, err = cli("evaluate", tmp_path / "cut")
    assert (
        code == 2
        and "is unfinished, 1 of 3 rounds are done; the command that began it continues it" in err
    )


SWEPT = [
    "--method",
    "fedavg",
    "--method",
    "fedprox",
    "--sweep",
    "mu=0.1,1",
    "--sweep",
    "split=.6,.8",
]


def test_compare_sweep_prints_points_and_writes_a_page(cli, small, tmp_path):
    code, out, err = cli("compare", *small, *SWEPT, "--out", tmp_path / "grid")
    assert code == 0, err
    assert "Best points: fedavg at split=0.6 (" in out and "fedprox at split=0.6, mu=" in out
    assert "chosen by the test samples" in out
    assert f"page: {(tmp_path / 'grid' / 'sweep.html').resolve()}" in out
    point = tmp_path / "grid" / "points" / "mu-0.1-split-0.8"
    settings = tomllib.loads((point / "config.toml").read_text())
    assert settings["split"] == 0.8 and settings["method"] == ["fedavg", "fedprox(mu=0.1)"]


def test_compare_sweep_refuses_the_estimate_of_one_comparison(cli, small):
    code, _, err = cli("compare", *small, *SWEPT, "--dry-run")
    assert code == 2 and "found --dry-run with --sweep" in err


def test_report_takes_its_format_from_the_name_of_the_file(cli, small, tmp_path):
    assert (
        cli(
            "compare", *small, "--method", "fedavg", "--method", "ditto", "--out", tmp_path / "kept"
        )[0]
        == 0
    )
    code, _, err = cli("report", tmp_path / "kept", "--out", tmp_path / "table.tex")
    assert code == 0 and "\\begin{tabular}" in (tmp_path / "table.tex").read_text(), err
    code, _, err = cli("report", tmp_path / "kept", "--out", tmp_path / "table.doc")
    assert (
        code == 2
        and "unknown ending of a report's file" in err
        and not (tmp_path / "table.doc").exists()
    )
    code, out, _ = cli(
        "report", tmp_path / "kept", "--format", "markdown", "--out", tmp_path / "kept.txt"
    )
    assert code == 0 and "kept.txt" in out
