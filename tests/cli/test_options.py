"""Each option is declared once: signatures, flags and federations have the names, defaults and help of `core/options.py`."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import typer

import unalike as ua
from unalike.cli import app
from unalike.comparison.command_line import flag
from unalike.core import options as declared
from unalike.core.option import default_of, options_of, written, written_config
from unalike.runtime.setup.run_options import RunOptions

PROGRAM = typer.main.get_command(app)
DATA = (declared.SourceOptions, declared.PartitionOptions)
TRAINED = (
    *DATA,
    declared.ValidationOptions,
    declared.ModelOptions,
    declared.StartOptions,
    declared.RecordOptions,
)
COMPARED = (declared.DecisionOptions, declared.SeedsOptions, declared.RoundOptions)
FUNCTIONS = {
    "run": (*TRAINED, declared.SimulationOptions),
    "compare": (*TRAINED, *COMPARED, declared.AcrossOptions, declared.RaceOptions),
    "tune": (*TRAINED, *COMPARED, declared.TuningOptions),
    "diagnose": (*DATA, declared.ModelOptions, declared.SeedOptions),
    "Work": (declared.WorkOptions,),
}
"""Public name -> the classes that declare its options."""

OTHERWISE = {
    (
        "tune",
        "val",
    ): "None is 0.2 with `data`, and with clients that are given the samples that they have",
    ("diagnose", "rounds"): "rounds to look at; a diagnosis trains nothing unless asked",
    ("doctor", "model"): "a class as module:Class, too; no model is looked at unless asked",
    ("partition", "seed"): "None tells a seed of 0 from none beside --plan",
    ("cross-site", "metric"): "one metric; that of the run unless given",
    ("evaluate", "threshold"): "of risks, not of sites",
    ("predict", "threshold"): "of risks, not of sites",
    ("report", "target"): "a score, not a column",
    ("report", "across"): "None keeps the one of the comparison",
    ("report", "baseline"): "None keeps the one of each comparison",
    ("report", "smallest_effect"): "None keeps the one of the comparison",
    ("evaluate", "data"): "the run's own clients unless given",
    ("evaluate", "metric"): "those of the run unless given",
    ("predict", "data"): "required",
    ("join", "data"): "required: the site's own samples",
    ("join", "device"): "of the site",
    ("federation summarize", "data"): "a positional argument",
    ("federation init", "test"): "a file of the server",
    ("federation init", "proxy"): "a file of the server",
}
"""(Command or function, name) -> why it has another default or meaning than the declared option."""


def commands(command=PROGRAM, name=""):
    """Name -> command, of all commands."""
    if not hasattr(command, "commands"):
        return {name: command}
    return {
        n: c
        for key, inner in command.commands.items()
        for n, c in commands(inner, f"{name} {key}".strip()).items()
    }


COMMANDS = commands()
EVERY = [
    kind
    for kind in vars(declared).values()
    if isinstance(kind, type) and kind.__name__.endswith("Options")
]


def first_words(help):
    """The words of a help text that stand in docstrings, too."""
    return re.match(r"[^.,;:(]+", help)[0].strip().lower()


def entry(name, function):
    """A parameter's entry in the docstring of a function, on one line."""
    text = inspect.getdoc(function)
    found = re.search(rf"^    {name}: (.*?)(?=^    \w+: |^$)", text, re.DOTALL | re.MULTILINE)
    assert found, f"{name} is not in the docstring"
    return " ".join(found[1].split())


SIGNATURES = [
    (function, name)
    for function, kinds in FUNCTIONS.items()
    for name in inspect.signature(getattr(ua, function)).parameters
    if name in options_of(*kinds)
]


@pytest.mark.parametrize(("function", "name"), SIGNATURES)
def test_python_argument_has_declared_default_and_help(function, name):
    option, call = options_of(*FUNCTIONS[function])[name], getattr(ua, function)
    default = inspect.signature(call).parameters[name].default
    if name == "data":  # of a program, clients may come instead
        assert default is None
    elif name == "seeds":  # text on the command line
        assert str(default) == str(option.default)
    elif (function, name) not in OTHERWISE:
        assert option.written(default) == option.written(option.default)
    text = entry(name, call)
    assert first_words(option.help.text) in text.lower() or re.match(
        r"as for `ua\.\w+`", text, re.IGNORECASE
    )


