"""Division of a data set, or of labels alone, among clients."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from unalike._utils.errors import UnalikeError, unknown, warn
from unalike._utils.keywords import check_keywords
from unalike._utils.option_types import check_kinds, check_whole
from unalike._utils.registry import Registry
from unalike._utils.seeds import generator
from unalike._utils.spec import Call, parse
from unalike.data.dataset import Dataset
from unalike.data.heterogeneity import label_counts
from unalike.data.partition_plan import PartitionPlan
from unalike.data.partitioning import feature_skew
from unalike.data.partitioning.apply_plan import apply_plan
from unalike.data.partitioning.hold_out import draw_tests, later_tests
from unalike.data.partitioning.scheme import Division, registry
from unalike.data.population import Population
from unalike.data.ragged import Ragged
from unalike.data.sources.load import load
from unalike.data.time_order import LATER, are_of_latest_units, count_of_tests, floor_of_share

ARTIFICIAL = (
    "no column says whose row is whose, so the clients are artificial; name the column of "
    "hospitals, writers or the like with --group, in Python group=, if there is one"
)
"""A note on the clients of a table without groups."""
DIVIDED_ANEW = (
    "the {n} test samples that {name} declares are divided anew with the training samples; to "
    "test on them, hold them out for the server with --split 1 --protocol server, in Python "
    "merge=False"
)
"""A note on a scheme that does not keep the data's division into training and test samples."""
DEFAULT_PARTITION = "dirichlet(alpha=0.1)"
"""The default partition of data without groups."""
DEFAULT_CLIENTS = 10
"""The default number of clients, if the scheme does not know it."""
DEFAULT_SPLIT = 0.75
"""The default training share of each client."""


