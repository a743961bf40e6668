"""Samples that occur several times: in training and test, within the training samples, at several clients, and windows of a series
that overlap. A model is right about what it has memorized, so scores on such samples say too much.
"""

import numpy as np
import torch
from torch import Tensor

from unalike.core.inputs import Inputs, is_one_tensor, row_count
from unalike.core.nests import tensors_of
from unalike.data.ragged import Ragged

LEAST_SHARE = 0.01
"""Shares of copies below this are not noted."""
MOST_VALUES = 2**26
"""Of samples with more values than this in all, so many are looked at, at equal distances."""
KEY_VALUES = 64
"""Values of a sample, at equal distances, that its first key is made of; samples with the same one are compared as a whole."""
ROWS_AT_ONCE = 4096
"""Samples that are read as a whole at a time."""
MOST_CHANCE_TWINS = 0.01
"""Where a sample has more twins than this by chance, as of few categories, copies say nothing."""
TELLING_VALUES = 16
"""Values of a sample that are taken as independent."""
PROBED_SAMPLES = 1000
"""Samples of which it is found how often values repeat by chance."""
PROBED_TESTS = 200
"""Test samples that are looked at for windows that overlap."""
PROBED_VALUES = 2**17
"""Values of the training samples that they are compared with."""
MOST_PLACES = 32
"""Places by which windows are moved at most, and half their length; those that are moved further share little."""
LEAST_SHARE_OF_WINDOWS = 0.05
"""Least share of test samples that overlap with a training sample, from which on it is noted."""


def leak_notes(x: Inputs, train: Ragged, test: Ragged) -> list[str]:
    """Sentences about copies among clients' samples, and about windows that overlap, with numbers.

    Samples are copies if their inputs are the same, bit by bit. Nothing is said of data with few possible samples, such as three
    columns of yes and no, where copies occur by chance.

    Args:
        x: The inputs of all samples.
        train: The indices of each client's training samples.
        test: The indices of each client's test samples.
    """
    every = _distance(x)
    rows = train.values.astype(np.int64)[::every]
    clients = np.repeat(np.arange(len(train)), train.sizes)[::every]
    tests = np.unique(test.values).astype(np.int64)[::every]
    samples, first = np.unique(rows, return_index=True)
    if not len(samples) or _twins_by_chance(x, samples) > MOST_CHANCE_TWINS:
        return []
    keys, keys_of_tests = _keys((x, samples), (x, tests))
    tested = _tested(keys, keys_of_tests, "the clients' test samples")
    # A division that keeps copies on one side makes repeated samples harmless.
    kept_together = len(tests) > 0 and not tested
    repeated = [] if kept_together else _repeated(keys, clients[first])
    return [*tested, *repeated, *_overlapping(x, samples, tests)]


def server_leak_notes(x: Inputs, train: Ragged, server: Inputs) -> list[str]:
    """Sentences about the inputs of the server's test samples that are copies of training samples; arguments as in `leak_notes`."""
    samples = np.unique(train.values.astype(np.int64)[:: _distance(x)])
    if not len(samples) or _twins_by_chance(x, samples) > MOST_CHANCE_TWINS:
        return []
    keys, keys_of_server = _keys((x, samples), (server, np.arange(row_count(server))))
    return _tested(keys, keys_of_server, "the server's test samples")


