"""`score` in blocks, memory formats and threads gives the scores of one plain forward pass."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from unalike.core.model import Model
from unalike.core.tasks.registry import find_task
from unalike.data.transforms import transform
from unalike.loops import crew as compiled_loops
from unalike.metrics import scoring
from unalike.metrics.scoring import SharedModel, rows_at_once, score


class Net(nn.Module):
    """Convolutions; with `view` the module needs contiguous activations."""

    def __init__(self, view=False):
        super().__init__()
        self.conv, self.norm, self.head = (
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.Linear(4 * 36, 5),
        )
        self.view = view

    def forward(self, x):
        h = self.norm(self.conv(x)).relu()
        return self.head(h.view(len(x), -1) if self.view else h.flatten(1))


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("count", [0, 1, 7, 40])
def test_score_equals_the_module(view, count, monkeypatch):
    monkeypatch.setattr(scoring, "IMAGE_BYTES", 1)  # sixteen at a time
    torch.manual_seed(0)
    net, task = Net(view).eval(), find_task("classification")
    model, x, y = Model(net), torch.randn(count, 3, 8, 8), torch.arange(count) % 5
    found = score(
        task, SharedModel(model, model.params, model.buffers), x, y, np.arange(count), logits=True
    )
    with torch.no_grad():
        expected = net(x) if count else torch.zeros(0, 5)
        losses = nn.functional.cross_entropy(expected, y, reduction="none")
    np.testing.assert_allclose(found.logits, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.loss, losses, rtol=1e-4, atol=1e-5)
    assert found.client.tolist() == [*range(count)] and found.y.tolist() == y.tolist()


@pytest.mark.parametrize("view", [False, True])
def test_score_images_are_channels_last_if_the_module_allows(view, monkeypatch):
    """Channels-last is tried once for each shape of samples."""
    tried, runs, seen, forward = [], Model._runs, [], Net.forward
    monkeypatch.setattr(Model, "_runs", lambda *given: tried.append(1) or runs(*given))
    monkeypatch.setattr(
        Net, "forward", lambda net, x: seen.append(x.stride(1) == 1) or forward(net, x)
    )
    model = Model(Net(view))
    predict = transform("normalize(mean=0.5, std=0.25)").before(
        SharedModel(model, model.params, model.buffers)
    )
    for _ in range(3):
        predict(torch.randn(6, 3, 8, 8))
    assert seen[-1] is not view and len(tried) == 1


def test_rows_per_pass_fit_the_cache():
    assert (
        rows_at_once(torch.zeros(5, 3, 32, 32)) == 85 and rows_at_once(torch.zeros(5, 64)) == 4096
    )
    assert (
        rows_at_once(torch.zeros(2, 3, 224, 224)) == 16
        and rows_at_once(torch.zeros(0, 3, 32, 32)) == 4096
    )
    assert rows_at_once(torch.zeros(5, 784)) == 668
    assert (
        rows_at_once(torch.zeros(3, 0)) == 4096
        and rows_at_once(torch.zeros(3, dtype=torch.int64)) == 4096
    )


def test_score_threads_sharing_a_model_do_not_interfere():
    """Eight threads use different parameters with one module that also assigns a buffer."""

    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 3)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen = self.head.weight[0, 0]
            time.sleep(0.002)
            return self.head(x) + self.seen

    model, x = Model(Slow()), torch.randn(5, 3)
    values = [
        {"head.weight": torch.full((3, 3), float(k)), "head.bias": torch.zeros(3)}
        for k in range(40)
    ]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda v: SharedModel(model, v, model.buffers)(x), values))
    for k, logits in enumerate(found):
        torch.testing.assert_close(logits, k * x.sum(1, keepdim=True).expand(5, 3) + k)


@pytest.fixture
def one_thread_within():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_score_threads_equal_one_thread(monkeypatch, one_thread_within):
    """Threads give the same bits in the order of the samples, without gradients; an error in a thread is raised."""
    monkeypatch.setattr(scoring, "VECTOR_BYTES", 1)
    task, x, y = find_task("classification"), torch.randn(100, 6), torch.arange(100) % 5
    net, seen = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 5)), set()
    model = Model(net)
    predict = SharedModel(model, {n: p.requires_grad_() for n, p in model.params.items()}, {})

    def watched(some):
        seen.add(threading.get_ident())
        time.sleep(0.01)
        return predict(some)

    alone = score(task, watched, x, y, np.arange(100), logits=True)
    assert len(seen) == 1
    with compiled_loops.crew_of(3):
        together = score(task, watched, x, y, np.arange(100), logits=True)
        assert len(seen) == 4
        with pytest.raises(IndexError, match="out of bounds"):
            score(task, watched, x, y + 5, np.arange(100))
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            score(task, watched, x[:, :4], y, np.arange(100))
    for field in ("loss", "predicted", "logits"):
        np.testing.assert_array_equal(getattr(together, field), getattr(alone, field))
