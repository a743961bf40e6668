"""Tests on pretended devices, in new processes: torch cannot unregister a device type."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("file", ["on_devices.py", "sites_on_devices.py"])
def test_suites_pass_on_pretended_devices(file):
    """`pytest tests/devices/FILE` runs them one by one."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        str(Path(__file__).with_name(file)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
