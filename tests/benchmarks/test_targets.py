"""The definitions of the benchmarks load, and the table and the page are made from a result file."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def scripts_importable(monkeypatch):
    """The scripts import each other by name."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def section(data):
    return {"when": "2026-01-01 00:00", "load_before": 0.1, "repeat": 1, "data": data}


SAMPLE = {
    "machine": {"cpu": "some CPU", "cores": 2, "python": "3.11", "torch": "2.13.0"},
    "sections": {
        "2nn": section(
            {
                "ours, batched": [{"round": 0.1, "start": 3.0, "peak_mb": 300.0}, {"round": 0.2}],
                "bare loop, t1": [{"round": 0.6, "start": 2.0, "peak_mb": 250.0}],
                "FedJAX": [{"round": 0.3, "start": 4.0, "peak_mb": 300.0}],
                "pfl-research": [{"why": "exit code 1: no | such thing"}],
            }
        ),
        "server": section(
            {
                "runs": [
                    {
                        "seconds": {
                            "read": 0.1,
                            "folded": 0.2,
                            "fedavg": 0.14,
                            "fedlws": 0.3,
                            "fedpake": 1.0,
                        }
                    }
                ]
            }
        ),
        "memory": section(
            {"10": [{"mb": 100.0, "model_mb": 40.0}], "100": [{"mb": 190.0, "model_mb": 40.0}]}
        ),
    },
}


def test_arrays_have_the_shapes_of_the_workload():
    from workloads import WORKLOADS, arrays

    for name, work in WORKLOADS.items():
        x, y = arrays(name)
        assert x.shape == (work.clients, work.samples, *work.shape) and x.dtype == np.float32
        assert y.shape == (work.clients, work.samples) and y.max() < work.classes


def test_network_accepts_the_samples_of_the_workload():
    import torch
    from networks import network
    from workloads import WORKLOADS

    for name, work in WORKLOADS.items():
        assert network(name)(torch.zeros(2, *work.shape)).shape == (2, work.classes)


def test_contenders_have_scripts_and_unique_names():
    from contenders import HERE, contenders
    from workloads import WORKLOADS

    for name in WORKLOADS:
        found = contenders(name)
        assert len({contender.name for contender in found}) == len(found)
        assert all(contender.script.exists() for contender in found)
        assert all(
            (HERE / "peers" / f"{contender.peer}.txt").exists()
            for contender in found
            if contender.peer
        )


def test_table_rows_of_sample_have_verdict_or_reason():
    from table import rows

    found = {row.what: row for row in rows(SAMPLE)}
    assert (
        found["2NN 784-200-200-10 against the bare loop t1"].verdict == "FAIL"
    )  # 0.6 / 0.15 = 4, less than 4.3
    assert found["2NN against FedJAX"].verdict == "FAIL"
    assert found["2NN against pfl-research"].found == "not measured: exit code 1: no | such thing"
    assert found["weighted mean of the stack on ResNet-18, K = 20"].verdict == "pass"
    assert found["FedLWS on ResNet-18, K = 20"].verdict == "FAIL"
    assert (
        found["server memory, FedAvg, K = 10 and 100"].verdict == "FAIL"
    )  # 90 MB more, two models are 80
    assert found["a million clients"].passed is None


def test_page_shows_regret_of_auto_and_plain_torch():
    from table import markdown

    seconds = {
        "loop": 0.3,
        "batched": 0.1,
        "distributed(workers=2)": 0.2,
        "plain": 0.4,
        "plain, 2 processes": 0.25,
    }
    choices = {"rule": "loop", "measured": "batched"}
    row = {
        "network": "LeNet",
        "clients": "small",
        "seconds": seconds,
        "choices": choices,
        "busy": True,
    }
    stackless = row | {
        "seconds": {n: s for n, s in seconds.items() if n != "batched"},
        "choices": dict.fromkeys(choices, "loop"),
    }
    page = markdown({"some CPU": SAMPLE | {"sections": {"auto": section([row, stackless])}}})
    assert (
        "| LeNet | small, one core busy | 300 | 100 | 200 | 250 | `loop`: 200% | `batched`: 0% | 2.5x |"
        in page
    )
    assert (
        "| LeNet | small, one core busy | 300 | cannot | 200 | 250 | `loop`: 0% | `loop`: 50% | 0.8x |"
        in page
    )


def test_page_shows_rounds_of_a_federation_beside_those_of_flower():
    from sections import FEDERATION
    from table import markdown, rows

    ours = {
        "round": 0.3,
        "least": 0.2,
        "most": 0.5,
        "foreign": 0.1,
        "peak_mb": 1400.0,
        "site_mb": 361.0,
    }
    theirs = ours | {"round": 30.0, "most": 40.0, "peak_mb": 2200.0}
    del theirs["site_mb"]
    data = {name: [theirs if "Flower" in name else ours] for name in FEDERATION}
    data["10 sites"], data["3 sites, round trip 40 ms"] = (
        [{"why": "no | memory"}],
        [ours | {"round": 0.36}],
    )
    found = {row.what: row for row in rows(SAMPLE | {"sections": {"federation": section(data)}})}
    what = "a round of 3 sites over real processes"
    assert found[what].verdict == "pass" and found["memory of a site"].verdict == "FAIL"
    assert found[f"{what}, against Flower's deployment"].found == "100x (0.30 s; 30.0 s)"
    assert found[f"{what}: round trips more over a network"].found.startswith("1.5: 0.30 s")
    page = markdown({"some CPU": SAMPLE | {"sections": {"federation": section(data)}}})
    assert "| 3 sites | 0.30 | 0.20 - 0.50 | 0.1 | 361 | 1400 |" in page
    assert r"| 10 sites | not measured: no \| memory | | | | |" in page
    data["3 sites"] = [ours | {"foreign": 1.6}]  # a busy machine: no verdict
    assert {row.what: row for row in rows(SAMPLE | {"sections": {"federation": section(data)}})}[
        what
    ].passed is None


def test_networks_that_people_bring_accept_their_samples():
    import torch
    from networks import OWN

    for make, shape, words in OWN.values():
        assert make()(torch.zeros(2, *shape, dtype=torch.long if words else torch.float)).shape == (
            2,
            10,
        )


def test_table_plain_and_markdown_show_all_rows():
    from table import markdown, plain, rows

    assert len(plain(SAMPLE).splitlines()) == len(rows(SAMPLE))
    other = {
        "machine": SAMPLE["machine"] | {"cpu": "other CPU"},
        "sections": {"memory": SAMPLE["sections"]["memory"]},
    }
    page = markdown({"some CPU": SAMPLE, "other CPU": other})
    assert "| ours, batched | 4.00x |" in page and "| bare loop, t1 | 600.0 ms |" in page
    assert r"no \| such thing" in page
    assert "| | target | found |" in page
    found = {line.split(" | ")[0]: line for line in page.splitlines() if line.startswith("| ")}
    assert "FAIL: 100 MB and 190 MB" in found["| server memory, FedAvg, K = 10 and 100"]
    assert found["| server memory, FedAvg, K = 10 and 100"].endswith("stacked: 3600 MB) |")
    assert found["| FedLWS on ResNet-18, K = 20"].endswith("(some CPU) |")
    assert markdown({}).startswith("# Benchmarks")
