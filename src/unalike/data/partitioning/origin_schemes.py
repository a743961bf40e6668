"""Schemes by the origin of samples: `natural`, `domains`, and `index_files` for a division made by another tool."""

from collections.abc import Mapping

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike._utils.nouns import OWNERS
from unalike._utils.spec import parse
from unalike.data.partitioning.partition_files import ClientIndices, read_fl_bench, read_indices
from unalike.data.partitioning.scheme import Division, by_value, registry

Columns = Mapping[str, np.ndarray]
CLIENT, SITE = "client", "site"
"""The words for a client: of a simulation whose data has no other, and of a federation."""


@registry.register("natural")
def natural(
    columns: Columns,
    held_out: np.ndarray,
    wanted: int | None,
    rng: np.random.Generator,
    *,
    column: str = "client",
    cluster: str | None = None,
    own_test: bool = True,
) -> Division:
    """The data set's own clients: one for each value of `column`, such as a writer, a hospital or a device.

    `clients=` below the number of clients draws that many at random; otherwise every sample is used once. `cluster` is the
    column of the clients' true clusters, for references that may know them. With `own_test` a client that has both training
    and test samples by a published division keeps it. The samples of any other client are divided by `split`, anew under each
    seed and stratified by outcome.

    Source: LEAF (Caldas et al. 2018).
    """
    names, rows = by_value(_column("natural", columns, column))
    if wanted is not None and wanted > len(names):
        raise UnalikeError(
            f"natural(column={column!r}): found clients={wanted}, the data has "
            f"{len(names)}; lower clients, leave it out, or name another partition"
        )
    clients = np.arange(len(names))
    if wanted is not None:
        clients = np.sort(rng.choice(len(names), wanted, replace=False))
    owned = [rows[k] for k in clients]

    # A client keeps its published test samples, unless it would have nothing to train on.
    test = []
    for mine in owned:
        is_test = held_out[mine]
        keeps_tests = own_test and not is_test.all()
        test.append(mine[is_test] if keeps_tests else mine[:0])

    clusters = None
    if cluster is not None:
        values = _column("natural", columns, cluster)
        numbers = np.unique(values, return_inverse=True)[1]
        clusters = numbers[[mine[0] for mine in owned]]
        for k, mine in zip(clients, owned):
            if (numbers[mine] != numbers[mine[0]]).any():
                raise UnalikeError(
                    f"natural(cluster={cluster!r}): the samples of client "
                    f"{names[k]} lie in several clusters, expected one; name "
                    "another column, or leave cluster out"
                )
    return Division(
        owned=owned,
        test=test,
        names=[str(names[k]) for k in clients],
        clusters=clusters,
        stratified=True,
    )


@registry.register("leave_one_out")
def leave_one_out(
    columns: Columns, seed: int, *, column: str = "client", client: str | None = None
) -> Division:
    """The owners of `natural`, of whom one never trains and is only tested, while all samples of the others train.

    Of K owners in the order of their names, the one with number seed mod K is left out, so that K seeds leave out each of them
    once; `client` names one for all seeds. Scores are those of a client that never trained: where a method trains personal models
    beside a shared one, or fine-tunes it, those of the shared one. A method without a model for such a client is refused.
    """
    names, rows = by_value(_column("leave_one_out", columns, column))
    texts = [str(name) for name in names]
    if len(texts) < 2 or client not in (None, *texts):
        fault = f"{len(texts)} owner" if client is None else f"client={client!r}"
        raise UnalikeError(
            f"leave_one_out(column={column!r}): found {fault}; expected one of two or more: "
            f"{', '.join(texts)}"
        )
    # The seeds go round the owners, unless one of them is named.
    if client is None:
        place = seed % len(texts)
        subject = f"one of the {len(texts)} clients, under each seed the next one, is"
    else:
        place = texts.index(client)
        subject = f"{client} is"
    test = [mine if k == place else mine[:0] for k, mine in enumerate(rows)]
    note = (
        f"{subject} left out of training and alone is tested; it has no personal model, so methods "
        "are judged by their shared ones"
    )
    return Division(rows, test, texts, notes=(note,), all_tests=True)


