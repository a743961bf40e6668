"""An empty text where a path is expected is refused: it would stand for the current folder."""

import numpy as np
import pytest

import unalike as ua
from unalike.cli.flags import path

X, Y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2


@pytest.mark.parametrize("empty", ["", "  "])
def test_empty_out_is_refused_and_writes_nothing(tmp_path, monkeypatch, empty):
    monkeypatch.chdir(tmp_path)
    options = {"data": (X, Y), "clients": 2, "rounds": 1, "model": "linear", "out": empty}
    for function, methods in ((ua.run, "fedavg"), (ua.compare, ["fedavg", "fedprox"])):
        with pytest.raises(ua.UnalikeError, match=r"found '.*' for out.*variable of the shell"):
            function(methods, progress=False, **options)
    assert list(tmp_path.iterdir()) == []


def test_empty_path_of_a_result_is_refused_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    clients = ua.partition((X, Y), "iid", clients=2)
    options = {"model": "linear", "rounds": 1, "progress": False}
    table = ua.compare(["fedavg", "fedprox"], clients, seeds=1, **options)
    run = ua.run("fedavg", clients, **options)
    diagnosis = ua.diagnose(clients)
    for write in (table.report, table.save, run.export, diagnosis.save, clients.plan.save):
        with pytest.raises(ua.UnalikeError, match="found '' for the"):
            write("")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        "run --out",
        "compare --out",
        "tune --out",
        "export r --out",
        "partition --figure",
        "predict r --out",
    ],
)
def test_empty_path_of_a_flag_is_refused(command, tmp_path, monkeypatch, capsys):
    from unalike.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["unalike", *command.split(), ""])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "expected a path" in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        ["federation", "init", "", "--sites", "a,b", "--shape", "4", "--classes", "2"],
        ["federation", "keys", ""],
        ["federation", "up", "--local", "2", "--out", ""],
        ["join", "", "--data", "x.csv"],
        ["report", " "],
        ["schema", "--out", ""],
    ],
    ids=" ".join,
)
def test_empty_path_of_any_command_is_refused(command, tmp_path, monkeypatch, capsys):
    from unalike.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["unalike", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "expected a path" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_path_is_read_as_it_is():
    assert str(path("results/a")) == "results/a" and str(path(".")) == "."
