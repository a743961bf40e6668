"""Folders that an earlier version wrote: the run goes on, at the coordinator and at its sites.

The archive holds the folder of a coordinator and those of two sites as commit b089465f (24 November 2026) left them when
the run was stopped after round 3 of 5: SCAFFOLD, with the clients of `make_clients()`. The server's keys are left out.
"""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from in_memory_transport import InMemoryTransport
from small_federation import make_clients

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike._utils.journal import entries
from unalike.federation.coordinator.coordinator import run_rounds
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.protocol.bundle import Bundle
from unalike.federation.site.site_folder import OLD_STATE, state_folder
from unalike.federation.site.site_worker import SiteWorker
from unalike.runtime.records.run_directory import RunDirectory

EARLIER = Path(__file__).with_name("federation_of_2026-11-24.zip")


@pytest.fixture
def folder(tmp_path):
    with ZipFile(EARLIER) as archive:
        archive.extractall(tmp_path)
    return FederationFolder(tmp_path / "hospitals")


def worker(folder, client):
    """As `unalike join` makes it."""
    home = folder.path.parent / client.name
    bundle = Bundle.read(folder.bundles[client.name], home)
    bundle.claim(home)
    assert state_folder(home).name == OLD_STATE
    return SiteWorker(bundle.federation, client.name, bundle.key, client, state_folder(home))


def test_run_of_an_earlier_version_goes_on_to_the_same_model(folder):
    clients, log = make_clients(), []
    before = RunDirectory(folder.run).round
    run = run_rounds(
        folder, InMemoryTransport({c.name: worker(folder, c) for c in clients}), log.append
    )
    expected = ua.run(
        "scaffold", clients, model="linear", rounds=5, work=ua.Work(batch_size=5, lr=0.1)
    )
    assert before == 3 and [line.split(":")[0] for line in log[1:3]] == [
        "round 4 of 5",
        "round 5 of 5",
    ]
    for name, t in expected.params.items():
        torch.testing.assert_close(run.params[name], t)
    table = run.history.rounds
    assert table["round"].tolist() == [0, 1, 2, 3, 4, 5]
    assert table["accuracy"].tolist() == pytest.approx(expected.history.rounds["accuracy"].tolist())
    kinds = [event["event"] for event in RunDirectory(folder.run).events]
    assert "resumed" in kinds and not {"refused", "absent", "damaged"} & {*kinds}
    assert (folder.path / "report.html").exists() and folder.waiting == []


def test_earlier_version_kept_no_rounds_to_go_back_to(folder):
    with pytest.raises(
        UnalikeError, match=r"no checkpoint of round 2 is kept in .*; expected one of none"
    ):
        folder.roll_back(2)
    assert not [*entries(folder.path / "audit.jsonl")]  # nothing was rolled back
    assert RunDirectory(folder.run).round == 3