def partition(
    data: Any,
    spec: str | None = None,
    clients: int | None = None,
    seed: int = 0,
    split: float | str | None = None,
    min_test: int = 0,
    merge: bool = True,
    val: float = 0.0,
    folds: int | None = None,
    **unknown_options: Any,
) -> Population:
    """Divide a data set among clients, and each client's samples into training, test and validation samples.

    Of a client's n samples, floor(split n), at least 1, train and the others test, unless the scheme says which samples test.
    They are shuffled; those of real owners (`natural`), and all samples of data with units or under `folds`, are stratified by
    outcome (`draw_tests`). Of data with a time, and with split="later", each client's later samples test (`later_tests`), the same
    ones under every seed. Then floor(val n) of the n training samples, never all, become validation samples, by time the later
    ones. Samples of one unit of the data are never divided. The same arguments give the same population.

    >>> partition(load("digits"), "dirichlet(alpha=0.1)", clients=20).sizes.sum()   # doctest: +SKIP
    1339

    Args:
        data: The data set, or what `load` makes one of.
        spec: A scheme, such as "dirichlet(alpha=0.1)", and optional feature changes:
            "dirichlet(alpha=0.1) + noise(level=0.1)". Feature changes alone divide IID. Without a spec, data that has groups is
            divided by the first of them (`natural`), other data by "dirichlet(alpha=0.1)", of a regression by "iid".
        clients: The number of clients: 10, or as many as the scheme knows of (`natural`, `domains`, `mixture`, `index_files`),
            unless given.
        seed: The seed of the division.
        split: The training share of each client's samples, 0.75 unless given; or "later", if the samples are in order of time and
            the last quarter of each client's samples is to test. Data with a time (`Dataset.time`) is always divided by it.
        min_test: The smallest number of test samples that a client may have.
        merge: Merge training and test samples first; False: divide training samples only, and leave `data.test` held out.
        val: The share of each client's training samples set apart for choices (early stopping, the best round, tuning), so
            that nothing is chosen on test samples. The test samples are the same for every `val`.
        folds: The number of folds of cross-validation instead of `split`: the seeds are folds, and every `folds` seeds are a
            repetition.
        unknown_options: No other keyword is taken; a misspelt one gets a suggestion.

    Returns:
        The clients. `.plan` is the record of the partition.

    Raises:
        UnalikeError: `data` is not a data set; the scheme is unknown; there are more clients than samples; a class is empty in
            a scheme that divides by classes; the data lacks a column; a client would have fewer than `min_test` test samples;
            `split` or `folds` is given and the scheme says which samples test, or `folds` beside a time; the published division
            divides a unit; or another constraint cannot be met. The message says which, and by how much.
    """
    known = [name for name in inspect.signature(partition).parameters if name != "unknown_options"]
    check_keywords("ua.partition", unknown_options, known)
    data = load(data)
    options = {
        "spec": spec,
        "split": split,
        "min_test": min_test,
        "merge": merge,
        "val": val,
        "folds": folds,
    }
    check_kinds(partition, options)

    # What is not given follows from the data and from the scheme.
    notes: list[str] = []
    if spec is None:
        is_table = data.encoding is not None and data.encoding.words is None
        if is_table and not data.owners:
            notes.append(ARTIFICIAL)
        spec = usual_partition(data)
    clients = usual_clients(spec) if clients is None else clients
    option, share = requested_share(split, folds)
    if split == LATER:
        data = data.in_order()
    if data.time is not None and folds is not None:
        raise UnalikeError(
            f"found {option} for data with a time: folds are drawn at random, so that later samples would train and earlier ones "
            "test; leave folds out, so that the later samples test, or read the data without its time (split_by=)"
        )
    if not 0 <= val < 1:
        raise UnalikeError(
            f"found val={val!r}, expected the share of the training samples to validate on, from 0 "
            "to below 1"
        )

    # The scheme divides the samples among the clients, and may say which of them test.
    y = (data.merged() if merge else data.train)[1]
    labels = data.outcomes[: len(y)]
    held_out = (np.arange(len(y)) >= len(data.train[1])) & data.published
    division = _divide(
        spec,
        labels=labels,
        clients=clients,
        seed=seed,
        columns={column: values[: len(y)] for column, values in data.groups.items()},
        held_out=held_out,
        classes=data.classes,
    )
    division = replace(division, notes=(*division.notes, *notes))
    _warn(division)
    # The reader has warned of its own notes.
    division = replace(division, notes=(*division.notes, *data.notes))
    has_tests = [len(rows) > 0 for rows in division.test or ()]
    if held_out.any() and not any(has_tests):
        # The run alone notes it: merging is usual for data of benchmarks.
        note = DIVIDED_ANEW.format(n=held_out.sum(), name=data.name)
        division = replace(division, notes=(*division.notes, note))
    tests_are_known = division.test is not None and (division.all_tests or all(has_tests))
    if option and tests_are_known:
        remedy = ", or write own_test=False" if "own_test" in canonical(spec) else ""
        raise UnalikeError(
            f"found {option} beside {spec}, which keeps each client's own test samples; leave it "
            f"out{remedy}"
        )

    # Each client's samples are divided into tests and others, and the others into validation and training samples.
    units = data.units[: len(y)]
    time = None if data.time is None else data.time[: len(y)]
    draw: Callable[..., list[np.ndarray]] | None = None
    if time is not None:
        draw = partial(later_tests, moments=time)
    elif division.stratified or data.unit is not None or folds is not None:
        draw = partial(draw_tests, labels=labels, seed=seed, folds=folds)
    if draw is not None:
        draw = partial(draw, units=units, split=share, min_test=min_test)
    train, test = _split(division, share, min_test, seed, draw)
    train, validation = _set_validation_apart(
        division, train, val, seed, None if data.unit is None else units, time
    )
    if data.unit is not None and np.isin(units[train.values], units[test.values]).any():
        raise UnalikeError(
            f"the test samples that {spec} keeps divide units of {data.unit!r}; keep each unit on "
            "one side, or leave unit out"
        )
    plan = PartitionPlan(
        spec=canonical(spec),
        clients=len(train),
        seed=seed,
        split=share,
        val_share=val,
        merge=merge,
        data=data.name,
        fingerprint=data.fingerprint,
        named=division.names,
        clusters=_clusters(spec, division),
        train=train,
        test=test,
        val=validation,
        counts=label_counts(y, data.classes, train),
        notes=division.notes,
    )
    return apply_plan(plan, data)


