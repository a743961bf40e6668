"""A run that stops, however it stops, goes on to the same numbers."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import unalike as ua
from unalike._utils.tensor_files import read_tensors
from unalike.core import tree
from unalike.engine.base import ClientPool
from unalike.methods.part import registry
from unalike.methods.roles import Objective
from unalike.metrics.columns import TIMES

METHODS = [
    *sorted(n for n in registry if not isinstance(registry[n], type)),
    "centralised",
    "fedprox + lws + ditto",
]

SCRIPT = """
import sys, numpy as np, torch, unalike as ua, unalike.runtime.run_recorder
torch.set_num_threads(1)
unalike.runtime.run_recorder.CHECKPOINT_SECONDS = float(sys.argv[4])
rng = np.random.default_rng(0)
x, y = rng.normal(size=(60, 6)).astype(np.float32), rng.integers(0, 4, 60)
people = [ua.ClientData(train=(x[i::3], y[i::3]), test=(x[i::3], y[i::3])) for i in range(3)]
run = ua.run(sys.argv[1], people, model="mlp(hidden=(8,))", rounds=int(sys.argv[2]), work=ua.Work(batch_size=5, lr=0.1),
             participation=0.7, out=sys.argv[3], progress=lambda row, what="": print(row["round"], flush=True))
"""


def script(spec, rounds, out, every="inf", **options):
    command = [sys.executable, "-c", SCRIPT, spec, str(rounds), str(out), every]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def contents(folder: Path) -> tuple:
    """What a finished run leaves, without the seconds."""
    import pandas as pd

    tables = [
        pd.read_parquet(folder / f"{n}.parquet").drop(columns=[*TIMES], errors="ignore")
        for n in ("rounds", "clients")
    ]
    newest = max((folder / "checkpoints").glob("*.safetensors"))
    [[group]] = read_tensors(newest)[1]["stages"]
    states = folder / "states" / "stage-0" / "group-0000"
    standing = [
        states / f"{client:08d}" / f"round-{round:06d}.safetensors"
        for client, round in sorted(group["accepted"])
    ]
    files = [
        folder / "model.safetensors",
        newest,
        *standing,
    ]  # client states of the checkpoint before may lie beside them
    return [t.to_json() for t in tables], {str(f.relative_to(folder)): bits(f) for f in files}


def bits(file: Path) -> dict[str, bytes]:
    """Every tensor of a file, to the bit; the order of a header's entries is no part of it."""
    return {name: t.numpy().tobytes() for name, t in read_tensors(file)[0].items()}


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_resume_with_batch_norm_gives_same_model(people, small, alike, tmp_path, buffers):
    module = torch.nn.Sequential(
        torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)
    )
    options = {"model": module, "buffers": buffers, "participation": 0.5}
    small("ditto", people, out=tmp_path, rounds=2, **options)
    alike(
        small("ditto", people, out=tmp_path, rounds=5, **options),
        small("ditto", people, rounds=5, **options),
    )


@pytest.mark.parametrize("spec", METHODS)
def test_resume_two_plus_two_rounds_equals_four(people, small, alike, tmp_path, spec):
    whole = small(spec, people, rounds=4, participation=0.6)
    small(spec, people, rounds=2, participation=0.6, out=tmp_path)
    parts = small(spec, people, rounds=4, participation=0.6, out=tmp_path)
    alike(whole, parts) if spec != "local_only" else alike(parts, whole)
    assert parts.history.rounds["round"].tolist() == list(range(5))
    events = [
        json.loads(line)["event"] for line in (tmp_path / "events.jsonl").read_text().splitlines()
    ]
    assert events.count("resumed") == 1 and events.count("finished") == 2


def test_resume_with_kept_optimiser_state_gives_same_model(people, small, alike, tmp_path):
    work = ua.Work(batch_size=5, lr=0.05, momentum=0.9, keep_optimizer_state=True, schedule=0.9)
    small("ditto", people, rounds=3, work=work, out=tmp_path)
    alike(
        small("ditto", people, rounds=6, work=work),
        small("ditto", people, rounds=6, work=work, out=tmp_path),
    )


def test_resume_of_finished_run_reads_without_training(people, small, alike, tmp_path, monkeypatch):
    whole = small("ditto", people, out=tmp_path, executor="loop")
    monkeypatch.setattr(ClientPool, "schedules", lambda *_: pytest.fail("it trained again"))
    alike(whole, small("ditto", people, out=tmp_path, executor="loop"))


