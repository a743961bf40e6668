import sys
from pathlib import Path

import pytest
import torch

here = Path(__file__).parent
sys.path[:0] = [str(here), str(here.parent / "federation")]


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)
