"""Amazon reviews of four kinds of products as bags of words (Blitzer et al. 2007; Chen et al. 2012)."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from unalike._utils.errors import UnalikeError, reading
from unalike.data.dataset import Dataset
from unalike.data.sources.registry import NAMED_BY, registry, searched

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

DOMAINS = ["books", "dvd", "electronics", "kitchen"]
CLASSES = ["negative", "positive"]
USUAL_FEATURES = 5000
"""The number of words that are counted by default."""
TRAINING_REVIEWS = 2000
"""The number of training reviews of each domain."""


class Reviews(NamedTuple):
    """Counts [N, D], labels [N], domains [N] as texts, and a mask of the test reviews [N]."""

    counts: "csr_matrix"
    labels: np.ndarray
    domains: np.ndarray
    is_test: np.ndarray


@registry.register("amazon_reviews")
def amazon_reviews(data_dir: Path | None, *, features: int = USUAL_FEATURES) -> Dataset:
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
    reviews = _reviews(data_dir)
    order = np.argsort(reviews.is_test, kind="stable")  # training reviews first
    train = int((~reviews.is_test).sum())
    x = reviews.counts[order]
    if features < x.shape[1]:
        # Chosen by the training reviews alone; the columns stay in their order.
        sums = np.asarray(x[:train].sum(0)).ravel()
        frequent = np.argsort(-sums, kind="stable")[:features]
        x = x[:, np.sort(frequent)]
    return Dataset.divided(
        name="amazon_reviews",
        x=torch.from_numpy(x.astype(np.float32).toarray()),
        y=reviews.labels[order],
        train=train,
        classes=CLASSES,
        groups={"domain": reviews.domains[order]},
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
        f"amazon_reviews: found no {' or '.join(READERS)} {searched(data_dir)}; put one "
        f"into the folder of data files ({NAMED_BY})"
    )


def _rows(arrays: Mapping[str, np.ndarray]) -> Reviews:
    """Read our own archive of compressed sparse rows."""
    from scipy.sparse import csr_matrix

    shape = (len(arrays["y"]), arrays["n_features"].item())
    entries = (arrays["counts"], arrays["indices"].astype(np.int32), arrays["indptr"])
    return Reviews(
        counts=csr_matrix(entries, shape),
        labels=arrays["y"],
        domains=arrays["domains"].astype(str)[arrays["domain"]],
        is_test=arrays["split"].astype(bool),
    )


def _columns(arrays: Mapping[str, np.ndarray]) -> Reviews:
    """Read the transposed matrix of Zhao et al., domain after domain; the first 2000 reviews of each domain train."""
    from scipy.sparse import csr_matrix

    entries = (arrays["xx_data"], (arrays["xx_col"], arrays["xx_row"]))
    x = csr_matrix(entries, arrays["xx_shape"].ravel()[::-1])[:, :USUAL_FEATURES]
    sizes = np.diff(arrays["offset"].ravel())[: len(DOMAINS)]
    count = sizes.sum()
    rank = np.concatenate([np.arange(size) for size in sizes])
    return Reviews(
        counts=x[:count],
        labels=(arrays["yy"].ravel()[:count] > 0).astype(np.int64),
        domains=np.repeat(DOMAINS, sizes),
        is_test=rank >= TRAINING_REVIEWS,
    )


READERS = {"amazon_reviews.npz": _rows, "amazon.npz": _columns}