def test_signatures_have_every_declared_option():
    """A plan is given to `ua.partition`, a limit to `subset`; other options of comparisons and tunings go on to runs."""
    for function, kinds, but in (
        ("run", FUNCTIONS["run"], {"plan", "limit"}),
        ("compare", (*COMPARED, declared.RaceOptions), set()),
        ("tune", (declared.TuningOptions, declared.DecisionOptions, declared.RoundOptions), set()),
        ("Work", FUNCTIONS["Work"], set()),
    ):
        parameters = inspect.signature(getattr(ua, function)).parameters
        assert options_of(*kinds).keys() - parameters.keys() == but, function


@pytest.mark.parametrize("name", [name for name in COMMANDS if not name.startswith("study ")])
def test_flag_has_declared_default_and_help(name):
    """No command declares an option by itself; those of `unalike-studies` choose cells by options of that distribution."""
    takes = {parameter.name: parameter for parameter in COMMANDS[name].params}
    for option_name, parameter in takes.items():
        options = [
            options_of(kind)[option_name] for kind in EVERY if option_name in options_of(kind)
        ]
        if not options or (name, option_name) in OTHERWISE:
            continue
        assert parameter.help in [option.help.text for option in options], option_name
        option = next(o for o in options if o.help.text == parameter.help)
        default = parameter.get_default(typer.Context(COMMANDS[name]))
        assert (default or None if parameter.multiple else default) == option.written(
            option.default
        ), option_name


def test_federation_has_the_defaults_of_runs():
    pytest.importorskip("cryptography")
    from unalike.federation.protocol.federation_file import Federation

    runs = {
        field.name: default_of(field)
        for kind in (RunOptions, declared.RecordOptions, declared.ValidationOptions)
        for field in fields(kind)
    }
    terms = {field.name: default_of(field) for field in fields(Federation)}
    shared = runs.keys() & terms.keys()
    assert shared >= {
        "seed",
        "protocol",
        "metric",
        "val",
        "buffers",
        "transform",
        "participation",
        "stop",
        "select",
        "record",
    }
    assert {name: runs[name] for name in shared - {"rounds"}} == {
        name: terms[name] for name in shared - {"rounds"}
    }
    assert terms["work"] == ua.Work()


def test_one_default_learning_rate():
    rate = options_of(declared.WorkOptions)["lr"].default
    rates = {name: p.default for name, c in COMMANDS.items() for p in c.params if p.name == "lr"}
    assert (
        set(rates.values()) == {rate} == {ua.Work().lr}
        and {"run", "compare", "tune", "diagnose"} <= rates.keys()
    )


def test_written_options_are_read_again():
    work = ua.Work(epochs=3, batch_size=None, lr=0.01, nesterov=True, momentum=0.9, clip=1.5)
    words = [w for name, value in written(work, changed=True).items() for w in flag(name, value)]
    assert "--lr" in words and "full" in words
    context = COMMANDS["run"].make_context("run", words)
    assert (
        ua.Work(
            **{n: options_of(declared.WorkOptions)[n].read(context.params[n]) for n in asdict(work)}
        )
        == work
    )
    recorded = {
        name: value for name, value in asdict(work).items() if value is not None
    }  # as TOML does
    assert written_config(recorded, declared.WorkOptions) == written(work)
    assert written_config({}, declared.RoundOptions) == {"rounds": 50}, "newer than the file"


def resolved(command, but=()):
    """Name -> value of the options of a command line, as the program reads them."""
    words = shlex.split(command)
    assert words[0] == "unalike"
    context = COMMANDS[words[1]].make_context(words[1], words[2:])
    return {
        n: list(map(str, v)) if isinstance(v, tuple | list) else v
        for n, v in context.params.items()
        if n not in but
    }


CHANGED = [
    "--lr",
    0.01,
    "--epochs",
    2,
    "--batch-size",
    "full",
    "--momentum",
    0.9,
    "--nesterov",
    "--seed",
    3,
]


def line(command, words):
    return shlex.join(["unalike", command, *map(str, words)])


