"""Samples are scored a cacheful at a time, images as their convolutions read them best; the scores are those of a plain pass."""

import numpy as np
import pytest
import torch
from torch import nn

from unalike.core.model import Model
from unalike.core.task import find_task
from unalike.data.transforms import transform
from unalike.results import evaluation
from unalike.results.evaluation import SharedModel, rows_at_once, score


class Net(nn.Module):
    """Convolutions; with `view` it asks for activations that lie channel by channel."""

    def __init__(self, view=False):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4 * 36, 5)
        self.view = view

    def forward(self, x):
        h = self.norm(self.conv(x)).relu()
        return self.head(h.view(len(x), -1) if self.view else h.flatten(1))


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("count", [0, 1, 7, 40])
def test_scores_are_those_of_the_module(view, count, monkeypatch):
    monkeypatch.setattr(evaluation, "BYTES", 1)  # sixteen at a time
    torch.manual_seed(0)
    net, task = Net(view).eval(), find_task("classification")
    model, x, y = Model(net), torch.randn(count, 3, 8, 8), torch.arange(count) % 5
    found = score(task, SharedModel(model, model.params, model.buffers), x, y, np.arange(count), logits=True)
    with torch.no_grad():
        expected = net(x) if count else torch.zeros(0, 5)
        losses = nn.functional.cross_entropy(expected, y, reduction="none")
    np.testing.assert_allclose(found.logits, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.loss, losses, rtol=1e-4, atol=1e-5)
    assert found.client.tolist() == [*range(count)] and found.y.tolist() == y.tolist()


@pytest.mark.parametrize("view", [False, True])
def test_images_lie_as_convolutions_read_them_best_where_the_module_lets_them(view, monkeypatch):
    """Tried once for samples of a shape, whatever the transform did to them."""
    tried, runs, seen, forward = [], Model._runs, [], Net.forward
    monkeypatch.setattr(Model, "_runs", lambda *given: tried.append(1) or runs(*given))
    monkeypatch.setattr(Net, "forward", lambda net, x: seen.append(x.stride(1) == 1) or forward(net, x))
    model = Model(Net(view))
    predict = transform("normalise(mean=0.5, std=0.25)").before(SharedModel(model, model.params, model.buffers))
    for _ in range(3):
        predict(torch.randn(6, 3, 8, 8))
    assert seen[-1] is not view and len(tried) == 1


def test_rows_that_stay_in_the_cache():
    assert rows_at_once(torch.zeros(5, 3, 32, 32)) == 85 and rows_at_once(torch.zeros(5, 64)) == 4096
    assert rows_at_once(torch.zeros(2, 3, 224, 224)) == 16 and rows_at_once(torch.zeros(0, 3, 32, 32)) == 4096
    assert rows_at_once(torch.zeros(3, 0)) == 4096 and rows_at_once(torch.zeros(3, dtype=torch.int64)) == 4096
