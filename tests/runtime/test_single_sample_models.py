"""DP-SGD refuses models that have no gradient for each sample by itself, and says what a large delta means."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unalike as ua

X = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
PRIVATE = "dp_sgd(clip=1, noise_multiplier=1)"


def private(model, method=PRIVATE):
    y = torch.arange(20) % 2
    people = [
        ua.ClientData(train=(X[:16], y[:16]), test=(X[:4], y[:4])),
        ua.ClientData(train=(X[20:], y)),
    ]
    return ua.run(method, people, rounds=1, model=model, progress=False)


class Hidden(nn.Module):
    """A hidden layer that `change` changes."""

    def __init__(self, change):
        super().__init__()
        self.body = nn.Linear(8, 5)
        self.change = change
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(torch.relu(self.change(self.body(x))))


class InTraining(nn.Module):
    """Centers a batch in training alone."""

    def forward(self, h):
        return h - h.mean(0) if self.training else h


class Sequence(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells = kind(4, 5, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.cells(x.reshape(len(x), 2, 4))[0][:, -1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (nn.BatchNorm1d(5, track_running_stats=False), "depends on the others of its batch"),
        (lambda h: F.batch_norm(h, None, None, training=True), "cannot take one sample"),
        (lambda h: h / h.norm(dim=0), "depends on the others of its batch"),
        (lambda h: torch.softmax(h @ h.T, 1) @ h, "depends on the others of its batch"),
        (InTraining(), "depends on the others of its batch"),
    ],
)
def test_model_that_looks_at_a_batch_as_a_whole_is_refused(change, message):
    with pytest.raises(
        ua.UnalikeError, match=f"{message}.*dp_sgd takes the gradient of each sample"
    ):
        private(Hidden(change))


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
def test_layer_without_gradients_of_single_samples_is_refused(kind):
    with pytest.raises(ua.UnalikeError, match=r"no gradients of single samples.*write nn\.LSTM"):
        private(Sequence(kind))


@pytest.mark.parametrize(
    "model",
    [
        Sequence(nn.LSTM),
        Hidden(nn.GroupNorm(1, 5)),
        Hidden(nn.Dropout(0.5)),
        Hidden(nn.LayerNorm(5)),
    ],
)
def test_other_models_train_privately(model):
    assert len(private(model).history.rows) == 2


@pytest.mark.parametrize("method", ["dp_sgd(noise_multiplier=1, delta={})", "client_dp(delta={})"])
def test_delta_above_a_half_is_refused(method):
    with pytest.raises(ua.UnalikeError, match=r"delta=0\.9.*less than or equal to 0.5"):
        private("linear", method.format(0.9))


@pytest.mark.parametrize(
    ("delta", "is_noted"), [(0.5, True), (1 / 16, True), (0.01, False), (1e-5, False)]
)
def test_delta_that_allows_to_publish_a_sample_is_noted(delta, is_noted):
    run = private("linear", f"dp_sgd(noise_multiplier=1, delta={delta})")
    assert (
        any("is not below 1 / 16, the training samples" in note for note in run.notes) == is_noted
    )