def test_resume_of_stopped_run_reads_it_and_without_stop_goes_on(people, small, alike, tmp_path):
    options = {"rounds": 9, "stop": lambda row: row["round"] >= 2, "out": tmp_path}
    alike(small("ditto", people, **options), small("ditto", people, **options))
    whole = small("ditto", people, rounds=5)
    alike(small("ditto", people, rounds=5, out=tmp_path), whole)  # without `stop` it goes on


def test_resume_with_fewer_rounds_than_saved_is_refused(people, small, tmp_path):
    small("fedavg", people, rounds=3, out=tmp_path)
    with pytest.raises(ua.UnalikeError, match="holds 3 rounds of this run and 2 were asked for"):
        small("fedavg", people, rounds=2, out=tmp_path)
    assert small("fedavg", people, rounds=3, out=tmp_path).history.rounds["round"].tolist() == [
        0,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize("spec", ["scaffold", "apfl", "centralised"])
def test_resume_after_interrupt_between_rounds_gives_same_model(
    people, small, alike, tmp_path, spec
):
    def interrupt(row, what=""):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(spec, people, rounds=5, out=tmp_path, progress=interrupt)
    assert not (tmp_path / "model.safetensors").exists()
    alike(small(spec, people, rounds=5, out=tmp_path), small(spec, people, rounds=5))


@pytest.mark.parametrize("spec", ["scaffold", "apfl"])
@pytest.mark.parametrize("number", [0, 2])
def test_resume_after_interrupt_within_round_gives_same_model(
    people, small, alike, tmp_path, monkeypatch, spec, number
):
    """Some clients have trained and remember it; the round never was."""
    data = ClientPool.data

    def interrupt(self, client, round, lesson, model):
        if (round, client) == (number, 4):
            raise KeyboardInterrupt
        return data(self, client, round, lesson, model)

    options = {"rounds": 4, "executor": "loop", "out": tmp_path}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ClientPool, "data", interrupt)
        small(spec, people, **options)
    alike(small(spec, people, **options), small(spec, people, rounds=4, executor="loop"))


def test_resume_after_kill_at_any_file_write_gives_same_model(
    crowd, small, alike, tmp_path, monkeypatch
):
    """The process dies of SIGKILL before or after the n-th file is put in its place, for every n."""
    import unalike.runtime.run_recorder

    monkeypatch.setattr(unalike.runtime.run_recorder, "CHECKPOINT_SECONDS", -1.0)
    options = {"rounds": 2, "participation": 0.5}
    whole = small("ditto", crowd, **options)
    replace, finished, number = os.replace, False, 0
    while not finished:
        number += 1
        for after in (False, True):
            out = tmp_path / f"{number}-{after}"
            child = os.fork()
            if child == 0:

                def deadly(a, b, after=after, wanted=number, counted=itertools.count(1)):  # noqa: B008  (one for all calls)
                    count = next(counted)  # files are written by several threads
                    if count == wanted and not after:
                        os.kill(os.getpid(), signal.SIGKILL)
                    replace(a, b)
                    if count == wanted:
                        os.kill(os.getpid(), signal.SIGKILL)

                os.replace = deadly
                try:
                    small("ditto", crowd, out=out, **options)
                finally:
                    os._exit(0)
            finished = os.waitpid(child, 0)[1] == 0
            if not finished:
                alike(small("ditto", crowd, out=out, **options), whole)
    assert number > 10


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["apfl", "scaffold"])
def test_resume_in_new_process_gives_same_files(tmp_path, spec):
    for rounds, folder in ((6, "whole"), (3, "parts"), (6, "parts")):
        assert script(spec, rounds, tmp_path / folder).wait() == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_resume_after_killed_processes_gives_same_files(tmp_path, spec="ditto"):
    """Real processes killed at several moments, then one that ends, against one that was never disturbed."""
    whole = script(spec, 25, tmp_path / "whole")
    whole.communicate()
    assert whole.returncode == 0
    for moment in (3, 11):
        process = script(spec, 25, tmp_path / "killed", "0")
        for line in process.stdout:
            if int(line) >= moment:
                time.sleep(0.003 * (moment % 4))
                process.kill()
                break
        assert process.wait() == -signal.SIGKILL
    last = script(spec, 25, tmp_path / "killed", "0")
    rows = last.communicate()[0].split()
    assert last.returncode == 0 and int(rows[0]) >= 11 and int(rows[-1]) == 25
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


