"""Amazon reviews of four kinds of products as bags of words (Blitzer et al. 2007; Chen et al. 2012)."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from unalike._utils.errors import UnalikeError, reading
from unalike.data.dataset import Dataset
from unalike.data.sources.registry import NAMED_BY, registry, searched

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

DOMAINS = ["books", "dvd", "electronics", "kitchen"]
CLASSES = ["negative", "positive"]
WIDTH = 5000
TRAIN = 2000

Reviews: TypeAlias = "tuple[csr_matrix, np.ndarray, np.ndarray, np.ndarray]"
"""Counts [N, D], labels [N], domains [N] as texts, and a mask of the test reviews [N]."""


@registry.register("amazon_reviews")
def amazon_reviews(data_dir: Path | None, *, features: int = WIDTH) -> Dataset:
    """Positive and negative reviews of books, DVDs, electronics and kitchen appliances: float32 rows of word counts.

    27677 reviews (8000 train) with the group "domain"; the counts are as published, without scaling or logarithm.
    `features` keeps the columns with the largest sums over the training reviews (5000 columns take 0.55 GB).
    The file is `amazon_reviews.npz` (compressed sparse rows: indptr, indices, counts, y, domain, split, domains) or the
    `amazon.npz` of Zhao et al. (2018).

    Source: Blitzer et al. 2007; Chen et al. 2012.

    Raises `UnalikeError`, which says which file to put where, if there is none.
    """
    if features < 1:
        raise UnalikeError(
            f"amazon_reviews: found features={features}, expected at least one column"
        )
    x, y, domain, test = _reviews(data_dir)
    order, train = np.argsort(test, kind="stable"), int((~test).sum())
    x = x[order]
    if features < x.shape[1]:
        frequent = np.argsort(-np.asarray(x[:train].sum(0)).ravel(), kind="stable")[:features]
        x = x[:, np.sort(frequent)]
    rows = torch.from_numpy(x.astype(np.float32).toarray())
    return Dataset.divided(
        "amazon_reviews", rows, y[order], train, CLASSES, {"domain": domain[order]}
    )


def _reviews(data_dir: Path | None) -> Reviews:
    for name, convert in READERS.items():
        if data_dir is not None and (data_dir / name).is_file():
            path = data_dir / name
            with (
                reading(path, "an archive of sparse rows"),
                np.load(path, allow_pickle=False) as arrays,
            ):
                return convert(arrays)
    raise UnalikeError(
        f"amazon_reviews: found no {' or '.join(READERS)} {searched(data_dir)}; put one into the folder of data files "
        f"({NAMED_BY})"
    )


def _rows(arrays: Mapping[str, np.ndarray]) -> Reviews:
    from scipy.sparse import csr_matrix

    shape = (len(arrays["y"]), arrays["n_features"].item())
    x = csr_matrix((arrays["counts"], arrays["indices"].astype(np.int32), arrays["indptr"]), shape)
    return (
        x,
        arrays["y"],
        arrays["domains"].astype(str)[arrays["domain"]],
        arrays["split"].astype(bool),
    )


def _columns(arrays: Mapping[str, np.ndarray]) -> Reviews:
    """Read the transposed matrix of Zhao et al., domain after domain; the first 2000 reviews of each domain train."""
    from scipy.sparse import csr_matrix

    entries = (arrays["xx_data"], (arrays["xx_col"], arrays["xx_row"]))
    x = csr_matrix(entries, arrays["xx_shape"].ravel()[::-1])[:, :WIDTH]
    sizes = np.diff(arrays["offset"].ravel())[: len(DOMAINS)]
    rank = np.concatenate([np.arange(size) for size in sizes])
    return (
        x[: sizes.sum()],
        (arrays["yy"].ravel()[: sizes.sum()] > 0).astype(np.int64),
        np.repeat(DOMAINS, sizes),
        rank >= TRAIN,
    )


READERS = {"amazon_reviews.npz": _rows, "amazon.npz": _columns}