def refuse_new_partition(
    what: str,
    remedy: str,
    partition: str | None,
    val: float,
    clients: int | None = None,
    split: float | str | None = None,
    folds: int | None = None,
) -> None:
    """Raise `UnalikeError` if options of a new partition are given although `what` is divided already."""
    arguments = {
        "partition": partition,
        "clients": clients,
        "split": split,
        "val": val or None,
        "folds": folds,
    }
    words = [f"{name}={value!r}" for name, value in arguments.items() if value is not None]
    if words:
        raise UnalikeError(
            f"found {', '.join(words)} beside {what}: it would change nothing; leave it out, or "
            f"{remedy}"
        )


def usual_partition(data: Dataset, otherwise: str = DEFAULT_PARTITION) -> str:
    """Return the partition of data for which none is named: by its first group, or without one `otherwise` (a regression: IID).

    Units are no groups for that: a client that is one unit would have no test samples.
    """
    column = next(iter(data.owners), None)
    if column is None:
        return "iid" if data.train[1].is_floating_point() else otherwise
    return f"natural(column={column!r})"


def check_scheme(spec: str) -> None:
    """Raise `UnalikeError` for a spec with an unknown name, an unknown option, or an option of another type."""
    scheme, changes = read(spec)
    registry.check(scheme)
    for change in changes:
        feature_skew.registry.check(change)


def usual_clients(spec: str) -> int | None:
    """Return the default number of clients of `spec`; None if the scheme knows the number."""
    call, _ = read(spec)
    parameters = inspect.signature(registry[call.name]).parameters
    return DEFAULT_CLIENTS if "clients" in parameters else None


def partition_labels(
    spec: str,
    labels: Any,
    clients: int | None = None,
    seed: int = 0,
    groups: Mapping[str, Any] | None = None,
) -> list[np.ndarray]:
    """Divide samples by their labels alone, for use with another library.

    >>> [len(rows) for rows in partition_labels("iid", [0, 1, 2, 0, 1], clients=2)]
    [3, 2]

    Args:
        spec: The scheme. Feature changes need samples: use `partition`.
        labels: The labels, as an array or a list.
        clients: The number of clients, as in `partition`.
        seed: The seed of the division.
        groups: The origin of each sample by column, for `natural` and `domains`.

    Returns:
        The sample indices of each client. If the scheme says which samples test, these are among them.

    Shapes:
        labels: [N]. groups: [N] per column. Returned: K int64 arrays [n_k].

    Raises:
        UnalikeError: A feature change is named, or an error of `partition` occurs.
    """
    array = np.asarray(labels)
    columns = {column: np.asarray(values) for column, values in (groups or {}).items()}
    for column, values in columns.items():
        if values.shape != array.shape:
            raise UnalikeError(
                f"column {column!r} has shape {list(values.shape)}, expected one value per label"
            )
    _, changes = read(spec)
    if changes:
        raise UnalikeError(
            f"{spec!r}: {changes[0].name} changes samples, found labels only; use `partition`"
        )
    division = _divide(spec, array, clients, seed, columns, np.zeros(array.shape, bool), None)
    _warn(division)
    return [np.asarray(rows, np.int64) for rows in division.owned]


def read(spec: str) -> tuple[Call, list[Call]]:
    """Parse a spec into its scheme (`iid` if it names none) and its feature changes."""
    calls = parse(feature_skew.registry.spelled(registry.spelled(spec)))
    schemes = []
    changes = []
    for call in calls:
        if call.name in registry:
            schemes.append(call)
        elif call.name in feature_skew.registry:
            changes.append(call)
        else:
            raise unknown("partition", call.name, [*registry, *feature_skew.registry])
    if len(schemes) > 1:
        raise UnalikeError(
            f"{spec!r} divides samples in {len(schemes)} ways; expected one scheme, "
            f"such as {schemes[0]}, and beside it only changes of samples "
            f"({', '.join(feature_skew.registry)})"
        )
    scheme = schemes[0] if schemes else Call("iid")
    return scheme, changes


