"""Images, signals and series that are divided by nature: each client is a real person, sensor, place or role.

Their files are in the folder of data files or its folder `natural`; `natural.py` has the tables.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unalike._utils.errors import reading
from unalike.data.dataset import Dataset
from unalike.data.sources.arrays import read_npz
from unalike.data.sources.natural import file_of
from unalike.data.sources.published import mnist
from unalike.data.sources.registry import every_fifth, registry
from unalike.data.sources.table_files import read_table

MOST_BYTE = 255.0
"""The largest value of a stored pixel."""


@registry.register("smartwatch")
def smartwatch(data_dir: Path | None) -> Dataset:
    """2,369 windows of 10 subjects' smartwatches (Burns et al. 2018): one of 7 shoulder exercises; group "subject".

    A window of 100 steps of three accelerations and three rotations is an image [1, 100, 6], in units of the training windows'
    standard deviations. Windows of one `recording` are on one side of a split; `side` is the arm with the watch.
    """
    source = "the data of the Python package seglearn 1.2.5 (BSD), in windows of 100 steps that do not overlap"
    sha256 = "04f7117fc8a5a99524e29a46398c649afe6f5cce5d3dfc861e4d5cbe3931a7aa"
    found = _arrays("smartwatch", "smartwatch.npz", data_dir, source, sha256)
    groups = {name: found[name].astype(np.int64) for name in ("subject", "recording", "side")}
    test = every_fifth(found["y"], groups["recording"])
    training = found["x"][~test]
    scaled = (found["x"] - training.mean((0, 1))) / training.std((0, 1))
    return _divided("smartwatch", scaled[:, None], found, test, groups, unit="recording")


@registry.register("beijing_air")
def beijing_air(data_dir: Path | None) -> Dataset:
    """64,275 moments at 12 stations in Beijing, 2013 to 2017 (Zhang et al. 2017): PM2.5 / 100; group "station".

    Every sixth hour; the later moments of each station test.
    """
    source = (
        "Beijing Multi-Site Air-Quality Data of the UCI repository (CC BY 4.0), every sixth hour"
    )
    sha256 = "fc5c8fb26468c45a09b4eddd43d181a9452295e3f52672d7f1803372eca5d270"
    import pandas as pd

    path = file_of("beijing_air", "beijing_air.csv.gz", data_dir, source, sha256)
    table = pd.read_csv(path)
    table["moment"] = pd.to_datetime(table[["year", "month", "day", "hour"]])
    data = read_table(
        table,
        target="PM2.5 / 100",
        group="station",
        drop="year",
        split_by="moment",
        regression=True,
    )
    return replace(data, name="beijing_air")


@registry.register("gas_drift")
def gas_drift(data_dir: Path | None) -> Dataset:
    """6,697 measurements of 16 sensors in 8 months (Vergara et al. 2012): one of 6 gases; group "month".

    The sensors age, so that months differ. The 128 features are in standard deviations of the training samples.
    """
    source = "Gas Sensor Array Drift of the UCI repository (CC BY 4.0), months 1 to 6, 8 and 9"
    sha256 = "c4cc0c8c45a2973b26049b8cda8ce233aa40af87980da1afbe8348790253162d"
    found = _arrays("gas_drift", "gas_drift.npz", data_dir, source, sha256)
    test = every_fifth(found["y"])
    training = found["x"][~test]
    scaled = (found["x"] - training.mean(0)) / training.std(0)
    return _divided("gas_drift", scaled, found, test, {"month": found["batch"]})


@registry.register("pacs")
def pacs(data_dir: Path | None) -> Dataset:
    """9,991 pictures of 7 classes, 32x32 color (Li et al. 2017): photos, paintings, cartoons and sketches; group "domain".

    The same classes look otherwise in each domain: feature skew of pictures.
    """
    source = "PACS in 32x32 pixels (no licence stated)"
    sha256 = "dc8466fbaa1f5ff1396906684e4c1787d39ad1bfcf207e4bbc9ba67a00d91d82"
    found = _arrays("pacs", "pacs_32.npz", data_dir, source, sha256)
    channels_first = found["x"].transpose(0, 3, 1, 2) / np.float32(MOST_BYTE)
    domains = found["domains"][found["domain"]]
    return _divided(
        "pacs", channels_first, found, found["split"] == 1, {"domain": domains}, published=True
    )


@registry.register("omniglot")
def omniglot(data_dir: Path | None) -> Dataset:
    """4,840 drawings of 242 characters in 8 alphabets, 35x35 gray (Lake et al. 2015); groups "alphabet" and "drawer".

    Clients that are alphabets have no class in common. Each alphabet was drawn by 20 others.
    """
    source = "8 alphabets of Omniglot in 35x35 pixels (MIT)"
    sha256 = "be1ebe08d3972241ebdfaf69689041fc6a27a382d79227c40c9e22b64b123922"
    found = _arrays("omniglot", "omniglot_small.npz", data_dir, source, sha256)
    alphabets = found["alphabets"][found["alphabet"]]
    owners = np.array(
        [f"{alphabet} {drawer}" for alphabet, drawer in zip(alphabets, found["drawer"])]
    )
    images = found["x"][:, None] / np.float32(found["x"].max())
    groups = {"alphabet": alphabets, "drawer": owners}
    return _divided("omniglot", images, found, every_fifth(found["y"]), groups)


@registry.register("usps")
def usps(data_dir: Path | None) -> Dataset:
    """7,291 + 2,007 digits of American envelopes, 16x16 gray (Hull 1994): a second owner beside MNIST."""
    source = "USPS digits (no licence stated)"
    sha256 = "f070671c5d2aed7a65887a1b214cc09fdcb1ae9c618db1d7d897bc4f96a1e4c6"
    return replace(read_npz(file_of("usps", "usps.npz", data_dir, source, sha256)), name="usps")


@registry.register("mnist_writers")
def mnist_writers(data_dir: Path | None) -> Dataset:
    """MNIST with its 836 real writers (Yadav and Bottou 2019); groups "writer" and "series".

    The 539 writers of the training digits are others than the 297 of the test digits. Series 0 are employees of the Census
    Bureau, series 4 pupils.
    """
    source = "writer and series of each digit of MNIST, from QMNIST (BSD)"
    sha256 = "4f73dc177c0c5db5e82fac635f1dce481e58e855dfa405fe6859ad27c03aa644"
    found = _arrays("mnist_writers", "mnist_writers.npz", data_dir, source, sha256)
    groups = {
        name: np.concatenate([found[f"train_{name}"], found[f"test_{name}"]]).astype(np.int64)
        for name in ("writer", "series")
    }
    return replace(mnist(data_dir), name="mnist_writers", groups=groups)


def _arrays(
    name: str, file: str, data_dir: Path | None, source: str, sha256: str
) -> dict[str, np.ndarray]:
    """The arrays of a data set's file."""
    path = file_of(name, file, data_dir, source, sha256)
    with reading(path, "an archive of plain arrays"), np.load(path, allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


def _divided(
    name: str,
    x: np.ndarray,
    found: dict[str, np.ndarray],
    test: np.ndarray,
    groups: dict[str, np.ndarray],
    **more: Any,
) -> Dataset:
    """A data set of classes with its training samples first."""
    order = np.argsort(test, kind="stable")
    kind = np.int64 if np.issubdtype(x.dtype, np.integer) else np.float32
    return Dataset.divided(
        name=name,
        x=x[order].astype(kind),
        y=found["y"][order].astype(np.int64),
        train=int((~test).sum()),
        classes=found["classes"].tolist(),
        groups={key: values[order] for key, values in groups.items()},
        **{"published": False} | more,
    )
