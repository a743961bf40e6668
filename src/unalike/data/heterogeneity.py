"""Label counts [K, C], and measures of heterogeneity from them and from sizes [K].

The measures leave out clients without samples.
"""

import numpy as np
from torch import Tensor

from unalike.data.ragged import Ragged


def label_counts(y: Tensor, classes: list[str] | None, owned: Ragged) -> np.ndarray:
    """Count each client's samples of each class: int64 [K, C]; [K, 0] for regression (`classes` is None)."""
    width = len(classes or ())
    clients = len(owned)
    if not width:
        return np.zeros((clients, 0), np.int64)
    # A cell of the table for each sample: numbered by client, then by class.
    labels = y.cpu().numpy().astype(np.int64)[owned.values]
    cells = owned.owners * width + labels
    return np.bincount(cells, minlength=clients * width).reshape(clients, width)


def label_distributions(counts: np.ndarray) -> np.ndarray:
    """Return the label distributions of the K' clients that have samples, [K', C]."""
    counts = counts[counts.sum(1) > 0]
    return counts / counts.sum(1, keepdims=True)


def entropy(p: np.ndarray) -> np.ndarray:
    """Return the entropy in nats along the last axis, with 0 log 0 = 0.

    Not `scipy.stats.entropy`, which normalizes p again and so changes the last digits of recorded measures.
    """
    logarithms = np.log(np.where(p > 0, p, 1))
    return -(p * logarithms).sum(-1)


def js_divergence(counts: np.ndarray) -> np.ndarray:
    """Return the Jensen-Shannon divergence between each client's labels and all clients' labels, in bits, [K'].

    JS(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2 (Lin 1991): 0 for equal distributions, 1 for disjoint ones.
    """
    p = label_distributions(counts)
    q = label_distributions(counts.sum(0, keepdims=True))
    divergence = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
    return np.maximum(0, divergence) / np.log(2)


def total_variation(counts: np.ndarray) -> float:
    """Return the mean over pairs of clients of sum_c |p_ic - p_jc| / 2: 0 if all are equal, 1 if no two share a label.

    Sorting each class makes it K log K instead of K^2: the i-th smallest of K values enters (2 i - K + 1) times.
    """
    p = np.sort(label_distributions(counts), axis=0)
    clients = len(p)
    if clients < 2:
        return 0.0
    signs = 2 * np.arange(clients) - clients + 1
    return float(signs @ p.sum(1) / (clients * (clients - 1)))


def effective_classes(counts: np.ndarray) -> np.ndarray:
    """Return exp(entropy) of each client's labels, [K']: C if all classes are equally frequent, 1 for a single class."""
    return np.exp(entropy(label_distributions(counts)))


def top_share(counts: np.ndarray) -> np.ndarray:
    """Return the share of each client's most frequent class, [K']."""
    return label_distributions(counts).max(1)


def gini(sizes: np.ndarray) -> float:
    """Return the Gini coefficient of the sizes: 0 if they are equal, (K - 1) / K if one client has everything."""
    clients = len(sizes)
    total = sizes.sum()
    if not total:
        return 0.0
    signs = 2 * np.arange(clients) - clients + 1
    return float(signs @ np.sort(sizes) / (clients * total))


def summary(sizes: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Return all measures by name; for regression (`counts` [K, 0]) those of the sizes only."""
    sizes_of_owners = sizes[sizes > 0]
    ratio = 1.0
    if len(sizes_of_owners):
        ratio = float(sizes_of_owners.max() / sizes_of_owners.min())
    measures = {
        "smallest": float(sizes.min()),
        "largest": float(sizes.max()),
        "largest / smallest": ratio,
        "Gini of sizes": gini(sizes),
    }
    # Labels of a regression have no counts, and measures of labels no meaning.
    if counts.sum():
        measures["top-class share"] = float(top_share(counts).mean())
        measures["JS to all (bits)"] = float(js_divergence(counts).mean())
        measures["pairwise TV"] = total_variation(counts)
        measures["effective classes"] = float(effective_classes(counts).mean())
    return measures
