"""Processes that are forked after a run train, where torch alone would wait for threads that a fork does not have."""

import os
import subprocess
import sys

import pytest

FORKED = """
import os
import numpy as np
import torch
import unalike as ua

torch.set_num_threads(2)
rng = np.random.default_rng(0)
images = rng.random((60, 1, 28, 28)).astype("float32")
clients = [ua.ClientData((images, np.arange(60) % 3), test=(images[:9], np.arange(9) % 3))] * 2
clients = {"north": clients[0], "south": clients[1]}


def train():
    return ua.run("fedavg", clients, model="cnn(channels=(4,))", rounds=1, executor="loop")


parent = train()
assert torch.get_num_threads() == 2
child = os.fork()
if not child:
    # summing so many numbers is the work of several threads where there are some
    torch.ones(2**22).sum()
    scored = np.isfinite(train().history.last["accuracy"])
    os._exit(0 if scored and torch.get_num_threads() == 1 else 1)
assert os.waitpid(child, 0)[1] == 0
print("trained in both")
"""
SECONDS_UNTIL_HUNG = 300


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs forks")
def test_fork_after_a_run_trains_with_one_thread():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
        timeout=SECONDS_UNTIL_HUNG,
        check=False,
    )
    assert done.stdout == "trained in both\n", done.stderr