@registry.register("domains")
def domains(
    columns: Columns, wanted: int | None, rng: np.random.Generator, *, column: str = "domain"
) -> Division:
    """Feature skew by domain: the samples of each of D domains are divided evenly, at random, among K / D clients.

    If D does not divide K, the first domains have one client more. Every sample is used once. A client has the name of its
    domain, with a number if the domain has several clients.

    Source: FedLWS. Limit: without `clients=`, or with K = D, every domain is one client.
    """
    names, rows = by_value(_column("domains", columns, column))
    clients = len(names) if wanted is None else wanted
    if clients < len(names):
        raise UnalikeError(
            f"domains(column={column!r}): found clients={clients}, expected one or "
            f"more for each of {len(names)} domains "
            f"({', '.join(map(str, names[:8]))}); raise clients"
        )
    shares = [len(part) for part in np.array_split(np.arange(clients), len(names))]
    owned: list[np.ndarray] = []
    for row, share in zip(rows, shares):
        owned += np.array_split(rng.permutation(row), share)
    clusters = np.repeat(np.arange(len(names)), shares)
    return Division(owned, names=_numbered(names, shares), clusters=clusters)


@registry.register("index_files")
def index_files(samples: int, wanted: int | None, *, path: str) -> Division:
    """A division made by another tool: text files of sample numbers, or one JSON file, as `write_partition` writes them.

    Numbers count from 0 through the training samples and then the test samples. The samples of a client without test samples
    are divided by `split`; a client without validation samples gets a share `val`.
    """
    return _as_indexed("index_files", path, read_indices(path, samples), wanted)


@registry.register("fl_bench")
def fl_bench(samples: int, wanted: int | None, *, path: str) -> Division:
    """The division in FL-bench's `partition.pkl`: the file, or the folder of the data set that holds it.

    FL-bench numbers the published training samples and then the test samples, as here. Clients that it keeps for tests alone
    (`split: user`) have no training samples.

    Source: FL-bench (Tan et al.), generate_data.py.
    """
    return _as_indexed("fl_bench", path, read_fl_bench(path, samples), wanted)


def _as_indexed(
    scheme: str, path: str, clients: list[ClientIndices], wanted: int | None
) -> Division:
    """The division with these sample numbers."""
    if wanted not in (None, len(clients)):
        raise UnalikeError(
            f"{scheme}: {path} holds {len(clients)} clients, found clients={wanted}; leave it out"
        )
    return Division(
        owned=[np.concatenate([client.train, client.test, client.val]) for client in clients],
        test=[client.test for client in clients],
        val=[client.val for client in clients],
        names=[client.name for client in clients],
    )


def _column(scheme: str, columns: Columns, column: str) -> np.ndarray:
    if column not in columns:
        has = ", ".join(map(repr, columns)) or "none"
        raise UnalikeError(
            f"{scheme}: the data has no column {column!r} (columns: {has}); name one "
            f"of them with column=, or load the data with groups={{{column!r}: [one "
            f"value per sample]}}, a table with group={column!r}"
        )
    return columns[column]


def _numbered(names: np.ndarray, shares: list[int]) -> list[str]:
    """Name the clients of domain a `a-0`, `a-1`, ..., or `a` if it has one; always with numbers if a domain is called `a-0`."""
    numbered = []
    shortened = []
    for name, share in zip(names, shares):
        of_domain = [f"{name}-{i}" for i in range(share)]
        numbered += of_domain
        shortened += [str(name)] if share == 1 else of_domain
    is_unique = len(set(shortened)) == len(shortened)
    return shortened if is_unique else numbered


def client_noun(spec: str) -> str:
    """The word for a client by the spec of a partition: the column of the owners where one divides the data, else `client`.

    A column whose name is no noun, such as `educ`, has an `educ value` for each owner: it has no plural.
    """
    if not spec.startswith(("natural(", "leave_one_out(")):
        return CLIENT
    scheme, *_ = parse(spec)
    column = str(scheme.parameters.get("column", CLIENT))
    return column.lower() if column.lower() in OWNERS else f"{column} value"