# --- the folder ----------------------------------------------------------------------------------------------------


def newest(folder):
    return max((folder / "checkpoints").glob("round-*.safetensors"))


DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "another header": lambda data: b"\xff" * 8 + data[8:],
    "something else": lambda data: b"hello",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_resume_with_damaged_checkpoint_uses_previous_checkpoint(
    people, small, alike, tmp_path, kind
):
    for rounds in (2, 4):
        small("fedavgm", people, rounds=rounds, out=tmp_path)
    bad = newest(tmp_path)
    bad.write_bytes(DAMAGE[kind](bad.read_bytes()))
    wrong = bad.read_bytes()
    alike(small("fedavgm", people, rounds=5, out=tmp_path), small("fedavgm", people, rounds=5))
    assert bad.with_name(bad.name + ".damaged").read_bytes() == wrong
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    [event] = [e for e in events if e["event"] == "damaged"]
    assert (
        event["checkpoint"] == "round-000004.safetensors"
        and event["instead"] == "round-000002.safetensors"
    )
    resumed = [e["round"] for e in events if e["event"] == "resumed"]
    assert resumed == [2, 2]


def test_resume_without_good_checkpoint_raises_and_changes_no_file(people, small, tmp_path):
    small("fedavg", people, out=tmp_path)
    bad = newest(tmp_path)
    bad.write_bytes(b"hello")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(ua.UnalikeError, match=r"round-000003.safetensors.*start in another folder"):
        small("fedavg", people, out=tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_resume_previous_checkpoint_lacks_client_states_raises_and_changes_no_file(
    people, small, tmp_path
):
    """Either the client states of two checkpoints are kept and the run goes on, or it says what is gone and touches nothing."""
    for rounds in (2, 4):
        small("ditto", people, rounds=rounds, out=tmp_path)
    for state in tmp_path.glob("states/**/round-000001.safetensors"):
        state.unlink()
    newest(tmp_path).write_bytes(b"hello")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(
        ua.UnalikeError, match=r"round-000004.*cannot stand in for it: .*states.* is gone"
    ):
        small("ditto", people, rounds=5, out=tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_resume_ignores_copies_of_checkpoints_and_client_states(people, small, alike, tmp_path):
    small("ditto", people, rounds=2, out=tmp_path)
    for file in [newest(tmp_path), *tmp_path.glob("states/**/round-*.safetensors")]:
        file.with_name(f"{file.stem} copy.safetensors").write_bytes(file.read_bytes())
    alike(small("ditto", people, rounds=4, out=tmp_path), small("ditto", people, rounds=4))
    assert [*tmp_path.glob("checkpoints/* copy.safetensors")] and [
        *tmp_path.glob("states/**/* copy.safetensors")
    ]


@pytest.mark.parametrize("spec", ["ditto", "scaffold"])
def test_resume_missing_client_state_error_names_file(people, small, tmp_path, spec):
    small(spec, people, out=tmp_path)
    for file in tmp_path.glob("states/*/*/00000001/*"):
        file.unlink()
    with pytest.raises(ua.UnalikeError, match=r"00000001/round-000002.safetensors"):
        small(spec, people, rounds=5, out=tmp_path)


@pytest.mark.parametrize("spec", ["scaffold", "fedavgm"])
def test_checkpoint_loaded_tensors_are_aligned_to_64_bytes(people, small, tmp_path, spec):
    """Safetensors hands out views into the file at any offset; kernels may then round the last bit otherwise."""
    small(spec, people, rounds=1, out=tmp_path)
    [state] = small(spec, people, rounds=1, out=tmp_path)._runner.state.states.values()
    tensors = [
        *state.params.values(),
        *(t for drawer in state.part_states.values() for t in drawer.values()),
    ]
    assert {t.data_ptr() % 64 for t in tensors} == {0}


@pytest.mark.parametrize("table", ["rounds", "clients"])
@pytest.mark.parametrize("missing", [True, False])
def test_resume_missing_or_damaged_history_table_error_names_file(
    people, small, tmp_path, table, missing
):
    small("fedavg", people, out=tmp_path)
    file = tmp_path / f"{table}.parquet"
    file.unlink() if missing else file.write_bytes(b"hello")
    with pytest.raises(ua.UnalikeError, match=f"{table}.parquet.*start in another folder"):
        small("fedavg", people, rounds=5, out=tmp_path)


@pytest.mark.parametrize("table", ["rounds", "clients"])
def test_resume_history_table_without_round_column_error_names_file(people, small, tmp_path, table):
    import pandas as pd

    small("fedavg", people, out=tmp_path)
    file = tmp_path / f"{table}.parquet"
    pd.read_parquet(file).drop(columns="round").to_parquet(file)
    with pytest.raises(ua.UnalikeError, match=f"{table}.parquet.*'round'.*start in another folder"):
        small("fedavg", people, rounds=5, out=tmp_path)


@pytest.mark.parametrize("lost", [1, 3])
def test_resume_history_lacks_a_round_raises_and_changes_no_file(people, small, tmp_path, lost):
    import pandas as pd

    small("fedavg", people, out=tmp_path)
    file = tmp_path / "rounds.parquet"
    pd.read_parquet(file).query("round != @lost").to_parquet(file)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.[ps]*") if p.is_file()}
    with pytest.raises(
        ua.UnalikeError, match=f"rounds.parquet lacks round {lost} of 3.*start in another folder"
    ):
        small("fedavg", people, rounds=5, out=tmp_path)
    assert {p: p.read_bytes() for p in before} == before


def test_resume_with_other_config_error_names_differing_keys(people, crowd, small, tmp_path):
    small("fedavg", people, out=tmp_path)
    test = people[0].test
    for key, changed in {
        "method": {"spec": "fedprox"},
        "seed": {"seed": 1},
        "work.lr": {"work": ua.Work(batch_size=5, lr=0.2)},
        "participation": {"participation": 0.5},
        "data.fingerprint": {"clients": crowd},
        "model.fingerprint": {"model": "mlp(hidden=(9,))"},
        "buffers": {"buffers": "first"},
        "protocol": {"protocol": ["clients", "local"]},
        "data.test": {"test": test},
        "data.proxy": {"proxy": test},
    }.items():
        options = {"spec": "fedavg", "clients": people} | changed
        with pytest.raises(
            ua.UnalikeError, match=f"holds another run.*{key}.*Choose another folder"
        ):
            small(**options, out=tmp_path)
    with pytest.raises(ua.UnalikeError, match="already holds this run"):
        small("fedavg", people, out=tmp_path, resume=False)


@pytest.fixture
def gained(monkeypatch):
    """Function that defines a proximal term anew, with or without a field, as another release would."""
    list(registry)  # loads the names of the library
    monkeypatch.setattr(registry, "_builders", dict(registry._builders))

    def define(**fields: tuple[type, object]) -> None:
        members = {"__annotations__": {n: kind for n, (kind, _) in fields.items()}} | {
            n: v for n, (_, v) in fields.items()
        }
        term = {
            "__module__": __name__,
            "__qualname__": "Pull",
            "loss": _drift,
            "has_own_name": True,
        }
        ua.part(type("Pull", (Objective,), term | members))

    return define


def _drift(part, client, batch):
    drift = tree.sub(client.received_params, client.params)
    return part.mu / 2 * tree.dot(drift, drift) * getattr(part, "factor", 1.0)


def test_resume_after_a_part_gained_a_field_goes_on(people, small, alike, tmp_path, gained):
    gained(mu=(float, 0.5))
    small("pull", people, rounds=3, out=tmp_path / "a")
    whole = small("pull", people, rounds=6, out=tmp_path / "b")
    gained(mu=(float, 0.5), factor=(float, 1.0))
    with pytest.warns(
        UserWarning,
        match=r"began before its method had all fields: .*pull\(mu=0.5\).*pull\(mu=0.5, factor=1.0\)",
    ):
        resumed = small("pull", people, rounds=6, out=tmp_path / "a")
    alike(resumed, whole)


def test_resume_after_a_default_changed_is_refused(people, small, tmp_path, gained):
    gained(mu=(float, 0.5))
    small("pull", people, rounds=3, out=tmp_path)
    gained(mu=(float, 0.25))
    with pytest.raises(
        ua.UnalikeError,
        match=r"holds another run: method is .*pull\(mu=0.5\).* there and .*pull\(mu=0.25\)",
    ):
        small("pull", people, rounds=6, out=tmp_path)


def test_resume_of_a_plan_after_a_default_of_its_method_changed_is_refused(
    people, small, tmp_path, gained
):
    """The plan's spec text names its method as it was typed; the record holds every field of it."""
    gained(mu=(float, 0.5))
    small("ccvr(method='pull')", people, rounds=3, out=tmp_path)
    gained(mu=(float, 0.25))
    with pytest.raises(
        ua.UnalikeError, match=r"holds another run: method is .*mu=0.5.* there and .*mu=0.25"
    ):
        small("ccvr(method='pull')", people, rounds=3, out=tmp_path)


def test_resume_of_another_value_of_the_gained_field_is_refused(people, small, tmp_path, gained):
    gained(mu=(float, 0.5))
    small("pull", people, rounds=3, out=tmp_path)
    gained(mu=(float, 0.5), factor=(float, 1.0))
    with pytest.raises(ua.UnalikeError, match="holds another run: method is"):
        small("pull(factor=2)", people, rounds=6, out=tmp_path)


def test_resume_protocol_as_name_or_one_item_list_is_the_same_run(people, small, tmp_path):
    small("fedavg", people, out=tmp_path, protocol="clients")
    small("fedavg", people, out=tmp_path, protocol=["clients"], executor="loop", rounds=4)


def test_resume_with_other_test_set_is_refused(people, small, tmp_path):
    small("fedavg", people, out=tmp_path, protocol="server", test=people[0].test)
    with pytest.raises(ua.UnalikeError, match=r"data\.test"):
        small("fedavg", people, out=tmp_path, protocol="server", test=people[1].test)


def test_out_path_is_a_file_raises_and_keeps_file(people, small, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for out in (file, file / "below"):
        with pytest.raises(ua.UnalikeError, match=r"file"):
            small("fedavg", people, out=out)
    assert file.read_text() == "mine"


def test_resume_invalid_config_toml_error_names_file(people, small, tmp_path):
    (tmp_path / "config.toml").write_text("= what")
    with pytest.raises(ua.UnalikeError, match=r"config.toml"):
        small("fedavg", people, out=tmp_path)


def test_write_failing_on_full_disk_leaves_no_partial_file_and_run_resumes(
    people, small, alike, tmp_path, monkeypatch
):
    """The disk fills at the n-th write; what was whole stays whole, and with room the run goes on."""
    import errno

    import unalike._utils.tensor_files

    small("ditto", people, rounds=2, out=tmp_path)
    fsync, count = os.fsync, 0

    def full(descriptor):
        nonlocal count
        count += 1
        if count >= 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with (
        monkeypatch.context() as patch,
        pytest.raises(ua.UnalikeError, match="No space left on device; free space"),
    ):
        patch.setattr(unalike._utils.tensor_files.os, "fsync", full)
        small("ditto", people, rounds=4, out=tmp_path)
    assert not list(tmp_path.rglob("*.part"))
    alike(small("ditto", people, rounds=4, out=tmp_path), small("ditto", people, rounds=4))


def test_write_on_full_tmpfs_raises_and_leaves_no_partial_file(people, small, alike, tmp_path):
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=48k", "none", tmp_path], stderr=-3
        ).returncode
    ):
        pytest.skip("cannot mount a small file system here")
    try:
        with pytest.raises(ua.UnalikeError, match="No space left on device"):
            small("ditto", people, rounds=2, model="mlp(hidden=(200,))", out=tmp_path / "run")
        assert not list(tmp_path.rglob("*.part"))
    finally:
        subprocess.run(["umount", tmp_path])


def test_out_folder_not_writable_raises(people, small):
    with pytest.raises(ua.UnalikeError, match="cannot write /proc/nowhere"):
        small("fedavg", people, out="/proc/nowhere/run")


# --- trouble in training -------------------------------------------------------------------------------------------


def test_run_diverging_raises_with_advice_also_after_resume(people, small, tmp_path):
    options = {"model": "linear", "work": ua.Work(batch_size=5, lr=1e6, momentum=0.9), "rounds": 60}
    regression = [ua.ClientData(train=(c.train[0], c.train[0].sum(1))) for c in people]
    with pytest.raises(
        ua.UnalikeError,
        match=r"round \d+: no client.*; the first, 'client-0': .*smaller learning rate, or divide the target",
    ):
        small("fedavg", regression, out=tmp_path, **options)
    last = int(newest(tmp_path).stem.removeprefix("round-"))
    with pytest.raises(ua.UnalikeError, match=f"round {last + 1}: no client"):
        small("fedavg", regression, out=tmp_path, **options)


@pytest.mark.parametrize("spec", ["fedavg", "ditto", "scaffold"])
@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_client_update_not_finite_is_refused_and_logged(crowd, small, tmp_path, spec, executor):
    """Features so large that the second of two steps overflows."""
    bad = ua.ClientData(
        train=(np.full((4, 6), 3e38, np.float32), [0, 1, 2, 3]), test=crowd[0].test, name="bad"
    )
    options = {"executor": executor, "model": "linear", "work": ua.Work(batch_size=2, lr=0.1)}
    run = small(spec, [*crowd[:2], bad, *crowd[2:]], out=tmp_path, **options)
    rows = run.history.clients.query("client == 2 and round > 0")
    assert rows["status"].str.startswith("refused: the update of head.weight is not finite").all()
    assert (run.history.rounds["participants"].iloc[1:] == 5).all()
    assert all(t.isfinite().all() for t in run.params.values())
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(e["round"], e["client"]) for e in events if e["event"] == "refused"] == [
        (1, "bad"),
        (2, "bad"),
        (3, "bad"),
    ]
    if spec == "fedavg":  # as if it were not there
        without = small(spec, crowd, **options)
        losses = (r.history.rounds["train_loss"].iloc[1] for r in (run, without))
        assert next(losses) == pytest.approx(next(losses), rel=0.2)