def test_command_of_diagnose_does_what_it_says(cli, samples, tmp_path):
    words = [
        "--data",
        samples,
        "--clients",
        4,
        "--partition",
        "iid",
        "--rounds",
        1,
        "--model",
        "linear",
        *CHANGED,
    ]
    code, first, err = cli("diagnose", *words, "--out", tmp_path / "a")
    assert code == 0, err
    printed = read(tmp_path / "a" / "diagnosis.json")["command"]
    assert resolved(printed, ["out"]) == resolved(line("diagnose", words), ["out"])
    code, again, _ = cli(*shlex.split(printed)[1:])
    assert code == 0 and again == first.partition("page: ")[0]


def test_command_of_a_report_does_what_it_says(cli, small, tmp_path):
    words = [
        *small,
        "--method",
        "fedavg",
        "--method",
        "fedprox",
        "--baseline",
        "fedprox",
        *CHANGED[:-2],
        "--val",
        0.2,
    ]
    words += [
        "--seeds",
        "0,2",
        "--select",
        "best",
        "--protocol",
        "clients",
        "--protocol",
        "personal",
        "--metric",
        "macro_f1",
    ]
    code, _, err = cli(
        "compare", *words, "--smallest-effect", 0.01, "--clip", 5, "--out", tmp_path / "a"
    )
    assert code == 0, err
    printed = read(tmp_path / "a" / "comparison.json")["command"]
    expected = resolved(line("compare", [*words, "--smallest-effect", 0.01, "--clip", 5]), ["out"])
    assert resolved(printed, ["out"]) == expected
    code, _, err = cli(
        *shlex.split(printed)[1:], "--out", tmp_path / "a"
    )  # the same cells, so nothing is trained
    assert code == 0 and len(list((tmp_path / "a" / "cells").iterdir())) == 4, err


def test_command_of_a_program_does_what_it_says(tmp_path):
    """A comparison of a program trains as the command in its report does: every default is the same."""
    table = ua.compare(
        ["fedavg"], data="digits", clients=3, rounds=1, seeds=1, model="linear", out=tmp_path
    )
    expected = line(
        "compare",
        ["--method", "fedavg", "--clients", 3, "--rounds", 1, "--seeds", 1, "--model", "linear"],
    )
    but = ["out", "partition"]
    assert resolved(table.facts.command, but) == resolved(expected, but)


def test_command_of_tune_does_what_it_says(cli, small, tmp_path):
    pytest.importorskip("optuna")
    words = [*small, "--method", "fedavg", "--trials", 1, "--seeds", 1, "--no-prune", *CHANGED]
    code, _, err = cli("tune", *words, "--out", tmp_path / "tuned")
    assert code == 0, err
    printed = re.search(r"unalike tune [^<]*", (tmp_path / "tuned" / "tuning.html").read_text())[0]
    printed = printed.replace("&#39;", "'").replace("&#34;", '"').strip()
    assert resolved(printed, ["out"]) == resolved(line("tune", words), ["out"])


def test_folder_of_an_older_version_keeps_its_rate(cli, small, tmp_path):
    """Its config.toml names the rate; a command without it is another run, and the error names both rates."""
    assert cli("run", *small, "--lr", 0.05, "--out", tmp_path / "old")[0] == 0
    code, _, err = cli("run", *small, "--out", tmp_path / "old")
    assert code == 2 and f"work.lr is 0.05 there and {ua.Work().lr} here" in err
    code, _, err = cli(
        "run",
        "--config",
        tmp_path / "old" / "config.toml",
        "--rounds",
        4,
        "--out",
        tmp_path / "old",
    )
    assert code == 0, err
    assert ua.open_run(tmp_path / "old").run_config.work.lr == 0.05


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_command_is_whole_at_80_columns(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    command = COMMANDS[name]
    shown = command.get_help(typer.Context(command, info_name=f"unalike {name}", terminal_width=80))
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            assert parameter.help, f"{parameter.name} has no help"
            assert " ".join(parameter.help.split()) in " ".join(shown.split()), parameter.name


@pytest.mark.parametrize("name", ["", "list", "federation"])
def test_no_summary_is_cut_at_80_columns(name):
    group = PROGRAM.commands[name] if name else PROGRAM
    shown = group.get_help(typer.Context(group, info_name="unalike", terminal_width=80))
    assert "..." not in shown.partition("Commands:")[2]
    for key, command in group.commands.items():
        first = re.split(r"\.(?:\s|$)|\n\n", inspect.cleandoc(command.help))[0]
        assert " ".join(first.split()) in " ".join(shown.split()), key


def read(file: Path):
    return json.loads(file.read_text())
