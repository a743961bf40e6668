"""The timeline of simulated devices in a comparison, and the state of the dashboard that shows it."""

from __future__ import annotations

import pandas as pd
import pytest

import unalike as ua
from unalike.comparison import comparison
from unalike.dashboard.state import Followed
from unalike.reporting.client_tables import client_columns


@pytest.fixture
def clients():
    return ua.partition("digits", "iid", clients=4)


def test_comparison_keeps_the_timelines_of_its_runs(clients, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "MOST_CLIENTS_OF_TIMELINE", 3)
    found = ua.compare(
        ["fedavg", "fedbuff(buffer=2)"],
        clients,
        model="linear",
        rounds=4,
        seeds=1,
        devices="pareto",
        out=tmp_path,
        progress=False,
    )
    timeline = found.timeline
    assert set(timeline["client"]) == set(clients.names[:3])
    assert (timeline["method"] == "fedavg").sum() == 3 * 4
    assert "trained, counted in a later round" in set(timeline["fate"])
    pd.testing.assert_frame_equal(ua.open_comparison(tmp_path).timeline, timeline)

    # the decision compares the simulated time of whole runs
    of_run = found.rounds.groupby("method")["simulated_seconds"].max()
    ratio = of_run["fedbuff(buffer=2)"] / of_run["fedavg"]
    assert found.decision.cost["simulated_seconds"] == pytest.approx(ratio)

    # a run alone has the same rows
    [cell] = tmp_path.glob("cells/fedavg-*")
    alone = ua.open_comparison(cell).timeline.drop(columns="method")
    of_method = timeline[timeline["method"] == "fedavg"].drop(columns="method")
    pd.testing.assert_frame_equal(alone, of_method.reset_index(drop=True))

    # the table of the clients has their MB, mean over seeds: 650 parameters four times down
    of_client = found.content().client_scores.query("method == 'fedavg'").set_index("client")
    assert of_client.loc[clients.names[0], "mb_down"] == 4 * 650 * 4 / 1e6
    sent = of_method.loc[of_method["client"] == clients.names[0], "bytes_up"]
    assert of_client.loc[clients.names[0], "mb_up"] == pytest.approx(sent.sum() / 1e6)
    assert {"MB received", "MB sent"} <= {
        column.title for column in client_columns(found.content())
    }

    # and so has the dashboard that follows it
    shown = Followed(cell).state()["timeline"]
    assert [site["received"] for site in Followed(cell).state()["sites"]] == ["0.0104"] * 4
    assert len(shown["clients"]) == 4 and len(shown["bars"]) == 4 * 4
    assert shown["fates"] == [{"name": "trained", "color": shown["fates"][0]["color"], "count": 16}]
