"""Batch norms with padding, and modules as functions of their parameters."""

import pytest
import torch
from every_method import SIZES
from simulation import Clients, Simulation, mlp, same
from torch import nn

from unalike.core.model import Model
from unalike.core.norm_layers import STATISTICS, WeightedBatchNorm


@pytest.mark.parametrize(
    "norm, shape",
    [
        (nn.BatchNorm1d, (6, 4)),
        (nn.BatchNorm1d, (6, 4, 5)),
        (nn.BatchNorm2d, (6, 4, 3, 2)),
        (nn.SyncBatchNorm, (6, 4)),
    ],
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": None},
        {"affine": False},
        {"track_running_stats": False},
        {"momentum": 0.3, "eps": 0.1},
    ],
)
def test_weighted_batch_norm_with_padding_equals_torch_norm_on_real_rows(norm, shape, options):
    """float64, 1e-10, twice in a row; 3 rows of padding with huge values; gradients too."""
    theirs = norm(shape[1], **options).double()
    module = nn.Sequential(norm(shape[1], **options).double())
    gen = torch.Generator().manual_seed(0)
    if theirs.affine:
        with torch.no_grad():
            theirs.weight.copy_(torch.rand(shape[1], generator=gen))
        module[0].load_state_dict(theirs.state_dict())
    model = Model(module)
    buffers, padded_buffers = dict(model.buffers), dict(model.buffers)
    for _ in range(2):
        x = torch.randn(shape, generator=gen, dtype=torch.float64).requires_grad_()
        padded = torch.cat(
            [x.detach(), torch.full((3, *shape[1:]), 1e4, dtype=torch.float64)]
        ).requires_grad_()
        weight = torch.tensor([1.0] * 6 + [0.0] * 3)
        expected = theirs(x)
        plain = model(model.params, x, buffers=buffers, training=True)
        found = model(model.params, padded, buffers=padded_buffers, training=True, weight=weight)
        torch.testing.assert_close(plain.logits, expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.logits[:6], expected, rtol=1e-10, atol=1e-10)
        a, b = (
            torch.autograd.grad(out.sin().sum(), at)[0]
            for out, at in ((expected, x), (found.logits[:6], padded))
        )
        torch.testing.assert_close(b[:6], a, rtol=1e-9, atol=1e-10)
        assert not b[6:].any()
        buffers, padded_buffers = plain.buffers, found.buffers
        for name, value in theirs.named_buffers():
            for mine in (buffers, padded_buffers):
                torch.testing.assert_close(mine["0." + name], value, rtol=1e-10, atol=1e-10)
                assert mine["0." + name].dtype == value.dtype
    x = x.detach()
    torch.testing.assert_close(
        model(model.params, x, buffers=buffers).logits, theirs.eval()(x), rtol=1e-10, atol=1e-10
    )


def test_weighted_batch_norm_of_one_row_gives_bias_and_keeps_its_statistics():
    """Variance 0: normalized to 0, the bias comes out; the running statistics stay (there is no unbiased variance)."""
    model = Model(nn.Sequential(nn.BatchNorm1d(3)))
    out = model(model.params, torch.tensor([[1.0, 2, 3]]), buffers=model.buffers, training=True)
    assert out.logits.tolist() == [[0, 0, 0]]
    assert out.buffers["0.running_mean"].tolist() == [0, 0, 0] and out.buffers[
        "0.running_var"
    ].tolist() == [1, 1, 1]
    assert isinstance(model._training.module[0], WeightedBatchNorm) and isinstance(
        model.module(model.params, model.buffers)[0], nn.BatchNorm1d
    )


class Activated(nn.BatchNorm1d):
    """A norm and more."""

    def forward(self, x):
        return super().forward(x).relu()


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_subclass_with_own_forward_is_left_as_it_is(training):
    module = nn.Sequential(nn.Linear(4, 5), Activated(5), nn.Linear(5, 3))
    model, x = Model(module), torch.randn(6, 4)
    found = model(model.params, x, buffers=model.buffers, training=training)
    torch.testing.assert_close(found.logits, module.train(training)(x))
    torch.testing.assert_close(found.buffers, dict(module.named_buffers()))


class Frozen(nn.Module):
    """Its norms stay in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.norm(self.body(x)).relu())

    def train(self, mode=True):
        super().train(mode)
        for m in self.modules():
            if isinstance(m, nn.BatchNorm1d):
                m.eval()


def test_batch_norm_in_evaluation_mode_keeps_its_buffers_in_training():
    module = Frozen()
    module.norm.running_mean += 1
    loop, batched = (
        Simulation("fedavg", module, Clients.random(SIZES), executor=executor, batch_size=4)
        for executor in ("loop", "batched")
    )
    for sim in (loop, batched):
        sim.round(), sim.round()
        assert same(sim.state.buffers, dict(module.named_buffers()))
    torch.testing.assert_close(batched.params, loop.params, rtol=1e-5, atol=1e-6)
    assert not same(loop.params, loop.settings.model.params)


def test_module_given_to_simulation_is_unchanged_after_round():
    module = mlp(norm=True)
    before = {n: t.clone() for n, t in module.state_dict().items()}
    sim = Simulation("fedavg", module, Clients.random(SIZES), batch_size=4)
    sim.round()
    assert same(dict(module.state_dict()), before) and isinstance(module.norm, nn.BatchNorm1d)
    assert list(sim.settings.model.state_dict(sim.params | sim.state.buffers)) == list(
        module.state_dict()
    )
    made = sim.settings.model.module(sim.params, sim.state.buffers)
    assert same(
        dict(made.state_dict()), {n: (sim.params | sim.state.buffers)[n] for n in made.state_dict()}
    )


def test_model_head_of_features_equals_logits():
    model, x = Model(mlp()), torch.randn(7, 4)
    out = model(model.params, x, buffers={})
    torch.testing.assert_close(model.head(model.params, out.features), out.logits)
    assert (
        out.features.shape == (7, 5)
        and model.in_head("head.bias")
        and not model.in_head("body.bias")
    )


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_of_one_row_leaves_running_statistics_alone(momentum):
    """33 samples in batches of 32: the last batch has no variance, and would pull `running_var` towards 0."""
    x = torch.randn(33, 3, generator=torch.Generator().manual_seed(0)) * 2 + 1
    norm = WeightedBatchNorm(nn.BatchNorm1d(3, momentum=momentum))
    norm.train()
    norm(x[:32])
    before = {name: getattr(norm, name).clone() for name in STATISTICS}
    found = norm(x[32:])
    assert all(torch.equal(getattr(norm, name), value) for name, value in before.items())
    torch.testing.assert_close(found, norm.bias.expand(1, 3))  # normalized to 0, then the bias
