"""A client's batches, fetched a few at a time."""

import numpy as np
import pytest
import torch

import unalike as ua
from unalike.core.model import Model
from unalike.core.work import Batches
from unalike.engine import batch_schedule
from unalike.engine.batch_schedule import LazyBatches

X, Y = torch.arange(40.0).reshape(20, 2), torch.arange(20)
ROWS = Batches(np.array([7, 3, 19, 0, 3, 8, 1]), (3, 3, 1))


@pytest.mark.parametrize("at_once", [1, 3 * 8, 6 * 8, 2**23])
def test_lazy_batches_equal_rows_for_any_fetch_size(monkeypatch, at_once):
    monkeypatch.setattr(batch_schedule, "FETCHED_BYTES", at_once)
    taken = []

    def take(x, index):
        taken.append(len(index))
        return x[index]

    batches = LazyBatches(X, Y, ROWS, take)
    assert [b.y.tolist() for b in batches] == [[7, 3, 19], [0, 3, 8], [1]]
    assert all(torch.equal(b.x, X[b.y]) for b in batches)
    assert len(batches) == 3 and batches[-1].y.tolist() == [1]
    assert taken[:3] in ([3, 3, 1], [6, 1, 6], [7, 7, 7])
    assert max(taken) * 8 <= max(at_once, 3 * 8)


def test_lazy_batches_transform_gets_place_of_batch(monkeypatch):
    monkeypatch.setattr(batch_schedule, "FETCHED_BYTES", 6 * 8)
    batches = LazyBatches(X, Y, ROWS, lambda x, index: x[index], lambda x, place: x + 100 * place)
    assert [(b.x - X[b.y]).unique().tolist() for b in batches] == [[0], [100], [200]]


def test_lazy_batches_without_rows_are_empty():
    assert not [*LazyBatches(X, Y, Batches(np.zeros(0, np.int64), ()), lambda x, index: x[index])]


def test_model_rows_images_are_channels_last():
    images, index = torch.randn(9, 3, 4, 5), torch.tensor([4, 0, 4])
    plain = Model(
        torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.Flatten(), torch.nn.Linear(12, 2))
    )
    laid = plain.channels_last(images[:2])
    assert torch.equal(laid.layout.rows(images, index), images[index]) and torch.equal(
        plain.layout.rows(images, index), images[index]
    )
    assert laid.layout.rows(images, index).is_contiguous(memory_format=torch.channels_last)
    assert plain.layout.rows(images, index).is_contiguous()
    assert torch.equal(laid.layout.rows(Y, index), Y[index])


def test_transform_draws_the_same_for_any_fetch_size(monkeypatch):
    people = [ua.ClientData(train=(torch.randn(n, 1, 6, 6), torch.arange(n) % 2)) for n in (11, 4)]

    def weights(at_once):
        monkeypatch.setattr(batch_schedule, "FETCHED_BYTES", at_once)
        work = ua.Work(batch_size=3, epochs=2, lr=0.1)
        what = {"model": "linear", "rounds": 2, "work": work, "transform": "crop(padding=1) + flip"}
        return (
            ua.run("fedala", people, executor="loop", progress=False, **what).module().state_dict()
        )

    assert all(
        torch.equal(a, b) for a, b in zip(weights(1).values(), weights(2**23).values(), strict=True)
    )
