"""Buffers that are no amounts: vectors of spectral norms follow the averaged weights, and a run notes what it cannot know."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

import unalike as ua


def clients():
    rng = np.random.default_rng(0)
    made = []
    for k in range(4):
        x = rng.normal(size=(24, 6)) + 2 * rng.normal(size=6)
        y = np.arange(24) % 3
        made.append(ua.ClientData(train=(x[:18], y[:18]), test=(x[18:], y[18:]), name=f"c{k}"))
    return made


class Net(nn.Module):
    """Two layers with a spectral norm each, and a head."""

    def __init__(self, normalized):
        super().__init__()
        self.body = nn.Sequential(
            normalized(nn.Linear(6, 5)),
            nn.ReLU(),
            nn.Unflatten(1, (1, 5)),
            normalized(nn.ConvTranspose1d(1, 2, 3)),
            nn.Flatten(),
        )
        self.head = nn.Linear(14, 3)

    def forward(self, x):
        return self.head(self.body(x))


def scaled_first(layer):
    """A parametrization before the spectral norm, which is what the vectors belong to."""

    class Squared(nn.Module):
        def forward(self, w):
            return w * w.abs()

    nn.utils.parametrize.register_parametrization(layer, "weight", Squared())
    return parametrizations.spectral_norm(layer)


def by_output(layer):
    return parametrizations.spectral_norm(layer, n_power_iterations=2)


NORMALIZED = [parametrizations.spectral_norm, spectral_norm, scaled_first, by_output]


def norms(module):
    """The largest singular value of each weight as a forward pass in evaluation uses it."""
    module.eval()(torch.randn(2, 6))
    dims = {nn.Linear: 0, nn.ConvTranspose1d: 1}
    found = []
    for layer in module.modules():
        for kind, dim in dims.items():
            if isinstance(layer, kind) and layer is not module.head:
                matrix = layer.weight.detach().movedim(dim, 0).flatten(1)
                found.append(torch.linalg.matrix_norm(matrix, 2).item())
    return found


@pytest.mark.parametrize("buffers", ["average", "first", "local"])
@pytest.mark.parametrize("normalized", NORMALIZED)
def test_weights_of_a_spectral_norm_have_norm_1_after_rounds(normalized, buffers):
    torch.manual_seed(0)
    run = ua.run(
        "fedavg", clients(), rounds=4, model=Net(normalized), buffers=buffers, work=ua.Work(lr=0.5)
    )
    assert norms(run.module()) == pytest.approx([1, 1], abs=2e-3)


@pytest.mark.parametrize("spec", ["fedavgm", "scaffold", "fedadam", "median", "fedprox + lws"])
def test_vectors_follow_the_weights_whatever_the_server_does(spec):
    torch.manual_seed(0)
    model = Net(parametrizations.spectral_norm)
    run = ua.run(spec, clients(), rounds=3, model=model, work=ua.Work(lr=0.5))
    assert norms(run.module()) == pytest.approx([1, 1], abs=2e-3)


def test_loss_is_that_of_exact_vectors():
    torch.manual_seed(0)
    people = clients()
    model = Net(parametrizations.spectral_norm)
    run = ua.run("fedavg", people, rounds=5, model=model, work=ua.Work(lr=0.5, epochs=3))
    exact = run.module().eval()
    for layer in exact.modules():
        if isinstance(layer, parametrizations._SpectralNorm):
            continue
        if nn.utils.parametrize.is_parametrized(layer):
            norm = layer.parametrizations.weight[0]
            norm._power_method(
                norm._reshape_weight_to_matrix(layer.parametrizations.weight.original), 2000
            )
    x = torch.cat([person.test[0] for person in people])
    y = torch.cat([person.test[1] for person in people])
    with torch.no_grad():
        loss = nn.functional.cross_entropy(exact(x), y).item()
    assert run.history.last["loss"] == pytest.approx(loss, rel=1e-3)


def test_vectors_are_not_sent_by_clients():
    def bytes_up(normalized):
        items = ua.wire("fedavg", Net(normalized))
        return sum(item.bytes for item in items if item.direction == "up")

    assert bytes_up(parametrizations.spectral_norm) == bytes_up(lambda layer: layer)


class Tracked(nn.Module):
    """A network with a buffer that training changes as `change` says."""

    def __init__(self, change):
        super().__init__()
        self.change = change
        self.register_buffer("kept", torch.eye(6))
        self.register_buffer("direction", torch.nn.functional.normalize(torch.ones(6), dim=0))
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        if self.training:
            self.direction = self.change(self.direction, x.detach())
        return self.head(self.norm(x @ self.kept) * self.direction)


def turned(u, x):
    return nn.functional.normalize(x.T @ (x @ u), dim=0)


def least(low, x):
    return torch.minimum(low, x.amin(0))


@pytest.mark.parametrize("change", [turned, least])
def test_a_run_notes_buffers_of_which_it_does_not_know_how_they_are_averaged(change):
    with pytest.warns(UserWarning, match="the model's direction is averaged over clients"):
        run = ua.run("fedavg", clients(), rounds=1, model=Tracked(change))
    [note] = [note for note in run.warnings if "averaged over clients" in note]
    assert "kept" not in note and "running_mean" not in note and "buffers='local'" in note


@pytest.mark.parametrize(
    ("change", "buffers"), [(lambda u, x: u, "average"), (turned, "local"), (turned, "first")]
)
def test_buffers_that_are_not_averaged_are_not_noted(change, buffers):
    run = ua.run("fedavg", clients(), rounds=1, model=Tracked(change), buffers=buffers)
    assert not [note for note in run.warnings if "averaged" in note]
