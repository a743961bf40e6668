"""`unalike run --profile`: the time of each part of a round; training is unchanged."""

import json
import subprocess
import sys

import pytest

from unalike._utils.profiler_regions import profiled
from unalike.runtime.records.profiling import Stretch, by_part


def test_by_part_counts_the_innermost_region():
    found = [
        Stretch("ProfilerStep#1", 0.0, 10.0),
        Stretch("data", 1.0, 2.0),
        Stretch("evaluation", 3.0, 8.0),
        Stretch("data", 3.0, 4.0),
        Stretch("step", 5.0, 7.0),
        Stretch("ProfilerStep#2", 10.0, 11.0),
    ]
    assert by_part(reversed(found)) == {
        "bookkeeping": 5.0,
        "data": 2.0,
        "evaluation": 2.0,
        "step": 2.0,
    }


def test_profiled_without_profiler_returns_a_shared_object():
    assert profiled("data") is profiled("step")


@pytest.mark.parametrize("executor", ["loop", "batched(compiled_loops=False)"])
def test_profile_run_prints_parts_and_writes_trace(cli, small, tmp_path, executor):
    out = tmp_path / "run"
    status, shown, _ = cli("run", *small, "--executor", executor, "--out", out, "--profile")
    assert status == 0
    for name in (
        "2 rounds",
        "data",
        "forward and backward",
        "step",
        "aggregation",
        "evaluation",
        "bookkeeping",
        "100.0%",
    ):
        assert name in shown
    names = {e.get("name") for e in json.loads((out / "trace.json").read_text())["traceEvents"]}
    assert {"unalike: step", "unalike: data", "ProfilerStep#1", "ProfilerStep#2"} <= names
    cli("run", *small, "--executor", executor, "--out", tmp_path / "plain")
    first = (
        (out / "model.safetensors").read_bytes(),
        (tmp_path / "plain" / "model.safetensors").read_bytes(),
    )
    assert first[0] == first[1]


def test_profile_one_round_without_out_writes_trace(cli, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, shown, _ = cli("run", *small[:-2], "--rounds", 1, "--profile")
    assert status == 0 and "1 round" in shown and (tmp_path / "trace.json").is_file()


def test_profile_early_stop_counts_only_trained_rounds(cli, small, tmp_path):
    status, shown, _ = cli(
        "run", *small[:-2], "--rounds", 9, "--stop", "round >= 3", "--profile", "--out", tmp_path
    )
    assert status == 0 and "\n2 rounds" in f"\n{shown}"


@pytest.mark.parametrize(("rounds", "rule"), [(0, ()), (9, ("--stop", "round >= 1"))])
def test_profile_without_measured_round_writes_no_trace(cli, small, tmp_path, rounds, rule):
    status, shown, err = cli(
        "run", *small[:-2], "--rounds", rounds, *rule, "--profile", "--out", tmp_path
    )
    assert (
        status == 0
        and "part of a round" not in shown
        and "no trace" in err
        and not (tmp_path / "trace.json").exists()
    )


def test_profile_of_finished_run_keeps_its_trace(cli, small, tmp_path):
    cli("run", *small, "--profile", "--out", tmp_path)
    before = (tmp_path / "trace.json").read_bytes()
    status, *_ = cli("run", *small, "--profile", "--out", tmp_path)
    assert status == 0 and (tmp_path / "trace.json").read_bytes() == before


@pytest.mark.slow
def test_profile_trace_on_full_disk_is_refused(small, tmp_path):
    """A process that may write files of 40 kB, enough for all but the trace."""
    limit = "import resource, signal; resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))"
    code = f"{limit}; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); from unalike.cli import main; main()"
    command = [sys.executable, "-c", code, "run", *map(str, small), "--profile"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 2 and "cannot write trace.json: No space" in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())


def test_profile_with_dry_run_is_refused(cli, small):
    status, _, err = cli("run", *small, "--dry-run", "--profile")
    assert status == 2 and "--profile" in err and "--dry-run" in err


def test_profile_prints_no_lines_of_torch(small, tmp_path):
    """Needs a separate process, because the profiler writes to file descriptors directly, once per process."""
    command = [
        sys.executable,
        "-m",
        "unalike",
        "run",
        *map(str, small),
        "--profile",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "part of a round" in done.stdout, done.stderr
    assert "profiler_st" not in done.stdout + done.stderr
