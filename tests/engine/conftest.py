import sys
from pathlib import Path

import pytest
import torch

sys.path[:0] = [str(Path(__file__).parents[1] / "contract"), str(Path(__file__).parents[1] / "methods")]


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)
