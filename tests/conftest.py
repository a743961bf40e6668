from __future__ import annotations

import shutil
import signal
from contextlib import suppress

import pytest
import torch

with suppress(ImportError):  # `make light` tests the command line without Hypothesis
    from hypothesis import HealthCheck, settings
    from hypothesis.internal.conjecture import providers

    slow_machine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile(
        "same", slow_machine, derandomize=True, database=None, max_examples=60
    )
    settings.register_profile("explore", slow_machine, print_blob=True, max_examples=600)
    settings.load_profile("same")
    # Hypothesis also draws constants of the modules that happen to be imported: examples would differ between runs
    providers.is_local_module_file = lambda file: False

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """A shell that starts the tests in the background has them ignore SIGINT, and so would the programs they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Sums of torch in the same order everywhere."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on the PATH")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as engine:
        chromium = engine.chromium.launch(
            executable_path=CHROMIUM, args=[*FLAGS, "--no-first-run"], timeout=60_000
        )
        yield chromium
        chromium.close()
