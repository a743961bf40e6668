"""Schemes by labels and by sizes: `iid`, `dirichlet`, `pathological`, `shards`, `classes`, `quantity`, `clusters`, `halves`."""

import math

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike._utils.option_types import check_count, check_positive
from unalike.data.partitioning.scheme import (
    Division,
    by_class,
    check_smallest,
    deal,
    draw_until_large,
    registry,
)


@registry.register("iid")
def iid(samples: int, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Equal shares of a random permutation; sizes differ by one at most. The reference for all other schemes."""
    return np.array_split(rng.permutation(samples), clients)


@registry.register("dirichlet")
def dirichlet(
    labels: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    *,
    alpha: float,
    balance: bool = True,
    min_size: int | None = None,
) -> list[np.ndarray]:
    """Label skew: each class is divided in proportions p ~ Dir(alpha 1_K).

    With `balance`, p_k = 0 for a client that already holds N / K samples, then p is normalized, and the whole division is
    drawn again until the smallest client holds `min_size` samples: 10 as in NIID-Bench; PFLlib takes 40. With
    `balance=False` neither is done unless `min_size` is given, as in FedLWS; clients may stay empty. Every sample is used
    once.

    Source: Yurochkin et al. 2019; Hsu et al. 2019; Li et al. 2022, NIID-Bench.
    Limit: alpha -> infinity gives every client the global mixture of labels; alpha -> 0 gives each class to one client.
    """
    name = f"dirichlet(alpha={alpha})"
    check_positive(name, alpha=alpha)
    if min_size is None:
        min_size = 10 if balance else 0
    check_smallest(name, min_size, clients, len(labels))
    rows = by_class(labels)
    lengths = [len(row) for row in rows]
    counts = draw_until_large(
        name, min_size, lambda: _dirichlet_counts(lengths, clients, rng, alpha, balance)
    )
    return deal(rows, counts, rng)


def _dirichlet_counts(
    lengths: list[int], clients: int, rng: np.random.Generator, alpha: float, balance: bool
) -> np.ndarray | None:
    """Draw counts [C, K] once; None if no client is left to take a class, so that all its proportions are zero."""
    counts = np.zeros((len(lengths), clients), np.int64)
    quota = sum(lengths) / clients
    for row, length in zip(counts, lengths):
        p = rng.dirichlet(np.full(clients, alpha))
        if balance:
            p = p * (counts.sum(0) < quota)
        if not p.sum() > 0:
            return None
        row[:] = _proportional(p / p.sum(), length)
    return counts


def _proportional(shares: np.ndarray, total: int) -> np.ndarray:
    """Return whole numbers [K] in proportion to `shares` [K], which add up to `total`."""
    cuts = np.floor(np.cumsum(shares)[:-1] * total).astype(np.int64)
    return np.diff(cuts, prepend=0, append=total)


@registry.register("pathological")
def pathological(
    labels: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    *,
    classes: int,
    balance: bool = True,
    least: int = 40,
) -> list[np.ndarray]:
    """Each client holds `classes` classes, and groups of clients hold the same ones.

    Class c goes to the first ceil(K classes / C) clients that hold fewer than `classes`: in equal parts n, or without
    `balance` in parts drawn from U[max(n / 10, least / C), n). The last client takes the rest. Every sample is used once;
    the last clients may hold fewer classes.

    Source: PFLlib. Limit: classes = C gives equal shares of every class.

    Raises `UnalikeError` where the rule would leave a class to no client.
    """
    check_count("pathological", 0, least=least)
    rows = by_class(labels)
    if not 1 <= classes <= len(rows):
        raise UnalikeError(
            f"pathological: found classes={classes}, expected 1 to the {len(rows)} classes of the "
            "data"
        )
    # How many more classes each client may hold; a class goes to the first clients that may.
    quota = np.full(clients, classes)
    counts = np.zeros((len(rows), clients), np.int64)
    holders = math.ceil(clients * classes / len(rows))
    for c, row in enumerate(rows):
        members = np.flatnonzero(quota)[:holders]
        if not len(members):
            raise UnalikeError(
                f"pathological(classes={classes}) leaves {len(rows) - c} of "
                f"{len(rows)} classes to no client: each class goes to {holders} "
                f"of {clients} clients; raise classes, or choose clients so that "
                f"clients * classes / {len(rows)} is a whole number"
            )
        counts[c, members] = _parts(len(row), len(members), rng, balance, least / len(rows))
        quota[members] -= 1
    return deal(rows, counts, rng)


def _parts(
    total: int, holders: int, rng: np.random.Generator, balance: bool, least: float
) -> np.ndarray:
    """The sizes of the parts of a class of `total` samples, [holders]; the last part is what the others leave."""
    equal = total // holders
    if balance:
        sizes = np.full(holders, equal)
    else:
        smallest = min(equal, int(max(total / holders / 10, least)))
        sizes = rng.integers(smallest, max(equal, smallest + 1), holders)
    sizes[-1] = total - sizes[:-1].sum()
    return sizes


@registry.register("shards")
def shards(
    labels: np.ndarray, clients: int, rng: np.random.Generator, *, per_client: int = 2
) -> list[np.ndarray]:
    """The samples, sorted by label, are cut into K per_client shards; each client draws `per_client` of them.

    Every sample is used once. If the shards divide the classes evenly, a shard holds one class, and a client at most
    `per_client` classes.

    Source: McMahan et al. 2017. Limit: per_client -> N / K is `iid`.

    Raises `UnalikeError` for more shards than samples.
    """
    check_count("shards", per_client=per_client)
    total = clients * per_client
    if total > len(labels):
        raise UnalikeError(
            f"shards(per_client={per_client}) with {clients} clients cuts {total} "
            f"shards, found {len(labels)} samples: lower per_client or clients"
        )
    by_label = np.concatenate([rng.permutation(row) for row in by_class(labels)])
    pieces = np.array_split(by_label, total)
    hands = rng.permutation(total).reshape(clients, per_client)
    owned = []
    for hand in hands:
        owned.append(np.concatenate([pieces[number] for number in hand]))
    return owned


@registry.register("classes")
def classes(
    labels: np.ndarray, clients: int, rng: np.random.Generator, *, k: int
) -> list[np.ndarray]:
    """Each client holds k classes: client i holds class i mod C and k - 1 others, drawn at random.

    Each class is divided evenly among the clients that hold it; every sample is used once.

    Source: Li et al. 2022, NIID-Bench (#label = k). Limit: k = C is `iid` class by class.

    Raises `UnalikeError` where no client holds some class, which can happen with fewer clients than classes only.
    """
    rows = by_class(labels)
    if not 1 <= k <= len(rows):
        raise UnalikeError(
            f"classes: found k={k}, expected 1 to the {len(rows)} classes of the data"
        )
    # Which client holds which class: the first classes in turn, so that none is left out where there are clients enough.
    holds = np.zeros((len(rows), clients), bool)
    for i in range(clients):
        first = i % len(rows)
        others = np.delete(np.arange(len(rows)), first)
        holds[first, i] = True
        holds[rng.choice(others, k - 1, replace=False), i] = True
    has_holder = holds.any(1)
    if not has_holder.all():
        raise UnalikeError(
            f"classes(k={k}) with {clients} clients leaves {(~has_holder).sum()} of "
            f"{len(rows)} classes to no client; choose {len(rows)} clients or more, or "
            "raise k"
        )
    # Each class in parts that differ by one sample at most, as `array_split` makes them.
    counts = np.zeros(holds.shape, np.int64)
    for c, row in enumerate(rows):
        parts = np.array_split(row, holds[c].sum())
        counts[c, holds[c]] = [len(part) for part in parts]
    return deal(rows, counts, rng)


@registry.register("quantity")
def quantity(
    samples: int, clients: int, rng: np.random.Generator, *, beta: float = 0.5, min_size: int = 10
) -> list[np.ndarray]:
    """Only the sizes differ: they are N Dir(beta 1_K), drawn again until the smallest is at least `min_size`.

    Every sample is used once. Source: Li et al. 2022, NIID-Bench. Limit: beta -> infinity is `iid`.
    """
    name = f"quantity(beta={beta})"
    check_positive(name, beta=beta)
    check_smallest(name, min_size, clients, samples)
    sizes = draw_until_large(
        name, min_size, lambda: _proportional(rng.dirichlet(np.full(clients, beta)), samples)
    )
    return np.split(rng.permutation(samples), np.cumsum(sizes)[:-1])


@registry.register("clusters")
def clusters(
    labels: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    *,
    groups: int | tuple[int, ...] = 3,
    size: int | None = None,
) -> Division:
    """Clusters of clients, each with a range of the classes, such as digits, upper case and lower case.

    `groups` are the widths of the G ranges, such as (10, 26, 26) for the 62 classes of EMNIST; a single number makes as many
    ranges of equal width. Client k of K belongs to cluster floor(k G / K). A cluster's samples are divided evenly among its
    clients, at most `size` for each; without `size` every sample is used once.

    Source: conditioning on local statistics. Limit: groups=1 is `iid`.
    """
    rows = by_class(labels)
    if size is not None:
        check_count("clusters", size=size)
    if isinstance(groups, int):
        check_count("clusters", groups=groups)
        widths = [len(part) for part in np.array_split(np.arange(len(rows)), groups)]
    else:
        widths = list(groups)
    if sum(widths) != len(rows) or min(widths) < 1 or len(widths) > clients:
        raise UnalikeError(
            f"clusters: found groups={groups!r}, expected at most one group per client "
            f"({clients}) and widths that add up to the {len(rows)} classes of the "
            "data, such as (10, 26, 26) for 62"
        )
    cluster = np.arange(clients) * len(widths) // clients
    owned: list[np.ndarray] = []
    for g, end in enumerate(np.cumsum(widths)):
        # All samples of the cluster's classes, mixed, in equal parts for its clients.
        mixed = rng.permutation(np.concatenate(rows[end - widths[g] : end]))
        parts = np.array_split(mixed, (cluster == g).sum())
        owned += [part[:size] for part in parts]
    return Division(owned, clusters=cluster)


@registry.register("halves")
def halves(labels: np.ndarray, clients: int, rng: np.random.Generator) -> Division:
    """Three groups of clients of equal size: with the first half of the classes, with the second half, and with all classes.

    Client k of K belongs to group floor(3 k / K), and the groups are the `clusters`. All clients hold the same number of samples,
    the largest that both halves suffice for; every sample is used at most once. A client's classes are as frequent as in the data.

    Source: the FedLWS paper, figure 5, with 12 clients. Limit: with halves of N / 2 samples and 3 groups of K / 3 clients, each
    holds N / K samples and every sample is used.

    Raises `UnalikeError` for fewer than 3 clients or 2 classes, or too few samples for one each.
    """
    rows = by_class(labels)
    if clients < 3 or len(rows) < 2:
        raise UnalikeError(
            f"halves: found {clients} clients and {len(rows)} classes, expected 3 and 2 or more"
        )
    half = (len(rows) + 1) // 2
    group = np.arange(clients) * 3 // clients
    with_first, with_second, with_all = np.bincount(group)
    first = rng.permutation(np.concatenate(rows[:half]))
    second = rng.permutation(np.concatenate(rows[half:]))

    # A half serves its own clients, and those with all classes in its share of the data; the scarcer half sets the size.
    first_share = len(first) / len(labels)
    second_share = len(second) / len(labels)
    size_by_first = len(first) / (with_first + with_all * first_share)
    size_by_second = len(second) / (with_second + with_all * second_share)
    size = int(min(size_by_first, size_by_second))
    if not size:
        raise UnalikeError(
            f"halves: {len(labels)} samples are too few for {clients} clients: lower clients"
        )

    # The beginning of each half is mixed for the clients with all classes; the rest is for the half's own clients.
    from_first = round(size * with_all * first_share)
    from_second = size * with_all - from_first
    mixed = rng.permutation(np.concatenate([first[:from_first], second[:from_second]]))
    parts = [
        (first[from_first:], with_first),
        (second[from_second:], with_second),
        (mixed, with_all),
    ]
    owned = []
    for part, holders in parts:
        owned += [part[i * size : (i + 1) * size] for i in range(holders)]
    return Division(owned, clusters=group)
