"""Batches drawn for many clients at once equal those that NumPy draws for one client after another."""

import numpy as np
import pytest

from unalike._utils import seeds
from unalike.core.work import Batches, Work
from unalike.data.ragged import Ragged
from unalike.engine import batch_schedule
from unalike.engine.batch_schedule import BatchSchedule
from unalike.loops import crew as compiled_loops

pytest.importorskip("numba")


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    monkeypatch.setattr(batch_schedule, "MIN_CLIENTS_FOR_LOOPS", 1)


def alone(work, rows, ids, number, purpose, *path):
    """The batches by definition: drawn by NumPy, client by client."""
    for client in ids:
        words = [number, int.from_bytes(purpose.encode()), *path, client]
        yield work.batches(rows[client], np.random.default_rng(words))


@pytest.mark.parametrize("number", [0, 7, 2**31, 2**40 + 5])
@pytest.mark.parametrize("purpose", ["batches", "batches of phase 1", "x"])
@pytest.mark.parametrize(
    "work", [Work(batch_size=7), Work(epochs=3, batch_size=None), Work(steps=11, batch_size=4)]
)
def test_batch_schedule_drawn_equals_numpy(number, purpose, work):
    rng = np.random.default_rng(number)
    sizes = [0, 1, 2, 3, 4, 5, 64, 65, *rng.integers(0, 300, 40).tolist()]
    rows = Ragged.of([rng.integers(0, 10**6, n) for n in sizes])
    ids = rng.permutation(len(sizes)).tolist()
    found = BatchSchedule.drawn(work, rows, ids, number, purpose, 2**33, 1)
    known = [*alone(work, rows, ids, number, purpose, 2**33, 1)]
    assert [b.sizes for b in found] == [b.sizes for b in known]
    assert [b.rows.tolist() for b in found] == [b.rows.tolist() for b in known]


@pytest.mark.parametrize(
    "values", [np.arange(9), np.arange(9) + 2**40, np.broadcast_to(np.int32(0), 9)]
)
def test_batch_schedule_drawn_accepts_any_row_array(values):
    values = np.asarray(values)
    values.flags.writeable = False
    rows = Ragged(values, np.array([0, 4, 9]))
    found = BatchSchedule.drawn(Work(batch_size=2), rows, [1, 0], 3, "batches", 5)
    assert [b.rows.tolist() for b in found] == [
        b.rows.tolist() for b in alone(Work(batch_size=2), rows, [1, 0], 3, "batches", 5)
    ]


def test_batch_schedule_without_numba_is_the_same(monkeypatch):
    rows = Ragged.of([range(40), range(40, 45)])
    drawn = BatchSchedule.drawn(Work(epochs=2, batch_size=3), rows, [0, 1], 1, "batches", 0)
    monkeypatch.setattr(compiled_loops, "loops", lambda _: None)
    plain = BatchSchedule.drawn(Work(epochs=2, batch_size=3), rows, [0, 1], 1, "batches", 0)
    assert (
        plain.rows.tolist() == drawn.rows.tolist() and plain.sizes.tolist() == drawn.sizes.tolist()
    )


def test_batch_schedule_of_list_of_arrays_equals_work_batches():
    rows = [np.arange(5), np.arange(5, 8)]
    [own] = BatchSchedule.drawn(Work(batch_size=2), rows, [1], 0, "batches", 4)
    assert own.rows.tolist() == work_of(rows[1], 4).rows.tolist()


def work_of(rows, round):
    return Work(batch_size=2).batches(rows, seeds.generator(0, "batches", round, 1))


def test_batch_schedule_entries_are_each_clients_batches():
    given = BatchSchedule.of(
        [
            Batches(np.array([4, 2, 9]), (2, 1)),
            Batches(np.zeros(0, np.int64), ()),
            Batches(np.array([7]), (1,)),
        ]
    )
    assert [own.rows.tolist() for own in given] == [[4, 2, 9], [], [7]]
    assert [b.tolist() for b in given[0]] == [[4, 2], [9]] and next(iter(given[-1])).tolist() == [7]
    assert (
        len(BatchSchedule.of([])) == 0
        and len(BatchSchedule.nothing(3)) == 3
        and not any(len(own) for own in BatchSchedule.nothing(3))
    )


@pytest.mark.parametrize("clients", [2, 200])
@pytest.mark.parametrize(
    "n, epochs, steps, sizes",
    [
        (25, 2, None, (10, 10, 10, 10)),
        (20, 1, None, (10, 10)),
        (7, 2, None, (7, 7)),
        (25, 1, 3, (10, 10, 10)),
        (0, 1, None, ()),
    ],
)
def test_drop_last_leaves_out_the_smaller_batch_of_each_epoch(n, epochs, steps, sizes, clients):
    work = Work(epochs=epochs, steps=steps, batch_size=10, drop_last=True)
    assert work.steps_for(n) == len(sizes) and work.sizes_for(n) == sizes
    rows = Ragged.ranges(np.arange(clients) * n, np.full(clients, n))
    schedule = BatchSchedule.drawn(work, rows, range(clients), 0, "batches", 3)
    for client in (0, clients - 1):
        drawn = work.batches(rows[client], seeds.generator(0, "batches", 3, client))
        assert drawn.sizes == sizes
        for batch, size in zip(drawn, sizes, strict=True):
            assert len(set(batch.tolist()) & set(rows[client].tolist())) == size
        start, end = schedule.ends[client : client + 2]
        assert np.array_equal(schedule.rows[start:end], drawn.rows)


def test_drop_last_without_a_smaller_batch_changes_nothing():
    plain, dropping = (Work(epochs=3, batch_size=10, drop_last=drop) for drop in (False, True))
    one, other = (work.batches(30, seeds.generator(0, "batches")) for work in (plain, dropping))
    assert np.array_equal(one.rows, other.rows) and one.sizes == other.sizes
