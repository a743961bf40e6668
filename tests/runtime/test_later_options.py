"""An option that a later version adds, whatever its default is, leaves what is stored and what is signed as it was."""

from dataclasses import replace
from typing import Annotated

import pytest
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as validated
from small_federation import federation_of, make_clients

import unalike as ua
from unalike.core.option import Help
from unalike.federation.protocol.federation_file import Federation
from unalike.runtime.records.run_directory import RunDirectory
from unalike.runtime.setup.run_config import configure_run
from unalike.runtime.setup.run_options import RunOptions

FORBID = ConfigDict(extra="forbid")


@validated(frozen=True, config=FORBID)
class LaterOptions(RunOptions):
    pace: Annotated[str, Help("Pace of the rounds.")] = "steady"


@validated(frozen=True, config=FORBID)
class LaterWork(ua.Work):
    rest: Annotated[float, Help("Seconds between steps.", agreed=True)] = 2.0


@validated(frozen=True, config=FORBID)
class LaterFederation(Federation):
    pace: Annotated[str, Help("Pace of the rounds.", agreed=True)] = "steady"


@pytest.fixture
def later_version(monkeypatch):
    """Calling it makes this the later version."""

    def upgrade():
        monkeypatch.setattr("unalike.runtime.setup.run_options.RunOptions", LaterOptions)
        for module in ("runtime.records.run_directory", "comparison.earlier_reports"):
            monkeypatch.setattr(f"unalike.{module}.SimulationOptions", LaterOptions)

    return upgrade


ARGUMENTS = {"model": "linear", "rounds": 1, "work": ua.Work(batch_size=4)}


def test_stored_run_goes_on_in_a_version_with_a_further_option(tmp_path, later_version):
    before = ua.run("fedavg", make_clients(), out=tmp_path / "run", progress=False, **ARGUMENTS)
    key = before.run_config.key
    later_version()
    after = ua.run(
        "fedavg", make_clients(), out=tmp_path / "run", progress=False, **ARGUMENTS | {"rounds": 2}
    )
    assert after.run_config.options.pace == "steady" and len(after.history) == 3
    assert after.history.rounds[:2].equals(before.history.rounds), "read, with the times of then"
    again = configure_run("fedavg", make_clients(), **ARGUMENTS)
    assert again.key == key, "the folder of a cell bears the key"
    changed = configure_run("fedavg", make_clients(), pace="hasty", **ARGUMENTS)
    assert changed.key != key
    with pytest.raises(ua.UnalikeError, match="pace is 'steady' there and 'hasty' here"):
        RunDirectory(tmp_path / "run").claim(changed.description, resume=True)


@pytest.mark.filterwarnings("error:.*holds the report of a comparison with other settings")
def test_cells_of_a_comparison_are_read_in_a_version_with_a_further_option(tmp_path, later_version):
    settings = {"seeds": 2, "out": tmp_path, "progress": False, **ARGUMENTS}
    first = ua.compare(["fedavg", "fedprox"], make_clients(), **settings)
    folders = {path.name for path in (tmp_path / "cells").iterdir()}
    later_version()
    second = ua.compare(["fedavg", "fedprox"], make_clients(), **settings)
    assert {path.name for path in (tmp_path / "cells").iterdir()} == folders
    assert second.rounds.equals(first.rounds), "read, with the times of then"


def test_work_with_a_further_option_has_the_digest_of_before():
    found = [
        replace(configure_run("fedavg", make_clients(), **ARGUMENTS), work=work).key
        for work in (
            ua.Work(batch_size=4),
            LaterWork(batch_size=4),
            LaterWork(batch_size=4, rest=3.0),
        )
    ]
    assert found[0] == found[1] != found[2]


def test_full_batch_is_not_the_usual_one():
    """TOML has no None: the file of the run lacks it, but the digest and the comparison do not take it for the default."""
    keys = {
        configure_run("fedavg", make_clients(), model="linear", rounds=1, work=work).key
        for work in (ua.Work(), ua.Work(batch_size=None))
    }
    assert len(keys) == 2


def test_signed_terms_stay_in_a_version_with_a_further_option():
    federation = federation_of(make_clients(), work=ua.Work(lr=0.5))
    values = {name: getattr(federation, name) for name in federation.__dataclass_fields__}
    values.pop("_", None)
    later = LaterFederation(**values)
    assert later.terms == federation.terms
    assert replace(later, work=LaterWork(lr=0.5)).terms == federation.terms
    for change in ({"pace": "hasty"}, {"work": LaterWork(lr=0.5, rest=3.0)}):
        assert replace(later, **change).terms != federation.terms
