"""kill -9 at any moment: no aggregated update is lost or counted twice. See `tests/helpers/kill_runs.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HELPERS = Path(__file__).parents[1] / "helpers"


def killing(*arguments: str, timeout: float = 300) -> str:
    done = subprocess.run(
        [sys.executable, str(HELPERS / "kill_runs.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_few_kills_give_same_run():
    """Includes a plan with several stages and a query, and one in which clients choose their model."""
    assert "all as undisturbed" in killing(
        "moments", "7", "6", "scaffold + ditto", "fedconcat", "ifca(clusters=2)"
    )


@pytest.mark.network
def test_fifty_random_kills_give_same_run():
    said = killing("moments", "0", "50", "scaffold + ditto", "fedconcat", "ifca(clusters=2)")
    assert int(said.split()[0]) >= 50


def test_kills_around_every_write_give_same_run():
    assert "all as undisturbed" in killing("writes", "scaffold + ditto")


def test_site_kills_give_same_run():
    assert "as undisturbed" in killing("sites", "0", "20", "scaffold + ditto")


def test_kills_with_a_private_method_give_same_run():
    """A site that was killed before it stored its update may train again; nothing has left it."""
    assert "all as undisturbed" in killing(
        "moments", "1", "4", "client_dp(noise_multiplier=0, where='site', clip=0.1)"
    )


def test_kills_of_coordinator_and_sites_with_secure_aggregation_give_same_run():
    assert "all as undisturbed" in killing("moments", "3", "3", "secure scaffold")


@pytest.mark.network
def test_many_kills_with_secure_aggregation_give_same_run():
    assert "all as undisturbed" in killing("moments", "1", "8", "secure scaffold + ditto")
    assert "all as undisturbed" in killing("writes", "secure scaffold")
    assert "as undisturbed" in killing("sites", "0", "5", "secure scaffold + ditto")
