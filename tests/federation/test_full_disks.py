"""Row 22: full disks, folders that cannot be written, checkpoints that are truncated or changed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_federation import SmallFederation, make_clients, states

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import read_tensors, write_tensors
from unalike.federation.coordinator.run_control import Control, Stopped

SAMPLE_SIZES = ((20, 8), (12, 6), (16, 6))


def small_federation_of(folder, **more):
    return SmallFederation(
        folder, make_clients(SAMPLE_SIZES), "scaffold + ditto", **({"rounds": 3} | more)
    )


def same(a, b):
    for group in b:
        for name, t in b[group].items():
            assert torch.equal(a[group][name], t), name


class Full:
    """`os.replace` that finds no space for the n-th file below a folder, and for every one after it."""

    def __init__(self, below: Path, at: int):
        self.below, self.at, self.count, self.replace = below, at, 0, os.replace

    def __call__(self, a, b):
        if self.below in Path(b).parents:
            self.count += 1
            if self.count >= self.at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.replace(a, b)


@pytest.mark.slow
def test_coordinator_disk_full_at_any_write_resumes_to_same_model(tmp_path, monkeypatch):
    wanted, at, ended = states(small_federation_of(tmp_path / "calm").run()), 0, False
    while not ended:
        at += 1
        fed = small_federation_of(tmp_path / str(at))
        full = Full(fed.out, at)
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)
            try:
                found, ended = fed.run(), True
            except UnalikeError as error:
                assert "No space left on device; free space or choose another folder" in str(error)
        assert not list(fed.folder.rglob(".*.part"))
        fed.restart_sites()
        found = fed.run()
        same(states(found), wanted)
    assert at > 10


def test_site_disk_full_others_continue(tmp_path, monkeypatch):
    fed = small_federation_of(tmp_path, quorum=2)
    monkeypatch.setattr(
        os, "replace", Full(fed.folder / "site1", 7)
    )  # the kept model, second round
    run = fed.run()
    assert run.history.rounds["participants"].tolist() == [0, 3, 2, 2]
    assert all("is its disk full?" in e["why"] for e in fed.events("refused"))
    monkeypatch.undo()
    fed.federation.save(fed.folder / "federation.toml")
    assert not list((fed.folder / "site1").rglob(".*.part"))


def test_site_disk_full_is_asked_again_on_resume(tmp_path, monkeypatch):
    """All sites are needed, so the run pauses; the operator resumes it."""
    from threading import Thread

    fed, control, runs = small_federation_of(tmp_path), Control(), []
    whole = states(small_federation_of(tmp_path / "calm").run())
    monkeypatch.setattr(os, "replace", Full(fed.folder / "site1", 4))
    thread = Thread(target=lambda: runs.append(fed.coordinator(control=control).run()))
    thread.start()
    while control.state != "paused":
        assert thread.is_alive()
    monkeypatch.undo()
    control.resume()
    thread.join(20)
    assert control.state == "running" and len(fed.events("resumed")) == 1
    same(states(runs[0]), whole)


LIMITED = """
import resource, sys, torch
sys.path.insert(0, sys.argv[2])
torch.set_num_threads(1)
from small_federation import SmallFederation
from pathlib import Path
fed = SmallFederation(Path(sys.argv[1]), model="mlp(hidden=(300,))")
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
try:
    fed.run()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_file_size_limit_is_reported_and_resumes(tmp_path):
    """A limit of the operating system: sites cannot store their replies, so there is no quorum."""
    script = LIMITED.replace("fed.run()", "SmallFederation.run(fed)")
    script = script.replace(
        'model="mlp(hidden=(300,))"', 'model="mlp(hidden=(300,))", patience=1, deadline=0.2'
    )
    script = script.replace(
        "try:",
        "import threading, time\nfrom unalike.federation.coordinator.run_control import Control\ncontrol = Control()\n"
        "def stop():\n    while control.state != 'paused': time.sleep(0.01)\n    control.stop()\n"
        "threading.Thread(target=stop, daemon=True).start()\ntry:",
    ).replace("SmallFederation.run(fed)", "fed.coordinator(control=control).run()")
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), str(Path(__file__).parents[1] / "helpers")],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "Stopped" in done.stdout, done.stdout + done.stderr
    assert "is its disk full?" in (tmp_path / "out" / "events.jsonl").read_text()
    journals = [file.read_text() for file in tmp_path.glob("*/journal.jsonl")]
    assert any("File too large; free space" in journal for journal in journals)