def canonical(spec: str) -> str:
    """Write a spec with all its parameters and defaults: `noise` becomes "iid() + noise(level=0.1, deviation=False)"."""
    scheme, changes = read(spec)
    calls = [_completed(scheme, registry)]
    calls += [_completed(change, feature_skew.registry) for change in changes]
    return " + ".join(str(call) for call in calls)


def _completed(call: Call, table: Registry) -> Call:
    """The call with the defaults of all parameters that it leaves out."""
    options = {}
    for p in inspect.signature(table[call.name]).parameters.values():
        if p.kind is p.KEYWORD_ONLY or p.default is not p.empty:
            options[p.name] = call.parameters.get(p.name, p.default)
    return Call(call.name, options)


def _divide(
    spec: str,
    labels: np.ndarray,
    clients: int | None,
    seed: int,
    columns: Mapping[str, np.ndarray],
    held_out: np.ndarray,
    classes: Sequence[str] | None,
) -> Division:
    """Divide samples by the scheme of a spec, which is given what its parameters name. Raises `UnalikeError`."""
    call, _ = read(spec)
    if labels.ndim != 1 or not len(labels) or labels.dtype.kind not in "biuf":
        raise UnalikeError(
            f"found labels of shape {list(labels.shape)} and dtype {labels.dtype}, expected N "
            "numbers, N > 0"
        )
    parameters = inspect.signature(registry[call.name]).parameters
    check_whole(0, seed=seed)
    if clients is not None or "clients" in parameters:
        check_whole(1, clients=clients)
    if clients is not None and clients > len(labels):
        raise UnalikeError(
            f"found {clients} clients and {len(labels)} samples, expected a sample for each; lower "
            "clients"
        )
    if "labels" in parameters and classes is not None:
        _check_classes(labels, classes, call)
    # What a scheme may ask for; the names are those of `scheme.py`.
    offered = {
        "samples": len(labels),
        "labels": labels,
        "columns": columns,
        "held_out": held_out,
        "clients": clients,
        "wanted": clients,
        "seed": seed,
        "rng": generator(seed, "partition"),
    }
    inputs = {name: value for name, value in offered.items() if name in parameters}
    division = registry.build(call, **inputs)
    return division if isinstance(division, Division) else Division(division)


def _warn(division: Division) -> None:
    """Warn of what the scheme notes; a run notes it again, so that its report shows it."""
    for note in division.notes:
        warn(note)


def _check_classes(labels: np.ndarray, classes: Sequence[str], call: Call) -> None:
    counts = np.bincount(labels.astype(np.int64), minlength=len(classes))
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        names = ", ".join(repr(classes[c]) for c in empty[:5])
        raise UnalikeError(
            f"{call.name} divides by classes, and {len(empty)} of {len(classes)} have "
            f"no sample ({names}); leave them out of the data set's classes and "
            "renumber the labels, or use 'iid'"
        )


def _clusters(spec: str, division: Division) -> list[int] | None:
    """Number the true clusters of the clients, which the scheme and the feature changes define together."""
    _, changes = read(spec)
    numberings = [] if division.clusters is None else [division.clusters]
    for call in changes:
        change: feature_skew.Change = feature_skew.registry.build(call)
        numbers = change.clusters(len(division.owned))
        if numbers is not None:
            numberings.append(numbers)
    if not numberings:
        return None
    # Clients are of one cluster if they are so in every numbering.
    columns = np.stack(numberings, 1)
    _, clusters = np.unique(columns, axis=0, return_inverse=True)
    return clusters.reshape(-1).tolist()


