"""Errors that refuse what is not here name a section of the page of limits, which exists."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from secure_federation import FOUR, TERMS
from small_federation import SmallFederation, make_clients

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike._utils.limits import Limit
from unalike.core.tasks.registry import find_task
from unalike.core.tasks.task import CLASSES
from unalike.data.sources.table_summary import agreed, summarize

ROOT = Path(__file__).parents[2]
NETWORKS = {"small": "mlp(hidden=(4,))", "large": "mlp(hidden=(8,))"}
NETWORKS_AS_TEXT = "networks(small='mlp(hidden=(4,))', large='mlp(hidden=(8,))')"


def anchors(page):
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.M):
        words = re.sub(r"[^\w\- ]", "", heading.lower())
        found.add(words.strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("limit", Limit)
def test_section_of_each_limit_exists(limit):
    page, _, anchor = limit.partition("#")
    assert anchor in anchors(ROOT / page)


def people(several=False):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 3)).astype(np.float32)
    inputs = {"a": x, "b": x} if several else x
    return ua.ClientData(train=(inputs, np.arange(12) % 3), test=(inputs, np.arange(12) % 3))


def run(method="fedavg", several=False, **options):
    clients = [people(several), people(several)]
    ua.run(method, clients, **{"model": "linear", "rounds": 1, "progress": False} | options)


def federation(folder, method="fedavg", **terms):
    SmallFederation(folder, method=method, **terms).run()


def other_columns(folder):
    summaries = {}
    for site, column in (("north", "age"), ("south", "dose")):
        rows = pd.DataFrame({column: np.arange(40.0), "ill": np.arange(40) % 2 == 0})
        rows.to_csv(folder / f"{site}.csv", index=False)
        summaries[site] = summarize(folder / f"{site}.csv", target="ill")
    agreed(summaries)


def two_inputs():
    return ua.Population.of([people(several=True), people(several=True)])


REFUSALS = {
    "model of another library": (Limit.KINDS, lambda folder: run(model=3)),
    "other columns about the same people": (Limit.KINDS, other_columns),
    "model of the catalogue": (Limit.INPUTS, lambda folder: run(several=True)),
    "diagnosis": (Limit.INPUTS, lambda folder: ua.diagnose(two_inputs())),
    "prototypes of amounts": (
        Limit.INPUTS,
        lambda folder: find_task("amounts").require(CLASSES, "fedproto"),
    ),
    "plan over networks": (Limit.INPUTS, lambda folder: run("clustered", model=NETWORKS)),
    "control variates of networks": (Limit.INPUTS, lambda folder: run("scaffold", model=NETWORKS)),
    "pooled training": (Limit.FEDERATION, lambda folder: federation(folder, "centralised")),
    "true clusters": (Limit.FEDERATION, lambda folder: federation(folder, "cluster_oracle")),
    "attack": (Limit.FEDERATION, lambda folder: federation(folder, "fedavg + sign_flip")),
    "late sites with networks": (
        Limit.FEDERATION,
        lambda folder: federation(folder, "heterofl", model=NETWORKS_AS_TEXT, open=True),
    ),
    "secure sums of each update": (
        Limit.FEDERATION,
        lambda folder: SmallFederation(folder, make_clients(FOUR), "median", **TERMS),
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal_names_its_section(case, tmp_path):
    limit, refused = REFUSALS[case]
    with pytest.raises(UnalikeError, match=re.escape(limit)):
        refused(tmp_path)


def test_every_section_is_named_by_some_refusal():
    assert {limit for limit, _ in REFUSALS.values()} == {*Limit}