def test_run_warning_is_kept_in_notes_and_events(people, small, tmp_path):
    with pytest.warns(UserWarning):
        run = small(
            "scaffold", people, work=ua.Work(batch_size=5, lr=0.1, momentum=0.9), out=tmp_path
        )
    [note] = [note for note in run.notes if "momentum" in note]
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert note in [event["text"] for event in events if event["event"] == "warning"]


# --- nothing global ------------------------------------------------------------------------------------------------


def given():
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def dropout():
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(), torch.nn.Linear(8, 4))


@pytest.mark.parametrize("model", [given(), dropout])
def test_runs_in_parallel_threads_equal_runs_alone(people, small, alike, model):
    specs = ["ditto", "scaffold", "fedpake", "fedavg"]
    alone = [small(spec, people, rounds=6, seed=i, model=model) for i, spec in enumerate(specs)]
    together = [None] * len(specs)

    def work(i):
        together[i] = small(specs[i], people, rounds=6, seed=i, model=model)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(specs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(alone, together):
        alike(a, b)


def test_run_leaves_global_random_generators_unchanged(people, small):
    import random

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    for executor in ("loop", "batched"):
        small("ditto", people, model=dropout, executor=executor)
    ua.compare(["fedavg"], people, model="linear", rounds=1, seeds=1)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    assert before[:2] == after[:2] and torch.equal(before[2], after[2])


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_resume_with_dropout_gives_same_model(people, small, alike, tmp_path, executor):
    options = {"model": dropout, "executor": executor}
    torch.rand(3)
    whole = small("ditto", people, rounds=4, **options)
    small("ditto", people, rounds=2, out=tmp_path, **options)
    alike(small("ditto", people, rounds=4, out=tmp_path, **options), whole)


def test_run_folder_in_use_by_other_process_is_refused(people, small, alike, tmp_path, monkeypatch):
    """The later one would remove the checkpoints of the other, and write a history without its rounds."""
    import unalike.runtime.run_recorder

    monkeypatch.setattr(unalike.runtime.run_recorder, "CHECKPOINT_SECONDS", 0.0)
    refused = []

    def meanwhile(row, what=""):
        if row["round"] == 2:
            with pytest.raises(ua.UnalikeError, match="another process is writing the run in"):
                small("ditto", people, rounds=4, out=tmp_path)
            refused.append(row["round"])

    whole = small("ditto", people, rounds=4)
    alike(small("ditto", people, rounds=4, out=tmp_path, progress=meanwhile), whole)
    alike(small("ditto", people, rounds=4, out=tmp_path), whole)
    assert refused == [2]
