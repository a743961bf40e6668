"""A comparison that is killed before or after any write of its own goes on. Kills of runs: `tests/federation/test_kills.py`."""

from __future__ import annotations

import os
import shutil

import pandas as pd
import pytest

import unalike as ua
from unalike.comparison.earlier_reports import earlier_reports

pytestmark = pytest.mark.slow

METHODS = ["fedavg", "fedprox(mu=0.1)"]
WRITES = {os: ("replace", "unlink", "rename"), shutil: ("copy2",)}
"""What changes files, by module."""


class Killed(BaseException):
    """The process ends here: no handler of errors cleans up."""


class Writes:
    """Counts the writes outside the folders of cells, and raises `Killed` before the one of this number.

    After a write the files are those before the next one. A new file has its contents already, under its temporary name.
    """

    def __init__(self, monkeypatch, number=None):
        self.number = number
        self.done = []
        for module, names in WRITES.items():
            for name in names:
                monkeypatch.setattr(module, name, self._counted(getattr(module, name)))

    def _counted(self, write):
        def counted(*arguments, **options):
            path = str(arguments[-1] if len(arguments) > 1 else arguments[0])
            if f"{os.sep}cells{os.sep}" in path:
                return write(*arguments, **options)
            if len(self.done) == self.number:
                raise Killed
            self.done.append(path)
            return write(*arguments, **options)

        return counted


@pytest.fixture(scope="module")
def begun(people, tmp_path_factory):
    """A folder with the report of a comparison at a learning rate of 0.1, and with the cells of one at 0.2."""
    folder = tmp_path_factory.mktemp("begun") / "c"
    _compare(people, folder, lr=0.1)
    other = tmp_path_factory.mktemp("other") / "c"
    _compare(people, other, lr=0.2)
    shutil.copytree(other / "cells", folder / "cells", dirs_exist_ok=True)
    return folder


def _compare(people, folder, lr, seeds=2):
    work = ua.Work(batch_size=5, lr=lr)
    options = {"model": "linear", "rounds": 1, "progress": None, "out": folder}
    return ua.compare(METHODS, people, work=work, seeds=seeds, **options)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_comparison_that_was_killed_around_any_write_goes_on(begun, people, tmp_path, monkeypatch):
    """Finding C1: killed while it rendered the report, it could never be continued, and no other report be made there."""
    # a page takes seconds, and is not what is tested
    monkeypatch.setattr("unalike.reporting.html.render", lambda content: "<html></html>")
    with monkeypatch.context() as counting:
        calm = shutil.copytree(begun, tmp_path / "calm")
        writes = Writes(counting)
        wanted = _compare(people, calm, lr=0.2)
    names = [os.path.basename(path) for path in writes.done]
    assert {"comparison.json", "config.toml", "report.html", "cells.json"} <= set(names)
    # killed before, the folder is unfinished
    assert names[-1] == "comparison.json"

    for number, name in enumerate(names):
        folder = shutil.copytree(begun, tmp_path / str(number))
        with monkeypatch.context() as killing:
            Writes(killing, number)
            with pytest.raises(Killed):
                _compare(people, folder, lr=0.2)
        _compare(people, folder, lr=0.2)
        found = ua.open_comparison(folder)
        pd.testing.assert_frame_equal(found.rounds, wanted.rounds)
        assert [kept.name for kept in earlier_reports(folder)] == ["lr-0.1"], name
        [kept] = earlier_reports(folder)
        assert ua.open_comparison(kept).rounds["method"].nunique() == 2
        assert not [*folder.rglob(".*.part")], name


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_comparison_that_was_killed_while_it_rendered_takes_more_seeds(people, tmp_path):
    def killed(content):
        raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("unalike.reporting.html.render", killed)
        with pytest.raises(Killed):
            _compare(people, tmp_path / "c", lr=0.1)
    assert len(_compare(people, tmp_path / "c", lr=0.1, seeds=3).rounds["seed"].unique()) == 3
    assert not earlier_reports(tmp_path / "c")


def test_run_that_goes_on_removes_files_that_a_killed_process_was_writing(people, tmp_path):
    class Once:
        """The first write of the division is that of a process that is killed."""

        done = False

        def __call__(self, source, target):
            if not self.done and os.path.basename(target) == "names.json":
                self.done = True
                raise Killed
            return os.rename(source, target)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "replace", Once())
        with pytest.raises(Killed):
            _compare(people, tmp_path / "c", lr=0.1)
    assert [*tmp_path.rglob(".*.part")]
    _compare(people, tmp_path / "c", lr=0.1)
    assert not [*tmp_path.rglob(".*.part")]


def test_folder_that_an_older_version_left_without_settings_is_unfinished(people, tmp_path):
    _compare(people, tmp_path / "c", lr=0.1)
    (tmp_path / "c" / "config.toml").unlink()
    _compare(people, tmp_path / "c", lr=0.1, seeds=3)
    assert not earlier_reports(tmp_path / "c")