def test_read_only_folder_is_reported(tmp_path):
    (tmp_path / "file").write_text("in the way")
    fed = small_federation_of(tmp_path / "sites")
    fed.__class__ = type(
        "Elsewhere", (SmallFederation,), {"out": property(lambda self: tmp_path / "file" / "out")}
    )
    with pytest.raises(UnalikeError, match=r"cannot (write|read).*Not a directory"):
        fed.run()
    fed.__class__ = type(
        "Nowhere", (SmallFederation,), {"out": property(lambda self: Path("/proc/nowhere"))}
    )
    with pytest.raises(UnalikeError, match="cannot write"):
        fed.run()


def interrupted(fed):
    """A run that was stopped after the third row of its history."""
    control = Control()

    def stop(row, what=""):
        if row["round"] == 3:
            control.stop()

    with pytest.raises(Stopped):
        fed.coordinator(control=control).run(progress=stop)
    fed.restart_sites()
    return sorted((fed.out / "checkpoints").glob("round-*.safetensors"))


def truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file):
    """Flip one bit in the middle of the tensors."""
    data = bytearray(file.read_bytes())
    data[-len(data) // 4] ^= 1
    file.write_bytes(data)


def reword(file):
    """Change a fact in the header: the round of a client state."""
    data = file.read_bytes()
    assert data.count(b'\\"done\\": ') == 1
    at = data.index(b'\\"done\\": ') + len(b'\\"done\\": ')
    file.write_bytes(data[:at] + b"1" + data[at + 1 :])


@pytest.mark.parametrize("damage", [truncate, flip, reword, lambda f: f.write_bytes(b"")])
def test_damaged_checkpoint_is_replaced_by_previous(damage, tmp_path):
    wanted = states(small_federation_of(tmp_path / "calm", rounds=5).run())
    fed = small_federation_of(tmp_path / "run", rounds=5)
    older, newest = interrupted(fed)
    damage(newest)
    bytes_ = newest.read_bytes()
    same(states(fed.run()), wanted)
    [event] = fed.events("damaged")
    assert event["checkpoint"] == newest.name and event["instead"] == older.name
    assert (
        newest.with_name(newest.name + ".damaged").read_bytes() == bytes_
    )  # put aside, never overwritten


def test_two_damaged_checkpoints_overwrite_nothing(tmp_path):
    fed = small_federation_of(tmp_path, rounds=5)
    both = interrupted(fed)
    for file in both:
        truncate(file)
    before = [file.read_bytes() for file in both]
    with pytest.raises(UnalikeError, match="restore it, or start in another folder"):
        fed.run()
    assert [file.read_bytes() for file in both] == before


def test_site_without_client_state_is_refused_with_reason(tmp_path):
    fed = small_federation_of(tmp_path, rounds=5, quorum=2)
    interrupted(fed)
    for file in (fed.folder / "site1").rglob("*"):
        if file.is_file():
            file.unlink()
    run = fed.run()
    assert any("cannot read" in e["why"] for e in fed.events("refused") if e["client"] == "site1")
    assert run.history.rounds["participants"].tolist()[-1] == 2


def test_changed_client_state_file_is_detected(tmp_path):
    file = tmp_path / "some.safetensors"
    write_tensors(
        file,
        {"w": torch.arange(100.0), "none": torch.zeros(0), "flag": torch.tensor(True)},
        {"round": 3},
    )
    found, facts = read_tensors(file)
    assert list(found) == ["w", "none", "flag"] and facts == {"round": 3}
    flip(file)
    with pytest.raises(UnalikeError, match="not those that were written"):
        read_tensors(file)
