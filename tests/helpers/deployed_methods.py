"""The methods that run in a federation, and the comparison with their simulation."""

from __future__ import annotations

import pandas as pd
import torch
from every_method import METHODS
from small_federation import SmallFederation, states

from unalike.metrics.columns import REPLY_SECONDS, TIMES

SITES_ONLY = {
    "centralised": "pools the clients' data",
    "cluster_oracle": "true clusters",
} | {
    name: "which only a simulation carries out"
    for name, m in METHODS.items()
    if any(p.simulated_only for p in m.parts)
}
"""Methods that cannot run while data stay on the sites, and words of the refusal."""
FEW = ((20, 8), (12, 6))
FIRST_COUNT = [name for name, m in METHODS.items() if m.updates_awaited < len(FEW)]
"""Methods whose rounds end with the first updates: tests of late updates compare these with a simulation, arrival by arrival."""
SAMPLE_SIZES = ((20, 8), (12, 6), (6, 3), (16, 6))

SPECS = {
    "ccvr": "ccvr",
    "client_dp": "client_dp(noise_multiplier=0, clip=0.1)",  # noise is secret at every site
    "dp_sgd": "dp_sgd(noise_multiplier=0, clip=0.1)",
    "clustered": "clustered(eps1=100, eps2=0.001, warmup=1)",
    "combat": "combat(kept=(0,))",
    "conditional": "fedavg + conditional",
    "fedconcat": "fedconcat(clusters=2, encoder_rounds=1, classifier_rounds=1)",
    "ifca": "ifca(clusters=2)",
}


def same(a, b):
    """Check bitwise equality: sites compute the same as the simulation's loop executor."""
    assert list(a) == list(b)
    for group in a:
        assert list(a[group]) == list(b[group])
        for name, t in a[group].items():
            assert torch.equal(t, b[group][name]), f"{group}: {name}"


def close(a: pd.DataFrame, b: pd.DataFrame):
    """Tolerance 1e-5: the simulation may batch clients. Areas under curves cannot be computed from sums of sites."""
    assert list(a.columns) == list(b.columns)
    curves = (
        [name for name in a.columns if name.endswith(("roc_auc", "average_precision"))]
        if "client" not in a
        else []
    )
    assert a[curves].isna().all(axis=None)
    a, b = (t.drop(columns=[*TIMES, *curves], errors="ignore") for t in (a, b))
    pd.testing.assert_frame_equal(a, b, check_exact=False, rtol=1e-5, atol=1e-6, check_dtype=False)


def agree(fed: SmallFederation):
    ours, theirs = fed.run(), fed.simulated()
    same(states(ours), states(theirs))
    close(ours.history.rounds, theirs.history.rounds)
    close(ours.history.clients.drop(columns=REPLY_SECONDS), theirs.history.clients)
    return ours
