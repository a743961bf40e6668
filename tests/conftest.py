from __future__ import annotations

import signal
from contextlib import suppress

import pytest
import torch

with suppress(ImportError):  # `make light` tests the command line without Hypothesis
    from hypothesis import HealthCheck, settings
    from hypothesis.internal.conjecture import providers

    slow_machine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("same", slow_machine, derandomize=True, database=None, max_examples=60)
    settings.register_profile("explore", slow_machine, print_blob=True, max_examples=600)
    settings.load_profile("same")
    # Hypothesis also draws constants of the modules that happen to be imported: examples would differ between runs
    providers.is_local_module_file = lambda file: False


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """A shell that starts the tests in the background has them ignore SIGINT, and so would the programs they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Sums of torch in the same order everywhere."""
    torch.set_num_threads(1)
