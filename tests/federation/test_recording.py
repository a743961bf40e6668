"""`record` in a federation: the coordinator records what a simulation records, and no site's parameters."""

from __future__ import annotations

import pandas as pd
import pytest
from small_federation import SmallFederation, states

from unalike import UnalikeError
from unalike.runtime.run_recorder import RunRecorder


@pytest.mark.parametrize("method", ["fedavg", "fednova", "fedavg + lws", "fedpake"])
@pytest.mark.parametrize("record", ["server", "server + updates"])
def test_federation_records_what_a_simulation_records(method, record, tmp_path):
    fed = SmallFederation(tmp_path, method=method, record=record)
    recorded = fed.run().records
    assert len(recorded) and set(recorded["round"]) == {1, 2}
    pd.testing.assert_frame_equal(recorded, fed.simulated(record=record).records)
    pd.testing.assert_frame_equal(
        pd.read_parquet(fed.out / "records.parquet").astype(
            dict.fromkeys(("group", "part", "quantity", "layer"), object)
        ),
        recorded,
        check_dtype=False,
    )


def test_recording_changes_no_model_of_a_federation(tmp_path):
    recorded = SmallFederation(tmp_path / "recorded", record="server + updates").run()
    plain = SmallFederation(tmp_path / "plain").run()
    assert all(
        (states(recorded)["all"][name] == value).all()
        for name, value in states(plain)["all"].items()
    )


def test_records_of_a_round_survive_a_kill_before_its_evaluation(tmp_path, monkeypatch):
    """The checkpoint that is written before the new models are sent out holds the records of that round, too."""
    whole = SmallFederation(tmp_path / "whole", rounds=3, record="server + updates").run().records
    fed, hold = (
        SmallFederation(tmp_path / "cut", rounds=3, record="server + updates"),
        RunRecorder.hold,
    )

    def die_after_second(self, index, clients):
        hold(self, index, clients)
        if self.history.last["round"] == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(RunRecorder, "hold", die_after_second)
        fed.run()
    fed.restart_sites()
    pd.testing.assert_frame_equal(fed.run().records, whole)


def test_recording_of_parameters_is_refused(tmp_path):
    for kind in ("clients", "entries"):
        with pytest.raises(UnalikeError, match="sites' own parameters"):
            SmallFederation(tmp_path, record=f"server + {kind}(layers='head')")


def test_record_is_no_term_that_sites_agree_to(tmp_path):
    """It decides neither what a site computes nor what it sends."""
    plain, recorded = (
        SmallFederation(tmp_path / "a"),
        SmallFederation(tmp_path / "b", record="server"),
    )
    assert plain.federation.terms == recorded.federation.terms