def _distance(x: Inputs) -> int:
    """The distance of the samples that are looked at, so that they do not have too many values in all."""
    values = sum(t.numel() for t in tensors_of(x))
    return max(1, -(-values // MOST_VALUES))


def _tested(train: np.ndarray, tests: np.ndarray, name: str) -> list[str]:
    """A sentence about test samples that train, too."""
    known = int(_among(tests, train).sum())
    if not known or known < LEAST_SHARE * len(tests):
        return []
    return [
        f"{known} of {len(tests)} of {name} ({known / len(tests):.0%}) have the same inputs as a training sample: their scores "
        "show what was memorized; take the copies out, or keep samples that belong together on one side (unit= of a table)"
    ]


def _repeated(keys: np.ndarray, clients: np.ndarray) -> list[str]:
    """A sentence about training samples that occur several times. What a partition gives to several clients is one sample."""
    distinct, number, times = np.unique(keys, return_inverse=True, return_counts=True)
    if len(keys) == len(distinct) or len(keys) - len(distinct) < LEAST_SHARE * len(keys):
        return []
    owners = np.unique(np.stack([number, clients]), axis=1)[0]
    shared = int((np.bincount(owners, minlength=len(distinct)) > 1).sum())
    at_several = f", {shared} of them at several clients" if shared else ""
    return [
        f"{int((times > 1).sum())} of {len(distinct)} different training inputs occur several times (up to {times.max()})"
        f"{at_several}: test samples that are drawn at random from such data have copies in training"
    ]


def _overlapping(x: Inputs, train: np.ndarray, tests: np.ndarray) -> list[str]:
    """A sentence about samples that are windows of a series, of which those that test overlap with those that train."""
    if not is_one_tensor(x) or not x.is_floating_point() or not len(tests):
        return []
    tests = tests[_spread(len(tests), PROBED_TESTS)]
    train = train[_spread(len(train), max(1, PROBED_VALUES // x[0].numel()))]
    for axis in range(1, x.dim()):
        moves = range(1, min(x.shape[axis] // 2, MOST_PLACES) + 1)
        if not len(moves) or _halves_repeat(x, train, axis):
            continue
        overlaps = {move: _continued(x, train, tests, axis, move) for move in moves}
        known = int(np.any([*overlaps.values()], axis=0).sum())
        if known and known >= LEAST_SHARE_OF_WINDOWS * len(tests):
            least = min(move for move, found in overlaps.items() if found.any())
            return [
                f"{known} of {len(tests)} test samples looked at overlap with a training sample, which has the same values moved "
                f"by {least} or more places, as windows of a series do: their scores show what was memorized; let later windows "
                "test: --split later, in Python split='later', for samples in order of time; leave out those that overlap at the "
                "border, as in ClientData(train=(x[:n], y[:n]), test=(x[n + overlap:], y[n + overlap:]))"
            ]
    return []


def _halves_repeat(x: Tensor, train: np.ndarray, axis: int) -> bool:
    """Whether a half of a sample has twins by chance, so that it says nothing that another sample has it."""
    length = x.shape[axis]
    halves = [x.narrow(axis, first, length // 2) for first in (0, length - length // 2)]
    return max(_twins_by_chance(half, train) for half in halves) > MOST_CHANCE_TWINS


def _continued(x: Tensor, train: np.ndarray, tests: np.ndarray, axis: int, move: int) -> np.ndarray:
    """Whether each test sample is a training sample moved by so many places, forwards or backwards."""
    length = x.shape[axis] - move
    begin, end = x.narrow(axis, 0, length), x.narrow(axis, move, length)
    is_later = _among(_hashed(begin, tests, KEY_VALUES), _hashed(end, train, KEY_VALUES))
    is_earlier = _among(_hashed(end, tests, KEY_VALUES), _hashed(begin, train, KEY_VALUES))
    # what is constant is the same wherever it is moved to
    chosen = torch.from_numpy(tests)
    varies = []
    for part in (begin, end):
        flat = part[chosen].flatten(1)
        varies.append((flat != flat[:, :1]).any(1).numpy(force=True))
    return (is_later & varies[0]) | (is_earlier & varies[1])


def _twins_by_chance(x: Inputs, samples: np.ndarray) -> float:
    """The number of other samples that have the inputs of one by chance: n prod_j c_j over the values j that tell most.

    c_j is the chance that two samples have the same value j. Only `TELLING_VALUES` values count, as if they were independent:
    the columns of one category are not. Copies count once.
    """
    probed = torch.from_numpy(samples[_spread(len(samples), PROBED_SAMPLES)])
    columns = []
    for values in tensors_of(x):
        rows = values[probed].flatten(1)
        columns.append(
            rows[:, _spread(rows.shape[1], KEY_VALUES)].numpy(force=True).astype(np.float64)
        )
    table = np.concatenate(columns, 1)
    if table.shape[1] > 1:
        table = np.unique(table, axis=0)
    count = len(table)
    twins = float(len(samples))
    if count < 2:
        return twins
    same = []
    for column in table.T:
        times = np.unique(column, return_counts=True)[1]
        same.append(float((times * (times - 1)).sum()) / (count * (count - 1)))
    return twins * float(np.prod(sorted(same)[:TELLING_VALUES]))


def _keys(*sources: tuple[Inputs, np.ndarray]) -> list[np.ndarray]:
    """A number for each sample of several (inputs, rows): equal inputs have equal numbers, others equal ones by accident alone."""
    keys = np.concatenate([_hashed(x, rows, KEY_VALUES) for x, rows in sources])
    _, number, times = np.unique(keys, return_inverse=True, return_counts=True)
    is_doubtful = times[number] > 1
    first = 0
    parts = []
    for x, rows in sources:
        doubtful = is_doubtful[first : first + len(rows)]
        part = keys[first : first + len(rows)]
        part[doubtful] += _hashed(x, rows[doubtful], None)
        parts.append(part)
        first += len(rows)
    return parts


def _hashed(x: Inputs, rows: np.ndarray, most: int | None) -> np.ndarray:
    """A number for each of these samples from `most` of its values, or from all of them (None)."""
    total = np.zeros(len(rows), np.int64)
    rng = np.random.default_rng(0)
    for values in tensors_of(x):
        width = values[0].numel()
        places = _spread(width, most or width)
        factors = rng.integers(-(2**63), 2**63, len(places), np.int64) | 1
        for first in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[first : first + ROWS_AT_ONCE]
            flat = values[torch.from_numpy(some)].flatten(1)
            words = flat.view(torch.int32) if flat.dtype == torch.float32 else flat
            # sums that overflow begin anew, as hashes do
            total[first : first + len(some)] += words[:, places].long().numpy(force=True) @ factors
    return total


def _among(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Whether each value is one of the others."""
    ordered = np.sort(others)
    places = np.searchsorted(ordered, values).clip(max=len(ordered) - 1)
    return ordered[places] == values


def _spread(count: int, most: int) -> np.ndarray:
    """At most so many numbers of 0, ..., count - 1, at equal distances."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