def requested_share(split: float | str | None, folds: int | None) -> tuple[str, float]:
    """The options of the division of each client's samples, in words, and its training share. Raises `UnalikeError`."""
    if folds is not None:
        check_whole(2, folds=folds)
        if split is not None:
            raise UnalikeError(
                f"found split={split} beside folds={folds}, which test one part in {folds}; leave one "
                "of them out"
            )
        return f"folds={folds}", 1 - 1 / folds
    if split is None:
        return "", DEFAULT_SPLIT
    if split == LATER:
        return f"split={split!r}", DEFAULT_SPLIT
    if isinstance(split, str) or not 0 < split <= 1:
        raise UnalikeError(
            f"found split={split!r}, expected the training share of each client, above 0 and at most 1, or {LATER!r}"
        )
    return f"split={split}", split


def _split(
    division: Division,
    split: float,
    min_test: int,
    seed: int,
    draw: Callable[..., list[np.ndarray]] | None,
) -> tuple[Ragged, Ragged]:
    """Divide each client's samples into training and test samples; `draw` says which test, None for shuffled samples."""
    train, test = [], []
    tests_of_scheme = division.test or [rows[:0] for rows in division.owned]
    # The validation samples of the scheme belong to neither side.
    rows_of_clients = division.owned
    if division.val is not None:
        rows_of_clients = [
            rows[~np.isin(rows, validation)]
            for rows, validation in zip(division.owned, division.val)
        ]

    # Tests are chosen for all clients at once, as clients may share units; none where the scheme has tests.
    is_test = None
    if draw is not None:
        to_draw = [
            rows[:0] if len(tests) or division.all_tests else rows
            for rows, tests in zip(rows_of_clients, tests_of_scheme)
        ]
        is_test = draw(to_draw)

    for k, (rows, tests) in enumerate(zip(rows_of_clients, tests_of_scheme)):
        if len(tests) or division.all_tests:
            first = rows[~np.isin(rows, tests)]
            rest = tests
        elif is_test is not None:
            first = rows[~is_test[k]]
            rest = rows[is_test[k]]
        else:
            cut = len(rows) - count_of_tests(len(rows), split, min_test)
            first, rest = np.split(generator(seed, "split", k).permutation(rows), [cut])
        has_no_training = len(rows) > 0 and not len(first) and not len(tests)
        if len(rest) < min_test or has_no_training:
            raise UnalikeError(
                f"client {k} has {len(rows)} samples, expected {min_test + 1} for "
                f"min_test={min_test} and one to train on; lower min_test or "
                "clients, or raise the scheme's smallest size"
            )
        train.append(first)
        test.append(rest)
    return Ragged.of(train), Ragged.of(test)


def draw_validation(
    rows: np.ndarray,
    share: float,
    seed: int,
    client: int,
    units: np.ndarray | None = None,
    time: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a client's validation samples, floor(share n) of its n training samples but never all; returns them and the rest.

    With `units` (the unit of every sample of the data) these are shares of the client's units; with `time` (the moment of every
    sample of the data) the later ones validate.
    """
    members = rows if units is None else np.unique(units[rows])
    count = 0
    if len(members):
        count = min(floor_of_share(share, len(members)), len(members) - 1)
    if time is not None:
        validates = are_of_latest_units(time[rows], None if units is None else units[rows], count)
        return rows[validates], rows[~validates]
    order = generator(seed, "validation", client).permutation(members)
    validation, training = np.split(order, [count])
    if units is None:
        return validation, training
    validates = np.isin(units[rows], validation)
    return rows[validates], rows[~validates]


def _set_validation_apart(
    division: Division,
    train: Ragged,
    share: float,
    seed: int,
    units: np.ndarray | None,
    time: np.ndarray | None,
) -> tuple[Ragged, Ragged]:
    """Return the remaining training samples and the validation samples: the scheme's own, or a share drawn for each client."""
    if division.val is None and not share:
        return train, Ragged.empty(len(train))
    training, validating = [], []
    for k, rows in enumerate(train):
        validation = rows[:0] if division.val is None else division.val[k]
        if not len(validation) and share:
            validation, rows = draw_validation(rows, share, seed, k, units, time)
        training.append(rows)
        validating.append(validation)
    return Ragged.of(training), Ragged.of(validating)
