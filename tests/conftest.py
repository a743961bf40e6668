import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """A shell that starts the tests in the background has them ignore SIGINT, and so would the programs they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
